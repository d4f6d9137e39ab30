//! How operations end.

use thiserror::Error;

use crate::peers::PeerId;

/// Why an operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
pub enum Failure {
    /// The peer ended, or cannot be reached.
    #[error("the peer ended or cannot be reached")]
    PeerDown,
    /// The message was longer than the memory of the receive.
    #[error("the message is longer than the receive")]
    Truncated,
    /// The caller cancelled it.
    #[error("the operation was cancelled")]
    Cancelled,
    /// No message is there that the caller looked for.
    #[error("no such message has arrived")]
    NoMessage,
    /// No memory is registered by that key at the peer.
    #[error("no memory is registered by that key")]
    UnknownKey,
    /// The range is outside of the registered memory.
    #[error("the range is outside of the registered memory")]
    OutOfBounds,
    /// The registration does not allow it.
    #[error("the registration does not allow that access")]
    Denied,
    /// The memory was registered, and is not there.
    #[error("the memory is not there")]
    Fault,
    /// The operation or the type is not known to the peer.
    #[error("the operation is not supported")]
    Unsupported,
}

impl Failure {
    const ALL: [Self; 9] = [
        Self::PeerDown,
        Self::Truncated,
        Self::Cancelled,
        Self::NoMessage,
        Self::UnknownKey,
        Self::OutOfBounds,
        Self::Denied,
        Self::Fault,
        Self::Unsupported,
    ];

    /// The number of a result in packets: 0 for a good one.
    pub(crate) fn number(result: Result<(), Self>) -> u64 {
        let place = |it| Self::ALL.iter().position(|other| *other == it).unwrap_or(0);
        result.err().map_or(0, |it| place(it) as u64 + 1)
    }

    /// The result with a number; what is not known is a fault.
    pub(crate) fn result(number: u64) -> Result<(), Self> {
        let Some(place) = number.checked_sub(1) else { return Ok(()) };
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        Err(Self::ALL.get(place).copied().unwrap_or(Self::Fault))
    }
}

/// Why an operation was not begun.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
pub enum Refusal {
    /// The peer has no room, or is being connected: poll, and try again.
    #[error("no room at present; poll and try again")]
    Busy,
    /// The peer ended, or cannot be reached.
    #[error("the peer ended or cannot be reached")]
    PeerDown,
    /// More bytes than such an operation can have.
    #[error("too many bytes for this operation")]
    TooLong,
}

/// The kinds of operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A message was sent.
    Send,
    /// A message was received.
    Receive,
    /// A message was looked for, and not received.
    Peek,
    /// Memory of a peer was written.
    Write,
    /// Memory of a peer was read.
    Read,
    /// Words of a peer were changed.
    Atomic,
    /// A peer wrote to memory of this program.
    WrittenBy,
    /// A peer read memory of this program.
    ReadBy,
    /// A peer changed words of this program.
    ChangedBy,
}

/// How far an operation is when its call returns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Begun {
    /// It is over, and is not reported.
    Over,
    /// Its end is reported by an [`Outcome`], unless only a failure is.
    UnderWay,
}

/// The end of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome<T> {
    /// The caller's name for the operation. `None` for what a peer did, and for operations that
    /// have none and failed.
    pub token: Option<T>,
    /// Its kind.
    pub kind: Kind,
    /// True for tagged messages.
    pub is_tagged: bool,
    /// The other end; `None` for a receive that nothing matched.
    pub peer: Option<PeerId>,
    /// The tag of the message.
    pub tag: u64,
    /// The word that came with it.
    pub data: Option<u64>,
    /// Bytes that were placed; of a peek, bytes of the message.
    pub length: usize,
    /// Bytes that had no room.
    pub surplus: usize,
    /// Where in the memory of the receive the message begins.
    pub at: usize,
    /// The memory of a receive of several messages is the caller's again.
    pub last: bool,
    /// The key of the registration, for what a peer did.
    pub key: u64,
    /// Why it failed.
    pub failure: Option<Failure>,
}

impl<T> Outcome<T> {
    /// The good end of an operation.
    pub(crate) const fn of(token: Option<T>, kind: Kind, peer: PeerId) -> Self {
        Self {
            token,
            kind,
            is_tagged: false,
            peer: Some(peer),
            tag: 0,
            data: None,
            length: 0,
            surplus: 0,
            at: 0,
            last: true,
            key: 0,
            failure: None,
        }
    }
}
