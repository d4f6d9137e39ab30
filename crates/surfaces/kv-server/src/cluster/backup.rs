//! A node's service on the fabric, which a primary uses, and the thread that writes what came.
//!
//! Always true:
//! - At most one session is current. What came by another one is not written, so that a primary
//!   whose session was ended reaches nothing any more, whatever it puts.
//! - The lease is given by a node that takes messages alone, and never while the writer is stuck.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use weft_fabric::{Access, Endpoint, LocalRange, Region};
use weft_kv::cluster::{Follower, Has};
use weft_kv::disk::Disk;
use weft_kv::engine::Options as EngineOptions;
use weft_kv::format::Epoch;
use weft_kv::replication::message::{Envelope, Message};
use weft_kv::replication::replica::Replica;
use weft_kv::store::StoreError;
use weft_open::{AnyEndpoint, Waiter, Woken, now, turn};
use weft_session::{BlockId, Event, Options, RequestError, SessionId, Sessions};

use super::Counters;
use super::bell::Bell;
use super::wire::{self, Hello};

/// A writer that is at one message for so long is stuck: the primary has to go on without it.
const STUCK: Duration = Duration::from_secs(10);
/// Bytes of messages that wait for the writer. Blocks are given back when there are fewer.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// How often the service looks around when nothing comes.
const LOOK: Duration = Duration::from_millis(200);
/// How long the end of a session is waited for.
const CLOSED_WITHIN: Duration = Duration::from_millis(500);
/// The code of a refusal: the node takes nothing from this primary at present.
const NOT_NOW: u16 = 1;

/// The primaries that may send.
struct Gate {
    /// Primaries of this epoch and later ones; nobody if none.
    follows: Option<Epoch>,
    follower: Follower,
    /// The session that is current.
    session: Option<SessionId>,
    /// The highest epoch of a primary that came.
    heard: Epoch,
}

/// A message for the writer.
struct Work {
    session: SessionId,
    bytes: Vec<u8>,
}

/// The result of a message.
struct Done {
    session: SessionId,
    bytes: usize,
    answer: Result<Option<Envelope>, String>,
}

/// The state that the service, the writer and the thread of control share.
pub(super) struct Backup {
    cluster: String,
    gate: Mutex<Gate>,
    /// A session has ended.
    ended: Condvar,
    replica: Mutex<Option<Replica>>,
    disk: Arc<dyn Disk>,
    options: EngineOptions,
    done: Mutex<Vec<Done>>,
    /// When the writer began with the message that it is at.
    began: Mutex<Option<Duration>>,
    bell: Bell,
    /// Why the device is not used any more.
    failure: Mutex<Option<String>>,
    /// Wakes the thread of control.
    control: Arc<Bell>,
    counters: Arc<Counters>,
    is_over: std::sync::atomic::AtomicBool,
}

impl Backup {
    /// A backup with what its disk has.
    pub fn new(
        cluster: String,
        disk: Arc<dyn Disk>,
        options: EngineOptions,
        control: Arc<Bell>,
        counters: Arc<Counters>,
    ) -> Result<Self, StoreError> {
        let replica = Replica::open(Arc::clone(&disk), options.clone())?;
        let bell = Bell::new().map_err(|error| StoreError::ReadOnly(error.to_string()))?;
        let follower = Follower::new(0, Duration::ZERO, now());
        let gate = Gate { follows: None, follower, session: None, heard: 0 };
        Ok(Self {
            cluster,
            gate: Mutex::new(gate),
            ended: Condvar::new(),
            replica: Mutex::new(Some(replica)),
            disk,
            options,
            done: Mutex::default(),
            began: Mutex::default(),
            bell,
            failure: Mutex::default(),
            control,
            counters,
            is_over: false.into(),
        })
    }

    /// The end of the store, while it is a backup's.
    pub fn has(&self) -> Option<Has> {
        let replica = self.replica.lock();
        replica.as_ref().map(|replica| Has { epoch: replica.epoch(), lsn: replica.lsn() })
    }

    /// Why the store must not become the primary's: it is damaged, or its device failed.
    pub fn trouble(&self) -> Option<String> {
        let failure = self.failure.lock().clone();
        let damage = || self.replica.lock().as_ref()?.damage().map(str::to_owned);
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
        if gate.session.take().is_some() {
            self.bell.ring();
            // Messages that it puts later go nowhere, also if this takes longer.
            self.ended.wait_for(&mut gate, CLOSED_WITHIN);
        }
        drop(gate);
        // The writer ends the message that it is at.
        drop(self.replica.lock());
    }

    /// The directory is the engine's from now on.
    pub fn give_up(&self) {
        self.close();
        *self.replica.lock() = None;
    }

    /// The directory is a backup's again.
    pub fn take_over(&self) -> Result<(), StoreError> {
        let replica = Replica::open(Arc::clone(&self.disk), self.options.clone())?;
        *self.replica.lock() = Some(replica);
        Ok(())
    }

