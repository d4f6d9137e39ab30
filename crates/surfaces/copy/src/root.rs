//! A directory, and names below it which never lead out of it.
//!
//! Every path is resolved by openat2(2) with `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`, in the
//! kernel and at once: a link that somebody puts into the way between two calls is refused, not
//! followed. What is done to an entry is done by its name in the directory that was opened so.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use weft_transfer::TreePath;

/// Most directories that are kept open.
const OPEN_MAX: usize = 128;

/// The directory.
#[derive(Debug)]
pub(crate) struct Root {
    top: Arc<OwnedFd>,
    open: Mutex<HashMap<Vec<u8>, Arc<OwnedFd>>>,
}

const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

impl Root {
    /// The directory at a path that the user gave. Links in it are the user's and are followed.
    pub fn open(path: &Path) -> Result<Self, Errno> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self::of(openat(CWD, path, flags, Mode::empty())?))
    }

    /// The directory behind a descriptor.
    pub fn of(top: OwnedFd) -> Self {
        Self { top: Arc::new(top), open: Mutex::default() }
    }

    /// The directory itself.
    pub fn top(&self) -> &Arc<OwnedFd> {
        &self.top
    }

    /// A directory below, as a root of its own.
    pub fn below(&self, path: &[u8]) -> Result<Self, Errno> {
        if path.is_empty() {
            return Ok(Self::of(rustix::io::fcntl_dupfd_cloexec(&*self.top, 0)?));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        Ok(Self::of(self.open_below(path, flags)?))
    }

    /// Opens what lies at a path below. The last name is no link, either.
    pub fn open_below(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        let flags = flags | OFlags::CLOEXEC;
        loop {
            // The kernel gives up a search that a rename somewhere disturbed.
            match openat2(&*self.top, path, flags, Mode::empty(), BENEATH) {
                Err(Errno::AGAIN) if !flags.contains(OFlags::NONBLOCK) => {}
                opened => return opened,
            }
        }
    }

    /// A directory below, for calls by name.
    pub fn directory(&self, path: &[u8]) -> Result<Arc<OwnedFd>, Errno> {
        if path.is_empty() {
            return Ok(Arc::clone(&self.top));
        }
        if let Some(found) = self.open.lock().get(path) {
            return Ok(Arc::clone(found));
        }
        let opened = self.open_below(path, OFlags::RDONLY | OFlags::DIRECTORY);
        let opened = match opened {
            // A directory that may be searched and not read is enough to make files in it.
            Err(Errno::ACCESS) => self.open_below(path, OFlags::PATH | OFlags::DIRECTORY)?,
            opened => opened?,
        };
        let opened = Arc::new(opened);
        let mut open = self.open.lock();
        if open.len() >= OPEN_MAX {
            open.clear();
        }
        open.insert(path.to_vec(), Arc::clone(&opened));
        Ok(opened)
    }

    /// The directory that an entry lies in.
    pub fn parent_of(&self, path: &TreePath) -> Result<(Arc<OwnedFd>, Vec<u8>), Errno> {
        match path.split() {
            Some((parent, name)) => Ok((self.directory(parent.bytes())?, name.to_vec())),
            None => Ok((Arc::clone(&self.top), b".".to_vec())),
        }
    }

    /// Forgets what is kept open, before directories are removed.
    pub fn forget(&self) {
        self.open.lock().clear();
    }
}

/// A path to an entry of an open directory, for calls that take no descriptor and do not follow
/// the last name.
pub(crate) fn by_descriptor(directory: &OwnedFd, name: &[u8]) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    path
}

/// A path of these bytes.
pub(crate) fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}
