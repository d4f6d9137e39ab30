//! Notifications: their encoding in a slot, and the queue of notifications of own operations.
//!
//! ```text
//! flags of a slot   0-1 message type   2-3 content: message, multicast, notification
//!                   4-9 group (multicast)   4-5 side, 6-8 command (notification)
//! payload of a notification   operation, key, offset, length, immediate   (5 words, little-endian)
//! ```
//!
//! Messages and notifications of a peer share one ring, so they are totally ordered.

use std::collections::VecDeque;

use weft_fabric::{
    Command, EndpointAddress, Group, MessageHeader, Notification, Peer, RemoteKey, Side,
};

use crate::ring::{SlotMemory, Status};

const KIND_MASK: u16 = 0b11;
const WHAT_MASK: u16 = 0b11 << 2;
const MESSAGE: u16 = 0 << 2;
const MULTICAST: u16 = 1 << 2;
const NOTIFICATION: u16 = 2 << 2;
const LOW_SHIFT: u32 = 4;
const COMMAND_SHIFT: u32 = 6;

/// Payload bytes of a notification.
pub const NOTIFICATION_BYTES: usize = 40;

/// Slot flags of a message.
#[inline]
pub fn message_flags(header: MessageHeader) -> u16 {
    MESSAGE | (u16::from(header.kind) & KIND_MASK)
}

/// Slot flags of a message to a group.
pub fn multicast_flags(header: MessageHeader, group: Group) -> u16 {
    MULTICAST | (u16::from(header.kind) & KIND_MASK) | u16::from(group.number()) << LOW_SHIFT
}

/// Slot flags of a notification.
#[inline]
pub fn notification_flags(side: Side, command: Command) -> u16 {
    NOTIFICATION | (side as u16) << LOW_SHIFT | (command as u16) << COMMAND_SHIFT
}

/// The content of a slot.
pub enum Content {
    /// A message, and the group that it was sent to.
    Message(MessageHeader, Option<Group>),
    /// A notification.
    Notification,
}

/// The payload of a notification.
pub type NotificationWords = [u64; NOTIFICATION_BYTES / 8];

/// The content of a slot; `None` when the flags or the length are not valid.
#[inline]
pub fn classify(status: Status) -> Option<Content> {
    let [kind, _] = (status.flags & KIND_MASK).to_le_bytes();
    let header = MessageHeader { tag: status.tag, kind };
    match status.flags & WHAT_MASK {
        MESSAGE => Some(Content::Message(header, None)),
        MULTICAST => {
            let [number, _] = ((status.flags >> LOW_SHIFT) & 63).to_le_bytes();
            Some(Content::Message(header, Group::new(number)))
        }
        NOTIFICATION if usize::from(status.length) == NOTIFICATION_BYTES => {
            Some(Content::Notification)
        }
        _ => None,
    }
}

/// Decodes a notification; `None` when the flags are not valid.
#[inline]
pub fn decode_notification(
    status: Status,
    slot: &impl SlotMemory,
    (peer, source): (Peer, EndpointAddress),
) -> Option<Notification> {
    let side = match (status.flags >> LOW_SHIFT) & 0b11 {
        1 => Side::Responder,
        2 => Side::Completer,
        // A requester's notification never travels: it stays in the local queue.
        _ => return None,
    };
    let [command, _] = ((status.flags >> COMMAND_SHIFT) & 0b111).to_le_bytes();
    let word = |place: usize| {
        let mut bytes = [0; 8];
        slot.read_payload(place * 8, &mut bytes);
        u64::from_le_bytes(bytes)
    };
    Some(Notification {
        side,
        command: Command::from_number(command)?,
        peer,
        source,
        operation: word(0),
        key: RemoteKey(word(1)),
        offset: word(2),
        length: word(3),
        class: status.tag,
        immediate: word(4),
    })
}

/// The payload of a notification.
#[inline]
pub fn encode(
    operation: u64,
    key: RemoteKey,
    offset: u64,
    length: u64,
    immediate: u64,
) -> NotificationWords {
    [operation, key.0, offset, length, immediate]
}

/// Notifications of an endpoint's own operations.
#[derive(Debug)]
pub struct LocalQueue {
    queue: VecDeque<Notification>,
    places: usize,
}

impl LocalQueue {
    /// An empty queue for `operations`, with all the memory that it will need.
    pub fn new(operations: usize) -> Self {
        // An operation is refused unless two places are free, though most need one.
        let places = operations + 1;
        Self { queue: VecDeque::with_capacity(places), places }
    }

    /// How many more notifications the queue can hold.
    #[inline]
    pub fn free(&self) -> usize {
        self.places - self.queue.len()
    }

    /// Whether the queue is at most half full.
    pub fn has_room(&self) -> bool {
        self.queue.len() <= (self.places - 1) / 2
    }

    /// Whether the queue is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Appends a notification.
    ///
    /// # Panics
    /// When the queue is full: callers check `free` before they start the operation.
    #[inline]
    pub fn push(&mut self, notification: Notification) {
        assert!(self.queue.len() < self.places, "the caller checks for room");
        self.queue.push_back(notification);
    }

    /// Removes the oldest notification.
    #[inline]
    pub fn pop(&mut self) -> Option<Notification> {
        self.queue.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use weft_fabric::{NodeId, Vpid};

    struct Payload(NotificationWords);

    impl SlotMemory for Payload {
        fn status(&self) -> &AtomicU64 {
            unreachable!("a notification is decoded from its payload")
        }

        fn write_payload(&self, _offset: usize, _bytes: &[u8]) {
            unreachable!("decoding does not write")
        }

        fn read_payload(&self, offset: usize, target: &mut [u8]) {
            target.copy_from_slice(&self.0[offset / 8].to_le_bytes());
        }
    }

    #[test]
    fn a_decoded_notification_equals_the_encoded_one() {
        let (peer, source) = (Peer(9), EndpointAddress::new(NodeId(0), Vpid(3)));
        for side in [Side::Responder, Side::Completer] {
            for number in 0..5 {
                let command = Command::from_number(number).expect("five commands");
                let sent = Notification {
                    side,
                    command,
                    peer,
                    source,
                    operation: 1,
                    key: RemoteKey(u64::MAX),
                    offset: 3,
                    length: 4,
                    class: 5,
                    immediate: 6,
                };
                let flags = notification_flags(side, command);
                let status = Status { length: 40, tag: 5, flags };
                assert!(matches!(classify(status), Some(Content::Notification)));
                let words = encode(sent.operation, sent.key, 3, 4, 6);
                assert_eq!(
                    decode_notification(status, &Payload(words), (peer, source)),
                    Some(sent)
                );
            }
        }
    }

    #[test]
    fn no_flags_make_decoding_panic() {
        let source = EndpointAddress::new(NodeId(0), Vpid(3));
        for flags in 0..=u16::MAX {
            for length in [0, 40, 120] {
                let status = Status { length, tag: 0, flags };
                if let Some(Content::Notification) = classify(status) {
                    let _ = decode_notification(status, &Payload([u64::MAX; 5]), (Peer(9), source));
                }
            }
        }
    }
}
