//! Messages between daemons, and their frames.
//!
//! A frame is its length (4 bytes, little-endian) and so many bytes. The first frame of each side
//! is a [`Greeting`] or a [`Refusal`], whose form is the same in all versions; those behind it are
//! [`Message`]s of the version that both sides speak.
//!
//! # Invariants
//! - A frame holds at most [`FRAME_BYTES_MAX`] bytes, or fewer where the caller says so, and a
//!   longer one is refused before it is kept.
//! - Texts, lists and addresses of a message that parsed are within their maxima.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use weft_wire::versions::{DAEMONS_HIGHEST, DAEMONS_LOWEST};

use crate::identity::Identity;
use crate::roster::Roster;

/// Longest frame, bytes.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;
/// Longest frame of a peer that has not proved that it knows the key, bytes.
pub const STRANGER_BYTES_MAX: usize = 512;
/// Longest message of a user of the fabric, bytes.
pub const USER_BYTES_MAX: usize = 60 * 1024;
/// Most numbers that a fabric gives. That of a host which was expelled is given again when none is
/// left.
pub const NODES_MAX: usize = 256;
/// Longest name of a node, a fabric or a release, bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Most facts of a node about its data path.
pub const FACTS_MAX: usize = 16;
/// Longest fact, bytes.
pub const FACT_BYTES_MAX: usize = 256;
/// The first bytes of a greeting.
const MAGIC: [u8; 4] = *b"weft";

/// The versions that a release speaks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Versions {
    /// The lowest.
    pub lowest: u16,
    /// The highest.
    pub highest: u16,
    /// The release, for people.
    pub release: String,
}

impl Versions {
    /// Those of this release.
    #[must_use]
    pub fn own() -> Self {
        Self {
            lowest: DAEMONS_LOWEST,
            highest: DAEMONS_HIGHEST,
            release: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// The highest version that both speak.
    #[must_use]
    pub fn common(&self, other: &Self) -> Option<u16> {
        let highest = self.highest.min(other.highest);
        (highest >= self.lowest.max(other.lowest)).then_some(highest)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "release {}, versions {} to {}", self.release, self.lowest, self.highest)
    }
}

/// The first frame of each side.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Greeting {
    /// The versions that the sender speaks.
    pub versions: Versions,
    /// The proof that the sender knows the key of the fabric.
    pub proof: [u8; 32],
}

/// Facts about a node that it tells the others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeAbout {
    /// Its name, by default that of the host.
    pub name: String,
    /// The address at which its daemon listens.
    pub address: SocketAddr,
    /// The release of weft that it runs.
    pub release: String,
    /// Facts about its data path, which this crate does not interpret.
    pub facts: Vec<String>,
}

impl NodeAbout {
    fn is_valid(&self) -> bool {
        is_name(&self.name)
            && is_name(&self.release)
            && self.facts.len() <= FACTS_MAX
            && self.facts.iter().all(|fact| fact.len() <= FACT_BYTES_MAX)
    }
}

/// Whether a text can be the name of a node or a fabric: short, and without control characters.
#[must_use]
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && !text.chars().any(char::is_control)
}

/// The first message of each side behind the greetings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The name of the fabric.
    pub fabric: String,
    /// The random number of the daemon's start.
    pub incarnation: u64,
    /// The number that the sender has kept.
    pub number: Option<u32>,
    /// The identity of the daemon that gave that number; the own one of the first daemon.
    pub first: Option<Identity>,
    /// Facts about the sender.
    pub about: NodeAbout,
}

/// Why two daemons do not work together. Each side names that of the other side.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, Error)]
pub enum Refusal {
    /// The proof fits no key.
    #[error(
        "the two hosts have different fabric keys; copy the key file of the other hosts, and see \
         that fabric.key names it"
    )]
    Key,
    /// The two releases have no version in common.
    #[error(
        "the two releases do not work together: {0} there, {own} here; update the older one",
        own = Versions::own()
    )]
    Version(Versions),
    /// The other side is of another fabric.
    #[error("the fabric there is called {0:?}; set fabric.name to the same on both hosts")]
    Fabric(String),
    /// The numbers were given by two different first daemons.
    #[error(
        "the nodes there have their numbers from another first daemon, of identity {0}. One \
         daemon alone may be without seeds, and it must keep its state (fabric.state). A host \
         whose state is removed joins anew"
    )]
    OtherFirst(Identity),
    /// The node was expelled.
    #[error(
        "the host was expelled; to join anew, it needs the fabric key of today, and its state \
         (fabric.state) has to be removed"
    )]
    Expelled,
    /// Another daemon with the same identity is connected.
    #[error(
        "two daemons have the same identity: the state of a host (fabric.state) was copied; \
         remove the copy, and start that daemon again"
    )]
    SameIdentity,
    /// The number does not belong to the identity.
    #[error(
        "the number {0} is not that of the host's identity in the table of nodes; remove its \
         state (fabric.state) and start its daemon again"
    )]
    Number(u32),
    /// The daemon is not the first one, and gives no numbers.
    #[error("the daemon there is not the first one, which alone admits hosts")]
    NotFirst,
    /// The other one of two connections is used.
    #[error("the two daemons have another connection")]
    Duplicate,
    /// No further node can be admitted.
    #[error(
        "the fabric has no room for another host: {NODES_MAX} have a number; expel one that is \
         gone for good (`weft fabric expel NUMBER`)"
    )]
    Full,
    /// The other side sent what its state does not permit.
    #[error("a daemon broke the rules of the protocol; one of the two has a fault")]
    Protocol,
}

