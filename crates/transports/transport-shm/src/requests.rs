//! Requests to the broker that have not been answered, and what has ended.
//!
//! # Invariants
//! - Every request ends: with its answer, with the broker's connection, or after
//!   [`ANSWER_WITHIN`].
//! - Requests and ended calls together are bounded by [`REQUESTS_MAX`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use weft_fabric::{
    Completion, EndpointAddress, Event, Group, OperationError, Peer, RemoteKey, Value,
};

use crate::memory::Granted;
use crate::moves::Call;
use crate::pair::PairMemory;
use crate::registers::Stamp;

/// Requests without an answer and ended calls that were not handed out, together.
pub const REQUESTS_MAX: usize = 8192;

/// A question to the broker, without an answer yet.
#[derive(Debug)]
pub enum Asked {
    /// A pair with the endpoint at an address.
    Connect { to: EndpointAddress, pair: PairMemory },
    /// A change of a group.
    Group { group: Group, join: bool },
    /// To publish a key, with the memory as it was after this many moves.
    Grant { key: RemoteKey, moves: u32 },
    /// To withdraw a key, whose memory may have to be taken out of reach.
    Revoke { lost: Granted },
    /// To publish a key again, with the memory as it was after `moves` moves. `call` is the
    /// revocation that moved it, and ends with the answer.
    Again { slot: u16, generation: u32, moves: u32, call: Option<Call> },
    /// The memory of a peer's key. `stamp` was read before the request.
    Resolve { peer: Peer, key: RemoteKey, stamp: Stamp, for_whom: Resolver },
    /// For the members of a group.
    Members { group: Group },
    /// To make an invitation.
    Invite,
    /// To end a pair.
    Disconnect { vpid: u16 },
    /// Nothing yet: the owner of a peer's key moves the memory, or a broker that was restarted does
    /// not know the key. The broker is asked when that is over, and not before this time.
    Settle { peer: Peer, key: RemoteKey, for_whom: Resolver, not_before: Duration },
}

/// A call or an operation that waits for the memory of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolver {
    /// A call of its own.
    Call,
    /// The operation that is being started.
    Operation,
    /// Operations that were refused, and to whose program room will be told.
    Refused,
}

/// A resolve that waits until the broker can be asked.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub peer: Peer,
    pub key: RemoteKey,
    pub for_whom: Resolver,
    pub context: Option<u64>,
    /// When it ends at the latest, however often the broker is asked.
    pub until: Duration,
}

/// A request without an answer.
#[derive(Debug)]
pub struct Request {
    pub asked: Asked,
    /// The context of the call that waits for it; `None` when no call waits, or no more.
    pub context: Option<u64>,
    /// When it has waited too long.
    pub until: Duration,
}

/// Something that ended and was not handed out.
#[derive(Debug)]
enum Ended {
    Call(u32, Completion),
    /// A key was resolved, or could not be.
    Room(Peer),
}

/// The requests of an endpoint.
#[derive(Debug, Default)]
pub struct Requests {
    open: BTreeMap<u32, Request>,
    ended: VecDeque<Ended>,
}

impl Requests {
    /// Whether there is no room for a further request.
    pub fn is_full(&self) -> bool {
        self.open.len() + self.ended.len() >= REQUESTS_MAX
    }

