//! The events for a program.

use weft_fabric::Peer;

use crate::error::{MessageError, Offence};
use crate::packet::Head;

/// An event, passed to the sink of [`crate::Messages::poll`]. `R` is the region of the transport.
#[derive(Debug)]
pub enum Event<'a, R> {
    /// A message. The messages of a peer come in the order in which it sent them.
    Message(Message<'a, R>),
    /// A peer announced a message, and [`crate::Placement::Ask`] lets the program decide:
    /// [`crate::Messages::accept_into`], [`crate::Messages::accept`] or
    /// [`crate::Messages::refuse`]. All messages of the peer before it were told before.
    Announced {
        /// Names the message in the decision, and in [`Body::Range`] or [`Event::Lost`] later.
        ticket: Ticket,
        /// The sender.
        peer: Peer,
        /// The head of the message.
        head: Head,
        /// Bytes of the body.
        length: u64,
    },
    /// An announced message does not come any more. Memory that the program gave for it is the
    /// program's again.
    Lost {
        /// The message.
        ticket: Ticket,
        /// The reason.
        error: MessageError,
    },
    /// A message that was [`weft_fabric::Issued::Pending`] has ended.
    Completion {
        /// The context that the program gave the message.
        context: u64,
        /// Whether its receiver has it.
        result: Result<(), MessageError>,
    },
    /// There is room again after a message was refused for lack of room.
    Room {
        /// The peer to which there is room.
        peer: Peer,
    },
    /// A peer broke the protocol. All messages to it and from it have ended, and the endpoint
    /// gave it up, so that both ends get an [`weft_fabric::Event::PeerDown`].
    Misbehaved {
        /// The peer.
        peer: Peer,
        /// Its offence.
        offence: Offence,
    },
    /// An event of the endpoint that is none of a message's. Reports of room and of peers that are
    /// down are passed on, too.
    Endpoint(weft_fabric::Event<'a>),
}

/// A message that has arrived.
#[derive(Debug)]
pub struct Message<'a, R> {
    /// The sender.
    pub peer: Peer,
    /// Up to [`crate::HEAD_BYTES_MAX`] bytes that the sender put before the body.
    pub head: &'a [u8],
    /// The body.
    pub body: Body<'a, R>,
}

/// The body of a message that has arrived.
#[derive(Debug)]
pub enum Body<'a, R> {
    /// The bytes.
    Bytes(&'a [u8]),
    /// A range of a region: that which the program gave, or memory of the messages, which is used
    /// again when the sink returns.
    Range {
        /// The message.
        ticket: Ticket,
        /// The region.
        region: &'a R,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
}

impl<R> Body<'_, R> {
    /// Bytes of the body.
    #[must_use]
    pub fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Range { length, .. } => *length,
        }
    }
}

/// Names an announced message to its receiver. Never used again while the peer lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ticket {
    /// The sender.
    pub(crate) peer: Peer,
    /// How many messages it sent before.
    pub(crate) sequence: u64,
}

impl Ticket {
    /// The sender of the message.
    #[must_use]
    pub const fn peer(self) -> Peer {
        self.peer
    }
}

/// An event that waits to be handed out. Messages never wait here.
#[derive(Debug)]
pub(crate) enum Notice {
    Announced { ticket: Ticket, head: Head, length: u64 },
    Lost { ticket: Ticket, error: MessageError },
    Completion { context: u64, result: Result<(), MessageError> },
    Room { peer: Peer },
    Misbehaved { peer: Peer, offence: Offence },
}

impl Notice {
    /// The event for the program.
    pub fn into_event<'a, R>(self) -> Event<'a, R> {
        match self {
            Self::Announced { ticket, head, length } => {
                Event::Announced { ticket, peer: ticket.peer, head, length }
            }
            Self::Lost { ticket, error } => Event::Lost { ticket, error },
            Self::Completion { context, result } => Event::Completion { context, result },
            Self::Room { peer } => Event::Room { peer },
            Self::Misbehaved { peer, offence } => Event::Misbehaved { peer, offence },
        }
    }
}
