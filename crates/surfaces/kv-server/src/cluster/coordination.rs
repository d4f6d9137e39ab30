//! Where the records of a cluster are kept, one for each region: a directory of this host, or etcd.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use weft_kv::cluster::Record;

use super::etcd::Etcd;

/// Records of a directory that stay behind the newest one.
const KEPT: u64 = 8;

/// Why the record was not read or changed. After [`Coordination::replace`] failed so, it may have
/// been changed or not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct NoRecord(pub(super) String);

/// The record at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// The record, if there is one.
    pub record: Option<Record>,
    /// Names this state of it. A record that is not there has version 0.
    pub version: u64,
}

/// A place that keeps the record of a region. One node of many changes a version of it.
pub(super) trait Coordination: Send {
    /// Reads the record.
    ///
    /// # Errors
    /// [`NoRecord`].
    fn read(&mut self) -> Result<Seen, NoRecord>;

    /// Changes the record if it still has the version `was`; else it is false.
    ///
    /// # Errors
    /// [`NoRecord`].
    fn replace(&mut self, record: &Record, was: u64) -> Result<bool, NoRecord>;
}

/// Opens the place that a text names, for the record of one region: `dir:PATH`, or
/// `etcd://HOST:PORT[,HOST:PORT]`. The first region's record is where it was when there was one.
///
/// # Errors
/// [`NoRecord`], in words for an operator.
pub(super) fn coordination(
    text: &str,
    cluster: &str,
    region: u32,
) -> Result<Box<dyn Coordination>, NoRecord> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if cluster.is_empty() || cluster.len() > 64 || !cluster.bytes().all(is_name) {
        return Err(NoRecord(format!(
            "{cluster:?} is no name of a cluster; take up to 64 letters, digits, '-', '_' and '.'"
        )));
    }
    if let Some(path) = text.strip_prefix("dir:") {
        let mut directory = Path::new(path).join(cluster);
        if region > 0 {
            directory.push(format!("region-{region}"));
        }
        return Ok(Box::new(Directory::new(directory)?));
    }
    if let Some(hosts) = text.strip_prefix("etcd://") {
        return Ok(Box::new(Etcd::new(hosts, cluster, region)?));
    }
    Err(NoRecord(format!("{text:?} is no coordinator; take etcd://HOST:PORT or dir:PATH")))
}

/// Reads a record, and refuses one that no node writes.
pub(super) fn parse(bytes: &[u8], whose: &str) -> Result<Record, NoRecord> {
    let record: Option<Record> = serde_json::from_slice(bytes).ok();
    let sound = record.filter(Record::is_sound);
    sound.ok_or_else(|| NoRecord(format!("{whose} has no record of a cluster of this version")))
}

/// A directory. Each version of the record is a file of its own, whose name is made by a hard link:
/// of two nodes that make the same one, one fails. There is no lock that a node that is stopped
/// could hold.
struct Directory {
    path: PathBuf,
    /// The own name of a file that is not linked yet.
    fresh: PathBuf,
}

impl Directory {
    fn new(path: PathBuf) -> Result<Self, NoRecord> {
        fs::create_dir_all(&path).map_err(|error| failed(&path, &error))?;
        let fresh = path.join(format!(".new-{}", std::process::id()));
        Ok(Self { path, fresh })
    }

    fn file(&self, version: u64) -> PathBuf {
        self.path.join(format!("record-{version:020}"))
    }

    fn newest(&self) -> io::Result<u64> {
        let mut newest = 0;
        for entry in fs::read_dir(&self.path)? {
            newest = newest.max(version_of(&entry?.file_name().to_string_lossy()).unwrap_or(0));
        }
        Ok(newest)
    }

