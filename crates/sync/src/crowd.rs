//! Whether others want the processor, told by how long a yield takes.
//!
//! A yield that nobody else wanted comes back within a system call; one that let somebody run takes
//! several times as long, and the kernel counts a switch. (It may also take long because a
//! hypervisor took the processor away, which spinning less would not help.) That is a fact about
//! the machine and not about one waiter, so it is kept for the whole process. On a crowded machine
//! the thread that is waited for may be behind this one in the queue: whoever yields nearly at once
//! lets it run, whoever spins first keeps it waiting.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::sys;

/// Quick yields in a row after which the machine no longer counts as crowded.
const QUICK_YIELDS: u32 = 16;
/// A yield that takes this long let somebody else run, on any machine.
const LONG: Duration = Duration::from_micros(2);
/// A yield that takes so many times as long as the quickest one let somebody else run.
const TIMES_LONGER: u32 = 3;

/// What this process found out. Threads may overwrite each other's findings, which are the same in
/// the long run.
static CROWD: Crowd = Crowd::new();

/// Gives the processor to whoever else wants it, and learns whether somebody did. Returns how long
/// this thread was away.
#[allow(clippy::disallowed_methods, reason = "the yield is measured; no protocol depends on it")]
pub fn yield_core() -> Duration {
    let start = Instant::now();
    rustix::thread::sched_yield();
    let took = start.elapsed();
    CROWD.note(took, switched);
    took
}

/// Somebody else ran in place of this thread since this was asked the last time.
fn switched() -> bool {
    thread_local! {
        static SEEN: Cell<i64> = const { Cell::new(0) };
    }
    let switches = sys::involuntary_switches();
    SEEN.replace(switches) != switches
}

/// True when others wanted the processor lately.
#[inline]
#[must_use]
pub fn is_crowded() -> bool {
    CROWD.is_there()
}

#[derive(Debug)]
struct Crowd {
    /// Quick yields still to come before the machine counts as free.
    left: AtomicU32,
    /// The quickest yield so far.
    quickest_ns: AtomicU32,
}

impl Crowd {
    const fn new() -> Self {
        Self { left: AtomicU32::new(0), quickest_ns: AtomicU32::new(u32::MAX) }
    }

    #[inline]
    fn is_there(&self) -> bool {
        self.left.load(Ordering::Relaxed) != 0
    }

    fn note(&self, took: Duration, switched: impl FnOnce() -> bool) {
        let took_ns = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
        let quickest = self.quickest_ns.load(Ordering::Relaxed).min(took_ns);
        self.quickest_ns.store(quickest, Ordering::Relaxed);
        let left = self.left.load(Ordering::Relaxed);
        let long = took >= LONG || took_ns > quickest.saturating_mul(TIMES_LONGER);
        if long && switched() {
            self.left.store(QUICK_YIELDS, Ordering::Relaxed);
        } else if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_yield_makes_a_crowd_and_quick_ones_end_it() {
        let crowd = Crowd::new();
        crowd.note(Duration::from_nanos(600), || unreachable!("it was quick"));
        crowd.note(Duration::from_micros(5), || false);
        assert!(!crowd.is_there(), "nobody ran meanwhile");
        crowd.note(Duration::from_micros(5), || true);
        for _ in 0..QUICK_YIELDS {
            assert!(crowd.is_there());
            crowd.note(Duration::from_nanos(600), || unreachable!("it was quick"));
        }
        assert!(!crowd.is_there());
        crowd.note(Duration::from_nanos(1900), || true);
        assert!(crowd.is_there());
    }
}
