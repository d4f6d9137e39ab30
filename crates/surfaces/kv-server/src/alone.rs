//! A node without a cluster: one engine in one directory, which serves all slots.

use std::fs;
use std::io::{self, Write};
use std::ops::Bound;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use weft_kv::engine::{Engine, Options};
use weft_kv::node::{Backup, Durability, Failover, Node, Report, View};
use weft_kv::store::{Change, Lsn, Pair, Peek, Store, StoreError};

use crate::cluster::regions_in;

/// The file with the identity of the node.
const IDENTITY: &str = "node-id";

/// A node without a cluster.
pub struct Alone {
    engine: Arc<Engine>,
    job: BackupJob,
    view: Arc<View>,
    durability: Durability,
}

impl Alone {
    /// Opens the store of a directory, which is made if it is not there. Clients reach the node at
    /// this address.
    ///
    /// # Errors
    /// Those that an operator has to mend.
    pub fn open(
        directory: &Path,
        durability: Durability,
        (host, port): (String, u16),
    ) -> Result<Self, StoreError> {
        let regions = regions_in(directory).len();
        if regions > 0 {
            let name = directory.display();
            return Err(StoreError::NotServed(format!(
                "{name} has {regions} regions of a cluster: serve it with --coord and --cluster"
            )));
        }
        let options =
            Options { is_durable: durability != Durability::Replicated, ..Options::default() };
        let engine = Engine::open(directory, options)?;
        let id = identity(directory).map_err(|error| {
            StoreError::ReadOnly(format!("{}: {error}", directory.join(IDENTITY).display()))
        })?;
        let engine = Arc::new(engine);
        Ok(Self {
            engine,
            job: BackupJob::default(),
            view: Arc::new(View::alone(id, host, port)),
            durability,
        })
    }

    /// Everything that the recovery discarded, in words for an operator.
    #[must_use]
    pub fn discarded(&self) -> &[String] {
        &self.engine.report().discarded
    }

    /// Ends the store.
    ///
    /// # Errors
    /// Those of a write; the store can be opened again in any case.
    pub fn close(self) -> Result<(), StoreError> {
        // A copy that is being written keeps it; what was answered is safe without.
        Arc::into_inner(self.engine).map_or(Ok(()), Engine::close)
    }
}

/// A copy of a store, which is written by a thread of its own.
#[derive(Default)]
pub(crate) struct BackupJob(Arc<Mutex<Backup>>);

impl BackupJob {
    /// How the last copy goes.
    pub(crate) fn state(&self) -> Backup {
        self.0.lock().clone()
    }

    /// Begins to write a copy into a new directory.
    ///
    /// # Errors
    /// Another one is being written.
    pub(crate) fn start(
        &self,
        to: &Path,
        write: impl FnOnce(&Path) -> Result<(), StoreError> + Send + 'static,
    ) -> Result<(), String> {
        if std::mem::replace(&mut *self.0.lock(), Backup::Running) == Backup::Running {
            return Err("another copy is being written".to_owned());
        }
        let (state, to) = (Arc::clone(&self.0), to.to_owned());
        thread::spawn(move || {
            let made = fs::create_dir_all(&to).map_err(|error| error.to_string());
            let result = made.and_then(|()| write(&to).map_err(|error| error.to_string()));
            *state.lock() = result.map_or_else(Backup::Failed, |()| Backup::Done);
        });
        Ok(())
    }
}

/// The identity of the node: 40 hexadecimal digits, random at its first start.
pub(crate) fn identity(directory: &Path) -> io::Result<String> {
    let path = directory.join(IDENTITY);
    if let Ok(text) = fs::read_to_string(&path) {
        let text = text.trim();
        if text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(text.to_owned());
        }
    }
    let mut random = [0_u8; 20];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    // Whole under another name first, so that a crash leaves an old file or a new one.
    let fresh = directory.join(format!("{IDENTITY}.new"));
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    writeln!(file, "{id}")?;
    file.sync_all()?;
    fs::rename(&fresh, &path)?;
    Ok(id)
}

impl Store for Alone {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.engine.get(key)
    }

    fn peek(&self, key: &[u8], at_most: usize) -> Result<Option<Peek>, StoreError> {
        self.engine.peek(key, at_most)
    }

    fn write(&self, batch: Vec<Change>) -> Result<Lsn, StoreError> {
        self.engine.write(batch)
    }

    fn commit(&self, upto: Lsn) -> Result<(), StoreError> {
        self.engine.commit(upto)
    }

    fn commit_is_quick(&self) -> bool {
        self.durability == Durability::Replicated
    }

    fn newest(&self) -> Lsn {
        self.engine.newest()
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        self.engine.scan(from, to, backward, limit)
    }

    fn peek_scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
        at_most: usize,
    ) -> Result<Vec<(Vec<u8>, Peek)>, StoreError> {
        self.engine.peek_scan(from, to, backward, limit, at_most)
    }
}

impl Node for Alone {
    fn view(&self) -> Arc<View> {
        Arc::clone(&self.view)
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn lease_ms(&self) -> u64 {
        0
    }

    fn report(&self) -> Report {
        Report {
            data_bytes: self.engine.statistics().data_bytes,
            damage: self.engine.failure().into_iter().collect(),
            backup: self.job.state(),
            ..Report::default()
        }
    }

    fn failover(&self, _: Failover) -> Result<(), String> {
        Err("there is no other node".to_owned())
    }

    fn backup(&self, to: &Path) -> Result<(), String> {
        let engine = Arc::clone(&self.engine);
        self.job.start(to, move |to| engine.backup(to))
    }
}
