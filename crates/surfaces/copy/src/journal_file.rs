//! The journal beside the target: taken up at the start, appended to, removed at the end.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, ftruncate, openat, unlinkat};
use rustix::io::{Errno, pread, write};
use weft_transfer::{Journal, Record, journal_name};

use crate::error::CopyError;

/// The journal of one transfer. It is made with the first record.
#[derive(Debug)]
pub(crate) struct JournalFile {
    directory: Arc<OwnedFd>,
    transfer: u128,
    block_bytes: u32,
    file: Mutex<Option<OwnedFd>>,
}

impl JournalFile {
    /// Takes up the journal of a transfer in a directory, if there is one.
    ///
    /// # Errors
    /// Another process has it open: the same transfer is under way.
    pub fn take_up(
        directory: &Arc<OwnedFd>,
        transfer: u128,
        block_bytes: u32,
        resumes: bool,
    ) -> Result<(Self, Journal), CopyError> {
        let this = Self {
            directory: Arc::clone(directory),
            transfer,
            block_bytes,
            file: Mutex::new(None),
        };
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let name = journal_name(transfer);
        let file = match openat(&**directory, &name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(_) => return Ok((this, Journal::default())),
        };
        lock(&file)?;
        if !resumes {
            let _ = ftruncate(&file, 0);
            let _ = unlinkat(&**directory, &name, AtFlags::empty());
            return Ok((this, Journal::default()));
        }
        let bytes = whole(&file).map_err(|why| CopyError::system("the journal", &why))?;
        let journal = Journal::read(&bytes, transfer, block_bytes);
        // Unsound records are cut off, so that appended ones are read later.
        if ftruncate(&file, journal.sound as u64).is_ok() && journal.sound > 0 {
            *this.file.lock() = Some(file);
        } else {
            let _ = unlinkat(&**directory, &name, AtFlags::empty());
        }
        Ok((this, journal))
    }

    /// Makes the journal now, if there is none.
    pub fn append_start(&self) {
        let mut file = self.file.lock();
        if file.is_none()
            && let Ok(made) = self.make()
        {
            let start = Record::Start { transfer: self.transfer, block_bytes: self.block_bytes };
            let _ = write(&made, &start.bytes());
            *file = Some(made);
        }
    }

    /// Appends records. A journal that cannot be written costs a later run bytes and nothing else,
    /// so that is no error here.
    pub fn append(&self, records: &[Record]) {
        if records.is_empty() {
            return;
        }
        let mut file = self.file.lock();
        let mut bytes = Vec::new();
        if file.is_none() {
            let Ok(made) = self.make() else { return };
            *file = Some(made);
            let start = Record::Start { transfer: self.transfer, block_bytes: self.block_bytes };
            bytes.extend(start.bytes());
        }
        records.iter().for_each(|record| bytes.extend(record.bytes()));
        let Some(file) = &*file else { return };
        // One call: a kill leaves all of it, or a part at the end, which is not read.
        let _ = write(file, &bytes);
    }

    fn make(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let flags = flags | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = openat(&*self.directory, journal_name(self.transfer), flags, mode)?;
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        Ok(file)
    }

    /// Removes it: all is done.
    pub fn remove(&self) {
        if self.file.lock().take().is_some() {
            let name = journal_name(self.transfer);
            let _ = unlinkat(&*self.directory, name, AtFlags::empty());
        }
    }
}

fn lock(file: &OwnedFd) -> Result<(), CopyError> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            let why = "the same transfer to this place is under way; wait for it or stop it";
            Err(CopyError::place("the destination", why))
        }
        _ => Ok(()),
    }
}

fn whole(file: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let (mut all, mut part) = (Vec::new(), vec![0; 1 << 20]);
    loop {
        match pread(file, &mut part, all.len() as u64) {
            Ok(0) => return Ok(all),
            Ok(count) => all.extend_from_slice(&part[..count]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}
