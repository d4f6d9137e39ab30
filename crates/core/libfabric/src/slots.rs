//! Operations that the provider has not ended yet.
//!
//! The provider gets the address of a slot as the context of its operation, and returns it. A slot
//! keeps whatever the operation uses, and stays where it is for as long as the port lives.

use std::ffi::c_void;
use std::fmt;

use crate::abi::Context;

/// The place of a slot.
pub type SlotIndex = usize;

/// The head has to stay the first field: providers write to it (FI_CONTEXT2).
#[repr(C)]
struct Slot<T> {
    context: Context,
    place: SlotIndex,
    kept: Option<T>,
}

/// The slots of a port.
pub struct Slots<T> {
    slots: Vec<*mut Slot<T>>,
    free: Vec<SlotIndex>,
}

impl<T> fmt::Debug for Slots<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").field("count", &self.count()).finish_non_exhaustive()
    }
}

impl<T> Slots<T> {
    pub const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// Keeps what an operation uses, and returns its context.
    pub fn keep(&mut self, kept: T) -> (SlotIndex, *mut c_void) {
        let place = self.free.pop().unwrap_or_else(|| {
            let place = self.slots.len();
            let slot = Box::new(Slot { context: [0; 8], place, kept: None });
            self.slots.push(Box::into_raw(slot));
            place
        });
        let slot = self.slots[place];
        // SAFETY: the slot is a box of `self`. The provider uses the context of slots that are
        // kept alone, and this one was free.
        unsafe { (*slot).kept = Some(kept) };
        (place, slot.cast())
    }

    /// The place of the slot whose context the provider returned; `None` for no context.
    pub fn place_of(&self, context: *mut c_void) -> Option<SlotIndex> {
        let slot = context.cast::<Slot<T>>();
        // A look among the own ones would cost more than the operation: the provider is code of
        // this process, and returns what it was given.
        // SAFETY: the context of an operation is a slot of `self`, which exists as long as `self`.
        let place = (!slot.is_null()).then(|| unsafe { (*slot).place })?;
        (self.slots.get(place) == Some(&slot)).then_some(place)
    }

    /// The content of a slot.
    pub fn get(&self, place: SlotIndex) -> Option<&T> {
        let slot = *self.slots.get(place)?;
        // SAFETY: a box of `self`; `kept` is touched by `self` alone.
        unsafe { (*slot).kept.as_ref() }
    }

    /// The context of a slot.
    pub fn context(&self, place: SlotIndex) -> *mut c_void {
        self.slots[place].cast()
    }

    /// Gives back what was kept: the operation is over, or was not begun.
    pub fn take(&mut self, place: SlotIndex) -> Option<T> {
        let slot = *self.slots.get(place)?;
        // SAFETY: as in `get`.
        let kept = unsafe { (*slot).kept.take() }?;
        self.free.push(place);
        Some(kept)
    }

    /// All that is kept.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        (0..self.slots.len()).filter_map(|place| self.get(place))
    }

    /// How many operations are under way.
    pub fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

impl<T> Drop for Slots<T> {
    fn drop(&mut self) {
        for slot in self.slots.drain(..) {
            // SAFETY: each came of a box, and is freed once. The endpoint was closed before.
            drop(unsafe { Box::from_raw(slot) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_leads_to_what_was_kept_until_it_is_taken() {
        let mut slots = Slots::new();
        let (one, first) = slots.keep("one");
        let (two, second) = slots.keep("two");
        assert_ne!(first, second);
        assert_eq!((slots.place_of(first), slots.place_of(second)), (Some(one), Some(two)));
        assert_eq!(slots.take(one), Some("one"));
        assert_eq!((slots.take(one), slots.get(one), slots.count()), (None, None, 1));
        let (three, again) = slots.keep("three");
        assert_eq!((three, again), (one, first), "its place is used again");
        assert_eq!(slots.get(two), Some(&"two"));
        assert_eq!(slots.place_of(std::ptr::null_mut()), None);
        assert_eq!(slots.get(9), None);
    }

    #[test]
    fn what_is_kept_ends_with_the_slots() {
        let kept = std::sync::Arc::new(());
        let mut slots = Slots::new();
        let _ = (slots.keep(kept.clone()), slots.keep(kept.clone()));
        drop(slots);
        assert_eq!(std::sync::Arc::strong_count(&kept), 1);
    }
}
