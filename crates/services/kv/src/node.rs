//! The view of a front end on a node, beside its pairs: the cluster, the regions, the counters.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::store::{Lsn, Store};

/// When a batch is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// Given to the operating system here, and in the memory of all replicas in sync.
    #[default]
    Replicated,
    /// And synced on the primary.
    Durable,
    /// And synced on the replicas in sync.
    DurableAll,
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// 40 hexadecimal digits; a node keeps it in its directory.
    pub id: String,
    /// The address that clients reach.
    pub host: String,
    /// Its port of the Redis protocol.
    pub port: u16,
    /// Whether its lease is valid.
    pub is_up: bool,
}

/// A range of slots, and who serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The number of the region.
    pub id: u64,
    /// The first slot.
    pub first: u16,
    /// The last slot.
    pub last: u16,
    /// Grows with each change of who serves it.
    pub epoch: u64,
    /// The place of the primary in [`View::members`]; none while there is no primary.
    pub primary: Option<usize>,
    /// The places of the backups in sync.
    pub in_sync: Vec<usize>,
}

/// The cluster as a node sees it. A node without a cluster is alone in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Grows with each change; a front end forgets what it kept of regions then.
    pub version: u64,
    /// Whether there is a cluster: a command with keys of two slots is refused then.
    pub is_cluster: bool,
    /// The place of this node in [`members`](Self::members).
    pub myself: usize,
    /// All nodes.
    pub members: Vec<Member>,
    /// In order of their slots, without overlap.
    pub regions: Vec<Region>,
}

/// How a copy of the store goes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Backup {
    /// None was asked for since the start.
    #[default]
    None,
    /// It is being written.
    Running,
    /// The last one is whole.
    Done,
    /// The last one is not, and why.
    Failed(String),
}

/// Counters of a node since its start, and what it found.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Report {
    /// Bytes that the store takes on its device.
    pub data_bytes: u64,
    /// All that is damaged, by name.
    pub damage: Vec<String>,
    /// Bytes sent to replicas.
    pub sent_bytes: u64,
    /// Bytes received from replicas.
    pub received_bytes: u64,
    /// Bytes received in order to get in sync.
    pub catch_up_bytes: u64,
    /// How the last copy goes.
    pub backup: Backup,
}

/// How a primary makes another node the primary.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Failover {
    /// The place of that node in [`View::members`]; any one in sync if there is none.
    pub to: Option<usize>,
    /// How long it may take to have all writes; the node's own time if there is none.
    pub within: Option<Duration>,
    /// After that time it becomes the primary also if it lacks writes that wait for their answers.
    pub is_forced: bool,
}

/// A store with its node. Calls may come from any thread and do not wait.
pub trait Node: Store {
    /// The cluster at this moment.
    fn view(&self) -> Arc<View>;

    /// When a batch is acknowledged.
    fn durability(&self) -> Durability;

    /// The lease of the cluster, in milliseconds; 0 without one.
    fn lease_ms(&self) -> u64;

    /// The number of the newest batch of a region that this node has, the same on all nodes.
    /// [`Store::newest`] is another one: it counts those of all regions, and never goes back in
    /// one process.
    fn lsn(&self, _region: u64) -> Lsn {
        self.newest()
    }

    /// The newest number whose outcome is known: it is acknowledged, or a commit failed, so that
    /// whoever waits for it is told that its outcome is unknown. A front end asks after a commit
    /// that failed, and tells all whose answers wait; what is newer is to be committed.
    fn settled(&self) -> Lsn {
        self.newest()
    }

    /// The regions that this node backs up, for reads alone: what they answer may be as old as a
    /// lease. None if there is nothing like that.
    fn replica(&self) -> Option<&dyn Store> {
        None
    }

    /// The nodes that have all batches up to this number, of all regions whose primary this is.
    fn replicas_with(&self, _: Lsn) -> usize {
        0
    }

    /// Counters and damage.
    fn report(&self) -> Report;

    /// Begins to make another node in sync the primary of the regions of this one.
    ///
    /// # Errors
    /// Why nobody will be.
    fn failover(&self, how: Failover) -> Result<(), String>;

    /// Ends what [`failover`](Self::failover) began, while the node is still the primary. False if
    /// nothing goes on.
    fn abort_failover(&self) -> bool {
        false
    }

    /// Whether what [`failover`](Self::failover) began goes on.
    fn is_failing_over(&self) -> bool {
        false
    }

    /// Begins to write a copy of the store into a new directory; [`Report::backup`] says how it
    /// goes.
    ///
    /// # Errors
    /// Why it does not begin.
    fn backup(&self, to: &Path) -> Result<(), String> {
        Err(format!("this node writes no copies, not to {} either", to.display()))
    }

    /// The front end ends: a commit that waits for other nodes gives up soon.
    fn ending(&self) {}
}

impl View {
    /// A node alone with all slots.
    #[must_use]
    pub fn alone(id: String, host: String, port: u16) -> Self {
        let region = Region {
            id: 0,
            first: 0,
            last: 16_383,
            epoch: 1,
            primary: Some(0),
            in_sync: Vec::new(),
        };
        Self {
            version: 1,
            is_cluster: false,
            myself: 0,
            members: vec![Member { id, host, port, is_up: true }],
            regions: vec![region],
        }
    }

    /// The region of a slot.
    #[must_use]
    pub fn region(&self, slot: u16) -> Option<&Region> {
        let after = self.regions.partition_point(|region| region.first <= slot);
        let region = self.regions.get(after.checked_sub(1)?)?;
        (slot <= region.last).then_some(region)
    }
}
