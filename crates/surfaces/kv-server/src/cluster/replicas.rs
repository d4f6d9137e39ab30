//! An engine with its backups on this host, without a record of a cluster: for measurements.
//!
//! The court, the links, the services and the writers are those of a cluster. Nobody is promoted: a
//! backup that is lost ends all commits.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use weft_kv::engine::{Engine, Options, Piece, lock_directory, open_on};
use weft_kv::manifest::Edit;
use weft_kv::replication::Shipper;
use weft_kv::replication::builder::Builder;
use weft_kv::replication::primary::Peer;
use weft_kv::store::{Change, Lsn, Store, StoreError};
use weft_kv::table::TableMeta;
use weft_open::Opening;

use super::Counters;
use super::backup::Backup;
use super::bell::Bell;
use super::court::Court;
use super::link::Link;
use super::reign::Reign;
use super::{service, wire};

/// The lease, which nobody needs here.
const LEASE: Duration = Duration::from_secs(60);
/// How long the backups may take to join.
const JOINED_WITHIN: Duration = Duration::from_secs(30);
/// How often the backups are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// How backups get their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// The primary ships its tables.
    SendIndex,
    /// Each backup builds its own from the log, with a level 0 and compactions.
    BuildIndex,
}

/// An engine with its backups, which are threads of this process. The fabric is between.
pub struct Replicated {
    reign: Arc<Reign>,
    backups: Vec<Arc<Backup>>,
    /// The engines of backups that build their index.
    engines: Vec<Arc<Engine>>,
    /// Bytes that the primary put, and what came.
    counters: Arc<Counters>,
    threads: Vec<JoinHandle<()>>,
    /// Wakes the thread that looks after the backups.
    bell: Arc<Bell>,
    /// Those of the links.
    bells: Vec<Arc<Bell>>,
    is_ending: Arc<AtomicBool>,
}

/// Ships the log alone.
struct LogAlone(Arc<Court>);

impl Shipper for LogAlone {
    fn log(&self, pieces: &[Piece<'_>], newest: u64) {
        self.0.log(pieces, newest);
    }

    fn edit(&self, _: &Edit, _: Vec<(TableMeta, Vec<u8>)>) {}

    fn wait(&self, lsn: u64) -> Result<(), StoreError> {
        self.0.wait(lsn)
    }
}

impl Replicated {
    /// Opens a store that is empty in a directory, with `backups` copies in the directories
    /// `backup-1`, `backup-2` and so on below it. `opening` opens endpoints that reach each other.
    ///
    /// # Errors
    /// [`StoreError::NotServed`] if there is a store or the fabric cannot be used, and those of
    /// the device.
    pub fn open(
        directory: &Path,
        options: Options,
        backups: u32,
        replication: Replication,
        opening: &Opening,
    ) -> Result<Self, StoreError> {
        let bell = new_bell()?;
        let (disk, options) = lock_directory(directory, options)?;
        let engine = open_on(disk, options.clone())?;
        if engine.newest().0 > 0 {
            let directory = directory.display();
            return Err(refused(format!("{directory} has pairs already; take another directory")));
        }
        let peers: BTreeSet<Peer> = (1..=backups).collect();
        let (epoch, now) = (options.epoch, weft_open::now);
        let court = Court::new(epoch, 0, peers.clone(), LEASE, Arc::clone(&bell), now);
        let court = Arc::new(court);
        engine.set_shipper(Some(match replication {
            Replication::SendIndex => Arc::clone(&court) as Arc<dyn Shipper>,
            Replication::BuildIndex => Arc::new(LogAlone(Arc::clone(&court))),
        }));
        let serves = AtomicBool::new(true);
        let mut all = Self {
            reign: Arc::new(Reign { engine, court, base: 0, before: 0, serves }),
            backups: Vec::new(),
            engines: Vec::new(),
            counters: Arc::default(),
            threads: Vec::new(),
            bell,
            bells: Vec::new(),
            is_ending: Arc::default(),
        };
        for peer in peers {
            let place = directory.join(format!("backup-{peer}"));
            all.add(peer, &place, &options, replication, opening)?;
        }
        all.await_backups()?;
        let (court, bell) = (Arc::clone(&all.reign.court), Arc::clone(&all.bell));
        let is_ending = Arc::clone(&all.is_ending);
        let watch = move || {
            while !is_ending.load(Ordering::Acquire) && !court.is_over() {
                if !court.is_whole() {
                    tracing::error!("a backup is lost");
                    court.end();
                }
                bell.wait(LOOK);
            }
        };
        all.threads.push(spawn("kv-watch".to_owned(), watch)?);
        Ok(all)
    }

