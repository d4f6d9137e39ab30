//! Addresses of memory that has ended, kept because somebody may still write to them.

use crate::memory::Memory;
use crate::segment::Segment;

/// Addresses without an owner. What is written there meets pages of nobody, and what is read there
/// was nobody's. At the end of this value the addresses are free.
///
/// They take memory only when something is written, but count for `RLIMIT_AS`.
#[derive(Debug)]
pub struct Husk {
    segment: Segment,
}

impl Husk {
    /// The first address.
    #[must_use]
    pub fn start(&self) -> usize {
        self.segment.base().addr().get()
    }

    /// Bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.segment.length()
    }

    /// Whether the addresses are the caller's, to whom they were left when the memory was made of
    /// them ([`Memory::adopt`], [`Memory::in_place`]). Then the pages stay as they are, too.
    #[must_use]
    pub fn is_of_somebody_else(&self) -> bool {
        self.segment.is_kept()
    }
}

impl Memory {
    /// Ends the memory and keeps its addresses, if this is its last clone. Its pages and its
    /// descriptor go back to the system.
    ///
    /// # Errors
    /// The memory itself, when there is another clone.
    pub fn into_husk(self) -> Result<Husk, Self> {
        let mut segment = self.into_segment()?;
        segment.hollow();
        Ok(Husk { segment })
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::{CopyMode, MemoryOptions, Reservation};

    fn line(start: usize) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("proc is mounted");
        let has = |line: &&str| {
            let (from, rest) = line.split_once('-').expect("a range");
            let to = rest.split(' ').next().expect("a range");
            let [from, to] = [from, to].map(|at| usize::from_str_radix(at, 16).expect("hex"));
            (from..to).contains(&start)
        };
        maps.lines().find(has).map(str::to_owned)
    }

    #[test]
    fn the_last_clone_leaves_its_addresses_to_nobody() {
        let memory = Memory::fresh(MemoryOptions::bytes(3 * 4096 + 5)).expect("memory");
        memory.segment().write(0, b"secret", CopyMode::Plain);
        let start = memory.segment().base();
        let file = std::sync::Arc::downgrade(&memory.file().expect("a memfd holds it"));
        let other = memory.clone();
        let memory = memory.into_husk().expect_err("there is another clone");
        drop(other);
        let husk = memory.into_husk().expect("it is the last one");
        assert_eq!((husk.start(), husk.length()), (start.addr().get(), 3 * 4096 + 5));
        assert!(file.upgrade().is_none() && !husk.is_of_somebody_else());
        // SAFETY: the husk keeps the address, and nobody else knows it.
        let late = unsafe {
            let seen = start.as_ptr().cast::<[u8; 6]>().read();
            start.as_ptr().write(7);
            seen
        };
        assert_eq!(late, [0; 6], "the bytes are gone");
        let is_named = |line: String| line.contains("weft-region");
        assert!(!line(husk.start()).is_none_or(is_named));
    }

    #[test]
    fn a_husk_in_a_reservation_takes_its_range() {
        let reservation = Reservation::reserve(2 * 4096).expect("addresses");
        let fresh = || Memory::fresh_at(MemoryOptions::bytes(4096), &reservation, 0);
        let husk = fresh().expect("free").into_husk().expect("the last clone");
        assert_eq!(husk.start(), reservation.base().addr().get());
        assert!(fresh().is_err());
        drop(husk);
        assert!(fresh().is_ok());
    }

    #[test]
    fn memory_of_somebody_else_stays_as_it_is() {
        let mut bytes = *b"0123456789";
        let base = std::ptr::NonNull::from(&mut bytes[3]);
        // SAFETY: the array outlives the memory, and nothing refers to it until that is dropped.
        let memory = unsafe { Memory::in_place(base, 5) }.expect("some bytes");
        let husk = memory.into_husk().expect("the last clone");
        assert!(husk.is_of_somebody_else());
        drop(husk);
        assert_eq!(&bytes, b"0123456789");
    }
}
