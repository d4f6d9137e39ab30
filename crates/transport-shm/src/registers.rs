//! The register segment: written by its endpoint, read by the peers.
//!
//! ```text
//! 0      register file: Register::COUNT words of 64 bits
//! 4096   stamp of each key slot: KEYS_MAX words of 64 bits
//! ```
//!
//! # Invariants
//! - Peers hold a descriptor that can be mapped for reading only.
//! - A key is valid while the stamp of its slot holds the generation of the key.
//! - A peer's mapping for a key is valid while the stamp equals the one that the peer read before
//!   it resolved the key.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_fabric::Register;
use weft_memory::{Segment, SegmentError, View};

/// Keys that an endpoint can have granted at a time.
pub const KEYS_MAX: u16 = 1024;
const STAMPS_START: usize = 4096;
/// Bytes of the segment.
pub const BYTES: usize = size_of::<Words>();

/// A mapped register segment.
#[derive(Debug)]
pub struct Registers {
    words: View<Words>,
}

/// The shared words.
#[repr(C)]
struct Words {
    registers: [AtomicU64; STAMPS_START / 8],
    stamps: [StampWord; KEYS_MAX as usize],
}

impl Registers {
    /// Makes the segment of this endpoint. The descriptor is for peers and cannot be written
    /// through.
    ///
    /// # Errors
    /// [`SegmentError`].
    pub fn create() -> Result<(Self, OwnedFd), SegmentError> {
        let (segment, file) = Segment::create("weft-registers", BYTES)?;
        let shown = Segment::reopen_read_only(file.as_fd())?;
        Ok((Self::with_segment(segment), shown))
    }

    /// Maps the segment of a peer.
    ///
    /// # Errors
    /// [`SegmentError`] when the memory is not of the right kind and size.
    pub fn open(file: BorrowedFd<'_>) -> Result<Self, SegmentError> {
        Ok(Self::with_segment(Segment::open(file, BYTES, false)?))
    }

    fn with_segment(segment: Segment) -> Self {
        // SAFETY: Words consists of atomics, for which every bit pattern is valid.
        Self { words: unsafe { View::new(&Arc::new(segment), 0) } }
    }

    #[inline]
    fn word(&self, register: Register) -> &AtomicU64 {
        &self.words.registers[register.index()]
    }

    /// The value of a register.
    #[inline]
    #[must_use]
    pub fn value(&self, register: Register) -> u64 {
        self.word(register).load(Ordering::Relaxed)
    }

    /// Sets a register of this endpoint.
    #[inline]
    pub fn set(&self, register: Register, value: u64) {
        self.word(register).store(value, Ordering::Relaxed);
    }

    /// Adds to a counter of this endpoint. Only this endpoint writes its counters.
    #[inline]
    pub fn count(&self, register: Register, by: u64) {
        let word = self.word(register);
        word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }

    /// The stamp of a key slot.
    ///
    /// # Panics
    /// When `slot` is not below [`KEYS_MAX`].
    #[inline]
    #[must_use]
    pub fn stamp(&self, slot: u16) -> Stamp {
        self.stamp_word(slot).stamp()
    }

    /// The word with the stamp of a key slot.
    ///
    /// # Panics
    /// When `slot` is not below [`KEYS_MAX`].
    #[inline]
    #[must_use]
    pub fn stamp_word(&self, slot: u16) -> &StampWord {
        &self.words.stamps[usize::from(slot)]
    }

    /// Sets the stamp of a key slot of this endpoint.
    ///
    /// # Panics
    /// When `slot` is not below [`KEYS_MAX`].
    pub fn set_stamp(&self, slot: u16, stamp: Stamp) {
        self.words.stamps[usize::from(slot)].0.store(stamp.0, Ordering::Release);
    }
}

/// The stamp of a key slot in shared memory.
#[derive(Debug)]
#[repr(transparent)]
pub struct StampWord(AtomicU64);

impl StampWord {
    /// The stamp.
    #[inline]
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        Stamp(self.0.load(Ordering::Acquire))
    }
}

/// The word that an initiator compares before each operation, and again after a write. The low half
/// is the generation of the key in force; the high half counts how often the memory behind the key
/// was moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp(u64);

impl Stamp {
    /// The stamp of a key whose memory has not been moved.
    pub fn of(generation: u32) -> Self {
        Self(u64::from(generation))
    }

    /// The generation of the key in force.
    #[inline]
    pub const fn generation(self) -> u32 {
        let [a, b, c, d, ..] = self.0.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// The stamp after the memory was moved.
    pub const fn moved(self) -> Self {
        Self(self.0.wrapping_add(1 << 32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_read_what_the_owner_counts() {
        let (own, file) = Registers::create().expect("memory");
        let seen = Registers::open(file.as_fd()).expect("memory");
        own.count(Register::Puts, 2);
        own.count(Register::Puts, 3);
        own.set(Register::Scratch, 7);
        own.set_stamp(KEYS_MAX - 1, Stamp::of(9).moved());
        assert_eq!((seen.value(Register::Puts), seen.value(Register::Scratch)), (5, 7));
        assert_eq!(seen.stamp(KEYS_MAX - 1).generation(), 9);
        assert_ne!(seen.stamp(KEYS_MAX - 1), Stamp::of(9));
        assert!(Segment::open(file.as_fd(), BYTES, true).is_err(), "not for writing");
    }
}
