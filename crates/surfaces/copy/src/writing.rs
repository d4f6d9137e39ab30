//! The target's files: temporary files that are filled, read back, and put under their names.
//!
//! Always true: a name leads to the file that was there before, or to one that is whole and has
//! the bytes that the source hashed. Nothing is done by a path: see [`crate::root`].

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, FallocateFlags, Mode, OFlags, SeekFrom, fallocate, fdatasync, fstat, ftruncate,
    openat, renameat, seek, statat, syncfs, unlinkat,
};
use rustix::io::{Errno, pwrite};
use weft_transfer::{
    Checked, Code, Entry, FileId, Finished, Hasher, Kept, Kind, Leaf, Lost, PathId, Record, Store,
    Stored,
};

use crate::error::code_of;
use crate::journal_file::JournalFile;
use crate::metadata::{file_id, give};
use crate::reading::{read_whole, with_direct, without_direct};
use crate::report::Gauge;
use crate::root::Root;
use crate::space::{STEP_BYTES, Space};

/// Bytes of a file that are written before they are synced and read back.
const UNVERIFIED_BYTES_MAX: u64 = 32 << 20;
/// Files that are synced one by one, and not by a sync of the whole file system.
const SINGLE_SYNCS_MAX: usize = 4;

/// The state that the writers of a target share.
#[derive(Debug)]
pub(crate) struct Writing {
    pub root: Root,
    pub journal: JournalFile,
    pub transfer: u128,
    pub keeps_all: bool,
    pub verifies: bool,
    pub is_direct: bool,
    pub umask: u32,
    gauge: Arc<Gauge>,
    files: Mutex<Files>,
}

/// The temporary files of files in pieces, by number.
#[derive(Debug, Default)]
struct Files {
    open: HashMap<u64, Arc<Temporary>>,
    /// Files that were given up. A writer that still has a piece of one makes none again.
    given_up: HashSet<u64>,
}

/// A file under its temporary name.
#[derive(Debug)]
struct Temporary {
    directory: Arc<OwnedFd>,
    temporary: String,
    name: Vec<u8>,
    file: OwnedFd,
    state: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    unverified: Vec<Leaf>,
    bytes: u64,
    /// Pieces that were read back and are sound, by place.
    verified: HashMap<u64, u128>,
}

type Trouble = (Code, String);
/// Bytes of a block: from where on, and how many.
type Piece<'a> = (&'a Space, (usize, usize));

fn failed(what: &str) -> impl Fn(Errno) -> Trouble + '_ {
    move |error| (code_of(error, Code::Write), format!("{what}: {error}"))
}

fn id_of(entry: &Entry) -> FileId {
    match entry.kind {
        Kind::File(id) => id,
        _ => unreachable!("the machine stores files alone"),
    }
}

impl Writing {
    pub fn new(
        root: Root,
        journal: JournalFile,
        transfer: u128,
        options: (bool, bool, bool),
        (umask, gauge): (u32, Arc<Gauge>),
    ) -> Self {
        let (keeps_all, verifies, is_direct) = options;
        let files = Mutex::default();
        Self { root, journal, transfer, keeps_all, verifies, is_direct, umask, gauge, files }
    }

    /// Stores the pieces of a block.
    pub fn store(&self, stores: &[Store], space: &Space) -> Vec<Stored> {
        let mut at = 0;
        let mut results = vec![Stored::Passed; stores.len()];
        let mut whole = Vec::new();
        for (index, store) in stores.iter().enumerate() {
            let length = usize::try_from(store.leaf.length).expect("a block fits memory");
            let piece = (space, (at, length));
            at += length;
            let Some(entry) = &store.entry else { continue };
            if store.whole.is_some() {
                match self.begin_whole(entry, piece) {
                    Ok(temporary) => whole.push((index, entry, temporary)),
                    Err((code, text)) => results[index] = Stored::Failed(code, text),
                }
            } else {
                results[index] = self.store_piece(entry, &store.leaf, piece);
            }
        }
        self.end_whole(stores, &whole, &mut results);
        results
    }

    /// Writes a file that is whole in one piece.
    fn begin_whole(&self, entry: &Entry, (space, place): Piece<'_>) -> Result<Temporary, Trouble> {
        let temporary = self.create(entry).map_err(failed("cannot be made"))?;
        if let Err(error) = space.pour(place, &temporary.file, 0) {
            temporary.remove();
            return Err(failed("cannot be written")(error));
        }
        Ok(temporary)
    }

