//! Which hosts had a way to each other when.
//!
//! # Invariant
//! Hosts may be told that they do not reach each other only if they had no way to each other in the
//! time before.

use std::collections::{BTreeMap, BTreeSet};

/// Two hosts, the lower one first.
type Pair = (usize, usize);

/// The times without a way.
pub(crate) struct Ways {
    hosts: usize,
    /// The pairs without a way now.
    without: BTreeSet<Pair>,
    /// When two hosts last had no way to each other, in ns.
    parted: BTreeMap<Pair, u64>,
    /// After a way is back, reports may still come for so long.
    grace_ns: u64,
}

impl Ways {
    /// Between all hosts is a way.
    pub fn new(hosts: usize, grace_ns: u64) -> Self {
        Self { hosts, without: BTreeSet::new(), parted: BTreeMap::new(), grace_ns }
    }

    /// Looks which hosts have a way to each other from `now` on, until the next look.
    pub fn look(&mut self, now: u64, has_way: impl Fn(usize, usize) -> bool) {
        let all = (0..self.hosts).flat_map(|a| (a + 1..self.hosts).map(move |b| (a, b)));
        let without: BTreeSet<Pair> = all.filter(|(a, b)| !has_way(*a, *b)).collect();
        for pair in self.without.union(&without) {
            self.parted.insert(*pair, now);
        }
        self.without = without;
    }

    /// Checks a report that two hosts do not reach each other.
    ///
    /// # Errors
    /// Text, if there was a way.
    pub fn check_unreachable(&self, a: usize, b: usize, now: u64) -> Result<(), String> {
        let pair = (a.min(b), a.max(b));
        let parted = self.parted.get(&pair);
        let is_late = parted.is_none_or(|parted| now - parted > self.grace_ns);
        if is_late && !self.without.contains(&pair) {
            return Err(format!(
                "host {a} was told that it does not reach host {b}, and there was a way all the \
                 time"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_needs_a_time_without_a_way() {
        let mut ways = Ways::new(3, 100);
        ways.look(10, |_, _| true);
        assert!(ways.check_unreachable(0, 1, 20).is_err());
        ways.look(30, |a, b| (a, b) != (0, 1));
        assert!(ways.check_unreachable(1, 0, 5_000).is_ok(), "there is none yet");
        assert!(ways.check_unreachable(0, 2, 40).is_err());
        ways.look(6_000, |_, _| true);
        assert!(ways.check_unreachable(0, 1, 6_100).is_ok());
        assert!(ways.check_unreachable(0, 1, 6_101).is_err());
    }
}
