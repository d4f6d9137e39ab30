//! The bounds of the machine itself: two threads pass a number to and fro through two cache lines.
//!
//! No transport is faster. `bench/compare.py` holds the latency of shm against it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, anyhow};
use rustix::thread::CpuSet;

use super::initiator::{Plan, Sample};
use super::report::Report;
use crate::arguments::{PerfArguments, PerfTest, TransportName};

/// Round trips of a run.
const ITERATIONS: u64 = 1_000_000;
/// The number that ends the measurement.
const STOP: u64 = u64::MAX;

/// A word with two cache lines of its own: neighbours are fetched in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Measures as often as asked for.
pub fn measure(arguments: &PerfArguments) -> anyhow::Result<Report> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    let first = cores.next().context("the system allows no core")?;
    let last = cores.next_back().context("two cores are needed, but the system allows one")?;
    let lines = Arc::new([Line::default(), Line::default()]);
    let answering = Arc::clone(&lines);
    let other = thread::spawn(move || answer(&answering, last));
    pin(first)?;
    let iterations = arguments.iterations.unwrap_or(ITERATIONS).clamp(1, STOP / 2);
    let samples = (0..arguments.runs.max(1)).map(|_| ask(&lines, iterations)).collect();
    lines[0].0.store(STOP, Ordering::Release);
    other.join().map_err(|_| anyhow!("the other thread panicked"))??;
    let placement = format!("two threads, pinned to cores {first} and {last}");
    let plan = Plan { size: 8, iterations };
    Ok(Report::new(PerfTest::Cacheline, TransportName::Shm, plan, &placement, samples))
}

fn ask(lines: &[Line; 2], iterations: u64) -> Sample {
    lines[1].0.store(0, Ordering::Release);
    lines[0].0.store(0, Ordering::Release);
    let start = Instant::now();
    for number in 1..=iterations {
        lines[0].0.store(number, Ordering::Release);
        #[allow(clippy::missing_spin_loop, reason = "a pause would be measured too")]
        while lines[1].0.load(Ordering::Acquire) != number {}
    }
    let elapsed = start.elapsed().as_secs_f64() * 1e9;
    let mean_ns = elapsed / iterations as f64 / 2.0;
    Sample { mean_ns, p99_ns: mean_ns, ..Sample::default() }
}

fn answer(lines: &[Line; 2], core: usize) -> anyhow::Result<()> {
    pin(core)?;
    let mut last = 0;
    loop {
        let number = lines[0].0.load(Ordering::Acquire);
        if number == STOP {
            return Ok(());
        }
        if number != last {
            last = number;
            lines[1].0.store(number, Ordering::Release);
        }
    }
}

fn pin(core: usize) -> anyhow::Result<()> {
    let mut wanted = CpuSet::new();
    wanted.set(core);
    Ok(rustix::thread::sched_setaffinity(None, &wanted)?)
}
