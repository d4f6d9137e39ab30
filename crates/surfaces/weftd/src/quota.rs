//! Bounds for each user: programs, descriptors, places in a queue.
//!
//! # Invariants
//! - A user has at most a share of what the other users leave ([`share`]), so there is always room
//!   for one more user. Root and the daemon's own user may have all.
//! - A [`Lease`] returns its units when it is dropped. So a descriptor counts while its packet
//!   waits in a queue, and while a service keeps the descriptor.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_options::share;

/// The rule by which all pools are divided among users.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    /// Percentage that one user may have of what the other users leave.
    pub user_share: u8,
    /// The user who runs the daemon.
    pub own_user: u32,
}

impl Quota {
    /// Whether `user` is unbounded and may command the daemon: root and the daemon's own user.
    pub const fn may_all(self, user: u32) -> bool {
        user == 0 || user == self.own_user
    }

    /// How many of `maximum` units `user` may have while the other users have `others`.
    const fn allowance(self, user: u32, maximum: usize, others: usize) -> usize {
        let share = if self.may_all(user) { share::ALL } else { self.user_share };
        share::allowance(maximum, others, share)
    }
}

/// A number of units that is divided among users.
#[derive(Debug)]
pub struct Pool {
    maximum: usize,
    quota: Quota,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    by_user: HashMap<u32, usize>,
    all: usize,
}

impl Taken {
    fn of(&self, user: u32) -> usize {
        self.by_user.get(&user).copied().unwrap_or(0)
    }

    fn set(&mut self, user: u32, count: usize) {
        self.all = self.all - self.of(user) + count;
        if count == 0 {
            self.by_user.remove(&user);
        } else {
            self.by_user.insert(user, count);
        }
    }
}

impl Pool {
    /// A pool of `maximum` free units.
    pub fn new(maximum: usize, quota: Quota) -> Arc<Self> {
        Arc::new(Self { maximum, quota, taken: Mutex::default() })
    }

    /// The number of units in the pool, free or taken.
    pub const fn maximum(&self) -> usize {
        self.maximum
    }

    /// Takes `count` units for `user`; `None` when that exceeds the user's allowance.
    pub fn lease(self: &Arc<Self>, user: u32, count: usize) -> Option<Lease> {
        let mut taken = self.lock();
        let own = taken.of(user);
        let wanted = own + count;
        if wanted > self.quota.allowance(user, self.maximum, taken.all - own) {
            return None;
        }
        taken.set(user, wanted);
        Some(Lease { pool: Arc::clone(self), user, count })
    }

    /// The number of units that all users have.
    pub fn taken(&self) -> usize {
        self.lock().all
    }

    /// The number of units that `user` has.
    pub fn of(&self, user: u32) -> usize {
        self.lock().of(user)
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // No code panics while it holds the lock.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Units taken from a [`Pool`] until the lease is dropped.
#[derive(Debug)]
pub struct Lease {
    pool: Arc<Pool>,
    user: u32,
    count: usize,
}

impl Lease {
    /// Sets the lease to `count` units without checking the allowance, for units that exist
    /// already.
    pub fn resize(&mut self, count: usize) {
        let mut taken = self.pool.lock();
        let own = taken.of(self.user) - self.count + count;
        taken.set(self.user, own);
        drop(taken);
        self.count = count;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTA: Quota = Quota { user_share: 50, own_user: 9 };

    #[test]
    fn users_have_half_of_what_others_leave_and_the_own_user_the_rest() {
        let pool = Pool::new(16, QUOTA);
        let take = |user| (0..).map_while(|_| pool.lease(user, 1)).collect::<Vec<_>>();
        let first = take(1);
        let others = [take(2), take(3), take(9)];
        let counts = [first.len(), others[0].len(), others[1].len(), others[2].len()];
        assert_eq!(counts, [8, 4, 2, 2]);
        drop(first);
        assert_eq!((pool.of(1), take(4).len()), (0, 4), "half of what the first gave back");
    }

    #[test]
    fn a_resized_lease_returns_its_new_size() {
        let pool = Pool::new(16, QUOTA);
        let mut lease = pool.lease(1, 3).expect("room");
        lease.resize(20);
        assert_eq!(pool.of(1), 20);
        assert!(pool.lease(1, 1).is_none() && pool.lease(0, 1).is_none());
        drop(lease);
        assert_eq!((pool.of(1), pool.lease(0, 16).is_some()), (0, true));
    }
}
