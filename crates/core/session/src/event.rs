//! The events for a program, and the names in them.

use std::fmt;

use weft_fabric::{Access, DownReason, OperationError, Peer, ServiceName};
use weft_message::Body;

use crate::error::{Offence, RequestError};

/// Names a session. Never used again while the peer lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId {
    pub(crate) peer: Peer,
    /// Whether this end opened it. The numbers of both ends are apart.
    pub(crate) opened_here: bool,
    pub(crate) number: u16,
}

impl SessionId {
    /// The endpoint at the other end.
    #[must_use]
    pub const fn peer(self) -> Peer {
        self.peer
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.opened_here { "to" } else { "of" };
        write!(f, "session {} {side} peer {}", self.number, self.peer.0)
    }
}

/// Names a pool of blocks in its session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PoolId {
    /// Whether the memory is this end's.
    pub(crate) is_own: bool,
    pub(crate) number: u32,
}

impl PoolId {
    /// The bit of the number in a frame that says that the memory is its sender's.
    const OF_SENDER: u32 = 1 << 31;

    /// The number in a frame that this end sends.
    pub(crate) const fn wire(self) -> u32 {
        if self.is_own { self.number | Self::OF_SENDER } else { self.number }
    }

    /// The pool that a frame of the peer names.
    pub(crate) const fn of_wire(number: u32) -> Self {
        Self { is_own: number & Self::OF_SENDER == 0, number: number & !Self::OF_SENDER }
    }
}

/// A block of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BlockId {
    /// The pool.
    pub pool: PoolId,
    /// Its place, from 0 on: it begins at `place * block_bytes` of the pool.
    pub place: u32,
}

/// The size of a pool, and the direction in which its blocks are filled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shape {
    /// Bytes of each block.
    pub block_bytes: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// The rights of the peer: with [`Access::WRITE`] it fills the blocks by put, with
    /// [`Access::READ`] alone it gets what their owner wrote.
    pub access: Access,
}

/// An event, passed to the sink of [`crate::Sessions::poll`]. `R` is the region of the transport.
#[derive(Debug)]
pub enum Event<'a, R> {
    /// A client asks for a session: [`crate::Sessions::accept`] or [`crate::Sessions::refuse`],
    /// where [`crate::Admission`] leaves it to the program.
    Hello {
        /// The session.
        session: SessionId,
        /// The protocol, which [`crate::Sessions::serve`] named.
        protocol: ServiceName,
        /// The highest version that both ends speak.
        version: u16,
        /// Options that the client sent.
        options: &'a [u8],
    },
    /// The service accepted the session that this end asked for.
    Opened {
        /// The session.
        session: SessionId,
        /// The version that it chose.
        version: u16,
        /// Options that it sent.
        options: &'a [u8],
    },
    /// The peer asks something: [`crate::Sessions::answer`], once.
    Request {
        /// The session.
        session: SessionId,
        /// Names the request in the answer.
        number: u32,
        /// The head.
        head: &'a [u8],
        /// The body.
        body: Body<'a, R>,
    },
    /// The peer took a request back. It needs no answer any more; the work for it may stop.
    Cancelled {
        /// The session.
        session: SessionId,
        /// The request.
        number: u32,
    },
    /// A request of this end has its answer, or never gets one. Comes once for each request.
    Answer {
        /// The session.
        session: SessionId,
        /// The request.
        number: u32,
        /// The answer.
        answer: Result<Answer<'a, R>, RequestError>,
    },
    /// The peer lent a pool of blocks.
    Pool {
        /// The session.
        session: SessionId,
        /// The pool.
        pool: PoolId,
        /// Its size and direction.
        shape: Shape,
    },
    /// The peer passed a block that has something in it. It is this end's until
    /// [`crate::Sessions::free`].
    Block {
        /// The session.
        session: SessionId,
        /// The block.
        block: BlockId,
        /// Bytes in it.
        length: u32,
        /// The head that the peer gave it.
        head: &'a [u8],
    },
    /// A put or get of a block has ended. After a put that ended well the peer has the block;
    /// after one that failed it is still this end's.
    ///
    /// After [`OperationError::InvalidKey`] the peer has taken its memory back, and after
    /// [`OperationError::PeerDown`] it is gone: the session is over in both cases, and
    /// [`Event::Ended`] follows within seconds and says why.
    Moved {
        /// The session.
        session: SessionId,
        /// The block.
        block: BlockId,
        /// How it ended.
        result: Result<(), OperationError>,
    },
    /// There is room again for requests, or for puts and gets, or a block came back.
    Room {
        /// The session.
        session: SessionId,
    },
    /// The session is over. Its requests have ended before, and nothing of it comes later.
    Ended {
        /// The session.
        session: SessionId,
        /// Why.
        why: End,
        /// Whether the peer cannot reach the memory of own pools any more. If not, because it was
        /// stopped amid a write, the memory must not be used for another thing.
        is_revoked: bool,
    },
    /// An event of the endpoint that is none of a session's. Reports of room and of peers that are
    /// down are passed on, too.
    Endpoint(weft_fabric::Event<'a>),
}

/// The answer to a request.
#[derive(Debug)]
pub struct Answer<'a, R> {
    /// A number of the protocol's.
    pub code: u16,
    /// The head.
    pub head: &'a [u8],
    /// The body.
    pub body: Body<'a, R>,
}

/// Why a session ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// The service refused it.
    Refused {
        /// Why, by number: a number of the protocol's, or one of [`crate::refusals`].
        code: u32,
        /// Why, for people.
        text: String,
    },
    /// One of the two ends ended it.
    Ended {
        /// Whether the peer did.
        by_peer: bool,
        /// A number of the protocol's.
        code: u16,
        /// Why, for people.
        text: String,
    },
    /// The peer is down.
    Down(DownReason),
    /// The hello had no answer in time.
    NoAnswer,
    /// The peer said nothing for [`crate::Options::silence`].
    Silent,
    /// The peer broke the protocol.
    Misbehaved(Offence),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { text, .. } => write!(f, "the service refuses: {text}"),
            Self::Ended { by_peer, text, .. } => {
                let end = if *by_peer { "the peer" } else { "this end" };
                write!(f, "{end} ended the session")?;
                if text.is_empty() { Ok(()) } else { write!(f, ": {text}") }
            }
            Self::Down(DownReason::Ended) => f.write_str("the program at the other end has ended"),
            Self::Down(DownReason::Unreachable) => f.write_str("the other end is not reached"),
            Self::Down(DownReason::Misbehaved) => {
                f.write_str("the program at the other end broke the protocol of the fabric")
            }
            Self::Down(DownReason::Disconnected) => f.write_str("the other end was disconnected"),
            Self::NoAnswer => f.write_str("the service did not answer in time"),
            Self::Silent => f.write_str("the other end said nothing for too long"),
            Self::Misbehaved(offence) => write!(f, "the other end broke the protocol: {offence}"),
        }
    }
}