    /// Starts the service at an endpoint that offers its name, and the writer.
    pub fn start(this: &Arc<Self>, endpoint: AnyEndpoint) -> io::Result<[JoinHandle<()>; 2]> {
        let (send, receive) = channel();
        let (server, writer) = (Arc::clone(this), Arc::clone(this));
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        Ok([
            named("kv-backup").spawn(move || Service::new(&server, endpoint, send).run())?,
            named("kv-replica").spawn(move || writer.write(&receive))?,
        ])
    }

    /// Ends the threads.
    pub fn stop(&self) {
        self.is_over.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// The writer.
    fn write(&self, works: &Receiver<Work>) {
        for Work { session, bytes } in works {
            *self.began.lock() = Some(now());
            let length = bytes.len();
            let answer = self.written(session, &bytes);
            *self.began.lock() = None;
            self.done.lock().push(Done { session, bytes: length, answer });
            self.bell.ring();
        }
    }

    fn written(&self, session: SessionId, bytes: &[u8]) -> Result<Option<Envelope>, String> {
        let mut slot = self.replica.lock();
        if self.gate.lock().session != Some(session) {
            return Ok(None);
        }
        let Some(replica) = &mut *slot else { return Ok(None) };
        if let Some(why) = &*self.failure.lock() {
            return Err(why.clone());
        }
        let envelope = Envelope::parse(bytes).ok_or("it sent no message")?;
        let before = replica.catch_up_bytes();
        let result = replica.handle(envelope);
        let caught_up = replica.catch_up_bytes() - before;
        self.counters.caught_up.fetch_add(caught_up, Ordering::Relaxed);
        if let Err(StoreError::ReadOnly(why)) = &result {
            self.fail(why.clone());
        } else if let Err(error) = &result {
            tracing::warn!("the backup begins again: {error}");
            // The directory stays what it was if it cannot be read.
            if let Ok(fresh) = Replica::open(Arc::clone(&self.disk), self.options.clone()) {
                *slot = Some(fresh);
            }
        }
        result.map_err(|error| error.to_string())
    }

    fn is_stuck(&self) -> bool {
        self.began.lock().is_some_and(|began| now() > began + STUCK)
    }
}

/// The thread of the service.
struct Service<'b> {
    backup: &'b Backup,
    sessions: Sessions<AnyEndpoint>,
    writer: Sender<Work>,
    /// The message that comes.
    bytes: Vec<u8>,
    /// Bytes of messages at the writer.
    at_writer: usize,
    /// Blocks that are not given back yet.
    blocks: VecDeque<BlockId>,
    /// Regions of sessions, and those that a new session may use.
    lent: BTreeMap<SessionId, <AnyEndpoint as Endpoint>::Region>,
    spare: Vec<<AnyEndpoint as Endpoint>::Region>,
    /// Messages for the primary.
    out: VecDeque<Envelope>,
}

/// News of a turn.
enum News {
    Hello(SessionId, u16, Option<Hello>),
    Asked(SessionId, u32),
    Block(SessionId, BlockId, u32, bool),
    Ended(SessionId, bool),
}

impl<'b> Service<'b> {
    fn new(backup: &'b Backup, endpoint: AnyEndpoint, writer: Sender<Work>) -> Self {
        let mut sessions = Sessions::new(endpoint, Options::default());
        sessions.serve(wire::protocol(), &(wire::VERSION..=wire::VERSION));
        Self {
            backup,
            sessions,
            writer,
            bytes: Vec::new(),
            at_writer: 0,
            blocks: VecDeque::new(),
            lent: BTreeMap::new(),
            spare: Vec::new(),
            out: VecDeque::new(),
        }
    }

    fn run(mut self) {
        let mut waiter = Waiter::default();
        while !self.backup.is_over.load(Ordering::Acquire) {
            let mut news = Vec::new();
            let beside = [self.backup.bell.descriptor()];
            let woken =
                turn(&mut self.sessions, &mut waiter, &beside, Some(LOOK), |event| match event {
                    Event::Hello { session, version, options, .. } => {
                        let hello = postcard::from_bytes(options).ok();
                        news.push(News::Hello(session, version, hello));
                    }
                    Event::Request { session, number, .. } => {
                        news.push(News::Asked(session, number));
                    }
                    Event::Block { session, block, length, head } => {
                        news.push(News::Block(session, block, length, head == wire::LAST));
                    }
                    Event::Ended { session, is_revoked, .. } => {
                        news.push(News::Ended(session, is_revoked));
                    }
                    _ => {}
                });
            if woken == Woken::Beside(0) {
                self.backup.bell.quiet();
            }
            for news in news {
                self.take(news);
            }
            self.finish();
            self.end_others();
            self.send();
        }
    }

    fn take(&mut self, news: News) {
        match news {
            News::Hello(session, version, hello) => self.admit(session, version, hello),
            News::Asked(session, number) => {
                let may = !self.backup.is_stuck();
                let mut gate = self.backup.gate.lock();
                let is_given = may && gate.session == Some(session) && gate.follower.give(now());
                drop(gate);
                let code = if is_given { wire::GIVEN } else { wire::REFUSED };
                // A primary that is gone needs none.
                let _ = self.sessions.answer(session, number, code, b"", &[]);
            }
            News::Block(session, block, length, is_last) => {
                if self.current() == Some(session) {
                    self.block(session, block, length, is_last);
                }
            }
            News::Ended(session, is_revoked) => {
                // Memory that a peer may still write is not used again.
                self.spare.extend(self.lent.remove(&session).filter(|_| is_revoked));
                let mut gate = self.backup.gate.lock();
                if gate.session == Some(session) {
                    gate.session = None;
                }
                self.backup.ended.notify_all();
                // There may be another primary.
                self.backup.control.ring();
            }
        }
    }

