//! The engine of one region: the log, level 0, tables, and the work behind.
//!
//! A write goes into the log buffer and level 0 (`log`); [`Engine::commit`] gives the buffer to
//! the operating system, one write for all that wait. The value log is the write-ahead log: values
//! of large pairs stay where they were first written, and tables point to them. A full level 0 is
//! frozen, and goes to level 1 (`flush`); a full level goes to the next one (`compact`). A
//! segment of the log of which little is used any more is collected (`collect`).
//!
//! Always true:
//! - Tables that the manifest names are synced, and so is the log that they point to.
//! - The log is dense: LSNs have no gap from the watermark of the manifest to the end.
//! - A device that failed is not asked again: the engine takes no writes from then on.
//!
//! Locks are taken in the order `flusher`, `manifest`, `writer`, `jobs`, `view`, and a level 0
//! last.

mod backup;
mod check;
mod collect;
mod compact;
mod cursor;
mod flush;
mod log;
mod options;
mod read;
mod reader;
mod recover;
mod replicate;
mod view;
mod work;

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex, RwLock};

pub use check::{check, check_directory};
pub use options::Options;
pub use read::Snapshot;
pub use reader::Reader;
pub use recover::{Report, open_on};
pub use replicate::{Contents, Piece, contents};

use crate::disk::real::RealDisk;
use crate::disk::{Disk, read_error};
use crate::format::Region;
use crate::manifest::{Manifest, Position};
use crate::replication::Shipper;
use crate::store::{Change, Lsn, Pair, Store, StoreError};
use crate::table::BlockCache;
use log::Writer;
use view::View;
use work::Jobs;

/// A store of one region in one directory.
pub struct Engine {
    core: Arc<Core>,
    threads: Vec<JoinHandle<()>>,
    report: Report,
}

/// The state that the engine's calls and its threads share.
pub(crate) struct Core {
    disk: Arc<dyn Disk>,
    options: Options,
    region: Region,
    cache: Arc<BlockCache>,
    view: RwLock<Arc<View>>,
    writer: Mutex<Writer>,
    /// Held by the thread that writes the log.
    flusher: Mutex<()>,
    /// The newest batch that level 0 has.
    newest: AtomicU64,
    /// The newest batch that is as safe as the options say.
    committed: AtomicU64,
    manifest: Mutex<Manifest>,
    jobs: Mutex<Jobs>,
    /// There may be work.
    work: Condvar,
    /// There may be room for writers.
    room: Condvar,
    /// The file for the next segment is there.
    spare: Condvar,
    is_stopping: AtomicBool,
    /// The buffer could not be written, because the disk is full.
    is_stuck: AtomicBool,
    /// Gets what is written, for backups.
    shipper: RwLock<Option<Arc<dyn Shipper>>>,
    failure: Failure,
    counters: Counters,
}

/// Why the engine takes no writes.
#[derive(Default)]
struct Failure {
    is_set: AtomicBool,
    reason: Mutex<Option<String>>,
}

/// Counters of the engine since it was opened.
#[derive(Default)]
struct Counters {
    flushes: AtomicU64,
    compactions: AtomicU64,
    collections: AtomicU64,
    compaction_read: AtomicU64,
    table_written: AtomicU64,
    log_written: AtomicU64,
    stalls: AtomicU64,
}

/// Counters of the engine since it was opened, and its size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Levels 0 that went to level 1.
    pub flushes: u64,
    /// Tables or levels that went to the next.
    pub compactions: u64,
    /// Segments that were collected.
    pub collections: u64,
    /// Bytes that flushes and compactions read.
    pub compaction_read_bytes: u64,
    /// Bytes of tables that were written.
    pub table_written_bytes: u64,
    /// Bytes of the log that were written.
    pub log_written_bytes: u64,
    /// Writers that waited for a level 0.
    pub stalls: u64,
    /// Bytes of the tables of each level.
    pub level_bytes: Vec<u64>,
    /// Segments of the log.
    pub segments: u64,
    /// Bytes of tables and segments.
    pub data_bytes: u64,
}

impl Engine {
    /// Opens the store of a directory, which is made if it is not there, and locks it.
    ///
    /// # Errors
    /// [`StoreError::NotServed`] if another process has it open, [`StoreError::Damaged`],
    /// [`StoreError::Full`].
    pub fn open(directory: &Path, options: Options) -> Result<Self, StoreError> {
        let (disk, options) = lock_directory(directory, options)?;
        open_on(disk, options)
    }

