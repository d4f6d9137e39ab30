//! Counters of a unit: operations, bytes, latencies.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

/// Latencies are counted by powers of two of microseconds; the last one has all that took longer.
const BUCKETS: usize = 26;

/// Counters of one kind of operation.
#[derive(Debug, Default)]
pub struct Counters {
    operations: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// Counters of a unit.
#[derive(Debug, Default)]
pub struct Statistics {
    /// Reads.
    pub reads: Counters,
    /// Writes.
    pub writes: Counters,
    /// All others that work on the store.
    pub others: Counters,
    queued: AtomicI64,
}

/// The counters of one kind, for people and scripts.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Operations that ended.
    pub operations: u64,
    /// Those of them that failed.
    pub errors: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Their mean time in microseconds.
    pub mean_us: f64,
    /// A time in microseconds that half of them did not exceed, up to a factor of two.
    pub median_us: u64,
    /// A time in microseconds that 99 of 100 did not exceed, up to a factor of two.
    pub p99_us: u64,
}

impl Counters {
    /// Counts an operation of `bytes` that took `nanoseconds`.
    pub fn count(&self, bytes: u64, nanoseconds: u64, is_good: bool) {
        self.operations.fetch_add(1, Relaxed);
        if !is_good {
            self.errors.fetch_add(1, Relaxed);
        }
        self.bytes.fetch_add(bytes, Relaxed);
        self.nanoseconds.fetch_add(nanoseconds, Relaxed);
        let bits = u64::BITS - (nanoseconds / 1000).leading_zeros();
        self.buckets[(bits as usize).min(BUCKETS - 1)].fetch_add(1, Relaxed);
    }

    /// The counters now.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let operations = self.operations.load(Relaxed);
        let buckets: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        let whole: u64 = buckets.iter().sum();
        let below = |part: f64| {
            let mut seen = 0;
            let at = buckets.iter().position(|count| {
                seen += count;
                seen as f64 >= part * whole as f64
            });
            if whole == 0 { 0 } else { 1 << at.unwrap_or(BUCKETS - 1) }
        };
        let mean_us = match operations {
            0 => 0.0,
            _ => self.nanoseconds.load(Relaxed) as f64 / 1000.0 / operations as f64,
        };
        Summary {
            operations,
            errors: self.errors.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            mean_us,
            median_us: below(0.5),
            p99_us: below(0.99),
        }
    }
}

impl Statistics {
    /// A command has begun.
    pub fn begin(&self) {
        self.queued.fetch_add(1, Relaxed);
    }

    /// A command has ended.
    pub fn end(&self) {
        self.queued.fetch_sub(1, Relaxed);
    }

    /// Commands that have begun and not ended.
    #[must_use]
    pub fn queue(&self) -> u64 {
        u64::try_from(self.queued.load(Relaxed)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_told_within_a_factor_of_two() {
        let counters = Counters::default();
        for _ in 0..98 {
            counters.count(512, 10_000, true);
        }
        counters.count(512, 3_000_000, true);
        counters.count(512, 3_000_000, false);
        let summary = counters.summary();
        assert_eq!((summary.operations, summary.errors, summary.bytes), (100, 1, 51_200));
        assert_eq!((summary.median_us, summary.p99_us), (16, 4096));
        assert!((summary.mean_us - 69.8).abs() < 0.01);
        assert_eq!(Counters::default().summary().p99_us, 0);
    }
}
