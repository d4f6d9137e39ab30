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

    /// The newest batch that is acknowledged, if no other node can have acknowledged a newer one.
    pub fn acknowledged(&self) -> Option<u64> {
        // In this order: a lease that is valid afterwards was so before.
        let lsn = self.court.acknowledged();
        self.check().is_ok().then_some(lsn)
    }

    /// The newest batch, as the front end counts.
    pub fn newest(&self) -> u64 {
        self.base + self.engine.newest().0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weft_kv::disk::simulated::SimulatedDisk;
    use weft_kv::engine::{Options, open_on};

    use super::super::bell::Bell;
    use super::*;

    const NOW: Duration = Duration::from_secs(10);

    /// A backup answers reads by this number: without a lease another node may be the primary.
    #[test]
    fn a_primary_without_a_lease_says_nothing_of_what_is_acknowledged() {
        let options = Options { threads: 0, ..Options::default() };
        let engine = open_on(Arc::new(SimulatedDisk::new()), options).expect("an empty disk");
        let bell = Arc::new(Bell::new().expect("a descriptor"));
        let lease = Duration::from_secs(1);
        let court = Arc::new(Court::new(1, 7, [1].into(), lease, bell, || NOW));
        let serves = AtomicBool::new(true);
        let reign = Reign { engine, court, base: 0, before: 0, serves };
        assert_eq!(reign.acknowledged(), None);
        reign.court.give(1, NOW - lease);
        assert_eq!(reign.acknowledged(), None, "it is over");
        reign.court.give(1, NOW);
        assert_eq!(reign.acknowledged(), Some(7));
        reign.serves.store(false, Ordering::Release);
        assert_eq!(reign.acknowledged(), None, "its log may have what was not acknowledged");
    }
}
