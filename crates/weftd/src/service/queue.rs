//! The events that wait for a service with a thread, in turns of users.
//!
//! # Invariants
//! - At most [`PACKETS_MAX`] packets wait, and each user has a part of what the others leave.
//! - Ends of programs wait beside them, at most two for each place of a program: a place is free
//!   again when all services know of its program's end.
//! - Events of one user leave in the order in which they came. Users take turns, one event each: a
//!   user who fills a part of the queue makes others wait for one event of theirs, not for all.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::host::Answer;
use super::{Event, Request};
use crate::quota::{Lease, Pool, Quota};

/// Packets that may wait for one service.
pub const PACKETS_MAX: usize = 1024;

/// The next thing for a service to do.
pub enum Next {
    /// To handle this.
    Event(Event),
    /// To tell how it is.
    Report(Sender<Answer>),
    /// To do what is due.
    Timeout,
}

struct Entry {
    event: Event,
    /// It counts as this while it waits.
    _held: Arc<Lease>,
}

#[derive(Default)]
struct Waiting {
    by_user: HashMap<u32, VecDeque<Entry>>,
    /// Users with events, in the order of their turns.
    turns: VecDeque<u32>,
    asked: Option<Sender<Answer>>,
}

/// The queue.
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

    /// Puts a packet in.
    ///
    /// # Errors
    /// Gives it back when its user has no place left.
    pub fn put(&self, request: Request) -> Result<(), Request> {
        match self.places.lease(request.from.uid, 1) {
            Some(place) => {
                self.append(Event::Packet(request), Arc::new(place));
                Ok(())
            }
            None => Err(request),
        }
    }

    /// Puts in that a program ended or is gone; `place` is that of the program.
    pub fn put_end(&self, event: Event, place: &Arc<Lease>) {
        self.append(event, Arc::clone(place));
    }

    fn append(&self, event: Event, held: Arc<Lease>) {
        let user = event.from().uid;
        let mut waiting = self.lock();
        let own = waiting.by_user.entry(user).or_default();
        own.push_back(Entry { event, _held: held });
        if own.len() == 1 {
            waiting.turns.push_back(user);
        }
        drop(waiting);
        self.changed.notify_one();
    }

    /// Asks the service how it is. An earlier question that is still open gets no answer.
    pub fn ask(&self, sender: Sender<Answer>) {
        self.lock().asked = Some(sender);
        self.changed.notify_one();
    }

    /// Waits for something to do, until `due` at the longest.
    pub fn next(&self, due: Option<Instant>) -> Next {
        let mut waiting = self.lock();
        loop {
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Next::Timeout;
            }
            if let Some(sender) = waiting.asked.take() {
                return Next::Report(sender);
            }
            if let Some(event) = waiting.take() {
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

    /// How many events wait.
    pub fn len(&self) -> usize {
        self.lock().by_user.values().map(VecDeque::len).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics in there.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn take(&mut self) -> Option<Event> {
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
