//! The messages about ports of a network, by which endpoints meet that share no memory.
//!
//! | kind | message |
//! |---|---|
//! | 64–71 | requests of a program |
//! | 72–75 | answers of the daemon, with the ticket of the request |
//! | 76–79 | unsolicited messages of the daemon |
//!
//! No descriptors come with them.

use super::VPID_WORDS;
use super::field::{Field, hidden, messages};
use crate::form::Form;

hidden! {
    /// The 16 bytes that the two ends of a meeting show each other. `Debug` does not show them.
    Secret
}

/// Bytes of the longest name of a port: the address of an endpoint of libfabric.
pub const PORT_NAME_BYTES: usize = 256;

/// The name of a port, as its network's provider wrote it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PortName {
    length: u16,
    bytes: [u8; PORT_NAME_BYTES],
}

impl PortName {
    /// The name of these bytes; `None` if there are too many.
    #[must_use]
    pub fn of(name: &[u8]) -> Option<Self> {
        let mut bytes = [0; PORT_NAME_BYTES];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(Self { length: u16::try_from(name.len()).ok()?, bytes })
    }

    /// The bytes of the name; `None` if it has none, or says that it has more than fit.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        self.bytes.get(..usize::from(self.length)).filter(|bytes| !bytes.is_empty())
    }
}

impl std::fmt::Debug for PortName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PortName").field(&self.bytes()).finish()
    }
}

impl Field for PortName {
    const BYTES: usize = 2 + PORT_NAME_BYTES;
    const ZERO: Self = Self { length: 0, bytes: [0; PORT_NAME_BYTES] };
}

impl Form for PortName {
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        Some(Self { length: Form::take(bytes)?, bytes: Form::take(bytes)? })
    }

    fn put(&self, body: &mut Vec<u8>) {
        self.length.put(body);
        self.bytes.put(body);
    }
}

