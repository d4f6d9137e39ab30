//! A range of addresses that a program reserved, in which segments are mapped where it likes.
//!
//! # Invariants
//! - Nothing is ever mapped outside of the reservation, and inside only where nothing is taken: so
//!   no other mapping of the program is replaced.
//! - An address of the reservation is either without access or inside a segment that is mapped
//!   there. Where the kernel failed half-way and may have left a hole, the range is given up: it
//!   is neither used again nor unmapped, since somebody else may have mapped something there.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::segment::{SegmentError, os};

/// A reserved range of addresses. Clones are the same range. It is free again when the last clone
/// and the last segment in it are gone.
#[derive(Clone, Debug)]
pub struct Reservation {
    addresses: Arc<Addresses>,
}

#[derive(Debug)]
struct Addresses {
    base: NonNull<u8>,
    length: usize,
    /// Start and end of each range that is mapped or given up, as offsets.
    taken: Mutex<BTreeMap<usize, usize>>,
}

// SAFETY: the addresses are no memory: they are used by segments alone, which are `Send`.
unsafe impl Send for Addresses {}
// SAFETY: as for Send.
unsafe impl Sync for Addresses {}

impl Reservation {
    /// Reserves `length` bytes of addresses, rounded up to whole pages, somewhere. They take no
    /// memory, but count for `RLIMIT_AS`.
    ///
    /// # Errors
    /// [`SegmentError::Os`]: no such range is free, or the limit of addresses is reached.
    pub fn reserve(length: usize) -> Result<Self, SegmentError> {
        let refused = |errno| os("mmap", length, errno);
        let page = rustix::param::page_size();
        let whole = length.checked_next_multiple_of(page).ok_or_else(|| refused(Errno::NOMEM))?;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), whole, ProtFlags::empty(), no_access())
        }
        .map_err(refused)?;
        let base = NonNull::new(base.cast::<u8>()).expect("mmap never maps address 0 unasked");
        let taken = Mutex::new(BTreeMap::new());
        Ok(Self { addresses: Arc::new(Addresses { base, length: whole, taken }) })
    }

    /// The first address.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.addresses.base
    }

    /// Bytes of the range.
    #[must_use]
    pub fn length(&self) -> usize {
        self.addresses.length
    }

    /// Takes the `length` bytes of whole pages from `offset` on, and has `map` map them.
    ///
    /// # Errors
    /// [`SegmentError::Misplaced`] unless `offset` is a multiple of the page size and the range is
    /// inside the reservation and free; what `map` says.
    pub(crate) fn take(
        &self,
        offset: usize,
        length: usize,
        map: impl FnOnce(NonNull<u8>) -> Result<(), SegmentError>,
    ) -> Result<Taken, SegmentError> {
        let page = rustix::param::page_size();
        let misplaced = || SegmentError::Misplaced { offset, length, reserved: self.length() };
        let length = length.checked_next_multiple_of(page).ok_or_else(misplaced)?;
        let end = offset.checked_add(length).filter(|end| *end <= self.length());
        let end = end.filter(|_| length > 0 && offset.is_multiple_of(page));
        let end = end.ok_or_else(misplaced)?;
        let mut taken = self.addresses.taken.lock();
        if taken.range(..end).next_back().is_some_and(|(_, other)| *other > offset) {
            return Err(misplaced());
        }
        taken.insert(offset, end);
        drop(taken);
        let taken = Taken { of: self.clone(), offset, length };
        if let Err(error) = map(taken.base()) {
            taken.give_up();
            return Err(error);
        }
        Ok(taken)
    }

    /// Makes a range one without access again, which is taken by the caller alone.
    fn close(&self, offset: usize, length: usize, how: MapFlags) -> bool {
        let base = self.base().as_ptr().wrapping_add(offset).cast();
        let (protection, flags) = (ProtFlags::empty(), no_access() | how);
        // SAFETY: `take` checked that the range is inside the reservation, and the caller took it.
        // Where a hole may be, `how` is FIXED_NOREPLACE, which replaces nothing.
        let closed = unsafe { rustix::mm::mmap_anonymous(base, length, protection, flags) };
        closed == Ok(base)
    }
}

/// A part of a reservation in which a segment is mapped. Its end takes the mapping away.
#[derive(Debug)]
pub(crate) struct Taken {
    of: Reservation,
    offset: usize,
    length: usize,
}

impl Taken {
    pub(crate) fn base(&self) -> NonNull<u8> {
        // SAFETY: `take` checked that the offset is inside the reservation.
        unsafe { self.of.base().add(self.offset) }
    }

    /// Nothing could be mapped. If the kernel left a hole, it is closed. If it left the former
    /// pages, or somebody else was faster, which cannot be told apart, the range is given up.
    fn give_up(mut self) {
        if self.of.close(self.offset, self.length, MapFlags::FIXED_NOREPLACE) {
            self.of.addresses.taken.lock().remove(&self.offset);
        }
        // The destructor finds nothing to close.
        self.length = 0;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let is_there = self.length > 0;
        if is_there && self.of.close(self.offset, self.length, MapFlags::FIXED) {
            self.of.addresses.taken.lock().remove(&self.offset);
        }
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // The ranges that are still taken were given up.
        let mut free = 0;
        let taken = std::mem::take(self.taken.get_mut());
        for (start, end) in taken.into_iter().chain([(self.length, self.length)]) {
            if start > free {
                // SAFETY: the range is inside the reservation, which this value owns, and no
                // segment is mapped there: each keeps the reservation alive.
                let _ = unsafe {
                    rustix::mm::munmap(self.base.as_ptr().add(free).cast(), start - free)
                };
            }
            free = end;
        }
    }
}

