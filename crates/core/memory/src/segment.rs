//! A segment: a memfd whose size is sealed, and one mapping of it.
//!
//! Invariants: the mapping is valid for `length` bytes as long as the segment lives. The file can
//! neither shrink nor grow, so an access never raises SIGBUS; of memory in place, which has no
//! file, its maker promises that. Every offset is checked against
//! `length` before it becomes an address.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};
use thiserror::Error;

use crate::copy::{self, CopyMode};
use crate::reservation::{Reservation, Taken};

/// Why a segment could not be created or mapped.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The system refused a call.
    #[error("{call} of {length} bytes failed with errno {errno}")]
    Os {
        /// The system call.
        call: &'static str,
        /// Bytes requested.
        length: usize,
        /// Its error number.
        errno: i32,
    },
    /// The received descriptor is no sealed memfd: its owner could shrink it and so crash every
    /// process that maps it.
    #[error("the memory passed is not a memfd sealed against shrinking and growing")]
    NotSealed,
    /// Memory that exists already must consist of whole pages.
    #[error("{length} bytes at {address:#x} are not whole pages of {page} bytes")]
    Misaligned {
        /// The address.
        address: usize,
        /// Bytes.
        length: usize,
        /// Bytes of a page.
        page: usize,
    },
    /// A segment fits into a reservation only at a whole page, and where nothing else is.
    #[error(
        "{length} bytes do not fit at {offset} of {reserved} reserved bytes: a segment begins at a \
         multiple of the page size, ends inside the reservation, and has its range for itself"
    )]
    Misplaced {
        /// Where it was to begin.
        offset: usize,
        /// Bytes.
        length: usize,
        /// Bytes of the reservation.
        reserved: usize,
    },
    /// The received memory has another size than announced.
    #[error("the memory passed has {actual} bytes where {expected} were announced")]
    WrongSize {
        /// The announced size.
        expected: u64,
        /// The actual size.
        actual: u64,
    },
}

/// The file system of memfds with ordinary pages, from `linux/magic.h`.
const TMPFS_MAGIC: i64 = 0x0102_1994;

pub(crate) fn os(call: &'static str, length: usize, errno: rustix::io::Errno) -> SegmentError {
    SegmentError::Os { call, length, errno: errno.raw_os_error() }
}

/// Shared memory. The module lists its invariants.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<u8>,
    length: usize,
    writable: bool,
    end: End,
}

/// The fate of the mapping at the end of its segment.
#[derive(Debug)]
enum End {
    /// It is taken away.
    Unmapped,
    /// It stays: the addresses belong to somebody else.
    Kept,
    /// The addresses go back to their reservation.
    Returned(#[expect(dead_code, reason = "its end returns them")] Taken),
}

// SAFETY: the segment owns its mapping, which is not tied to a thread. Its bytes are accessed only
// by atomics and by copies that tolerate concurrent writers.
unsafe impl Send for Segment {}
// SAFETY: as for Send.
unsafe impl Sync for Segment {}

impl Segment {
    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

    /// Creates and maps a segment of `length` zeroed bytes. The descriptor is for other processes.
    ///
    /// # Errors
    /// [`SegmentError::Os`].
    pub fn create(name: &str, length: usize) -> Result<(Self, OwnedFd), SegmentError> {
        let file = Self::create_file(name, length)?;
        let segment = Self::map(file.as_fd(), length, true)?;
        Ok((segment, file))
    }

