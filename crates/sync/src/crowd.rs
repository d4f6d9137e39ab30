//! Whether others want the processor, told by how long a yield takes.
//!
//! A yield that nobody else wanted comes back within a system call; one that let somebody run takes
//! several times as long. That is a fact about the machine and not about one waiter, so it is kept
//! for the whole process. On a crowded machine the thread that is waited for may be behind this one
//! in the queue: whoever yields nearly at once lets it run, whoever spins first keeps it waiting.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Quick yields in a row after which the machine no longer counts as crowded.
const QUICK_YIELDS: u32 = 16;
/// A yield that takes this long let somebody else run, on any machine.
const LONG: Duration = Duration::from_micros(2);
/// A yield that takes so many times as long as the quickest one let somebody else run.
const TIMES_LONGER: u32 = 3;

/// What this process found out. Threads may overwrite each other's findings, which are the same in
/// the long run.
static CROWD: Crowd = Crowd::new();

/// Gives the processor to whoever else wants it, and learns whether somebody did.
#[allow(clippy::disallowed_methods, reason = "the yield is measured; no protocol depends on it")]
pub fn yield_core() {
    let start = Instant::now();
    rustix::thread::sched_yield();
    CROWD.note(start.elapsed());
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

    fn note(&self, took: Duration) {
        let took_ns = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
        let quickest = self.quickest_ns.load(Ordering::Relaxed).min(took_ns);
        self.quickest_ns.store(quickest, Ordering::Relaxed);
        let left = self.left.load(Ordering::Relaxed);
        if took >= LONG || took_ns > quickest.saturating_mul(TIMES_LONGER) {
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
        crowd.note(Duration::from_nanos(600));
        crowd.note(Duration::from_micros(5));
        for _ in 0..QUICK_YIELDS {
            assert!(crowd.is_there());
            crowd.note(Duration::from_nanos(600));
        }
        assert!(!crowd.is_there());
        crowd.note(Duration::from_nanos(1900));
        assert!(crowd.is_there());
    }
}
