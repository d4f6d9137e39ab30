//! The walk over the sources: what is there, in the order in which it is told.
//!
//! A directory is told, then all that lies in it, then the end of it; what lies in its directories
//! comes later. Links are told and never followed.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, Dir, FileType, OFlags, Stat, major, makedev, minor, openat, readlinkat, statat,
};
use rustix::io::Errno;
use weft_transfer::{Code, Excludes, Kind, Metadata, TEMPORARY_PREFIX, TreePath};

use crate::error::code_of;
use crate::metadata::{attributes, file_id, metadata_of};
use crate::tops::{Top, Tops};

/// Most hard links that are remembered, of files with several names.
const LINKS_MAX: usize = 16 << 20;
/// Bytes of a block of `st_blocks`.
const DISK_BLOCK_BYTES: u64 = 512;

/// An entry that a walk finds.
#[derive(Debug)]
pub(crate) enum Found {
    /// An entry.
    Entry { path: TreePath, metadata: Metadata, kind: Kind, is_sparse: bool },
    /// All that is in a directory was found.
    DirectoryEnd { path: TreePath, is_complete: bool },
    /// Something could not be read.
    Trouble { path: TreePath, code: Code, text: String },
    /// All was found.
    End,
}

/// How to walk.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    pub is_recursive: bool,
    pub keeps_all: bool,
    pub excludes: Excludes,
    /// A directory that is not walked into, by device and inode: the destination.
    pub stays_out_of: Option<(u64, u64)>,
}

/// The state of a walk that `found` hears of. It returns false to stop.
struct Walker<'a> {
    walk: &'a Walk,
    found: &'a mut dyn FnMut(Found) -> bool,
    /// The first path of a file with several names.
    links: HashMap<(u64, u64), TreePath>,
    /// Directories whose content comes next.
    directories: Vec<TreePath>,
}

/// Walks over all sources.
pub(crate) fn walk(tops: &Tops, walk: &Walk, found: &mut dyn FnMut(Found) -> bool) {
    let mut walker = Walker { walk, found, links: HashMap::new(), directories: Vec::new() };
    for top in &tops.0 {
        if !walker.top(top, tops) {
            return;
        }
    }
    (walker.found)(Found::End);
}

