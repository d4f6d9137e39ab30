//! Connections that send bytes of a lost lane again over TCP.
//!
//! The kernel may not take all of them at once, and the program may never call again. So a
//! connection whose bytes wait is noted here, and the thread that drives the endpoint goes on with
//! it.
//!
//! # Invariants
//! - No other lock is taken under the one of this module.
//! - A connection is noted once, and as long as its descriptor leads to it.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::guard::{ForkLock, LocalLock, Rank};

static WAITING: LocalLock<Vec<(RawFd, u32)>> = LocalLock::new(Rank::Rescue, Vec::new());
/// True while the list has something: read without the lock.
static ARE_WAITING: AtomicBool = AtomicBool::new(false);

/// Notes a connection whose kernel did not take all: the descriptor that leads to it, and its
/// place. The caller may hold its locks.
pub fn wants_time(fd: RawFd, place: u32) {
    if let Some(mut waiting) = WAITING.lock() {
        let one = (fd, place);
        if !waiting.contains(&one) {
            waiting.push(one);
        }
        ARE_WAITING.store(true, Ordering::Relaxed);
    }
}

/// True while a connection waits: the driving thread comes back soon then.
pub fn are_waiting() -> bool {
    ARE_WAITING.load(Ordering::Relaxed)
}

/// Takes the list of the connections that wait. One that is still not through is noted again.
pub fn take() -> Vec<(RawFd, u32)> {
    if !are_waiting() {
        return Vec::new();
    }
    WAITING.lock().map_or_else(Vec::new, |mut waiting| {
        ARE_WAITING.store(false, Ordering::Relaxed);
        std::mem::take(&mut *waiting)
    })
}

/// The lock of this module, for fork.
pub fn lock() -> &'static dyn ForkLock {
    &WAITING
}

/// In a forked child: the parent goes on.
pub fn forked() {
    ARE_WAITING.store(false, Ordering::Relaxed);
    if let Some(mut waiting) = WAITING.lock() {
        waiting.clear();
    }
}
