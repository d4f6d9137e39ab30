//! The clocks of hosts: each begins with its own time, and may be fast or slow.
//!
//! # Invariant
//! A clock never goes back.

use std::time::Duration;

/// A clock: what it showed at a time of the world, and how far it goes in a thousand ns of it.
#[derive(Clone, Copy, Debug)]
struct Clock {
    at_ns: u64,
    shown_ns: u64,
    rate_per_mille: u64,
}

impl Clock {
    fn time_ns(self, now: u64) -> u64 {
        self.shown_ns + (now - self.at_ns) * self.rate_per_mille / 1_000
    }
}

/// The clocks of all hosts.
#[derive(Debug)]
pub(crate) struct Clocks(Vec<Clock>);

impl Clocks {
    /// Clocks that show these times, in ns, and are right from then on.
    pub fn new(shown_ns: impl Iterator<Item = u64>) -> Self {
        let clock = |shown_ns| Clock { at_ns: 0, shown_ns, rate_per_mille: 1_000 };
        Self(shown_ns.map(clock).collect())
    }

    /// The time that the clock of a host shows at the time `now` of the world.
    pub fn time(&self, host: usize, now: u64) -> Duration {
        Duration::from_nanos(self.0[host].time_ns(now))
    }

    /// Has the clock of a host go so far in a thousand ns of the world from now on.
    pub fn set_rate(&mut self, host: usize, rate_per_mille: u64, now: u64) {
        let shown_ns = self.0[host].time_ns(now);
        self.0[host] = Clock { at_ns: now, shown_ns, rate_per_mille };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_changes_its_rate_and_never_goes_back() {
        let mut clocks = Clocks::new([5, 1_000].into_iter());
        let time = |clocks: &Clocks, now| clocks.time(1, now).as_nanos();
        assert_eq!(time(&clocks, 100), 1_100);
        clocks.set_rate(1, 500, 100);
        assert_eq!((time(&clocks, 100), time(&clocks, 300)), (1_100, 1_200));
        clocks.set_rate(1, 2_000, 300);
        assert_eq!(time(&clocks, 310), 1_220);
        assert_eq!(clocks.time(0, 310).as_nanos(), 315);
    }
}
