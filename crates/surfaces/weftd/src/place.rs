//! The control socket in the file system: creation, replacement of a stale socket, removal.

use std::fs::{DirBuilder, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use rustix::fs::{FlockOperation, OFlags, flock};
use weft_channel::Listener;

use crate::client;

/// A listening control socket; removes its file when dropped.
pub struct Place {
    path: PathBuf,
    inode: u64,
    /// Held while the daemon lives, so that two daemons cannot both find the socket stale.
    _lock: File,
}

impl Place {
    /// Listens at `path`. Replaces a socket at which no daemon answers.
    pub fn take(path: &Path) -> anyhow::Result<(Self, Listener)> {
        let directory = path.parent().context("the control socket needs a directory")?;
        make_directory(directory)?;
        let lock_path = lock_path(path);
        let lock = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(NO_FOLLOW)
            .open(&lock_path)
            .with_context(|| format!("cannot create {}", lock_path.display()))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("a daemon already serves {}; stop it with `weft down`", path.display());
        }
        remove_stale(path)?;
        let listener =
            Listener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
        let everyone = rustix::process::geteuid().is_root();
        let mode = if everyone { 0o666 } else { 0o600 };
        std::fs::set_permissions(path, Permissions::from_mode(mode))?;
        let inode = std::fs::metadata(path)?.ino();
        Ok((Self { path: path.to_owned(), inode, _lock: lock }, listener))
    }
}

/// The lock file of the daemon at `socket`. Each socket has its own.
fn lock_path(socket: &Path) -> PathBuf {
    let mut path = socket.to_owned().into_os_string();
    path.push(".lock");
    path.into()
}

/// A symbolic link in place of the lock would create or lock another file.
const NO_FOLLOW: i32 = OFlags::NOFOLLOW.bits().cast_signed();

impl Drop for Place {
    fn drop(&mut self) {
        // Another process may have put a socket there, which this daemon must not remove.
        let ours = std::fs::metadata(&self.path).is_ok_and(|found| found.ino() == self.inode);
        if ours {
            let _ = std::fs::remove_file(&self.path);
            let _ = std::fs::remove_file(lock_path(&self.path));
        }
    }
}

fn make_directory(directory: &Path) -> anyhow::Result<()> {
    let uid = rustix::process::geteuid();
    let mode = if uid.is_root() { 0o755 } else { 0o700 };
    match DirBuilder::new().recursive(true).mode(mode).create(directory) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => {
            return Err(error).with_context(|| format!("cannot create {}", directory.display()));
        }
    }
    // The same check that programs do before they use the directory.
    weft_channel::open_directory(directory)?;
    Ok(())
}

fn remove_stale(path: &Path) -> anyhow::Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    ensure!(
        found.file_type().is_socket(),
        "{} exists and is not a socket; remove it or choose another place with --daemon-socket",
        path.display()
    );
    if client::answers(path) {
        bail!("a daemon already answers at {}; stop it with `weft down`", path.display());
    }
    tracing::info!(path = %path.display(), "removing a stale control socket");
    std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("node.sock");
        let stale = std::os::unix::net::UnixListener::bind(&path).expect("free");
        drop(stale);
        let (place, _listener) = Place::take(&path).expect("nobody answers");
        assert!(Place::take(&path).is_err());
        drop(place);
        assert!(!path.exists());
    }

    #[test]
    fn two_daemons_in_one_directory_have_a_lock_each() {
        let directory = tempfile::tempdir().expect("a directory");
        let _one = Place::take(&directory.path().join("x.1")).expect("free");
        let _other = Place::take(&directory.path().join("x.2")).expect("another socket");
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let open = directory.path().join("open");
        std::fs::create_dir(&open).expect("free");
        // Sticky directories are refused, too: any user could create the socket first.
        for mode in [0o777, 0o1777, 0o1770] {
            std::fs::set_permissions(&open, Permissions::from_mode(mode)).expect("ours");
            assert!(Place::take(&open.join("node.sock")).is_err(), "{mode:o}");
        }
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_not_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("node.sock");
        std::fs::write(&path, "mine").expect("free");
        assert!(Place::take(&path).is_err());
        assert_eq!(std::fs::read(&path).expect("still there"), b"mine");
    }
}
