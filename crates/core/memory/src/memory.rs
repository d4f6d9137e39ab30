//! Memory of this process that can be registered with transports, apart from any endpoint.
//!
//! Invariant: a sealed memfd holds the memory, so that peers can map it and its owner can move it
//! out of their reach. Memory in place is the exception: nobody can map it, and it stays where it
//! is.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use parking_lot::{Mutex, RwLock};
use rustix::fs::SealFlags;

use crate::moving::{Backing, moving_word};
use crate::reservation::Reservation;
use crate::segment::{Segment, SegmentError};

/// How fresh memory is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryOptions {
    length: usize,
    node: Option<u32>,
    huge_pages: bool,
    populate: bool,
}

impl MemoryOptions {
    /// `length` zeroed bytes, anywhere.
    #[must_use]
    pub const fn bytes(length: usize) -> Self {
        Self { length, node: None, huge_pages: false, populate: false }
    }

    /// The same, on the NUMA node with this number alone.
    #[must_use]
    pub const fn on_node(self, node: u32) -> Self {
        Self { node: Some(node), ..self }
    }

    /// The same in huge pages, as far as the system has them and lets shared memory use them
    /// (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`).
    #[must_use]
    pub const fn huge_pages(self) -> Self {
        Self { huge_pages: true, ..self }
    }

    /// The same with all its pages present, so that no first access is slow and a lack of memory
    /// shows at once.
    #[must_use]
    pub const fn populate(self) -> Self {
        Self { populate: true, ..self }
    }
}

impl MemoryOptions {
    /// Makes the memory; [`MemoryOptions::populate`] is for the first of it alone.
    fn make(&self) -> Result<(Segment, OwnedFd), SegmentError> {
        self.prepared(Segment::create(NAME, self.length)?)
    }

    fn prepared(
        &self,
        (segment, file): (Segment, OwnedFd),
    ) -> Result<(Segment, OwnedFd), SegmentError> {
        if let Some(node) = self.node {
            segment.bind_to_node(node)?;
        }
        if self.huge_pages {
            segment.prefer_huge_pages();
        }
        Ok((segment, file))
    }
}

/// Memory of this process. Clones are the same memory.
#[derive(Clone, Debug)]
pub struct Memory {
    inner: Arc<Inner>,
}

/// The maker of the memory, which decides whether it may move.
#[derive(Clone, Copy, Debug)]
enum Origin {
    /// Made or adopted by this process. New memory for it is made by the same options.
    Own(MemoryOptions),
    /// Somebody else has it, too, and would be left behind.
    Foreign,
    /// It is memory of this process that no file holds.
    InPlace,
}

#[derive(Debug)]
struct Inner {
    segment: Segment,
    origin: Origin,
    place: RwLock<Backing>,
    /// [`moving_word`] of the place.
    moving: AtomicU32,
    kept: Attachments,
}

/// Values that transports keep with the memory: one of each type.
#[derive(Default)]
struct Attachments(Mutex<Vec<Arc<dyn Any + Send + Sync>>>);

impl std::fmt::Debug for Attachments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attachments").finish_non_exhaustive()
    }
}

impl Memory {
    fn new(segment: Segment, file: OwnedFd, origin: Origin) -> Self {
        Self::at(segment, Some(Arc::new(file)), origin)
    }

    fn at(segment: Segment, file: Option<Arc<OwnedFd>>, origin: Origin) -> Self {
        let place = RwLock::new(Backing { file, moves: 0, next: None, stays: 0 });
        let (moving, kept) = (AtomicU32::new(moving_word(0, false)), Attachments::default());
        Self { inner: Arc::new(Inner { segment, origin, place, moving, kept }) }
    }

    /// Fresh memory.
    ///
    /// # Errors
    /// [`SegmentError::Os`]: the system lacks memory, or has no such NUMA node.
    pub fn fresh(options: MemoryOptions) -> Result<Self, SegmentError> {
        let (segment, file) = options.make()?;
        if options.populate {
            segment.populate()?;
        }
        Ok(Self::new(segment, file, Origin::Own(options)))
    }

    /// Fresh memory at `offset` of a reservation. It stays at these addresses when it moves.
    ///
    /// # Errors
    /// [`SegmentError::Misplaced`]: something is there, or the memory leaves the reservation; as
    /// [`Memory::fresh`].
    pub fn fresh_at(
        options: MemoryOptions,
        reservation: &Reservation,
        offset: usize,
    ) -> Result<Self, SegmentError> {
        let made = Segment::create_at(NAME, options.length, reservation, offset)?;
        let (segment, file) = options.prepared(made)?;
        if options.populate {
            segment.populate()?;
        }
        Ok(Self::new(segment, file, Origin::Own(options)))
    }

