//! The format: one packet is one mailbox message of up to 120 bytes, behind a header of 8.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | kind |
//! | 1 | bytes of the message's head, if a message begins here |
//! | 2, 3 | credits that the sender of the packet returns |
//! | 4, 5 | number of the message, or of the one that is answered |
//! | 6, 7 | bytes of the whole message, if it comes in parts; else 0 |
//!
//! Integers are little-endian. Behind the header of an announcement come the key, the offset and
//! the length of the body, 8 bytes each, and then the head. Behind that of a whole message or a
//! part come its bytes. All other packets end with the header.

use weft_fabric::{RemoteKey, Target};

use crate::error::Offence;

/// Bytes of a packet at most. Every transport has mailbox messages of that length.
pub(crate) const PACKET_BYTES: usize = 120;
/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 8;
/// Bytes of a message that one packet carries.
pub(crate) const PAYLOAD_BYTES: usize = PACKET_BYTES - HEADER_BYTES;
/// Bytes that describe the range of an announced body.
const RANGE_BYTES: usize = 24;
/// Bytes of a head at most: as many as fit behind an announcement.
pub const HEAD_BYTES_MAX: usize = PAYLOAD_BYTES - RANGE_BYTES;

/// The kind of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A message in one packet.
    Whole = 1,
    /// A part of a message. Its parts follow each other.
    Part = 2,
    /// A message whose body lies in a range that the sender granted.
    Announcement = 3,
    /// Nothing but credits.
    Credit = 4,
    /// The receiver has the body of an announced message.
    Done = 5,
    /// The receiver does not take an announced message.
    Refused = 6,
    /// The sender takes an announced message back, if the receiver has not begun.
    Cancel = 7,
    /// The receiver had not begun.
    Cancelled = 8,
}

impl Kind {
    #[inline]
    const fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Whole,
            2 => Self::Part,
            3 => Self::Announcement,
            4 => Self::Credit,
            5 => Self::Done,
            6 => Self::Refused,
            7 => Self::Cancel,
            8 => Self::Cancelled,
            _ => return None,
        })
    }
}

/// The header of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub kind: Kind,
    pub head: u8,
    pub credits: u16,
    pub number: u16,
    pub length: u16,
}

impl Header {
    /// The bytes on the wire.
    #[inline]
    pub const fn emit(self) -> [u8; HEADER_BYTES] {
        let Self { kind, head, credits, number, length } = self;
        let low = kind as u64 | (head as u64) << 8 | (credits as u64) << 16;
        (low | (number as u64) << 32 | (length as u64) << 48).to_le_bytes()
    }

    /// The header of a packet and the bytes behind it.
    ///
    /// # Errors
    /// [`Offence::Malformed`].
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), Offence> {
        let Some((header, rest)) = packet.split_first_chunk::<HEADER_BYTES>() else {
            return Err(Offence::Malformed { what: "a packet without a whole header" });
        };
        let [kind, head, c0, c1, n0, n1, l0, l1] = *header;
        let Some(kind) = Kind::of(kind) else {
            return Err(Offence::Malformed { what: "a kind of packet that does not exist" });
        };
        if rest.len() > PAYLOAD_BYTES {
            return Err(Offence::Malformed { what: "a packet of more than 120 bytes" });
        }
        let header = Self {
            kind,
            head,
            credits: u16::from_le_bytes([c0, c1]),
            number: u16::from_le_bytes([n0, n1]),
            length: u16::from_le_bytes([l0, l1]),
        };
        Ok((header, rest))
    }
}

/// An announcement: where the body lies, and the head of the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Announcement {
    pub target: Target,
    pub length: u64,
    pub head: Head,
}

impl Announcement {
    /// Reads what comes behind the header, of which `head` is the field.
    ///
    /// # Errors
    /// [`Offence::Malformed`].
    pub fn parse(head: u8, rest: &[u8]) -> Result<Self, Offence> {
        let malformed = |what| Offence::Malformed { what };
        let (range, rest) = rest
            .split_first_chunk::<RANGE_BYTES>()
            .ok_or(malformed("an announcement without a range"))?;
        if rest.len() != usize::from(head) {
            return Err(malformed("an announcement whose head has another length"));
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| range[at + i]));
        let (key, offset, length) = (word(0), word(8), word(16));
        if length == 0 || offset.checked_add(length).is_none() {
            return Err(malformed("an announcement of an impossible range"));
        }
        let target = Target::new(RemoteKey(key), offset);
        Ok(Self { target, length, head: Head::new(rest) })
    }
}

/// The head of a message: up to [`HEAD_BYTES_MAX`] bytes by which its receiver decides.
#[derive(Clone, Copy)]
pub struct Head {
    bytes: [u8; HEAD_BYTES_MAX],
    length: u8,
}