    fn write(&self, record: &Record) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&self.fresh)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.sync_all()
    }

    fn link(&self, version: u64) -> io::Result<bool> {
        let linked = fs::hard_link(&self.fresh, self.file(version));
        // The file may be linked: it must not be written again.
        fs::remove_file(&self.fresh)?;
        match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            other => other?,
        }
        File::open(&self.path)?.sync_all()?;
        Ok(true)
    }

    /// Removes old records. A node that was stopped for long could make one of them again, and
    /// finds then that the one before is missing.
    fn tidy(&self, newest: u64) {
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let version = version_of(&entry.file_name().to_string_lossy());
            if version.is_some_and(|version| version + KEPT < newest) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn version_of(name: &str) -> Option<u64> {
    name.strip_prefix("record-")?.parse().ok()
}

fn failed(path: &Path, error: &io::Error) -> NoRecord {
    NoRecord(format!("the directory of the cluster, {}: {error}", path.display()))
}

impl Coordination for Directory {
    fn read(&mut self) -> Result<Seen, NoRecord> {
        loop {
            let version = self.newest().map_err(|error| failed(&self.path, &error))?;
            if version == 0 {
                return Ok(Seen { record: None, version });
            }
            let file = self.file(version);
            match fs::read(&file) {
                Ok(bytes) => {
                    let record = parse(&bytes, &file.display().to_string())?;
                    return Ok(Seen { record: Some(record), version });
                }
                // There are much newer ones by now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(&self.path, &error)),
            }
        }
    }

    fn replace(&mut self, record: &Record, was: u64) -> Result<bool, NoRecord> {
        let failed = |error: io::Error| failed(&self.path, &error);
        self.write(record).map_err(failed)?;
        if !self.link(was + 1).map_err(failed)? {
            return Ok(false);
        }
        if was > 0 && !self.file(was).exists() {
            return Err(NoRecord("this node was stopped while it changed the record".to_owned()));
        }
        self.tidy(was + 1);
        Ok(true)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may end by a panic")]
mod tests {
    use super::*;

    #[test]
    fn of_two_nodes_one_changes_a_version_of_the_record() {
        let root = tempfile::tempdir().unwrap();
        let place = format!("dir:{}", root.path().display());
        let mut one = coordination(&place, "a", 0).unwrap();
        let mut two = coordination(&place, "a", 0).unwrap();
        assert_eq!(one.read().unwrap(), Seen { record: None, version: 0 });
        let record = Record::new(3, 2_000);
        // The record of another region lies apart.
        let mut other = coordination(&place, "a", 1).unwrap();
        assert!(other.replace(&Record::of_region(3, 2_000, 1, 2), 0).unwrap());
        assert!(one.replace(&record, 0).unwrap());
        assert!(!two.replace(&record, 0).unwrap());
        for version in 1..20 {
            assert!(two.replace(&record, version).unwrap());
        }
        assert_eq!(one.read().unwrap(), Seen { record: Some(record.clone()), version: 20 });
        // It was stopped since version 1, and all about it is gone.
        assert!(one.replace(&record, 1).is_err());
        assert_eq!(one.read().unwrap().version, 20);
        let files = fs::read_dir(root.path().join("a")).unwrap().count();
        assert!(files <= 12, "{files} files stay");
        fs::write(root.path().join("a/record-00000000000000000021"), "{}").unwrap();
        assert!(one.read().unwrap_err().to_string().contains("no record"));
        for (place, name) in [("dir:/tmp", "a/b"), ("zk://x", "a"), ("etcd://", "a")] {
            assert!(coordination(place, name, 0).is_err(), "{place} {name}");
        }
    }

    #[test]
    fn a_record_of_a_time_with_one_region_is_read() {
        let before = r#"{"replicas":3,"lease_ms":2000,"epoch":0,"primary":null,"in_sync":[],
            "candidates":{},"members":[]}"#;
        let record = parse(before.as_bytes(), "a test").unwrap();
        assert_eq!(record, Record::new(3, 2_000));
        assert_eq!(record.slots(), (0, 16_383));
        let other = before.replace("\"epoch\"", "\"regions\":2,\"region\":2,\"epoch\"");
        assert!(parse(other.as_bytes(), "a test").is_err());
    }
}