messages! {
    /// Says the port of an endpoint. From then on peers meet it there. Answer: `second` is how long
    /// a peer may be silent before it is down, in milliseconds; 0 if the daemon does not say.
    Port = 64 {
        /// Identifies the request in its answer.
        ticket: u32,
        /// The VPID of the endpoint.
        vpid: u16,
        /// The messages that fit in its mailbox.
        depth: u32,
        /// The name of the port.
        name: PortName,
    }

    /// Asks for a meeting with an endpoint at its port, on any node. Answer: [`Met`]. Status
    /// `NOT_FOUND` when the partition has no such endpoint, `AWAY` when its node is not joined,
    /// `NO_PORT` when the peer does not open its port, `EXHAUSTED` when one of the two has its
    /// maximum of peers, which is `first`.
    Meet = 65 {
        /// Identifies the request in its answer. Not 0.
        ticket: u32,
        /// The VPID of the endpoint that asks.
        vpid: u16,
        /// Node of the peer.
        node: u32,
        /// VPID of the peer.
        peer: u16,
        /// A random number, which the two ends show each other.
        secret: Secret,
    }

    /// Ends a meeting with this secret. There is no answer. The peer gets [`Parted`].
    Part = 66 {
        /// The VPID of the endpoint.
        vpid: u16,
        /// Node of the peer.
        node: u32,
        /// VPID of the peer.
        peer: u16,
        /// The secret of the meeting.
        secret: Secret,
    }

    /// Asks for the members of a group on all nodes that have ports. Answer: [`MembersOf`], one for
    /// each node.
    AskAllMembers = 67 {
        /// Identifies the request in its answer. Not 0.
        ticket: u32,
        /// The VPID of the endpoint that asks.
        vpid: u16,
        /// The group, 0 to 63.
        group: u8,
    }

    /// Announces an existing meeting, after an `Open` with `flags::AGAIN`. There is no answer,
    /// except [`Parted`] if the peer is gone.
    Recall = 68 {
        /// The VPID of the endpoint.
        vpid: u16,
        /// Node of the peer.
        node: u32,
        /// VPID of the peer.
        peer: u16,
        /// The secret of the meeting.
        secret: Secret,
        /// 1 if this end greets first.
        greets_first: u8,
    }

    /// Says the port of an endpoint that another connection of the same user has opened with
    /// `flags::PORT_LATER`. From then on this connection asks about ports, and hears of them. The
    /// port ends with it. Answer: `first` is the address of the endpoint, as for `Open`, `second`
    /// as for [`Port`]. Status `NOT_FOUND` when there is no such endpoint, `IN_USE` when its VPID
    /// is that of another one, or another connection has its port.
    Attach = 69 {
        /// Identifies the request in its answer.
        ticket: u32,
        /// The VPID of the endpoint.
        vpid: u16,
        /// The birth of the endpoint.
        birth: u64,
        /// The messages that fit in its mailbox.
        depth: u32,
        /// The name of the port.
        name: PortName,
    }

    /// Says that an endpoint that was opened with `flags::PORT_LATER` opens no port. There is no
    /// answer.
    NoPort = 70 {
        /// The VPID of the endpoint.
        vpid: u16,
    }

    /// Nothing is heard of the peer of a meeting. Its host is asked whether its process is stopped;
    /// if so, the answer is [`Stands`], and else there is none.
    Doubt = 71 {
        /// The VPID of the program's endpoint.
        vpid: u16,
        /// Node of the peer.
        node: u32,
        /// VPID of the peer.
        peer: u16,
    }

    /// The answer to an `Open` with `flags::PORT` that was carried out, and with
    /// `flags::PORT_LATER` unless the endpoint announces itself again.
    Opened = 73 {
        /// The ticket of the request.
        ticket: u32,
        /// Node of the endpoint.
        node: u32,
        /// Its VPID.
        vpid: u16,
        /// Its partition.
        partition: u64,
        /// Node of the endpoint that offered the service or sent the invitation.
        host_node: u32,
        /// Its VPID; `0xffff` for none.
        host: u16,
    }

    /// A part of the answer to [`AskAllMembers`].
    MembersOf = 72 {
        /// The ticket of the request.
        ticket: u32,
        /// The node.
        node: u32,
        /// How many further parts follow.
        further: u32,
        /// One bit for each VPID in the group.
        vpids: [u64; VPID_WORDS],
    }

    /// A new meeting: the answer to [`Meet`], or news that a peer asked for one.
    Met = 76 {
        /// The ticket of the request; 0 if the peer asked.
        ticket: u32,
        /// The VPID of the program's endpoint.
        vpid: u16,
        /// Node of the peer.
        node: u32,
        /// VPID of the peer.
        peer: u16,
        /// The messages that fit in the peer's mailbox.
        depth: u32,
        /// 1 if this end greets first. The other waits for its greeting.
        greets_first: u8,
        /// The secret that both ends show each other.
        secret: Secret,
        /// The name of the peer's port.
        name: PortName,
    }

    /// The peer of a meeting is gone, or ended it.
    Parted = 77 {
        /// The VPID of the program's endpoint.
        vpid: u16,
        /// Node of the peer.
        node: u32,
        /// VPID of the peer.
        peer: u16,
        /// The secret of the meeting.
        secret: Secret,
    }

    /// A port of an endpoint that was opened with `flags::PORT_LATER` is wanted: an endpoint asks
    /// to meet it, or a group that it asked for has members without memory for it. The program
    /// answers by [`Attach`] or [`NoPort`].
    PortWanted = 78 {
        /// The VPID of the program's endpoint.
        vpid: u16,
    }

    /// The process of a silent peer is stopped: by a signal, a debugger or a freezer. It is there.
    Stands = 79 {
        /// The VPID of the program's endpoint.
        vpid: u16,
        /// Node of the peer.
        node: u32,
        /// VPID of the peer.
        peer: u16,
    }
}
