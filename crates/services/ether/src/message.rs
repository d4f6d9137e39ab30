//! The messages between ports, little endian.
//!
//! A message has a tag and up to 120 bytes (EXTOLL-THESIS#5.4.1.2: the eager protocol splits a
//! packet into messages of that size). Every message is checked on receipt: its sender may be
//! hostile.

use thiserror::Error;
use weft_fabric::NodeId;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::segment::Seat;

/// The version of this protocol. Ports of different versions do not talk.
pub const VERSION: u16 = 4;
/// Bytes of a message at most, also where the fabric carries more.
pub const BYTES_MAX: usize = 120;
/// The first bytes of every greeting.
const MAGIC: [u8; 4] = *b"wEth";

/// Tags of messages.
pub mod tag {
    /// A greeting: [`super::Hello`].
    pub const HELLO: u8 = 1;
    /// The first fragment of a packet: the packet's length as 32 bits, then bytes.
    pub const FIRST: u8 = 2;
    /// A further fragment.
    pub const MORE: u8 = 3;
    /// The sender's ring, in which packets for the receiver of this message will lie:
    /// [`super::Ring`].
    pub const RING: u8 = 4;
    /// A packet lies in the ring: [`super::Advert`].
    pub const ADVERT: u8 = 5;
}

/// Class of the notification with the number of packets taken out of a ring in all: the read
/// counter of ANGARA-ETH#2.1. The first one, of 0 packets, says that the ring was opened.
pub const CLASS_TAKEN: u8 = 1;

/// A greeting, sent to all ports at the start. A port answers the greeting of a new peer with its
/// own.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Hello {
    magic: [u8; 4],
    version: U16,
    node: U32,
    queue: u8,
    queues: u8,
}

/// The description of a ring, which carries packets too long for messages.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Ring {
    /// The key of the ring's memory region. The receiver of this message may read the region.
    pub key: U64,
    /// Slots of the ring.
    pub slots: U32,
    /// Bytes of each slot.
    pub slot_bytes: U32,
}

/// The next slot of the ring holds a packet.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Advert {
    /// The number of packets put into the ring before this one, modulo 2^32.
    pub number: U32,
    /// Bytes of the packet.
    pub length: U32,
}

/// Why a message is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum MessageError {
    /// No port sends this tag.
    #[error("a message with the unknown tag {0}")]
    Tag(u8),
    /// The message is too short or too long for its tag.
    #[error("a message with tag {tag} of {bytes} bytes")]
    Length {
        /// The message's tag.
        tag: u8,
        /// The message's bytes.
        bytes: usize,
    },
    /// The greeting does not begin with the right bytes.
    #[error("a greeting that is not one of a weft port")]
    Magic,
    /// The other port has another version of the protocol.
    #[error("a greeting with protocol version {0}; this node has {VERSION}: update the older")]
    Version(u16),
    /// The node or queue in the greeting does not fit the sender's address.
    #[error("a greeting as node {0}, which does not fit its address")]
    Node(u32),
    /// The sender's device has another number of queues than this one.
    #[error(
        "a greeting of a device with {0} queues, where this one has {1}: all devices of a \
         network need the same number, set ether.queues"
    )]
    Queues(u8, u8),
    /// The sender's address is not that of a port of this network.
    #[error("a message from an address that is not a port of this network")]
    NoPort,
    /// The packet is longer than any packet, or shorter than its headers.
    #[error("a packet of {0} bytes, a length that no packet has")]
    Packet(u32),
    /// A fragment continues no packet, or is longer than the rest of its packet.
    #[error("a fragment that continues no packet or is too long for its packet")]
    Stray,
    /// No port makes such a ring, or its memory is not accessible.
    #[error("an unusable ring of {slots} slots with {slot_bytes} bytes each")]
    Ring {
        /// Slots of the ring.
        slots: u32,
        /// Bytes of each slot.
        slot_bytes: u32,
    },
    /// The port described its ring before.
    #[error("a second description of its ring")]
    SecondRing,
    /// More short packets than may wait for the long ones before them.
    #[error("more short packets than may wait for the long ones before them")]
    Flood,
    /// The advertised packet is not the next one, its slot was not free, or there is no open ring.
    #[error("an advert of packet {number} with {length} bytes in its ring, where {due} comes next")]
    Advert {
        /// The packet's number.
        number: u32,
        /// The number expected next.
        due: u32,
        /// The packet's bytes.
        length: u32,
    },
    /// The memory of the ring cannot be read: its owner is gone or took it back.
    #[error("an advert of a packet whose memory can no longer be read")]
    Gone,
    /// The peer says it took more packets than were put, or fewer than before.
    #[error("a count of {taken} packets taken from a ring into which {written} were put")]
    Taken {
        /// The peer's number.
        taken: u64,
        /// The number of packets put.
        written: u64,
    },
}

