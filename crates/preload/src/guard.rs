//! Locks of one process: safe in signal handlers, and across fork.
//!
//! A thread that re-enters (a handler that interrupted the holder) is refused instead of waiting
//! for itself. Fork takes all of them first and gives them back on both sides, so that a child
//! never inherits a lock whose holder does not exist in it.

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
    /// Unlocked.
    pub const fn new(value: T) -> Self {
        Self { lock: SharedLock::new(), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock; `None` when the calling thread has it already.
    #[inline]
    pub fn lock(&self) -> Option<LocalGuard<'_, T>> {
        let held = self.lock.lock(Holder::current(process::pid())).ok()?;
        Some(LocalGuard { value: &self.value, _held: held })
    }
}

/// Access to the value.
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
    /// Takes it, before fork.
    fn take(&self);
    /// Gives it back, on both sides after fork.
    fn give_back(&self);
}

impl<T: Send> ForkLock for LocalLock<T> {
    fn take(&self) {
        // Forking inside a signal handler that interrupted the holder is as undefined as POSIX
        // says; the lock is then left alone.
        if let Some(guard) = self.lock() {
            std::mem::forget(guard);
        }
    }

    fn give_back(&self) {
        self.lock.reset();
    }
}
