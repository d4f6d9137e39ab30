//! The numbers of batches that the front end knows, from one reign of the process to the next.
//!
//! The front end holds an answer back until a commit of the newest number that it was given. A
//! reign may end at each moment, also between a write and the front end's next question, so what it
//! was given must not depend on the reign that is there when it asks.
//!
//! Always true:
//! - Both numbers only grow. All that was given and is not settled was not acknowledged.
//! - A number is settled when it is acknowledged, or by a commit that fails, and then the front end
//!   cuts off all that wait.

use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers of batches that the front end knows.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    given: AtomicU64,
    settled: AtomicU64,
}

impl Numbers {
    /// The front end gets this number, or the newest one that it has. Returns which.
    pub fn give(&self, number: u64) -> u64 {
        self.given.fetch_max(number, Ordering::AcqRel).max(number)
    }

    /// The newest number that the front end was given.
    pub fn given(&self) -> u64 {
        self.given.load(Ordering::Acquire)
    }

    /// All up to this number is settled. True if it was before.
    pub fn settle(&self, upto: u64) -> bool {
        self.settled.fetch_max(upto, Ordering::AcqRel) >= upto
    }

    /// All up to this number is settled.
    pub fn settled(&self) -> u64 {
        self.settled.load(Ordering::Acquire)
    }
}
