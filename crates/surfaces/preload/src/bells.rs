//! Wakes threads that sleep for connections whose lanes go over an endpoint.
//!
//! No wakeup comes over the kernel's connection there ([`weft_fabric::Medium::Network`]). So a
//! thread sleeps on the kernel's socket and on a *bell*, an eventfd that it takes for one sleep.
//! The thread that drives the endpoint rings the bells of all threads that sleep for a connection.
//!
//! A thread takes its bell before it arms a word: whoever finds the rung word finds the bell.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::EventfdFlags;

use crate::guard::{ForkLock, LocalLock, Rank};
use crate::sys;

/// Bells that are kept for later sleeps.
const KEPT_MAX: usize = 64;

static BELLS: LocalLock<Bells> =
    LocalLock::new(Rank::Bells, Bells { asleep: Vec::new(), kept: Vec::new() });

/// True since the first bell: read without the lock.
static ARE_THERE: AtomicBool = AtomicBool::new(false);

struct Bells {
    asleep: Vec<Asleep>,
    kept: Vec<Arc<OwnedFd>>,
}

struct Asleep {
    bell: Arc<OwnedFd>,
    places: Vec<u32>,
    thread: usize,
    is_rung: bool,
}

/// A thread that sleeps for connections, or is about to. Dropping it gives its bell back.
pub struct Bell(Arc<OwnedFd>);

impl Bell {
    /// A bell for a sleep for the connections at `places`. `None` without descriptors, and in a
    /// signal handler that interrupted a call of this module: the sleep must be short then.
    pub fn take(places: Vec<u32>) -> Option<Self> {
        let mut bells = BELLS.lock()?;
        let bell = match bells.kept.pop() {
            Some(bell) => bell,
            None => {
                let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
                Arc::new(sys::high(rustix::event::eventfd(0, flags).ok()?))
            }
        };
        ARE_THERE.store(true, Ordering::Relaxed);
        let thread = sys::this_thread();
        bells.asleep.push(Asleep { bell: Arc::clone(&bell), places, thread, is_rung: false });
        Some(Self(bell))
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        let Some(mut bells) = BELLS.lock() else { return };
        let own = bells.asleep.iter().position(|asleep| Arc::ptr_eq(&asleep.bell, &self.0));
        let own = own.map(|own| bells.asleep.swap_remove(own));
        // Nobody rings it from here on.
        if own.is_some_and(|own| own.is_rung) {
            let _ = rustix::io::read(&self.0, &mut [0; 8]);
        }
        if bells.kept.len() < KEPT_MAX {
            bells.kept.push(Arc::clone(&self.0));
        }
    }
}

/// True if there is a bell in this process.
pub fn are_there() -> bool {
    ARE_THERE.load(Ordering::Relaxed)
}

/// Calls `look` with each bell.
pub fn each_descriptor(mut look: impl FnMut(RawFd)) {
    let Some(bells) = BELLS.lock() else { return };
    let asleep = bells.asleep.iter().map(|asleep| &asleep.bell);
    asleep.chain(&bells.kept).for_each(|bell| look(bell.as_raw_fd()));
}

/// Wakes all threads that sleep for the connection at `place`.
pub fn ring(place: u32) {
    ring_all(place, None);
}

/// The same, but for the calling thread.
pub fn ring_others(place: u32) {
    ring_all(place, Some(sys::this_thread()));
}

fn ring_all(place: u32, but: Option<usize>) {
    let Some(mut bells) = BELLS.lock() else { return };
    for asleep in &mut bells.asleep {
        if asleep.places.contains(&place) && Some(asleep.thread) != but {
            asleep.is_rung = true;
            ring_one(&asleep.bell);
        }
    }
}

/// Rings a bell, which is an eventfd.
pub fn ring_one(bell: &impl AsFd) {
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Closes the bells on which nobody sleeps.
pub fn drop_kept() {
    if let Some(mut bells) = BELLS.lock() {
        bells.kept.clear();
    }
}

/// The lock of this module, for fork.
pub fn lock() -> &'static dyn ForkLock {
    &BELLS
}

/// In a forked child: the bells are the parent's, too, so the child rings others.
pub fn forked() {
    if let Some(mut bells) = BELLS.lock() {
        ARE_THERE.store(false, Ordering::Relaxed);
        bells.asleep.clear();
        bells.kept.clear();
    }
}