/// Messages behind the greetings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Message {
    /// The first one of each side.
    Hello(Hello),
    /// The other side is refused; nothing follows.
    Refused(Refusal),
    /// The table of nodes.
    Roster(Roster),
    /// The other side is the node with this number. Behind it messages of users may follow.
    Accepted {
        /// Its number.
        number: u32,
    },
    /// A sign of life, to be answered.
    Ping,
    /// The answer to it.
    Pong,
    /// A message of a user of the fabric.
    User(Vec<u8>),
}

/// Why bytes are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum InvalidFrame {
    /// The frame is too long.
    #[error("a frame of {0} bytes")]
    Length(usize),
    /// The first frame is no greeting.
    #[error("no greeting of a weft daemon")]
    Greeting,
    /// The bytes are no message, or one with a value out of its range.
    #[error("a malformed message")]
    Malformed,
}

impl Greeting {
    /// Parses the first frame.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidFrame> {
        let body = bytes.strip_prefix(MAGIC.as_slice()).ok_or(InvalidFrame::Greeting)?;
        match postcard::take_from_bytes::<Self>(body) {
            Ok((greeting, [])) if is_name(&greeting.versions.release) => Ok(greeting),
            _ => Err(InvalidFrame::Greeting),
        }
    }

    /// The bytes of the frame, without its length.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(postcard::to_allocvec(self).expect("memory is the only thing it needs"));
        bytes
    }
}

/// Whether the texts of a refusal, which other hosts print, are names.
fn is_valid(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::Version(versions) => is_name(&versions.release),
        Refusal::Fabric(name) => is_name(name),
        _ => true,
    }
}

impl Message {
    /// Parses a message.
    ///
    /// # Errors
    /// It is none, or a value is out of its range.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidFrame> {
        let (message, rest) =
            postcard::take_from_bytes::<Self>(bytes).map_err(|_| InvalidFrame::Malformed)?;
        let is_valid = match &message {
            Self::Hello(hello) => is_name(&hello.fabric) && hello.about.is_valid(),
            Self::Refused(refusal) => is_valid(refusal),
            Self::Roster(roster) => roster.is_valid(),
            Self::User(bytes) => bytes.len() <= USER_BYTES_MAX,
            Self::Accepted { .. } | Self::Ping | Self::Pong => true,
        };
        if is_valid && rest.is_empty() { Ok(message) } else { Err(InvalidFrame::Malformed) }
    }

    /// The bytes of the message, without the length of its frame.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("memory is the only thing it needs")
    }
}

/// Puts the length before the bytes of a frame.
#[must_use]
pub fn framed(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("frames are short");
    let mut frame = length.to_le_bytes().to_vec();
    frame.extend_from_slice(bytes);
    frame
}

/// Takes frames out of a stream of bytes.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: VecDeque<u8>,
}

impl Frames {
    /// Adds bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// The next frame, of at most `maximum` bytes; `None` while it is not whole.
    ///
    /// # Errors
    /// It is longer. The stream is of no use then.
    pub fn next(&mut self, maximum: usize) -> Result<Option<Vec<u8>>, InvalidFrame> {
        let mut length = [0; 4];
        if self.bytes.len() < length.len() {
            return Ok(None);
        }
        for (byte, found) in length.iter_mut().zip(&self.bytes) {
            *byte = *found;
        }
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > maximum {
            return Err(InvalidFrame::Length(length));
        }
        if self.bytes.len() < 4 + length {
            return Ok(None);
        }
        self.bytes.drain(..4);
        Ok(Some(self.bytes.drain(..length).collect()))
    }
}

