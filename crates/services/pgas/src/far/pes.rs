//! A set of PEs. Most changes add the only one, or take it away: they cost no memory.

/// PEs of a job.
#[derive(Debug)]
pub struct Pes {
    /// A bit for each PE.
    words: Vec<u64>,
    count: usize,
}

impl Pes {
    /// No PE of a job of so many.
    #[must_use]
    pub fn none_of(pes: usize) -> Self {
        Self { words: vec![0; pes.div_ceil(64)], count: 0 }
    }

    /// Adds a PE.
    ///
    /// # Panics
    /// When the job has no such PE.
    pub fn insert(&mut self, pe: usize) {
        let (word, bit) = (&mut self.words[pe / 64], 1 << (pe % 64));
        self.count += usize::from(*word & bit == 0);
        *word |= bit;
    }

    /// Takes a PE away.
    ///
    /// # Panics
    /// When the job has no such PE.
    pub fn remove(&mut self, pe: usize) {
        let (word, bit) = (&mut self.words[pe / 64], 1 << (pe % 64));
        self.count -= usize::from(*word & bit != 0);
        *word &= !bit;
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The first one, from a PE on.
    #[must_use]
    pub fn next(&self, from: usize) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        let first = from / 64;
        let mut mask = u64::MAX << (from % 64);
        for (place, word) in self.words.iter().enumerate().skip(first) {
            let word = word & std::mem::replace(&mut mask, u64::MAX);
            if word != 0 {
                return Some(place * 64 + word.trailing_zeros() as usize);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(
            changes in proptest::collection::vec((any::<bool>(), 0_usize..200), 0..100),
        ) {
            let (mut pes, mut model) = (Pes::none_of(200), BTreeSet::new());
            for (adds, pe) in changes {
                if adds {
                    pes.insert(pe);
                    model.insert(pe);
                } else {
                    pes.remove(pe);
                    model.remove(&pe);
                }
                prop_assert_eq!(pes.is_empty(), model.is_empty());
            }
            for from in 0..300 {
                prop_assert_eq!(pes.next(from), model.range(from..).next().copied());
            }
        }
    }
}
