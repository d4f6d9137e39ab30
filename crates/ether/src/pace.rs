//! How fast a device may hand packets over, when its queue cannot be stopped.
//!
//! The queue of a TAP device drops what it has no room for. TCP stops by itself when nobody
//! acknowledges; a flood of datagrams does not. So a queueing discipline in front of the queue lets
//! packets through at a rate that follows the one at which they are read: then they wait in the
//! discipline, on the account of the socket that sent them, whose sender waits (000 section 3.5
//! stops the queue instead, which TUN of Linux up to 6.18 cannot).

use std::time::Duration;

use crate::counters::Counters;

/// Packets per second that no device reaches.
pub const RATE_MAX: u32 = 1_000_000;
/// What is left when nothing is read: the queue of 10,000 lasts for long.
const RATE_MIN: u32 = 100;
/// How often the rate may change: short against what fills the queue.
const INTERVAL: Duration = Duration::from_millis(10);
/// Of what is read while the queue is never empty; so it empties.
const SHARE: (u64, u64) = (9, 10);
/// What the rate grows by in every interval in which the queue was empty once.
const GROWTH: (u32, u32) = (3, 2);
/// Of the packets read, how many others than TCP's make a flood: one of so many.
const OTHERS: u64 = 8;

/// The rate of one device, whose queues share the discipline.
#[derive(Debug)]
pub struct Pace {
    rate: u32,
    since: Duration,
    /// What was read until then.
    packets: u64,
    of_tcp: u64,
    /// What was read last was a flood.
    is_flood: bool,
    queues: Vec<Queue>,
}

/// What is known of one queue.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    packets: u64,
    of_tcp: u64,
    was_empty: bool,
    /// Its reader sleeps until there is something.
    rests: bool,
}

impl Pace {
    /// Without a limit, from `now` on, for a device with so many queues.
    #[must_use]
    pub fn new(queues: usize, now: Duration) -> Self {
        let queue = Queue { was_empty: true, ..Queue::default() };
        let queues = vec![queue; queues];
        Self { rate: RATE_MAX, since: now, packets: 0, of_tcp: 0, is_flood: false, queues }
    }

    /// A queue was read: all that came of it so far, and whether it was found empty.
    pub fn read(&mut self, queue: u8, counters: &Counters, is_empty: bool) {
        if let Some(queue) = self.queues.get_mut(usize::from(queue)) {
            queue.packets = counters.packets_from_device;
            queue.of_tcp = counters.tcp_from_device;
            queue.was_empty |= is_empty;
            queue.rests = false;
        }
    }

    /// The reader of a queue that is empty sleeps.
    pub fn rests(&mut self, queue: u8) {
        if let Some(queue) = self.queues.get_mut(usize::from(queue)) {
            queue.rests = true;
        }
    }

    /// The rate that is due from now on, in packets per second, where it changes.
    pub fn due(&mut self, now: Duration) -> Option<u32> {
        let passed = now.saturating_sub(self.since);
        if passed < INTERVAL {
            return None;
        }
        let sum = |of: fn(&Queue) -> u64| self.queues.iter().map(of).sum::<u64>();
        let (all, all_of_tcp) = (sum(|queue| queue.packets), sum(|queue| queue.of_tcp));
        let packets = all - self.packets;
        let others = packets - (all_of_tcp - self.of_tcp);
        if packets > 0 {
            self.is_flood = others * OTHERS >= packets;
        }
        self.rate = if self.queues.iter().all(|queue| queue.was_empty || queue.rests) {
            grown(self.rate, passed)
        } else if self.is_flood {
            let nanoseconds = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
            let read = packets.saturating_mul(1_000_000_000) / nanoseconds;
            let (part, whole) = SHARE;
            let rate = u32::try_from(read * part / whole).unwrap_or(RATE_MAX);
            rate.clamp(RATE_MIN, RATE_MAX)
        } else {
            self.rate
        };
        (self.since, self.packets, self.of_tcp) = (now, all, all_of_tcp);
        self.queues.iter_mut().for_each(|queue| queue.was_empty = false);
        Some(self.rate)
    }
}

