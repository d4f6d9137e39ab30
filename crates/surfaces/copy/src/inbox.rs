//! The queue of one end: what its threads and its peer tell its loop.
//!
//! The finds of a walk and the messages of a peer wait for room, so that neither fills the memory.
//! The reports of the own workers are bounded by the work that they were given, and never wait.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Most things that wait of a walk, and of a peer.
const WAITING_MAX: usize = 1_024;

#[derive(Debug)]
struct State<T> {
    main: VecDeque<T>,
    walk: VecDeque<T>,
    is_closed: bool,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    state: Mutex<State<T>>,
    came: Condvar,
    room: Condvar,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        let state = State { main: VecDeque::new(), walk: VecDeque::new(), is_closed: false };
        Self { state: Mutex::new(state), came: Condvar::new(), room: Condvar::new() }
    }
}

impl<T> Inbox<T> {
    /// From an own worker.
    pub fn tell(&self, item: T) {
        self.state.lock().main.push_back(item);
        self.came.notify_one();
    }

    /// From a peer: waits for room. False if the loop has ended.
    pub fn tell_in_time(&self, item: T) -> bool {
        let mut state = self.state.lock();
        while state.main.len() >= WAITING_MAX && !state.is_closed {
            self.room.wait(&mut state);
        }
        if state.is_closed {
            return false;
        }
        state.main.push_back(item);
        drop(state);
        self.came.notify_one();
        true
    }

    /// From a peer that is bounded otherwise. False if the loop has ended.
    pub fn tell_if_open(&self, item: T) -> bool {
        let mut state = self.state.lock();
        if state.is_closed {
            return false;
        }
        state.main.push_back(item);
        drop(state);
        self.came.notify_one();
        true
    }

    /// Whether a peer had to wait for room.
    pub fn is_behind(&self) -> bool {
        let state = self.state.lock();
        state.main.len() >= WAITING_MAX && !state.is_closed
    }

    /// From the walk: waits for room. False if the loop has ended.
    pub fn find(&self, item: T) -> bool {
        let mut state = self.state.lock();
        while state.walk.len() >= WAITING_MAX && !state.is_closed {
            self.room.wait(&mut state);
        }
        if state.is_closed {
            return false;
        }
        state.walk.push_back(item);
        drop(state);
        self.came.notify_one();
        true
    }

    /// Moves what there is to `into`, and waits at most `within` if there is nothing. What a walk
    /// found is taken only if `takes_walk`, and at most that many.
    pub fn take(&self, into: &mut Vec<T>, takes_walk: usize, within: Duration) {
        let mut state = self.state.lock();
        if state.main.is_empty() && (takes_walk == 0 || state.walk.is_empty()) {
            self.came.wait_for(&mut state, within);
        }
        into.extend(state.main.drain(..));
        let count = takes_walk.min(state.walk.len());
        into.extend(state.walk.drain(..count));
        drop(state);
        self.room.notify_all();
    }

    /// Ends all waits: the loop has ended.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.main.clear();
        state.walk.clear();
        drop(state);
        self.room.notify_all();
        self.came.notify_all();
    }
}