    /// Findings of the recovery, and all that it discarded.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// A view of the store that later writes do not change.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(&self.core)
    }

    /// Does one piece of the work behind, for engines without threads. False if there is none.
    ///
    /// # Errors
    /// [`StoreError::Full`]: it can be tried again. Any other one: the engine takes no writes.
    pub fn work(&self) -> Result<bool, StoreError> {
        self.core.work()
    }

    /// Freezes level 0 and brings all levels 0 into tables.
    ///
    /// # Errors
    /// Those of [`work`](Self::work).
    pub fn flush(&self) -> Result<(), StoreError> {
        self.core.freeze();
        self.core.flush_all()
    }

    /// Waits until there is no work behind.
    ///
    /// # Errors
    /// Those of [`work`](Self::work).
    pub fn settle(&self) -> Result<(), StoreError> {
        self.core.settle()
    }

    /// Gives all batches up to this one to the operating system and, where the options say so, to
    /// the device, as [`Store::commit`] does, but waits for no backup.
    ///
    /// # Errors
    /// As [`Store::commit`].
    pub fn write_out(&self, upto: Lsn) -> Result<(), StoreError> {
        self.core.commit(upto.0)
    }

    /// Why the engine takes no writes, if it does not.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.core.failure.reason.lock().clone()
    }

    /// Numbers for an operator.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.core.statistics()
    }

    /// Writes a copy of the store as it is now into an empty directory, which can be opened.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Full`], [`StoreError::NotServed`] if the directory
    /// has a store.
    pub fn backup(&self, to: &Path) -> Result<(), StoreError> {
        let disk = RealDisk::open(to, self.core.options.files_max)
            .map_err(|error| read_error(&to.display().to_string(), &error))?;
        self.core.backup(&(Arc::new(disk) as Arc<dyn Disk>))
    }

    /// Ends the threads, gives all to the device and notes that the store was closed.
    ///
    /// # Errors
    /// Those of a write. The store can be opened in any case.
    pub fn close(mut self) -> Result<(), StoreError> {
        self.stop();
        self.core.close()
    }

    fn stop(&mut self) {
        self.core.is_stopping.store(true, Ordering::Release);
        {
            let _jobs = self.core.jobs.lock();
            self.core.work.notify_all();
            self.core.room.notify_all();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Locks a directory, which is made if it is not there, and completes the options by the boot of
/// the machine: for what opens its disk more than once ([`open_on`], and backups).
///
/// # Errors
/// As for [`Engine::open`].
pub fn lock_directory(
    directory: &Path,
    mut options: Options,
) -> Result<(Arc<dyn Disk>, Options), StoreError> {
    let disk = RealDisk::open(directory, options.files_max).map_err(|error| {
        if error.kind() == std::io::ErrorKind::WouldBlock {
            StoreError::NotServed(error.to_string())
        } else {
            read_error(&directory.display().to_string(), &error)
        }
    })?;
    if options.boot.is_empty() {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        boot.unwrap_or_default().trim().clone_into(&mut options.boot);
    }
    Ok((Arc::new(disk), options))
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Store for Engine {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.core.get(key)
    }

    fn write(&self, batch: Vec<Change>) -> Result<Lsn, StoreError> {
        self.core.write(&batch).map(Lsn)
    }

    fn commit(&self, upto: Lsn) -> Result<(), StoreError> {
        self.write_out(upto)?;
        self.core.wait_for_backups(upto.0)
    }

    fn commit_is_quick(&self) -> bool {
        !self.core.options.is_durable && self.core.shipper.read().is_none()
    }

    fn newest(&self) -> Lsn {
        let is_failed = self.core.failure.is_set.load(Ordering::Acquire);
        let newest = if is_failed { &self.core.committed } else { &self.core.newest };
        Lsn(newest.load(Ordering::Acquire))
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        self.snapshot().scan(from, to, backward, limit)
    }
}

impl Core {
    fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read())
    }

    /// Takes no writes from now on.
    fn fail(&self, error: StoreError) -> StoreError {
        let mut reason = self.failure.reason.lock();
        reason.get_or_insert_with(|| error.to_string());
        self.failure.is_set.store(true, Ordering::Release);
        drop(reason);
        let _jobs = self.jobs.lock();
        self.work.notify_all();
        self.room.notify_all();
        error
    }

    /// The error for writers, if the engine takes no writes.
    fn check_failure(&self) -> Result<(), StoreError> {
        if !self.failure.is_set.load(Ordering::Acquire) {
            return Ok(());
        }
        let reason = self.failure.reason.lock().clone().unwrap_or_default();
        Err(StoreError::ReadOnly(reason))
    }

    fn statistics(&self) -> Statistics {
        let view = self.view();
        let level_bytes: Vec<u64> = view
            .levels
            .iter()
            .map(|level| level.iter().map(|table| table.meta().bytes).sum())
            .collect();
        let log_bytes: u64 = view.segments.iter().map(|segment| segment.written()).sum();
        let counters = &self.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Statistics {
            flushes: read(&counters.flushes),
            compactions: read(&counters.compactions),
            collections: read(&counters.collections),
            compaction_read_bytes: read(&counters.compaction_read),
            table_written_bytes: read(&counters.table_written),
            log_written_bytes: read(&counters.log_written),
            stalls: read(&counters.stalls),
            data_bytes: level_bytes.iter().sum::<u64>() + log_bytes,
            level_bytes,
            segments: view.segments.len() as u64,
        }
    }

    /// The end of the log.
    fn end(&self) -> Position {
        self.writer.lock().position()
    }
}