fn grown(mut rate: u32, passed: Duration) -> u32 {
    let (more, less) = GROWTH;
    let mut intervals = passed.as_millis() / INTERVAL.as_millis();
    while rate < RATE_MAX && intervals > 0 {
        rate = (rate * more / less).min(RATE_MAX);
        intervals -= 1;
    }
    rate
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue of 10,000 that a device fills, a program reads `drain` packets per second of, and
    /// others than TCP send as fast as they may: how many were dropped in `milliseconds`.
    struct Flood {
        pace: Pace,
        rate: u64,
        waiting: u64,
        dropped: u64,
        counters: Counters,
        now: Duration,
    }

    impl Flood {
        fn new() -> Self {
            let now = Duration::from_secs(1);
            Self {
                pace: Pace::new(1, now),
                rate: u64::from(RATE_MAX),
                waiting: 0,
                dropped: 0,
                counters: Counters::default(),
                now,
            }
        }

        fn go(&mut self, milliseconds: u64, sent: u64, drain: u64, tcp: bool) {
            for _ in 0..milliseconds {
                self.now += Duration::from_millis(1);
                self.waiting += sent.min(self.rate) / 1_000;
                self.dropped += self.waiting.saturating_sub(10_000);
                self.waiting = self.waiting.min(10_000);
                let read = self.waiting.min(drain / 1_000);
                self.waiting -= read;
                self.counters.packets_from_device += read;
                self.counters.tcp_from_device += if tcp { read } else { 0 };
                self.pace.read(0, &self.counters, self.waiting == 0);
                if let Some(rate) = self.pace.due(self.now) {
                    self.rate = u64::from(rate);
                }
            }
        }
    }

    #[test]
    fn a_flood_is_held_to_what_is_read_and_nothing_is_dropped() {
        let mut flood = Flood::new();
        flood.go(10_000, 500_000, 200_000, false);
        assert_eq!(flood.dropped, 0);
        let read = flood.counters.packets_from_device;
        assert!(read > 1_800_000, "{read} of 2,000,000 were read in 10 s");
        // The reader has half of its processor for a while, and then stands still.
        flood.go(1_000, 500_000, 100_000, false);
        flood.go(3_000, 500_000, 0, false);
        assert_eq!(flood.dropped, 0);
        flood.go(1_000, 500_000, 200_000, false);
        assert_eq!(flood.dropped, 0);
        let rest = flood.counters.packets_from_device - read;
        assert!(rest > 240_000, "{rest} of 300,000 were read in the last seconds");
    }

    #[test]
    fn streams_of_tcp_and_senders_that_are_slower_are_not_held() {
        let mut flood = Flood::new();
        flood.go(50, 300_000, 200_000, true);
        flood.go(30, 300_000, 0, true);
        assert_eq!(flood.rate, u64::from(RATE_MAX));
        let mut flood = Flood::new();
        flood.go(1_000, 150_000, 200_000, false);
        assert_eq!(flood.rate, u64::from(RATE_MAX));
    }

    #[test]
    fn after_a_pause_there_is_no_limit() {
        let mut flood = Flood::new();
        flood.go(100, 500_000, 10_000, false);
        assert!(flood.rate < 20_000, "{}", flood.rate);
        flood.go(2_000, 0, 10_000, false);
        assert_eq!(flood.rate, u64::from(RATE_MAX));
        assert_eq!(grown(RATE_MIN, Duration::from_secs(3_600)), RATE_MAX);
    }

    #[test]
    fn a_flood_of_one_queue_counts_and_one_at_rest_does_not() {
        let start = Duration::from_secs(1);
        let mut pace = Pace::new(2, start);
        let read = |packets| Counters { packets_from_device: packets, ..Counters::default() };
        pace.rests(1);
        for interval in 1..=3 {
            pace.read(0, &read(u64::from(interval) * 500), true);
            assert_eq!(pace.due(start + INTERVAL * interval), Some(RATE_MAX));
        }
        pace.read(0, &read(2_000), false);
        pace.read(1, &read(500), true);
        let rate = pace.due(start + INTERVAL * 4).expect("an interval is over");
        assert_eq!(rate, 90_000, "nine tenths of 1,000 packets in 10 ms");
    }
}