fn no_access() -> MapFlags {
    MapFlags::PRIVATE | MapFlags::NORESERVE
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::{CopyMode, Segment};

    fn page() -> usize {
        rustix::param::page_size()
    }

    /// The line of `/proc/self/maps` with an address.
    fn line(address: NonNull<u8>) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("proc is mounted");
        let has = |line: &&str| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let [from, to] = range
                .map(|(a, b)| [a, b])
                .expect("a range")
                .map(|at| usize::from_str_radix(at, 16).expect("an address"));
            (from..to).contains(&address.addr().get())
        };
        maps.lines().find(has).map(str::to_owned)
    }

    fn is_closed(address: NonNull<u8>) -> bool {
        line(address).is_some_and(|line| line.contains("---p"))
    }

    #[test]
    fn a_segment_is_placed_where_the_program_likes_and_gone_at_its_end() {
        let reservation = Reservation::reserve(8 * page()).expect("addresses");
        let (segment, file) = Segment::create("weft-test", 3 * page()).expect("memory");
        segment.write(page() + 5, b"hello", CopyMode::Plain);
        let placed = segment.place(page(), page() + 1, &reservation, 4 * page());
        let placed = placed.expect("the range is free");
        let at = |pages| reservation.base().map_addr(|base| base.saturating_add(pages * page()));
        assert_eq!((placed.base(), placed.length()), (at(4), 2 * page()));
        let mut seen = [0; 5];
        placed.read(5, &mut seen);
        assert_eq!(&seen, b"hello");
        drop((segment, file));
        placed.write(page(), b"still", CopyMode::Plain);
        placed.read(page(), &mut seen);
        assert_eq!(&seen, b"still", "it is a mapping of its own");
        assert!(is_closed(at(3)) && !is_closed(at(4)) && !is_closed(at(5)) && is_closed(at(6)));
        drop(placed);
        assert!(is_closed(at(0)) && is_closed(at(4)) && is_closed(at(7)));
        let (base, last) = (at(0), at(7));
        drop(reservation);
        assert!(line(base).is_none_or(|line| !line.contains("---p")));
        assert!(line(last).is_none_or(|line| !line.contains("---p")));
    }

    #[test]
    fn what_is_taken_or_outside_is_refused_and_stays_as_it_is() {
        let reservation = Reservation::reserve(4 * page()).expect("addresses");
        let (segment, _file) = Segment::create("weft-test", 2 * page()).expect("memory");
        let place = |offset| segment.place(0, 2 * page(), &reservation, offset);
        let placed = place(page()).expect("free");
        let refused = [0, 1, page(), 2 * page(), 3 * page(), 4 * page(), usize::MAX - page() + 1];
        for offset in refused {
            let length = 2 * page();
            let misplaced = SegmentError::Misplaced { offset, length, reserved: 4 * page() };
            assert_eq!(place(offset).err(), Some(misplaced), "{offset}");
        }
        segment.write(3, b"x", CopyMode::Plain);
        let mut seen = [0];
        placed.read(3, &mut seen);
        assert_eq!(&seen, b"x");
        drop(placed);
        let places = [0, 2 * page()].map(|offset| place(offset).expect("free again"));
        drop(reservation);
        places[1].read(3, &mut seen);
        assert_eq!(&seen, b"x", "a segment keeps the reservation");
    }

    #[test]
    fn a_mapping_that_fails_leaves_no_hole_and_replaces_nothing() {
        let reservation = Reservation::reserve(4 * page()).expect("addresses");
        let failed = || SegmentError::NotSealed;
        let at = |pages| reservation.base().map_addr(|base| base.saturating_add(pages * page()));
        // The kernel took the former pages away and failed then. Another test may be faster than
        // this one and map something into the hole, so there are three.
        let closed = (0..3).filter(|place| {
            let taken = reservation.take(place * page(), page(), |at| {
                // SAFETY: the page is that of the reservation.
                unsafe { rustix::mm::munmap(at.as_ptr().cast(), page()) }.expect("mapped");
                Err(failed())
            });
            assert_eq!(taken.err(), Some(failed()));
            let is_free = reservation.take(place * page(), page(), |_| Ok(())).is_ok();
            is_free && is_closed(at(*place))
        });
        assert!(closed.count() > 0, "the hole stays");
        // It failed and left the former pages.
        assert!(reservation.take(3 * page(), page(), |_| Err(failed())).is_err());
        let lost = reservation.take(3 * page(), page(), |_| Ok(()));
        assert!(matches!(lost, Err(SegmentError::Misplaced { .. })), "it is given up");
        let last = at(3);
        drop(reservation);
        assert!(is_closed(last), "what was given up is not unmapped");
    }

    #[test]
    fn a_segment_for_reading_is_placed_for_reading() {
        let reservation = Reservation::reserve(page()).expect("addresses");
        let (_segment, file) = Segment::create("weft-test", page()).expect("memory");
        let reading = Segment::open(file.as_fd(), page(), false).expect("sealed");
        let placed = reading.place(0, page(), &reservation, 0).expect("free");
        assert!(!placed.writable());
        assert!(line(placed.base()).is_some_and(|line| line.contains("r--s")));
    }
}
