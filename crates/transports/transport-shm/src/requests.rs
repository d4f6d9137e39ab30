//! Questions to the broker, and the calls that have ended.
//!
//! Invariant: questions and ended calls together are bounded by [`REQUESTS_MAX`], but for those
//! that take something back.

use std::collections::VecDeque;
use std::time::Duration;

use weft_fabric::{
    Completion, EndpointAddress, Event, Group, OperationError, Peer, RemoteKey, Value,
};

use crate::endpoint::ShmEndpoint;
use crate::memory::Granted;
use crate::moves::Call;
use crate::pair::PairMemory;
use crate::registers::Stamp;

/// Questions without an answer and ended calls that were not handed out, together.
pub const REQUESTS_MAX: usize = 8192;

/// A request to the broker, and the values that its answer is handled with.
#[derive(Debug)]
pub enum Asked {
    /// A pair with the endpoint at an address.
    Connect { to: EndpointAddress, pair: PairMemory },
    /// A change of a group.
    Group,
    /// To publish a key, with the memory as it was after this many moves.
    Grant { key: RemoteKey, moves: u32 },
    /// To withdraw a key, whose memory may have to be taken out of reach.
    Revoke { lost: Granted },
    /// To publish a key again, with the memory as it was after `moves` moves. `call` is the
    /// revocation that moved it, and ends with the answer.
    Again { slot: u16, generation: u32, moves: u32, call: Option<Call> },
    /// The memory of a peer's key, until then, however often it is asked for. `stamp` was read
    /// before the request.
    Resolve { peer: Peer, key: RemoteKey, stamp: Stamp, for_whom: Resolver, until: Duration },
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

impl Asked {
    /// Whether it takes something back, which must not fail while the broker lives.
    pub const fn takes_back(&self) -> bool {
        matches!(self, Self::Disconnect { .. } | Self::Revoke { .. })
    }
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

/// A question that has not ended.
#[derive(Debug)]
pub struct Question {
    pub asked: Asked,
    /// The context of the call that waits for it; `None` when no call waits, or no more.
    pub context: Option<u64>,
}

/// Something that ended and was not handed out.
#[derive(Debug)]
enum Ended {
    Call(u32, Completion),
    /// A key was resolved, or could not be.
    Room(Peer),
}

/// The calls of an endpoint that have ended.
#[derive(Debug, Default)]
pub struct Requests {
    ended: VecDeque<Ended>,
}

impl Requests {
    /// Whether something ended that was not handed out.
    #[inline]
    pub fn has_ended(&self) -> bool {
        !self.ended.is_empty()
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

    /// The next event to hand out.
    pub fn pop(&mut self) -> Option<Event<'static>> {
        Some(match self.ended.pop_front()? {
            Ended::Call(_, completion) => Event::Completion(completion),
            Ended::Room(peer) => Event::Room { peer },
        })
    }
}

impl ShmEndpoint {
    /// Whether there is no room for a further question.
    pub(crate) fn has_many_requests(&self) -> bool {
        self.broker.questions().len() + self.requests.ended.len() >= REQUESTS_MAX
    }

    /// Whether the broker has to be asked again after some time.
    pub(crate) fn asks_again(&self) -> bool {
        self.broker.questions().any(|question| match question.asked {
            Asked::Settle { not_before, .. } => !not_before.is_zero(),
            _ => false,
        })
    }

    /// Whether the broker was asked to publish a key again, with the memory as it was after `moves`
    /// moves.
    pub(crate) fn publishes(&self, key: (u16, u32), moves: u32) -> bool {
        self.broker.questions().any(|question| match question.asked {
            Asked::Again { slot, generation, moves: of, .. } => {
                (slot, generation) == key && of == moves
            }
            _ => false,
        })
    }

    /// Whether the key of a peer is being resolved for operations. If so, its end will be told as
    /// room.
    pub(crate) fn refuses(&mut self, wanted: RemoteKey) -> bool {
        self.broker.questions_mut().any(|question| match &mut question.asked {
            Asked::Resolve { key, for_whom, .. } | Asked::Settle { key, for_whom, .. }
                if *key == wanted && *for_whom != Resolver::Call =>
            {
                *for_whom = Resolver::Refused;
                true
            }
            _ => false,
        })
    }

    /// Whether a question of a call with this context has not ended.
    pub(crate) fn awaits_answer(&self, context: u64) -> bool {
        self.broker.questions().any(|question| question.context == Some(context))
    }

    /// No call waits any more for the question with this context.
    pub(crate) fn forget_call(&mut self, context: u64) {
        let mut of = self.broker.questions_mut().filter(|of| of.context == Some(context));
        if let Some(question) = of.next() {
            question.context = None;
        }
    }
}
