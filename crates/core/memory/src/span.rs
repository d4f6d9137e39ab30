//! A range of a segment that was looked up once, for code that copies into it or out of it often.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::copy::{self, CopyMode};
use crate::segment::Segment;

/// A range of a segment. It keeps the segment mapped.
///
/// JUSTIFICATION: looking up the segment behind a key, and checking the bounds of the key and those
/// of the segment, took a fifth of the time of a put of 8 bytes.
#[derive(Debug)]
pub struct Span {
    base: NonNull<u8>,
    length: usize,
    writable: bool,
    // Keeps the mapping valid.
    _segment: Arc<Segment>,
}

// SAFETY: a span is a range of a segment that it owns, and a segment is `Send`.
unsafe impl Send for Span {}
// SAFETY: as for Send. The bytes are accessed as those of a segment are.
unsafe impl Sync for Span {}

/// A range of mapped memory to be read.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    base: NonNull<u8>,
    length: usize,
    memory: PhantomData<&'a Segment>,
}

/// A range of mapped memory to be written.
#[derive(Clone, Copy, Debug)]
pub struct PartMut<'a>(Part<'a>);

/// The start of a part of `memory` bytes that begin at `base`; `None` when it is outside.
#[inline]
fn part_of<'a>(base: NonNull<u8>, memory: usize, offset: u64, length: u64) -> Option<Part<'a>> {
    let all = memory as u64;
    if offset > all || length > all - offset {
        return None;
    }
    // Neither is more than the length of mapped memory.
    let (offset, length) = (usize::try_from(offset).ok()?, usize::try_from(length).ok()?);
    // SAFETY: the offset is inside the memory.
    Some(Part { base: unsafe { base.add(offset) }, length, memory: PhantomData })
}

impl Span {
    /// `length` bytes of `segment` from `offset` on, for reading; with `writable` for writing, too.
    ///
    /// # Panics
    /// When the range is outside the segment, or `writable` and the segment is not.
    #[must_use]
    pub fn new(segment: &Arc<Segment>, offset: usize, length: usize, writable: bool) -> Self {
        assert!(!writable || segment.writable(), "a read-only segment cannot be written");
        let base = segment.bytes(offset, length);
        Self { base, length, writable, _segment: Arc::clone(segment) }
    }

    /// `length` bytes from `offset` on, or `None` when they are outside.
    #[inline]
    #[must_use]
    pub fn part(&self, offset: u64, length: u64) -> Option<Part<'_>> {
        part_of(self.base, self.length, offset, length)
    }

    /// As [`Span::part`], to be written; also `None` when the span is not for writing.
    #[inline]
    #[must_use]
    pub fn part_mut(&self, offset: u64, length: u64) -> Option<PartMut<'_>> {
        if self.writable { self.part(offset, length).map(PartMut) } else { None }
    }

    /// The aligned word at `offset`, or `None` when there is none.
    #[inline]
    #[must_use]
    pub fn word64(&self, offset: u64) -> Option<&AtomicU64> {
        let at = self.part(offset, 8)?.base.cast::<AtomicU64>();
        if !at.is_aligned() {
            return None;
        }
        // SAFETY: the word is inside the mapping and aligned. Atomics tolerate concurrent writers.
        // Callers do not store through a read-only mapping, where a store would fault.
        Some(unsafe { at.as_ref() })
    }
}

impl Segment {
    /// `length` bytes from `offset` on, or `None` when they are outside.
    #[inline]
    #[must_use]
    pub fn part(&self, offset: u64, length: u64) -> Option<Part<'_>> {
        part_of(self.base(), self.length(), offset, length)
    }

    /// As [`Segment::part`], to be written; also `None` when the segment is read-only.
    #[inline]
    #[must_use]
    pub fn part_mut(&self, offset: u64, length: u64) -> Option<PartMut<'_>> {
        if self.writable() { self.part(offset, length).map(PartMut) } else { None }
    }
}

impl PartMut<'_> {
    /// Copies bytes into the part. They are visible before any later store of this thread.
    ///
    /// # Panics
    /// When the source has another length.
    #[inline]
    pub fn write(self, source: &[u8], mode: CopyMode) {
        assert!(source.len() == self.0.length, "a part is written as a whole");
        // SAFETY: the part is mapped for writing. `source` does not overlap it, since no slice of
        // shared memory exists.
        unsafe { copy::copy(source.as_ptr(), self.0.base.as_ptr(), source.len(), mode) };
    }

    /// Copies a part of the same length, which may overlap this one.
    ///
    /// # Panics
    /// When the source has another length.
    #[inline]
    pub fn copy_from(self, source: Part<'_>, mode: CopyMode) {
        let length = self.0.length;
        assert!(source.length == length, "a part is written as a whole");
        let (from, to) = (source.base.as_ptr(), self.0.base.as_ptr());
        if (from as usize).abs_diff(to as usize) >= length {
            // SAFETY: both parts are mapped, this one for writing, and their addresses do not
            // overlap. If two segments map the same file, the memory may overlap nevertheless; then
            // the bytes are unspecified, as in any race.
            unsafe { copy::copy(from, to, length, mode) };
        } else {
            // SAFETY: both parts are mapped, this one for writing; this copy allows overlap.
            unsafe { std::ptr::copy(from, to, length) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn parts_are_inside_their_span_and_its_words_aligned_in_memory() {
        let (segment, _file) = Segment::create("weft-test", 4096).expect("memory");
        let segment = Arc::new(segment);
        let span = Span::new(&segment, 100, 28, true);
        for (offset, length) in [(29, 0), (28, 1), (0, 29), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(span.part(offset, length).is_none(), "{length} bytes at {offset}");
        }
        span.part_mut(20, 8).expect("inside").write(&7_u64.to_le_bytes(), CopyMode::Plain);
        assert_eq!(segment.word64(120).load(Ordering::Relaxed), 7);
        let word = span.word64(20).expect("120 is a multiple of 8");
        assert_eq!(word.load(Ordering::Relaxed), 7);
        assert!(span.word64(0).is_none() && span.word64(24).is_none() && span.word64(28).is_none());
        drop(segment);
        assert_eq!(span.word64(20).map(|word| word.load(Ordering::Relaxed)), Some(7));
    }

    #[test]
    fn parts_are_copied_also_where_they_overlap() {
        let (segment, file) = Segment::create("weft-test", 4096).expect("memory");
        segment.write(0, b"abcdefgh", CopyMode::Plain);
        let part = segment.part(0, 6).expect("inside");
        segment.part_mut(2, 6).expect("inside").copy_from(part, CopyMode::Plain);
        let mut seen = [0; 8];
        segment.read(0, &mut seen);
        assert_eq!(&seen, b"ababcdef");
        let shown = Segment::open(file.as_fd(), 4096, false).expect("sealed");
        assert!(shown.part_mut(0, 1).is_none() && shown.part(4095, 1).is_some());
        let span = Span::new(&Arc::new(shown), 0, 8, false);
        assert!(span.part_mut(0, 8).is_none() && span.part(0, 8).is_some());
    }

    #[test]
    #[should_panic(expected = "as a whole")]
    fn a_source_of_another_length_is_refused() {
        let (segment, _file) = Segment::create("weft-test", 4096).expect("memory");
        segment.part_mut(0, 6).expect("inside").write(b"seven  ", CopyMode::Plain);
    }
}