/// A parsed message. Only checks that need no other state were made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// A [`Hello`]: the sender's node and queue, and the number of queues of its device.
    Hello(Seat, u8),
    /// The first fragment of a packet of so many bytes.
    First(u32, &'a [u8]),
    /// A further fragment.
    More(&'a [u8]),
    /// See [`Ring`].
    Ring(Ring),
    /// See [`Advert`].
    Advert(Advert),
}

impl<'a> Message<'a> {
    /// Parses a message.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn parse(tag: u8, payload: &'a [u8]) -> Result<Self, MessageError> {
        let length = MessageError::Length { tag, bytes: payload.len() };
        match tag {
            tag::HELLO => {
                let hello = Hello::read_from_bytes(payload).map_err(|_| length)?;
                if hello.magic != MAGIC {
                    return Err(MessageError::Magic);
                }
                if hello.version != VERSION {
                    return Err(MessageError::Version(hello.version.get()));
                }
                let seat = Seat { node: NodeId(hello.node.get()), queue: hello.queue };
                Ok(Self::Hello(seat, hello.queues))
            }
            tag::FIRST => {
                let (bytes, rest) = U32::read_from_prefix(payload).map_err(|_| length)?;
                Ok(Self::First(bytes.get(), rest))
            }
            tag::MORE if payload.is_empty() => Err(length),
            tag::MORE => Ok(Self::More(payload)),
            tag::RING => Ring::read_from_bytes(payload).map(Self::Ring).map_err(|_| length),
            tag::ADVERT => Advert::read_from_bytes(payload).map(Self::Advert).map_err(|_| length),
            _ => Err(MessageError::Tag(tag)),
        }
    }
}

impl Hello {
    /// The greeting of the port at `seat`, whose device has `queues` queues.
    #[must_use]
    pub const fn new(seat: Seat, queues: u8) -> Self {
        let (version, node) = (U16::new(VERSION), U32::new(seat.node.0));
        Self { magic: MAGIC, version, node, queue: seat.queue, queues }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_parsed() {
        let seat = Seat { node: NodeId(0x102), queue: 3 };
        let hello = Hello::new(seat, 4);
        assert_eq!(hello.as_bytes(), [b'w', b'E', b't', b'h', 4, 0, 2, 1, 0, 0, 3, 4]);
        assert_eq!(Message::parse(tag::HELLO, hello.as_bytes()), Ok(Message::Hello(seat, 4)));
        let ring = Ring { key: U64::new(9), slots: U32::new(32), slot_bytes: U32::new(69_632) };
        assert_eq!(Message::parse(tag::RING, ring.as_bytes()), Ok(Message::Ring(ring)));
        let advert = Advert { number: U32::new(7), length: U32::new(60) };
        assert_eq!(Message::parse(tag::ADVERT, advert.as_bytes()), Ok(Message::Advert(advert)));
        let first = Message::parse(tag::FIRST, &[72, 0, 0, 0, 5]);
        assert_eq!(first, Ok(Message::First(72, &[5])));
        assert_eq!(Message::parse(tag::MORE, &[5]), Ok(Message::More(&[5])));
    }

    #[test]
    fn malformed_messages_are_refused_with_the_reason() {
        let length = |tag, bytes| Err(MessageError::Length { tag, bytes });
        let hello = Hello::new(Seat { node: NodeId(1), queue: 0 }, 1);
        assert_eq!(Message::parse(tag::HELLO, &hello.as_bytes()[1..]), length(tag::HELLO, 11));
        let mut other = hello;
        other.magic[0] = 0;
        assert_eq!(Message::parse(tag::HELLO, other.as_bytes()), Err(MessageError::Magic));
        let newer = Hello { version: U16::new(9), ..hello };
        assert_eq!(Message::parse(tag::HELLO, newer.as_bytes()), Err(MessageError::Version(9)));
        assert_eq!(Message::parse(tag::FIRST, &[1, 2, 3]), length(tag::FIRST, 3));
        assert_eq!(Message::parse(tag::MORE, &[]), length(tag::MORE, 0));
        assert_eq!(Message::parse(tag::RING, &[0; 17]), length(tag::RING, 17));
        assert_eq!(Message::parse(tag::ADVERT, &[0; 7]), length(tag::ADVERT, 7));
        assert_eq!(Message::parse(9, &[]), Err(MessageError::Tag(9)));
    }
}
