//! Counts what a connection moves over TCP while it has no lane.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::history::Done;

/// The calls in one direction that moved bytes over TCP while a connection had no lane.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Calls {
    calls: AtomicU64,
    bytes: AtomicU64,
}

impl Calls {
    /// Counts a call. The caller holds the lock of the direction, so no other call is counted
    /// meanwhile.
    #[inline]
    pub fn add(&self, bytes: usize) {
        let add = |count: &AtomicU64, more: u64| {
            count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        };
        add(&self.calls, 1);
        add(&self.bytes, bytes as u64);
    }
}

impl Calls {
    /// True if there was a call.
    #[must_use]
    pub fn are_any(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > 0
    }
}

/// The calls and bytes of a connection over TCP before it asked for a lane.
#[derive(Debug, Default)]
#[repr(C)]
pub struct OverTcp {
    /// Its reads.
    pub reads: Calls,
    /// Its writes.
    pub writes: Calls,
}

impl OverTcp {
    /// All of it.
    #[must_use]
    pub fn done(&self) -> Done {
        let [reads, writes, received, sent] =
            [&self.reads.calls, &self.writes.calls, &self.reads.bytes, &self.writes.bytes]
                .map(|count| count.load(Ordering::Relaxed));
        Done { reads, writes, bytes: received.wrapping_add(sent) }
    }

    /// Its reads and writes together.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.done().calls()
    }

    /// Counts from 0 again.
    pub fn reset(&self) {
        for count in [&self.reads, &self.writes] {
            count.calls.store(0, Ordering::Relaxed);
            count.bytes.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_bytes_of_both_directions_are_counted() {
        let over_tcp = OverTcp::default();
        over_tcp.reads.add(5);
        over_tcp.writes.add(100);
        over_tcp.writes.add(1);
        assert_eq!(over_tcp.done(), Done { reads: 1, writes: 2, bytes: 106 });
        assert_eq!(over_tcp.calls(), 3);
        over_tcp.reset();
        assert_eq!(over_tcp.done(), Done::default());
    }
}
