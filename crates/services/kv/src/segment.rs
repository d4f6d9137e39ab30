//! Segments: the files of the log.
//!
//! Always true: a segment is appended to by one writer; what is before [`Segment::written`] was
//! given to the operating system and never changes. A segment is removed when it is doomed and
//! nobody holds it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::disk::{Disk, DiskFile, read_error};
use crate::format::damaged;
use crate::record::{HEADER_BYTES, Header, Record};
use crate::slot::Pointer;
use crate::store::StoreError;

/// Name of the file of a segment.
#[must_use]
pub fn name_of(number: u64) -> String {
    format!("log-{number:016x}")
}

/// The number in the name of a file, if it is one of a segment.
#[must_use]
pub fn number_in(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix("log-")?, 16).ok()
}

/// A file of the log.
pub struct Segment {
    header: Header,
    seed: u32,
    name: String,
    file: Arc<dyn DiskFile>,
    disk: Arc<dyn Disk>,
    written: AtomicU64,
    is_doomed: AtomicBool,
}

impl Segment {
    /// A segment that is `written` up to an offset.
    #[must_use]
    pub fn new(
        disk: &Arc<dyn Disk>,
        file: Arc<dyn DiskFile>,
        header: Header,
        written: u64,
    ) -> Self {
        Self {
            header,
            seed: header.seed(),
            name: name_of(header.number),
            file,
            disk: Arc::clone(disk),
            written: AtomicU64::new(written),
            is_doomed: AtomicBool::new(false),
        }
    }

    /// Opens one of a store, and checks its header.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn open(disk: &Arc<dyn Disk>, number: u64) -> Result<Self, StoreError> {
        let name = name_of(number);
        let failed = |error: &std::io::Error| read_error(&name, error);
        let file = disk.open(&name).map_err(|error| failed(&error))?;
        let mut bytes = [0; HEADER_BYTES];
        file.read_at(0, &mut bytes).map_err(|error| failed(&error))?;
        let header = Header::parse(&bytes).filter(|header| header.number == number);
        let header = header.ok_or_else(|| damaged(&name, "its header has a wrong checksum"))?;
        let size = file.size().map_err(|error| failed(&error))?;
        Ok(Self::new(disk, file, header, size))
    }

    /// Its header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The start value of the checksums of its records.
    #[must_use]
    pub fn seed(&self) -> u32 {
        self.seed
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.header.number
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its file.
    #[must_use]
    pub fn file(&self) -> &Arc<dyn DiskFile> {
        &self.file
    }

    /// Bytes that were given to the operating system.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Notes that bytes up to here were given to the operating system.
    pub fn set_written(&self, end: u64) {
        self.written.store(end, Ordering::Release);
    }

    /// The file is removed when nobody holds the segment any more.
    pub fn doom(&self) {
        self.is_doomed.store(true, Ordering::Release);
    }

    /// The value of a record of this key.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], also where the record is of another key.
    pub fn value(&self, pointer: Pointer, key: &[u8]) -> Result<Vec<u8>, StoreError> {
        if pointer.offset.saturating_add(pointer.length as u64) > self.written() {
            return Err(damaged(&self.name, "a record is behind the end"));
        }
        let mut bytes = vec![0; pointer.length];
        self.file
            .read_at(pointer.offset, &mut bytes)
            .map_err(|error| read_error(&self.name, &error))?;
        let wrong = || {
            damaged(&self.name, &format!("the record at {} has a wrong checksum", pointer.offset))
        };
        let (record, length) = Record::parse(&self.header, self.seed, &bytes).ok_or_else(wrong)?;
        let value = record.value.ok_or_else(wrong)?;
        if record.key != key || length != pointer.length {
            return Err(wrong());
        }
        // The value is at the end of the record: it stays, and what is before goes.
        let head = bytes.len() - value.len();
        bytes.drain(..head);
        Ok(bytes)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if self.is_doomed.load(Ordering::Acquire) {
            // A file that stays is removed when the store is opened the next time.
            let _ = self.disk.remove(&self.name);
        }
    }
}
