//! Locks of one process: safe in signal handlers, and across fork.
//!
//! A thread that already holds the lock is refused and does not wait for itself: it runs a signal
//! handler that interrupted the holder. Fork takes all locks first, and both processes give them
//! back, so that a child never inherits a lock whose holder it does not have.
//!
//! # Invariants
//! - A thread that holds a lock takes only locks of a later [`Rank`]: two threads that took two
//!   locks in different orders would wait for each other for ever. Debug builds check it at each
//!   lock, whether another thread is there or not.

use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};

use weft_sync::lock::{Holder, SharedGuard, SharedLock};

use crate::deferral::Held;
use crate::process;

/// The order in which a thread takes locks. Fork takes all but those of connections, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rank {
    /// A connection forgets its lane.
    Forgetting,
    /// Lanes that are kept for connections which this process makes.
    Connecting,
    /// Lanes that are kept for connections which this process accepts.
    Accepting,
    /// The copy of the program that stands in for one that ends.
    StandIn,
    /// Copies of what the program gave to `posix_spawn`.
    Copies,
    /// Streams of `popen`.
    Streams,
    /// Calls of `system` and the like that wait for their program.
    Waiting,
    /// Free places of the arena.
    Places,
    /// Descriptors that are lent to calls.
    Lent,
    /// Free epoll sets.
    FreeSets,
    /// An epoll set.
    Set,
    /// The receiving direction of a connection.
    Receiving,
    /// The sending direction of a connection.
    Sending,
    /// The conversation with the daemon.
    Control,
    /// Questions to other processes about their ends.
    OtherEnd,
    /// The endpoint of this process.
    Carrier,
    /// Threads that sleep without a descriptor of their own.
    Bells,
    /// Connections that wait to be rescued.
    Rescue,
    /// Files of a provider of libfabric.
    ProviderFiles,
    /// Connections that give their lanes back.
    Leaving,
    /// Connections whose backlog is bounded.
    Backlog,
}

const RANKS: usize = Rank::Backlog as usize + 1;

thread_local! {
    /// How many locks of each rank this thread holds.
    static HELD: [Cell<u16>; RANKS] = const { [const { Cell::new(0) }; RANKS] };
}

impl Rank {
    /// Counts a lock of this rank that the thread got. `alone` is false where it may have others
    /// of this rank.
    ///
    /// # Panics
    /// In debug builds, if that was against the order.
    #[inline]
    pub fn got(self, alone: bool) {
        if cfg!(debug_assertions) {
            if let Some(later) = self.is_against(alone) {
                let rank = self as usize;
                panic!("lock {self:?}, number {rank} in the order, is taken under one of {later}");
            }
            HELD.with(|held| held[self as usize].update(|count| count + 1));
        }
    }

    /// The rank of a lock that the thread holds, under which it must not take one of this rank.
    fn is_against(self, alone: bool) -> Option<usize> {
        let first = self as usize + usize::from(!alone);
        HELD.with(|held| (first..RANKS).find(|rank| held[*rank].get() != 0))
    }

    /// Counts a lock of this rank that the thread gave back.
    #[inline]
    pub fn gave(self) {
        if cfg!(debug_assertions) {
            // 0 when a handler forked that had interrupted the holder.
            HELD.with(|held| held[self as usize].update(|count| count.saturating_sub(1)));
        }
    }
}

/// A lock that is held, and the deferral of signal handlers that goes with it: a handler would take
/// locks that are earlier in the order.
pub struct Lock<'a> {
    rank: Rank,
    _guard: SharedGuard<'a>,
    /// Dropped after the lock.
    _held: Held,
}

impl<'a> Lock<'a> {
    /// Takes a lock, and defers signal handlers until it is given back. `None` in a handler that
    /// was not deferred and interrupted the lock's holder.
    #[inline]
    pub fn take(lock: &'a SharedLock, rank: Rank) -> Option<Self> {
        let holder = Holder::current(process::pid());
        let _held = Held::new();
        if let Some(_guard) = lock.try_lock(holder) {
            rank.got(true);
            return Some(Self { rank, _guard, _held });
        }
        // Handlers run while this thread waits: the holder may be a process that was stopped.
        drop(_held);
        let _guard = lock.lock(holder).ok()?;
        let _held = Held::new();
        rank.got(true);
        Some(Self { rank, _guard, _held })
    }
}

impl Drop for Lock<'_> {
    #[inline]
    fn drop(&mut self) {
        self.rank.gave();
    }
}

/// A value and its lock.
pub struct LocalLock<T> {
    lock: SharedLock,
    rank: Rank,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through the guard alone, by one thread at a time.
unsafe impl<T: Send> Sync for LocalLock<T> {}

impl<T> LocalLock<T> {
    /// A value whose lock is free.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { lock: SharedLock::new(), rank, value: UnsafeCell::new(value) }
    }

    /// Waits for the lock; `None` when the calling thread holds it already.
    #[inline]
    pub fn lock(&self) -> Option<LocalGuard<'_, T>> {
        Some(LocalGuard { value: &self.value, _lock: Lock::take(&self.lock, self.rank)? })
    }
}

/// Access to the value while the lock is held.
pub struct LocalGuard<'a, T> {
    value: &'a UnsafeCell<T>,
    _lock: Lock<'a>,
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
        if let Ok(held) = self.lock.lock(Holder::current(process::pid())) {
            // Fork alone takes several of one rank, all of them in their order.
            self.rank.got(false);
            std::mem::forget(held);
        }
    }

    fn give_back(&self) {
        self.rank.gave();
        self.lock.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_their_order() {
        let (early, late) = (LocalLock::new(Rank::Set, 1), LocalLock::new(Rank::Backlog, 2));
        let held = early.lock().expect("it is free");
        assert_eq!(late.lock().map(|held| *held), Some(2));
        assert!(early.lock().is_none(), "the thread holds it");
        drop(held);
        assert_eq!(early.lock().map(|held| *held), Some(1));
    }

    #[test]
    fn a_lock_against_the_order_is_told_though_nobody_waits() {
        let (set, backlog) = (Rank::Set as usize, Rank::Backlog as usize);
        let late = LocalLock::new(Rank::Backlog, 1);
        let held = late.lock().expect("it is free");
        assert_eq!(Rank::Set.is_against(true), Some(backlog));
        drop(held);
        assert_eq!(Rank::Set.is_against(true), None);
        let one = LocalLock::new(Rank::Set, 2);
        let _held = one.lock().expect("it is free");
        assert_eq!(Rank::Set.is_against(true), Some(set), "two sets are locked by no thread");
        assert_eq!(Rank::Set.is_against(false), None, "but by one that forks");
    }

    #[test]
    fn fork_takes_all_of_one_rank() {
        let (one, other) = (LocalLock::new(Rank::Set, 1), LocalLock::new(Rank::Set, 2));
        one.take();
        other.take();
        one.give_back();
        other.give_back();
        assert_eq!(one.lock().map(|held| *held), Some(1));
    }
}
