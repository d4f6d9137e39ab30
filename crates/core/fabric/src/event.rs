//! The events of an endpoint: messages, notifications, completions, peers down, room to send.

use crate::address::{EndpointAddress, Group};
use crate::endpoint::Peer;
use crate::error::OperationError;
use crate::operation::{Command, MessageHeader, RemoteKey, Value};

/// An event, passed to the sink of [`crate::Endpoint::poll`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// A mailbox message.
    Message(Message<'a>),
    /// A notification of an operation of this endpoint or of a peer.
    Notification(Notification),
    /// An operation that was [`crate::Issued::Pending`] has completed or failed.
    Completion(Completion),
    /// The peer died or became unreachable. This event comes once, after the completions of all
    /// operations that were pending on the peer.
    PeerDown {
        /// The handle of the peer, which names no endpoint from now on.
        peer: Peer,
        /// The peer's address. Another endpoint may have it by now.
        address: EndpointAddress,
        /// Why it is down.
        reason: DownReason,
    },
    /// There is room again after an operation or message was refused for lack of room.
    Room {
        /// The peer to which there is room.
        peer: Peer,
    },
    /// Another try is worth it after [`crate::Endpoint::send_multicast`] was refused with
    /// [`crate::SendError::WouldBlock`]: every member has room, the members are known by now, or
    /// they are other ones.
    GroupRoom {
        /// The group to which there is room.
        group: Group,
    },
}

/// Why a peer is down.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DownReason {
    /// It closed its endpoint, or its process ended.
    Ended,
    /// Nothing was heard of it for the configured time.
    Unreachable,
    /// It broke the protocol, so this endpoint ended the connection.
    Misbehaved,
    /// One of the two ends called [`crate::Endpoint::disconnect`].
    Disconnected,
}

/// A message from the mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// The handle of the sender, to which a reply can be sent at once. It names this incarnation of
    /// the endpoint: one that is opened at its address later has another handle.
    pub peer: Peer,
    /// The address of the sender.
    pub source: EndpointAddress,
    /// Its tag and type.
    pub header: MessageHeader,
    /// The multicast group that it was sent to; `None` for unicast.
    pub group: Option<Group>,
    /// The payload, already copied out of shared memory.
    pub payload: &'a [u8],
}

/// The unit of Extoll's NIC that wrote a notification (EXTOLL-THESIS#3.2.1.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Side {
    /// The operation has left its initiator.
    Requester = 0,
    /// The target has responded.
    Responder = 1,
    /// The data has arrived on this side.
    Completer = 2,
}

/// A notification of an operation, on a side that the initiator asked to notify.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notification {
    /// The unit that wrote the notification.
    pub side: Side,
    /// The kind of operation.
    pub command: Command,
    /// The handle of the endpoint at the other end of the operation, as in [`Message::peer`].
    pub peer: Peer,
    /// The address of the endpoint at the other end of the operation.
    pub source: EndpointAddress,
    /// The context that the initiator gave the operation; 0 for notification puts.
    pub operation: u64,
    /// The region's key as the operation named it; 0 if the operation has no region.
    pub key: RemoteKey,
    /// The offset in the region.
    pub offset: u64,
    /// Number of bytes moved.
    pub length: u64,
    /// The class that the initiator gave.
    pub class: u8,
    /// The 64-bit immediate value that the initiator gave.
    pub immediate: u64,
}

/// The completion of a pending operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The context that the caller gave the operation.
    pub context: u64,
    /// The value as in [`crate::Issued::Done`], or why the operation failed.
    pub result: Result<Value, OperationError>,
}

/// A filter of messages and notifications by source and class.
///
/// ```
/// use weft_fabric::{EndpointAddress, Event, Filter, Message, MessageHeader, NodeId, Peer, Vpid};
///
/// // Messages with tag 7 from any endpoint of node 3.
/// let wanted = Filter { source: EndpointAddress::new(NodeId(3), Vpid::ANY), class: Some(7) };
/// let source = EndpointAddress::new(NodeId(3), Vpid(1));
/// let header = MessageHeader::tag(7);
/// let event =
///     Event::Message(Message { peer: Peer(0), source, header, group: None, payload: b"x" });
/// assert!(wanted.matches(&event));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filter {
    /// The endpoint at the other end, with wildcards.
    pub source: EndpointAddress,
    /// The class of a notification or tag of a message; `None` matches all.
    pub class: Option<u8>,
}

impl Filter {
    /// The filter that matches every message and notification.
    pub const ALL: Self = Self { source: EndpointAddress::ANY, class: None };

    /// True for a message or notification that matches. False for all other events.
    #[must_use]
    pub fn matches(&self, event: &Event<'_>) -> bool {
        let (source, class) = match event {
            Event::Message(message) => (message.source, message.header.tag),
            Event::Notification(notification) => (notification.source, notification.class),
            Event::Completion(_)
            | Event::PeerDown { .. }
            | Event::Room { .. }
            | Event::GroupRoom { .. } => return false,
        };
        self.source.covers(source) && self.class.is_none_or(|wanted| wanted == class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{NodeId, Vpid};

    #[test]
    fn a_filter_matches_source_and_tag() {
        let source = EndpointAddress::new(NodeId(1), Vpid(2));
        let (peer, header) = (Peer(0), MessageHeader::tag(9));
        let event = Event::Message(Message { peer, source, header, group: None, payload: b"x" });
        assert!(Filter::ALL.matches(&event));
        assert!(Filter { source, class: Some(9) }.matches(&event));
        assert!(!Filter { source, class: Some(8) }.matches(&event));
        let down = Event::PeerDown { peer, address: source, reason: DownReason::Ended };
        assert!(!Filter::ALL.matches(&down));
    }
}
