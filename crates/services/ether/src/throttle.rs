//! How long a loop pauses after it has emptied its queues: interrupt throttling whose rate follows
//! the load (EXTOLL-THESIS#5.4.6.2, after the dynamic ITR of Intel's *ixgbe*).
//!
//! A loop that polls for every packet has the least latency, but takes a whole processor from the
//! programs that the packets are for. So whenever a poll has emptied the queues, the throughput
//! since the last such poll moves a state up or down by one step. The state gives the interval from
//! the moment when packets were found to the next poll.

use std::time::Duration;

/// Bytes per microsecond up to which the state falls to [`Load::Lowest`], which never pauses.
const LOWEST_MAX: u64 = 10;
/// Bytes per microsecond above which the state rises to [`Load::Bulk`].
const LOW_MAX: u64 = 20;
/// The interval of [`Load::Low`] as a share of that of [`Load::Bulk`]: 20,000 interrupts per
/// second beside 8,000.
const LOW_SHARE: (u32, u32) = (2, 5);

/// The class of the traffic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Load {
    /// Few packets, which need the lowest latency.
    Lowest,
    /// More packets, which need a low latency.
    Low,
    /// Bulk traffic, which needs throughput.
    Bulk,
}

/// The throttle of one loop.
#[derive(Debug)]
pub struct Throttle {
    bulk: Duration,
    state: Load,
    /// When a poll last emptied the queues, and the bytes until then.
    ended: Duration,
    bytes: u64,
    /// When this poll found its first packet.
    began: Option<Duration>,
}

impl Throttle {
    /// A throttle whose longest interval is `bulk`. Zero never pauses.
    #[must_use]
    pub const fn new(bulk: Duration) -> Self {
        let ended = Duration::ZERO;
        Self { bulk, state: Load::Low, ended, bytes: 0, began: None }
    }

    /// A poll found packets at `now`.
    pub fn worked(&mut self, now: Duration) {
        self.began.get_or_insert(now);
    }

    /// A poll found the queues empty at `now`, after `bytes` in all. Returns how long to pause;
    /// `None` polls again at once.
    pub fn pause(&mut self, now: Duration, bytes: impl FnOnce() -> u64) -> Option<Duration> {
        let began = self.began.take()?;
        if self.bulk.is_zero() {
            return None;
        }
        let bytes = bytes();
        let time = now.saturating_sub(self.ended).as_micros().max(1);
        let per_us = u128::from(bytes.saturating_sub(self.bytes)) / time;
        (self.ended, self.bytes) = (now, bytes);
        self.state = match self.state {
            Load::Lowest if per_us > u128::from(LOWEST_MAX) => Load::Low,
            Load::Low if per_us > u128::from(LOW_MAX) => Load::Bulk,
            Load::Low if per_us <= u128::from(LOWEST_MAX) => Load::Lowest,
            Load::Bulk if per_us <= u128::from(LOW_MAX) => Load::Low,
            same => same,
        };
        let interval = match self.state {
            Load::Lowest => return None,
            Load::Low => self.bulk * LOW_SHARE.0 / LOW_SHARE.1,
            Load::Bulk => self.bulk,
        };
        (began + interval).checked_sub(now).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BULK: Duration = Duration::from_micros(125);

    /// Simulates polls that each take 5 us, with `per_us` bytes per microsecond from moment `from`
    /// on. Returns their pauses, and the moment at the end.
    fn pauses(throttle: &mut Throttle, from: u64, per_us: u64, polls: usize) -> (Vec<u64>, u64) {
        let (mut now, mut bytes, mut found) = (from, throttle.bytes, Vec::new());
        for _ in 0..polls {
            throttle.worked(Duration::from_micros(now));
            now += 5;
            bytes += per_us * (now - u64::try_from(throttle.ended.as_micros()).unwrap());
            let pause = throttle.pause(Duration::from_micros(now), || bytes);
            let pause = pause.map_or(0, |pause| u64::try_from(pause.as_micros()).unwrap());
            found.push(pause);
            // Without a pause the next poll finds a packet at once.
            now += pause;
        }
        (found, now)
    }

    #[test]
    fn the_load_decides_step_by_step() {
        let mut throttle = Throttle::new(BULK);
        let (found, now) = pauses(&mut throttle, 1_000, 5, 3);
        assert_eq!(found, [0, 0, 0], "little traffic never waits");
        let (found, now) = pauses(&mut throttle, now, 15, 3);
        assert_eq!(found, [45, 45, 45], "20,000 polls per second");
        let (found, now) = pauses(&mut throttle, now, 1_000, 3);
        assert_eq!(found, [120, 120, 120], "8,000 polls per second");
        let (found, _) = pauses(&mut throttle, now, 1, 3);
        assert_eq!(found, [45, 0, 0], "down by one step each");
    }

    #[test]
    fn only_polls_that_found_something_count() {
        let mut throttle = Throttle::new(BULK);
        let (_, now) = pauses(&mut throttle, 1_000, 1_000, 3);
        let now = Duration::from_micros(now);
        let no_bytes = || panic!("nothing to count");
        assert_eq!(throttle.pause(now, no_bytes), None, "nothing was found");
        // A poll that took longer than the interval is followed by the next without a pause.
        throttle.worked(now);
        let bytes = throttle.bytes + 1_000_000;
        assert_eq!(throttle.pause(now + BULK, || bytes), None);
    }

    #[test]
    fn without_an_interval_nothing_waits() {
        let mut throttle = Throttle::new(Duration::ZERO);
        let (found, _) = pauses(&mut throttle, 1_000, 1_000, 3);
        assert_eq!(found, [0, 0, 0]);
    }
}