    /// The memory of a memfd that somebody else made, such as the memory of a virtual machine. It
    /// is sealed against shrinking and growing, if it is not yet.
    ///
    /// It stays that memfd: it is not moved when a key to it is revoked, since its maker would be
    /// left behind. Writes that were begun by the key have ended then, unless their process stood
    /// still, but a hostile holder keeps the memory that it mapped.
    ///
    /// # Errors
    /// [`SegmentError::NotSealed`] for a file that cannot be sealed: whoever may shrink it could
    /// crash every process that maps it. [`SegmentError::Os`].
    pub fn from_descriptor(file: BorrowedFd<'_>) -> Result<Self, SegmentError> {
        let seals = SealFlags::SHRINK | SealFlags::GROW;
        // Fails for a file that is sealed against further seals; it may have these already.
        let _ = rustix::fs::fcntl_add_seals(file, seals);
        let length = Segment::sealed_length(file)?;
        let too_long = |_| SegmentError::Os {
            call: "mmap",
            length: usize::MAX,
            errno: rustix::io::Errno::NOMEM.raw_os_error(),
        };
        let segment = Segment::open(file, usize::try_from(length).map_err(too_long)?, true)?;
        let file = file.try_clone_to_owned().map_err(|error| SegmentError::Os {
            call: "dup",
            length: segment.length(),
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        Ok(Self::new(segment, file, Origin::Foreign))
    }

    /// Memory that exists already, such as static data, an arena or a buffer of pages: its pages
    /// are replaced by shared ones with the same bytes.
    ///
    /// Afterwards a child of fork(2) shares the memory with this process, and the memory stays
    /// shared when the last clone of this value is gone.
    ///
    /// # Errors
    /// As [`Segment::adopt`].
    ///
    /// # Safety
    /// As [`Segment::adopt`].
    pub unsafe fn adopt(base: NonNull<u8>, length: usize) -> Result<Self, SegmentError> {
        // SAFETY: the caller's promise.
        let (segment, file) = unsafe { Segment::adopt(NAME, base, length) }?;
        Ok(Self::new(segment, file, Origin::Own(MemoryOptions::bytes(length))))
    }

    /// The same while other threads may write to the memory.
    ///
    /// # Errors
    /// As [`Segment::adopt_from_writers`].
    ///
    /// # Safety
    /// As [`Segment::adopt_from_writers`].
    pub unsafe fn adopt_from_writers(
        base: NonNull<u8>,
        length: usize,
    ) -> Result<Self, SegmentError> {
        // SAFETY: the caller's promise.
        let (segment, file) = unsafe { Segment::adopt_from_writers(NAME, base, length) }?;
        Ok(Self::new(segment, file, Origin::Own(MemoryOptions::bytes(length))))
    }

    /// Memory that exists already and stays as it is: any range of addresses, such as a stack of
    /// somebody else's allocator or a part of a page. Peers cannot map it; transports copy to and
    /// from it.
    ///
    /// # Errors
    /// [`SegmentError::Os`] for no bytes at all.
    ///
    /// # Safety
    /// The range must be mapped for reading and writing as long as any clone of this value lives,
    /// and as long as a peer may still write to it: until the revocation of each key to it has
    /// ended well, or the endpoint that granted them is closed. No reference to its bytes may be
    /// used while a peer or this crate may write to them.
    pub unsafe fn in_place(base: NonNull<u8>, length: usize) -> Result<Self, SegmentError> {
        // SAFETY: the caller's promise.
        let segment = unsafe { Segment::in_place(base, length) }?;
        Ok(Self::at(segment, None, Origin::InPlace))
    }

    /// A segment that has no file, such as [`Segment::anonymous`], in place. It stays mapped until
    /// the process ends, since nobody says when the last peer has written to it.
    #[must_use]
    pub fn kept_in_place(segment: Segment) -> Self {
        Self::at(segment.kept(), None, Origin::InPlace)
    }

    /// A segment that has no file, such as [`Segment::anonymous`]: its pages are replaced by shared
    /// ones with the same bytes.
    ///
    /// # Errors
    /// As [`Segment::adopt`].
    pub fn of_segment(segment: Segment) -> Result<Self, SegmentError> {
        let (segment, file) = segment.share(NAME)?;
        let options = MemoryOptions::bytes(segment.length());
        Ok(Self::new(segment, file, Origin::Own(options)))
    }

    /// The mapped memory.
    #[inline]
    #[must_use]
    pub fn segment(&self) -> &Segment {
        &self.inner.segment
    }

    /// The descriptor of the memory, for peers; `None` for memory in place.
    #[must_use]
    pub fn file(&self) -> Option<Arc<OwnedFd>> {
        self.inner.place.read().file.clone()
    }

    /// Calls `look` with the descriptor of the memory, and with that of the memory to which it
    /// moves.
    pub fn each_descriptor(&self, mut look: impl FnMut(BorrowedFd<'_>)) {
        let place = self.inner.place.read();
        place.file.iter().for_each(|file| look(file.as_fd()));
        place.next.iter().for_each(|next| look(next.file.as_fd()));
    }

    /// Whether this is [memory in place](Memory::in_place), which peers cannot map.
    #[inline]
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        matches!(self.inner.origin, Origin::InPlace)
    }

    /// The descriptor, and how often the memory had been moved when it was that one. Another thread
    /// may move it at any time.
    #[must_use]
    pub fn file_and_moves(&self) -> (Option<Arc<OwnedFd>>, u32) {
        let place = self.inner.place.read();
        (place.file.clone(), place.moves)
    }

    /// Whether the memory may move; see [`Memory::begin_move`]. It may not while it has to
    /// [stay](Memory::stay).
    #[must_use]
    pub fn may_move(&self) -> bool {
        matches!(self.inner.origin, Origin::Own(_)) && self.inner.place.read().stays == 0
    }

    /// New memory to move to.
    pub(crate) fn make_next(&self) -> Result<(Segment, OwnedFd), SegmentError> {
        match self.inner.origin {
            Origin::Own(options) => options.make(),
            Origin::Foreign | Origin::InPlace => Err(SegmentError::Os {
                call: "move",
                length: self.segment().length(),
                errno: rustix::io::Errno::OPNOTSUPP.raw_os_error(),
            }),
        }
    }

    /// The segment, if this is the last clone. The descriptor is closed.
    pub(crate) fn into_segment(self) -> Result<Segment, Self> {
        let inner = Arc::try_unwrap(self.inner).map_err(|inner| Self { inner })?;
        Ok(inner.segment)
    }

    /// Whether both are the same memory.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    #[inline]
    pub(crate) fn moving(&self) -> &AtomicU32 {
        &self.inner.moving
    }

    #[inline]
    pub(crate) fn place(&self) -> &RwLock<Backing> {
        &self.inner.place
    }

    /// The value that a transport keeps with the memory for all its endpoints of this process. The
    /// first call makes it. It must not keep the memory, which would never end then.
    #[must_use]
    pub fn kept<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut all = self.inner.kept.0.lock();
        if let Some(kept) = all.iter().find_map(|kept| Arc::clone(kept).downcast().ok()) {
            return kept;
        }
        let kept = Arc::new(T::default());
        all.push(Arc::clone(&kept) as Arc<dyn Any + Send + Sync>);
        kept
    }
}

/// The name of the memory in `/proc/*/maps`.
pub(crate) const NAME: &str = "weft-region";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CopyMode;
    use rustix::fs::MemfdFlags;
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    fn file_of(memory: &Memory) -> Arc<OwnedFd> {
        memory.file().expect("a memfd holds it")
    }

