//! Packets on their way, and their arrival.
//!
//! Invariants: a packet carries everything needed at its target. A packet is dropped if it arrives
//! at a dead endpoint, or was sent before its two nodes reported each other down. Packets that
//! arrive at a cut wait there in order.

use std::sync::Arc;

use weft_fabric::{
    Atomic, Command, DownReason, Group, MessageHeader, Operation, OperationError, Peer, Signal,
    Target, Value,
};

use crate::completion::Queued;
use crate::fault::Crossing;
use crate::network::Turn;
use crate::trace::Kind;
use crate::world::{Id, Moment, Way, WorldState};

/// A scheduled event of the simulation.
#[derive(Debug)]
pub(crate) enum Occasion {
    /// A packet arrives.
    Arrive(Flight),
    /// A packet leaves that waited for its turn at its sender. It arrives at `arrival`.
    Leave { flight: Flight, arrival: Moment },
    /// Piece `index` of an operation leaves `from`. It arrives at `arrival`, before what was sent
    /// later and arrives at the same time.
    Depart { from: Id, operation: u64, index: u64, arrival: Arrival },
    /// A packet that the network does not carry takes its place in the order of those that it does.
    InOrder { place: Turn, flight: Flight },
    /// A packet that the network lost is sent again.
    SendAgain { tag: u64 },
    /// Packets take routes for the links of now.
    Reroute,
    /// A slow receiver may take its next message.
    Wake { endpoint: Id },
    /// A cut between two nodes has lasted for the limit.
    CutExpired { way: Way, number: u64 },
    /// A connect, join, leave, grant or revoke of an endpoint takes effect.
    Control { endpoint: Id, number: u64 },
}

/// The way of a packet to its arrival.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrival {
    /// By a private link, which tells when it arrives.
    At(Moment),
    /// By the network, in this place of the order, in this traffic class.
    Carried { place: Turn, class: u8 },
}

/// A packet between two endpoints.
#[derive(Debug)]
pub(crate) struct Flight {
    pub from: Id,
    pub to: Id,
    /// The value of [`WorldState::epoch`] when the packet left.
    pub epoch: u64,
    pub body: Body,
}

/// The contents of a packet. `peer` is the sender's handle for the target; that of a credit is the
/// target's handle for the sender.
#[derive(Debug)]
pub(crate) enum Body {
    Message {
        peer: u32,
        header: MessageHeader,
        group: Option<Group>,
        payload: Vec<u8>,
    },
    Notification {
        peer: u32,
        class: u8,
        value: u64,
    },
    Request(Request),
    Response(Response),
    Credit {
        peer: u32,
        queue: CreditOf,
    },
    /// The end of the sender, or of the pair that the target knows as `peer`.
    Down {
        peer: u32,
        reason: DownReason,
    },
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
    pub number: u64,
    pub peer: u32,
    pub operation: Operation,
    pub what: What,
}

/// The action requested of the target.
#[derive(Debug)]
pub(crate) enum What {
    Put { put: Arc<PutRequest>, piece: Piece, bytes: Vec<u8>, last: bool },
    Get { ranges: Vec<(Target, u64)> },
    Atomic { target: Target, atomic: Atomic },
    Fence,
}

/// All of a put, as each of its pieces tells it.
#[derive(Debug)]
pub(crate) struct PutRequest {
    pub command: Command,
    /// The ranges to write, and their lengths.
    pub ranges: Vec<(Target, u64)>,
    pub signal: Option<Signal>,
}

/// A piece of an operation: `length` bytes from `at` on of its range `range`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub range: usize,
    pub at: u64,
    pub length: u64,
}

/// A response, or a piece of one, at the initiator.
#[derive(Debug)]
pub(crate) struct Response {
    pub number: u64,
    pub result: Result<Value, OperationError>,
    pub range: usize,
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
            Self::Request(Request { number, what, .. }) => {
                let bytes: &[u8] = if let What::Put { bytes, .. } = what { bytes } else { &[] };
                (3 << 32 | number & 0xffff_ffff, bytes)
            }
            Self::Response(response) => (4 << 32 | response.number & 0xffff_ffff, &response.bytes),
            Self::Credit { peer, .. } => (5 << 32 | u64::from(*peer), &[]),
            Self::Down { reason, .. } => (6 << 32 | u64::from(*reason != DownReason::Ended), &[]),
        }
    }
}

impl WorldState {
    /// Handles an occasion.
    pub(crate) fn happen(&mut self, occasion: Occasion) {
        match occasion {
            Occasion::Arrive(flight) => self.arrive(flight),
            Occasion::Leave { flight, arrival } => self.leave(flight, arrival),
            Occasion::Depart { from, operation, index, arrival } => {
                self.depart(from, operation, index, arrival);
            }
            Occasion::InOrder { place, flight } => self.hand_on(place, Some(flight)),
            Occasion::SendAgain { tag } => self.send_again(tag),
            Occasion::Reroute => self.reroute(),
            Occasion::Wake { endpoint } => self.endpoints[endpoint].wake_at = None,
            Occasion::CutExpired { way, number } => self.cut_expired(way, number),
            Occasion::Control { endpoint, number } => self.control_due(endpoint, number),
        }
    }

    /// A packet reached the node of its target, or a cut before it.
    fn arrive(&mut self, flight: Flight) {
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

    /// The handle under which `to` knows the sender of a packet, whose own handle is `peer`. `None`
    /// if `to` has given that pair up: the packet is lost.
    fn handle_at(&self, from: Id, peer: u32, to: Id) -> Option<Peer> {
        let handle = self.endpoints[from].peer(Peer(peer))?.mirror;
        let state = self.endpoints[to].peer(Peer(handle))?;
        (!state.down).then_some(Peer(handle))
    }

    /// Delivers a packet to its target.
    fn deliver(&mut self, flight: Flight) {
        let Flight { from, to, body, .. } = flight;
        match body {
            Body::Message { peer: paying, header, group, payload } => {
                let Some(peer) = self.handle_at(from, paying, to) else { return };
                let (source, paid_by) = (self.endpoints[from].address, (from, paying));
                let message = Queued::Message { paid_by, peer, source, header, group, payload };
                self.endpoints[to].events.push_back(message);
            }
            Body::Notification { peer, class, value } => {
                let Some(handle) = self.handle_at(from, peer, to) else { return };
                self.deliver_notification_put((from, peer), (to, handle), class, value);
            }
            Body::Request(request) => {
                let Some(handle) = self.handle_at(from, request.peer, to) else { return };
                self.serve(from, to, handle, &request);
            }
            Body::Response(response) => self.handle_response(to, response),
            Body::Credit { peer, queue } => self.credit(to, peer, queue),
            Body::Down { peer, reason } => {
                if self.endpoints[to].handle_of(from) == Some(Peer(peer)) {
                    self.report_down(to, from, reason);
                }
            }
        }
    }
}
