//! A node of a cluster: all regions, each replicated to all nodes; each region has one of them as
//! its primary.
//!
//! | module | what |
//! |---|---|
//! | `regions`, `views` | all regions of the node as one store, and as one view of the cluster |
//! | `holding` | one region at this node: directory, backup, service, thread of control |
//! | `layout`, `enter` | where regions lie in a node's directory; how it comes into the records |
//! | `control`, `hand_over` | the thread that reads and changes the record, leads and steps down |
//! | `coordination`, `etcd` | where the records are |
//! | `shared` | the state that both share, and the store that the front end sees of a region |
//! | `court`, `reign`, `link` | the primary: its state, its engine, its way to each backup |
//! | `numbers` | the numbers of batches that the front end knows, across reigns |
//! | `catch_up` | the parts that a backup lacks when it joins |
//! | `backup`, `service` | a backup: who may send, the writer of its files; its service |
//! | `reads` | reads of clients at a backup |
//! | `replicas` | an engine with its backups and no record, for measurements |
//! | `wire`, `bell` | the session between the two; wakeups of threads |
//!
//! The rules are in `weft_kv::cluster` and `weft_kv::replication`; here are threads, sessions and
//! clocks. `docs/design/020-kv-cluster.md` says why it is so.

mod backup;
mod bell;
mod catch_up;
mod control;
mod coordination;
mod court;
mod enter;
mod etcd;
mod hand_over;
mod holding;
mod layout;
mod link;
mod numbers;
mod reads;
mod regions;
mod reign;
mod replicas;
mod service;
mod shared;
#[cfg(test)]
mod simulation;
mod views;
mod wire;

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weft_kv::engine::Options;
use weft_kv::node::{Durability, Failover, Node, Report, View};
use weft_kv::store::{Change, Lsn, Pair, Peek, Store, StoreError};
use weft_open::Opening;

pub use layout::{cluster_of, regions_in};
pub use replicas::{Replicated, Replication};

use crate::alone::{BackupJob, identity};
use coordination::coordination;
use holding::{Facts, Holding, Locked};
use reads::{Readable, ReplicaStore};
use regions::Regions;

/// How a node is in a cluster.
pub struct ClusterSettings {
    /// The place of the records: `dir:PATH`, or `etcd://HOST:PORT[,HOST:PORT]`.
    pub place: String,
    /// The name of the cluster.
    pub cluster: String,
    /// Nodes that begin it.
    pub replicas: u32,
    /// Regions: as many as the cluster has, or one if there is none yet, unless it is said.
    pub regions: Option<u32>,
    /// The lease, if this node is the first.
    pub lease_ms: u64,
    /// How endpoints are opened.
    pub opening: Opening,
    /// When a write is answered.
    pub durability: Durability,
    /// Where clients reach the node.
    pub address: (String, u16),
}

/// Tells the time since any moment, never back.
type Clock = fn() -> Duration;

/// Counters since the start, of all regions.
#[derive(Debug, Default)]
struct Counters {
    sent: AtomicU64,
    received: AtomicU64,
    caught_up: AtomicU64,
}

/// A node of a cluster.
pub struct ClusterNode {
    regions: Regions,
    replica: ReplicaStore,
    holdings: Vec<Holding>,
    counters: Arc<Counters>,
    job: BackupJob,
    durability: Durability,
    lease_ms: u64,
}

impl ClusterNode {
    /// Opens the directory, which is made if it is not there, and comes into the cluster.
    ///
    /// # Errors
    /// Those that an operator has to mend.
    pub fn open(directory: &Path, settings: ClusterSettings) -> Result<Self, StoreError> {
        let refused = |why: String| StoreError::NotServed(why);
        let durability = settings.durability;
        let mut first = coordination(&settings.place, &settings.cluster, 0)
            .map_err(|error| refused(error.to_string()))?;
        let count = enter::regions_of(&mut *first, settings.regions).map_err(refused)?;
        let options =
            Options { is_durable: durability != Durability::Replicated, ..Options::default() };
        let mut locked = Vec::new();
        for (region, place) in (0..).zip(layout::directories(directory, count)?) {
            let options = layout::share(options.clone(), region, count);
            locked.push(Locked::new(&place, options)?);
        }
        layout::mark(directory, &settings.cluster)?;
        let id = identity(directory).map_err(|error| StoreError::ReadOnly(error.to_string()))?;
        let mut facts = Facts {
            settings: &settings,
            id,
            regions: count,
            lease_ms: settings.lease_ms,
            counters: Arc::default(),
        };
        let mut holdings: Vec<Holding> = Vec::new();
        for (region, locked) in (0..).zip(locked) {
            match Holding::open(&facts, region, locked) {
                Ok(holding) => {
                    // The first region decides for all.
                    facts.lease_ms = holding.lease_ms;
                    holdings.push(holding);
                }
                Err(error) => {
                    end(&holdings);
                    return Err(error);
                }
            }
        }
        let shared = holdings.iter().map(|it| Arc::clone(&it.shared)).collect();
        let backups = holdings.iter().map(|it| Arc::clone(&it.backup) as Arc<dyn Readable>);
        Ok(Self {
            regions: Regions::new(shared),
            replica: ReplicaStore::new(backups.collect()),
            holdings,
            counters: facts.counters,
            job: BackupJob::default(),
            durability,
            lease_ms: facts.lease_ms,
        })
    }

