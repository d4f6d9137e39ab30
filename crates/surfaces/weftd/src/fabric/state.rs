//! The state of a daemon in a fabric over its restarts: its key pair and the table of nodes.
//!
//! # Invariants
//! - A file is whole or as it was: it is written beside its place, flushed, and renamed.
//! - One daemon at a time uses the directory.

use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use rustix::fs::{FlockOperation, OFlags, flock};
use weft_membership::{OwnIdentity, Roster};

/// The key pair (PKCS#8).
const IDENTITY: &str = "identity";
/// The table of nodes (JSON).
const NODES: &str = "nodes.json";
/// Longest file that is read, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// A symbolic link in place of a file would read or write another one.
const NO_FOLLOW: i32 = OFlags::NOFOLLOW.bits().cast_signed();

/// The directory of the state.
#[derive(Debug)]
pub struct State {
    directory: PathBuf,
    /// Held while the daemon lives.
    _lock: File,
}

impl State {
    /// The state in `directory`, which is made if it is missing.
    ///
    /// # Errors
    /// It cannot be made, others can write it, or another daemon uses it.
    pub fn open(directory: &Path) -> anyhow::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        weft_channel::open_directory(directory)?;
        let path = directory.join("lock");
        let lock = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(NO_FOLLOW)
            .open(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!(
                "another daemon uses the state in {}; give this one another directory with \
                 --fabric-state",
                directory.display()
            );
        }
        Ok(Self { directory: directory.to_owned(), _lock: lock })
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The key pair of this node, made at the first start.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub fn identity(&self) -> anyhow::Result<OwnIdentity> {
        let path = self.directory.join(IDENTITY);
        if let Some(bytes) = read_private(&path)? {
            return OwnIdentity::of_document(&bytes).with_context(|| path.display().to_string());
        }
        let own = OwnIdentity::generate()?;
        self.write(IDENTITY, own.document())?;
        Ok(own)
    }

    /// The table of nodes that was kept last.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn roster(&self) -> anyhow::Result<Option<Roster>> {
        let path = self.directory.join(NODES);
        let Some(bytes) = read_private(&path)? else { return Ok(None) };
        let roster: Option<Roster> = serde_json::from_slice(&bytes).ok();
        let roster = roster.filter(Roster::is_valid).with_context(|| {
            format!(
                "{} is no table of nodes; on a host that is not the first one, remove it, and it \
                 is sent again",
                path.display()
            )
        })?;
        Ok(Some(roster))
    }

    /// Keeps the table of nodes.
    ///
    /// # Errors
    /// It cannot be written. The former one is still there.
    pub fn keep(&self, roster: &Roster) -> anyhow::Result<()> {
        self.write(NODES, &serde_json::to_vec_pretty(roster)?)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let path = self.directory.join(name);
        let beside = self.directory.join(format!("{name}.new"));
        let written = || -> std::io::Result<()> {
            let mut file = File::options()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .custom_flags(NO_FOLLOW)
                .open(&beside)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            std::fs::rename(&beside, &path)?;
            File::open(&self.directory)?.sync_all()
        };
        written().with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The bytes of a file that only its owner can read; `None` if there is no such file.
///
/// # Errors
/// It cannot be read, is too long, or others can read it.
pub fn read_private(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    let shown = path.display();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
    };
    let about = file.metadata().with_context(|| format!("cannot look at {shown}"))?;
    ensure!(
        about.mode() & 0o077 == 0,
        "other users can read {shown}; `chmod 600 {shown}` keeps it secret"
    );
    ensure!(about.is_file() && about.len() <= FILE_BYTES_MAX, "{shown} is no file of weft");
    std::fs::read(path).map(Some).with_context(|| format!("cannot read {shown}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use weft_membership::{Member, Numbering};

    #[test]
    fn identity_and_table_are_the_same_at_the_next_start_and_private() {
        let root = tempfile::tempdir().expect("a directory");
        let place = root.path().join("state");
        let state = State::open(&place).expect("made");
        let own = state.identity().expect("made").identity();
        assert_eq!(state.roster().expect("none is no error"), None);
        let member = Member {
            number: 0,
            identity: own,
            name: "a".to_owned(),
            address: "10.9.0.1:7700".parse().expect("an address"),
            is_expelled: false,
            former: 0,
        };
        let (members, numbering) = (vec![member], Numbering::First);
        let roster = Roster { revision: 1, first: own, members, numbering };
        state.keep(&roster).expect("written");
        assert!(State::open(&place).is_err(), "one daemon at a time");
        drop(state);
        let state = State::open(&place).expect("there");
        assert_eq!(state.identity().expect("there").identity(), own);
        assert_eq!(state.roster().expect("there"), Some(roster));
        let mode = std::fs::metadata(place.join(IDENTITY)).expect("there").mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(place.join(NODES), "{}").expect("our own");
        assert!(state.roster().expect_err("no table").to_string().contains("remove it"));
    }

    #[test]
    fn a_key_that_others_can_read_is_refused_with_the_cure() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("key");
        std::fs::write(&path, "secret").expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("our own");
        let error = read_private(&path).expect_err("not private").to_string();
        assert!(error.contains("chmod 600"), "{error}");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("our own");
        assert_eq!(read_private(&path).expect("private"), Some(b"secret".to_vec()));
    }
}
