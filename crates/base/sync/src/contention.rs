//! Detects from the duration of yields whether other threads want the processor.
//!
//! A yield returns within a system call if no other thread is runnable. If another thread runs, the
//! yield takes several times as long, and the kernel counts a switch. (A yield may also be long
//! because the hypervisor took the processor; spinning less would not help then.) This is a
//! property of the machine, not of one waiter, so it is kept for the whole process. On a crowded
//! machine the thread that is waited for may be behind this one in the run queue. A waiter that
//! yields at once lets it run; a waiter that spins first keeps it waiting.
//!
//! A program that computes is a different case. It keeps the processor for its whole time slice,
//! some milliseconds, but the kernel runs a woken sleeper before it. After yields met such a
//! program, waiters do not yield for a while but sleep at once.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::sys;

/// Quick yields in a row after which the machine no longer counts as crowded.
const QUICK_YIELDS: u32 = 16;
/// A yield of this duration let another thread run, on any machine.
const LONG: Duration = Duration::from_micros(2);
/// A yield that takes more than this many times as long as the quickest one let another thread run.
const TIMES_LONGER: u32 = 3;

/// A yield of this duration met a program that computes: no time slice of Linux is shorter. The
/// peers of connections that answer each other use a processor for some microseconds only.
const SLICE: Duration = Duration::from_micros(700);
/// A single yield may take that long by chance. Slices of this total in one window may not.
const WINDOW_NS: u64 = 20_000_000;
const LOST_NS: u64 = 8_000_000;
/// How long waiters do not yield then. If the next yields meet a computing program again, the time
/// doubles, up to the maximum, since each such yield costs a time slice.
const NO_YIELDS_NS: u64 = 100_000_000;
const NO_YIELDS_MOST_NS: u64 = 32 * NO_YIELDS_NS;
/// If no computing program is met for this time, the next one starts with the shortest time again.
const FORGOTTEN_NS: u64 = 1_000_000_000;

/// The state of this process. Threads may overwrite each other's updates: all observe the same
/// machine, so the state converges.
static CONTENTION: Contention = Contention::new();

/// Yields the processor and updates the state. Returns how long the yield took.
pub fn yield_core() -> Duration {
    let start = now_ns();
    rustix::thread::sched_yield();
    let end = now_ns();
    let took = Duration::from_nanos(end.saturating_sub(start));
    CONTENTION.note(end, took, switched);
    took
}

fn now_ns() -> u64 {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// True if the kernel preempted this thread since the last call.
fn switched() -> bool {
    thread_local! {
        static SEEN: Cell<i64> = const { Cell::new(0) };
    }
    let switches = sys::involuntary_switches();
    SEEN.replace(switches) != switches
}

/// True if other threads wanted the processor lately.
#[inline]
#[must_use]
pub fn is_contended() -> bool {
    CONTENTION.is_present()
}

/// True while a yield would probably cost a time slice, so that a waiter should sleep.
#[inline]
#[must_use]
pub fn is_computing() -> bool {
    CONTENTION.is_computing(now_ns)
}

#[derive(Debug)]
struct Contention {
    /// Quick yields still needed until the machine counts as free.
    left: AtomicU32,
    /// The duration of the quickest yield so far.
    quickest_ns: AtomicU32,
    /// The start of the current window, and the total of the slices given away in it.
    window_ns: AtomicU64,
    lost_ns: AtomicU64,
    /// Waiters do not yield before this moment.
    no_yields_until_ns: AtomicU64,
    /// The length of the last period without yields.
    no_yields_ns: AtomicU64,
}

impl Contention {
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
    fn is_present(&self) -> bool {
        self.left.load(Ordering::Relaxed) != 0
    }

    #[inline]
    fn is_computing(&self, now_ns: impl FnOnce() -> u64) -> bool {
        let until = self.no_yields_until_ns.load(Ordering::Relaxed);
        until != 0 && now_ns() < until
    }

    /// Records a yield that took `took` and ended at `now_ns`.
    fn note(&self, now_ns: u64, took: Duration, switched: impl FnOnce() -> bool) {
        let took_ns = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
        let quickest = self.quickest_ns.load(Ordering::Relaxed).min(took_ns);
        self.quickest_ns.store(quickest, Ordering::Relaxed);
        let left = self.left.load(Ordering::Relaxed);
        let long = took >= LONG || took_ns > quickest.saturating_mul(TIMES_LONGER);
        // `switched` is a system call. While the crowd is known, only a possible time slice is
        // worth it.
        let is_known = left > QUICK_YIELDS / 2 && took < SLICE;
        if long && !is_known && switched() {
            self.left.store(QUICK_YIELDS, Ordering::Relaxed);
            if took >= SLICE {
                self.lost_slice(now_ns, u64::from(took_ns));
            }
        } else if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
        }
    }

    fn lost_slice(&self, now_ns: u64, took_ns: u64) {
        if self.is_computing(|| now_ns) {
            // Another thread met the computing program at the same time.
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
        let contention = Contention::new();
        contention.note(1, QUICK, || unreachable!("it was quick"));
        contention.note(2, Duration::from_micros(5), || false);
        assert!(!contention.is_present(), "no other thread ran meanwhile");
        contention.note(3, Duration::from_micros(5), || true);
        for _ in 0..QUICK_YIELDS {
            assert!(contention.is_present());
            contention.note(4, QUICK, || unreachable!("it was quick"));
        }
        assert!(!contention.is_present());
        contention.note(5, Duration::from_micros(5), || true);
        for _ in 0..QUICK_YIELDS / 2 {
            contention
                .note(5, Duration::from_micros(5), || unreachable!("the contention is known"));
        }
        contention.note(5, Duration::from_micros(5), || true);
        for _ in 0..QUICK_YIELDS {
            contention.note(5, QUICK, || unreachable!("it was quick"));
        }
        assert!(!contention.is_present());
        contention.note(5, Duration::from_nanos(1900), || true);
        assert!(contention.is_present());
        assert!(!contention.is_computing(|| 6));
    }

    const LONG_SLICE: Duration = Duration::from_millis(2);

    /// Records yields of a whole slice with quick yields between them. Returns the moment of the
    /// last.
    fn meet_computing_program(contention: &Contention, mut now_ns: u64) -> u64 {
        for _ in 0..4 {
            assert!(!contention.is_computing(|| now_ns));
            now_ns += 2_000_000;
            contention.note(now_ns, LONG_SLICE, || true);
            contention.note(now_ns, QUICK, || unreachable!("it was quick"));
        }
        now_ns
    }

    #[test]
    fn slices_given_away_end_yields_for_a_while() {
        let contention = Contention::new();
        for now_ns in 0..10 {
            contention.note(now_ns * 2_000_000, LONG_SLICE, || false);
            assert!(!contention.is_computing(|| now_ns), "the hypervisor took the processor");
            contention.note(now_ns * WINDOW_NS, LONG_SLICE, || true);
            assert!(!contention.is_computing(|| now_ns), "it was a single slice");
        }
        let mut now = 10 * FORGOTTEN_NS;
        for period in [1, 2, 4, 8, 16, 32, 32].map(|times| times * NO_YIELDS_NS) {
            now = meet_computing_program(&contention, now);
            // Another thread meets it at the same time.
            contention.note(now, LONG_SLICE, || true);
            now += period;
            assert!(contention.is_computing(|| now - 1));
            assert!(!contention.is_computing(|| now));
        }
        now = meet_computing_program(&contention, now + FORGOTTEN_NS);
        assert!(!contention.is_computing(|| now + NO_YIELDS_NS), "the time starts at the minimum");
    }
}
