//! The near end of a measurement, whatever it measures: its waits and its times.

use anyhow::ensure;
use hdrhistogram::Histogram;

use super::Surroundings;
use super::initiator::{Plan, Sample};
use crate::arguments::PerfTest;

/// Turns without any event until the other end counts as lost.
const IDLE_TURNS_MAX: u64 = 2_000_000_000;

/// The near end of a measurement.
pub trait Near {
    /// The time, and the other end.
    fn surroundings(&self) -> &impl Surroundings;

    /// One run of a test.
    ///
    /// # Errors
    /// When the other end is gone, or the transport failed or lost something.
    fn run(&mut self, test: PerfTest, plan: Plan) -> anyhow::Result<Sample>;

    /// Takes what came in. If nothing did, the other end, or time, moves on.
    ///
    /// # Errors
    /// As [`Near::run`].
    fn turn(&mut self) -> anyhow::Result<()>;

    /// Tells the far end that it is over.
    ///
    /// # Errors
    /// As [`Near::run`].
    fn stop(&mut self) -> anyhow::Result<()>;
}

/// Takes turns until `done` says that it is.
///
/// # Errors
/// As [`Near::run`], and those of `done`.
pub fn until<N: Near>(
    near: &mut N,
    mut done: impl FnMut(&mut N) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let mut turns: u64 = 0;
    while !done(near)? {
        near.turn()?;
        turns += 1;
        ensure!(turns < IDLE_TURNS_MAX, "the other end no longer answers");
    }
    Ok(())
}

/// Times of single operations, picoseconds.
#[derive(Debug)]
pub struct Times {
    histogram: Histogram<u64>,
    stamp: u64,
}

impl Times {
    /// From `now` on, nanoseconds. Times of 1 ps to 1000 s are kept to three digits.
    pub fn from(now: u64) -> anyhow::Result<Self> {
        let histogram = Histogram::new_with_bounds(1, 1_000_000_000_000_000, 3)?;
        Ok(Self { histogram, stamp: now })
    }

    /// Records the time of each of `group` operations since the last record.
    pub fn record(&mut self, now: u64, group: u64) -> anyhow::Result<()> {
        self.histogram.record_n(((now - self.stamp) * 1_000 / group).max(1), group)?;
        self.stamp = now;
        Ok(())
    }

    /// The time since the last record does not count.
    pub fn leave_out(&mut self, now: u64) {
        self.stamp = now;
    }

    /// The time that 99 of 100 operations stayed below, nanoseconds; `None` without any.
    pub fn p99(&self) -> Option<f64> {
        let is_empty = self.histogram.is_empty();
        (!is_empty).then(|| self.histogram.value_at_quantile(0.99) as f64 / 1_000.0)
    }
}

/// The time of one operation, nanoseconds.
pub fn per(elapsed_ns: u64, count: u64) -> f64 {
    elapsed_ns as f64 / count as f64
}

/// Repeats `trip`: once without time stamps inside for the mean, once with them for the p99.
pub fn round_trips<N: Near>(
    near: &mut N,
    iterations: u64,
    mut trip: impl FnMut(&mut N) -> anyhow::Result<()>,
) -> anyhow::Result<(f64, f64)> {
    let start = near.surroundings().now_ns();
    for _ in 0..iterations {
        trip(near)?;
    }
    let mean = per(near.surroundings().now_ns() - start, iterations);
    let mut times = Times::from(near.surroundings().now_ns())?;
    for _ in 0..iterations {
        trip(near)?;
        times.record(near.surroundings().now_ns(), 1)?;
    }
    Ok((mean, times.p99().unwrap_or(mean)))
}

/// As [`round_trips`], half of the way there and back.
pub fn one_way<N: Near>(
    near: &mut N,
    iterations: u64,
    trip: impl FnMut(&mut N) -> anyhow::Result<()>,
) -> anyhow::Result<(f64, f64)> {
    let (mean, p99) = round_trips(near, iterations, trip)?;
    Ok((mean / 2.0, p99 / 2.0))
}