/// Entry for fuzzing: checks that any stream of bytes gives frames within their bounds, and that a
/// frame that parses is the same when it is emitted and parsed again. Returns how many parsed.
///
/// # Panics
/// When the check fails.
#[must_use]
pub fn fuzz_frames(bytes: &[u8]) -> usize {
    let mut frames = Frames::default();
    frames.push(bytes);
    let mut parsed = 0;
    while let Ok(Some(frame)) = frames.next(FRAME_BYTES_MAX) {
        assert!(frame.len() <= FRAME_BYTES_MAX, "a frame of {} bytes", frame.len());
        if let Ok(greeting) = Greeting::parse(&frame) {
            assert_eq!(Greeting::parse(&greeting.emit()), Ok(greeting));
            parsed += 1;
        }
        if let Ok(message) = Message::parse(&frame) {
            assert_eq!(Message::parse(&message.emit()), Ok(message));
            parsed += 1;
        }
    }
    parsed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roster::{Member, Numbering};
    use proptest::prelude::*;

    fn roster(count: usize) -> Roster {
        let member = |number: usize| Member {
            number: u32::try_from(number).expect("few"),
            identity: Identity([u8::try_from(number).expect("few"); 32]),
            name: "n".repeat(NAME_BYTES_MAX),
            address: "[2001:db8:1111:2222:3333:4444:5555:6666]:65535".parse().expect("valid"),
            is_expelled: false,
            former: u32::MAX,
        };
        Roster {
            revision: u64::MAX,
            first: Identity([0; 32]),
            members: (0..count).map(member).collect(),
            numbering: Numbering::Directory,
        }
    }

    #[test]
    fn the_largest_roster_and_the_largest_message_of_a_user_fit_a_frame() {
        let largest = Message::Roster(roster(NODES_MAX));
        let user = Message::User(vec![7; USER_BYTES_MAX]);
        for message in [largest, user] {
            let bytes = message.emit();
            assert!(bytes.len() <= FRAME_BYTES_MAX, "{}", bytes.len());
            assert_eq!(Message::parse(&bytes), Ok(message));
        }
        let versions = Versions { release: "r".repeat(NAME_BYTES_MAX), ..Versions::own() };
        let greeting = Greeting { versions, proof: [1; 32] };
        assert!(greeting.emit().len() <= STRANGER_BYTES_MAX);
        assert_eq!(Greeting::parse(&greeting.emit()), Ok(greeting));
    }

    #[test]
    fn a_roster_with_a_number_or_an_identity_twice_is_refused() {
        let mut twice = roster(3);
        twice.members[2].number = 1;
        let mut same = roster(3);
        same.members[2].identity = same.members[1].identity;
        let mut without_first = roster(3);
        without_first.first = Identity([9; 32]);
        for wrong in [twice, same, without_first] {
            let bytes = Message::Roster(wrong).emit();
            assert_eq!(Message::parse(&bytes), Err(InvalidFrame::Malformed));
        }
    }

    #[test]
    fn versions_work_together_if_their_ranges_meet() {
        let of = |lowest, highest| Versions { lowest, highest, release: "r".to_owned() };
        assert_eq!(of(1, 3).common(&of(2, 5)), Some(3));
        assert_eq!(of(2, 5).common(&of(1, 2)), Some(2));
        assert_eq!(of(1, 2).common(&of(3, 4)), None);
        assert_eq!(of(3, 1).common(&of(1, 9)), None, "a range that is none");
    }

    #[test]
    fn names_that_could_disturb_a_terminal_are_refused() {
        let hello = |name: &str| {
            Message::Hello(Hello {
                fabric: "f".to_owned(),
                incarnation: 1,
                number: None,
                first: None,
                about: NodeAbout {
                    name: name.to_owned(),
                    address: "10.9.0.1:7700".parse().expect("an address"),
                    release: "1".to_owned(),
                    facts: Vec::new(),
                },
            })
            .emit()
        };
        assert!(Message::parse(&hello("a host")).is_ok());
        for name in ["", "\x1b[2J", "a\nb", &"x".repeat(65)] {
            assert!(Message::parse(&hello(name)).is_err(), "{name:?}");
        }
        let refused = Message::Refused(Refusal::Fabric("\x07".to_owned()));
        assert!(Message::parse(&refused.emit()).is_err());
    }

    #[test]
    fn a_frame_is_taken_when_it_is_whole_and_refused_when_it_is_too_long() {
        let mut frames = Frames::default();
        let bytes = [framed(b"one"), framed(b""), framed(b"three")].concat();
        let mut taken = Vec::new();
        for byte in bytes {
            frames.push(&[byte]);
            taken.extend(frames.next(5).expect("short frames"));
        }
        assert_eq!(taken, [b"one".to_vec(), b"".to_vec(), b"three".to_vec()]);
        frames.push(&framed(b"sixsix"));
        assert_eq!(frames.next(5), Err(InvalidFrame::Length(6)));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_to_a_message_that_is_the_same_when_it_is_emitted_or_to_none(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            if let Ok(message) = Message::parse(&bytes) {
                prop_assert_eq!(Message::parse(&message.emit()), Ok(message));
            }
            let with_magic = [&MAGIC[..], &bytes].concat();
            for bytes in [bytes, with_magic] {
                if let Ok(greeting) = Greeting::parse(&bytes) {
                    prop_assert_eq!(Greeting::parse(&greeting.emit()), Ok(greeting));
                }
            }
        }

        #[test]
        fn messages_that_are_cut_or_changed_parse_or_not_and_nothing_panics(
            place in 0..400_usize, change in 1..=255_u8,
        ) {
            let mut bytes = Message::Roster(roster(3)).emit();
            let place = place % bytes.len();
            prop_assert!(Message::parse(&bytes[..place]).is_err());
            bytes[place] ^= change;
            if let Ok(Message::Roster(roster)) = Message::parse(&bytes) {
                prop_assert!(roster.is_valid());
            }
        }
    }
}