    /// Creates the sealed file without mapping it.
    ///
    /// # Errors
    /// [`SegmentError::Os`].
    pub fn create_file(name: &str, length: usize) -> Result<OwnedFd, SegmentError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file =
            rustix::fs::memfd_create(name, flags).map_err(|e| os("memfd_create", length, e))?;
        // Other processes get the file by descriptor only. With wider permissions any user could
        // reopen it for writing.
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(|e| os("fchmod", length, e))?;
        // Above the limit, ftruncate not only fails but sends a signal that ends the program.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        if limit.is_some_and(|limit| limit < length as u64) {
            return Err(os("ftruncate", length, rustix::io::Errno::FBIG));
        }
        rustix::fs::ftruncate(&file, length as u64).map_err(|e| os("ftruncate", length, e))?;
        rustix::fs::fcntl_add_seals(&file, Self::SEALS)
            .map_err(|e| os("fcntl(F_ADD_SEALS)", length, e))?;
        Ok(file)
    }

    /// Maps received memory, after checking its seals and its size.
    ///
    /// # Errors
    /// [`SegmentError::NotSealed`], [`SegmentError::WrongSize`], [`SegmentError::Os`].
    pub fn open(file: BorrowedFd<'_>, length: usize, writable: bool) -> Result<Self, SegmentError> {
        let actual = Self::sealed_length(file)?;
        if actual != length as u64 {
            return Err(SegmentError::WrongSize { expected: length as u64, actual });
        }
        Self::map(file, length, writable)
    }

    /// The length of received memory, after checking that it is a sealed memfd. Never blocks,
    /// whatever the descriptor is: the seals are checked first, since other calls on a file of a
    /// user-space file system would block as long as its owner likes.
    ///
    /// # Errors
    /// [`SegmentError::NotSealed`], [`SegmentError::Os`].
    pub fn sealed_length(file: BorrowedFd<'_>) -> Result<u64, SegmentError> {
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| SegmentError::NotSealed)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(SegmentError::NotSealed);
        }
        // A mapping of huge pages raises SIGBUS when no page is left, so only ordinary pages are
        // accepted.
        let system = rustix::fs::fstatfs(file).map_err(|e| os("fstatfs", 0, e))?;
        if system.f_type != TMPFS_MAGIC {
            return Err(SegmentError::NotSealed);
        }
        let status = rustix::fs::fstat(file).map_err(|e| os("fstat", 0, e))?;
        Ok(u64::try_from(status.st_size).unwrap_or(0))
    }

    /// Reopens the file read-only, so that the new descriptor can only be mapped for reading.
    ///
    /// # Errors
    /// [`SegmentError::Os`]; also when `/proc` is not mounted.
    pub fn reopen_read_only(file: BorrowedFd<'_>) -> Result<OwnedFd, SegmentError> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty()).map_err(|e| os("open", 0, e))
    }

    /// Maps the whole of `file` in place of the memory, at the same address. Other mappings keep
    /// the old memory and no longer share this segment.
    ///
    /// # Errors
    /// [`SegmentError`], when the file is not sealed memory of the same length, or cannot be
    /// mapped; the segment is unchanged then.
    ///
    /// # Panics
    /// When the mapping is read-only.
    pub(crate) fn replace(&self, file: &OwnedFd) -> Result<(), SegmentError> {
        assert!(self.writable, "only the owner of a segment moves it");
        let (expected, actual) = (self.length as u64, Self::sealed_length(file.as_fd())?);
        if actual != expected {
            return Err(SegmentError::WrongSize { expected, actual });
        }
        // SAFETY: the segment owns exactly these pages. Other threads see the change as one step,
        // and references to words stay valid, since the address does not change.
        unsafe { map_over(self.base, self.length, file.as_fd(), 0) }
    }

    /// Whether the addresses belong to somebody else.
    pub(crate) const fn is_kept(&self) -> bool {
        matches!(self.end, End::Kept)
    }

    /// Maps pages of nobody in place of the memory, unless its addresses belong to somebody else.
    /// Where the system refuses, the addresses are given up for good: it may have taken the former
    /// pages away.
    pub(crate) fn hollow(&mut self) {
        if self.is_kept() {
            return;
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the segment owns exactly these pages, and references to words stay valid, since
        // the address does not change.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(self.base.as_ptr().cast(), self.length, protection, flags)
        };
        if mapped.is_err() {
            std::mem::forget(std::mem::replace(&mut self.end, End::Kept));
        }
    }

    /// A segment of memory that exists already, which stays as it is.
    ///
    /// # Errors
    /// [`SegmentError::Os`] for no bytes at all.
    ///
    /// # Safety
    /// As [`crate::Memory::in_place`].
    pub(crate) unsafe fn in_place(base: NonNull<u8>, length: usize) -> Result<Self, SegmentError> {
        if length == 0 || base.addr().get().checked_add(length).is_none() {
            return Err(os("in place", length, rustix::io::Errno::INVAL));
        }
        MAPPED.fetch_add(1, Ordering::Acquire);
        Ok(Self { base, length, writable: true, end: End::Kept })
    }

    /// The same segment, whose mapping stays at its end.
    pub(crate) fn kept(mut self) -> Self {
        self.end = End::Kept;
        self
    }

    /// Makes a segment without a file shareable, as [`Segment::adopt`] does. Safe, because nobody
    /// else has the segment during the call.
    ///
    /// # Errors
    /// As [`Segment::adopt`].
    pub(crate) fn share(self, name: &str) -> Result<(Self, OwnedFd), SegmentError> {
        let mut owner = self;
        // SAFETY: the segment owns its mapping, and `owner` is the only way to it.
        let (mut adopted, file) = unsafe { Self::adopt(name, owner.base, owner.length) }?;
        // There are two segments for one mapping now: the former one gives it up.
        adopted.end = std::mem::replace(&mut owner.end, End::Kept);
        Ok((adopted, file))
    }

    /// The first byte, for those who hand the address on: to io_uring, or to a NIC.
    #[inline]
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn map(file: BorrowedFd<'_>, length: usize, writable: bool) -> Result<Self, SegmentError> {
        let mut protection = ProtFlags::READ;
        if writable {
            protection |= ProtFlags::WRITE;
        }
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing. The size is
        // sealed, so that no access inside the mapping can fault.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0)
        }
        .map_err(|e| os("mmap", length, e))?;
        let base = NonNull::new(base.cast::<u8>()).expect("mmap never maps address 0 unasked");
        MAPPED.fetch_add(1, Ordering::Acquire);
        Ok(Self { base, length, writable, end: End::Unmapped })
    }

    /// Maps `length` bytes of this segment from `start` on once more, at `offset` of a
    /// reservation. The range is rounded to whole pages, and the segment returned has those.
    ///
    /// # Errors
    /// [`SegmentError::Misplaced`], [`SegmentError::Os`].
    ///
    /// # Panics
    /// When the range is outside the segment.
    pub fn place(
        &self,
        start: usize,
        length: usize,
        reservation: &Reservation,
        offset: usize,
    ) -> Result<Self, SegmentError> {
        self.check(start, length);
        let page = rustix::param::page_size();
        let first = start - start % page;
        let length = (start + length - first).next_multiple_of(page).min(self.length - first);
        let taken = reservation.take(offset, length, |at| {
            let refused = |errno| os("mremap", length, errno);
            // SAFETY: with an old size of 0 the source stays, and its pages are mapped once more.
            // The target is a range of the reservation that was free and is taken.
            let placed = unsafe {
                let source = self.base.as_ptr().add(first).cast();
                let flags = MremapFlags::MAYMOVE;
                rustix::mm::mremap_fixed(source, 0, length, flags, at.as_ptr().cast())
            };
            placed.map(drop).map_err(refused)
        })?;
        MAPPED.fetch_add(1, Ordering::Acquire);
        let (base, writable) = (taken.base(), self.writable);
        Ok(Self { base, length, writable, end: End::Returned(taken) })
    }

    /// As [`Segment::create`], at `offset` of a reservation.
    ///
    /// # Errors
    /// [`SegmentError::Misplaced`], [`SegmentError::Os`].
    pub(crate) fn create_at(
        name: &str,
        length: usize,
        reservation: &Reservation,
        offset: usize,
    ) -> Result<(Self, OwnedFd), SegmentError> {
        let file = Self::create_file(name, length)?;
        let taken = reservation.take(offset, length, |at| {
            // SAFETY: the range is free in the reservation and is taken. The file has its length.
            unsafe { map_over(at, length, file.as_fd(), 0) }
        })?;
        MAPPED.fetch_add(1, Ordering::Acquire);
        let base = taken.base();
        Ok((Self { base, length, writable: true, end: End::Returned(taken) }, file))
    }

    /// Memory that is shared only with forked children.
    ///
    /// # Errors
    /// [`SegmentError::Os`].
    pub fn anonymous(length: usize) -> Result<Self, SegmentError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, protection, flags) }
                .map_err(|e| os("mmap", length, e))?;
        let base = NonNull::new(base.cast::<u8>()).expect("mmap never maps address 0 unasked");
        MAPPED.fetch_add(1, Ordering::Acquire);
        Ok(Self { base, length, writable: true, end: End::Unmapped })
    }

    /// The address of `length` bytes from `offset` on, for system calls that read or write them
    /// while others may, too.
    ///
    /// # Panics
    /// When the range is outside the segment.
    #[must_use]
    pub fn address(&self, offset: usize, length: usize) -> NonNull<u8> {
        self.bytes(offset, length)
    }

    /// The number of segments that this process has mapped.
    #[must_use]
    pub fn mapped() -> usize {
        MAPPED.load(Ordering::Relaxed)
    }

    /// Bytes of the segment.
    #[inline]
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }

    /// False for a read-only mapping.
    #[inline]
    #[must_use]
    pub const fn writable(&self) -> bool {
        self.writable
    }

    /// Whether a word of `width` bytes at `offset` is aligned. Memory in place may begin anywhere.
    #[inline]
    #[must_use]
    pub fn is_aligned(&self, offset: usize, width: usize) -> bool {
        self.base.as_ptr().wrapping_add(offset).addr().is_multiple_of(width)
    }

    /// The 32-bit word at `offset`.
    ///
    /// # Panics
    /// When the word is outside the segment or misaligned.
    #[inline]
    #[must_use]
    pub fn word32(&self, offset: usize) -> &AtomicU32 {
        self.check(offset, 4);
        if !self.is_aligned(offset, 4) {
            misaligned(offset);
        }
        // SAFETY: the word is inside the mapping and aligned, as checked above. Atomics tolerate
        // concurrent writers. Callers do not store through a read-only mapping, where a store would
        // fault.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU32>() }
    }

    /// The 64-bit word at `offset`.
    ///
    /// # Panics
    /// When the word is outside the segment or misaligned.
    #[inline]
    #[must_use]
    pub fn word64(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8);
        if !self.is_aligned(offset, 8) {
            misaligned(offset);
        }
        // SAFETY: as for `word32`.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// The value at `offset`, of a type made of atomics.
    ///
    /// # Safety
    /// Every bit pattern must be a valid `T`, and `T` must consist of atomics only.
    ///
    /// # Panics
    /// When the value is outside the segment or misaligned.
    #[must_use]
    pub unsafe fn shared<T: Sync>(&self, offset: usize) -> &T {
        self.check(offset, size_of::<T>());
        if !self.is_aligned(offset, align_of::<T>()) {
            misaligned(offset);
        }
        // SAFETY: the value is inside the mapping and aligned. The caller promises that `T`
        // tolerates concurrent writers and any bits.
        unsafe { &*self.base.as_ptr().add(offset).cast::<T>() }
    }

    /// The start of a range, for types that check further accesses themselves.
    pub(crate) fn bytes(&self, offset: usize, length: usize) -> NonNull<u8> {
        self.check(offset, length);
        // SAFETY: the offset is inside the mapping.
        unsafe { self.base.add(offset) }
    }

    /// Copies bytes into the segment. They are visible before any later store of this thread.
    ///
    /// # Panics
    /// When the range is outside the segment, or the mapping is read-only.
    #[inline]
    pub fn write(&self, offset: usize, source: &[u8], mode: CopyMode) {
        self.check(offset, source.len());
        assert!(self.writable, "a read-only segment cannot be written");
        // SAFETY: the range lies inside the mapping. `source` does not overlap it, since no slice
        // of a segment exists.
        unsafe {
            copy::copy(source.as_ptr(), self.base.as_ptr().add(offset), source.len(), mode);
        }
    }

    /// Copies bytes out of the segment.
    ///
    /// # Panics
    /// When the range is outside the segment.
    #[inline]
    pub fn read(&self, offset: usize, target: &mut [u8]) {
        self.check(offset, target.len());
        // SAFETY: as for `write`, with source and target exchanged.
        unsafe {
            let source = self.base.as_ptr().add(offset);
            copy::copy(source, target.as_mut_ptr(), target.len(), CopyMode::Plain);
        }
    }

    /// Prefetches the cache line at `offset` for writing, without waiting for it. Ignores an offset
    /// outside the segment.
    #[inline]
    pub fn prefetch_for_writing(&self, offset: usize) {
        if offset >= self.length {
            return;
        }
        copy::prefetch_for_writing(self.base.as_ptr().wrapping_add(offset));
    }

    /// Copies bytes from this segment to `target`, which may be the same segment. The ranges may
    /// overlap.
    ///
    /// # Panics
    /// When a range is outside its segment, or the target is read-only.
    pub fn copy(&self, offset: usize, target: &Self, at: usize, length: usize, mode: CopyMode) {
        self.check(offset, length);
        target.check(at, length);
        assert!(target.writable, "a read-only segment cannot be written");
        // SAFETY: the range is inside this mapping.
        let from = unsafe { self.base.as_ptr().add(offset) };
        // SAFETY: the range is inside the target's mapping.
        let to = unsafe { target.base.as_ptr().add(at) };
        let apart = (from as usize).abs_diff(to as usize) >= length;
        if apart {
            // SAFETY: both ranges are mapped and their addresses do not overlap. If both segments
            // map the same file, the memory may overlap nevertheless; then the bytes are
            // unspecified, as in any race.
            unsafe { copy::copy(from, to, length, mode) };
        } else {
            // SAFETY: both ranges are mapped; this copy allows overlap.
            unsafe { std::ptr::copy(from, to, length) };
        }
    }

    #[inline]
    fn check(&self, offset: usize, length: usize) {
        if offset > self.length || length > self.length - offset {
            outside(offset, length, self.length);
        }
    }
}

