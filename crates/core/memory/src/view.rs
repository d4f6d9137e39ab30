//! A value in a segment whose bounds are checked once, for code that accesses it often.

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::segment::Segment;

/// A reference to a value made of atomics in a segment. It keeps the segment mapped.
///
/// JUSTIFICATION: checking the bounds for each word took a tenth of the processor time of sending
/// and receiving a message.
pub struct View<T> {
    at: NonNull<T>,
    // Keeps the mapping, and so the address, valid.
    segment: Arc<Segment>,
    value: PhantomData<T>,
}

// SAFETY: a view is a shared reference to a `T` that is `Sync`, as `new` requires, and an owner of
// the segment, which is `Send`.
unsafe impl<T: Sync> Send for View<T> {}
// SAFETY: as for Send.
unsafe impl<T: Sync> Sync for View<T> {}

impl<T> Clone for View<T> {
    fn clone(&self) -> Self {
        Self { at: self.at, segment: Arc::clone(&self.segment), value: PhantomData }
    }
}

impl<T: Sync> View<T> {
    /// The value at `offset` of `segment`.
    ///
    /// # Safety
    /// Every bit pattern must be a valid `T`, and `T` must consist of atomics only.
    ///
    /// # Panics
    /// When the value is outside the segment or misaligned.
    #[must_use]
    pub unsafe fn new(segment: &Arc<Segment>, offset: usize) -> Self {
        // SAFETY: the caller's promise.
        let value = unsafe { segment.shared::<T>(offset) };
        Self { at: NonNull::from(value), segment: Arc::clone(segment), value: PhantomData }
    }

    /// The segment with the value.
    #[must_use]
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }
}

impl<T> Deref for View<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `new` checked that the value is inside the segment and aligned. The segment
        // neither moves nor shrinks, and lives as long as the view.
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
    fn a_view_shares_memory_with_its_segment_and_keeps_it_mapped() {
        let (segment, _file) = Segment::create("weft-test", 4096).expect("memory");
        let segment = Arc::new(segment);
        // SAFETY: the type consists of atomics.
        let view = unsafe { View::<[AtomicU64; 2]>::new(&segment, 256) };
        view[1].store(7, Ordering::Release);
        assert_eq!(segment.word64(264).load(Ordering::Acquire), 7);
        drop(segment);
        assert_eq!(view[1].load(Ordering::Acquire), 7);
        assert_eq!(view.segment().length(), 4096);
    }

    #[test]
    #[should_panic(expected = "leave a segment")]
    fn a_view_outside_its_segment_is_refused() {
        let (segment, _file) = Segment::create("weft-test", 4096).expect("memory");
        // SAFETY: the type consists of atomics.
        let _ = unsafe { View::<[AtomicU64; 2]>::new(&Arc::new(segment), 4088) };
    }
}