    #[test]
    fn memory_in_place_is_any_range_and_stays_when_the_value_is_gone() {
        let mut bytes = *b"0123456789";
        let base = NonNull::from(&mut bytes[3]);
        // SAFETY: the array outlives the memory, and nothing refers to it until that is dropped.
        let memory = unsafe { Memory::in_place(base, 5) }.expect("some bytes");
        assert_eq!((memory.segment().base(), memory.segment().length()), (base, 5));
        assert!(memory.file().is_none() && memory.is_in_place() && !memory.may_move());
        assert!(memory.begin_move().is_err());
        memory.writing(1, 2, |segment| segment.write(1, b"xy", CopyMode::Plain));
        drop(memory);
        assert_eq!(&bytes, b"0123xy6789");
        // SAFETY: as above.
        assert!(unsafe { Memory::in_place(base, 0) }.is_err());
    }

    #[test]
    fn memory_that_was_there_keeps_its_bytes_and_its_address() {
        let page = rustix::param::page_size();
        let old = Segment::anonymous(4 * page).expect("memory");
        old.write(page + 7, b"before", CopyMode::Plain);
        // SAFETY: the two pages belong to `old`, which outlives `adopted` and is not used by
        // anybody else.
        let base = unsafe { old.base().add(page) };
        // SAFETY: as above.
        let adopted = unsafe { Memory::adopt(base, 2 * page) }.expect("memory");
        assert_eq!(adopted.segment().base(), base);
        let peer = Segment::open(file_of(&adopted).as_fd(), 2 * page, true).expect("sealed");
        let mut seen = [0; 6];
        peer.read(7, &mut seen);
        assert_eq!(&seen, b"before");
        peer.write(7, b"behind", CopyMode::Plain);
        old.read(page + 7, &mut seen);
        assert_eq!(&seen, b"behind");
        drop(adopted);
        old.read(page + 7, &mut seen);
        assert_eq!(&seen, b"behind", "the memory stays");
    }

