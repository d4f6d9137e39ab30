//! The errors, one enum for each kind of call.

use thiserror::Error;
use weft_fabric::{GrantError, OperationError, RegionError, RegisterError};

/// Why a message was not accepted.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The peer gave no credit for it, or a queue is full. [`crate::Event::Room`] says when to try
    /// again.
    #[error("there is no room for the message at the peer or in a queue")]
    WouldBlock,
    /// The body is longer than the memory for copies. A range of a shared region has no limit.
    #[error("a body of {length} bytes is longer than the maximum of {maximum}; share a region")]
    TooLong {
        /// Bytes of the body.
        length: u64,
        /// The maximum.
        maximum: u64,
    },
    /// The head is longer than [`crate::HEAD_BYTES_MAX`].
    #[error("a head of {length} bytes is longer than the maximum of {maximum}")]
    HeadTooLong {
        /// Bytes of the head.
        length: usize,
        /// The maximum.
        maximum: usize,
    },
    /// The peer is down, or it was ended because it misbehaved.
    #[error("the peer is down")]
    PeerDown,
    /// The handle names no peer of this endpoint.
    #[error("not a peer of this endpoint")]
    UnknownPeer,
    /// The region is not shared, or not any more.
    #[error("the region is not shared")]
    UnknownShare,
    /// The range leaves the shared region.
    #[error("shared region: {0}")]
    Range(#[from] RegionError),
    /// No memory could be registered for a copy of the body.
    #[error("memory for a copy of the body: {0}")]
    Register(#[from] RegisterError),
}

/// Why a region is still shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum UnshareError {
    /// Messages out of it have not ended.
    #[error("{messages} messages out of the region have not ended")]
    InUse {
        /// Their number.
        messages: u32,
    },
    /// The region is not shared, or not any more.
    #[error("the region is not shared")]
    UnknownShare,
}

/// Why an announced message was not placed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The ticket names no message that waits for a decision: it was decided, taken back, or its
    /// sender is down.
    #[error("no message waits for a decision under this ticket")]
    UnknownTicket,
    /// The range leaves the region.
    #[error("region for the message: {0}")]
    Range(#[from] RegionError),
    /// The message is longer than the memory for messages.
    #[error("a message of {length} bytes is longer than the maximum of {maximum}")]
    TooLong {
        /// Bytes of the body.
        length: u64,
        /// The maximum.
        maximum: u64,
    },
}

/// Why an accepted message did not arrive.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum MessageError {
    /// Its sender took it back before its receiver began.
    #[error("the message was cancelled")]
    Cancelled,
    /// Its receiver does not take it.
    #[error("the receiver refused the message")]
    Refused,
    /// The peer is down, or it was ended because it misbehaved. A message that its receiver had
    /// already may end with this error, too.
    #[error("the peer is down")]
    PeerDown,
    /// The sender could not grant its memory to the receiver.
    #[error("the memory of the message: {0}")]
    Grant(#[from] GrantError),
    /// The receiver could not get the body, through no fault of the sender.
    #[error("the body of the message: {0}")]
    Get(#[from] OperationError),
}

/// How a peer broke the protocol.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Offence {
    /// A packet that the format does not have.
    #[error("it sent {what}")]
    Malformed {
        /// The packet.
        what: &'static str,
    },
    /// A packet of a message for which the peer had no credit.
    #[error("it sent more than it had credit for")]
    CreditExceeded,
    /// More credits than a count can have.
    #[error("it gave more than {maximum} credits")]
    CreditOverflow {
        /// The maximum.
        maximum: u32,
    },
    /// A message out of its turn.
    #[error("it sent message {number} in place of {expected}")]
    OutOfTurn {
        /// The number of the message.
        number: u16,
        /// The number that was due.
        expected: u16,
    },
    /// A part that does not fit the parts before it.
    #[error("it sent a part that does not fit the parts before")]
    WrongPart,
    /// An answer to a message that was not announced, or to a cancellation that was not sent.
    #[error("it answered message {number}, which was not asked")]
    NotAsked {
        /// The number of the message.
        number: u16,
    },
    /// A cancellation of a message that it never announced, or cancelled before.
    #[error("it cancelled message {number}, which it did not announce")]
    NothingToCancel {
        /// The number of the message.
        number: u16,
    },
    /// A packet to a group.
    #[error("it sent a packet to a group")]
    Multicast,
    /// A range that it announced cannot be read.
    #[error("it announced memory that cannot be read: {0}")]
    Range(OperationError),
}
