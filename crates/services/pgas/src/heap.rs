//! Which parts of the symmetric heap are in use: offsets and lengths, outside of the heap itself.
//!
//! All PEs make the same calls in the same order, so all have the same state without talking.
//!
//! # Invariants
//! - Free parts do not touch each other or a part in use, and together they are the whole heap.
//! - Parts begin at a multiple of [`UNIT`] and are multiples of it long.

use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a line of the cache: parts of two owners never share one.
pub const UNIT: usize = 64;

/// The heap of a PE, as offsets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Heap {
    /// Free parts: offset and length.
    free: BTreeMap<usize, usize>,
    /// The same as length and offset, to find the smallest that fits.
    by_length: BTreeSet<(usize, usize)>,
    /// Parts in use: offset, and length that was asked for.
    used: BTreeMap<usize, usize>,
}

/// Bytes that a part takes.
fn whole(length: usize) -> Option<usize> {
    length.checked_next_multiple_of(UNIT)
}

impl Heap {
    /// A heap of some bytes, all free.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let mut heap =
            Self { free: BTreeMap::new(), by_length: BTreeSet::new(), used: BTreeMap::new() };
        heap.release(0, bytes / UNIT * UNIT);
        heap
    }

    /// Takes `length` bytes at a multiple of `alignment`, a power of two, out of the smallest free
    /// part that has them. `None` when there is none.
    pub fn take(&mut self, length: usize, alignment: usize) -> Option<usize> {
        let (bytes, alignment) = (whole(length.max(1))?, alignment.max(UNIT));
        let fits = |(part_length, start): &(usize, usize)| {
            let offset = start.checked_next_multiple_of(alignment)?;
            let end = offset.checked_add(bytes)?;
            (end <= start + part_length).then_some((*start, *part_length, offset))
        };
        let (start, part_length, offset) = self.by_length.range((bytes, 0)..).find_map(fits)?;
        self.free.remove(&start);
        self.by_length.remove(&(part_length, start));
        self.release(start, offset - start);
        self.release(offset + bytes, start + part_length - offset - bytes);
        self.used.insert(offset, length);
        Some(offset)
    }

    /// Gives a part back. `None` when no part in use begins there.
    pub fn give(&mut self, offset: usize) -> Option<()> {
        let length = self.used.remove(&offset)?;
        let (mut start, mut bytes) = (offset, whole(length.max(1))?);
        if let Some((before, length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            (start, bytes) = (*before, bytes + length);
        }
        if let Some(length) = self.free.get(&(start + bytes)) {
            bytes += length;
        }
        for (part, length) in
            self.free.range(start..start + bytes).map(|(a, b)| (*a, *b)).collect::<Vec<_>>()
        {
            self.free.remove(&part);
            self.by_length.remove(&(length, part));
        }
        self.release(start, bytes);
        Some(())
    }

    /// Changes the length of a part in use where it is. `None` when no part in use begins there, or
    /// what is behind it is in use.
    pub fn resize(&mut self, offset: usize, length: usize) -> Option<()> {
        let former = whole((*self.used.get(&offset)?).max(1))?;
        let bytes = whole(length.max(1))?;
        let end = offset + former;
        let behind = self.free.get(&end).copied().unwrap_or(0);
        let rest = (former + behind).checked_sub(bytes)?;
        if self.free.remove(&end).is_some() {
            self.by_length.remove(&(behind, end));
        }
        self.release(offset + bytes, rest);
        self.used.insert(offset, length);
        Some(())
    }

    /// Bytes that were asked for of the part in use that begins there.
    #[must_use]
    pub fn length(&self, offset: usize) -> Option<usize> {
        self.used.get(&offset).copied()
    }

    /// Bytes of the largest free part.
    #[must_use]
    pub fn largest_free(&self) -> usize {
        self.by_length.last().map_or(0, |(length, _)| *length)
    }

    fn release(&mut self, start: usize, length: usize) {
        if length > 0 {
            self.free.insert(start, length);
            self.by_length.insert((length, start));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_heap_that_is_full_is_whole_again_when_all_is_free() {
        let mut heap = Heap::new(1000);
        assert_eq!(heap.largest_free(), 960);
        let parts: Vec<usize> = std::iter::from_fn(|| heap.take(100, 1)).collect();
        assert_eq!(parts, [0, 128, 256, 384, 512, 640, 768]);
        assert_eq!(heap.take(65, 1), None);
        assert_eq!(heap.take(64, 1), Some(896));
        for part in [128, 896, 0, 640, 256, 768, 512, 384] {
            assert_eq!(heap.give(part), Some(()));
            assert_eq!(heap.give(part), None, "it is free");
        }
        assert_eq!(heap, Heap::new(1000));
    }

    #[test]
    fn a_part_grows_and_shrinks_where_it_is_up_to_the_next_one() {
        let mut heap = Heap::new(1024);
        let [first, next] = [heap.take(100, 1), heap.take(64, 1)].map(|part| part.expect("room"));
        assert_eq!(heap.resize(first, 128), Some(()));
        assert_eq!(heap.resize(first, 129), None, "the next one is there");
        assert_eq!(heap.resize(first, 10), Some(()));
        assert_eq!((heap.length(first), heap.take(64, 1)), (Some(10), Some(64)));
        assert_eq!(heap.resize(next, 896), Some(()));
        assert_eq!(heap.largest_free(), 0);
        assert_eq!(heap.resize(next, 897), None);
        assert_eq!(heap.resize(next, usize::MAX), None);
        assert_eq!(heap.resize(next + 64, 1), None, "no part begins there");
    }

    #[test]
    fn sizes_that_no_memory_has_are_refused() {
        let mut heap = Heap::new(1 << 20);
        for length in [usize::MAX, usize::MAX - 63, 1 << 63, (1 << 20) + 1] {
            assert_eq!(heap.take(length, 64), None);
        }
        assert_eq!(heap.take(1, 1 << 63), Some(0), "the start is aligned to everything");
        assert_eq!(heap.take(1, 1 << 63), None);
    }

    proptest! {
        #[test]
        fn parts_never_overlap_and_come_back(
            calls in prop::collection::vec((0_usize..5000, 0_u32..13, 0..4), 1..200)
        ) {
            let bytes = 1 << 16;
            let mut heap = Heap::new(bytes);
            let mut used: Vec<(usize, usize)> = Vec::new();
            for (length, log, call) in calls {
                let chosen = (!used.is_empty()).then(|| used.swap_remove(length % used.len()));
                if let (0 | 1, Some((part, former))) = (call, chosen) {
                    prop_assert_eq!(heap.length(part), Some(former));
                    prop_assert_eq!(heap.give(part), Some(()));
                    continue;
                }
                if let (2, Some((part, former))) = (call, chosen) {
                    let is_resized = heap.resize(part, length).is_some();
                    let length = if is_resized { length } else { former };
                    prop_assert_eq!(heap.length(part), Some(length));
                    prop_assert!(part + length <= bytes);
                    for (other, other_length) in &used {
                        prop_assert!(part + length.max(1) <= *other
                            || other + (*other_length).max(1) <= part);
                    }
                    used.push((part, length));
                    continue;
                }
                used.extend(chosen);
                if let Some(part) = heap.take(length, 1 << log) {
                    prop_assert!(part.is_multiple_of(1 << log) && part + length <= bytes);
                    for (other, other_length) in &used {
                        prop_assert!(part + length.max(1) <= *other
                            || other + (*other_length).max(1) <= part);
                    }
                    used.push((part, length));
                }
            }
            for (part, _) in used {
                prop_assert_eq!(heap.give(part), Some(()));
            }
            prop_assert_eq!(heap, Heap::new(bytes));
        }
    }
}
