//! A backup: who may send to it, and the writer of its files.
//!
//! Always true:
//! - At most one session is current. What came by another one is not written, so that a primary
//!   whose session was ended reaches nothing any more, whatever it puts.
//! - The lease is given by a node that takes messages alone, and never while the writer is stuck.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use weft_kv::cluster::{Follower, Has};
use weft_kv::disk::Disk;
use weft_kv::engine::{Options as EngineOptions, Reader};
use weft_kv::format::Epoch;
use weft_kv::replication::builder::Builder;
use weft_kv::replication::message::Envelope;
use weft_kv::replication::replica::Replica;
use weft_kv::store::StoreError;
use weft_session::SessionId;

use super::bell::Bell;
use super::reads::Reads;
use super::wire::{Hello, Word};
use super::{Clock, Counters};

/// A writer that is at one message for so long is stuck: the primary has to go on without it.
const STUCK: Duration = Duration::from_secs(10);
/// How long a read waits for the writer, if there is no reader yet.
const READY_WITHIN: Duration = Duration::from_millis(50);
/// How long the end of a session is waited for.
const CLOSED_WITHIN: Duration = Duration::from_millis(500);

/// The primaries that may send.
struct Gate<S> {
    /// Primaries of this epoch and later ones; nobody if none.
    follows: Option<Epoch>,
    follower: Follower,
    /// The session that is current.
    session: Option<S>,
    /// The highest epoch of a primary that came.
    heard: Epoch,
}

/// A message for the writer.
pub(super) struct Work<S> {
    pub session: S,
    pub bytes: Vec<u8>,
}

/// The result of a message.
pub(super) struct Done<S> {
    pub session: S,
    pub bytes: usize,
    pub answer: Result<Option<Envelope>, String>,
}

/// The files of a backup.
enum Files {
    /// Its tables come from the primary.
    Shipped(Box<Replica>),
    /// It makes them itself from the log.
    Built(Builder),
}

impl Files {
    fn has(&self) -> Has {
        let (epoch, lsn) = match self {
            Self::Shipped(replica) => (replica.epoch(), replica.lsn()),
            Self::Built(builder) => (builder.epoch(), builder.lsn()),
        };
        Has { epoch, lsn }
    }

    fn damage(&self) -> Option<&str> {
        match self {
            Self::Shipped(replica) => replica.damage(),
            Self::Built(_) => None,
        }
    }

    fn catch_up_bytes(&self) -> u64 {
        match self {
            Self::Shipped(replica) => replica.catch_up_bytes(),
            Self::Built(_) => 0,
        }
    }

    fn handle(&mut self, envelope: Envelope) -> Result<Option<Envelope>, StoreError> {
        match self {
            Self::Shipped(replica) => replica.handle(envelope),
            Self::Built(builder) => builder.handle(envelope),
        }
    }
}

/// The state that the service, the writer and the thread of control share. `S` names a session.
pub(super) struct Backup<S = SessionId> {
    cluster: String,
    gate: Mutex<Gate<S>>,
    /// A session has ended.
    ended: Condvar,
    files: Mutex<Option<Files>>,
    disk: Arc<dyn Disk>,
    options: EngineOptions,
    pub done: Mutex<Vec<Done<S>>>,
    /// When the writer began with the message that it is at.
    began: Mutex<Option<Duration>>,
    pub bell: Bell,
    /// Reads of clients.
    reads: Reads,
    /// Why the device is not used any more.
    failure: Mutex<Option<String>>,
    /// Wakes the thread of control.
    control: Arc<Bell>,
    pub counters: Arc<Counters>,
    /// A service ends sessions.
    pub is_served: AtomicBool,
    pub is_over: AtomicBool,
    now: Clock,
}

impl<S: Copy + PartialEq> Backup<S> {
    /// A backup with what its disk has.
    pub fn new(
        cluster: String,
        disk: Arc<dyn Disk>,
        options: EngineOptions,
        control: Arc<Bell>,
        counters: Arc<Counters>,
        now: Clock,
    ) -> Result<Self, StoreError> {
        let replica = Replica::open(Arc::clone(&disk), options.clone())?;
        let bell = Bell::new().map_err(|error| StoreError::ReadOnly(error.to_string()))?;
        let follower = Follower::new(0, Duration::ZERO, now());
        let gate = Gate { follows: None, follower, session: None, heard: 0 };
        Ok(Self {
            cluster,
            gate: Mutex::new(gate),
            ended: Condvar::new(),
            files: Mutex::new(Some(Files::Shipped(Box::new(replica)))),
            disk,
            options,
            done: Mutex::default(),
            began: Mutex::default(),
            bell,
            reads: Reads::default(),
            failure: Mutex::default(),
            control,
            counters,
            is_served: false.into(),
            is_over: false.into(),
            now,
        })
    }

    /// From now on it builds its index itself, in a store that is empty.
    pub fn build(&self, builder: Builder) {
        *self.files.lock() = Some(Files::Built(builder));
    }

    /// The end of the store, while it is a backup's.
    pub fn has(&self) -> Option<Has> {
        self.files.lock().as_ref().map(Files::has)
    }

    /// Why the store must not become the primary's: it is damaged, or its device failed.
    pub fn trouble(&self) -> Option<String> {
        let failure = self.failure.lock().clone();
        let damage = || self.files.lock().as_ref()?.damage().map(str::to_owned);
        failure.or_else(damage)
    }