    #[test]
    fn pages_that_nobody_wrote_take_no_memory_when_they_are_adopted() {
        let page = rustix::param::page_size();
        let old = Segment::anonymous(8 * page).expect("memory");
        old.write(3 * page + page - 1, b"x", CopyMode::Plain);
        // SAFETY: the pages belong to `old`, which outlives `adopted` and is not used by anybody
        // else.
        let adopted = unsafe { Memory::adopt(old.base(), 8 * page) }.expect("memory");
        let status = rustix::fs::fstat(&*file_of(&adopted)).expect("a file");
        assert_eq!(u64::try_from(status.st_blocks).expect("some") * 512, page as u64);
        let mut seen = [0; 2];
        old.read(4 * page - 1, &mut seen);
        assert_eq!(&seen, b"x\0");
    }

    #[test]
    fn a_segment_without_a_file_is_made_shareable_and_unmapped_once() {
        let length = 2 * rustix::param::page_size();
        let old = Segment::anonymous(length).expect("memory");
        let base = old.base();
        old.write(9, b"before", CopyMode::Plain);
        let memory = Memory::of_segment(old).expect("whole pages");
        assert_eq!(memory.segment().base(), base);
        let peer = Segment::open(file_of(&memory).as_fd(), length, false).expect("sealed");
        let mut seen = [0; 6];
        peer.read(9, &mut seen);
        assert_eq!(&seen, b"before");
        let maps = || std::fs::read_to_string("/proc/self/maps").expect("proc is mounted");
        let start = format!("{:x}-", base.addr());
        assert!(maps().contains(&start));
        drop(memory);
        let left = maps();
        let line = left.lines().find(|line| line.starts_with(&start));
        assert!(line.is_none_or(|line| !line.contains(NAME)), "{line:?}");
    }

    #[test]
    fn all_clones_of_a_memory_keep_the_same_value_of_each_type() {
        let memory = Memory::fresh(MemoryOptions::bytes(4096)).expect("memory");
        let (one, other) = (memory.kept::<Mutex<u32>>(), memory.kept::<Mutex<u64>>());
        *one.lock() = 5;
        *other.lock() = 6;
        let clone = memory.clone();
        assert_eq!(
            (*clone.kept::<Mutex<u32>>().lock(), *clone.kept::<Mutex<u64>>().lock()),
            (5, 6)
        );
        let another = Memory::fresh(MemoryOptions::bytes(4096)).expect("memory");
        assert_eq!(*another.kept::<Mutex<u32>>().lock(), 0);
    }

    #[test]
    fn memory_that_is_not_whole_pages_is_not_adopted() {
        let page = rustix::param::page_size();
        let old = Segment::anonymous(2 * page).expect("memory");
        for (offset, length) in [(1, page), (0, page - 1), (0, 0)] {
            // SAFETY: the offset is inside the memory.
            let base = unsafe { old.base().add(offset) };
            // SAFETY: the range belongs to `old`.
            let refused = unsafe { Memory::adopt(base, length) };
            assert!(matches!(refused, Err(SegmentError::Misaligned { .. })), "{refused:?}");
        }
    }

    #[test]
    fn a_memfd_of_somebody_else_is_sealed_and_one_that_cannot_be_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let theirs = rustix::fs::memfd_create("theirs", flags).expect("memory");
        rustix::fs::ftruncate(&theirs, 8192).expect("fresh");
        let memory = Memory::from_descriptor(theirs.as_fd()).expect("it can be sealed");
        assert_eq!(memory.segment().length(), 8192);
        assert!(rustix::fs::ftruncate(&theirs, 0).is_err(), "it is sealed now");
        memory.segment().write(5, b"x", CopyMode::Plain);
        let mut byte = [0];
        assert_eq!(rustix::io::pread(&theirs, &mut byte, 5), Ok(1));
        assert_eq!(&byte, b"x");
        let loose = rustix::fs::memfd_create("loose", MemfdFlags::CLOEXEC).expect("memory");
        rustix::fs::ftruncate(&loose, 8192).expect("fresh");
        let refused = Memory::from_descriptor(loose.as_fd()).err();
        assert_eq!(refused, Some(SegmentError::NotSealed));
    }

    #[test]
    fn fresh_memory_is_zeroed_and_present_as_asked() {
        let options = MemoryOptions::bytes(1 << 21).populate().huge_pages();
        let memory = Memory::fresh(options).expect("memory");
        let resident =
            rustix::fs::fstat(file_of(&memory).as_ref()).expect("a file").st_blocks * 512;
        assert_eq!(resident, 1 << 21, "all of it is there");
        assert_eq!(memory.segment().word64(4096).load(Ordering::Relaxed), 0);
        let nowhere = Memory::fresh(MemoryOptions::bytes(4096).on_node(1000));
        assert!(matches!(nowhere, Err(SegmentError::Os { call: "mbind", .. })), "{nowhere:?}");
    }
}
