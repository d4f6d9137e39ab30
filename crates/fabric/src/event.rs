//! What an endpoint is told: messages, notifications, completions, peers that died, room to send.

use crate::address::{EndpointAddress, Group};
use crate::endpoint::Peer;
use crate::error::OperationError;
use crate::operation::{Command, MessageHeader, RemoteKey};

/// One thing that happened, handed to the sink of [`crate::Endpoint::poll`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// A mailbox message.
    Message(Message<'a>),
    /// A notification of an operation of this endpoint or of a peer.
    Notification(Notification),
    /// An operation that was [`crate::Issued::Pending`] ended.
    Completion(Completion),
    /// The peer died, or can no longer be reached. Comes after the completions of everything that
    /// was pending on it, and once.
    PeerDown {
        /// Who it was.
        address: EndpointAddress,
    },
    /// After a refusal for lack of room: it is worth another try.
    Room {
        /// The peer that has room again.
        peer: Peer,
    },
}

/// A message out of the mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// Who sent it.
    pub source: EndpointAddress,
    /// Its tag and type.
    pub header: MessageHeader,
    /// The group it was sent to, when it was multicast.
    pub group: Option<Group>,
    /// Its bytes, already copied out of memory that others can write.
    pub payload: &'a [u8],
}

/// Which of Extoll's three units speaks (003 section 3.2.1.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Side {
    /// The operation left its initiator.
    Requester = 0,
    /// The target answered.
    Responder = 1,
    /// The data arrived here.
    Completer = 2,
}

/// Tells that an operation moved data, at whichever side asked to be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notification {
    /// Which unit wrote it.
    pub side: Side,
    /// The kind of operation.
    pub command: Command,
    /// The other end of the operation.
    pub peer: EndpointAddress,
    /// The initiator's context of the operation; 0 for notification puts.
    pub operation: u64,
    /// The region, as the operation named it; zero where there is none.
    pub key: RemoteKey,
    /// Offset in the region; the lock's number for locks.
    pub offset: u64,
    /// Bytes moved.
    pub length: u64,
    /// The class the initiator gave.
    pub class: u8,
    /// The 64 bits the initiator gave.
    pub immediate: u64,
}

/// The end of a pending operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// What the caller passed when it started the operation.
    pub context: u64,
    /// As [`crate::Issued::Done`], or why it failed.
    pub result: Result<u64, OperationError>,
}

/// Matches events by their source and class, wildcards matching everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filter {
    /// The other end.
    pub source: EndpointAddress,
    /// Class of a notification or tag of a message; `None` matches all.
    pub class: Option<u8>,
}

impl Filter {
    /// Matches everything.
    pub const ALL: Self = Self { source: EndpointAddress::ANY, class: None };

    /// True for a message or notification that this filter lets through.
    #[must_use]
    pub fn matches(&self, event: &Event<'_>) -> bool {
        let (source, class) = match event {
            Event::Message(message) => (message.source, message.header.tag),
            Event::Notification(notification) => (notification.peer, notification.class),
            Event::Completion(_) | Event::PeerDown { .. } | Event::Room { .. } => return false,
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
        let header = MessageHeader::tag(9);
        let event = Event::Message(Message { source, header, group: None, payload: b"x" });
        assert!(Filter::ALL.matches(&event));
        assert!(Filter { source, class: Some(9) }.matches(&event));
        assert!(!Filter { source, class: Some(8) }.matches(&event));
        assert!(!Filter::ALL.matches(&Event::PeerDown { address: source }));
    }
}
