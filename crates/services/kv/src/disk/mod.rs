//! The files of a store, behind a trait: [`real`] for a directory, [`simulated`] for a disk that
//! forgets or tears what was not synced.
//!
//! A store asks little of its files: space reserved when a file is made, reads and writes at
//! offsets, and the two kinds of sync. No file is mapped, so a failing device is an error value.

pub mod real;
pub mod simulated;

use std::io;
use std::sync::Arc;

use crate::store::StoreError;

/// One directory of files. Names are plain: no folders below it.
pub trait Disk: Send + Sync {
    /// A new file of `bytes` zeros with its space reserved; an old one of this name is emptied.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`] where the space is not there; then there is no file.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>>;

    /// A file that is there.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] and those of the device.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Removes a file. The removal is lasting after [`sync_names`](Self::sync_names).
    ///
    /// # Errors
    /// Those of the device.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// The names of all files.
    ///
    /// # Errors
    /// Those of the device.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes lasting which files are there.
    ///
    /// # Errors
    /// Those of the device.
    fn sync_names(&self) -> io::Result<()>;
}

/// One file of a [`Disk`].
pub trait DiskFile: Send + Sync {
    /// Fills the buffer.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] behind the end, and those of the device.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes all bytes, given to the operating system when this returns.
    ///
    /// # Errors
    /// Those of the device; any part of the bytes may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes lasting what was written.
    ///
    /// # Errors
    /// Those of the device. What was written since the last sync is then lost or not: no caller
    /// may try again as if nothing was.
    fn sync(&self) -> io::Result<()>;

    /// Bytes of the file.
    ///
    /// # Errors
    /// Those of the device.
    fn size(&self) -> io::Result<u64>;

    /// Cuts the file, and gives back the space behind.
    ///
    /// # Errors
    /// Those of the device.
    fn truncate(&self, bytes: u64) -> io::Result<()>;
}

/// The error of a store for one of a write.
#[must_use]
pub fn write_error(name: &str, error: &io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            StoreError::Full(format!("{name}: {error}"))
        }
        _ => StoreError::ReadOnly(format!("{name}: {error}")),
    }
}

/// The error of a store for one of a read.
#[must_use]
pub fn read_error(name: &str, error: &io::Error) -> StoreError {
    StoreError::Damaged(format!("{name}: {error}"))
}
