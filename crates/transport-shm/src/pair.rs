//! The memory of a pair: two rings, one in each direction, mapped by the two ends and nobody else.
//!
//! ```text
//! 0      layout: magic, version, slots          (written once, read once)
//! 512    words of direction 0                   see `Words`
//! 1024   words of direction 1
//! 4096   slots of direction 0, slots of direction 1
//! ```
//!
//! The end that connects first makes the memory and is side 0: it sends in direction 0. The other
//! end gets it from the broker and needs not take part: messages may be in the ring before it
//! looks. An endpoint that connects to itself sends and receives in direction 0.
//!
//! # Invariants
//! - The layout is checked against the size of the segment when the pair is opened and never read
//!   again.
//! - Both ends can write all of it. Positions are kept in private cursors.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_memory::{CopyMode, Segment, SegmentError};

use crate::ring::{PAYLOAD_BYTES, Ring, RingMemory, SLOT_BYTES};

const MAGIC: u64 = u64::from_le_bytes(*b"weftpair");
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 4096;
const WORDS_START: usize = 512;
const WORDS_BYTES: usize = 512;

/// Slots of a ring, in each direction.
pub const SLOTS: std::ops::RangeInclusive<u32> = 16..=65_536;

/// The shared words of one direction. Each group lies 128 bytes apart, since processors fetch
/// lines in twos.
#[derive(Debug)]
#[repr(C, align(128))]
struct Words {
    /// Written by the receiver: messages taken.
    taken: AtomicU64,
    taken_pad: [AtomicU64; 15],
    /// Written by the receiver, claimed by the sender: ring when there is a message.
    data_attention: AtomicU32,
    data_pad: [AtomicU32; 31],
    /// Written by the sender, claimed by the receiver: ring when there is room.
    room_attention: AtomicU32,
    room_pad: [AtomicU32; 31],
}

/// One end of a pair.
#[derive(Debug)]
pub struct Pair {
    segment: Segment,
    slots: u32,
    /// The direction this end sends in.
    sends: usize,
    /// The direction this end receives in.
    receives: usize,
}

impl Pair {
    /// Makes a pair and returns its side 0 and the descriptor for side 1.
    ///
    /// # Errors
    /// [`SegmentError`].
    ///
    /// # Panics
    /// When `slots` is not a power of two inside [`SLOTS`].
    pub fn create(slots: u32) -> Result<(Self, OwnedFd), SegmentError> {
        assert!(slots_are_valid(slots), "{slots} slots are not a ring");
        let (segment, file) = Segment::create("weft-pair", bytes(slots))?;
        segment.word32(8).store(VERSION, Ordering::Relaxed);
        segment.word32(12).store(slots, Ordering::Relaxed);
        segment.word64(0).store(MAGIC, Ordering::Release);
        Ok((Self { segment, slots, sends: 0, receives: 1 }, file))
    }

    /// The pair of an endpoint with itself.
    ///
    /// # Errors
    /// [`SegmentError`].
    pub fn with_itself(slots: u32) -> Result<Self, SegmentError> {
        let (pair, _file) = Self::create(slots)?;
        Ok(Self { receives: 0, ..pair })
    }

    /// Opens side 1 of a pair that the peer made; `None` when it is not one of ours.
    #[must_use]
    pub fn open(file: BorrowedFd<'_>) -> Option<Self> {
        let status = rustix::fs::fstat(file).ok()?;
        let length = usize::try_from(status.st_size).ok()?;
        if length < HEADER_BYTES || length > bytes(*SLOTS.end()) {
            return None;
        }
        let segment = Segment::open(file, length, true).ok()?;
        let slots = segment.word32(12).load(Ordering::Relaxed);
        let ours = segment.word64(0).load(Ordering::Acquire) == MAGIC
            && segment.word32(8).load(Ordering::Relaxed) == VERSION;
        if !ours || !slots_are_valid(slots) || bytes(slots) != length {
            return None;
        }
        Some(Self { segment, slots, sends: 1, receives: 0 })
    }

    #[inline]
    fn words(&self, direction: usize) -> &Words {
        // SAFETY: Words is made of atomics, for which every bit pattern is valid.
        unsafe { self.segment.shared::<Words>(WORDS_START + direction * WORDS_BYTES) }
    }

