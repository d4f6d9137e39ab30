//! The register segment: written by its endpoint, read by the peers.
//!
//! ```text
//! 0      counters: Register::COUNT words of 64 bits
//! 120    atomics begun: one more than ended while there may be one under way
//! 128    address and value of a word of the owner's process, by which peers know the process
//! 144    the times of messages, puts and gets: histograms, in the order of Timed
//! 4096   stamp of each key slot: KEYS_MAX words of 64 bits
//! ```
//!
//! # Invariants
//! - Peers hold a descriptor that can be mapped for reading only.
//! - A key is valid while the stamp of its slot holds the generation of the key.
//! - A peer's mapping for a key is valid while the stamp equals the one that the peer read before
//!   it resolved the key.
//! - An initiator that writes to memory of a peer announces it ([`Registers::begin_put`],
//!   [`Registers::begin_atomic`]), looks at the stamp of the key, writes, looks at the stamp again,
//!   and ends the operation or gives it up ([`Registers::give_up`]).
//! - The word of [`Register::PutBytes`] holds the bytes from bit 1 on. Its bit 0 is the lowest bit
//!   of the number of puts that have ended, while [`Register::Puts`] counts those that were begun.
//!   So an announcement costs no store of its own: a put of 8 bytes is a handful of stores.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weft_broker::counts::{Counts, TIMES_AT};
use weft_fabric::{Register, Timed};
use weft_memory::{Segment, SegmentError, View};
use weft_metrics::{Histogram, WORDS};
use weft_sync::fence;

pub use weft_wire::endpoint_control::KEYS_MAX;
const STAMPS_START: usize = 4096;
/// Bytes of the segment.
pub const BYTES: usize = size_of::<Words>();

const _: () = assert!(std::mem::offset_of!(Words, times) == TIMES_AT);
const _: () = assert!(std::mem::offset_of!(Words, stamps) == STAMPS_START);

/// How long it is to the next operation that is timed.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// Puts and gets that look their key up.
    pub operations: u32,
    /// Messages that do not take the shortest way.
    pub messages: u32,
}

impl Default for Sampling {
    /// The first ones meet memory that nobody touched yet.
    fn default() -> Self {
        Self { operations: 2, messages: 2 }
    }
}

/// A mapped register segment.
#[derive(Debug)]
pub struct Registers {
    words: View<Words>,
}

/// The shared words.
#[repr(C)]
struct Words {
    registers: [AtomicU64; Register::COUNT],
    atomics_begun: AtomicU64,
    sign: [AtomicU64; 2],
    times: [Histogram; Timed::ALL.len()],
    reserved: [AtomicU64; (STAMPS_START - TIMES_AT) / 8 - WORDS * Timed::ALL.len()],
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
        let word = self.word(register).load(Ordering::Relaxed);
        if register == Register::PutBytes { word >> 1 } else { word }
    }

    /// Shows peers the address and the value of a word of this process, so that they know it by its
    /// memory.
    pub fn show_sign(&self, address: u64, value: u64) {
        self.words.sign[0].store(address, Ordering::Relaxed);
        self.words.sign[1].store(value, Ordering::Relaxed);
    }

    /// The sign that the owner showed: an address and the value of the word there.
    #[must_use]
    pub fn sign(&self) -> (u64, u64) {
        let [address, value] = &self.words.sign;
        (address.load(Ordering::Relaxed), value.load(Ordering::Relaxed))
    }

    /// Adds to a counter of this endpoint. Only this endpoint writes its counters.
    #[inline]
    pub fn count(&self, register: Register, by: u64) {
        let word = self.word(register);
        word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }

    /// Notes how long an operation of this endpoint took.
    #[cold]
    pub fn took(&self, what: Timed, time: Duration) {
        self.words.times[what as usize].record(time);
    }

    /// Announces that this endpoint may write to memory of a peer from here on: counts a put. The
    /// caller looks at the stamp only afterwards; a fence in between is the owner's, or that of
    /// [`Mapped::serves`](crate::memory::Mapped::serves).
    #[inline(always)]
    pub fn begin_put(&self) -> BegunPut {
        self.count(Register::Puts, 1);
        fence::light(false);
        BegunPut(())
    }

    /// A put of `length` bytes has ended: everything is written.
    #[inline(always)]
    pub fn end_put(&self, BegunPut(()): BegunPut, length: u64) {
        let word = self.word(Register::PutBytes);
        let ended = word.load(Ordering::Relaxed).wrapping_add(length << 1) ^ 1;
        word.store(ended, Ordering::Release);
    }

    /// As [`Registers::begin_put`], for an atomic.
    #[inline(always)]
    pub fn begin_atomic(&self) -> BegunAtomic<'_> {
        let words = &*self.words;
        let ended = &words.registers[Register::Atomics.index()];
        let number = ended.load(Ordering::Relaxed).wrapping_add(1);
        words.atomics_begun.store(number, Ordering::Relaxed);
        fence::light(false);
        BegunAtomic { number, ended }
    }

    /// All that was begun is over, and was not done.
    pub fn give_up(&self) {
        if let [Some(put), _] = self.inside() {
            self.word(Register::Puts).store(put.wrapping_sub(1), Ordering::Release);
        }
        let ended = self.word(Register::Atomics).load(Ordering::Relaxed);
        self.words.atomics_begun.store(ended, Ordering::Release);
    }

    /// The numbers of the put and of the atomic that may be writing now.
    fn inside(&self) -> [Option<u64>; 2] {
        let put = self.word(Register::Puts).load(Ordering::Acquire);
        let puts_ended = self.word(Register::PutBytes).load(Ordering::Acquire);
        let atomic = self.words.atomics_begun.load(Ordering::Acquire);
        let atomics_ended = self.word(Register::Atomics).load(Ordering::Acquire);
        [
            ((put ^ puts_ended) & 1 != 0).then_some(put),
            (atomic == atomics_ended.wrapping_add(1)).then_some(atomic),
        ]
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

    /// As [`Registers::stamp_word`], for those who look at one stamp often.
    ///
    /// # Panics
    /// When `slot` is not below [`KEYS_MAX`].
    #[must_use]
    pub fn stamp_view(&self, slot: u16) -> View<StampWord> {
        assert!(slot < KEYS_MAX, "there is no key slot {slot}");
        let place = STAMPS_START + usize::from(slot) * size_of::<StampWord>();
        // SAFETY: a StampWord is an atomic, for which every bit pattern is valid.
        unsafe { View::new(self.words.segment(), place) }
    }

    /// Sets the stamp of a key slot of this endpoint.
    ///
    /// # Panics
    /// When `slot` is not below [`KEYS_MAX`].
    pub fn set_stamp(&self, slot: u16, stamp: Stamp) {
        self.words.stamps[usize::from(slot)].0.store(stamp.0, Ordering::Release);
    }
}

