//! The status of the node for all who ask: one thread collects it, the others wait a bounded time
//! or get the last one.
//!
//! Collecting asks all services, and a busy one may take half a second to answer. The lock here is
//! never held meanwhile.
//!
//! # Invariants
//! - At most one thread collects.
//! - Root and the daemon's own user get a status whose collection began after they asked, unless
//!   the time to wait is over.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Greatest age of the status that an ordinary user gets while nobody collects a new one. Root and
/// the daemon's own user get a fresh one.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// How long a thread waits for another one that collects: as long as busy services may take, twice.
/// A program waits 2 s for its answer.
pub const WAIT_WITHIN: Duration = Duration::from_secs(1);

/// The last status, and whether a new one is being collected.
#[derive(Default)]
struct Collection {
    last: Option<Last>,
    is_collecting: bool,
}

struct Last {
    began: Instant,
    file: Arc<OwnedFd>,
}

/// The status of the node, in files that its readers cannot change.
pub struct Reports {
    state: Mutex<Collection>,
    collected: Condvar,
    wait_within: Duration,
}

impl Reports {
    /// No status yet. A thread waits up to `wait_within` for another one that collects.
    pub fn new(wait_within: Duration) -> Self {
        Self { state: Mutex::default(), collected: Condvar::new(), wait_within }
    }

    /// The status for a program. `collect` makes a new one; it runs without a lock.
    ///
    /// # Errors
    /// Why there is no status, and what to do: `collect` failed, or another thread collects the
    /// first one and has not ended in time.
    pub fn get(
        &self,
        is_trusted: bool,
        collect: impl FnOnce() -> rustix::io::Result<OwnedFd>,
    ) -> Result<Arc<OwnedFd>, String> {
        let asked = Instant::now();
        let mut state = self.lock();
        loop {
            let is_collecting = state.is_collecting;
            if let Some(last) = &state.last {
                let is_new = match is_trusted {
                    true => last.began >= asked,
                    false => is_collecting || last.began + STATUS_EVERY > asked,
                };
                if is_new || is_collecting && asked.elapsed() >= self.wait_within {
                    return Ok(Arc::clone(&last.file));
                }
            }
            if !is_collecting {
                break;
            }
            let left = self.wait_within.saturating_sub(asked.elapsed());
            if left.is_zero() {
                return Err("a service is too busy to report its status; ask again".to_owned());
            }
            let waited = self.collected.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.is_collecting = true;
        drop(state);
        let collecting = Collecting(self);
        let began = Instant::now();
        let file = collect().map(Arc::new).map_err(|e| format!("no memory for the status: {e}"))?;
        self.lock().last = Some(Last { began, file: Arc::clone(&file) });
        drop(collecting);
        Ok(file)
    }

    fn lock(&self) -> MutexGuard<'_, Collection> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// This thread collects. Another may when this is dropped, also by a panic.
struct Collecting<'a>(&'a Reports);

impl Drop for Collecting<'_> {
    fn drop(&mut self) {
        self.0.lock().is_collecting = false;
        self.0.collected.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn file() -> rustix::io::Result<OwnedFd> {
        rustix::fs::memfd_create("weft-test", rustix::fs::MemfdFlags::CLOEXEC)
    }

    fn nobody() -> rustix::io::Result<OwnedFd> {
        panic!("another thread collects")
    }

    #[test]
    fn an_ordinary_user_gets_the_last_status_while_another_thread_collects() {
        let reports = Reports::new(WAIT_WITHIN);
        let first = reports.get(true, file).expect("memory");
        let while_collected = std::cell::Cell::new(None);
        let second = reports.get(true, || {
            while_collected.set(reports.get(false, nobody).ok());
            file()
        });
        let second = second.expect("memory");
        let got = while_collected.take().expect("there is one");
        assert!(Arc::ptr_eq(&got, &first) && !Arc::ptr_eq(&second, &first));
        assert!(Arc::ptr_eq(&reports.get(false, nobody).expect("a new one"), &second));
    }

    #[test]
    fn a_thread_that_waited_too_long_gets_the_last_status_or_is_told_to_ask_again() {
        let reports = Reports::new(Duration::ZERO);
        let first = reports.get(true, || {
            let told = reports.get(false, nobody).expect_err("there is none yet");
            assert!(told.contains("ask again"), "{told}");
            file()
        });
        let first = first.expect("memory");
        let second = reports.get(true, || {
            assert!(Arc::ptr_eq(&reports.get(true, nobody).expect("the last one"), &first));
            file()
        });
        assert!(!Arc::ptr_eq(&second.expect("memory"), &first));
    }

    #[test]
    fn a_trusted_user_gets_no_status_that_was_begun_before_it_asked() {
        let reports = Reports::new(Duration::from_secs(3600));
        let (begun, began) = channel();
        let (asks, asked) = channel();
        std::thread::scope(|scope| {
            let reports = &reports;
            let first = scope.spawn(move || {
                reports.get(true, || {
                    begun.send(()).expect("the test waits");
                    asked.recv().expect("the test asks");
                    file()
                })
            });
            began.recv().expect("the first thread collects");
            // Whether the first thread ends before or after this one looks, its status is too old.
            let second = scope.spawn(move || {
                asks.send(()).expect("the first thread waits");
                reports.get(true, file)
            });
            let first = first.join().expect("no panic").expect("memory");
            let second = second.join().expect("no panic").expect("memory");
            assert!(!Arc::ptr_eq(&first, &second));
        });
    }

    #[test]
    fn a_thread_that_panics_while_it_collects_leaves_the_work_to_others() {
        let reports = Reports::new(WAIT_WITHIN);
        let collect = || reports.get(true, nobody).map(drop);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(collect)).is_err());
        reports.get(false, file).expect("it collects");
    }
}
