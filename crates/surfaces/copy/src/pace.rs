//! No more bytes a second than the user allows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The pace of all readers together.
#[derive(Debug)]
pub(crate) struct Pace {
    bytes_per_second: u64,
    next: Mutex<Instant>,
    is_stopped: AtomicBool,
}

/// How soon a wait sees that the transfer is over.
const LOOK: Duration = Duration::from_millis(50);

impl Pace {
    /// At most so many bytes a second; 0 for no limit.
    pub fn new(bytes_per_second: u64) -> Self {
        Self {
            bytes_per_second,
            next: Mutex::new(Instant::now()),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Waits until as many bytes may be read.
    pub fn take(&self, bytes: u64) {
        if self.bytes_per_second == 0 {
            return;
        }
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let time = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        let until = {
            let mut next = self.next.lock();
            let now = Instant::now();
            // Unused time is not saved up.
            let begin = (*next).max(now);
            *next = begin + time;
            begin
        };
        while !self.is_stopped.load(Ordering::Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(LOOK));
        }
    }

    /// Ends all waits.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }
}