    /// The ring this end sends in.
    #[inline]
    #[must_use]
    pub fn outgoing(&self) -> Ring<Direction<'_>> {
        Ring::new(Direction { pair: self, direction: self.sends })
    }

    /// The ring this end receives from.
    #[inline]
    #[must_use]
    pub fn incoming(&self) -> Ring<Direction<'_>> {
        Ring::new(Direction { pair: self, direction: self.receives })
    }

    /// The peer's word for messages that this end sends.
    #[inline]
    #[must_use]
    pub fn peer_data(&self) -> &AtomicU32 {
        &self.words(self.sends).data_attention
    }

    /// The peer's word for room that this end gives.
    #[inline]
    #[must_use]
    pub fn peer_room(&self) -> &AtomicU32 {
        &self.words(self.receives).room_attention
    }

    /// The own word for messages.
    #[inline]
    #[must_use]
    pub fn own_data(&self) -> &AtomicU32 {
        &self.words(self.receives).data_attention
    }

    /// The own word for room.
    #[inline]
    #[must_use]
    pub fn own_room(&self) -> &AtomicU32 {
        &self.words(self.sends).room_attention
    }

    /// Writes a word anywhere in the memory, as a hostile peer could.
    #[doc(hidden)]
    pub fn scribble(&self, offset: usize, value: u32) {
        let offset = offset % (self.segment.length() / 4) * 4;
        self.segment.word32(offset).store(value, Ordering::Relaxed);
    }
}

fn slots_are_valid(slots: u32) -> bool {
    slots.is_power_of_two() && SLOTS.contains(&slots)
}

const fn bytes(slots: u32) -> usize {
    HEADER_BYTES + 2 * slots as usize * SLOT_BYTES
}

/// One direction of a pair.
#[derive(Clone, Copy, Debug)]
pub struct Direction<'a> {
    pair: &'a Pair,
    direction: usize,
}

impl Direction<'_> {
    #[inline]
    fn slot(&self, index: u64) -> usize {
        let slots = self.pair.slots as usize;
        // The mask holds for every index, so that the compiler need not look at it again.
        let index = usize::try_from(index & (slots as u64 - 1)).unwrap_or(0);
        HEADER_BYTES + (self.direction * slots + index) * SLOT_BYTES
    }
}

impl RingMemory for Direction<'_> {
    #[inline]
    fn depth(&self) -> u64 {
        u64::from(self.pair.slots)
    }

    #[inline]
    fn status(&self, index: u64) -> &AtomicU64 {
        self.pair.segment.word64(self.slot(index))
    }

    #[inline]
    fn taken(&self) -> &AtomicU64 {
        &self.pair.words(self.direction).taken
    }

    #[inline]
    fn prefetch(&self, index: u64, long: bool) {
        let slot = self.slot(index);
        self.pair.segment.prefetch_for_writing(slot);
        if long {
            self.pair.segment.prefetch_for_writing(slot + 64);
        }
    }

    #[inline]
    fn write(&self, index: u64, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= PAYLOAD_BYTES, "a message does not fit its slot");
        self.pair.segment.write(self.slot(index) + 8 + offset, bytes, CopyMode::Plain);
    }

    #[inline]
    fn read(&self, index: u64, offset: usize, target: &mut [u8]) {
        self.pair.segment.read(self.slot(index) + 8 + offset, target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use weft_fabric::{ReceiveCursor, SendCursor};

    #[test]
    fn both_directions_carry_their_own_messages() {
        let (one, file) = Pair::create(16).expect("memory");
        let two = Pair::open(file.as_fd()).expect("a pair");
        for (from, to) in [(&one, &two), (&two, &one)] {
            let (mut send, receive) = (SendCursor::default(), ReceiveCursor::default());
            assert_eq!(to.incoming().peek(&receive), Ok(None));
            from.outgoing().send(&mut send, 7, 3, &[b"hello"]).expect("room");
            let status = to.incoming().peek(&receive).expect("sane").expect("sent");
            assert_eq!((status.tag, status.flags, status.length), (7, 3, 5));
        }
    }

    #[test]
    fn forged_layouts_are_refused() {
        let (one, file) = Pair::create(16).expect("memory");
        for (offset, value) in [(0, 1), (8, 2), (12, 32), (12, 15), (12, 0)] {
            let word = one.segment.word32(offset);
            let former = word.swap(value, Ordering::Relaxed);
            assert!(Pair::open(file.as_fd()).is_none(), "{offset} {value}");
            word.store(former, Ordering::Relaxed);
        }
        assert!(Pair::open(file.as_fd()).is_some());
    }
}
