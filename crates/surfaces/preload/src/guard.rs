//! Locks of one process: safe in signal handlers, and across fork.
//!
//! A thread that already holds the lock is refused and does not wait for itself: it runs a signal
//! handler that interrupted the holder. Fork takes all locks first, and both processes give them
//! back, so that a child never inherits a lock whose holder it does not have.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use weft_sync::lock::{Holder, SharedGuard, SharedLock};

use crate::process;

/// A value and its lock.
pub struct LocalLock<T> {
    lock: SharedLock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through the guard alone, by one thread at a time.
unsafe impl<T: Send> Sync for LocalLock<T> {}

impl<T> LocalLock<T> {
    /// A value whose lock is free.
    pub const fn new(value: T) -> Self {
        Self { lock: SharedLock::new(), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock; `None` when the calling thread holds it already.
    #[inline]
    pub fn lock(&self) -> Option<LocalGuard<'_, T>> {
        let held = self.lock.lock(Holder::current(process::pid())).ok()?;
        Some(LocalGuard { value: &self.value, _held: held })
    }
}

/// Access to the value while the lock is held.
pub struct LocalGuard<'a, T> {
    value: &'a UnsafeCell<T>,
    _held: SharedGuard<'a>,
}

impl<T> Deref for LocalGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for LocalGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock.
        unsafe { &mut *self.value.get() }
    }
}

/// The steps of fork for a lock.
pub trait ForkLock: Sync {
    /// Takes the lock, before fork.
    fn take(&self);
    /// Frees the lock, in both processes after fork.
    fn give_back(&self);
}

impl<T: Send> ForkLock for LocalLock<T> {
    fn take(&self) {
        // POSIX leaves a fork undefined in a signal handler that interrupted the holder; the lock
        // is left as it is.
        if let Some(guard) = self.lock() {
            std::mem::forget(guard);
        }
    }

    fn give_back(&self) {
        self.lock.reset();
    }
}
