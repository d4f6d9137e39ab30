//! Receives that wait for messages.

use super::index::Index;
use super::list::{List, Spot};
use super::{Envelope, SHORT, Selector};

/// Receives in the order of posting.
///
/// ```
/// use weft_rdm::matching::{Envelope, Posted, Selector, Source};
///
/// let mut posted = Posted::new();
/// posted.post(Selector { source: Some(Source(2)), tag: 7, ignore: 0 }, "from 2");
/// posted.post(Selector::ALL, "from anybody");
/// assert_eq!(posted.take(Envelope { source: Source(2), tag: 8 }), Some("from anybody"));
/// assert_eq!(posted.take(Envelope { source: Source(2), tag: 7 }), Some("from 2"));
/// assert_eq!(posted.take(Envelope { source: Source(2), tag: 7 }), None);
/// ```
#[derive(Debug)]
pub struct Posted<T> {
    list: List<(Selector, T)>,
    /// All receives whose mask is indexed, once a search went beyond the first ones.
    index: Option<Index>,
    /// Receives whose mask is not.
    others: Vec<Spot>,
}

impl<T> Default for Posted<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Posted<T> {
    /// No receives.
    #[must_use]
    pub const fn new() -> Self {
        Self { list: List::new(), index: None, others: Vec::new() }
    }

    /// The number of receives.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.list.length()
    }

    /// Adds a receive behind all others.
    #[inline]
    pub fn post(&mut self, selector: Selector, value: T) -> Spot {
        let spot = self.list.push((selector, value));
        if self.index.is_some() {
            self.indexed(&selector, spot);
        }
        spot
    }

    #[inline(never)]
    fn indexed(&mut self, selector: &Selector, spot: Spot) {
        let names = self.index.as_ref().map_or(0, Index::places) + self.others.len();
        let is_littered = names > 2 * self.list.length() + SHORT;
        match &mut self.index {
            Some(index) if !is_littered => {
                if index.admit(selector.ignore) {
                    index.add_receive(selector, spot);
                } else {
                    self.others.push(spot);
                }
            }
            _ => self.rebuild(),
        }
    }

    fn rebuild(&mut self) {
        let Self { list, index, others } = self;
        let index = index.get_or_insert_default();
        index.clear();
        others.clear();
        for (spot, (selector, _)) in list.iter() {
            if index.admit(selector.ignore) {
                index.add_receive(selector, spot);
            } else {
                others.push(spot);
            }
        }
    }

    /// The first receive that matches a message.
    #[inline]
    pub fn find(&mut self, envelope: Envelope) -> Option<Spot> {
        let found = self.list.first(SHORT, |it| it.0.matches(envelope));
        if found.is_some() || self.list.length() <= SHORT {
            return found;
        }
        self.find_indexed(envelope)
    }

    #[inline(never)]
    fn find_indexed(&mut self, envelope: Envelope) -> Option<Spot> {
        if self.index.is_none() {
            self.rebuild();
        }
        let Self { list, index, others } = self;
        let found = index.as_mut()?.receive_for(envelope, |spot| list.get(spot).is_some());
        others.retain(|spot| list.get(*spot).is_some());
        let is_for = |spot: &&Spot| list.get(**spot).is_some_and(|it| it.0.matches(envelope));
        let other = others.iter().find(is_for).copied();
        match (found, other) {
            (Some(found), Some(other)) if other.number < found.number => Some(other),
            (found, other) => found.or(other),
        }
    }

    /// A receive that waits.
    #[inline]
    pub fn get_mut(&mut self, spot: Spot) -> Option<&mut T> {
        self.list.get_mut(spot).map(|(_, value)| value)
    }

    /// Takes a receive that waits.
    #[inline]
    pub fn remove(&mut self, spot: Spot) -> Option<T> {
        let (_, value) = self.list.remove(spot)?;
        if self.index.is_some() && self.list.length() == 0 {
            // The next one is short again.
            self.index = None;
            self.others = Vec::new();
        }
        Some(value)
    }

    /// Takes the first receive that matches a message.
    pub fn take(&mut self, envelope: Envelope) -> Option<T> {
        let spot = self.find(envelope)?;
        self.remove(spot)
    }

    /// Takes the first receive of which `is_it` is true: a cancel.
    pub fn take_if(&mut self, mut is_it: impl FnMut(&Selector, &T) -> bool) -> Option<T> {
        let found = self.list.iter().find(|(_, (selector, value))| is_it(selector, value));
        let spot = found.map(|(spot, _)| spot)?;
        self.remove(spot)
    }
}
