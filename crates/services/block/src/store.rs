//! The bytes behind a logical unit, as the code that serves them sees them.
//!
//! A driver implements [`Store`] for memory, a file or a device, and calls the work on it
//! ([`crate::scsi::Job::run`]) on a thread that may wait. All calls may come from several threads
//! at once.

use std::any::Any;

use crate::gate::Held;

/// Why a store did not do its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// The device cannot read the bytes.
    #[error("the bytes cannot be read")]
    Unreadable,
    /// The device cannot write the bytes.
    #[error("the bytes cannot be written")]
    Unwritable,
    /// The file system or the device behind it is full.
    #[error("there is no space left")]
    NoSpace,
    /// The store cannot be written.
    #[error("the store is read-only")]
    ReadOnly,
    /// The store is gone: a device that was removed, or a host that does not answer.
    #[error("the store does not answer")]
    Offline,
}

/// A run of bytes of a store that are all of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Its length in bytes.
    pub length: u64,
    /// Whether no space is taken for it; it reads as zeros.
    pub is_hole: bool,
}

/// Bytes that can be read and written at any place. Ranges lie inside [`Store::bytes`]; the caller
/// checked them.
pub trait Store: Send + Sync {
    /// The size in bytes.
    fn bytes(&self) -> u64;

    /// Whether the calls are done at once, without waiting for a device.
    fn is_quick(&self) -> bool {
        false
    }

    /// Whether it cannot be written.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Whether [`Store::zero`] can give space back.
    fn is_thin(&self) -> bool {
        false
    }

    /// The memory that it is, in a type that its driver knows, for who moves bytes to and from it
    /// without these calls: [`Store::hold`].
    fn memory(&self) -> Option<&dyn Any> {
        None
    }

    /// Holds a range of the memory for who reads or writes it in place: until the end it keeps its
    /// place, and nothing of it is given back. `None` if it has to go by the other calls: it is no
    /// memory, or bytes that are to be read have no pages, or it would have to be waited for.
    fn hold(&self, at: u64, length: u64, writes: bool) -> Option<Held> {
        let _ = (at, length, writes);
        None
    }

    /// The file that it is, in a type that its driver knows, for who reads and writes it by
    /// requests that no thread waits for.
    fn file(&self) -> Option<&dyn Any> {
        None
    }

    /// Fills `into` with the bytes from `at` on.
    ///
    /// # Errors
    /// [`StoreError`].
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), StoreError>;

    /// Writes bytes from `at` on. They may be lost in a failure of power until [`Store::flush`].
    ///
    /// # Errors
    /// [`StoreError`]; then some of the bytes may have been written.
    fn write(&self, at: u64, from: &[u8]) -> Result<(), StoreError>;

    /// Returns when everything that was written before the call outlasts a failure of power.
    ///
    /// # Errors
    /// [`StoreError`]; then nothing is known about earlier writes.
    fn flush(&self) -> Result<(), StoreError>;

    /// Lets a range read as zeros, and gives back its space if `may_unmap` and the store can.
    ///
    /// # Errors
    /// [`StoreError`].
    fn zero(&self, at: u64, length: u64, may_unmap: bool) -> Result<(), StoreError>;

    /// The extents from `at` on, in order, at most `count` of them. Together they have at most
    /// `length` bytes, and the first begins at `at`.
    ///
    /// # Errors
    /// [`StoreError`].
    fn extents(&self, at: u64, length: u64, count: usize) -> Result<Vec<Extent>, StoreError> {
        let _ = (at, count);
        Ok(vec![Extent { length, is_hole: false }])
    }
}

/// A place where a logical unit keeps what has to outlast a restart: its reservations.
pub trait Keeper: Send + Sync {
    /// Keeps the bytes in place of those before, so that a failure of power leaves one or the
    /// other.
    ///
    /// # Errors
    /// [`StoreError`].
    fn keep(&self, bytes: &[u8]) -> Result<(), StoreError>;
}
