//! Sleeping on a word of shared memory.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex;

/// How a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slept {
    /// Woken, or the word was not as expected, or for no reason: look again.
    Woken,
    /// The time is over.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// Sleeps while `word` holds `expected`, at most `timeout`; works between processes.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Slept {
    let timeout = timeout.map(|duration| futex::Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    });
    match futex::wait(word, futex::Flags::empty(), expected, timeout.as_ref()) {
        Err(Errno::TIMEDOUT) => Slept::TimedOut,
        Err(Errno::INTR) => Slept::Interrupted,
        Ok(()) | Err(_) => Slept::Woken,
    }
}

/// Wakes up to `count` sleepers of `word`, in any process.
pub fn wake(word: &AtomicU32, count: u32) {
    // An error means that the word cannot be slept on, so nobody does.
    let _ = futex::wake(word, futex::Flags::empty(), count);
}
