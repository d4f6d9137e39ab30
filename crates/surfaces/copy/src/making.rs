//! The entries that the target makes beside files: directories, links, special files; and their
//! removal.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fstat, linkat, mkdirat, mknodat, openat, renameat,
    statat, symlinkat, syncfs, unlinkat,
};
use rustix::io::Errno;
use weft_transfer::{Code, Entry, Excludes, Kind, Lost, Made, PathId, TreePath, Trouble};

use crate::error::code_of;
use crate::metadata::give_by_name;
use crate::walk::{is_unfinished, names};
use crate::writing::Writing;

/// How deep a directory may be that is removed.
const DEPTH_MAX: usize = 512;

/// Makes things.
#[derive(Debug)]
pub(crate) struct Making {
    pub writing: Arc<Writing>,
    pub excludes: Excludes,
    pub is_dry: bool,
    /// Directories that this run made: others keep their modes unless all is kept.
    made: Mutex<HashSet<u64>>,
}

fn made(result: Result<Lost, Errno>) -> Made {
    match result {
        Ok(lost) => Made::There(lost),
        Err(error) => {
            let text = match error {
                Errno::EXIST => "something else has its name at the destination".to_owned(),
                Errno::LOOP => "a link at the destination is in its way".to_owned(),
                error => format!("cannot be made: {error}"),
            };
            Made::Failed(code_of(error, Code::Write), text)
        }
    }
}

impl Making {
    pub fn new(writing: Arc<Writing>, excludes: Excludes, is_dry: bool) -> Self {
        Self { writing, excludes, is_dry, made: Mutex::default() }
    }

    /// Makes a directory, a link or a special file.
    pub fn make(&self, entry: &Entry) -> Made {
        made(match &entry.kind {
            Kind::Directory => self.directory(entry).map(|()| None),
            Kind::Symlink { text } => self
                .named(entry, true, |directory, name| symlinkat(text.as_slice(), directory, name)),
            Kind::Fifo => self.special(entry, FileType::Fifo, 0),
            Kind::Socket => self.special(entry, FileType::Socket, 0),
            Kind::Device { is_block: true, number } => {
                self.special(entry, FileType::BlockDevice, *number)
            }
            Kind::Device { is_block: false, number } => {
                self.special(entry, FileType::CharacterDevice, *number)
            }
            Kind::File(_) | Kind::HardLink { .. } => unreachable!("the machine does not ask"),
        })
    }

