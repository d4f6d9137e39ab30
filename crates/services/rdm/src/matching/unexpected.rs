//! Messages that wait for receives.

use super::index::Index;
use super::list::{List, Spot};
use super::{Envelope, SHORT, Selector};

/// Messages in the order of arrival.
///
/// ```
/// use weft_rdm::matching::{Envelope, Selector, Source, Unexpected};
///
/// let mut unexpected = Unexpected::new();
/// unexpected.push(Envelope { source: Source(1), tag: 5 }, "first");
/// unexpected.push(Envelope { source: Source(1), tag: 4 }, "second");
/// let four = unexpected.find(&Selector { source: None, tag: 4, ignore: 0 }).expect("it waits");
/// assert_eq!(unexpected.remove(four), Some("second"));
/// let any = unexpected.find(&Selector::ALL).expect("one waits");
/// assert_eq!(unexpected.remove(any), Some("first"));
/// ```
#[derive(Debug)]
pub struct Unexpected<T> {
    list: List<(Envelope, T)>,
    /// All messages, for each mask of a receive that was seen while the queue is long.
    index: Option<Index>,
}

impl<T> Default for Unexpected<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Unexpected<T> {
    /// No messages.
    #[must_use]
    pub const fn new() -> Self {
        Self { list: List::new(), index: None }
    }

    /// The number of messages.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.list.length()
    }

    /// Adds a message behind all others.
    #[inline]
    pub fn push(&mut self, envelope: Envelope, value: T) -> Spot {
        let spot = self.list.push((envelope, value));
        if let Some(index) = &mut self.index {
            for mask in 0..index.masks().len() {
                index.add_message(index.masks()[mask], envelope, spot);
            }
        }
        spot
    }

    /// The first message that matches a receive.
    #[inline]
    pub fn find(&mut self, selector: &Selector) -> Option<Spot> {
        let found = self.list.first(SHORT, |it| selector.matches(it.0));
        if found.is_some() || self.list.length() <= SHORT {
            return found;
        }
        self.find_indexed(selector)
    }

    #[inline(never)]
    fn find_indexed(&mut self, selector: &Selector) -> Option<Spot> {
        if self.is_indexed(selector.ignore) {
            let Self { list, index } = self;
            return index.as_mut()?.message_for(selector, |spot| list.get(spot).is_some());
        }
        self.list.first(usize::MAX, |it| selector.matches(it.0))
    }

    /// True if messages are indexed for a mask, from now on if there is room.
    fn is_indexed(&mut self, ignore: u64) -> bool {
        let Self { list, index } = self;
        let index = index.get_or_insert_default();
        let names = 2 * index.masks().len() * list.length();
        if index.places() > 2 * names + SHORT {
            index.clear();
            for mask in 0..index.masks().len() {
                let mask = index.masks()[mask];
                list.iter().for_each(|(spot, (it, _))| index.add_message(mask, *it, spot));
            }
        }
        let is_new = !index.masks().contains(&ignore);
        if !index.admit(ignore) {
            return false;
        }
        if is_new {
            list.iter().for_each(|(spot, (it, _))| index.add_message(ignore, *it, spot));
        }
        true
    }

    /// A message that waits.
    pub fn get_mut(&mut self, spot: Spot) -> Option<&mut T> {
        self.list.get_mut(spot).map(|(_, value)| value)
    }

    /// Takes a message that waits.
    #[inline]
    pub fn remove(&mut self, spot: Spot) -> Option<T> {
        let (_, value) = self.list.remove(spot)?;
        if self.index.is_some() && self.list.length() == 0 {
            self.index = None;
        }
        Some(value)
    }

    /// The number of names in the index.
    #[cfg(test)]
    pub(super) fn names(&self) -> usize {
        self.index.as_ref().map_or(0, Index::places)
    }
}
