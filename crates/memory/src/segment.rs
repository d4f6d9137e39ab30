//! A segment: a memfd whose size is sealed, and one mapping of it.
//!
//! Invariants: the mapping is valid for `length` bytes as long as the segment lives; the file can
//! neither shrink nor grow, so touching it never raises SIGBUS; every offset is checked against
//! `length` before it becomes an address.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use thiserror::Error;

use crate::copy::{self, CopyMode};

/// Why a segment could not be made or mapped.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The system refused.
    #[error("{call} of {length} bytes failed with errno {errno}")]
    Os {
        /// The call.
        call: &'static str,
        /// Bytes asked for.
        length: usize,
        /// Its error number.
        errno: i32,
    },
    /// A descriptor that somebody passed is not a sealed memfd: its owner could shrink it and
    /// crash whoever touches it.
    #[error("the memory passed is not a memfd sealed against shrinking and growing")]
    NotSealed,
    /// A descriptor that somebody passed has another size than was said.
    #[error("the memory passed has {actual} bytes where {expected} were announced")]
    WrongSize {
        /// What was said.
        expected: u64,
        /// What it has.
        actual: u64,
    },
}

/// Segments mapped. Also orders the end of a mapping before the next one at its address, as the
/// kernel does; the thread sanitizer does not see system calls.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// The kind of file system that memfds of ordinary pages are on.
const TMPFS_MAGIC: i64 = 0x0102_1994;

fn os(call: &'static str, length: usize, errno: rustix::io::Errno) -> SegmentError {
    SegmentError::Os { call, length, errno: errno.raw_os_error() }
}

/// Shared memory; see the module for what holds.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<u8>,
    length: usize,
    writable: bool,
}

// SAFETY: the segment owns its mapping, which is not tied to a thread; every access to its bytes
// is an atomic or a copy that allows for others writing at the same time.
unsafe impl Send for Segment {}
// SAFETY: as for Send.
unsafe impl Sync for Segment {}

impl Segment {
    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

    /// Makes `length` bytes of zeroed memory and maps them; the descriptor is for passing on.
    ///
    /// # Errors
    /// [`SegmentError::Os`].
    pub fn create(name: &str, length: usize) -> Result<(Self, OwnedFd), SegmentError> {
        let file = Self::create_file(name, length)?;
        let segment = Self::map(file.as_fd(), length, true)?;
        Ok((segment, file))
    }