/// A put that was announced.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct BegunPut(());

/// An atomic that was announced, by its number.
// It has the place of the word, which need not be looked up again behind the atomic.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct BegunAtomic<'a> {
    number: u64,
    ended: &'a AtomicU64,
}

impl BegunAtomic<'_> {
    /// The atomic has ended: counts it.
    #[inline(always)]
    pub fn end(self) {
        self.ended.store(self.number, Ordering::Release);
    }
}

/// A peer that announced a write, and may not have ended it yet.
#[derive(Debug)]
pub struct Inside {
    registers: Arc<Registers>,
    numbers: [Option<u64>; 2],
}

impl Inside {
    /// The peer with these registers, if it may be writing now.
    pub fn of(registers: &Arc<Registers>) -> Option<Self> {
        let numbers = registers.inside();
        let registers = Arc::clone(registers);
        numbers.iter().any(Option::is_some).then_some(Self { registers, numbers })
    }

    /// Whether the write of then may still be under way. Later ones are none of it.
    pub fn lasts(&self) -> bool {
        let now = self.registers.inside();
        now.iter().zip(&self.numbers).any(|(now, then)| then.is_some() && now == then)
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

/// The counters in the register segment of an endpoint; `None` if it is too short. For those who
/// map none of a program's memory.
#[must_use]
pub fn read_registers(file: BorrowedFd<'_>) -> Option<Counts> {
    let mut counts = Counts::read(file)?;
    counts.values[Register::PutBytes.index()] >>= 1;
    Some(counts)
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
        let stamp = Stamp::of(9, u32::MAX, Phase::Closing);
        own.set_stamp(KEYS_MAX - 1, stamp);
        assert_eq!(seen.value(Register::Puts), 5);
        own.took(Timed::Get, Duration::from_micros(3));
        let Counts { values, times } = read_registers(file.as_fd()).expect("long enough");
        assert_eq!((values[Register::Puts.index()], values[Register::Gets.index()]), (5, 0));
        let count = |what: Timed| times[what as usize].count();
        assert_eq!((count(Timed::Message), count(Timed::Put), count(Timed::Get)), (0, 0, 1));
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
    fn a_writer_is_inside_until_its_operation_is_counted_or_given_up() {
        let (own, file) = Registers::create().expect("memory");
        let seen = Arc::new(Registers::open(file.as_fd()).expect("memory"));
        assert!(Inside::of(&seen).is_none());
        let begun = own.begin_put();
        let inside = Inside::of(&seen).expect("it announced a put");
        assert!(inside.lasts());
        own.end_put(begun, 8);
        assert_eq!(seen.value(Register::PutBytes), 8);
        assert!(!inside.lasts() && seen.value(Register::Puts) == 1);
        let _ = own.begin_put();
        assert!(!inside.lasts() && Inside::of(&seen).is_some(), "another one");
        own.give_up();
        assert!(Inside::of(&seen).is_none() && seen.value(Register::Puts) == 1);
        let begun = own.begin_atomic();
        let inside = Inside::of(&seen).expect("it announced an atomic");
        begun.end();
        assert!(!inside.lasts());
    }
}
