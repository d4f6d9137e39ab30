//! Which hosts had a way to each other when.
//!
//! # Invariant
//! Hosts may be told that they do not reach each other only if they had no way to each other in the
//! time before.

use std::collections::BTreeMap;

/// Two hosts, the lower one first.
type Pair = (usize, usize);

/// A time without a way, in ns.
#[derive(Clone, Copy, Debug)]
struct Gap {
    from: u64,
    /// `None` while it lasts.
    until: Option<u64>,
}

/// The times without a way.
pub(crate) struct Ways {
    hosts: usize,
    /// The times in which two hosts had no way to each other, in their order.
    gaps: BTreeMap<Pair, Vec<Gap>>,
    /// After a way is back, reports may still come for so long.
    grace_ns: u64,
}

impl Ways {
    /// Between all hosts is a way.
    pub fn new(hosts: usize, grace_ns: u64) -> Self {
        Self { hosts, gaps: BTreeMap::new(), grace_ns }
    }

    /// Looks which hosts have a way to each other from `now` on, until the next look.
    pub fn look(&mut self, now: u64, has_way: impl Fn(usize, usize) -> bool) {
        for (a, b) in (0..self.hosts).flat_map(|a| (a + 1..self.hosts).map(move |b| (a, b))) {
            let gaps = self.gaps.entry((a, b)).or_default();
            let open = gaps.last_mut().filter(|gap| gap.until.is_none());
            match (open, has_way(a, b)) {
                (None, false) => gaps.push(Gap { from: now, until: None }),
                (Some(gap), true) => gap.until = Some(now),
                (None, true) | (Some(_), false) => {}
            }
        }
    }

    /// Checks that two hosts were rightly told, at a time, that they do not reach each other.
    ///
    /// # Errors
    /// Text, if there was a way.
    pub fn check_unreachable(&self, a: usize, b: usize, told_ns: u64) -> Result<(), String> {
        let gaps = self.gaps.get(&(a.min(b), a.max(b)));
        let excuses = |gap: &Gap| {
            let end = gap.until.map_or(u64::MAX, |until| until + self.grace_ns);
            (gap.from..=end).contains(&told_ns)
        };
        if !gaps.is_some_and(|gaps| gaps.iter().any(excuses)) {
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
        assert!(ways.check_unreachable(0, 1, 29).is_err(), "told before the way was gone");
        assert!(ways.check_unreachable(0, 1, 6_100).is_ok());
        assert!(ways.check_unreachable(0, 1, 6_101).is_err());
    }
}
