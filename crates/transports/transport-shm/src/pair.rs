//! The memory of a pair: two rings, one in each direction, mapped by its two ends only.
//!
//! ```text
//! 0      layout: magic, version, slots          (written once, read once)
//! 16     for captures alone: the VPIDs of the two ends, plus one, and slots in use
//! 512    words of direction 0                   see `Words`
//! 1024   words of direction 1
//! 4096   slots of direction 0, slots of direction 1
//! ```
//!
//! The end that connects first makes the memory and is side 0: it sends in direction 0. The other
//! end gets the memory from the broker. Messages may be in the ring before the other end maps it.
//! An endpoint that connects to itself sends and receives in direction 0.
//!
//! The memory has as many slots as the rings of the end that made it. The ends use as many of them
//! as the shorter rings of the two have: each knows how many the other has.
//!
//! # Invariants
//! - The layout is checked against the size of the segment when the pair is opened and never read
//!   again.
//! - Both ends can write the whole segment. Each end keeps its positions in private cursors.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_memory::{Segment, SegmentError};

use crate::ring::{Ring, SLOT_BYTES};
use crate::slot::{Direction, DirectionWords};

pub mod tap;

const MAGIC: u64 = u64::from_le_bytes(*b"weftpair");
const VERSION: u32 = 3;
const HEADER_BYTES: usize = 4096;
const WORDS_START: usize = 512;
const WORDS_BYTES: usize = 512;

/// Allowed numbers of slots of a ring.
pub const SLOTS: std::ops::RangeInclusive<u32> = 16..=65_536;

/// The shared words of one direction. Groups of words with different writers are 128 bytes apart,
/// because processors fetch cache lines in pairs.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Words {
    /// How many messages the receiver took; written by the receiver.
    taken: AtomicU64,
    taken_pad: [AtomicU64; 15],
    /// Armed by the receiver, claimed by the sender, which then rings for a message.
    data_attention: AtomicU32,
    data_pad: [AtomicU32; 31],
    /// Armed by the sender, claimed by the receiver, which then rings for room.
    room_attention: AtomicU32,
    room_pad: [AtomicU32; 31],
}

// SAFETY: all fields are atomics.
unsafe impl DirectionWords for Words {
    #[inline]
    fn taken(&self) -> &AtomicU64 {
        &self.taken
    }
}

/// One end of a pair.
#[derive(Debug)]
pub struct Pair {
    /// The direction in which this end sends.
    sends: Direction<Words>,
    /// The direction in which this end receives.
    receives: Direction<Words>,
}

/// The memory of a pair, for one of its ends.
#[derive(Debug)]
pub struct PairMemory {
    segment: Arc<Segment>,
    /// Slots of each ring.
    slots: u32,
    /// The directions in which the end sends and receives.
    sides: [usize; 2],
}

impl PairMemory {
    /// Makes a pair and returns its side 0 and the descriptor for side 1.
    ///
    /// # Errors
    /// [`SegmentError`].
    ///
    /// # Panics
    /// When `slots` is not a power of two inside [`SLOTS`].
    pub fn create(slots: u32) -> Result<(Self, OwnedFd), SegmentError> {
        let (segment, file) = Self::create_segment(slots)?;
        Ok((Self { segment: Arc::new(segment), slots, sides: [0, 1] }, file))
    }

    fn create_segment(slots: u32) -> Result<(Segment, OwnedFd), SegmentError> {
        assert!(slots_are_valid(slots), "a ring cannot have {slots} slots");
        let (segment, file) = Segment::create("weft-pair", bytes(slots))?;
        segment.word32(8).store(VERSION, Ordering::Relaxed);
        segment.word32(12).store(slots, Ordering::Relaxed);
        segment.word64(0).store(MAGIC, Ordering::Release);
        Ok((segment, file))
    }

    /// The pair of an endpoint with itself.
    ///
    /// # Errors
    /// [`SegmentError`].
    pub fn with_itself(slots: u32) -> Result<Self, SegmentError> {
        let (segment, _file) = Self::create_segment(slots)?;
        Ok(Self { segment: Arc::new(segment), slots, sides: [0, 0] })
    }

    /// Opens side 1 of a pair that the peer made; `None` when the memory is not a valid pair.
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
        Some(Self { segment: Arc::new(segment), slots, sides: [1, 0] })
    }

    /// Says whose pair this is, to those who look at it from beside ([`tap`]).
    pub fn label(&self, maker: u16, peer: u16) {
        self.segment.word32(16).store(u32::from(maker) + 1, Ordering::Relaxed);
        self.segment.word32(20).store(u32::from(peer) + 1, Ordering::Relaxed);
    }

    /// This end, when the rings of the other one have `slots`; `None` when that is not valid.
    #[must_use]
    pub fn end(&self, slots: u32) -> Option<Pair> {
        if !slots_are_valid(slots) {
            return None;
        }
        let depth = slots.min(self.slots);
        self.segment.word32(24).store(depth, Ordering::Relaxed);
        let direction = |number| {
            let first = HEADER_BYTES + number * self.slots as usize * SLOT_BYTES;
            Direction::new(&self.segment, WORDS_START + number * WORDS_BYTES, first, depth)
        };
        let [sends, receives] = self.sides;
        Some(Pair { sends: direction(sends), receives: direction(receives) })
    }
}

