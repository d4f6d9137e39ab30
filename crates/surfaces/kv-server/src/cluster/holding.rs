//! A region at this node: its directory, its backup with its service on the fabric, and the thread
//! that controls it. A node holds all regions of its cluster, each independent of the others.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use weft_kv::cluster::MemberEntry;
use weft_kv::disk::Disk;
use weft_kv::engine::{Options, lock_directory};
use weft_kv::node::{Durability, View};
use weft_kv::store::{Lsn, Store, StoreError};
use weft_open::Opening;

use super::backup::Backup;
use super::bell::Bell;
use super::control::{Control, StartLink};
use super::coordination::coordination;
use super::enter::{Entry, enter};
use super::link::Link;
use super::shared::Shared;
use super::{ClusterSettings, Counters, layout, service, wire};

/// A directory that is locked.
pub(super) struct Locked {
    directory: PathBuf,
    disk: Arc<dyn Disk>,
    options: Options,
}

/// Facts about the node that all its regions share.
pub(super) struct Facts<'s> {
    pub settings: &'s ClusterSettings,
    pub id: String,
    pub regions: u32,
    pub lease_ms: u64,
    pub counters: Arc<Counters>,
}

/// A region that is held.
pub(super) struct Holding {
    pub shared: Arc<Shared>,
    pub backup: Arc<Backup>,
    directory: PathBuf,
    /// The lease, as the record of the region says.
    pub lease_ms: u64,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Locked {
    pub fn new(directory: &Path, options: Options) -> Result<Self, StoreError> {
        let (disk, options) = lock_directory(directory, options)?;
        Ok(Self { directory: directory.to_owned(), disk, options })
    }
}

impl Holding {
    /// Comes into the region.
    pub fn open(facts: &Facts<'_>, region: u32, locked: Locked) -> Result<Self, StoreError> {
        let refused = |why: String| StoreError::NotServed(why);
        let failed = |error: std::io::Error| refused(error.to_string());
        let Locked { directory, disk, options } = locked;
        let settings = facts.settings;
        let service = wire::service_of(&facts.id, region);
        let bell = Arc::new(Bell::new().map_err(failed)?);
        let of_backup = Options {
            is_durable: settings.durability == Durability::DurableAll,
            ..options.clone()
        };
        let backup = Arc::new(Backup::new(
            wire::cluster_of_hello(&settings.cluster, region),
            Arc::clone(&disk),
            of_backup,
            Arc::clone(&bell),
            Arc::clone(&facts.counters),
            weft_open::now,
        )?);
        let opening = settings.opening.clone().offering(&service);
        let endpoint = opening.and_then(|opening| opening.open());
        let endpoint = endpoint.map_err(|error| refused(format!("the fabric: {error}")))?;
        let (host, port) = settings.address.clone();
        let mut place = coordination(&settings.place, &settings.cluster, region)
            .map_err(|error| refused(error.to_string()))?;
        let has = backup.has().unwrap_or_default();
        let entry = Entry {
            region,
            regions: facts.regions,
            replicas: settings.replicas,
            lease_ms: facts.lease_ms,
            member: MemberEntry { id: facts.id.clone(), host: host.clone(), port, service, has },
        };
        let (me, seen) = enter(&mut *place, &entry).map_err(refused)?;
        let view = View::alone(facts.id.clone(), host, port);
        let shared = Arc::new(Shared::new(view, bell));
        let lease_ms = seen.lease_ms;
        let control = Control::new(
            Arc::clone(&shared),
            Arc::clone(&backup),
            (disk, options),
            place,
            (me, &seen),
            links(settings, region, Duration::from_millis(lease_ms), &facts.counters),
            weft_open::now,
        );
        // Before anybody asks: a node is no primary until it knows that it is.
        control.show();
        let mut threads = Vec::from(service::start(&backup, endpoint).map_err(failed)?);
        let named = thread::Builder::new().name(format!("kv-control-{region}"));
        threads.push(named.spawn(move || control.run()).map_err(failed)?);
        let threads = Mutex::new(threads);
        Ok(Self { shared, backup, directory, lease_ms, threads })
    }

    /// Asks the threads to end. A primary hands over first, if there is a backup in sync.
    pub fn end(&self) {
        if let Ok(reign) = self.shared.reign() {
            reign.court.hurry();
        }
        self.shared.is_ending.store(true, Ordering::Release);
        self.shared.control.ring();
        self.backup.stop();
    }

    /// Waits for the end of the threads.
    pub fn join(&self) {
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
    }

    /// The newest batch that is here.
    pub fn lsn(&self) -> Lsn {
        match self.shared.reign.read().as_ref() {
            Some(reign) => reign.engine.newest(),
            None => Lsn(self.backup.has().map_or(0, |has| has.lsn)),
        }
    }

    /// Bytes on the device.
    pub fn data_bytes(&self) -> u64 {
        match self.shared.reign.read().as_ref() {
            Some(reign) => reign.engine.statistics().data_bytes,
            None => layout::bytes_in(&self.directory),
        }
    }

    /// All that is wrong.
    pub fn damage(&self) -> Vec<String> {
        let mut damage: Vec<String> = self.shared.trouble.lock().iter().cloned().collect();
        let reign = self.shared.reign.read();
        damage.extend(reign.as_ref().and_then(|reign| reign.engine.failure()));
        damage
    }
}

/// Starts links, each with a thread of its own.
fn links(
    settings: &ClusterSettings,
    region: u32,
    lease: Duration,
    counters: &Arc<Counters>,
) -> StartLink {
    let cluster = wire::cluster_of_hello(&settings.cluster, region);
    let opening: Opening = settings.opening.clone();
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
        let named = thread::Builder::new().name(format!("kv-link-{region}-{peer}"));
        let thread = named.spawn(move || link.run()).ok()?;
        Some(Box::new(move || {
            bell.ring();
            let _ = thread.join();
        }))
    })
}
