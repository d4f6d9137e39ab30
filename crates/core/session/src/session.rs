//! The state of one session: the hello, the requests of both directions, the pools, and the end.
//!
//! Invariants: each request of this end ends once. A request of the peer is answered once. The
//! number of the peer's open requests and of its pools is bounded by the options.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weft_fabric::RemoteKey;

use crate::blocks::{Memory, Pool, index};
use crate::error::Offence;
use crate::event::{End, PoolId};

/// The state of a session.
#[derive(Debug)]
pub(crate) enum State {
    /// This end said hello, with these versions.
    Greeting { low: u16, high: u16 },
    /// The peer said hello. The versions are those of both ends.
    Greeted { low: u16, high: u16 },
    /// Both ends agreed.
    Open,
    /// It is over, but for keys that are being granted or revoked.
    Ending { why: End, keys: usize, is_revoked: bool },
}

/// A request of this end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked {
    /// When the program gives it up.
    pub until: Option<Duration>,
    pub fate: Fate,
}

/// Whether somebody waits for the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// The program does.
    Awaited,
    /// The program was told that none comes. The answer is still due, and dropped.
    Forgotten,
}

/// One session. `R` is the region of the transport.
#[derive(Debug)]
pub(crate) struct Session<R> {
    pub state: State,
    /// Requests of this end without an answer, by number.
    pub asked: BTreeMap<u32, Asked>,
    next_request: u32,
    /// How many the peer lets it have.
    pub asked_max: usize,
    /// Requests of the peer without an answer.
    pub to_answer: BTreeSet<u32>,
    next_of_peer: u32,
    pub pools: BTreeMap<PoolId, Pool<R>>,
    next_pool: u32,
    /// The program was refused for lack of room.
    pub wants_room: bool,
    /// When something of the peer came last.
    pub heard: Duration,
    /// When the peer was asked last whether it is there.
    pub asked_alive: Duration,
}

impl<R> Session<R> {
    pub fn new(state: State, now: Duration) -> Self {
        Self {
            state,
            asked: BTreeMap::new(),
            next_request: 0,
            asked_max: 0,
            to_answer: BTreeSet::new(),
            next_of_peer: 0,
            pools: BTreeMap::new(),
            next_pool: 0,
            wants_room: false,
            heard: now,
            asked_alive: now,
        }
    }

    pub const fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    pub const fn is_ending(&self) -> bool {
        matches!(self.state, State::Ending { .. })
    }

    /// Whether the peer lets this end make one more request.
    pub fn may_ask(&self) -> bool {
        self.asked.len() < self.asked_max
    }

    /// The number of the next request.
    pub const fn next_request(&self) -> u32 {
        self.next_request
    }

    /// The next request was sent.
    pub fn asks(&mut self, until: Option<Duration>) {
        let asked = Asked { until, fate: Fate::Awaited };
        self.asked.insert(self.next_request, asked);
        // A number comes again after 2^32 requests, of which 65,536 can be open at most.
        self.next_request = self.next_request.wrapping_add(1);
    }

    /// Takes a request of the peer.
    pub fn is_asked(&mut self, number: u32, maximum: u32) -> Result<(), Offence> {
        if self.to_answer.len() >= index(maximum) {
            let maximum = u64::from(maximum);
            return Err(Offence::TooMany { what: "open requests", maximum });
        }
        // One that this end had no memory for has not arrived, and its sender was told: its number
        // is passed over.
        if number.wrapping_sub(self.next_of_peer) > u32::MAX / 2 {
            return Err(Offence::OutOfTurn { what: "a request with a wrong number" });
        }
        self.next_of_peer = number.wrapping_add(1);
        if !self.to_answer.insert(number) {
            return Err(Offence::OutOfTurn { what: "the number of an open request" });
        }
        Ok(())
    }

    /// Adds an own pool.
    pub fn add_pool(&mut self, pool: Pool<R>) -> PoolId {
        let id = PoolId { is_own: true, number: self.next_pool };
        self.next_pool += 1;
        self.pools.insert(id, pool);
        id
    }

    /// Adds a pool of the peer.
    pub fn lent(&mut self, number: u32, pool: Pool<R>, maximum: usize) -> Result<PoolId, Offence> {
        let lent = self.pools.keys().filter(|id| !id.is_own).count();
        if lent >= maximum {
            return Err(Offence::TooMany { what: "pools", maximum: maximum as u64 });
        }
        let id = PoolId { is_own: false, number };
        if self.pools.contains_key(&id) {
            return Err(Offence::OutOfTurn { what: "a pool twice" });
        }
        self.pools.insert(id, pool);
        Ok(id)
    }

    /// Begins the end. Returns the keys to revoke; keys that are being granted are waited for.
    pub fn end(&mut self, why: End) -> Vec<RemoteKey> {
        let (mut keys, mut count) = (Vec::new(), 0);
        for pool in self.pools.values() {
            if let Memory::Own { key, .. } = &pool.memory {
                count += 1;
                keys.extend(*key);
            }
        }
        self.state = State::Ending { why, keys: count, is_revoked: true };
        self.to_answer.clear();
        keys
    }
}