    /// Adds a backup, and the link to it.
    fn add(
        &mut self,
        peer: Peer,
        place: &Path,
        options: &Options,
        replication: Replication,
        opening: &Opening,
    ) -> Result<(), StoreError> {
        let cluster = "bench".to_owned();
        let (disk, options) = lock_directory(place, options.clone())?;
        let (own, counters) = (new_bell()?, Arc::<Counters>::default());
        let backup = Backup::new(
            cluster.clone(),
            Arc::clone(&disk),
            options.clone(),
            own,
            counters,
            weft_open::now,
        )?;
        if replication == Replication::BuildIndex {
            let engine = Arc::new(open_on(disk, Options { collects: false, ..options.clone() })?);
            backup.build(Builder::new(Arc::clone(&engine)));
            self.engines.push(engine);
        }
        let (backup, service) = (Arc::new(backup), wire::service_of(&format!("bench-{peer}"), 0));
        backup.follow(options.epoch);
        let failed = |error: &dyn std::fmt::Display| refused(format!("the fabric: {error}"));
        let offering = opening.clone().offering(&service).map_err(|error| failed(&error))?;
        let endpoint = offering.open().map_err(|error| failed(&error))?;
        self.threads.extend(service::start(&backup, endpoint).map_err(|error| failed(&error))?);
        self.backups.push(backup);
        let bell = new_bell()?;
        self.bells.push(Arc::clone(&bell));
        let link = Link {
            peer,
            service,
            cluster,
            opening: opening.clone(),
            reign: Arc::clone(&self.reign),
            lease: LEASE,
            bell,
            counters: Arc::clone(&self.counters),
        };
        self.threads.push(spawn(format!("kv-link-{peer}"), move || link.run())?);
        Ok(())
    }

    fn await_backups(&self) -> Result<(), StoreError> {
        let end = Instant::now() + JOINED_WITHIN;
        while !self.reign.court.is_whole() {
            if Instant::now() > end {
                return Err(refused("a backup cannot be reached".to_owned()));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The engine of the primary. Its commits wait for the backups.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.reign.engine
    }

    /// Bytes that the primary has put into the memory of its backups.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.counters.sent.load(Ordering::Relaxed)
    }

    /// Bytes that flushes and compactions of the backups have read.
    #[must_use]
    pub fn backup_compaction_read_bytes(&self) -> u64 {
        let read = |engine: &Arc<Engine>| engine.statistics().compaction_read_bytes;
        self.engines.iter().map(read).sum()
    }

    /// Waits until there is no work behind, and each backup has all.
    ///
    /// # Errors
    /// Those of the engines, and [`StoreError::Unknown`] if a backup is lost.
    pub fn settle(&self) -> Result<(), StoreError> {
        let engine = self.engine();
        engine.settle()?;
        // Messages keep their order: a backup that has this batch has all that was sent before.
        let nothing = vec![Change::Delete { key: b"nobody has this key".to_vec() }];
        let lsn: Lsn = engine.write(nothing)?;
        engine.commit(lsn)?;
        self.engines.iter().try_for_each(|engine| engine.settle())
    }

    /// Ends all. Each directory can be served afterwards.
    ///
    /// # Errors
    /// Those of the engines.
    pub fn close(mut self) -> Result<(), StoreError> {
        self.settle()?;
        self.stop();
        self.reign.engine.set_shipper(None);
        let engines = std::mem::take(&mut self.engines);
        self.backups.clear();
        for engine in engines {
            if let Some(engine) = Arc::into_inner(engine) {
                engine.close()?;
            }
        }
        Ok(())
    }

    fn stop(&mut self) {
        self.is_ending.store(true, Ordering::Release);
        self.reign.court.end();
        self.bell.ring();
        self.bells.iter().for_each(|bell| bell.ring());
        self.backups.iter().for_each(|backup| backup.stop());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Replicated {
    fn drop(&mut self) {
        self.stop();
    }
}

fn new_bell() -> Result<Arc<Bell>, StoreError> {
    Bell::new().map(Arc::new).map_err(|error| refused(error.to_string()))
}

fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StoreError> {
    let started: io::Result<_> = thread::Builder::new().name(name).spawn(run);
    started.map_err(|error| refused(error.to_string()))
}

fn refused(why: String) -> StoreError {
    StoreError::NotServed(why)
}
