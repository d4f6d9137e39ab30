//! One direction of a ring in a segment: its control words and its slots.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use weft_memory::{Block, Blocks, Segment, View};

use crate::ring::{RingMemory, SLOT_BYTES, SlotMemory};

/// A slot in a segment: the status word, then the payload.
pub type SlotBlock<'a> = Block<'a, SLOT_BYTES>;

const PAYLOAD_START: usize = 8;

impl SlotMemory for SlotBlock<'_> {
    #[inline]
    fn status(&self) -> &AtomicU64 {
        self.word64(0)
    }

    #[inline(always)]
    fn write_payload(&self, offset: usize, bytes: &[u8]) {
        Block::write(self, PAYLOAD_START + offset, bytes);
    }

    #[inline]
    fn read_payload(&self, offset: usize, target: &mut [u8]) {
        Block::read(self, PAYLOAD_START + offset, target);
    }

    #[inline]
    fn prefetch(&self, long: bool) {
        self.prefetch_for_writing(0);
        if long {
            self.prefetch_for_writing(64);
        }
    }
}

/// The control words of a direction. They are atomics, for which every bit pattern is valid.
///
/// # Safety
/// All fields must be atomics.
pub unsafe trait DirectionWords: Sync {
    /// How many messages the receiver took; written by the receiver.
    fn taken(&self) -> &AtomicU64;
}

/// One direction of a ring.
#[derive(Debug)]
pub struct Direction<W> {
    pub words: View<W>,
    slots: Blocks<SLOT_BYTES>,
}

impl<W: DirectionWords> Direction<W> {
    /// The direction whose control words and `depth` slots begin at these offsets of the segment.
    ///
    /// # Panics
    /// When the words or the slots leave the segment, or `depth` is not a power of two.
    pub fn new(segment: &Arc<Segment>, words: usize, slots: usize, depth: u32) -> Self {
        // SAFETY: the implementor of `DirectionWords` promises that all fields are atomics.
        let words = unsafe { View::new(segment, words) };
        Self { words, slots: Blocks::new(segment, slots, depth) }
    }
}

impl<W: DirectionWords> RingMemory for &Direction<W> {
    type Slot<'a>
        = SlotBlock<'a>
    where
        Self: 'a;

    #[inline]
    fn depth(&self) -> u64 {
        self.slots.count()
    }

    #[inline]
    fn slot(&self, number: u64) -> SlotBlock<'_> {
        self.slots.get(number)
    }

    #[inline]
    fn taken(&self) -> &AtomicU64 {
        self.words.taken()
    }
}
