//! A node of a cluster: one region, replicated to all nodes; one of them is its primary.
//!
//! | module | what |
//! |---|---|
//! | `control` | the thread that reads and changes the record, leads and steps down |
//! | `coordination`, `etcd` | where the record is |
//! | `shared` | the state that both share, and the store that the front end sees |
//! | `court`, `reign`, `link` | the primary: its state, its engine, its way to each backup |
//! | `numbers` | the numbers of batches that the front end knows, across reigns |
//! | `catch_up` | the parts that a backup lacks when it joins |
//! | `backup`, `service` | a backup: who may send, the writer of its files; its service |
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
mod etcd;
mod link;
mod numbers;
mod reign;
mod replicas;
mod service;
mod shared;
#[cfg(test)]
mod simulation;
mod wire;

use std::fs;
use std::ops::Bound;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weft_kv::engine::{Options, lock_directory};
use weft_kv::node::{Durability, Failover, Node, Report, View};
use weft_kv::store::{Change, Lsn, Pair, Peek, Store, StoreError};
use weft_open::Opening;

pub use coordination::{Coordination, NoRecord, Seen, coordination};
pub use replicas::{Replicated, Replication};

use crate::alone::{BackupJob, identity};
use backup::Backup;
use bell::Bell;
use control::{Control, Identity, StartLink};
use link::Link;
use shared::Shared;

/// The file with the name of the cluster that a directory belongs to.
const CLUSTER: &str = "cluster-name";
/// How long the first try to be in the cluster goes on.
const JOINED_WITHIN: Duration = Duration::from_secs(10);

