//! Blocks of equal size in a segment, whose bounds are checked once: the slots of a ring.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::copy::{self, CopyMode};
use crate::segment::Segment;

/// An array of blocks of `N` bytes in a segment, which it keeps mapped. The number of blocks is a
/// power of two.
///
/// JUSTIFICATION: as for [`crate::View`]; a message is a word and some bytes of one block.
#[derive(Debug)]
pub struct Blocks<const N: usize> {
    first: NonNull<u8>,
    mask: u64,
    // Keeps the mapping, and so the address, valid.
    _segment: Arc<Segment>,
}

// SAFETY: the bytes are accessed only by atomics and by copies that tolerate concurrent writers,
// and the segment is `Send` and `Sync`.
unsafe impl<const N: usize> Send for Blocks<N> {}
// SAFETY: as for Send.
unsafe impl<const N: usize> Sync for Blocks<N> {}

impl<const N: usize> Blocks<N> {
    /// The `count` blocks from `offset` of `segment` on.
    ///
    /// # Panics
    /// When `count` is no power of two, the blocks are outside the segment or misaligned, or the
    /// segment is read-only.
    #[must_use]
    pub fn new(segment: &Arc<Segment>, offset: usize, count: u32) -> Self {
        const { assert!(N.is_multiple_of(8), "a block consists of whole words") };
        assert!(count.is_power_of_two(), "{count} blocks are no power of two");
        assert!(segment.writable(), "a read-only segment has no blocks");
        let first = segment.bytes(offset, N * count as usize);
        assert!(offset.is_multiple_of(8), "blocks are aligned");
        Self { first, mask: u64::from(count) - 1, _segment: Arc::clone(segment) }
    }

    /// The number of blocks.
    #[inline]
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.mask + 1
    }

    /// Block `number` modulo the number of blocks.
    #[inline]
    #[must_use]
    pub fn get(&self, number: u64) -> Block<'_, N> {
        // The mask is less than 2^32, so the conversion cannot fail.
        let index = usize::try_from(number & self.mask).unwrap_or(0);
        // SAFETY: `new` checked that every block up to the mask is inside the segment.
        let base = unsafe { self.first.add(index * N) };
        Block { base, segment: PhantomData }
    }
}

/// A block: `N` bytes inside a segment, aligned to 8.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a, const N: usize> {
    base: NonNull<u8>,
    segment: PhantomData<&'a Segment>,
}

impl<'a, const N: usize> Block<'a, N> {
    /// The 64-bit word at `offset`.
    ///
    /// # Panics
    /// When the word is outside the block or misaligned.
    #[inline]
    #[must_use]
    pub fn word64(&self, offset: usize) -> &'a AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset < N,
            "a word of the block is aligned and inside it"
        );
        // SAFETY: the word is aligned, since the block's start and `offset` are multiples of 8. It
        // lies inside the block, since N is a multiple of 8, too. Atomics tolerate concurrent
        // writers.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// Copies bytes into the block. They are visible before any later store of this thread.
    ///
    /// # Panics
    /// When the range is outside the block.
    #[inline(always)]
    pub fn write(&self, offset: usize, source: &[u8]) {
        assert!(offset <= N && source.len() <= N - offset, "the bytes leave the block");
        // SAFETY: the range lies inside the block, which is mapped for writing. `source` does not
        // overlap it, since no slice of a segment exists.
        unsafe {
            let target = self.base.as_ptr().add(offset);
            copy::copy(source.as_ptr(), target, source.len(), CopyMode::Plain);
        }
    }

    /// Copies bytes out of the block.
    ///
    /// # Panics
    /// When the range is outside the block.
    #[inline]
    pub fn read(&self, offset: usize, target: &mut [u8]) {
        assert!(offset <= N && target.len() <= N - offset, "the bytes leave the block");
        // SAFETY: as for `write`, with source and target exchanged.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.base.as_ptr().add(offset),
                target.as_mut_ptr(),
                target.len(),
            );
        }
    }

    /// Prefetches the cache line at `offset` for writing, without waiting for it.
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
    fn block_numbers_wrap_around_the_blocks_of_the_segment() {
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
    fn blocks_outside_their_segment_are_refused() {
        let _ = Blocks::<128>::new(&segment(), 4096 - 256 + 8, 2);
    }

    #[test]
    #[should_panic(expected = "leave the block")]
    fn bytes_outside_their_block_are_refused() {
        Blocks::<128>::new(&segment(), 0, 2).get(0).write(120, &[0; 9]);
    }

    #[test]
    #[should_panic(expected = "aligned")]
    fn misaligned_blocks_are_refused() {
        let _ = Blocks::<128>::new(&segment(), 4, 2);
    }
}
