//! A clock that runs while its owner looks at it.
//!
//! A process may be stopped: by Ctrl-Z, a debugger, a batch system that suspends its job, a machine
//! that is too busy. What it did not see in that time says nothing of others. So a time in which
//! somebody else was silent is told by this clock, which leaves out the time between two looks that
//! is longer than it should be.

use std::time::Duration;

/// The clock.
#[derive(Clone, Copy, Debug)]
pub struct OwnTime {
    /// The longest time between two looks that counts.
    step_max: Duration,
    /// The last look, by the clock of the machine.
    looked: Option<Duration>,
    time: Duration,
}

impl OwnTime {
    /// A clock that stands at 0 until the first look, and moves by up to `step_max` with each.
    #[must_use]
    pub const fn new(step_max: Duration) -> Self {
        Self { step_max, looked: None, time: Duration::ZERO }
    }

    /// Looks at the clock when that of the machine says `now`. It does not go back.
    pub fn at(&mut self, now: Duration) -> Duration {
        let looked = self.looked.map_or(now, |looked| looked.max(now));
        let passed = self.looked.map_or(Duration::ZERO, |before| looked.saturating_sub(before));
        self.looked = Some(looked);
        self.time += passed.min(self.step_max);
        self.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_time_between_two_looks_does_not_count() {
        let ms = Duration::from_millis;
        let mut clock = OwnTime::new(ms(100));
        assert_eq!(clock.at(ms(5000)), ms(0));
        assert_eq!(clock.at(ms(5060)), ms(60));
        assert_eq!(clock.at(ms(5050)), ms(60), "it does not go back");
        assert_eq!(clock.at(ms(5100)), ms(100));
        assert_eq!(clock.at(ms(65_100)), ms(200));
        assert_eq!(clock.at(ms(65_130)), ms(230));
    }
}