/// The number of mapped segments. It also orders the end of a mapping before the next mapping at
/// its address. The kernel orders these anyway, but the thread sanitizer does not see system calls.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Maps a file from `offset` on in the place of `length` bytes at `base`.
///
/// # Safety
/// The caller owns these addresses, and the file has at least `length` bytes behind the offset for
/// as long as they are used.
pub(crate) unsafe fn map_over(
    base: NonNull<u8>,
    length: usize,
    file: BorrowedFd<'_>,
    offset: usize,
) -> Result<(), SegmentError> {
    let (protection, offset) = (ProtFlags::READ | ProtFlags::WRITE, offset as u64);
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the caller's promise.
    unsafe { rustix::mm::mmap(base.as_ptr().cast(), length, protection, flags, file, offset) }
        .map_err(|e| os("mmap", length, e))?;
    Ok(())
}

// The panics are out of line, so that an access does not prepare the arguments of their messages.
#[cold]
#[inline(never)]
fn outside(offset: usize, length: usize, segment: usize) -> ! {
    panic!("{length} bytes at {offset} leave a segment of {segment} bytes");
}

#[cold]
#[inline(never)]
fn misaligned(offset: usize) -> ! {
    panic!("the word at {offset} is misaligned");
}

impl Drop for Segment {
    fn drop(&mut self) {
        MAPPED.fetch_sub(1, Ordering::Release);
        if !matches!(self.end, End::Unmapped) {
            return;
        }
        // SAFETY: the segment owns the mapping, and no reference into it is left: references borrow
        // `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_written_through_one_mapping_are_read_through_another() {
        let (one, file) = Segment::create("weft-test", 8192).expect("memory");
        let two = Segment::open(file.as_fd(), 8192, false).expect("sealed");
        one.write(100, b"hello", CopyMode::Plain);
        one.word64(8).store(7, Ordering::Release);
        let mut seen = [0; 5];
        two.read(100, &mut seen);
        assert_eq!((&seen, two.word64(8).load(Ordering::Acquire)), (b"hello", 7));
        assert!(!two.writable());
    }