    fn end_whole(
        &self,
        stores: &[Store],
        whole: &[(usize, &Arc<Entry>, Temporary)],
        results: &mut [Stored],
    ) {
        let synced = self.sync_all(whole);
        let mut records = Vec::new();
        let mut space = Vec::new();
        for (index, entry, temporary) in whole {
            let leaf = stores[*index].leaf;
            let ended = synced.map_err(failed("cannot be synced")).and_then(|()| {
                if self.verifies && !is_sound(&temporary.file, &leaf, &mut space)? {
                    return Ok(None);
                }
                self.install(entry, temporary, &mut records).map(Some)
            });
            results[*index] = match ended {
                Ok(Some(lost)) => Stored::Installed(lost),
                Ok(None) => Stored::Damaged,
                Err((code, text)) => Stored::Failed(code, text),
            };
            if !matches!(results[*index], Stored::Installed(_)) {
                temporary.remove();
            }
        }
        self.journal.append(&records);
    }

    fn sync_all(&self, whole: &[(usize, &Arc<Entry>, Temporary)]) -> Result<(), Errno> {
        if !self.verifies {
            return Ok(());
        }
        match whole.first() {
            Some((_, _, first)) if whole.len() > SINGLE_SYNCS_MAX => syncfs(&first.file),
            _ => whole.iter().try_for_each(|(_, _, temporary)| fdatasync(&temporary.file)),
        }
    }

    fn create(&self, entry: &Entry) -> Result<Temporary, Errno> {
        let (directory, name) = self.root.parent_of(&entry.path)?;
        let temporary = PathId::of(&entry.path).temporary(self.transfer);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        let mode = Mode::RUSR | Mode::WUSR;
        let opened = match openat(&*directory, &temporary, flags, mode) {
            Err(Errno::EXIST) => {
                unlinkat(&*directory, &temporary, AtFlags::empty())?;
                openat(&*directory, &temporary, flags, mode)
            }
            opened => opened,
        };
        Ok(Temporary { file: opened?, directory, temporary, name, state: Mutex::default() })
    }

    /// The temporary file of a file in pieces, which is made with the first.
    fn temporary(&self, entry: &Entry) -> Result<Arc<Temporary>, Errno> {
        let mut files = self.files.lock();
        if files.given_up.contains(&entry.number) {
            return Err(Errno::CANCELED);
        }
        if let Some(found) = files.open.get(&entry.number) {
            return Ok(Arc::clone(found));
        }
        let id = id_of(entry);
        let made = self.create(entry)?;
        ftruncate(&made.file, id.size)?;
        if self.is_direct && with_direct(&made.file) {
            Gauge::add(&self.gauge.files_direct, 1);
        }
        self.journal.append(&[Record::File { path: PathId::of(&entry.path), id }]);
        let made = Arc::new(made);
        files.open.insert(entry.number, Arc::clone(&made));
        Ok(made)
    }

    fn store_piece(&self, entry: &Entry, leaf: &Leaf, (space, place): Piece<'_>) -> Stored {
        let stored = (|| {
            let temporary = self.temporary(entry).map_err(failed("cannot be made"))?;
            space.pour(place, &temporary.file, leaf.offset).map_err(failed("cannot be written"))?;
            self.journal.append(&[Record::Piece { path: PathId::of(&entry.path), leaf: *leaf }]);
            if self.verifies { temporary.wrote(leaf) } else { Ok(true) }
        })();
        match stored {
            Ok(true) => Stored::Written,
            Ok(false) => Stored::Damaged,
            Err((code, text)) => Stored::Failed(code, text),
        }
    }

    /// Looks what is there of a file from an earlier run.
    pub fn check(&self, entry: &Entry, kept: &Kept) -> Checked {
        match kept {
            Kept::Whole { target, .. } => {
                let found = self.root.parent_of(&entry.path).and_then(|(directory, name)| {
                    statat(&*directory, &name, AtFlags::SYMLINK_NOFOLLOW)
                });
                match found {
                    Ok(stat) if file_id(&stat) == *target => Checked::Whole,
                    _ => Checked::Nothing,
                }
            }
            Kept::Pieces { leaves, .. } => {
                self.check_pieces(entry, leaves).unwrap_or(Checked::Nothing)
            }
        }
    }