    /// Whether any request waits for its answer.
    #[inline]
    pub fn waits(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether something ended that was not handed out.
    #[inline]
    pub fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Adds a request, which waits for its answer until then.
    pub fn add(&mut self, ticket: u32, asked: Asked, context: Option<u64>, until: Duration) {
        self.open.insert(ticket, Request { asked, context, until });
    }

    /// The request with this ticket waits until then. Tickets keep the order of these times.
    pub fn limit(&mut self, ticket: u32, until: Duration) {
        if let Some(request) = self.open.get_mut(&ticket) {
            request.until = until;
        }
    }

    /// Takes the request with this ticket.
    pub fn take(&mut self, ticket: u32) -> Option<Request> {
        self.open.remove(&ticket)
    }

    /// Whether the request with this ticket asks for the members of a group.
    pub fn asks_for_members(&self, ticket: u32) -> bool {
        let request = self.open.get(&ticket);
        request.is_some_and(|request| matches!(request.asked, Asked::Members { .. }))
    }

    /// When the oldest request has waited too long.
    pub fn next_late(&self) -> Option<Duration> {
        Some(self.open.first_key_value()?.1.until)
    }

    /// Lets all requests wait so much longer, at once.
    #[cfg(test)]
    pub fn age(&mut self, time: Duration) {
        for request in self.open.values_mut() {
            request.until = request.until.saturating_sub(time);
        }
    }

    /// Takes a request that has waited too long at `now`.
    pub fn take_late(&mut self, now: Duration) -> Option<(u32, Request)> {
        // Tickets grow with time, so the first request is the oldest, until tickets wrap.
        let first = self.open.first_entry().filter(|first| first.get().until <= now)?;
        Some(first.remove_entry())
    }

    /// Takes all requests that were sent.
    pub fn take_sent(&mut self) -> BTreeMap<u32, Request> {
        let all = std::mem::take(&mut self.open).into_iter();
        let was_sent = |request: &Request| !matches!(request.asked, Asked::Settle { .. });
        let (sent, waiting) = all.partition(|(_, request)| was_sent(request));
        self.open = waiting;
        sent
    }

    /// Whether the broker has to be asked again after some time.
    pub fn asks_again(&self) -> bool {
        self.open.values().any(|request| match request.asked {
            Asked::Settle { not_before, .. } => !not_before.is_zero(),
            _ => false,
        })
    }

    /// Whether the broker was asked to publish a key again, with the memory as it was after `moves`
    /// moves.
    pub fn publishes(&self, key: (u16, u32), moves: u32) -> bool {
        self.open.values().any(|request| match request.asked {
            Asked::Again { slot, generation, moves: of, .. } => {
                (slot, generation) == key && of == moves
            }
            _ => false,
        })
    }

    /// Takes the resolves for which the broker is to be asked at `now`, where `is_settled` finds no
    /// move.
    pub fn take_settled(
        &mut self,
        now: Duration,
        mut is_settled: impl FnMut(Peer, RemoteKey) -> bool,
    ) -> Vec<(u32, Waiting)> {
        let mut settled = Vec::new();
        for (ticket, request) in &self.open {
            if let Asked::Settle { peer, key, for_whom, not_before } = request.asked
                && not_before <= now
                && is_settled(peer, key)
            {
                let Request { context, until, .. } = *request;
                settled.push((*ticket, Waiting { peer, key, for_whom, context, until }));
            }
        }
        for (ticket, _) in &settled {
            self.open.remove(ticket);
        }
        settled
    }

    /// Whether the key of a peer is being resolved for operations. If so, its end will be told as
    /// room.
    pub fn refuses(&mut self, wanted: RemoteKey) -> bool {
        self.open.values_mut().any(|request| match &mut request.asked {
            Asked::Resolve { key, for_whom, .. } | Asked::Settle { key, for_whom, .. }
                if *key == wanted && *for_whom != Resolver::Call =>
            {
                *for_whom = Resolver::Refused;
                true
            }
            _ => false,
        })
    }

    /// A call ended.
    pub fn end(
        &mut self,
        ticket: u32,
        context: Option<u64>,
        result: Result<Value, OperationError>,
    ) {
        if let Some(context) = context {
            self.ended.push_back(Ended::Call(ticket, Completion { context, result }));
        }
    }

    /// A key of a peer was resolved, or could not be.
    pub fn tell_room(&mut self, peer: Peer) {
        let told = |ended: &Ended| matches!(ended, Ended::Room(of) if *of == peer);
        if !self.ended.iter().any(told) {
            self.ended.push_back(Ended::Room(peer));
        }
    }

    /// Takes the end of the call with this ticket.
    pub fn take_ended(&mut self, ticket: u32) -> Option<Result<Value, OperationError>> {
        self.take_where(|of, _| of == ticket)
    }

    /// Takes the end of the call with this context.
    pub fn take_context(&mut self, context: u64) -> Option<Result<Value, OperationError>> {
        self.take_where(|_, of| of == context)
    }

    fn take_where(
        &mut self,
        is: impl Fn(u32, u64) -> bool,
    ) -> Option<Result<Value, OperationError>> {
        let place = self.ended.iter().position(
            |ended| matches!(ended, Ended::Call(ticket, end) if is(*ticket, end.context)),
        )?;
        match self.ended.remove(place) {
            Some(Ended::Call(_, Completion { result, .. })) => Some(result),
            _ => None,
        }
    }

    /// No call waits any more for the request with this context. False if there is none.
    pub fn forget(&mut self, context: u64) -> bool {
        let mut of = self.open.values_mut().filter(|request| request.context == Some(context));
        let Some(request) = of.next() else { return false };
        request.context = None;
        true
    }

    /// Whether a request of a call with this context waits for its answer.
    pub fn awaits(&self, context: u64) -> bool {
        self.open.values().any(|request| request.context == Some(context))
    }

    /// The next event to hand out.
    pub fn pop(&mut self) -> Option<Event<'static>> {
        Some(match self.ended.pop_front()? {
            Ended::Call(_, completion) => Event::Completion(completion),
            Ended::Room(peer) => Event::Room { peer },
        })
    }
}
