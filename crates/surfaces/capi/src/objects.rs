//! The objects behind handles: endpoints, memory, options.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use weft_fabric::{Endpoint, Peer, RemoteKey, Waited};
use weft_message::Messages;
use weft_open::{AnyEndpoint, now};

use crate::events::{EVENTS_MAX, Events, Waiting};
use crate::status::Failure;
use crate::table::{Kind, Table};
use crate::types::weft_status::{WEFT_ERROR_LIMIT, WEFT_ERROR_PEER_DOWN, WEFT_ERROR_TIMEOUT};

/// A region of memory that an endpoint has registered.
pub type AnyRegion = <AnyEndpoint as Endpoint>::Region;

/// Events that are taken at a time while the program waits for one of them.
const EVENTS_A_TURN: usize = 64;

pub static ENDPOINTS: Table<Mutex<EndpointObject>> = Table::new(Kind::Endpoint);
pub static MEMORIES: Table<MemoryObject> = Table::new(Kind::Memory);
pub static OPTIONS: Table<OptionsObject> = Table::new(Kind::Options);

/// The wishes of a program for its endpoint.
#[derive(Clone, Debug, Default)]
pub struct OptionsObject {
    pub name: Option<String>,
    pub socket: Option<String>,
    pub provider: Option<String>,
    pub entry: Entry,
    pub peers: Option<usize>,
    pub starts_no_daemon: bool,
}

/// The partition of an endpoint, and its way into it.
#[derive(Clone, Debug, Default)]
pub enum Entry {
    /// That of the user.
    #[default]
    OfUser,
    /// That of a service that it offers.
    Offers(String),
    /// That of a service that it finds.
    Finds(String),
}

/// Registered memory.
#[derive(Debug)]
pub struct MemoryObject {
    pub region: AnyRegion,
    /// The handle of the endpoint.
    pub endpoint: usize,
    pub keys: Mutex<Vec<RemoteKey>>,
}

/// An endpoint with its messages, and the events that its program has not taken.
#[derive(Debug)]
pub struct EndpointObject {
    pub messages: Messages<AnyEndpoint>,
    pub events: Events,
    /// Keys that are void, and by which a peer may still write to memory in place.
    pub still_written: BTreeSet<RemoteKey>,
}

impl EndpointObject {
    pub fn new(messages: Messages<AnyEndpoint>) -> Self {
        Self { messages, events: Events::default(), still_written: BTreeSet::new() }
    }

    /// The endpoint of the fabric.
    #[inline]
    pub fn fabric(&mut self) -> &mut AnyEndpoint {
        self.messages.endpoint()
    }

    /// Takes what the fabric has, about `budget` events at most.
    #[inline]
    pub fn progress(&mut self, budget: usize) -> usize {
        let Self { messages, events, .. } = self;
        messages.poll(budget, |event| events.take(event))
    }

    /// Waits until there is an event at least.
    pub fn wait(&mut self, timeout: Option<Duration>, most: usize) {
        let until = timeout.map(|timeout| now().saturating_add(timeout));
        loop {
            self.progress(most);
            if self.events.len() > 0 || !self.sleep(until) {
                return;
            }
        }
    }

    /// Sleeps until there may be events. False when the time has passed.
    fn sleep(&mut self, until: Option<Duration>) -> bool {
        let left = until.map(|until| until.saturating_sub(now()));
        self.messages.wait(left) == Waited::Ready || left.is_none_or(|left| !left.is_zero())
    }

    /// Waits for an event for which `look` has an answer, and takes it, if it says so.
    fn wait_for<T>(
        &mut self,
        timeout: Option<Duration>,
        mut look: impl FnMut(&Waiting) -> Option<(T, bool)>,
    ) -> Result<T, Failure> {
        let until = timeout.map(|timeout| now().saturating_add(timeout));
        let mut seen = 0;
        loop {
            while let Some(event) = self.events.get(seen) {
                if let Some((answer, is_taken)) = look(event) {
                    if is_taken {
                        self.events.remove(seen);
                    }
                    return Ok(answer);
                }
                seen += 1;
            }
            if seen >= EVENTS_MAX {
                let text = format!("{EVENTS_MAX} other events wait; take them with weft_poll");
                return Err(Failure::new(WEFT_ERROR_LIMIT, text));
            }
            if self.progress(EVENTS_A_TURN) == 0 && !self.sleep(until) {
                // One that came at the last moment counts.
                if self.progress(EVENTS_A_TURN) == 0 {
                    let text = "the time has passed; what was begun goes on";
                    return Err(Failure::new(WEFT_ERROR_TIMEOUT, text));
                }
            }
        }
    }

    /// Waits for the completion with this context. Other events stay.
    pub fn finish(&mut self, context: u64, timeout: Option<Duration>) -> Result<u64, Failure> {
        self.wait_for(timeout, |event| event.ended(context).map(|end| (end, true)))?
    }

    /// Waits until there is room for a peer.
    pub fn wait_room(&mut self, peer: Peer, timeout: Option<Duration>) -> Result<(), Failure> {
        let has_room = self.wait_for(timeout, |event| {
            // The report that it is down is for the program.
            let is_down = event.is_down(peer).then_some((false, false));
            is_down.or_else(|| event.is_room(peer).then_some((true, true)))
        })?;
        match has_room {
            true => Ok(()),
            false => Err(Failure::new(WEFT_ERROR_PEER_DOWN, "the peer is down; connect again")),
        }
    }
}
