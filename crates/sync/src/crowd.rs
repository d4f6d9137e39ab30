//! Whether others want the processor, told by how long a yield takes.
//!
//! A yield that nobody else wanted comes back within a system call; one that let somebody run takes
//! several times as long, and the kernel counts a switch. (It may also take long because a
//! hypervisor took the processor away, which spinning less would not help.) That is a fact about
//! the machine and not about one waiter, so it is kept for the whole process. On a crowded machine
//! the thread that is waited for may be behind this one in the queue: whoever yields nearly at once
//! lets it run, whoever spins first keeps it waiting.
//!
//! A program that computes is a crowd of another kind. It keeps the processor for its whole slice,
//! some milliseconds, while the kernel puts a thread that was asleep and is woken ahead of it.
//! Where one was met, nobody yields for a while: waiters sleep at once.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::sys;

/// Quick yields in a row after which the machine no longer counts as crowded.
const QUICK_YIELDS: u32 = 16;
/// A yield that takes this long let somebody else run, on any machine.
const LONG: Duration = Duration::from_micros(2);
/// A yield that takes so many times as long as the quickest one let somebody else run.
const TIMES_LONGER: u32 = 3;

/// A yield that takes this long met a program that computes: no slice of Linux is shorter. Ends of
/// connections that answer each other keep a processor for some microseconds.
const SLICE: Duration = Duration::from_micros(700);
/// Now and then something else runs for as long. So many slices in a window of time are no chance.
const WINDOW_NS: u64 = 20_000_000;
const LOST_NS: u64 = 8_000_000;
/// How long nobody yields then. The yields that find out whether it is still there cost their
/// slices, so finding it there doubles the time, up to the most.
const NO_YIELDS_NS: u64 = 100_000_000;
const NO_YIELDS_MOST_NS: u64 = 32 * NO_YIELDS_NS;
/// After this time without one the next is a new one.
const FORGOTTEN_NS: u64 = 1_000_000_000;

/// What this process found out. Threads may overwrite each other's findings, which are the same in
/// the long run.
static CROWD: Crowd = Crowd::new();

/// Gives the processor to whoever else wants it, and learns whether somebody did. Returns how long
/// this thread was away.
pub fn yield_core() -> Duration {
    let start = now_ns();
    rustix::thread::sched_yield();
    let end = now_ns();
    let took = Duration::from_nanos(end.saturating_sub(start));
    CROWD.note(end, took, switched);
    took
}

