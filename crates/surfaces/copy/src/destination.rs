//! Where a transfer goes: into a directory that is there, or under a new name.

use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, open, openat, statat};
use rustix::io::Errno;
use weft_transfer::{journal_name, transfer_id};

use crate::error::CopyError;
use crate::root::{Root, path_of};
use crate::tops::inside;

/// The destination.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    /// The path, as the user gave it.
    pub place: Vec<u8>,
    /// The directory that must not be left, of a server.
    pub within: Option<Arc<Root>>,
}

impl Destination {
    fn failed(&self, why: impl ToString) -> CopyError {
        CopyError::place(weft_transfer::shown(&self.place), why)
    }

    /// Where the sources land. A transfer that was to make the destination and was cut off goes on
    /// there, and not in the directory that it made.
    pub fn resolve(&self, tops: u32, identity: u128, resumes: bool) -> Result<Landing, CopyError> {
        let is_one = tops & !CONTENT == 1;
        let takes_content = tops & CONTENT != 0;
        let under_a_name = |(root, name): (Root, Vec<u8>)| {
            let transfer = transfer_id(identity, &name);
            Landing { root, renames: Some(name), is_bare: false, transfer }
        };
        match self.directory() {
            Ok(root) => {
                if resumes
                    && is_one
                    && let Ok(parent) = self.parent()
                    && has_journal(&parent, identity)
                {
                    return Ok(under_a_name(parent));
                }
                let transfer = transfer_id(identity, b"");
                Ok(Landing { root, renames: None, is_bare: takes_content, transfer })
            }
            Err(Errno::NOENT | Errno::NOTDIR) if is_one => Ok(under_a_name(self.parent()?)),
            Err(Errno::NOENT | Errno::NOTDIR) => {
                Err(self.failed("several sources go into a directory, and it is none"))
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    fn directory(&self) -> Result<Root, Errno> {
        if let Some(root) = &self.within {
            let inside = inside(path_of(&self.place)).map_err(|_| Errno::XDEV)?;
            return root.below(&inside);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = if self.place.is_empty() { b"." } else { self.place.as_slice() };
        Ok(Root::of(openat(CWD, path, flags, Mode::empty())?))
    }

    /// The directory that the destination lies in, and its name there.
    fn parent(&self) -> Result<(Root, Vec<u8>), CopyError> {
        if let Some(root) = &self.within {
            let inside = inside(path_of(&self.place)).map_err(|why| self.failed(why))?;
            let (parent, name) = match inside.iter().rposition(|byte| *byte == b'/') {
                Some(slash) => (&inside[..slash], &inside[slash + 1..]),
                None => (&b""[..], inside.as_slice()),
            };
            let parent = root.below(parent).map_err(|why| self.failed(why))?;
            return Ok((parent, name.to_vec()));
        }
        let path = PathBuf::from(path_of(&self.place));
        let name = path.file_name().ok_or_else(|| self.failed("it has no name"))?;
        let parent = path.parent().map(PathBuf::from).unwrap_or_default();
        let root = Root::open(&parent).map_err(|why| self.failed(why))?;
        Ok((root, std::os::unix::ffi::OsStrExt::as_bytes(name).to_vec()))
    }

    /// The device and inode of what is there, and whether it is a directory.
    pub fn identity(&self) -> Option<((u64, u64), bool)> {
        let path = if self.place.is_empty() { b"." } else { self.place.as_slice() };
        let file = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let stat = fstat(&file).ok()?;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        Some(((stat.st_dev, stat.st_ino), is_directory))
    }
}

/// Whether the directory has the journal of a transfer that makes this name.
fn has_journal((root, name): &(Root, Vec<u8>), identity: u128) -> bool {
    let journal = journal_name(transfer_id(identity, name));
    statat(&**root.top(), journal, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// Where the sources of a transfer land.
#[derive(Debug)]
pub(crate) struct Landing {
    /// The directory that entries are made in.
    pub root: Root,
    /// The name that the one source gets there, if it does not keep its own.
    pub renames: Option<Vec<u8>>,
    /// Whether paths begin below the source.
    pub is_bare: bool,
    /// Names the transfer.
    pub transfer: u128,
}

/// Set in the number of sources if what is in the one source is copied, and not itself.
pub(crate) const CONTENT: u32 = 1 << 31;
