//! The format: one frame is one message, whose head begins with a header of 16 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | kind |
//! | 1 | 1 if the sender of the frame opened the session, else 0 |
//! | 2, 3 | number of the session, which its opener chose |
//! | 4–7, 8–11, 12–15 | three numbers, by kind |
//!
//! | kind | first | second | third | behind the header | body |
//! |---|---|---|---|---|---|
//! | hello | form of the frames | lowest, highest version << 16 | limit | protocol | options |
//! | welcome | form of the frames | version | limit | | options |
//! | refusal | | code | | | text |
//! | request | number | | | head | body |
//! | answer | number of the request | code, or one of [`of_session`] | | head | body |
//! | cancel | number of the request | | | | |
//! | pool | number | bytes of a block | blocks | key (8), right (1) | |
//! | pass | number of the pool | block | bytes in it | head | |
//! | free | number of the pool | block | | | |
//! | alive | 1 if it wants an answer | | | | |
//! | end | | code | | | text |
//!
//! A limit is the number of requests that the peer may have open.
//! In the number of a pool of a block bit 31 says that the memory is that of the frame's sender.
//! Integers are little-endian. Heads of programs have up to [`HEAD_BYTES_MAX`] bytes.

use weft_fabric::{Access, RemoteKey, ServiceName};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Offence;

/// The form of the frames. Ends that speak another one cannot talk.
pub(crate) const FORM: u32 = 1;
/// Bytes of the header.
const HEADER_BYTES: usize = size_of::<Header>();
/// Bytes of the head of a request, an answer or a block at most.
pub const HEAD_BYTES_MAX: usize = weft_message::HEAD_BYTES_MAX - HEADER_BYTES;
/// Bytes of the text of an end or a refusal at most. More is cut off.
pub const TEXT_BYTES_MAX: usize = 200;

/// Codes of answers that are the session's. Those of programs have 16 bits.
pub(crate) mod of_session {
    /// The request was cancelled before its answer.
    pub const CANCELLED: u32 = 0x1_0000;
    /// The answer did not reach the peer, which has no memory for it.
    pub const NOT_TAKEN: u32 = 0x1_0001;
}

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    Hello = 1,
    Welcome = 2,
    Refusal = 3,
    Request = 4,
    Answer = 5,
    Cancel = 6,
    Pool = 7,
    Pass = 8,
    Free = 9,
    Alive = 10,
    End = 11,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Hello,
        Self::Welcome,
        Self::Refusal,
        Self::Request,
        Self::Answer,
        Self::Cancel,
        Self::Pool,
        Self::Pass,
        Self::Free,
        Self::Alive,
        Self::End,
    ];

    fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Header {
    kind: u8,
    from_opener: u8,
    session: U16,
    numbers: [U32; 3],
}

/// A frame without its body, and without the bytes behind the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    pub kind: Kind,
    /// Whether its sender opened the session.
    pub from_opener: bool,
    pub session: u16,
    pub numbers: [u32; 3],
}

impl Frame {
    /// The frame at the begin of `head`, and what is behind it.
    pub fn parse(head: &[u8]) -> Result<(Self, &[u8]), Offence> {
        let malformed = |what| Offence::Malformed { what };
        let (header, rest) =
            Header::read_from_prefix(head).map_err(|_| malformed("a frame without a header"))?;
        let kind = Kind::of(header.kind).ok_or(malformed("a frame of no known kind"))?;
        let from_opener = match header.from_opener {
            0 => false,
            1 => true,
            _ => return Err(malformed("a frame of neither end")),
        };
        let numbers = header.numbers.map(U32::get);
        Ok((Self { kind, from_opener, session: header.session.get(), numbers }, rest))
    }

    /// The head of a message that is this frame, with `behind` behind the header.
    pub fn emit(self, behind: &[u8]) -> Vec<u8> {
        assert!(behind.len() <= HEAD_BYTES_MAX, "the caller checks the length of heads");
        let header = Header {
            kind: self.kind as u8,
            from_opener: u8::from(self.from_opener),
            session: self.session.into(),
            numbers: self.numbers.map(U32::new),
        };
        [header.as_bytes(), behind].concat()
    }
}

/// The memory of a pool, as its frame tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lent {
    pub key: RemoteKey,
    pub access: Access,
}

impl Lent {
    pub fn parse(bytes: &[u8]) -> Result<Self, Offence> {
        let malformed = Offence::Malformed { what: "a pool that cannot be read" };
        let Some((key, [access])) = bytes.split_first_chunk() else { return Err(malformed) };
        let access = Access::from_bits(*access).filter(|access| {
            !access.is_empty() && (Access::READ | Access::WRITE).contains(*access)
        });
        let access = access.ok_or(malformed)?;
        Ok(Self { key: RemoteKey(u64::from_le_bytes(*key)), access })
    }

    pub fn emit(self) -> Vec<u8> {
        [&self.key.0.to_le_bytes()[..], &[self.access.bits()]].concat()
    }
}

/// The name of a protocol behind the header of a hello.
pub(crate) fn protocol(bytes: &[u8]) -> Result<ServiceName, Offence> {
    let text = std::str::from_utf8(bytes).ok();
    let name = text.and_then(|text| ServiceName::new(text).ok());
    name.ok_or(Offence::Malformed { what: "a hello without the name of a protocol" })
}

/// The text of an end or a refusal: what is text of its first bytes.
pub(crate) fn text(bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(TEXT_BYTES_MAX)];
    String::from_utf8_lossy(bytes).chars().filter(|character| !character.is_control()).collect()
}

/// The first bytes of a text, cut between two characters.
pub(crate) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        for kind in Kind::ALL {
            let frame =
                Frame { kind, from_opener: true, session: 0x1234, numbers: [1, 2, 0x8000_0003] };
            let head = frame.emit(b"behind");
            assert_eq!(Frame::parse(&head), Ok((frame, &b"behind"[..])));
            for length in 0..HEADER_BYTES {
                assert!(Frame::parse(&head[..length]).is_err());
            }
        }
        let frame =
            Frame { kind: Kind::Request, from_opener: false, session: 0x0201, numbers: [3, 0, 0] };
        assert_eq!(frame.emit(&[9]), [4, 0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    }

    #[test]
    fn unknown_kinds_ends_and_rights_are_refused() {
        let frame = Frame { kind: Kind::End, from_opener: false, session: 0, numbers: [0; 3] };
        let mut head = frame.emit(&[]);
        for kind in [0, 12, 255] {
            head[0] = kind;
            assert!(Frame::parse(&head).is_err());
        }
        head[..2].copy_from_slice(&[11, 2]);
        assert!(Frame::parse(&head).is_err());
        let lent = Lent { key: RemoteKey(7), access: Access::WRITE };
        assert_eq!(Lent::parse(&lent.emit()), Ok(lent));
        for bytes in [&[][..], &[0; 8], &[0; 9], &[0, 0, 0, 0, 0, 0, 0, 0, 4], &[1; 10]] {
            assert!(Lent::parse(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn texts_are_cut_between_characters() {
        let long = "é".repeat(150);
        assert_eq!(cut(&long).chars().count(), 100);
        assert_eq!(text(b"a\x1b[2Jb\n"), "a[2Jb");
        assert_eq!(text(&[b'x'; 300]).len(), TEXT_BYTES_MAX);
    }
}