/// How a node is in a cluster.
pub struct ClusterSettings {
    /// The place of the record.
    pub coordination: Box<dyn Coordination>,
    /// The name of the cluster.
    pub cluster: String,
    /// Nodes that begin it.
    pub replicas: u32,
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

/// Counters since the start.
#[derive(Debug, Default)]
struct Counters {
    sent: AtomicU64,
    received: AtomicU64,
    caught_up: AtomicU64,
}

/// A node of a cluster.
pub struct ClusterNode {
    shared: Arc<Shared>,
    backup: Arc<Backup>,
    job: BackupJob,
    directory: PathBuf,
    durability: Durability,
    lease_ms: u64,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl ClusterNode {
    /// Opens the directory, which is made if it is not there, and comes into the cluster.
    ///
    /// # Errors
    /// Those that an operator has to mend.
    pub fn open(directory: &Path, mut settings: ClusterSettings) -> Result<Self, StoreError> {
        let refused = |why: String| StoreError::NotServed(why);
        let durability = settings.durability;
        let options =
            Options { is_durable: durability != Durability::Replicated, ..Options::default() };
        let (disk, options) = lock_directory(directory, options)?;
        mark(directory, &settings.cluster)?;
        let id = identity(directory).map_err(|error| StoreError::ReadOnly(error.to_string()))?;
        let service = wire::service_of(&id);
        let bell = || Bell::new().map(Arc::new).map_err(|error| refused(error.to_string()));
        let (control, counters) = (bell()?, Arc::<Counters>::default());
        let of_backup =
            Options { is_durable: durability == Durability::DurableAll, ..options.clone() };
        let backup = Backup::new(
            settings.cluster.clone(),
            Arc::clone(&disk),
            of_backup,
            Arc::clone(&control),
            Arc::clone(&counters),
            weft_open::now,
        )?;
        let backup = Arc::new(backup);
        let opening = settings.opening.clone().offering(&service);
        let endpoint = opening.and_then(|opening| opening.open());
        let endpoint = endpoint.map_err(|error| refused(format!("the fabric: {error}")))?;
        let (host, port) = settings.address.clone();
        let identity = Identity { id: id.clone(), host: host.clone(), port, service };
        let (me, seen) = enter(&mut settings, &identity, &backup).map_err(refused)?;
        let lease_ms = seen.lease_ms;
        let shared = Arc::new(Shared::new(View::alone(id, host, port), control, counters));
        let mut threads = Vec::new();
        let failed = |error: std::io::Error| refused(error.to_string());
        let start_link = links(&settings, Duration::from_millis(lease_ms), &shared.counters);
        let control = Control::new(
            Arc::clone(&shared),
            Arc::clone(&backup),
            (disk, options),
            settings,
            (me, &seen),
            start_link,
            weft_open::now,
        );
        // Before anybody asks: a node is no primary until it knows that it is.
        control.show();
        threads.extend(service::start(&backup, endpoint).map_err(failed)?);
        let named = thread::Builder::new().name("kv-control".to_owned());
        threads.push(named.spawn(move || control.run()).map_err(failed)?);
        let threads = Mutex::new(threads);
        let (job, directory) = (BackupJob::default(), directory.to_owned());
        Ok(Self { shared, backup, job, directory, durability, lease_ms, threads })
    }

    /// Waits until there is a primary that serves, but not for longer.
    pub fn wait_until_usable(&self, most: Duration) {
        let end = Instant::now() + most;
        while Instant::now() < end && self.view().regions.iter().all(|it| it.primary.is_none()) {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the node. A primary hands over first, if there is a backup in sync.
    pub fn close(&self) {
        self.ending();
        self.shared.is_ending.store(true, Ordering::Release);
        self.shared.control.ring();
        self.backup.stop();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
    }
}

/// Starts links, each with a thread of its own.
fn links(settings: &ClusterSettings, lease: Duration, counters: &Arc<Counters>) -> StartLink {
    let (cluster, opening) = (settings.cluster.clone(), settings.opening.clone());
    let counters = Arc::clone(counters);
    Box::new(move |peer, member, reign| {
        let bell = Arc::new(Bell::new().ok()?);
        let link = Link {
            peer,
            service: member.service.clone(),
            cluster: cluster.clone(),
            opening: opening.clone(),
            reign: Arc::clone(reign),
            lease,
            bell: Arc::clone(&bell),
            counters: Arc::clone(&counters),
        };
        let named = thread::Builder::new().name(format!("kv-link-{peer}"));
        let thread = named.spawn(move || link.run()).ok()?;
        Some(Box::new(move || {
            bell.ring();
            let _ = thread.join();
        }))
    })
}

/// Comes into the record of the cluster. Returns the place of the node, and the record.
fn enter(
    settings: &mut ClusterSettings,
    identity: &Identity,
    backup: &Backup,
) -> Result<(u32, weft_kv::cluster::Record), String> {
    let end = Instant::now() + JOINED_WITHIN;
    let has = backup.has().unwrap_or_default();
    loop {
        match control::register(settings, identity, has) {
            Ok(entered) => return Ok(entered),
            Err(control::NoEntry::Refused(why)) => return Err(why),
            Err(control::NoEntry::Later(why)) if Instant::now() > end => return Err(why),
            Err(control::NoEntry::Later(_)) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Notes whose directory this is.
fn mark(directory: &Path, cluster: &str) -> Result<(), StoreError> {
    let file = directory.join(CLUSTER);
    match fs::read_to_string(&file) {
        Ok(text) if text.trim() == cluster => Ok(()),
        Ok(text) => Err(StoreError::NotServed(format!(
            "{} belongs to the cluster {}",
            directory.display(),
            text.trim()
        ))),
        Err(_) => fs::write(&file, format!("{cluster}\n"))
            .map_err(|error| StoreError::ReadOnly(format!("{}: {error}", file.display()))),
    }
}

/// The cluster that a directory belongs to, if it belongs to one.
#[must_use]
pub fn cluster_of(directory: &Path) -> Option<(String, PathBuf)> {
    let file = directory.join(CLUSTER);
    let text = fs::read_to_string(&file).ok()?;
    Some((text.trim().to_owned(), file))
}

/// Bytes that a directory takes on its device.
fn bytes_in(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| entry.metadata().ok());
    files.filter(fs::Metadata::is_file).map(|file| file.blocks() * 512).sum()
}

impl Store for ClusterNode {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.shared.get(key)
    }

    fn peek(&self, key: &[u8], at_most: usize) -> Result<Option<Peek>, StoreError> {
        self.shared.peek(key, at_most)
    }

    fn write(&self, batch: Vec<Change>) -> Result<Lsn, StoreError> {
        self.shared.write(batch)
    }

    fn commit(&self, upto: Lsn) -> Result<(), StoreError> {
        self.shared.commit(upto)
    }

    fn newest(&self) -> Lsn {
        self.shared.newest()
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        self.shared.scan(from, to, backward, limit)
    }

    fn peek_scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
        at_most: usize,
    ) -> Result<Vec<(Vec<u8>, Peek)>, StoreError> {
        self.shared.peek_scan(from, to, backward, limit, at_most)
    }
}

impl Node for ClusterNode {
    fn view(&self) -> Arc<View> {
        Arc::clone(&self.shared.view.read())
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn lease_ms(&self) -> u64 {
        self.lease_ms
    }

    fn report(&self) -> Report {
        let reign = self.shared.reign.read().clone();
        let mut damage: Vec<String> = self.shared.trouble.lock().iter().cloned().collect();
        damage.extend(reign.as_ref().and_then(|reign| reign.engine.failure()));
        let counters = &self.shared.counters;
        let data_bytes = match &reign {
            Some(reign) => reign.engine.statistics().data_bytes,
            None => bytes_in(&self.directory),
        };
        Report {
            data_bytes,
            damage,
            sent_bytes: counters.sent.load(Ordering::Relaxed),
            received_bytes: counters.received.load(Ordering::Relaxed),
            catch_up_bytes: counters.caught_up.load(Ordering::Relaxed),
            backup: self.job.state(),
        }
    }

    fn settled(&self) -> Lsn {
        Lsn(self.shared.numbers.settled())
    }

    fn replicas_with(&self, upto: Lsn) -> usize {
        let reign = self.shared.serving();
        reign.map_or(0, |reign| reign.court.count_with(upto.0.saturating_sub(reign.base)))
    }

    fn lsn(&self) -> Lsn {
        match self.shared.reign.read().as_ref() {
            Some(reign) => reign.engine.newest(),
            None => Lsn(self.backup.has().map_or(0, |has| has.lsn)),
        }
    }

    fn failover(&self, how: Failover) -> Result<(), String> {
        let reign = self.shared.serving().map_err(|error| error.to_string())?;
        let to = how.to.and_then(|place| place.try_into().ok());
        if reign.court.heir(0, to).is_none() {
            return Err("no backup is in sync".to_owned());
        }
        *self.shared.failover.lock() = Some(how);
        self.shared.control.ring();
        Ok(())
    }

    fn abort_failover(&self) -> bool {
        if self.shared.failover.lock().take().is_some() {
            return true;
        }
        let goes_on = self.shared.is_handing_over.load(Ordering::Acquire);
        if goes_on {
            self.shared.aborts_failover.store(true, Ordering::Release);
            self.shared.control.ring();
        }
        goes_on
    }

    fn is_failing_over(&self) -> bool {
        self.shared.failover.lock().is_some() || self.shared.is_handing_over.load(Ordering::Acquire)
    }

    fn backup(&self, to: &Path) -> Result<(), String> {
        let reign = self.shared.serving().map_err(|_| "ask the primary for a copy".to_owned())?;
        self.job.start(to, move |to| reign.engine.backup(to))
    }

    fn ending(&self) {
        if let Ok(reign) = self.shared.reign() {
            reign.court.hurry();
        }
    }
}
