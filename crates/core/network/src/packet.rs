//! Messages and the packets that carry them.

use weft_routing::Heading;
use weft_topology::{Port, Vertex};

use crate::arena::NONE;
use crate::links::{ChannelId, LinkId, ModelId};
use crate::time::Time;

/// The receivers of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// A host. It may be the sender.
    Host(Vertex),
    /// The members of a multicast group of the route, but the sender.
    Group(u8),
}

impl Destination {
    /// The host, if it is one.
    #[must_use]
    pub const fn host(self) -> Option<Vertex> {
        match self {
            Self::Host(host) => Some(host),
            Self::Group(_) => None,
        }
    }
}

impl From<Vertex> for Destination {
    fn from(host: Vertex) -> Self {
        Self::Host(host)
    }
}

/// A message to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// The host that sends it.
    pub from: Vertex,
    /// The receivers.
    pub to: Destination,
    /// Its length; one with no bytes takes a packet all the same.
    pub bytes: u64,
    /// Its traffic class, below [`crate::Settings::classes`].
    pub class: u8,
    /// The sender's own name for it, which outcomes repeat.
    pub tag: u64,
}

/// A message on its way.
#[derive(Debug)]
pub(crate) struct Carried {
    pub message: Message,
    pub sent_at: Time,
    /// Bytes that no packet has taken yet.
    pub unsent: u64,
    /// Packets that have not arrived, of those that have left, copies for a group included.
    pub packets: u32,
    /// The links that its last packet took; to a group, those of the longest way.
    pub hops: u16,
    /// The sender was told that it is lost.
    pub is_lost: bool,
    /// All its packets have left.
    pub is_sent: bool,
    /// The message behind it at its sender.
    pub next: u32,
}

impl Carried {
    pub const fn new(message: Message, sent_at: Time) -> Self {
        Self {
            message,
            sent_at,
            unsent: message.bytes,
            packets: 0,
            hops: 0,
            is_lost: false,
            is_sent: false,
            next: NONE,
        }
    }
}

/// A packet on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub carried: u32,
    pub aim: Aim,
    /// Its length with its header.
    pub bytes: u32,
    /// The link by which its head came or comes, its parameters then, and the virtual channel.
    pub link: LinkId,
    pub model: ModelId,
    pub vc: u8,
    pub class: u8,
    /// The router at the end of the link, and the port there.
    pub at: Vertex,
    pub port: Port,
    pub hops: u16,
    pub standing: PacketStage,
    /// When its tail has arrived at the end of `link`.
    pub tail_at: Time,
}

/// The ways that a packet takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Aim {
    /// To a host.
    Host(Heading),
    /// To all members of a group behind the next router.
    Group(u8),
    /// To the members of a group behind a channel out of the router where it is.
    Branch {
        group: u8,
        channel: ChannelId,
        /// The room that it shares with the other copies there.
        shared: u32,
    },
}

/// The room of a packet in a buffer, which its copies for the branches of a group share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Copies that have not left it.
    pub copies: u32,
    /// When the last of those that left has left.
    pub free_at: Time,
}

/// The place where a packet is in its way through a router. Each packet that does not wait has
/// exactly one event in the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PacketStage {
    /// Its head is on a link or passes through the router behind it.
    Moving,
    /// It waits in a router, since then. The place of its first entry in the table of `waiting`.
    Waiting { since: Time, entry: u32 },
    /// It was on a link that was cut. Its event only ends it.
    Lost(LostBecause),
}

/// The reason why a message was lost to the network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LostBecause {
    /// A packet of it was on a link that was cut.
    Cut,
    /// A packet of it was in a node that crashed, or the message waited at its sender, which
    /// crashed.
    Crash,
    /// A router had no way on.
    NoWay,
    /// A packet of it waited longer than [`crate::Settings::patience`].
    Patience,
}

/// The end of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Every byte arrived, at all receivers.
    Delivered {
        /// The message.
        message: Message,
        /// When it was given to the network.
        sent_at: Time,
        /// When its last byte arrived.
        at: Time,
        /// The links between routers that its last packet took; to a group, those of its longest
        /// way.
        hops: u16,
    },
    /// The network lost a part of it. It delivers no other part of the message, but some members
    /// of a group may have got all of it. A sender of the
    /// real world is not told: it waits for an acknowledgement, and sends again after a time.
    Lost {
        /// The message.
        message: Message,
        /// When it was given to the network.
        sent_at: Time,
        /// When it was lost.
        at: Time,
        /// The reason.
        because: LostBecause,
    },
}

impl Outcome {
    /// The message that ended.
    #[must_use]
    pub const fn message(&self) -> &Message {
        match self {
            Self::Delivered { message, .. } | Self::Lost { message, .. } => message,
        }
    }
}
