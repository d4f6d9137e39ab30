//! Words of a segment that were checked once, for code that touches them all the time.

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::segment::Segment;

/// A value made of atomics inside a segment, which it keeps mapped.
///
/// JUSTIFICATION: checking the bounds of a segment for each word was a tenth of what sending and
/// receiving a message cost the processor.
pub struct View<T> {
    at: NonNull<T>,
    // The address stays good as long as this is there.
    segment: Arc<Segment>,
    value: PhantomData<T>,
}

// SAFETY: a view is a shared reference to a `T` that may be shared between threads (`new` asks for
// that), together with the segment, which may be sent.
unsafe impl<T: Sync> Send for View<T> {}
// SAFETY: as for Send.
unsafe impl<T: Sync> Sync for View<T> {}

impl<T: Sync> View<T> {
    /// The value at `offset`.
    ///
    /// # Safety
    /// Every bit pattern must be a valid `T`, and all of `T` must be atomics.
    ///
    /// # Panics
    /// When it leaves the segment or is misaligned.
    #[must_use]
    pub unsafe fn new(segment: &Arc<Segment>, offset: usize) -> Self {
        // SAFETY: the caller's promise, passed on.
        let value = unsafe { segment.shared::<T>(offset) };
        Self { at: NonNull::from(value), segment: Arc::clone(segment), value: PhantomData }
    }

    /// The segment it lies in.
    #[must_use]
    pub fn segment(&self) -> &Segment {
        &self.segment
    }
}

impl<T> Deref for View<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: it was inside the segment and aligned when the view was made, and the segment
        // neither moves nor shrinks nor ends before the view does.
        unsafe { self.at.as_ref() }
    }
}

impl<T> std::fmt::Debug for View<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("segment", &self.segment).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_view_is_that_part_of_its_segment_and_outlives_other_owners() {
        let (segment, _file) = Segment::create("weft-test", 4096).expect("memory");
        let segment = Arc::new(segment);
        // SAFETY: atomics.
        let view = unsafe { View::<[AtomicU64; 2]>::new(&segment, 256) };
        view[1].store(7, Ordering::Release);
        assert_eq!(segment.word64(264).load(Ordering::Acquire), 7);
        drop(segment);
        assert_eq!(view[1].load(Ordering::Acquire), 7);
        assert_eq!(view.segment().length(), 4096);
    }

    #[test]
    #[should_panic(expected = "leave a segment")]
    fn a_view_does_not_leave_its_segment() {
        let (segment, _file) = Segment::create("weft-test", 4096).expect("memory");
        // SAFETY: atomics.
        let _ = unsafe { View::<[AtomicU64; 2]>::new(&Arc::new(segment), 4088) };
    }
}
