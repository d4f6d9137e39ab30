//! Registered memory of an endpoint.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use weft_fabric::rules::check_range;
use weft_fabric::{Addressable, Region, RegionError};
use weft_libfabric::Registration;
use weft_memory::{CopyMode, Memory};

/// A region of an endpoint over libfabric. It lives as long as its owner, a key or an operation
/// holds it.
#[derive(Clone, Debug)]
pub struct OfiRegion {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    memory: Memory,
    length: u64,
    registration: Registration,
    /// The endpoint's list of regions that nobody holds any more.
    ended: Ended,
}

/// Registrations whose regions nobody holds, for the endpoint to close.
pub(crate) type Ended = Arc<Mutex<Vec<Registration>>>;

impl Drop for Inner {
    fn drop(&mut self) {
        self.ended.lock().push(self.registration);
    }
}

impl OfiRegion {
    /// A region of the first `length` bytes of memory that is registered.
    pub(crate) fn new(
        (memory, length): (Memory, u64),
        registration: Registration,
        ended: &Ended,
    ) -> Self {
        let ended = Arc::clone(ended);
        Self { inner: Arc::new(Inner { memory, length, registration, ended }) }
    }

    /// Whether the region is of the endpoint with this list.
    pub(crate) fn is_of(&self, ended: &Ended) -> bool {
        Arc::ptr_eq(&self.inner.ended, ended)
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.inner.memory
    }

    pub(crate) fn registration(&self) -> Registration {
        self.inner.registration
    }

    /// How many hold it.
    pub(crate) fn downgrade(&self) -> std::sync::Weak<dyn Send + Sync> {
        let inner: Arc<dyn Send + Sync> = Arc::clone(&self.inner) as _;
        Arc::downgrade(&inner)
    }

    /// Checks that a range is inside the region.
    pub(crate) fn check(&self, offset: u64, length: u64) -> Result<usize, RegionError> {
        check_range(offset, length, self.inner.length)?;
        // It lies in memory, so that it fits.
        Ok(usize::try_from(offset).unwrap_or(usize::MAX))
    }

    fn check_word(&self, offset: u64) -> Result<usize, RegionError> {
        let place = self.check(offset, 8)?;
        // Memory in place may begin anywhere.
        if !self.inner.memory.segment().is_aligned(place, 8) {
            return Err(RegionError::Misaligned { offset, alignment: 8 });
        }
        Ok(place)
    }
}

impl Region for OfiRegion {
    fn length(&self) -> u64 {
        self.inner.length
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), RegionError> {
        let place = self.check(offset, target.len() as u64)?;
        self.inner.memory.segment().read(place, target);
        Ok(())
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<(), RegionError> {
        let place = self.check(offset, source.len() as u64)?;
        self.inner.memory.writing(place, source.len(), |segment| {
            segment.write(place, source, CopyMode::Plain);
        });
        Ok(())
    }

    fn load(&self, offset: u64) -> Result<u64, RegionError> {
        let place = self.check_word(offset)?;
        Ok(self.inner.memory.segment().word64(place).load(Ordering::Acquire))
    }

    fn store(&self, offset: u64, value: u64) -> Result<(), RegionError> {
        let place = self.check_word(offset)?;
        self.inner.memory.writing(place, 8, |segment| {
            segment.word64(place).store(value, Ordering::Release);
        });
        Ok(())
    }
}

impl Addressable for OfiRegion {
    fn base(&self) -> NonNull<u8> {
        self.inner.memory.segment().base()
    }

    fn fill(
        &self,
        head: &mut [u8],
        offset: u64,
        length: u64,
        source: BorrowedFd<'_>,
        position: Option<u64>,
    ) -> io::Result<usize> {
        let (place, length) = self.part(offset, length)?;
        self.inner.memory.fill(head, place, length, source, position)
    }

    fn pour(
        &self,
        head: &[u8],
        offset: u64,
        length: u64,
        target: BorrowedFd<'_>,
        position: Option<u64>,
    ) -> io::Result<usize> {
        let (place, length) = self.part(offset, length)?;
        Ok(self.inner.memory.segment().pour(head, place, length, target, position)?)
    }
}

impl OfiRegion {
    fn part(&self, offset: u64, length: u64) -> io::Result<(usize, usize)> {
        let wrong = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let place = self.check(offset, length).map_err(wrong)?;
        // It lies in memory, so that it fits.
        Ok((place, usize::try_from(length).unwrap_or(0)))
    }
}
