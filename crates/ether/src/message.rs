//! What ports say to each other in mailbox messages, little endian.
//!
//! A message has a tag and up to 120 bytes (003 section 5.4.1.2: a frame of the eager protocol is
//! split into as many). Everything that comes is checked: who sends it may be hostile.

use thiserror::Error;
use weft_fabric::NodeId;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::segment::Seat;

/// The version of what is said here; ports of different ones do not talk.
pub const VERSION: u16 = 2;
/// Begins every greeting.
const MAGIC: [u8; 4] = *b"wEth";

/// Tags of messages.
pub mod tag {
    /// A port is there: [`super::Hello`].
    pub const HELLO: u8 = 1;
    /// The beginning of a packet: its length as 32 bits, then its bytes.
    pub const FIRST: u8 = 2;
    /// What follows of it.
    pub const MORE: u8 = 3;
    /// Memory in which packets for the receiver of this message are going to lie: [`super::Ring`].
    pub const RING: u8 = 4;
    /// One lies there: [`super::Advert`].
    pub const ADVERT: u8 = 5;
}

/// Class of the notification that says how many packets were taken out of a ring in all: the read
/// counter of 004 section 2.1.
pub const CLASS_TAKEN: u8 = 1;

/// "Here I am", to everybody; who hears it from somebody new says it to that one.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Hello {
    magic: [u8; 4],
    version: U16,
    node: U16,
    queue: u8,
    queues: u8,
}

/// Where packets lie that are too long for messages.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Ring {
    /// Names the region; whoever gets this may read it.
    pub key: U64,
    /// Places in it.
    pub slots: U32,
    /// Bytes of each.
    pub slot_bytes: U32,
}

/// The next place of the ring has a packet.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Advert {
    /// How many were put there before it, modulo 2^32.
    pub number: U32,
    /// Its bytes.
    pub length: U32,
}

/// Why a message is not believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum MessageError {
    /// No port says that.
    #[error("a message with tag {0}, which no port sends")]
    Tag(u8),
    /// It is too short or too long for what it says it is.
    #[error("a message with tag {tag} of {bytes} bytes")]
    Length {
        /// Its tag.
        tag: u8,
        /// Its bytes.
        bytes: usize,
    },
    /// A greeting in another language.
    #[error("a greeting that is not that of a port of weft")]
    Magic,
    /// The other port speaks another version.
    #[error("a port with version {0} of the protocol; this one has {VERSION}: update the older")]
    Version(u16),
    /// A node says that it is another.
    #[error("a port that says it is node {0}, which it is not")]
    Node(u16),
    /// Its device has more queues, or fewer.
    #[error(
        "a greeting of a device with {0} queues, where this one has {1}: all in a network need as \
         many, set ether.queues"
    )]
    Queues(u8, u8),
    /// It comes from where no port can be.
    #[error("a message, but is no port of this network")]
    NoPort,
    /// A packet longer than any, or shorter than its headers.
    #[error("a packet of {0} bytes")]
    Packet(u32),
    /// A fragment that no packet waits for.
    #[error("a fragment that continues no packet, or too much of one")]
    Stray,
    /// A ring that no port would make.
    #[error("a ring of {slots} places with {slot_bytes} bytes each")]
    Ring {
        /// Places in it.
        slots: u32,
        /// Bytes of each.
        slot_bytes: u32,
    },
    /// A packet is where none can be.
    #[error("a packet of {length} bytes as number {number} of a ring, where {due} is due")]
    Advert {
        /// Its number.
        number: u32,
        /// The next number.
        due: u32,
        /// Its bytes.
        length: u32,
    },
    /// A packet lies where it cannot be read.
    #[error("a packet that is out of reach")]
    Gone,
    /// More packets were taken than put.
    #[error("{taken} packets taken out of a ring that had {written}")]
    Taken {
        /// What the peer says.
        taken: u64,
        /// What there were.
        written: u64,
    },
}

/// A message, checked as far as it can be by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// See [`Hello`]: the port that it names, and how many queues its device has.
    Hello(Seat, u8),
    /// A packet of so many bytes begins.
    First(u32, &'a [u8]),
    /// It goes on.
    More(&'a [u8]),
    /// See [`Ring`].
    Ring(Ring),
    /// See [`Advert`].
    Advert(Advert),
}

impl<'a> Message<'a> {
    /// Reads a message.
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
    /// That of the port of `seat`, one of `queues` of its device.
    #[must_use]
    pub const fn new(seat: Seat, queues: u8) -> Self {
        let (version, node) = (U16::new(VERSION), U16::new(seat.node.0));
        Self { magic: MAGIC, version, node, queue: seat.queue, queues }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let seat = Seat { node: NodeId(0x102), queue: 3 };
        let hello = Hello::new(seat, 4);
        assert_eq!(hello.as_bytes(), [b'w', b'E', b't', b'h', 2, 0, 2, 1, 3, 4]);
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
    fn what_is_wrong_is_named() {
        let length = |tag, bytes| Err(MessageError::Length { tag, bytes });
        let hello = Hello::new(Seat { node: NodeId(1), queue: 0 }, 1);
        assert_eq!(Message::parse(tag::HELLO, &hello.as_bytes()[1..]), length(tag::HELLO, 9));
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
