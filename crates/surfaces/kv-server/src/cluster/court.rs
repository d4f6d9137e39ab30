//! A primary's state, which its engine, its links and the thread of control share.
//!
//! Always true:
//! - What the engine ships goes into the queues of the links in the order in which it came.
//! - [`Court::wait`] comes back well only after every backup that the record may name has the
//!   batch, and [`Court::is_valid`] is true only while each of them holds the lease up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use weft_kv::cluster::Leases;
use weft_kv::engine::Piece;
use weft_kv::format::Epoch;
use weft_kv::manifest::Edit;
use weft_kv::replication::Shipper;
use weft_kv::replication::message::{Envelope, Offer};
use weft_kv::replication::primary::{Event, Peer, Primary};
use weft_kv::store::StoreError;
use weft_kv::table::TableMeta;

use super::Clock;
use super::bell::Bell;

/// Bytes that may wait for a backup. One that is slower has to join again.
const QUEUE_BYTES_MAX: usize = 256 << 20;
/// How often a writer that waits looks whether the node ends.
const LOOK: Duration = Duration::from_millis(100);
/// How long a writer waits for backups when the node ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// Work for a link.
pub(super) enum Task {
    /// To be sent.
    Send(Box<Envelope>),
    /// The backup lacks these tables, and these segments from these offsets on.
    Fetch { tables: Vec<(Epoch, u64)>, log: Vec<(u64, u64)> },
}

/// A link has to end its session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Over;

/// The queue of a link.
struct Queue {
    tasks: VecDeque<Task>,
    bytes: usize,
    bell: Arc<Bell>,
}

struct State {
    primary: Primary,
    leases: Leases,
    queues: BTreeMap<Peer, Queue>,
    /// The record should name other backups.
    wants_change: bool,
}

/// The state of a primary in one epoch.
pub(super) struct Court {
    pub epoch: Epoch,
    state: Mutex<State>,
    acknowledged: Condvar,
    /// The end of the lease, in nanoseconds.
    until: AtomicU64,
    /// There is another primary, or this one gives up.
    is_over: AtomicBool,
    /// The node ends: nobody waits for long any more.
    is_ending: AtomicBool,
    /// Wakes the thread of control.
    control: Arc<Bell>,
    now: Clock,
}

impl Court {
    pub fn new(
        epoch: Epoch,
        lsn: u64,
        backups: BTreeSet<Peer>,
        lease: Duration,
        control: Arc<Bell>,
        now: Clock,
    ) -> Self {
        let state = State {
            primary: Primary::new(epoch, lsn, backups),
            leases: Leases::new(lease),
            queues: BTreeMap::new(),
            wants_change: false,
        };
        let court = Self {
            epoch,
            state: Mutex::new(state),
            acknowledged: Condvar::new(),
            until: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            control,
            now,
        };
        court.with(|_| ());
        court
    }