    fn check_pieces(&self, entry: &Entry, leaves: &[Leaf]) -> Result<Checked, Errno> {
        let (directory, name) = self.root.parent_of(&entry.path)?;
        let temporary = PathId::of(&entry.path).temporary(self.transfer);
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = openat(&*directory, &temporary, flags | OFlags::NONBLOCK, Mode::empty())?;
        let stat = fstat(&file)?;
        // Something else may have come under this name, and a file with a second name could be
        // changed behind it.
        let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
        let is_own = stat.st_uid == rustix::process::geteuid().as_raw();
        if !is_file || !is_own || stat.st_nlink != 1 {
            return Ok(Checked::Nothing);
        }
        let size = id_of(entry).size;
        ftruncate(&file, size)?;
        let mut space = Vec::new();
        let mut sound = Vec::new();
        for leaf in leaves.iter().filter(|leaf| leaf.end() <= size) {
            if is_sound(&file, leaf, &mut space).unwrap_or(false) {
                sound.push(*leaf);
            }
        }
        if sound.is_empty() {
            return Ok(Checked::Nothing);
        }
        let verified = sound.iter().map(|leaf| (leaf.offset, leaf.hash)).collect();
        let state = Mutex::new(Progress { verified, ..Progress::default() });
        let made = Arc::new(Temporary { file, directory, temporary, name, state });
        self.files.lock().open.insert(entry.number, made);
        Ok(Checked::Pieces(sound))
    }

    /// Syncs a file, reads back what was not yet, and puts it under its name.
    pub fn finish(&self, entry: &Entry, leaves: &[Leaf]) -> Finished {
        let finished = (|| {
            let temporary = self.temporary(entry).map_err(failed("cannot be made"))?;
            if self.verifies {
                let damaged = temporary.verify(leaves)?;
                if !damaged.is_empty() {
                    return Ok(Finished::Damaged(damaged));
                }
            }
            clear_gaps(&temporary.file, leaves, id_of(entry).size)
                .map_err(failed("cannot be cleared"))?;
            let mut records = Vec::new();
            let lost = self.install(entry, &temporary, &mut records)?;
            self.files.lock().open.remove(&entry.number);
            self.journal.append(&records);
            Ok(Finished::Installed(lost))
        })();
        finished.unwrap_or_else(|(code, text)| Finished::Failed(code, text))
    }

    /// Puts a file under its name that `fill` fills whole. `None` if that does not.
    pub fn by_system(
        &self,
        entry: &Entry,
        fill: impl FnOnce(&OwnedFd) -> Result<bool, Errno>,
    ) -> Result<Option<Lost>, Trouble> {
        let temporary = self.create(entry).map_err(failed("cannot be made"))?;
        let mut records = Vec::new();
        let installed = match fill(&temporary.file) {
            Ok(true) => self.install(entry, &temporary, &mut records).map(Some),
            Ok(false) => Ok(None),
            Err(error) => Err(failed("cannot be written")(error)),
        };
        if !matches!(installed, Ok(Some(_))) {
            temporary.remove();
        }
        self.journal.append(&records);
        installed
    }

    /// Gives a file its metadata and its name.
    fn install(
        &self,
        entry: &Entry,
        temporary: &Temporary,
        records: &mut Vec<Record>,
    ) -> Result<Lost, Trouble> {
        let lost = self.give(&temporary.file, entry);
        renameat(
            &*temporary.directory,
            &temporary.temporary,
            &*temporary.directory,
            &temporary.name,
        )
        .map_err(failed("cannot be put under its name"))?;
        if let Ok(stat) = fstat(&temporary.file) {
            let (path, id) = (PathId::of(&entry.path), id_of(entry));
            records.push(Record::Whole { path, id, target: file_id(&stat) });
        }
        Ok(lost)
    }

    /// Gives an open file or directory what is kept of its source.
    pub fn give(&self, file: &OwnedFd, entry: &Entry) -> Lost {
        if self.keeps_all {
            return give(file, &entry.metadata);
        }
        let mode = entry.metadata.mode & 0o777 & !self.umask;
        let given = rustix::fs::fchmod(file, Mode::from_raw_mode(mode));
        given.err().map(failed("its mode could not be kept"))
    }

    /// Removes the temporary file of a file that is given up.
    pub fn discard(&self, entry: &Entry) {
        let mut files = self.files.lock();
        files.given_up.insert(entry.number);
        let found = files.open.remove(&entry.number);
        drop(files);
        if let Some(temporary) = found {
            temporary.remove();
            self.journal.append(&[Record::Dropped { path: PathId::of(&entry.path) }]);
        }
    }
}

impl Temporary {
    fn remove(&self) {
        let _ = unlinkat(&*self.directory, &self.temporary, AtFlags::empty());
    }