fn now_ns() -> u64 {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
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

/// True while a yield would probably cost a slice: a waiter had better sleep.
#[inline]
#[must_use]
pub fn is_computing() -> bool {
    CROWD.is_computing(now_ns)
}

#[derive(Debug)]
struct Crowd {
    /// Quick yields still to come before the machine counts as free.
    left: AtomicU32,
    /// The quickest yield so far.
    quickest_ns: AtomicU32,
    /// When the window of slices given away began, and what they took.
    window_ns: AtomicU64,
    lost_ns: AtomicU64,
    /// Nobody yields before this moment.
    no_yields_until_ns: AtomicU64,
    /// How long that was.
    no_yields_ns: AtomicU64,
}

impl Crowd {
    const fn new() -> Self {
        Self {
            left: AtomicU32::new(0),
            quickest_ns: AtomicU32::new(u32::MAX),
            window_ns: AtomicU64::new(0),
            lost_ns: AtomicU64::new(0),
            no_yields_until_ns: AtomicU64::new(0),
            no_yields_ns: AtomicU64::new(0),
        }
    }

    #[inline]
    fn is_there(&self) -> bool {
        self.left.load(Ordering::Relaxed) != 0
    }

    #[inline]
    fn is_computing(&self, now_ns: impl FnOnce() -> u64) -> bool {
        let until = self.no_yields_until_ns.load(Ordering::Relaxed);
        until != 0 && now_ns() < until
    }

    /// A yield took so long and ended now.
    fn note(&self, now_ns: u64, took: Duration, switched: impl FnOnce() -> bool) {
        let took_ns = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
        let quickest = self.quickest_ns.load(Ordering::Relaxed).min(took_ns);
        self.quickest_ns.store(quickest, Ordering::Relaxed);
        let left = self.left.load(Ordering::Relaxed);
        let long = took >= LONG || took_ns > quickest.saturating_mul(TIMES_LONGER);
        // Asking the kernel is another call: while the answer is known, a slice alone is worth it.
        let is_known = left > QUICK_YIELDS / 2 && took < SLICE;
        if long && !is_known && switched() {
            self.left.store(QUICK_YIELDS, Ordering::Relaxed);
            if took >= SLICE {
                self.gave_slice(now_ns, u64::from(took_ns));
            }
        } else if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
        }
    }

    fn gave_slice(&self, now_ns: u64, took_ns: u64) {
        if self.is_computing(|| now_ns) {
            // Another thread met it at the same time.
            return;
        }
        let mut lost = took_ns;
        if now_ns.saturating_sub(self.window_ns.load(Ordering::Relaxed)) < WINDOW_NS {
            lost += self.lost_ns.load(Ordering::Relaxed);
        } else {
            self.window_ns.store(now_ns.saturating_sub(took_ns), Ordering::Relaxed);
        }
        self.lost_ns.store(lost, Ordering::Relaxed);
        if lost < LOST_NS {
            return;
        }
        let former = self.no_yields_until_ns.load(Ordering::Relaxed);
        let period = if now_ns.saturating_sub(former) < FORGOTTEN_NS {
            self.no_yields_ns.load(Ordering::Relaxed) * 2
        } else {
            0
        };
        let period = period.clamp(NO_YIELDS_NS, NO_YIELDS_MOST_NS);
        self.lost_ns.store(0, Ordering::Relaxed);
        self.no_yields_ns.store(period, Ordering::Relaxed);
        self.no_yields_until_ns.store(now_ns + period, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_nanos(600);

    #[test]
    fn a_long_yield_makes_a_crowd_and_quick_ones_end_it() {
        let crowd = Crowd::new();
        crowd.note(1, QUICK, || unreachable!("it was quick"));
        crowd.note(2, Duration::from_micros(5), || false);
        assert!(!crowd.is_there(), "nobody ran meanwhile");
        crowd.note(3, Duration::from_micros(5), || true);
        for _ in 0..QUICK_YIELDS {
            assert!(crowd.is_there());
            crowd.note(4, QUICK, || unreachable!("it was quick"));
        }
        assert!(!crowd.is_there());
        crowd.note(5, Duration::from_micros(5), || true);
        for _ in 0..QUICK_YIELDS / 2 {
            crowd.note(5, Duration::from_micros(5), || unreachable!("it is known"));
        }
        crowd.note(5, Duration::from_micros(5), || true);
        for _ in 0..QUICK_YIELDS {
            crowd.note(5, QUICK, || unreachable!("it was quick"));
        }
        assert!(!crowd.is_there());
        crowd.note(5, Duration::from_nanos(1900), || true);
        assert!(crowd.is_there());
        assert!(!crowd.is_computing(|| 6));
    }

    const LONG_SLICE: Duration = Duration::from_millis(2);

    /// One slice after the other is given away, a quick yield between them; when that began and
    /// ended yields.
    fn meet(crowd: &Crowd, mut now_ns: u64) -> u64 {
        for _ in 0..4 {
            assert!(!crowd.is_computing(|| now_ns));
            now_ns += 2_000_000;
            crowd.note(now_ns, LONG_SLICE, || true);
            crowd.note(now_ns, QUICK, || unreachable!("it was quick"));
        }
        now_ns
    }

    #[test]
    fn slices_given_away_end_yields_for_a_while() {
        let crowd = Crowd::new();
        for now_ns in 0..10 {
            crowd.note(now_ns * 2_000_000, LONG_SLICE, || false);
            assert!(!crowd.is_computing(|| now_ns), "a hypervisor took them");
            crowd.note(now_ns * WINDOW_NS, LONG_SLICE, || true);
            assert!(!crowd.is_computing(|| now_ns), "it was one");
        }
        let mut now = 10 * FORGOTTEN_NS;
        for period in [1, 2, 4, 8, 16, 32, 32].map(|times| times * NO_YIELDS_NS) {
            now = meet(&crowd, now);
            // Another thread meets it at the same time.
            crowd.note(now, LONG_SLICE, || true);
            now += period;
            assert!(crowd.is_computing(|| now - 1));
            assert!(!crowd.is_computing(|| now));
        }
        now = meet(&crowd, now + FORGOTTEN_NS);
        assert!(!crowd.is_computing(|| now + NO_YIELDS_NS), "another one");
    }
}
