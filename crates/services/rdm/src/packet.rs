//! The packets: one mailbox message each, of words of 64 bits, little-endian.
//!
//! The tag of the mailbox message is the [`Code`]. The first word of a parcel has flags, the way of
//! its body, a chunk and a length. Then come the fields of its kind, then the body or its place.
//!
//! ```text
//!  0        8        16               32                              64
//! +--------+--------+----------------+-------------------------------+
//! | flags  | body   | chunk          | length of the body            |
//! +--------+--------+----------------+-------------------------------+
//! ```

use weft_fabric::RemoteKey;

/// Bytes of a packet to any peer, at most. Some peers take longer ones.
pub(crate) const PACKET_BYTES: usize = 120;
/// The version of these formats. Peers of another one are refused.
pub(crate) const VERSION: u64 = 2;
/// Pieces of memory that a parcel can name.
pub(crate) const SPANS_MAX: usize = 4;

/// The kinds of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Code {
    /// The first packet of each side: version, births, introduction, pool.
    Hello = 1,
    /// The sender has mapped the receiver's pool.
    Mapped = 2,
    /// A tagged message: tag, data if any, number of the operation if it is answered.
    Tagged = 3,
    /// A message without a tag.
    Untagged = 4,
    /// A write: key, address, number, data if any.
    Write = 5,
    /// A read: key, address, number, length.
    Read = 6,
    /// An atomic: key, address, number, call.
    Atomic = 7,
    /// The answer to one of them: number, result.
    Answer = 8,
    /// The next bytes of the body that was begun.
    More = 9,
    /// The receiver asks for a body, or its rest: number there, number here, first byte, end.
    Ask = 10,
    /// A part of a body that was asked for: number there, offset; the first word has the chunk.
    Part = 11,
    /// The chunk has been read.
    Release = 12,
    /// The rest of a body that was asked for does not come, as it is not in the sender's memory any
    /// more: number there.
    Withheld = 13,
}

impl Code {
    pub(crate) const fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Hello,
            2 => Self::Mapped,
            3 => Self::Tagged,
            4 => Self::Untagged,
            5 => Self::Write,
            6 => Self::Read,
            7 => Self::Atomic,
            8 => Self::Answer,
            9 => Self::More,
            10 => Self::Ask,
            11 => Self::Part,
            12 => Self::Release,
            13 => Self::Withheld,
            _ => return None,
        })
    }
}

/// The parcel has a word of data.
pub(crate) const DATA: u8 = 1;
/// A message wants an answer when it is in the memory of a receive.
pub(crate) const ANSWERED: u8 = 2;
/// The body to be fetched is lent: the key to it is behind its length.
pub(crate) const LENT: u8 = 4;

/// The ways of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Body {
    /// It follows, here and in packets of [`Code::More`].
    Inline = 0,
    /// It is in a chunk of the sender.
    Chunk = 1,
    /// The receiver has to fetch it. Its first bytes may be in a chunk of the sender.
    Fetch = 2,
}

/// Bytes in a chunk of the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Staged {
    pub(crate) chunk: u16,
    pub(crate) length: u32,
}

/// The first word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct First {
    pub(crate) flags: u8,
    pub(crate) body: Body,
    pub(crate) chunk: u16,
    pub(crate) length: u32,
}

impl First {
    pub(crate) const fn inline(flags: u8, length: u32) -> Self {
        Self { flags, body: Body::Inline, chunk: 0, length }
    }

    /// A body to be fetched, the first bytes of which may be in a chunk, and which may be lent.
    pub(crate) fn fetch(flags: u8, staged: Option<Staged>, lent: Option<RemoteKey>) -> Self {
        let Staged { chunk, length } = staged.unwrap_or(Staged { chunk: 0, length: 0 });
        let flags = if lent.is_some() { flags | LENT } else { flags };
        Self { flags, body: Body::Fetch, chunk, length }
    }

    /// The first bytes of a body to be fetched, if they are in a chunk.
    pub(crate) const fn staged(self) -> Option<Staged> {
        match (self.body, self.length) {
            (Body::Fetch, 1..) => Some(Staged { chunk: self.chunk, length: self.length }),
            _ => None,
        }
    }

    #[inline]
    pub(crate) const fn word(self) -> u64 {
        self.flags as u64
            | (self.body as u64) << 8
            | (self.chunk as u64) << 16
            | (self.length as u64) << 32
    }

    #[inline]
    pub(crate) const fn of(word: u64) -> Option<Self> {
        let [flags, body, low, high, a, b, c, d] = word.to_le_bytes();
        let body = match body {
            0 => Body::Inline,
            1 => Body::Chunk,
            2 => Body::Fetch,
            _ => return None,
        };
        let chunk = u16::from_le_bytes([low, high]);
        Some(Self { flags, body, chunk, length: u32::from_le_bytes([a, b, c, d]) })
    }
}

/// A packet that is being written, or waits.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) code: Code,
    length: u8,
    bytes: [u8; PACKET_BYTES],
    /// Bytes behind these, for a peer that takes longer packets.
    behind: Vec<u8>,
}

impl Packet {
    #[inline]
    pub(crate) const fn new(code: Code) -> Self {
        Self { code, length: 0, bytes: [0; PACKET_BYTES], behind: Vec::new() }
    }

    /// Adds a word.
    ///
    /// # Panics
    /// When there is no room: the fields of each kind fit.
    #[inline]
    pub(crate) fn word(&mut self, word: u64) -> &mut Self {
        let rest = &mut self.bytes[usize::from(self.length)..];
        let place = rest.first_chunk_mut().expect("the fields of each kind fit");
        *place = word.to_le_bytes();
        self.length += 8;
        self
    }

    /// Bytes that have room.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        PACKET_BYTES - usize::from(self.length)
    }

    /// The next `length` bytes, to be written.
    #[inline]
    pub(crate) fn space(&mut self, length: usize) -> &mut [u8] {
        let at = usize::from(self.length);
        let end = at + length;
        self.length = u8::try_from(end).expect("the caller asked for the room");
        &mut self.bytes[at..end]
    }

    /// `length` bytes behind the full ones, to be written.
    pub(crate) fn space_behind(&mut self, length: usize) -> &mut [u8] {
        debug_assert_eq!(self.room(), 0, "bytes are in order");
        self.behind.resize(length, 0);
        &mut self.behind
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// The bytes behind [`Packet::bytes`].
    #[inline]
    pub(crate) fn behind(&self) -> &[u8] {
        &self.behind
    }
}

/// Reads a packet from its beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    #[inline]
    pub(crate) fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(u64::from_le_bytes(*word))
    }

    #[inline]
    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_word_is_read_as_it_was_written() {
        for body in [Body::Inline, Body::Chunk, Body::Fetch] {
            let first = First { flags: 3, body, chunk: 0xfedc, length: 0xfedc_ba98 };
            assert_eq!(First::of(first.word()), Some(first));
        }
        assert_eq!(First::of(0x0300), None, "no such body");
        let staged = Some(Staged { chunk: 3, length: 700 });
        assert_eq!(First::of(First::fetch(1, staged, None).word()).and_then(First::staged), staged);
        assert_eq!(First::fetch(1, None, Some(RemoteKey(7))).staged(), None);
        assert_eq!(First::inline(1, 700).staged(), None);
    }

    #[test]
    fn the_code_of_a_packet_is_its_number() {
        for number in 0..=u8::MAX {
            assert!(Code::of(number).is_none_or(|code| code as u8 == number));
        }
    }
}
