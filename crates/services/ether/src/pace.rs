//! The rate limit of a device whose queue cannot be stopped.
//!
//! A TAP device drops packets when its queue is full. TCP slows down by itself when
//! acknowledgements stay out; a flood of datagrams does not. So a queueing discipline in front of
//! the queue limits the rate, which follows the rate at which this process reads packets. Packets
//! then wait in the discipline and are charged to the sending socket, so that the sender blocks
//! (RED-SEA-D2.3#3.5 stops the queue instead, which TUN of Linux up to 6.18 cannot).

use std::time::Duration;

use crate::counters::Counters;

/// Packets per second that no device reaches: no limit.
pub const RATE_MAX: u32 = 1_000_000;
/// The least rate, while no packets are read. A queue of 10,000 packets lasts long at it.
const RATE_MIN: u32 = 100;
/// How often the rate may change. Short against the time that fills the queue.
const INTERVAL: Duration = Duration::from_millis(10);
/// The limit during a flood, as a share of the rate of reading. It is below one, so that the queue
/// empties.
const SHARE: (u64, u64) = (9, 10);
/// The growth of the rate in every interval in which the queue was empty once.
const GROWTH: (u32, u32) = (3, 2);
/// A flood: at least one of so many packets read is not TCP.
const OTHERS: u64 = 8;

/// The rate limit of one device, whose queues share the discipline.
#[derive(Debug)]
pub struct Pace {
    rate: u32,
    since: Duration,
    /// Packets read until `since`, and those of TCP.
    packets: u64,
    of_tcp: u64,
    /// The packets read in the last interval that had any were a flood.
    is_flood: bool,
    queues: Vec<Queue>,
}

/// The state of one queue.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    packets: u64,
    of_tcp: u64,
    was_empty: bool,
    /// The queue's reader sleeps until a packet arrives.
    rests: bool,
}

impl Pace {
    /// No limit, from `now` on, for a device with `queues` queues.
    #[must_use]
    pub fn new(queues: usize, now: Duration) -> Self {
        let queue = Queue { was_empty: true, ..Queue::default() };
        let queues = vec![queue; queues];
        Self { rate: RATE_MAX, since: now, packets: 0, of_tcp: 0, is_flood: false, queues }
    }

    /// The queue was read: `counters` are its totals, `is_empty` says whether nothing was left.
    pub fn read(&mut self, queue: u8, counters: &Counters, is_empty: bool) {
        if let Some(queue) = self.queues.get_mut(usize::from(queue)) {
            queue.packets = counters.packets_from_device;
            queue.of_tcp = counters.tcp_from_device;
            queue.was_empty |= is_empty;
            queue.rests = false;
        }
    }

    /// The reader of a queue found it empty and goes to sleep.
    pub fn rests(&mut self, queue: u8) {
        if let Some(queue) = self.queues.get_mut(usize::from(queue)) {
            queue.rests = true;
        }
    }

    /// The rate limit from now on, in packets per second. `None` while no new one is due.
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

    /// A simulated queue of 10,000 packets. Senders fill it as fast as the limit permits, a program
    /// reads `drain` packets per second, and `dropped` counts the packets that did not fit.
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
    fn a_flood_is_limited_to_the_rate_of_reading_and_nothing_is_dropped() {
        let mut flood = Flood::new();
        flood.go(10_000, 500_000, 200_000, false);
        assert_eq!(flood.dropped, 0);
        let read = flood.counters.packets_from_device;
        assert!(read > 1_800_000, "{read} of 2,000,000 were read in 10 s");
        // The reader gets half of its processor for a while, and then stops.
        flood.go(1_000, 500_000, 100_000, false);
        flood.go(3_000, 500_000, 0, false);
        assert_eq!(flood.dropped, 0);
        flood.go(1_000, 500_000, 200_000, false);
        assert_eq!(flood.dropped, 0);
        let rest = flood.counters.packets_from_device - read;
        assert!(rest > 240_000, "{rest} of 300,000 were read in the last seconds");
    }

    #[test]
    fn tcp_streams_and_slower_senders_are_not_limited() {
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
    fn a_flood_on_one_queue_limits_the_device_although_another_is_idle() {
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
