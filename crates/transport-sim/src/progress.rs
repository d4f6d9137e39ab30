//! Packets on their way, and their arrival.
//!
//! Invariants: a packet carries everything needed at its target. A packet is dropped if it arrives
//! at a dead endpoint, or was sent before its two nodes reported each other down. Packets that
//! arrive at a cut wait there in order.

use weft_fabric::{
    Atomic, Command, DownReason, Group, LockRequest, MessageHeader, NodeId, Notify, OperationError,
    Register, Target,
};

use crate::completion::Queued;
use crate::fault::Crossing;
use crate::trace::Kind;
use crate::world::{Id, State};

/// A scheduled event of the simulation.
#[derive(Debug)]
pub(crate) enum Occasion {
    /// A packet arrives.
    Arrive(Flight),
    /// Piece `index` of an operation leaves `from`. It arrives at `arrival`.
    Depart { from: Id, operation: u64, index: u64, arrival: u64 },
    /// A slow receiver may take its next message.
    Wake { endpoint: Id },
    /// A cut between two nodes has lasted for the limit.
    CutExpired { nodes: (NodeId, NodeId), number: u64 },
}

/// A packet between two endpoints.
#[derive(Debug)]
pub(crate) struct Flight {
    pub from: Id,
    pub to: Id,
    /// The value of [`State::epoch`] when the packet left.
    pub epoch: u64,
    pub body: Body,
}

/// The contents of a packet. `peer` is the initiator's handle, to which the credit returns.
#[derive(Debug)]
pub(crate) enum Body {
    Message { peer: u32, header: MessageHeader, group: Option<Group>, payload: Vec<u8> },
    Notification { peer: u32, class: u8, value: u64 },
    Request(Request),
    Response(Response),
    Credit { peer: u32, queue: CreditOf },
    Down,
}

/// The receiver's queue whose credit returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CreditOf {
    Mailbox,
    Notifications,
}

/// An operation, or a piece of one, at its target.
#[derive(Debug)]
pub(crate) struct Request {
    pub operation: u64,
    pub peer: u32,
    pub context: u64,
    pub notify: Notify,
    pub what: What,
}

/// The action requested of the target.
#[derive(Debug)]
pub(crate) enum What {
    Put { command: Command, target: Target, total: u64, at: u64, bytes: Vec<u8>, last: bool },
    Get { source: Target, length: u64 },
    Atomic { target: Target, atomic: Atomic },
    Lock(LockRequest),
    Fence,
    Register(Register),
}

/// A response, or a piece of one, at the initiator.
#[derive(Debug)]
pub(crate) struct Response {
    pub operation: u64,
    pub result: Result<u64, OperationError>,
    pub at: u64,
    pub bytes: Vec<u8>,
    pub last: bool,
}

impl Body {
    /// A number and the payload for the trace.
    fn traced(&self) -> (u64, &[u8]) {
        match self {
            Self::Message { header, payload, .. } => {
                (1 << 32 | u64::from(header.tag) << 8 | u64::from(header.kind), payload)
            }
            Self::Notification { class, value, .. } => {
                (2 << 32 | u64::from(*class) | (value & 0xff_ffff) << 8, &[])
            }
            Self::Request(Request { operation, what, .. }) => {
                let bytes: &[u8] = if let What::Put { bytes, .. } = what { bytes } else { &[] };
                (3 << 32 | operation & 0xffff_ffff, bytes)
            }
            Self::Response(response) => {
                (4 << 32 | response.operation & 0xffff_ffff, &response.bytes)
            }
            Self::Credit { peer, .. } => (5 << 32 | u64::from(*peer), &[]),
            Self::Down => (6 << 32, &[]),
        }
    }
}

impl State {
    /// Handles an occasion.
    pub(crate) fn happen(&mut self, occasion: Occasion) {
        match occasion {
            Occasion::Arrive(flight) => self.arrive(flight),
            Occasion::Depart { from, operation, index, arrival } => {
                self.depart(from, operation, index, arrival);
            }
            Occasion::Wake { endpoint } => self.endpoints[endpoint].wake_at = None,
            Occasion::CutExpired { nodes, number } => self.cut_expired(nodes, number),
        }
    }

    /// A packet reached the node of its target, or a cut before it.
    pub(crate) fn arrive(&mut self, flight: Flight) {
        let kind = match self.crossing(&flight) {
            Crossing::Held => Kind::Hold,
            Crossing::Lost => Kind::Drop,
            Crossing::Open if self.endpoints[flight.to].alive => Kind::Arrive,
            Crossing::Open => Kind::Drop,
        };
        let (from, to) = (self.endpoints[flight.from].address, self.endpoints[flight.to].address);
        let (number, payload) = flight.body.traced();
        self.record(kind, from, to, number, payload);
        match kind {
            Kind::Hold => self.hold(flight),
            Kind::Arrive => self.deliver(flight),
            _ => {}
        }
    }

    /// Delivers a packet to its target.
    fn deliver(&mut self, flight: Flight) {
        let Flight { from, to, body, .. } = flight;
        match body {
            Body::Message { peer: paying, header, group, payload } => {
                // Without a handle the target reported the sender down; its packets are lost.
                let Some(peer) = self.endpoints[to].handle_of(from) else { return };
                let (source, paid_by) = (self.endpoints[from].address, (from, paying));
                let message = Queued::Message { paid_by, peer, source, header, group, payload };
                self.endpoints[to].events.push_back(message);
            }
            Body::Notification { peer, class, value } => {
                self.deliver_notification_put(from, to, peer, class, value);
            }
            Body::Request(request) => self.serve(from, to, request),
            Body::Response(response) => self.handle_response(to, response),
            Body::Credit { peer, queue } => self.credit(to, peer, queue),
            Body::Down => self.report_down(to, from, DownReason::Ended),
        }
    }
}
