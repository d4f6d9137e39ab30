//! Equal blocks of a segment that were checked once: the slots of a ring.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::copy::{self, CopyMode};
use crate::segment::Segment;

/// A power of two of blocks of `N` bytes in a row, in a segment that they keep mapped.
///
/// JUSTIFICATION: as for [`crate::View`]; a message is a word and some bytes of one block.
#[derive(Debug)]
pub struct Blocks<const N: usize> {
    first: NonNull<u8>,
    mask: u64,
    // The address stays good as long as this is there.
    _segment: Arc<Segment>,
}

// SAFETY: access to the bytes is by atomics and copies that allow for others writing at the same
// time, and the segment may be sent and shared.
unsafe impl<const N: usize> Send for Blocks<N> {}
// SAFETY: as for Send.
unsafe impl<const N: usize> Sync for Blocks<N> {}

impl<const N: usize> Blocks<N> {
    /// `count` blocks from `offset` on.
    ///
    /// # Panics
    /// When `count` is no power of two, the blocks leave the segment or are misaligned, or the
    /// segment is read-only.
    #[must_use]
    pub fn new(segment: &Arc<Segment>, offset: usize, count: u32) -> Self {
        const { assert!(N.is_multiple_of(8), "a block is a number of words") };
        assert!(count.is_power_of_two(), "{count} blocks are no power of two");
        assert!(segment.writable(), "blocks are written");
        let first = segment.bytes(offset, N * count as usize);
        assert!(offset.is_multiple_of(8), "blocks are aligned");
        Self { first, mask: u64::from(count) - 1, _segment: Arc::clone(segment) }
    }

    /// How many there are.
    #[inline]
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.mask + 1
    }

    /// A block, counted round and round.
    #[inline]
    #[must_use]
    pub fn get(&self, number: u64) -> Block<'_, N> {
        // Below the count, which is 32 bits, so nothing is lost.
        let place = usize::try_from(number & self.mask).unwrap_or(0);
        // SAFETY: `new` made sure of every block up to the mask.
        let base = unsafe { self.first.add(place * N) };
        Block { base, segment: PhantomData }
    }
}

/// `N` bytes inside a segment, aligned to 8.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a, const N: usize> {
    base: NonNull<u8>,
    segment: PhantomData<&'a Segment>,
}

impl<'a, const N: usize> Block<'a, N> {
    /// The word of 64 bits at `offset`.
    ///
    /// # Panics
    /// When it leaves the block or is misaligned.
    #[inline]
    #[must_use]
    pub fn word64(&self, offset: usize) -> &'a AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < N, "no word of the block");
        // SAFETY: inside the block, whose start and offset are aligned to 8; N is a number of
        // words, so a word that begins inside ends inside. Atomics allow for others writing it.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// Copies bytes in; they are visible before any later store of this thread.
    ///
    /// # Panics
    /// When the range leaves the block.
    #[inline]
    pub fn write(&self, offset: usize, source: &[u8]) {
        assert!(offset <= N && source.len() <= N - offset, "the bytes leave the block");
        // SAFETY: the range lies inside the block, which is mapped for writing; a slice never
        // overlaps it, since no slice of a segment exists.
        unsafe {
            let target = self.base.as_ptr().add(offset);
            copy::copy(source.as_ptr(), target, source.len(), CopyMode::Plain);
        }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// When the range leaves the block.
    #[inline]
    pub fn read(&self, offset: usize, target: &mut [u8]) {
        assert!(offset <= N && target.len() <= N - offset, "the bytes leave the block");
        // SAFETY: as for `write`, the other way round.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.base.as_ptr().add(offset),
                target.as_mut_ptr(),
                target.len(),
            );
        }
    }

    /// Asks for the line at `offset` for writing, without waiting.
    #[inline]
    pub fn prefetch_for_writing(&self, offset: usize) {
        copy::prefetch_for_writing(self.base.as_ptr().wrapping_add(offset));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    fn segment() -> Arc<Segment> {
        Arc::new(Segment::create("weft-test", 4096).expect("memory").0)
    }

    #[test]
    fn blocks_are_those_parts_of_their_segment_round_and_round() {
        let segment = segment();
        let blocks = Blocks::<128>::new(&segment, 256, 4);
        blocks.get(5).word64(0).store(7, Ordering::Release);
        blocks.get(5).write(8, b"hello");
        assert_eq!(segment.word64(256 + 128).load(Ordering::Acquire), 7);
        let mut seen = [0; 5];
        segment.read(256 + 136, &mut seen);
        assert_eq!(&seen, b"hello");
        blocks.get(u64::MAX - 2).read(8, &mut seen);
        assert_eq!((&seen, blocks.count()), (b"hello", 4));
    }

    #[test]
    #[should_panic(expected = "leave a segment")]
    fn blocks_do_not_leave_their_segment() {
        let _ = Blocks::<128>::new(&segment(), 4096 - 256 + 8, 2);
    }

    #[test]
    #[should_panic(expected = "leave the block")]
    fn bytes_do_not_leave_their_block() {
        Blocks::<128>::new(&segment(), 0, 2).get(0).write(120, &[0; 9]);
    }

    #[test]
    #[should_panic(expected = "aligned")]
    fn blocks_are_aligned() {
        let _ = Blocks::<128>::new(&segment(), 4, 2);
    }
}
