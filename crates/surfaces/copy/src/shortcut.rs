//! Whole files that the system copies on one host: by sharing their blocks, or inside the kernel.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{OFlags, SeekFrom, copy_file_range, fstat, ftruncate, ioctl_ficlone, seek};
use rustix::io::Errno;
use weft_transfer::{Entry, Kind, Made, TreePath};

use crate::metadata::{file_id, has_same_bytes};
use crate::tops::Tops;
use crate::writing::Writing;

/// Least bytes of a file for which it is tried.
const BYTES_MIN: u64 = 4 << 10;
/// Most bytes of one call.
const PART_BYTES: usize = 64 << 20;

/// The short way.
#[derive(Debug)]
pub(crate) struct Shortcut {
    tops: Arc<Tops>,
    /// Whether the kernel may copy the bytes where it cannot share them. They are then not
    /// verified.
    copies: bool,
    shares: AtomicBool,
    /// Whether the one source has another name at the destination.
    is_renamed: AtomicBool,
}

impl Shortcut {
    pub fn new(tops: Arc<Tops>, copies: bool) -> Self {
        let (shares, is_renamed) = (AtomicBool::new(true), AtomicBool::new(false));
        Self { tops, copies, shares, is_renamed }
    }

    pub fn set_renamed(&self, is_renamed: bool) {
        self.is_renamed.store(is_renamed, Ordering::Relaxed);
    }

    /// Whether there is no short way for any file.
    pub fn is_useless(&self) -> bool {
        !self.copies && !self.shares.load(Ordering::Relaxed)
    }

    /// A path at the destination as the source has it.
    fn at_source(&self, path: &TreePath) -> Option<TreePath> {
        if !self.is_renamed.load(Ordering::Relaxed) {
            return Some(path.clone());
        }
        let shown = &self.tops.0.first()?.shown;
        if !shown.is_empty() {
            return path.renamed(shown).ok();
        }
        let slash = path.bytes().iter().position(|byte| *byte == b'/')?;
        TreePath::new(&path.bytes()[slash + 1..]).ok()
    }

    /// Copies a file.
    pub fn copy(&self, writing: &Writing, entry: &Entry) -> Made {
        let Kind::File(id) = entry.kind else { unreachable!("the machine asks for files") };
        if id.size < BYTES_MIN || self.is_useless() {
            return Made::NoShortWay;
        }
        let source = self.at_source(&entry.path).ok_or(Errno::NOENT);
        let Ok(source) = source.and_then(|path| self.tops.open(&path, OFlags::NOFOLLOW)) else {
            // The usual way says why.
            return Made::NoShortWay;
        };
        let fill = |target: &OwnedFd| {
            let is_same = || fstat(&source).is_ok_and(|now| has_same_bytes(&file_id(&now), &id));
            Ok(self.fill(&source, target, id.size)? && is_same())
        };
        match writing.by_system(entry, fill) {
            Ok(Some(lost)) => Made::BySystem(lost),
            Ok(None) => Made::NoShortWay,
            Err((code, text)) => Made::Failed(code, text),
        }
    }

    fn fill(&self, source: &OwnedFd, target: &OwnedFd, size: u64) -> Result<bool, Errno> {
        if self.shares.load(Ordering::Relaxed) {
            match ioctl_ficlone(target, source) {
                Ok(()) => return Ok(true),
                Err(Errno::NOSPC | Errno::DQUOT) => return Err(Errno::NOSPC),
                // This pair of file systems does not, and will not.
                Err(_) => self.shares.store(false, Ordering::Relaxed),
            }
        }
        if self.copies { copy_inside(source, target, size) } else { Ok(false) }
    }
}

/// Copies inside the kernel what is no hole. False if the kernel does not do it here.
fn copy_inside(source: &OwnedFd, target: &OwnedFd, size: u64) -> Result<bool, Errno> {
    ftruncate(target, size)?;
    let mut at = 0;
    while at < size {
        let mut from = match seek(source, SeekFrom::Data(at)) {
            Ok(from) => from,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error),
        };
        let end = seek(source, SeekFrom::Hole(from))?.min(size);
        let mut to = from;
        while from < end {
            let length = usize::try_from(end - from).unwrap_or(usize::MAX).min(PART_BYTES);
            match copy_file_range(source, Some(&mut from), target, Some(&mut to), length) {
                // It was cut meanwhile; the usual way tells.
                Ok(0) => return Ok(false),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        at = end;
    }
    Ok(true)
}
