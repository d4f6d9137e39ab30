//! The time in which a node is the primary: its engine and the state of its replication.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_kv::engine::Engine;
use weft_kv::store::{Store, StoreError};

use super::court::Court;

/// A reign. The front end's numbers of batches go on from one reign of this process to the next:
/// they are those of the engine, plus a base.
pub(super) struct Reign {
    pub engine: Engine,
    pub court: Arc<Court>,
    pub base: u64,
    /// The newest number that the front end had before this reign.
    pub before: u64,
    /// All that the store had at the beginning is with all backups in sync.
    pub serves: AtomicBool,
}

impl Reign {
    /// The error for a command, if it may not be carried out now.
    pub fn check(&self) -> Result<(), StoreError> {
        if self.serves.load(Ordering::Acquire) && self.court.is_valid() {
            return Ok(());
        }
        Err(StoreError::NotServed("the primary waits for its backups".to_owned()))
    }

    /// The newest batch, as the front end counts.
    pub fn newest(&self) -> u64 {
        self.base + self.engine.newest().0
    }
}