    /// The device failed: nothing is written to it until the program is started again.
    pub fn fail(&self, why: String) {
        tracing::error!("the device failed: {why}");
        self.failure.lock().get_or_insert(why);
    }

    /// Decides as a follower. Nobody is given the lease meanwhile.
    pub fn decide<T>(&self, decide: impl FnOnce(&mut Follower) -> T) -> T {
        decide(&mut self.gate.lock().follower)
    }

    /// Takes what primaries of this epoch and later ones send.
    pub fn follow(&self, epoch: Epoch) {
        self.gate.lock().follows = Some(epoch);
    }

    /// Takes nothing from now on. The memory of a session that is open is revoked.
    pub fn close(&self) {
        let mut gate = self.gate.lock();
        gate.follows = None;
        self.reads.forget();
        if gate.session.take().is_some() && self.is_served.load(Ordering::Acquire) {
            self.bell.ring();
            // Messages that it puts later go nowhere, also if this takes longer.
            self.ended.wait_for(&mut gate, CLOSED_WITHIN);
        }
        drop(gate);
        // The writer ends the message that it is at.
        drop(self.files.lock());
    }

    /// The directory is the engine's from now on.
    pub fn give_up(&self) {
        self.close();
        *self.files.lock() = None;
    }

    /// The directory is a backup's again.
    pub fn take_over(&self) -> Result<(), StoreError> {
        let replica = Replica::open(Arc::clone(&self.disk), self.options.clone())?;
        *self.files.lock() = Some(Files::Shipped(Box::new(replica)));
        Ok(())
    }

    /// A reader of the store. What it answers was so at some moment of the last lease.
    pub fn reader(&self) -> Result<Arc<Reader>, StoreError> {
        let lease = self.gate.lock().follower.lease();
        self.reads.reader((self.now)(), lease, || {
            // The writer may be at a message for long.
            let mut files = self.files.try_lock_for(READY_WITHIN)?;
            match &mut *files {
                Some(Files::Shipped(replica)) => replica.reader().ok(),
                Some(Files::Built(_)) | None => None,
            }
        })
    }

    /// The session that is current.
    pub fn current(&self) -> Option<S> {
        self.gate.lock().session
    }

    /// A primary opened a session. True if it is the current one from now on.
    pub fn admit(&self, session: S, hello: Option<&Hello>) -> bool {
        let mut gate = self.gate.lock();
        let hello = hello.filter(|hello| hello.cluster == self.cluster);
        let epoch = hello.map_or(0, |hello| hello.epoch);
        if epoch > gate.heard {
            gate.heard = epoch;
            self.control.ring();
        }
        let is_failed = self.failure.lock().is_some();
        let may = epoch > 0 && !is_failed && gate.follows.is_some_and(|lowest| epoch >= lowest);
        if may {
            gate.session = Some(session);
            self.reads.forget();
        }
        may
    }

    /// A primary asks for its lease, with its word. The time of the answer, if it is given.
    pub fn give(&self, session: S, word: Option<Word>) -> Option<Duration> {
        let (may, now) = (!self.is_stuck(), (self.now)());
        let mut gate = self.gate.lock();
        let is_given = may && gate.session == Some(session) && gate.follower.give(now);
        if let Some(word) = word.filter(|_| is_given) {
            self.reads.hear(word, now);
        }
        is_given.then_some(now)
    }

    /// A session has ended.
    pub fn ended(&self, session: S) {
        let mut gate = self.gate.lock();
        if gate.session == Some(session) {
            gate.session = None;
            self.reads.forget();
        }
        self.ended.notify_all();
        // There may be another primary.
        self.control.ring();
    }

    /// Ends the threads.
    pub fn stop(&self) {
        self.is_over.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// The writer.
    pub fn write(&self, works: &Receiver<Work<S>>) {
        for Work { session, bytes } in works {
            *self.began.lock() = Some((self.now)());
            let length = bytes.len();
            let answer = self.written(session, &bytes);
            *self.began.lock() = None;
            self.done.lock().push(Done { session, bytes: length, answer });
            self.bell.ring();
        }
    }

    /// Writes a message. Returns the answer to it; none to a session that is not current.
    pub fn written(&self, session: S, bytes: &[u8]) -> Result<Option<Envelope>, String> {
        let mut slot = self.files.lock();
        if self.gate.lock().session != Some(session) {
            return Ok(None);
        }
        let Some(files) = &mut *slot else { return Ok(None) };
        if let Some(why) = &*self.failure.lock() {
            return Err(why.clone());
        }
        let envelope = Envelope::parse(bytes).ok_or("it sent no message")?;
        let before = files.catch_up_bytes();
        let result = files.handle(envelope);
        let caught_up = files.catch_up_bytes() - before;
        self.counters.caught_up.fetch_add(caught_up, Ordering::Relaxed);
        if let Err(StoreError::ReadOnly(why)) = &result {
            self.fail(why.clone());
        } else if let Err(error) = &result {
            tracing::warn!("the backup begins again: {error}");
            // The directory stays what it was if it cannot be read.
            if let Files::Shipped(replica) = files
                && let Ok(fresh) = Replica::open(Arc::clone(&self.disk), self.options.clone())
            {
                **replica = fresh;
            }
        }
        result.map_err(|error| error.to_string())
    }

    fn is_stuck(&self) -> bool {
        self.began.lock().is_some_and(|began| (self.now)() > began + STUCK)
    }
}