impl Head {
    /// A head of these bytes.
    ///
    /// # Panics
    /// If there are too many. Callers check before.
    pub(crate) fn new(from: &[u8]) -> Self {
        assert!(from.len() <= HEAD_BYTES_MAX, "a head has at most {HEAD_BYTES_MAX} bytes");
        let mut bytes = [0; HEAD_BYTES_MAX];
        bytes[..from.len()].copy_from_slice(from);
        Self { bytes, length: from.len().to_le_bytes()[0] }
    }

    /// The number of bytes, as in a header.
    pub(crate) const fn length(&self) -> u8 {
        self.length
    }
}

impl std::ops::Deref for Head {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Head {}

impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Head").field(&&**self).finish()
    }
}

/// A packet that is ready to be sent.
#[derive(Clone)]
pub struct Packet {
    bytes: [u8; PACKET_BYTES],
    length: u8,
}

impl Packet {
    /// The packet of a header and what comes behind it.
    ///
    /// # Panics
    /// If that does not fit. Callers cut what they pass.
    pub(crate) fn new(header: Header, rest: &[u8]) -> Self {
        let mut bytes = [0; PACKET_BYTES];
        bytes[..HEADER_BYTES].copy_from_slice(&header.emit());
        bytes[HEADER_BYTES..HEADER_BYTES + rest.len()].copy_from_slice(rest);
        Self { bytes, length: (HEADER_BYTES + rest.len()).to_le_bytes()[0] }
    }

    /// The packet of an announcement.
    pub(crate) fn announcing(header: Header, announcement: &Announcement) -> Self {
        let mut rest = [0; PAYLOAD_BYTES];
        let Announcement { target, length, head } = announcement;
        rest[..8].copy_from_slice(&target.key.0.to_le_bytes());
        rest[8..16].copy_from_slice(&target.offset.to_le_bytes());
        rest[16..RANGE_BYTES].copy_from_slice(&length.to_le_bytes());
        rest[RANGE_BYTES..RANGE_BYTES + head.len()].copy_from_slice(head);
        Self::new(header, &rest[..RANGE_BYTES + head.len()])
    }
}

impl std::ops::Deref for Packet {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl std::fmt::Debug for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Packet").field(&Header::parse(self)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_has_its_fields_in_place() {
        let header =
            Header { kind: Kind::Part, head: 3, credits: 0x0102, number: 0x0304, length: 0x0506 };
        assert_eq!(header.emit(), [2, 3, 2, 1, 4, 3, 6, 5]);
    }

    #[test]
    fn what_is_no_packet_is_named() {
        for wrong in [&[][..], &[1; 7], &[0; 8], &[9; 8], &[1; 121]] {
            assert!(matches!(Header::parse(wrong), Err(Offence::Malformed { .. })), "{wrong:?}");
        }
        let header = Header { kind: Kind::Announcement, head: 0, credits: 0, number: 0, length: 0 };
        let target = Target::new(RemoteKey(1), u64::MAX);
        for (length, head) in [(0, 0), (1, 0), (2, 1)] {
            let announcement = Announcement { target, length, head: Head::new(&[]) };
            let packet = Packet::announcing(header, &announcement);
            let rest = &packet[HEADER_BYTES..];
            let parsed = Announcement::parse(head, rest);
            assert!(matches!(parsed, Err(Offence::Malformed { .. })), "{length} {head}");
        }
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(
            kind in 1u8..=8, head: u8, credits: u16, number: u16, length: u16,
            rest in prop::collection::vec(any::<u8>(), 0..=PAYLOAD_BYTES),
        ) {
            let kind = Kind::of(kind).expect("in range");
            let header = Header { kind, head, credits, number, length };
            let packet = Packet::new(header, &rest);
            prop_assert_eq!(Header::parse(&packet), Ok((header, &rest[..])));
        }

        #[test]
        fn an_announcement_is_parsed(
            key: u64, offset in 0..u64::MAX / 2, length in 1..u64::MAX / 2,
            head in prop::collection::vec(any::<u8>(), 0..=HEAD_BYTES_MAX),
        ) {
            let head = Head::new(&head);
            let target = Target::new(RemoteKey(key), offset);
            let announcement = Announcement { target, length, head };
            let header = Header {
                kind: Kind::Announcement, head: head.length(), credits: 0, number: 9, length: 0,
            };
            let packet = Packet::announcing(header, &announcement);
            let (parsed, rest) = Header::parse(&packet).expect("a packet");
            prop_assert_eq!(parsed, header);
            prop_assert_eq!(Announcement::parse(parsed.head, rest), Ok(announcement));
        }
    }
}
