//! One direction of the shadow socket: bytes in order with latency, then an end or a reset.
//!
//! Invariant: bytes that were sent are received once, in order, and before the end. No byte is
//! received before its time.

use std::collections::VecDeque;

/// The result of a non-blocking receive.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    Bytes(Vec<u8>),
    End,
    Reset,
    Nothing,
}

/// The time of arrival of what waits at a cut.
const HELD: u64 = u64::MAX;

/// One direction of the connection.
#[derive(Debug, Default)]
pub struct Pipe {
    queue: VecDeque<(u64, u8)>,
    capacity: usize,
    last: u64,
    end: Option<u64>,
    reset: Option<u64>,
    /// The receiving end closed its socket.
    deaf: bool,
}

impl Pipe {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    fn arrival(&mut self, time: u64) -> u64 {
        self.last = self.last.max(time);
        self.last
    }

    /// Accepts as many bytes as fit. `None` if the receiver closed or the direction ended.
    pub fn send(&mut self, bytes: &[u8], arrives: u64) -> Option<usize> {
        if self.deaf || self.end.is_some() || self.reset.is_some() {
            return None;
        }
        let size = bytes.len().min(self.capacity.saturating_sub(self.queue.len()));
        let time = self.arrival(arrives);
        self.queue.extend(bytes[..size].iter().map(|byte| (time, *byte)));
        Some(size)
    }

    /// Accepts as many bytes as fit, and `least` at least if what went before has arrived.
    pub fn send_at_least(&mut self, bytes: &[u8], least: usize, arrives: u64) -> Option<usize> {
        let capacity = self.capacity;
        if self.queue.iter().all(|(time, _)| *time < arrives) {
            self.capacity = capacity.max(self.queue.len() + least);
        }
        let sent = self.send(bytes, arrives);
        self.capacity = capacity;
        sent
    }

    /// Accepts all bytes, without a limit.
    pub fn send_all(&mut self, bytes: &[u8], arrives: u64) {
        let capacity = std::mem::replace(&mut self.capacity, usize::MAX);
        self.send(bytes, arrives);
        self.capacity = capacity;
    }

    /// The kernel holds more from now on.
    pub fn grow(&mut self) {
        self.capacity += 4096;
    }

    /// True if all that was sent has arrived.
    pub fn has_arrived(&self, now: u64) -> bool {
        self.queue.back().is_none_or(|(time, _)| *time <= now)
    }

    /// All that is on its way arrives now, unless a cut holds it. False then.
    pub fn arrive(&mut self, now: u64) -> bool {
        let is_held = self.queue.back().is_some_and(|(time, _)| *time == HELD);
        self.queue.iter_mut().filter(|(time, _)| *time != HELD).for_each(|(time, _)| {
            *time = (*time).min(now);
        });
        !is_held
    }

    /// Accepts a wakeup. There is always room for one more byte.
    pub fn ring(&mut self, arrives: u64) {
        if !self.deaf && self.end.is_none() && self.reset.is_none() {
            let time = self.arrival(arrives);
            self.queue.push_back((time, 0));
        }
    }

    pub fn finish(&mut self, arrives: u64) {
        let time = self.arrival(arrives);
        self.end.get_or_insert(time);
    }

    pub fn abort(&mut self, arrives: u64) {
        let time = self.arrival(arrives);
        self.reset.get_or_insert(time);
    }

    /// The link is cut: what is on its way, and what follows, waits.
    pub fn cut(&mut self, now: u64) {
        let hold = |time: &mut u64| {
            if *time > now {
                *time = HELD;
            }
        };
        self.queue.iter_mut().for_each(|(time, _)| hold(time));
        self.end.iter_mut().chain(&mut self.reset).for_each(hold);
        self.last = HELD;
    }

    /// The link is mended: what waited arrives at `arrives`.
    pub fn mend(&mut self, arrives: u64) {
        let release = |time: &mut u64| {
            if *time == HELD {
                *time = arrives;
            }
        };
        self.queue.iter_mut().for_each(|(time, _)| release(time));
        self.end.iter_mut().chain(&mut self.reset).for_each(release);
        self.last = arrives;
    }

    /// The receiving end aborts the connection: it reads a reset from now on.
    pub fn reset(&mut self, now: u64) {
        self.close();
        self.reset = Some(now);
    }

    /// Closes the receiving end. True if it left bytes unread, so that the sender must get a reset.
    pub fn close(&mut self) -> bool {
        self.deaf = true;
        let unread = !self.queue.is_empty();
        self.queue.clear();
        unread
    }

    /// Number of bytes that a receive would find.
    pub fn ready(&self, now: u64) -> usize {
        self.queue.iter().take_while(|(time, _)| *time <= now).count()
    }

    pub fn has_bytes(&self, now: u64) -> bool {
        self.queue.front().is_some_and(|(time, _)| *time <= now)
    }

    /// True if the end or the reset has arrived, even if bytes before it are unread.
    pub fn is_over(&self, now: u64) -> bool {
        self.end.is_some_and(|time| time <= now) || self.is_reset(now)
    }

    pub fn is_reset(&self, now: u64) -> bool {
        self.reset.is_some_and(|time| time <= now)
    }

    /// True if a send would accept bytes, or fail at once.
    pub fn is_writable(&self) -> bool {
        self.deaf || self.reset.is_some() || self.queue.len() < self.capacity
    }

    pub fn receive(&mut self, maximum: usize, peek: bool, now: u64) -> Received {
        let size = self.ready(now).min(maximum);
        if size > 0 {
            let bytes = self.queue.iter().take(size).map(|(_, byte)| *byte).collect();
            if !peek {
                self.queue.drain(..size);
            }
            return Received::Bytes(bytes);
        }
        if !self.queue.is_empty() {
            return Received::Nothing;
        }
        if self.is_reset(now) {
            Received::Reset
        } else if self.is_over(now) {
            Received::End
        } else {
            Received::Nothing
        }
    }

    /// The time at which the next byte, end or reset arrives.
    pub fn next(&self, now: u64) -> Option<u64> {
        let queued = self.queue.iter().map(|(time, _)| *time).find(|time| *time > now);
        let all = queued.into_iter().chain(self.end).chain(self.reset);
        all.filter(|time| *time > now && *time != HELD).min()
    }
}