    /// Changes the state, and does what follows from it.
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        self.settle(&mut state);
        result
    }

    fn settle(&self, state: &mut State) {
        loop {
            while let Some((peer, envelope)) = state.primary.poll_transmit() {
                self.queue(state, peer, Task::Send(Box::new(envelope)));
            }
            match state.primary.poll_event() {
                None => break,
                Some(Event::Acknowledged(_)) => drop(self.acknowledged.notify_all()),
                Some(Event::Propose) => {
                    state.wants_change = true;
                    self.control.ring();
                }
                Some(Event::Fetch { peer, tables, log }) => {
                    self.queue(state, peer, Task::Fetch { tables, log });
                }
                Some(Event::Deposed(_)) => self.end(),
            }
        }
        let until = state.leases.until(&state.primary.named()).as_nanos();
        self.until.store(u64::try_from(until).unwrap_or(u64::MAX), Ordering::Release);
    }

    fn queue(&self, state: &mut State, peer: Peer, task: Task) {
        let Some(queue) = state.queues.get_mut(&peer) else { return };
        if let Task::Send(envelope) = &task {
            queue.bytes += envelope.message.bulk();
        }
        if queue.bytes > QUEUE_BYTES_MAX {
            tracing::warn!("a backup is too slow: {QUEUE_BYTES_MAX} bytes wait for it");
            queue.tasks.clear();
            queue.bell.ring();
            state.primary.down(peer);
            return;
        }
        queue.tasks.push_back(task);
        queue.bell.ring();
    }

    /// A backup is reached, and has lent its blocks. `offer` is taken while the engine's locks are
    /// held.
    pub fn join(&self, peer: Peer, offer: Offer, bell: Arc<Bell>) {
        self.with(|state| {
            let queue = Queue { tasks: VecDeque::new(), bytes: 0, bell };
            state.queues.insert(peer, queue);
            state.primary.join(peer, offer);
        });
    }

    /// The backup has all that it lacked.
    pub fn caught_up(&self, peer: Peer) {
        self.with(|state| state.primary.lacking(peer, Vec::new(), Vec::new()));
    }

    /// The next work of a link.
    pub fn next(&self, peer: Peer) -> Result<Option<Task>, Over> {
        let mut state = self.state.lock();
        if state.primary.is_down(peer) || self.is_over() {
            return Err(Over);
        }
        let queue = state.queues.get_mut(&peer).ok_or(Over)?;
        let task = queue.tasks.pop_front();
        if let Some(Task::Send(envelope)) = &task {
            queue.bytes -= envelope.message.bulk();
        }
        Ok(task)
    }

    /// A backup is not reached.
    pub fn down(&self, peer: Peer) {
        self.with(|state| {
            state.queues.remove(&peer);
            state.primary.down(peer);
        });
    }

    /// A message of a backup.
    pub fn handle(&self, peer: Peer, envelope: Envelope) {
        self.with(|state| state.primary.handle(peer, envelope));
    }

    /// A backup gave the lease, in answer to a question that was sent at this time.
    pub fn give(&self, peer: Peer, asked: Duration) {
        self.with(|state| state.leases.give(peer, asked));
    }

    /// The backups that the record should name, if a change is wanted. The change is in doubt until
    /// [`Court::recorded`].
    pub fn proposal(&self) -> Option<BTreeSet<Peer>> {
        self.with(|state| {
            let wants_change = std::mem::take(&mut state.wants_change);
            wants_change.then(|| state.primary.proposal())?
        })
    }

    /// The record names these backups.
    pub fn recorded(&self, backups: BTreeSet<Peer>) {
        self.with(|state| state.primary.record(backups));
    }

    /// The outcome of the change is not known. Another one is wanted.
    pub fn in_doubt(&self) {
        self.state.lock().wants_change = true;
    }

    /// Whether each backup that the record names has all that was there when it joined.
    pub fn is_whole(&self) -> bool {
        self.state.lock().primary.is_whole()
    }

    /// A backup that the record names and that has all batches up to this one: the one that is
    /// wanted, or any.
    pub fn heir(&self, lsn: u64, wanted: Option<Peer>) -> Option<Peer> {
        self.state.lock().primary.heir(lsn, wanted)
    }

    /// The backups that have all batches up to this one.
    pub fn backups_with(&self, lsn: u64) -> BTreeSet<Peer> {
        self.state.lock().primary.backups_with(lsn)
    }

    /// The newest batch that may be answered.
    pub fn acknowledged(&self) -> u64 {
        self.state.lock().primary.acknowledged()
    }

    /// Whether reads may be answered at this moment.
    pub fn is_valid(&self) -> bool {
        let now = u64::try_from((self.now)().as_nanos()).unwrap_or(u64::MAX);
        now < self.until.load(Ordering::Acquire) && !self.is_over()
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Acknowledges nothing from now on.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.acknowledged.notify_all();
        self.control.ring();
    }

    /// How the commit of a batch ended that the own system has; `None` while it waits for backups.
    pub fn outcome(&self, lsn: u64) -> Option<Result<(), StoreError>> {
        let acknowledged = self.with(|state| {
            state.primary.written(lsn);
            state.primary.acknowledged()
        });
        match acknowledged >= lsn {
            true => Some(Ok(())),
            false => self.is_over().then(|| Err(deposed())),
        }
    }

    /// Waits for some time, until a batch is acknowledged or the reign is over.
    pub fn wait_some(&self, lsn: u64) {
        let mut state = self.state.lock();
        if state.primary.acknowledged() < lsn && !self.is_over() {
            self.acknowledged.wait_for(&mut state, LOOK);
        }
    }

    /// Whether the node ends, and a wait that began at this time was long enough.
    pub fn is_enough(&self, begun: Duration) -> bool {
        self.is_ending.load(Ordering::Acquire) && (self.now)() > begun + FAREWELL
    }

    /// Nobody waits for long from now on.
    pub fn hurry(&self) {
        self.is_ending.store(true, Ordering::Release);
    }
}

impl Shipper for Court {
    fn log(&self, pieces: &[Piece<'_>], newest: u64) {
        let own = |piece: &Piece<'_>| (piece.segment, piece.offset, piece.bytes.to_vec());
        let pieces: Vec<_> = pieces.iter().map(own).collect();
        self.with(|state| state.primary.log(&pieces, newest));
    }

    fn edit(&self, edit: &Edit, tables: Vec<(TableMeta, Vec<u8>)>) {
        self.with(|state| state.primary.edit(edit, tables));
    }

    fn wait(&self, lsn: u64) -> Result<(), StoreError> {
        let begun = (self.now)();
        loop {
            if let Some(outcome) = self.outcome(lsn) {
                return outcome;
            }
            if self.is_enough(begun) {
                return Err(deposed());
            }
            self.wait_some(lsn);
        }
    }
}

/// The outcome of a batch whose acknowledgement nobody waits for any more.
pub(super) fn deposed() -> StoreError {
    StoreError::Unknown("this node is the primary no more".to_owned())
}
