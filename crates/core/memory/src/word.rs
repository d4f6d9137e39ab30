//! Loads and stores of one word of a segment, whose width is known when the program runs.

use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};

use crate::segment::Segment;

impl Segment {
    /// Loads the word of `width` bytes (1, 2, 4 or 8) at `offset` by one access, with acquire
    /// order.
    ///
    /// # Panics
    /// When the word is outside the segment or misaligned, and for another width.
    #[inline]
    #[must_use]
    pub fn load_word(&self, offset: usize, width: usize) -> u64 {
        match width {
            1 => u64::from(self.word8(offset).load(Ordering::Acquire)),
            2 => u64::from(self.word16(offset).load(Ordering::Acquire)),
            4 => u64::from(self.word32(offset).load(Ordering::Acquire)),
            8 => self.word64(offset).load(Ordering::Acquire),
            _ => no_width(width),
        }
    }

    /// Stores the low bytes of `value` in the word of `width` bytes (1, 2, 4 or 8) at `offset` by
    /// one access, with release order.
    ///
    /// # Panics
    /// When the word is outside the segment or misaligned, the mapping is read-only, and for
    /// another width.
    #[inline]
    pub fn store_word(&self, offset: usize, width: usize, value: u64) {
        assert!(self.writable(), "a read-only segment cannot be written");
        let [a, b, c, d, ..] = value.to_le_bytes();
        match width {
            1 => self.word8(offset).store(a, Ordering::Release),
            2 => self.word16(offset).store(u16::from_le_bytes([a, b]), Ordering::Release),
            4 => self.word32(offset).store(u32::from_le_bytes([a, b, c, d]), Ordering::Release),
            8 => self.word64(offset).store(value, Ordering::Release),
            _ => no_width(width),
        }
    }

    fn word8(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: every bit pattern is an atomic of one byte.
        unsafe { self.shared(offset) }
    }

    fn word16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: every bit pattern is an atomic of two bytes.
        unsafe { self.shared(offset) }
    }
}

#[cold]
#[inline(never)]
fn no_width(width: usize) -> ! {
    panic!("a word has 1, 2, 4 or 8 bytes, not {width}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_each_width_leaves_its_neighbours_alone() {
        let (segment, _file) = Segment::create("weft-test", 4096).expect("memory");
        for width in [1, 2, 4, 8] {
            segment.store_word(64, 8, u64::MAX);
            segment.store_word(64 + 8 - width, width, 0x0102_0304_0506_0708);
            let bits = 8 * u32::try_from(width).expect("small");
            let mask = u64::MAX.checked_shr(64 - bits).expect("not all bits");
            assert_eq!(segment.load_word(72 - width, width), 0x0102_0304_0506_0708 & mask);
            let others = u64::MAX.checked_shr(bits).unwrap_or(0);
            assert_eq!(segment.load_word(64, 8) & others, others, "{width} bytes");
        }
    }

    #[test]
    #[should_panic(expected = "misaligned")]
    fn a_misaligned_word_is_refused() {
        let (segment, _file) = Segment::create("weft-test", 4096).expect("memory");
        let _ = segment.load_word(1, 2);
    }
}
