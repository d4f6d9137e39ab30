//! Level 0: the newest changes in memory, sorted, with what open snapshots still see.

use std::collections::BTreeMap;
use std::ops::Bound;

use parking_lot::{RwLock, RwLockReadGuard};

/// The cost of a key and its slot beside their bytes: two allocations and a place in a node.
const OVERHEAD_BYTES: usize = 64;

/// The sorted changes between two places of the log.
#[derive(Default)]
pub struct Level0 {
    pairs: RwLock<Pairs>,
}

/// The pairs of a level 0.
#[derive(Default)]
pub struct Pairs {
    map: BTreeMap<Box<[u8]>, Cell>,
    bytes: usize,
}

struct Cell {
    lsn: u64,
    slot: Box<[u8]>,
    older: Option<Box<Cell>>,
}

/// A key with its slot.
pub type Entry = (Box<[u8]>, Box<[u8]>);

impl Level0 {
    /// Sets the slot of a key. The one before is kept if a snapshot at `kept_for` may see it.
    pub fn insert(&self, key: &[u8], lsn: u64, slot: Box<[u8]>, kept_for: Option<u64>) {
        let mut pairs = self.pairs.write();
        let added = slot.len();
        let new = Cell { lsn, slot, older: None };
        if let Some(cell) = pairs.map.get_mut(key) {
            let mut old = std::mem::replace(cell, new);
            let removed = old.slot.len();
            if kept_for.is_some_and(|snapshot| old.lsn <= snapshot) {
                cell.older = Some(Box::new(old));
                pairs.bytes += added + OVERHEAD_BYTES;
            } else {
                cell.older = old.older.take();
                pairs.bytes = (pairs.bytes + added).saturating_sub(removed);
            }
        } else {
            pairs.map.insert(key.into(), new);
            pairs.bytes += key.len() + added + OVERHEAD_BYTES;
        }
    }

    /// The slot of a key for a reader at this LSN; `read` gets it.
    pub fn get<R>(&self, key: &[u8], lsn: u64, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let pairs = self.pairs.read();
        pairs.map.get(key)?.at(lsn).map(|cell| read(&cell.slot))
    }

    /// The LSN of the newest slot of a key.
    #[must_use]
    pub fn lsn_of(&self, key: &[u8]) -> Option<u64> {
        self.pairs.read().map.get(key).map(|cell| cell.lsn)
    }

    /// Bytes of memory, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pairs.read().bytes
    }

    /// Whether it has no pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.read().map.is_empty()
    }

    /// At most `limit` entries of a range for a reader at this LSN, in order, or from the end
    /// back. The flag says that there are no more.
    #[must_use]
    pub fn range(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        is_backward: bool,
        limit: usize,
        lsn: u64,
    ) -> (Vec<Entry>, bool) {
        if is_empty_range(from, to) {
            return (Vec::new(), true);
        }
        let pairs = self.pairs.read();
        let range = pairs.map.range::<[u8], _>((from, to));
        let seen = range.filter_map(|(key, cell)| Some((key, cell.at(lsn)?)));
        let copied = seen.map(|(key, cell)| (key.clone(), cell.slot.clone()));
        let found: Vec<Entry> = if is_backward {
            copied.rev().take(limit).collect()
        } else {
            copied.take(limit).collect()
        };
        let is_all = found.len() < limit;
        (found, is_all)
    }

    /// All of its pairs, for a level 0 that does not change any more.
    pub fn read(&self) -> RwLockReadGuard<'_, Pairs> {
        self.pairs.read()
    }
}

impl Pairs {
    /// The lowest and the highest key.
    #[must_use]
    pub fn ends(&self) -> Option<(&[u8], &[u8])> {
        let (first, _) = self.map.first_key_value()?;
        let (last, _) = self.map.last_key_value()?;
        Some((first, last))
    }

    /// The newest slot of each key, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.map.iter().map(|(key, cell)| (&**key, &*cell.slot))
    }
}

impl Cell {
    fn at(&self, lsn: u64) -> Option<&Self> {
        let mut cell = self;
        while cell.lsn > lsn {
            cell = cell.older.as_deref()?;
        }
        Some(cell)
    }
}

/// Whether no key is in a range; the map of the standard library panics on some of these.
#[must_use]
pub fn is_empty_range(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to))
        | (Bound::Excluded(from), Bound::Included(to)) => from >= to,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newest(level: &Level0, lsn: u64) -> Option<Vec<u8>> {
        level.get(b"k", lsn, <[u8]>::to_vec)
    }

    #[test]
    fn a_snapshot_sees_what_was_there() {
        let level = Level0::default();
        level.insert(b"k", 1, b"one".as_slice().into(), None);
        level.insert(b"k", 5, b"five".as_slice().into(), Some(3));
        level.insert(b"k", 6, b"six".as_slice().into(), Some(3));
        assert_eq!(newest(&level, 3), Some(b"one".to_vec()));
        assert_eq!(newest(&level, 0), None);
        assert_eq!(newest(&level, 6), Some(b"six".to_vec()));
    }

    #[test]
    fn ranges_end_at_their_bounds_in_both_directions() {
        let level = Level0::default();
        for key in [b"a", b"b", b"c", b"d"] {
            level.insert(key, 1, key.as_slice().into(), None);
        }
        let keys = |from, to, is_backward| -> Vec<Box<[u8]>> {
            level.range(from, to, is_backward, 9, 1).0.into_iter().map(|(key, _)| key).collect()
        };
        let (b, d) = (b"b".as_slice(), b"d".as_slice());
        let found = keys(Bound::Excluded(b), Bound::Included(d), true);
        assert_eq!(found, [Box::from(*b"d"), Box::from(*b"c")] as [Box<[u8]>; 2]);
        assert!(keys(Bound::Excluded(b), Bound::Excluded(b), false).is_empty());
        assert!(keys(Bound::Included(d), Bound::Included(b), false).is_empty());
    }
}
