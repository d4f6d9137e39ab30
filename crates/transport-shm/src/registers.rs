//! The register segment: written by its endpoint, read by the peers.
//!
//! ```text
//! 0      register file: Register::COUNT words of 64 bits
//! 128    1 while this endpoint may be writing to memory of a peer
//! 4096   stamp of each key slot: KEYS_MAX words of 64 bits
//! ```
//!
//! # Invariants
//! - Peers hold a descriptor that can be mapped for reading only.
//! - A key is valid while the stamp of its slot holds the generation of the key.
//! - A peer's mapping for a key is valid while the stamp equals the one that the peer read before
//!   it resolved the key.
//! - Whoever writes to memory of a peer announces it ([`Registers::enter`]), looks at the stamp of
//!   the key, writes, looks at the stamp again, and withdraws the announcement
//!   ([`Registers::leave`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_fabric::Register;
use weft_memory::{Segment, SegmentError, View};
use weft_sync::fence;

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
    registers: [AtomicU64; Register::COUNT],
    inside: AtomicU64,
    reserved: [AtomicU64; STAMPS_START / 8 - Register::COUNT - 1],
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
        // Whoever sees that an operation was counted sees what it wrote: `Inside` relies on it.
        word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Release);
    }

    /// Announces that this endpoint may write to memory of a peer from here on. The caller looks at
    /// the stamp only afterwards; a fence in between is the owner's, or that of
    /// [`Mapped::serves`](crate::memory::Mapped::serves).
    #[inline(always)]
    pub fn enter(&self) {
        self.words.inside.store(1, Ordering::Relaxed);
        fence::light(false);
    }

    /// Withdraws the announcement: everything was written.
    #[inline(always)]
    pub fn leave(&self) {
        self.words.inside.store(0, Ordering::Release);
    }

    /// How many operations this endpoint has ended, if one may be writing now.
    fn inside(&self) -> Option<u64> {
        if self.words.inside.load(Ordering::Acquire) == 0 {
            return None;
        }
        let ended = [Register::Puts, Register::Atomics, Register::Errors, Register::Refused];
        let ended = ended.map(|register| self.word(register).load(Ordering::Acquire));
        Some(ended.into_iter().fold(0, u64::wrapping_add))
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

/// A peer that announced a write, and may not have ended it yet.
#[derive(Debug)]
pub struct Inside {
    registers: Arc<Registers>,
    ended: u64,
}

impl Inside {
    /// The peer with these registers, if it may be writing now.
    pub fn of(registers: &Arc<Registers>) -> Option<Self> {
        registers.inside().map(|ended| Self { registers: Arc::clone(registers), ended })
    }

    /// Whether the write of then may still be under way. Later ones are none of it.
    pub fn lasts(&self) -> bool {
        self.registers.inside() == Some(self.ended)
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

/// How far a move of the memory behind a key is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Phase {
    /// There is none: the key serves.
    Still = 0,
    /// No operation begins. The owner waits for those that began: they still count.
    Closing = 1,
    /// The memory is left: an operation that has not ended has failed.
    Left = 2,
}

/// The word that an initiator compares before each operation, and again after a write. Low to high:
/// 32 bits with the generation of the key in force, 2 bits with the phase of a move, 30 bits that
/// count the moves of the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp(u64);

impl Stamp {
    /// A stamp that no key has: there is no such phase.
    pub const NEVER: Self = Self(u64::MAX);

    /// The stamp of a key whose memory was moved `moves` times before.
    pub const fn of(generation: u32, moves: u32, phase: Phase) -> Self {
        Self(generation as u64 | (phase as u64) << 32 | (moves as u64) << 34)
    }

    /// The generation of the key in force.
    #[inline]
    pub const fn generation(self) -> u32 {
        let [a, b, c, d, ..] = self.0.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// Whether a move is under way.
    pub const fn is_moving(self) -> bool {
        let phase = self.0 >> 32 & 0b11;
        phase == Phase::Closing as u64 || phase == Phase::Left as u64
    }

    /// Whether `self` is the stamp `still` with a move that has just begun: what was written before
    /// this was seen is in the memory.
    pub const fn is_closing(self, still: Self) -> bool {
        self.0 == still.0 | (Phase::Closing as u64) << 32
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
        let stamp = Stamp::of(9, u32::MAX, Phase::Closing);
        own.set_stamp(KEYS_MAX - 1, stamp);
        assert_eq!((seen.value(Register::Puts), seen.value(Register::Scratch)), (5, 7));
        assert_eq!(seen.stamp(KEYS_MAX - 1), stamp);
        assert!(Segment::open(file.as_fd(), BYTES, true).is_err(), "not for writing");
    }

    #[test]
    fn a_stamp_tells_the_phases_of_a_move_apart() {
        let [still, closing, left] =
            [Phase::Still, Phase::Closing, Phase::Left].map(|phase| Stamp::of(u32::MAX, 7, phase));
        assert!(!still.is_moving() && closing.is_moving() && left.is_moving());
        assert!(closing.is_closing(still) && !left.is_closing(still) && !still.is_closing(still));
        for other in [Stamp::of(u32::MAX, 8, Phase::Still), Stamp::of(0, 7, Phase::Still)] {
            assert!(other != still && !closing.is_closing(other));
        }
        assert_eq!(left.generation(), u32::MAX);
    }

    #[test]
    fn a_writer_is_inside_until_it_leaves_or_ends_an_operation() {
        let (own, file) = Registers::create().expect("memory");
        let seen = Arc::new(Registers::open(file.as_fd()).expect("memory"));
        assert!(Inside::of(&seen).is_none());
        own.enter();
        let inside = Inside::of(&seen).expect("it announced a write");
        assert!(inside.lasts());
        own.leave();
        assert!(!inside.lasts());
        own.enter();
        let inside = Inside::of(&seen).expect("it announced a write");
        own.count(Register::Atomics, 1);
        assert!(!inside.lasts(), "another operation is another write");
    }
}