    fn current(&self) -> Option<SessionId> {
        self.backup.gate.lock().session
    }

    fn admit(&mut self, session: SessionId, version: u16, hello: Option<Hello>) {
        let mut gate = self.backup.gate.lock();
        let hello = hello.filter(|hello| hello.cluster == self.backup.cluster);
        let epoch = hello.map_or(0, |hello| hello.epoch);
        if epoch > gate.heard {
            gate.heard = epoch;
            self.backup.control.ring();
        }
        let is_failed = self.backup.failure.lock().is_some();
        if epoch == 0 || is_failed || gate.follows.is_none_or(|lowest| epoch < lowest) {
            drop(gate);
            let _ = self.sessions.refuse(session, NOT_NOW, "this node takes nothing at present");
            return;
        }
        gate.session = Some(session);
        drop(gate);
        self.bytes = Vec::new();
        self.blocks.clear();
        self.out.clear();
        if let Err(why) = self.lend(session, version) {
            tracing::warn!("a primary cannot be served: {why}");
            self.sessions.end(session, NOT_NOW, &why);
        }
    }

    fn lend(&mut self, session: SessionId, version: u16) -> Result<(), String> {
        self.sessions.accept(session, version, b"").map_err(|error| error.to_string())?;
        let length = u64::from(wire::BLOCK_BYTES) * u64::from(wire::BLOCKS);
        let region = match self.spare.pop() {
            Some(region) => region,
            None => {
                let registered = self.sessions.endpoint().register(length);
                registered.map_err(|error| error.to_string())?
            }
        };
        let range = LocalRange { region: &region, offset: 0, length };
        let lent = self.sessions.lend(session, range, wire::BLOCK_BYTES, Access::WRITE);
        self.lent.insert(session, region);
        lent.map(drop).map_err(|error| error.to_string())
    }

    fn block(&mut self, session: SessionId, block: BlockId, length: u32, is_last: bool) {
        self.backup.counters.received.fetch_add(length.into(), Ordering::Relaxed);
        let start = self.bytes.len();
        let is_too_long = start + length as usize > wire::MESSAGE_BYTES_MAX;
        if !is_too_long && let Some(region) = self.lent.get(&session) {
            self.bytes.resize(start + length as usize, 0);
            let offset = u64::from(block.place) * u64::from(wire::BLOCK_BYTES);
            if region.read(offset, &mut self.bytes[start..]).is_ok() {
                self.blocks.push_back(block);
                if is_last {
                    let bytes = std::mem::take(&mut self.bytes);
                    self.at_writer += bytes.len();
                    // The writer ends after this thread.
                    let _ = self.writer.send(Work { session, bytes });
                }
                self.give_back(session);
                return;
            }
        }
        self.sessions.end(session, NOT_NOW, "the message is too long");
    }

    /// Gives blocks back, while the writer keeps up.
    fn give_back(&mut self, session: SessionId) {
        while self.at_writer < WAITING_BYTES_MAX
            && let Some(block) = self.blocks.pop_front()
        {
            // A session that has ended needs none.
            let _ = self.sessions.free(session, block);
        }
    }

    /// Takes the results of the writer.
    fn finish(&mut self) {
        let done = std::mem::take(&mut *self.backup.done.lock());
        let current = self.current();
        for Done { session, bytes, answer } in done {
            self.at_writer -= bytes;
            match answer {
                _ if current != Some(session) => {}
                Ok(Some(envelope)) => self.say(envelope),
                Ok(None) => {}
                Err(why) => self.sessions.end(session, NOT_NOW, &why),
            }
        }
        if let Some(session) = current {
            self.give_back(session);
        }
    }

    /// A message for the primary. Of two that say how far this backup is, the later one is enough.
    fn say(&mut self, envelope: Envelope) {
        let is_delivered =
            |envelope: &Envelope| matches!(envelope.message, Message::Delivered { .. });
        if is_delivered(&envelope) && self.out.back().is_some_and(is_delivered) {
            self.out.pop_back();
        }
        self.out.push_back(envelope);
    }

    fn send(&mut self) {
        let Some(session) = self.current() else { return };
        while let Some(envelope) = self.out.front() {
            match self.sessions.request(session, b"", &[&envelope.emit()], None) {
                // There is room when an answer comes.
                Err(RequestError::WouldBlock) => return,
                _ => drop(self.out.pop_front()),
            }
        }
    }

    /// Ends sessions that are not current any more.
    fn end_others(&mut self) {
        let current = self.current();
        let others: Vec<_> =
            self.lent.keys().copied().filter(|session| Some(*session) != current).collect();
        for session in others {
            self.sessions.end(session, NOT_NOW, "this node follows another primary");
        }
    }
}
