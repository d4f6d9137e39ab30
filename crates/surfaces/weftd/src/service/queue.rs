//! The queue of a service with a thread. Users take turns.
//!
//! # Invariants
//! - At most [`PACKETS_MAX`] packets wait. Each user may have a share of what the other users
//!   leave.
//! - The end of a process and the end of a program wait in the same queue. They take no place from
//!   packets: each keeps the place that its program has among the programs of the daemon. That
//!   place is free again when all services have handled the end. A program has one end of each
//!   kind, so their number is bounded.
//! - Events of one user leave in the order in which they came. Users take turns, one event each. A
//!   user with many events therefore delays an event of another user by one event, not by all.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::host::Answer;
use super::{Event, NodeEvent, Request};
use crate::quota::{Lease, Pool, Quota};

/// Messages of other nodes that may wait for one service.
pub const NODE_EVENTS_MAX: usize = 16_384;
/// Packets that may wait for one service.
pub const PACKETS_MAX: usize = 1024;

/// The next step of the service.
pub enum Next {
    /// Handle this event.
    Event(Event),
    /// Handle news of another node.
    Node(NodeEvent),
    /// Report its status.
    Report(Sender<Answer>),
    /// Handle its timeout.
    Timeout,
}

struct Entry {
    event: Event,
    /// The place of the event, which is free again when the entry is dropped.
    _place: Arc<Lease>,
}

/// The waiting events. A user is in both tables while an event of that user waits.
#[derive(Default)]
struct Waiting {
    /// The events of each user, the oldest first. No list is empty.
    by_user: HashMap<u32, VecDeque<Entry>>,
    /// The same users, in the order of their turns.
    turns: VecDeque<u32>,
    /// News of other nodes, the oldest first.
    nodes: VecDeque<NodeEvent>,
    /// The answer to a request for the status goes here.
    status_to: Option<Sender<Answer>>,
}

/// The queue of one service.
pub struct Queue {
    places: Arc<Pool>,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Queue {
    /// An empty queue.
    pub fn new(quota: Quota) -> Self {
        let places = Pool::new(PACKETS_MAX, quota);
        Self { places, waiting: Mutex::default(), changed: Condvar::new() }
    }

    /// Adds a packet.
    ///
    /// # Errors
    /// Returns the packet when its user has no place left.
    pub fn enqueue(&self, request: Request) -> Result<(), Request> {
        match self.places.lease(request.from.uid, 1) {
            Some(place) => {
                self.append(Event::Packet(request), Arc::new(place));
                Ok(())
            }
            None => Err(request),
        }
    }

    /// Adds the end of a process or of a program. `place` is the place of the program.
    pub fn enqueue_end(&self, event: Event, place: &Arc<Lease>) {
        self.append(event, Arc::clone(place));
    }

    fn append(&self, event: Event, place: Arc<Lease>) {
        let user = event.from().uid;
        let mut waiting = self.lock();
        let own = waiting.by_user.entry(user).or_default();
        own.push_back(Entry { event, _place: place });
        if own.len() == 1 {
            waiting.turns.push_back(user);
        }
        drop(waiting);
        self.changed.notify_one();
    }

    /// Adds news of another node. False for a message when too many wait.
    pub fn enqueue_node(&self, event: NodeEvent) -> bool {
        let mut waiting = self.lock();
        if matches!(event, NodeEvent::Message(..)) && waiting.nodes.len() >= NODE_EVENTS_MAX {
            return false;
        }
        waiting.nodes.push_back(event);
        drop(waiting);
        self.changed.notify_one();
        true
    }

    /// Asks the service for its status. An earlier request that the service has not answered is
    /// dropped.
    pub fn request_status(&self, sender: Sender<Answer>) {
        self.lock().status_to = Some(sender);
        self.changed.notify_one();
    }

    /// Waits for the next thing to do, until `due` at the longest.
    pub fn next(&self, due: Option<Instant>) -> Next {
        let mut waiting = self.lock();
        loop {
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Next::Timeout;
            }
            if let Some(sender) = waiting.status_to.take() {
                return Next::Report(sender);
            }
            if let Some(event) = waiting.nodes.pop_front() {
                return Next::Node(event);
            }
            if let Some(event) = waiting.dequeue() {
                return Next::Event(event);
            }
            waiting = match left {
                Some(left) => {
                    let woken = self.changed.wait_timeout(waiting, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Number of waiting events.
    pub fn len(&self) -> usize {
        self.lock().by_user.values().map(VecDeque::len).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // No code panics while it holds the lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn dequeue(&mut self) -> Option<Event> {
        let user = self.turns.pop_front()?;
        let own = self.by_user.get_mut(&user)?;
        let taken = own.pop_front();
        if own.is_empty() {
            self.by_user.remove(&user);
        } else {
            self.turns.push_back(user);
        }
        taken.map(|entry| entry.event)
    }
}