impl Pair {
    /// The ring in which this end sends.
    #[inline]
    #[must_use]
    pub fn outgoing(&self) -> Ring<&Direction<Words>> {
        Ring::new(&self.sends)
    }

    /// The ring from which this end receives.
    #[inline]
    #[must_use]
    pub fn incoming(&self) -> Ring<&Direction<Words>> {
        Ring::new(&self.receives)
    }

    /// The peer's attention word for messages that this end sends.
    #[inline]
    #[must_use]
    pub fn peer_data(&self) -> &AtomicU32 {
        &self.sends.words.data_attention
    }

    /// The peer's attention word for room that this end frees.
    #[inline]
    #[must_use]
    pub fn peer_room(&self) -> &AtomicU32 {
        &self.receives.words.room_attention
    }

    /// This end's attention word for messages.
    #[inline]
    #[must_use]
    pub fn own_data(&self) -> &AtomicU32 {
        &self.receives.words.data_attention
    }

    /// This end's attention word for room.
    #[inline]
    #[must_use]
    pub fn own_room(&self) -> &AtomicU32 {
        &self.sends.words.room_attention
    }

    /// Writes any word of the segment, as a hostile peer could.
    #[cfg(any(test, feature = "test-doors"))]
    pub fn scribble(&self, offset: usize, value: u32) {
        let segment = self.sends.words.segment();
        segment.word32(offset % (segment.length() / 4) * 4).store(value, Ordering::Relaxed);
    }
}

fn slots_are_valid(slots: u32) -> bool {
    slots.is_power_of_two() && SLOTS.contains(&slots)
}

const fn bytes(slots: u32) -> usize {
    HEADER_BYTES + 2 * slots as usize * SLOT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use weft_fabric::{ReceiveCursor, SendCursor};

    fn ends(made: u32, other: u32) -> [Pair; 2] {
        let (one, file) = PairMemory::create(made).expect("memory");
        let two = PairMemory::open(file.as_fd()).expect("a pair");
        [one, two].map(|memory| memory.end(other).expect("a valid number"))
    }

    #[test]
    fn each_direction_carries_its_own_messages() {
        let [one, two] = ends(16, 16);
        for (from, to) in [(&one, &two), (&two, &one)] {
            let (mut send, receive) = (SendCursor::default(), ReceiveCursor::default());
            assert_eq!(to.incoming().peek(&receive), Ok(None));
            from.outgoing().send(&mut send, 7, 3, &[b"hello"]).expect("room");
            let status = to.incoming().peek(&receive).expect("sane").expect("sent");
            assert_eq!((status.tag, status.flags, status.length), (7, 3, 5));
        }
    }

    #[test]
    fn the_shorter_rings_of_the_two_count() {
        for (made, other, depth) in [(64, 16, 16), (16, 64, 16), (32, 32, 32)] {
            let [one, two] = ends(made, other);
            for (from, to) in [(&one, &two), (&two, &one)] {
                let (mut send, mut receive) = (SendCursor::default(), ReceiveCursor::default());
                for _ in 0..3 {
                    for number in 0..depth {
                        assert_eq!(from.outgoing().send(&mut send, number, 0, &[]), Ok(()));
                    }
                    assert!(from.outgoing().send(&mut send, 0, 0, &[]).is_err(), "{made} {other}");
                    for number in 0..depth {
                        let status = to.incoming().peek(&receive).expect("sane").expect("sent");
                        assert_eq!(status.tag, number);
                        to.incoming().advance(&mut receive, false);
                    }
                }
            }
        }
        let (one, _file) = PairMemory::create(16).expect("memory");
        for slots in [0, 8, 17, 1 << 17, u32::MAX] {
            assert!(one.end(slots).is_none(), "{slots}");
        }
    }

    #[test]
    fn forged_layouts_are_refused() {
        let (one, file) = PairMemory::create(16).expect("memory");
        for (offset, value) in [(0, 1), (8, 1), (12, 32), (12, 15), (12, 0)] {
            let word = one.segment.word32(offset);
            let former = word.swap(value, Ordering::Relaxed);
            assert!(PairMemory::open(file.as_fd()).is_none(), "{offset} {value}");
            word.store(former, Ordering::Relaxed);
        }
        assert!(PairMemory::open(file.as_fd()).is_some());
    }
}
