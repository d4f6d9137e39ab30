//! Sleeping on a word of shared memory.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex;

/// Why a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slept {
    /// Woken, or the word had another value, or spuriously: the caller checks its condition again.
    Woken,
    /// The timeout has passed.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// Sleeps while `word` has the value `expected`, at most `timeout`. Works between processes.
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

/// Wakes up to `count` sleepers on `word`, in any process.
pub fn wake(word: &AtomicU32, count: u32) {
    // An error means that nobody can sleep on this word.
    let _ = futex::wake(word, futex::Flags::empty(), count);
}
