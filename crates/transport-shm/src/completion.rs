//! Notifications: how they travel in a slot, and the queue of those that stay at home.
//!
//! ```text
//! flags of a slot   0-1 message type   2-3 what: message, multicast, notification
//!                   4-9 group (multicast)   4-5 side, 6-8 command (notification)
//! payload of a notification   operation, key, offset, length, immediate   (5 words, little-endian)
//! ```
//!
//! Messages and notifications of a peer share one ring, so they are totally ordered.

use std::collections::VecDeque;

use weft_fabric::{Command, EndpointAddress, Group, MessageHeader, Notification, RemoteKey, Side};

use crate::attr::LOCAL_EVENTS_MAX;
use crate::ring::Status;

const KIND_MASK: u16 = 0b11;
const WHAT_MASK: u16 = 0b11 << 2;
const MESSAGE: u16 = 0 << 2;
const MULTICAST: u16 = 1 << 2;
const NOTIFICATION: u16 = 2 << 2;
const LOW_SHIFT: u32 = 4;
const COMMAND_SHIFT: u32 = 6;

/// Bytes of payload of a notification.
pub const NOTIFICATION_BYTES: usize = 40;

/// Flags of a message.
#[inline]
pub fn message_flags(header: MessageHeader) -> u16 {
    MESSAGE | (u16::from(header.kind) & KIND_MASK)
}

/// Flags of a message to a group.
pub fn multicast_flags(header: MessageHeader, group: Group) -> u16 {
    MULTICAST | (u16::from(header.kind) & KIND_MASK) | u16::from(group.number()) << LOW_SHIFT
}

/// Flags of a notification.
#[inline]
pub fn notification_flags(side: Side, command: Command) -> u16 {
    NOTIFICATION | (side as u16) << LOW_SHIFT | (command as u16) << COMMAND_SHIFT
}

/// What a slot holds.
pub enum Content {
    /// A message, of a group or not.
    Message(MessageHeader, Option<Group>),
    /// A notification.
    Notification(Notification),
}

/// Reads a slot; `None` for what no peer of ours writes. `payload` holds the slot's bytes.
#[inline]
pub fn decode(status: Status, payload: &[u8; 120], source: EndpointAddress) -> Option<Content> {
    let kind = status.flags & KIND_MASK;
    let header = MessageHeader { tag: status.tag, kind: u8::try_from(kind).ok()? };
    match status.flags & WHAT_MASK {
        MESSAGE => Some(Content::Message(header, None)),
        MULTICAST => {
            let number = u8::try_from((status.flags >> LOW_SHIFT) & 63).ok()?;
            Some(Content::Message(header, Group::new(number)))
        }
        NOTIFICATION if usize::from(status.length) == NOTIFICATION_BYTES => {
            decode_notification(status, payload, source).map(Content::Notification)
        }
        _ => None,
    }
}

#[inline]
fn decode_notification(
    status: Status,
    payload: &[u8; 120],
    source: EndpointAddress,
) -> Option<Notification> {
    let side = match (status.flags >> LOW_SHIFT) & 0b11 {
        1 => Side::Responder,
        2 => Side::Completer,
        // A requester is told by nobody but itself.
        _ => return None,
    };
    let command = u8::try_from((status.flags >> COMMAND_SHIFT) & 0b111).ok()?;
    let (words, _) = payload.as_chunks::<8>();
    let word = |place: usize| u64::from_le_bytes(words[place]);
    Some(Notification {
        side,
        command: Command::from_number(command)?,
        peer: source,
        operation: word(0),
        key: RemoteKey(word(1)),
        offset: word(2),
        length: word(3),
        class: status.tag,
        immediate: word(4),
    })
}

/// The payload of a notification, as words.
#[inline]
pub fn encode(notification: &Notification) -> [u64; NOTIFICATION_BYTES / 8] {
    let Notification { operation, key, offset, length, immediate, .. } = notification;
    [*operation, key.0, *offset, *length, *immediate]
}

/// Notifications of own operations, at most [`LOCAL_EVENTS_MAX`].
#[derive(Debug)]
pub struct LocalQueue {
    queue: VecDeque<Notification>,
}

impl LocalQueue {
    /// An empty queue that never allocates again.
    pub fn new() -> Self {
        Self { queue: VecDeque::with_capacity(LOCAL_EVENTS_MAX) }
    }

    /// How many fit.
    #[inline]
    pub fn free(&self) -> usize {
        LOCAL_EVENTS_MAX - self.queue.len()
    }

    /// Nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Adds one.
    ///
    /// # Panics
    /// When it is full: callers ask before they do what it tells of.
    #[inline]
    pub fn push(&mut self, notification: Notification) {
        assert!(self.queue.len() < LOCAL_EVENTS_MAX, "the caller made sure of room");
        self.queue.push_back(notification);
    }

    /// Takes the oldest.
    #[inline]
    pub fn pop(&mut self) -> Option<Notification> {
        self.queue.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_fabric::{NodeId, Vpid};

    #[test]
    fn a_notification_survives_its_slot() {
        let source = EndpointAddress::new(NodeId(0), Vpid(3));
        for side in [Side::Responder, Side::Completer] {
            for number in 0..6 {
                let command = Command::from_number(number).expect("six commands");
                let sent = Notification {
                    side,
                    command,
                    peer: source,
                    operation: 1,
                    key: RemoteKey(u64::MAX),
                    offset: 3,
                    length: 4,
                    class: 5,
                    immediate: 6,
                };
                let flags = notification_flags(side, command);
                let status = Status { length: 40, tag: 5, flags };
                let mut payload = [0xee; 120];
                for (place, word) in encode(&sent).iter().enumerate() {
                    payload[place * 8..][..8].copy_from_slice(&word.to_le_bytes());
                }
                match decode(status, &payload, source) {
                    Some(Content::Notification(got)) => assert_eq!(got, sent),
                    _ => panic!("{side:?} {command:?} is a notification"),
                }
            }
        }
    }

    #[test]
    fn whatever_flags_say_nothing_panics() {
        let source = EndpointAddress::new(NodeId(0), Vpid(3));
        for flags in 0..=u16::MAX {
            for length in [0, 40, 120] {
                let status = Status { length, tag: 0, flags };
                let _ = decode(status, &[0xff; 120], source);
            }
        }
    }
}