    /// Notes a piece that was written. When there are enough, this thread syncs and reads them
    /// back. False if this piece is damaged; damage of others is found when the file is finished.
    fn wrote(&self, leaf: &Leaf) -> Result<bool, Trouble> {
        let due = {
            let mut state = self.state.lock();
            state.verified.remove(&leaf.offset);
            state.unverified.push(*leaf);
            state.bytes += u64::from(leaf.length);
            if state.bytes < UNVERIFIED_BYTES_MAX {
                return Ok(true);
            }
            state.bytes = 0;
            std::mem::take(&mut state.unverified)
        };
        let damaged = self.verify(&due)?;
        Ok(!damaged.contains(leaf))
    }

    /// Syncs the file and reads back those of the pieces that were not yet. Returns those that are
    /// damaged.
    fn verify(&self, leaves: &[Leaf]) -> Result<Vec<Leaf>, Trouble> {
        let is_new =
            |leaf: &&Leaf| self.state.lock().verified.get(&leaf.offset) != Some(&leaf.hash);
        let due: Vec<Leaf> = leaves.iter().filter(is_new).copied().collect();
        if due.is_empty() {
            return Ok(Vec::new());
        }
        fdatasync(&self.file).map_err(failed("cannot be synced"))?;
        let (mut damaged, mut space) = (Vec::new(), Vec::new());
        for leaf in due {
            if is_sound(&self.file, &leaf, &mut space)? {
                self.state.lock().verified.insert(leaf.offset, leaf.hash);
            } else {
                damaged.push(leaf);
            }
        }
        Ok(damaged)
    }
}

/// Whether the bytes of a piece are in the file.
fn is_sound(file: &OwnedFd, leaf: &Leaf, space: &mut Vec<u8>) -> Result<bool, Trouble> {
    // With O_DIRECT a call for each step would be a request to the disk for each.
    let is_direct = rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::DIRECT));
    let length = usize::try_from(leaf.length).expect("a block fits memory");
    let step = if is_direct { length } else { length.min(STEP_BYTES) };
    if space.len() < step {
        space.resize(step, 0);
    }
    let (mut read, mut hasher) = (0, Hasher::default());
    while read < length {
        let part = &mut space[..step.min(length - read)];
        let count = read_whole(file, part, leaf.offset + read as u64);
        let count = count.map_err(failed("cannot be read back"))?;
        if count < part.len() {
            return Ok(false);
        }
        hasher.update(part);
        read += count;
    }
    Ok(hasher.end() == leaf.hash)
}

/// Writes all bytes to a place.
pub(crate) fn write_whole(file: &OwnedFd, bytes: &[u8], offset: u64) -> Result<(), Errno> {
    let mut written = 0;
    while written < bytes.len() {
        match pwrite(file, &bytes[written..], offset + written as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => written += count,
            Err(Errno::INTR) => {}
            Err(Errno::INVAL) if without_direct(file) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes what lies between pieces, which is a hole at the source, read as zeros. A temporary file
/// of an earlier run may have other bytes there.
fn clear_gaps(file: &OwnedFd, leaves: &[Leaf], size: u64) -> Result<(), Errno> {
    ftruncate(file, size)?;
    let mut at = 0;
    let ends = leaves.iter().map(|leaf| (leaf.offset, leaf.end())).chain([(size, size)]);
    for (start, end) in ends {
        if start > at {
            clear(file, at, start)?;
        }
        at = at.max(end);
    }
    Ok(())
}

fn clear(file: &OwnedFd, start: u64, end: u64) -> Result<(), Errno> {
    let mut at = start;
    while at < end {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) if data < end => data,
            Ok(_) | Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error),
        };
        let hole = seek(file, SeekFrom::Hole(data))?.min(end).max(data + 1);
        if !is_zero(file, data, hole)? {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if fallocate(file, flags, data, hole - data).is_err() {
                write_zeros(file, data, hole)?;
            }
        }
        at = hole;
    }
    Ok(())
}

fn is_zero(file: &OwnedFd, start: u64, end: u64) -> Result<bool, Errno> {
    let mut space = vec![0; 64 << 10];
    let mut at = start;
    while at < end {
        let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(space.len());
        let read = read_whole(file, &mut space[..length], at)?;
        if read == 0 {
            return Ok(true);
        }
        if space[..read].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += read as u64;
    }
    Ok(true)
}

fn write_zeros(file: &OwnedFd, start: u64, end: u64) -> Result<(), Errno> {
    let space = vec![0; 64 << 10];
    let mut at = start;
    while at < end {
        let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(space.len());
        write_whole(file, &space[..length], at)?;
        at += length as u64;
    }
    Ok(())
}