    /// Waits until each region has a primary that serves, but not for longer.
    pub fn wait_until_usable(&self, most: Duration) {
        let until = Instant::now() + most;
        while Instant::now() < until && self.view().regions.iter().any(|it| it.primary.is_none()) {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the node. A primary hands over first, if there is a backup in sync.
    pub fn close(&self) {
        end(&self.holdings);
    }
}

/// Ends regions, all at a time.
fn end(holdings: &[Holding]) {
    holdings.iter().for_each(Holding::end);
    holdings.iter().for_each(Holding::join);
}

impl Store for ClusterNode {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.regions.get(key)
    }

    fn peek(&self, key: &[u8], at_most: usize) -> Result<Option<Peek>, StoreError> {
        self.regions.peek(key, at_most)
    }

    fn write(&self, batch: Vec<Change>) -> Result<Lsn, StoreError> {
        self.regions.write(batch)
    }

    fn commit(&self, upto: Lsn) -> Result<(), StoreError> {
        self.regions.commit(upto)
    }

    fn newest(&self) -> Lsn {
        self.regions.newest()
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        self.regions.scan(from, to, backward, limit)
    }

    fn peek_scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
        at_most: usize,
    ) -> Result<Vec<(Vec<u8>, Peek)>, StoreError> {
        self.regions.peek_scan(from, to, backward, limit, at_most)
    }
}

impl Node for ClusterNode {
    fn view(&self) -> Arc<View> {
        self.regions.view()
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn lease_ms(&self) -> u64 {
        self.lease_ms
    }

    fn report(&self) -> Report {
        let mut damage: Vec<String> = self.holdings.iter().flat_map(Holding::damage).collect();
        // Trouble with the coordinator is that of all regions.
        damage.sort();
        damage.dedup();
        Report {
            data_bytes: self.holdings.iter().map(Holding::data_bytes).sum(),
            damage,
            sent_bytes: self.counters.sent.load(Ordering::Relaxed),
            received_bytes: self.counters.received.load(Ordering::Relaxed),
            catch_up_bytes: self.counters.caught_up.load(Ordering::Relaxed),
            backup: self.job.state(),
        }
    }

    fn settled(&self) -> Lsn {
        self.regions.settled()
    }

    fn replica(&self) -> Option<&dyn Store> {
        Some(&self.replica)
    }

    fn replicas_with(&self, upto: Lsn) -> usize {
        self.regions.replicas_with(upto)
    }

    fn lsn(&self, region: u64) -> Lsn {
        let place = usize::try_from(region).ok();
        place.and_then(|it| self.holdings.get(it)).map_or(Lsn(0), Holding::lsn)
    }

    fn failover(&self, how: Failover) -> Result<(), String> {
        self.regions.failover(&how)
    }

    fn abort_failover(&self) -> bool {
        self.regions.abort_failover()
    }

    fn is_failing_over(&self) -> bool {
        self.regions.is_failing_over()
    }

    fn backup(&self, to: &Path) -> Result<(), String> {
        let led = self.regions.copies(to);
        if led.is_empty() {
            return Err("ask the primary for a copy".to_owned());
        }
        self.job.start(to, move |_| {
            led.iter().try_for_each(|(reign, place)| reign.engine.backup(place))
        })
    }

    fn ending(&self) {
        for shared in self.regions.all() {
            if let Ok(reign) = shared.reign() {
                reign.court.hurry();
            }
        }
    }
}