    fn directory(&self, entry: &Entry) -> Result<(), Errno> {
        if entry.path.is_top() {
            return Ok(());
        }
        let (parent, name) = self.writing.root.parent_of(&entry.path)?;
        match mkdirat(&*parent, &name, Mode::RWXU) {
            Ok(()) => {
                self.made.lock().insert(entry.number);
                Ok(())
            }
            Err(Errno::EXIST) => {
                let stat = statat(&*parent, &name, AtFlags::SYMLINK_NOFOLLOW)?;
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Directory => Ok(()),
                    FileType::Symlink => Err(Errno::LOOP),
                    _ => Err(Errno::EXIST),
                }
            }
            Err(error) => Err(error),
        }
    }

    fn special(&self, entry: &Entry, kind: FileType, number: u64) -> Result<Lost, Errno> {
        self.named(entry, false, |directory, name| {
            mknodat(directory, name, kind, Mode::RUSR | Mode::WUSR, number)
        })
    }

    /// Makes something under a temporary name, gives it its metadata, and puts it under its name.
    fn named(
        &self,
        entry: &Entry,
        is_link: bool,
        make: impl Fn(&OwnedFd, &str) -> Result<(), Errno>,
    ) -> Result<Lost, Errno> {
        let (parent, name) = self.writing.root.parent_of(&entry.path)?;
        let temporary = PathId::of(&entry.path).temporary(self.writing.transfer);
        match make(&parent, &temporary) {
            Err(Errno::EXIST) => {
                unlinkat(&*parent, &temporary, AtFlags::empty())?;
                make(&parent, &temporary)?;
            }
            result => result?,
        }
        let lost = if self.writing.keeps_all {
            give_by_name(&parent, temporary.as_bytes(), &entry.metadata, is_link)
        } else {
            None
        };
        if let Err(error) = renameat(&*parent, &temporary, &*parent, &name) {
            let _ = unlinkat(&*parent, &temporary, AtFlags::empty());
            return Err(error);
        }
        Ok(lost)
    }

    /// Gives a file one more name.
    pub fn link(&self, entry: &Entry) -> Made {
        made(self.linked(entry))
    }

    fn linked(&self, entry: &Entry) -> Result<Lost, Errno> {
        let Kind::HardLink { first } = &entry.kind else { unreachable!("it is a link") };
        let (from, old) = self.writing.root.parent_of(first)?;
        let (to, name) = self.writing.root.parent_of(&entry.path)?;
        let is_same =
            |one: &Stat, other: &Stat| (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino);
        let source = statat(&*from, &old, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(source.st_mode) == FileType::Directory {
            return Err(Errno::ISDIR);
        }
        match linkat(&*from, &old, &*to, &name, AtFlags::empty()) {
            Ok(()) => return Ok(None),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        let there = statat(&*to, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        if is_same(&there, &source) {
            return Ok(None);
        }
        let temporary = PathId::of(&entry.path).temporary(self.writing.transfer);
        let _ = unlinkat(&*to, &temporary, AtFlags::empty());
        linkat(&*from, &old, &*to, &temporary, AtFlags::empty())?;
        renameat(&*to, &temporary, &*to, &name).map(|()| None).inspect_err(|_| {
            let _ = unlinkat(&*to, &temporary, AtFlags::empty());
        })
    }

    /// Gives a directory its metadata.
    pub fn settle(&self, entry: &Entry) -> Made {
        if entry.path.is_top() {
            // It lies in this directory, and its removal would change the times.
            self.writing.journal.remove();
        }
        let is_new = self.made.lock().contains(&entry.number);
        if !is_new && !self.writing.keeps_all {
            return Made::There(None);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        made(
            self.writing
                .root
                .open_below(entry.path.bytes(), flags)
                .map(|directory| self.writing.give(&directory, entry)),
        )
    }

    /// Makes all that was written last.
    pub fn sync(&self) -> Result<(), String> {
        if !self.writing.verifies || self.is_dry {
            return Ok(());
        }
        syncfs(&**self.writing.root.top()).map_err(|why| format!("the file system: {why}"))
    }

    /// Removes what is in a directory and not to be kept. Returns what was removed, and what could
    /// not be.
    pub fn prune(&self, path: &TreePath, keep: &HashSet<Vec<u8>>) -> (Vec<TreePath>, Vec<Trouble>) {
        let mut pruning = Pruning { making: self, removed: Vec::new(), troubles: Vec::new() };
        self.writing.root.forget();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match self.writing.root.open_below(path.bytes(), flags) {
            Ok(directory) => pruning.directory(&directory, path, keep, 0),
            // A dry run may ask for one that was not made.
            Err(Errno::NOENT) if self.is_dry => true,
            Err(error) => pruning.trouble(path, error),
        };
        (pruning.removed, pruning.troubles)
    }
}

struct Pruning<'a> {
    making: &'a Making,
    removed: Vec<TreePath>,
    troubles: Vec<Trouble>,
}

impl Pruning<'_> {
    fn trouble(&mut self, path: &TreePath, error: Errno) -> bool {
        let (code, path) = (code_of(error, Code::Write), path.clone());
        let text = format!("cannot be removed: {error}");
        self.troubles.push(Trouble { number: None, path, code, text });
        false
    }

    /// Removes what is in a directory. True if nothing stays in it.
    fn directory(
        &mut self,
        directory: &OwnedFd,
        path: &TreePath,
        keep: &HashSet<Vec<u8>>,
        depth: usize,
    ) -> bool {
        if depth > DEPTH_MAX {
            return self.trouble(path, Errno::NAMETOOLONG);
        }
        let found = match names(directory) {
            Ok(found) => found,
            Err(error) => return self.trouble(path, error),
        };
        let mut is_empty = true;
        for (_, name) in found {
            if keep.contains(&name) || is_unfinished(&name) {
                is_empty = false;
                continue;
            }
            let Ok(child) = path.join(&name) else {
                is_empty = false;
                continue;
            };
            is_empty &= self.entry(directory, &name, &child, depth);
        }
        is_empty
    }

    fn entry(&mut self, directory: &OwnedFd, name: &[u8], path: &TreePath, depth: usize) -> bool {
        let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(error) => return self.trouble(path, error),
        };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        // Entries that are left out of the source are nobody's to remove.
        if self.making.excludes.excludes(path, is_directory) {
            return false;
        }
        if !is_directory {
            return self.remove(directory, name, path, AtFlags::empty());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(directory, name, flags, Mode::empty());
        let below = match opened {
            Ok(below) => below,
            Err(error) => return self.trouble(path, error),
        };
        // It is the directory that was looked at, and not a link to another that came meanwhile.
        if !fstat(&below).is_ok_and(|now| (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino)) {
            return self.trouble(path, Errno::LOOP);
        }
        if !self.directory(&below, path, &HashSet::new(), depth + 1) {
            return false;
        }
        self.remove(directory, name, path, AtFlags::REMOVEDIR)
    }

    fn remove(&mut self, directory: &OwnedFd, name: &[u8], path: &TreePath, how: AtFlags) -> bool {
        if !self.making.is_dry
            && let Err(error) = unlinkat(directory, name, how)
        {
            return self.trouble(path, error);
        }
        self.removed.push(path.clone());
        true
    }
}
