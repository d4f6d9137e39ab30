//! The mailbox messages by which two carriers make and close lanes.
//!
//! A message is a kind byte and its fields, little-endian. Their version is `LANES` of
//! `weft-wire: versions`. Bytes of a peer are checked here for their form; [`crate::table`] checks
//! what they say.

use thiserror::Error;
use weft_wire::form::Form;

use crate::layout::Layout;
use crate::table::LaneNumber;

/// The tag of all mailbox messages of a carrier.
pub(crate) const TAG: u8 = b'L';

/// The longest message.
pub(crate) const BYTES_MAX: usize = 29;

/// Why a lane was not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The program at the other end does not want the lane.
    #[error("the peer does not want the lane")]
    Unwanted,
    /// The peer has its maximum of lanes, or no memory for another one.
    #[error("the peer has no room for another lane")]
    NoRoom,
    /// The layout is larger than the peer allows.
    #[error("the layout is larger than the peer allows")]
    TooLarge,
    /// The peer is dead or out of reach.
    #[error("the peer is down")]
    PeerDown,
    /// This end has no memory or no key left for the lane.
    #[error("no memory or key is left for the lane")]
    Exhausted,
}

impl Refusal {
    const fn number(self) -> u8 {
        match self {
            Self::Unwanted => 0,
            Self::TooLarge => 2,
            Self::NoRoom | Self::PeerDown | Self::Exhausted => 1,
        }
    }

    /// The refusal with this number. An unknown one is a refusal, too.
    const fn of(number: u8) -> Self {
        match number {
            1 => Self::NoRoom,
            2 => Self::TooLarge,
            _ => Self::Unwanted,
        }
    }
}

weft_wire::forms! {
    /// A message between two carriers. `to` is the number of the lane at the receiver.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) enum Message: u8 {
        /// The sender wants a lane, and this is its end.
        Open = 1 { number: LaneNumber, key: u64, token: u64, layout: Layout, },
        /// The sender has made the other end.
        Accept = 2 { to: LaneNumber, number: LaneNumber, key: u64, },
        /// The sender makes no other end.
        Refuse = 3 { to: LaneNumber, why: Refusal, },
        /// The sender sends no more on the lane. `is_complete` if all that it sent has arrived.
        Close = 4 { to: LaneNumber, is_complete: bool, },
    }
}

impl Form for LaneNumber {
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        u32::take(bytes).map(Self)
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        self.0.put(bytes);
    }
}

impl Form for Refusal {
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        u8::take(bytes).map(Self::of)
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        self.number().put(bytes);
    }
}

impl Form for Layout {
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        Some(Self { slots: Form::take(bytes)?, sink_bytes: Form::take(bytes)? })
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        self.slots.put(bytes);
        self.sink_bytes.put(bytes);
    }
}

/// How a peer broke the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub(crate) enum Violation {
    #[error("a message has the tag {0} and is not of a carrier")]
    ForeignTag(u8),
    #[error("a message of kind {kind} has {length} bytes")]
    InvalidForm { kind: u8, length: usize },
    #[error("an offer has a layout of {slots} slots and {sink_bytes} bytes")]
    InvalidLayout { slots: u32, sink_bytes: u32 },
    #[error("a lane that was not offered was accepted: number {0:#x}")]
    NotOffered(u32),
    #[error("the peer makes offers and takes no answers")]
    TakesNoAnswers,
}

impl Message {
    /// The bytes of the message.
    pub fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BYTES_MAX);
        bytes.push(self.kind());
        self.put_fields(&mut bytes);
        debug_assert!(bytes.len() <= BYTES_MAX, "the longest message is {BYTES_MAX} bytes");
        bytes
    }

    /// The message in `bytes`.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Violation> {
        let (&kind, fields) = bytes.split_first().unwrap_or((&0, &[]));
        match Self::of_kind(kind, fields) {
            Some(Self::Open { layout: Layout { slots, sink_bytes }, .. })
                if !(Layout { slots, sink_bytes }).is_valid() =>
            {
                Err(Violation::InvalidLayout { slots, sink_bytes })
            }
            message => message.ok_or(Violation::InvalidForm { kind, length: bytes.len() }),
        }
    }
}

/// Any bytes are a message, which gives the same bytes again, or an error.
///
/// # Panics
/// When a message does not keep that.
pub fn fuzz_message(bytes: &[u8]) {
    if let Ok(message) = Message::decode(bytes) {
        let again = message.encode();
        assert_eq!(Message::decode(&again), Ok(message), "a message is read as it was written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_wire::versions::{LANES, fingerprint};

    #[test]
    fn messages_have_these_bytes() {
        let (number, key) = (LaneNumber(0x0102_0304), 0x1122);
        let layout = Layout { slots: 16, sink_bytes: 4096 };
        let open = Message::Open { number, key, token: 9, layout };
        let bytes = [
            1, 4, 3, 2, 1, 0x22, 0x11, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0,
            16, 0, 0,
        ];
        assert_eq!(open.encode(), bytes);
        assert_eq!(Message::decode(&bytes), Ok(open));
        let refuse = Message::Refuse { to: LaneNumber(5), why: Refusal::TooLarge };
        assert_eq!(refuse.encode(), [3, 5, 0, 0, 0, 2]);
        let close = Message::Close { to: LaneNumber(5), is_complete: true };
        assert_eq!(Message::decode(&[4, 5, 0, 0, 0, 1]), Ok(close));
        let accept = Message::Accept { to: LaneNumber(1), number, key };
        assert_eq!(Message::decode(&accept.encode()), Ok(accept));
    }

    #[test]
    fn bytes_of_another_form_are_refused() {
        let form = |kind, length| Err(Violation::InvalidForm { kind, length });
        assert_eq!(Message::decode(&[]), form(0, 0));
        assert_eq!(Message::decode(&[4, 5, 0, 0]), form(4, 4));
        assert_eq!(Message::decode(&[4, 5, 0, 0, 0, 0, 0]), form(4, 7));
        assert_eq!(Message::decode(&[9, 5, 0, 0, 0]), form(9, 5));
        let layout = Layout { slots: 15, sink_bytes: 4096 };
        let (number, key) = (LaneNumber(1), 2);
        let open = Message::Open { number, key, token: 0, layout }.encode();
        let invalid = Violation::InvalidLayout { slots: 15, sink_bytes: 4096 };
        assert_eq!(Message::decode(&open), Err(invalid));
    }

    #[test]
    fn the_form_of_messages_is_that_of_their_version() {
        let (to, number, key) = (LaneNumber(1), LaneNumber(2), 3);
        let layout = Layout { slots: 64, sink_bytes: 4096 };
        let refuse = |why| Message::Refuse { to, why };
        let all = [
            Message::Open { number, key, token: 4, layout },
            Message::Accept { to, number, key },
            refuse(Refusal::Unwanted),
            refuse(Refusal::NoRoom),
            refuse(Refusal::TooLarge),
            Message::Close { to, is_complete: true },
        ];
        for example in all {
            assert_eq!(Message::decode(&example.encode()), Ok(example));
            // A new kind needs an example above.
            match example {
                Message::Open { .. }
                | Message::Accept { .. }
                | Message::Refuse { .. }
                | Message::Close { .. } => {}
            }
        }
        let form = fingerprint(all.map(Message::encode));
        assert_eq!((LANES, form), (3, 0xde41_2d95_71ba_4c86), "raise the version");
    }
}
