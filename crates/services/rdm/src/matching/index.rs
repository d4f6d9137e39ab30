//! The index of a long queue: for each mask, source and tag the spots, the oldest first.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use super::list::Spot;
use super::{Envelope, MASKS_MAX, Selector, Source};

/// Folds words by multiplications. Keys are no secret, and a peer that made them collide would slow
/// down its own process's partner alone, as with a long queue.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Fold(u64);

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(26) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}

/// Hashing by [`Fold`].
pub(crate) type Folding = BuildHasherDefault<Fold>;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    ignore: u64,
    source: Source,
    tag: u64,
}

impl Key {
    const fn new(ignore: u64, source: Source, tag: u64) -> Self {
        Self { ignore, source, tag: tag & !ignore }
    }
}

#[derive(Default, Debug)]
pub(super) struct Index {
    masks: Vec<u64>,
    spots: HashMap<Key, VecDeque<Spot>, Folding>,
    places: usize,
}

impl Index {
    /// The masks that are indexed.
    pub(super) fn masks(&self) -> &[u64] {
        &self.masks
    }

    /// True if receives with this `ignore` are indexed, from now on if there is room.
    pub(super) fn admit(&mut self, ignore: u64) -> bool {
        if self.masks.contains(&ignore) {
            return true;
        }
        let admitted = self.masks.len() < MASKS_MAX;
        if admitted {
            self.masks.push(ignore);
        }
        admitted
    }

    /// Names of things, of which some may be gone.
    pub(super) const fn places(&self) -> usize {
        self.places
    }

    /// Drops all names, and keeps the masks.
    pub(super) fn clear(&mut self) {
        self.spots.clear();
        self.places = 0;
    }

    /// Adds a receive, whose `ignore` is a mask of the index.
    pub(super) fn add_receive(&mut self, selector: &Selector, spot: Spot) {
        let source = selector.source.unwrap_or(Source::ANY);
        self.add(Key::new(selector.ignore, source, selector.tag), spot);
    }

    /// Adds a message for one mask.
    pub(super) fn add_message(&mut self, ignore: u64, envelope: Envelope, spot: Spot) {
        for source in [envelope.source, Source::ANY] {
            self.add(Key::new(ignore, source, envelope.tag), spot);
        }
    }

    fn add(&mut self, key: Key, spot: Spot) {
        self.spots.entry(key).or_default().push_back(spot);
        self.places += 1;
    }

    /// The oldest receive in the index that matches a message.
    pub(super) fn receive_for(
        &mut self,
        envelope: Envelope,
        mut lives: impl FnMut(Spot) -> bool,
    ) -> Option<Spot> {
        let mut oldest: Option<Spot> = None;
        for mask in 0..self.masks.len() {
            for source in [envelope.source, Source::ANY] {
                let key = Key::new(self.masks[mask], source, envelope.tag);
                let Some(spot) = self.front(key, &mut lives) else { continue };
                if oldest.is_none_or(|oldest| spot.number < oldest.number) {
                    oldest = Some(spot);
                }
            }
        }
        oldest
    }

    /// The oldest message in the index that matches a receive, whose `ignore` is a mask of it.
    pub(super) fn message_for(
        &mut self,
        selector: &Selector,
        mut lives: impl FnMut(Spot) -> bool,
    ) -> Option<Spot> {
        let source = selector.source.unwrap_or(Source::ANY);
        self.front(Key::new(selector.ignore, source, selector.tag), &mut lives)
    }

    /// The oldest thing of a key. Names of things that are gone are dropped before it.
    fn front(&mut self, key: Key, lives: &mut impl FnMut(Spot) -> bool) -> Option<Spot> {
        let spots = self.spots.get_mut(&key)?;
        while let Some(spot) = spots.front().copied() {
            if lives(spot) {
                return Some(spot);
            }
            spots.pop_front();
            self.places -= 1;
        }
        self.spots.remove(&key);
        None
    }
}
