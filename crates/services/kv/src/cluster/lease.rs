//! The lease of a primary, which its backups give by their answers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::replication::primary::Peer;

/// Of so many parts of a lease its holder leaves one, since clocks do not run alike.
const MARGIN_PART: u32 = 10;

/// When which backup gave the lease last.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    lease: Duration,
    /// The time at which the question was sent.
    given: BTreeMap<Peer, Duration>,
}

impl Leases {
    /// Leases of this length. Nobody has given one yet.
    #[must_use]
    pub fn new(lease: Duration) -> Self {
        Self { lease, given: BTreeMap::new() }
    }

    /// A backup gave it, in answer to a question that was sent at this time.
    pub fn give(&mut self, peer: Peer, asked: Duration) {
        let given = self.given.entry(peer).or_default();
        *given = asked.max(*given);
    }

    /// The end of the lease while the record names these backups. A primary that is alone in sync
    /// needs no lease: nobody else can be promoted.
    #[must_use]
    pub fn until(&self, backups: &BTreeSet<Peer>) -> Duration {
        let length = self.lease - self.lease / MARGIN_PART;
        let end = |peer| self.given.get(peer).map_or(Duration::ZERO, |given| *given + length);
        backups.iter().map(end).min().unwrap_or(Duration::MAX)
    }
}