impl Walker<'_> {
    fn top(&mut self, top: &Top, tops: &Tops) -> bool {
        let path = match TreePath::new(top.shown.clone()) {
            Ok(path) => path,
            Err(error) => {
                let path = TreePath::default();
                return self.trouble(path, Code::Refused, error.to_string());
            }
        };
        let name = if top.name.is_empty() { b".".to_vec() } else { top.name.clone() };
        if !self.entry(top.root.top(), &name, path) {
            return false;
        }
        while let Some(path) = self.directories.pop() {
            if !self.content(tops, path) {
                return false;
            }
        }
        true
    }

    fn trouble(&mut self, path: TreePath, code: Code, text: String) -> bool {
        (self.found)(Found::Trouble { path, code, text })
    }

    fn unreadable(&mut self, path: TreePath, error: Errno) -> bool {
        self.trouble(path, code_of(error, Code::Read), format!("cannot be read: {error}"))
    }

    /// All that lies in a directory.
    fn content(&mut self, tops: &Tops, path: TreePath) -> bool {
        let opened = tops.open(&path, OFlags::DIRECTORY);
        let (directory, names) = match opened.and_then(|at| names(&at).map(|names| (at, names))) {
            Ok(both) => both,
            Err(error) => {
                return self.unreadable(path.clone(), error)
                    && (self.found)(Found::DirectoryEnd { path, is_complete: false });
            }
        };
        let first = self.directories.len();
        let mut is_complete = true;
        for (_, name) in names {
            // Another transfer's unfinished files are nobody's.
            if name.starts_with(TEMPORARY_PREFIX.as_bytes()) && is_unfinished(&name) {
                continue;
            }
            match path.join(&name) {
                Ok(child) => {
                    if !self.entry(&directory, &name, child) {
                        return false;
                    }
                }
                Err(error) => {
                    is_complete = false;
                    let text = format!("{}: {error}", weft_transfer::shown(&name));
                    if !self.trouble(path.clone(), Code::Refused, text) {
                        return false;
                    }
                }
            }
        }
        // The first directory found is the next to be walked.
        self.directories[first..].reverse();
        (self.found)(Found::DirectoryEnd { path, is_complete })
    }

    fn entry(&mut self, directory: &OwnedFd, name: &[u8], path: TreePath) -> bool {
        let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(error) => return self.unreadable(path, error),
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if self.walk.excludes.excludes(&path, kind == FileType::Directory) {
            return true;
        }
        if kind == FileType::Directory && !self.walk.is_recursive {
            let text = "is a directory; -r copies what is in it".to_owned();
            return self.trouble(path, Code::Refused, text);
        }
        if self.walk.stays_out_of == Some((stat.st_dev, stat.st_ino)) {
            let text = "is the destination, and is not copied into itself".to_owned();
            return self.trouble(path, Code::Refused, text);
        }
        let mut metadata = metadata_of(&stat);
        if self.walk.keeps_all {
            match attributes(directory, name) {
                Ok(found) => metadata.attributes = found,
                Err(error) => {
                    let text = format!("its attributes cannot be read: {error}");
                    if !self.trouble(path.clone(), code_of(error, Code::Read), text) {
                        return false;
                    }
                }
            }
        }
        let kind = match self.kind(directory, name, &path, &stat, kind) {
            Ok(kind) => kind,
            Err(error) => return self.unreadable(path, error),
        };
        if kind == Kind::Directory {
            self.directories.push(path.clone());
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let is_sparse = u64::try_from(stat.st_blocks).unwrap_or(0) * DISK_BLOCK_BYTES < size;
        (self.found)(Found::Entry { path, metadata, kind, is_sparse })
    }

    fn kind(
        &mut self,
        directory: &OwnedFd,
        name: &[u8],
        path: &TreePath,
        stat: &Stat,
        kind: FileType,
    ) -> Result<Kind, Errno> {
        if self.walk.keeps_all && kind != FileType::Directory && stat.st_nlink > 1 {
            let key = (stat.st_dev, stat.st_ino);
            if let Some(first) = self.links.get(&key) {
                return Ok(Kind::HardLink { first: first.clone() });
            }
            if self.links.len() < LINKS_MAX {
                self.links.insert(key, path.clone());
            }
        }
        Ok(match kind {
            FileType::Directory => Kind::Directory,
            FileType::RegularFile => Kind::File(file_id(stat)),
            FileType::Symlink => {
                Kind::Symlink { text: readlinkat(directory, name, Vec::new())?.into_bytes() }
            }
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::BlockDevice | FileType::CharacterDevice => Kind::Device {
                is_block: kind == FileType::BlockDevice,
                number: makedev(major(stat.st_rdev), minor(stat.st_rdev)),
            },
            _ => return Err(Errno::NOTSUP),
        })
    }
}

/// Whether a name is that of a journal or a temporary file of weft.
pub(crate) fn is_unfinished(name: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(TEMPORARY_PREFIX.as_bytes()) else { return false };
    let Some((digits, end)) = rest.split_at_checked(32) else { return false };
    digits.iter().all(u8::is_ascii_hexdigit) && (end == b".part" || end == b".journal")
}

/// The names in a directory, in the order of their inodes, in which disks have them.
pub(crate) fn names(directory: &OwnedFd) -> Result<Vec<(u64, Vec<u8>)>, Errno> {
    let again = openat(
        directory,
        ".",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    let mut names = Vec::new();
    for entry in Dir::new(again)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push((entry.ino(), name.to_vec()));
        }
    }
    names.sort_unstable();
    Ok(names)
}
