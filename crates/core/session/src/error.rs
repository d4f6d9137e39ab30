//! The errors, one enum for each kind of call.

use thiserror::Error;
use weft_fabric::{OperationError, RegionError};
use weft_message::MessageError;

/// Why a session was not opened, accepted or ended.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The session is over, or was never there.
    #[error("the session is over")]
    Unknown,
    /// The session is not open yet.
    #[error("the session is not open yet")]
    NotOpen,
    /// The session is open already, or this end opened it.
    #[error("the session does not wait to be accepted")]
    NotAsked,
    /// This end has as many sessions as it may have.
    #[error("there are {maximum} sessions, the maximum")]
    Exhausted {
        /// The maximum.
        maximum: usize,
    },
    /// The options of a hello or a welcome are longer than this end takes itself.
    #[error("options of {length} bytes are longer than the maximum of {maximum}")]
    TooLong {
        /// Bytes of the options.
        length: u64,
        /// The maximum.
        maximum: u64,
    },
    /// The version is none of those that both ends speak.
    #[error("version {version} is not spoken by both ends")]
    Version {
        /// The version.
        version: u16,
    },
}

/// Why a request was not made, or has no answer.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The peer has as many requests open as it lets this end have, or there is no room for the
    /// message. [`crate::Event::Room`] says when to try again.
    #[error("there is no room for the request")]
    WouldBlock,
    /// The head is longer than [`crate::HEAD_BYTES_MAX`].
    #[error("a head of {length} bytes is longer than the maximum of {maximum}")]
    HeadTooLong {
        /// Bytes of the head.
        length: usize,
        /// The maximum.
        maximum: usize,
    },
    /// The body is longer than this end or the peer takes at a time. Blocks carry any length.
    #[error("the body is longer than the peer takes at a time; move it in blocks")]
    TooLong,
    /// The answer was longer than this end takes at a time.
    #[error("the answer is longer than this end takes at a time; ask for blocks")]
    AnswerTooLong,
    /// The request was cancelled before its answer.
    #[error("the request was cancelled")]
    Cancelled,
    /// The answer did not come in time. The peer was asked to cancel.
    #[error("no answer came in time")]
    Late,
    /// The message of the request did not arrive.
    #[error("the message: {0}")]
    Message(#[from] MessageError),
    /// The session has ended, or is not open.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Why an answer was not given.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// There is no such request: it was answered, or cancelled.
    #[error("request {number} waits for no answer")]
    NotAsked {
        /// The number of the request.
        number: u32,
    },
    /// The head is longer than [`crate::HEAD_BYTES_MAX`].
    #[error("a head of {length} bytes is longer than the maximum of {maximum}")]
    HeadTooLong {
        /// Bytes of the head.
        length: usize,
        /// The maximum.
        maximum: usize,
    },
    /// The session has ended, or is not open.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Why nothing was done with a block, or a pool was not made.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The pool has no such block, or the session no such pool.
    #[error("there is no such block")]
    Unknown,
    /// The block is at the other end, or an operation on it has not ended.
    #[error("the block is not this end's at present")]
    NotHere,
    /// The key of the pool does not allow that: blocks are written or read by the peer of their
    /// owner, and their owner uses its region.
    #[error("the blocks of this pool are not moved so")]
    Direction,
    /// The range leaves the block.
    #[error("{length} bytes from {offset} on leave a block of {block} bytes")]
    OutOfBounds {
        /// The first byte in the block.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// Bytes of the block.
        block: u32,
    },
    /// A pool needs blocks of at least one byte that lie in its region, and fewer than the limits
    /// of both ends.
    #[error("a pool of these blocks cannot be: {0}")]
    Shape(&'static str),
    /// The head is longer than [`crate::HEAD_BYTES_MAX`].
    #[error("a head of {length} bytes is longer than the maximum of {maximum}")]
    HeadTooLong {
        /// Bytes of the head.
        length: usize,
        /// The maximum.
        maximum: usize,
    },
    /// The range leaves the local region.
    #[error("local region: {0}")]
    Local(#[from] RegionError),
    /// The operation was refused. With [`OperationError::WouldBlock`] the block is still this
    /// end's, and [`crate::Event::Room`] says when to try again.
    #[error(transparent)]
    Operation(OperationError),
    /// The session has ended, or is not open.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// How a peer broke the protocol.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Offence {
    /// A frame that the format does not have.
    #[error("it sent {what}")]
    Malformed {
        /// The frame.
        what: &'static str,
    },
    /// A frame that this end or the state of the session does not allow.
    #[error("it sent {what}")]
    OutOfTurn {
        /// The frame.
        what: &'static str,
    },
    /// More open requests, pools or blocks than it was allowed.
    #[error("it has more than {maximum} {what}")]
    TooMany {
        /// The things.
        what: &'static str,
        /// The maximum.
        maximum: u64,
    },
    /// An answer to a request that was not made or has its answer.
    #[error("it answered request {number}, which was not open")]
    NotAsked {
        /// The number of the request.
        number: u32,
    },
    /// It passed a block that was not its own.
    #[error("it passed block {block} of pool {pool}, which it did not have")]
    NotItsBlock {
        /// The number of the pool.
        pool: u32,
        /// The block.
        block: u32,
    },
}