    /// Makes the sealed file without mapping it.
    ///
    /// # Errors
    /// [`SegmentError::Os`].
    pub fn create_file(name: &str, length: usize) -> Result<OwnedFd, SegmentError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file =
            rustix::fs::memfd_create(name, flags).map_err(|e| os("memfd_create", length, e))?;
        // Others get it by descriptor only; without this any user could reopen it for writing.
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(|e| os("fchmod", length, e))?;
        // Beyond this limit the kernel would not only refuse but end the program by a signal.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        if limit.is_some_and(|limit| limit < length as u64) {
            return Err(os("ftruncate", length, rustix::io::Errno::FBIG));
        }
        rustix::fs::ftruncate(&file, length as u64).map_err(|e| os("ftruncate", length, e))?;
        rustix::fs::fcntl_add_seals(&file, Self::SEALS)
            .map_err(|e| os("fcntl(F_ADD_SEALS)", length, e))?;
        Ok(file)
    }

    /// Maps memory that somebody passed, after checking its seals and its size.
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

    /// How long the memory is that somebody passed, after checking that it is a sealed memfd. Does
    /// not wait for anybody, whatever was passed: a file of a file system in user space would let
    /// its owner hold up whoever asks for more than its seals.
    ///
    /// # Errors
    /// [`SegmentError::NotSealed`], [`SegmentError::Os`].
    pub fn sealed_length(file: BorrowedFd<'_>) -> Result<u64, SegmentError> {
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| SegmentError::NotSealed)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(SegmentError::NotSealed);
        }
        // Huge pages may run out behind a mapping, which raises SIGBUS: only ordinary ones will do.
        let system = rustix::fs::fstatfs(file).map_err(|e| os("fstatfs", 0, e))?;
        if system.f_type != TMPFS_MAGIC {
            return Err(SegmentError::NotSealed);
        }
        let status = rustix::fs::fstat(file).map_err(|e| os("fstat", 0, e))?;
        Ok(u64::try_from(status.st_size).unwrap_or(0))
    }

    /// The same file under a descriptor that can only be mapped for reading.
    ///
    /// # Errors
    /// [`SegmentError::Os`], also where `/proc` is not mounted.
    pub fn reopen_read_only(file: BorrowedFd<'_>) -> Result<OwnedFd, SegmentError> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty()).map_err(|e| os("open", 0, e))
    }

    /// Moves the bytes to fresh memory under the same address: other mappings keep the old memory
    /// and reach this segment no more. Returns the descriptor of the new memory.
    ///
    /// What other threads write while it runs may be lost; nothing else happens to them.
    ///
    /// # Errors
    /// [`SegmentError::Os`]; the segment is then as before.
    ///
    /// # Panics
    /// When the mapping is read-only.
    pub fn move_away(&self, name: &str) -> Result<OwnedFd, SegmentError> {
        assert!(self.writable, "only the owner of a segment moves it");
        let (fresh, file) = Self::create(name, self.length)?;
        self.copy(0, &fresh, 0, self.length, CopyMode::Plain);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let base = self.base.as_ptr().cast();
        // SAFETY: replaces exactly the pages of this segment by as many of a file of its size; the
        // kernel does so in one step as far as other threads can see, and references to words stay
        // valid, since the address does not change.
        unsafe { rustix::mm::mmap(base, self.length, protection, flags, &file, 0) }
            .map_err(|e| os("mmap", self.length, e))?;
        Ok(file)
    }

    fn map(file: BorrowedFd<'_>, length: usize, writable: bool) -> Result<Self, SegmentError> {
        let mut protection = ProtFlags::READ;
        if writable {
            protection |= ProtFlags::WRITE;
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing; the size
        // is sealed, so no access inside it can fault.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0)
        }
        .map_err(|e| os("mmap", length, e))?;
        let base = NonNull::new(base.cast::<u8>()).expect("mmap never maps address 0 unasked");
        MAPPED.fetch_add(1, Ordering::Acquire);
        Ok(Self { base, length, writable })
    }

    /// Memory that is shared with forked children only.
    ///
    /// # Errors
    /// [`SegmentError::Os`].
    pub fn anonymous(length: usize) -> Result<Self, SegmentError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, protection, flags) }
                .map_err(|e| os("mmap", length, e))?;
        let base = NonNull::new(base.cast::<u8>()).expect("mmap never maps address 0 unasked");
        MAPPED.fetch_add(1, Ordering::Acquire);
        Ok(Self { base, length, writable: true })
    }

    /// How many segments this process has mapped.
    #[must_use]
    pub fn mapped() -> usize {
        MAPPED.load(Ordering::Relaxed)
    }

    /// Bytes mapped.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }

    /// False for a read-only mapping.
    #[must_use]
    pub const fn writable(&self) -> bool {
        self.writable
    }

    /// A word of 32 bits.
    ///
    /// # Panics
    /// When it leaves the segment or is misaligned.
    #[inline]
    #[must_use]
    pub fn word32(&self, offset: usize) -> &AtomicU32 {
        self.check(offset, 4);
        if !offset.is_multiple_of(4) {
            misaligned(offset);
        }
        // SAFETY: checked to lie inside the mapping and to be aligned (the base is page-aligned);
        // atomics allow for others writing it. Stores through a read-only mapping fault, which is
        // why callers keep to loads there.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU32>() }
    }

    /// A word of 64 bits.
    ///
    /// # Panics
    /// When it leaves the segment or is misaligned.
    #[inline]
    #[must_use]
    pub fn word64(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8);
        if !offset.is_multiple_of(8) {
            misaligned(offset);
        }
        // SAFETY: as for `word32`.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// A value of a type that is made of atomics.
    ///
    /// # Safety
    /// Every bit pattern must be a valid `T`, and all of `T` must be atomics.
    ///
    /// # Panics
    /// When it leaves the segment or is misaligned.
    #[must_use]
    pub unsafe fn shared<T: Sync>(&self, offset: usize) -> &T {
        self.check(offset, size_of::<T>());
        if !offset.is_multiple_of(align_of::<T>()) {
            misaligned(offset);
        }
        // SAFETY: inside the mapping and aligned; that the type allows for other writers and any
        // bits is the caller's promise.
        unsafe { &*self.base.as_ptr().add(offset).cast::<T>() }
    }

    /// The start of a range, for parts that check their own bounds.
    pub(crate) fn bytes(&self, offset: usize, length: usize) -> NonNull<u8> {
        self.check(offset, length);
        // SAFETY: inside the mapping.
        unsafe { self.base.add(offset) }
    }

    /// Copies bytes in; they are visible before any later store of this thread.
    ///
    /// # Panics
    /// When the range leaves the segment or the mapping is read-only.
    #[inline]
    pub fn write(&self, offset: usize, source: &[u8], mode: CopyMode) {
        self.check(offset, source.len());
        assert!(self.writable, "a read-only segment cannot be written");
        // SAFETY: the range lies inside the mapping; a slice never overlaps it, since no slice of
        // a segment exists.
        unsafe {
            copy::copy(source.as_ptr(), self.base.as_ptr().add(offset), source.len(), mode);
        }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// When the range leaves the segment.
    #[inline]
    pub fn read(&self, offset: usize, target: &mut [u8]) {
        self.check(offset, target.len());
        // SAFETY: as for `write`, the other way round.
        unsafe {
            let source = self.base.as_ptr().add(offset);
            copy::copy(source, target.as_mut_ptr(), target.len(), CopyMode::Plain);
        }
    }

    /// Asks for the line at `offset` for writing, without waiting. An offset outside the segment
    /// asks for nothing.
    #[inline]
    pub fn prefetch_for_writing(&self, offset: usize) {
        if offset >= self.length {
            return;
        }
        copy::prefetch_for_writing(self.base.as_ptr().wrapping_add(offset));
    }

    /// Copies from one segment (or one place of it) to another; the ranges may overlap.
    ///
    /// # Panics
    /// When a range leaves its segment or the target is read-only.
    pub fn copy(&self, offset: usize, target: &Self, at: usize, length: usize, mode: CopyMode) {
        self.check(offset, length);
        target.check(at, length);
        assert!(target.writable, "a read-only segment cannot be written");
        // SAFETY: inside this mapping.
        let from = unsafe { self.base.as_ptr().add(offset) };
        // SAFETY: inside the target's mapping.
        let to = unsafe { target.base.as_ptr().add(at) };
        let apart = (from as usize).abs_diff(to as usize) >= length;
        if apart {
            // SAFETY: both ranges are mapped and do not overlap. Two mappings of one file may
            // overlap in memory all the same; then the bytes are unspecified, as in any race.
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

// Apart from the checks themselves, so that what a message needs is not stored before each access.
#[cold]
#[inline(never)]
fn outside(offset: usize, length: usize, segment: usize) -> ! {
    panic!("{length} bytes at {offset} leave a segment of {segment}");
}

#[cold]
#[inline(never)]
fn misaligned(offset: usize) -> ! {
    panic!("what is at {offset} is misaligned");
}

impl Drop for Segment {
    fn drop(&mut self) {
        MAPPED.fetch_sub(1, Ordering::Release);
        // SAFETY: the mapping is ours and nothing refers to it any more: references borrow self.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_mapping_writes_the_other_reads() {
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
    fn nobody_can_shrink_or_grow_it() {
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
    fn what_moved_away_is_out_of_reach_of_old_mappings() {
        let (segment, file) = Segment::create("weft-test", 8192).expect("memory");
        let old = Segment::open(file.as_fd(), 8192, true).expect("sealed");
        segment.write(5000, b"kept", CopyMode::Plain);
        let moved = segment.move_away("weft-test").expect("memory");
        let new = Segment::open(moved.as_fd(), 8192, true).expect("sealed");
        old.write(5000, b"late", CopyMode::Plain);
        let mut seen = [0; 4];
        for segment in [&segment, &new] {
            segment.read(5000, &mut seen);
            assert_eq!(&seen, b"kept");
        }
        segment.write(5000, b"more", CopyMode::Plain);
        new.read(5000, &mut seen);
        assert_eq!(&seen, b"more");
        old.read(5000, &mut seen);
        assert_eq!(&seen, b"late");
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
    fn an_offset_that_would_wrap_is_caught() {
        let (segment, _file) = Segment::create("weft-test", 4096).expect("memory");
        segment.read(usize::MAX, &mut [0; 2]);
    }
}