    #[test]
    fn the_file_cannot_shrink_or_grow() {
        let (_segment, file) = Segment::create("weft-test", 4096).expect("memory");
        assert_eq!(rustix::fs::ftruncate(&file, 0), Err(rustix::io::Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&file, 8192), Err(rustix::io::Errno::PERM));
    }

    #[test]
    fn memory_that_could_shrink_or_has_another_size_is_refused() {
        let flags = MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("weft-test", flags).expect("memory");
        rustix::fs::ftruncate(&file, 4096).expect("fresh");
        assert_eq!(Segment::open(file.as_fd(), 4096, true).err(), Some(SegmentError::NotSealed));
        let (_segment, file) = Segment::create("weft-test", 4096).expect("memory");
        assert_eq!(
            Segment::open(file.as_fd(), 8192, true).err(),
            Some(SegmentError::WrongSize { expected: 8192, actual: 4096 })
        );
    }

    #[test]
    fn old_mappings_do_not_share_memory_that_was_replaced() {
        let (segment, file) = Segment::create("weft-test", 8192).expect("memory");
        let old = Segment::open(file.as_fd(), 8192, true).expect("sealed");
        let (new, file) = Segment::create("weft-test", 8192).expect("memory");
        new.write(5000, b"kept", CopyMode::Plain);
        segment.replace(&file).expect("of its length");
        old.write(5000, b"late", CopyMode::Plain);
        let mut seen = [0; 4];
        for segment in [&segment, &new] {
            segment.read(5000, &mut seen);
            assert_eq!(&seen, b"kept");
        }
        segment.write(5000, b"more", CopyMode::Plain);
        new.read(5000, &mut seen);
        assert_eq!(&seen, b"more");
        let (_short, file) = Segment::create("weft-test", 4096).expect("memory");
        let refused = SegmentError::WrongSize { expected: 8192, actual: 4096 };
        assert_eq!(segment.replace(&file), Err(refused));
    }

    #[test]
    fn a_read_only_descriptor_cannot_be_mapped_for_writing() {
        let (_segment, file) = Segment::create("weft-test", 4096).expect("memory");
        let read_only = Segment::reopen_read_only(file.as_fd()).expect("proc is mounted");
        assert!(Segment::open(read_only.as_fd(), 4096, false).is_ok());
        assert!(matches!(
            Segment::open(read_only.as_fd(), 4096, true),
            Err(SegmentError::Os { call: "mmap", .. })
        ));
    }

    #[test]
    #[should_panic(expected = "leave a segment")]
    fn an_offset_that_would_wrap_is_refused() {
        let (segment, _file) = Segment::create("weft-test", 4096).expect("memory");
        segment.read(usize::MAX, &mut [0; 2]);
    }
}
