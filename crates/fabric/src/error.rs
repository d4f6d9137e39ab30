//! One error per kind of call; each says whose fault it was and what can be done.
//!
//! [`errno`](OperationError::errno) is the one table from errors to POSIX numbers, for C callers
//! and sockets.

use thiserror::Error;

use crate::address::EndpointAddress;
use crate::operation::Command;

/// Numbers of `errno.h` on Linux, which every weft platform shares.
pub mod errno {
    #![allow(missing_docs, reason = "named as in errno.h")]
    pub const EAGAIN: i32 = 11;
    pub const ENOMEM: i32 = 12;
    pub const EACCES: i32 = 13;
    pub const EBUSY: i32 = 16;
    pub const EINVAL: i32 = 22;
    pub const EMFILE: i32 = 24;
    pub const EMSGSIZE: i32 = 90;
    pub const EADDRINUSE: i32 = 98;
    pub const ENETDOWN: i32 = 100;
    pub const ECONNRESET: i32 = 104;
    pub const EHOSTUNREACH: i32 = 113;
    pub const EKEYREVOKED: i32 = 128;
}

/// Why an endpoint could not be opened.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The VPID asked for is taken.
    #[error("endpoint {0} is in use; ask for another VPID or for any")]
    AddressInUse(EndpointAddress),
    /// All VPIDs of the node are taken.
    #[error("all {maximum} endpoints of this node are in use; close some")]
    Exhausted {
        /// How many there are.
        maximum: u16,
    },
    /// The partition belongs to another user.
    #[error("partition {partition:#x} belongs to another user")]
    Forbidden {
        /// The partition asked for.
        partition: u64,
    },
    /// Nobody brokers endpoints here.
    #[error("no node daemon answers: {reason}; start one with `weft daemon`")]
    NoBroker {
        /// What was tried and what came of it.
        reason: String,
    },
    /// The system refused a resource.
    #[error("{call} failed with errno {errno}")]
    Os {
        /// The call.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
}

/// Why a peer could not be connected.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address has a wildcard.
    #[error("{0} has a wildcard and cannot name a target")]
    NotExact(EndpointAddress),
    /// No endpoint of the own partition has that address.
    #[error("no endpoint {0} in this partition")]
    NotFound(EndpointAddress),
    /// The endpoint has as many peers as it can have.
    #[error("this endpoint already has {maximum} peers, the most there can be")]
    Exhausted {
        /// How many there can be.
        maximum: usize,
    },
    /// The broker did not answer, or refused.
    #[error("the node daemon could not connect: {reason}")]
    Broker {
        /// What it said.
        reason: String,
    },
    /// The system refused a resource.
    #[error("{call} failed with errno {errno}")]
    Os {
        /// The call.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
}

/// Why a message was not accepted.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The receiver's mailbox is full; [`crate::Event::Room`] tells when to try again.
    #[error("the mailbox of the receiver is full")]
    WouldBlock,
    /// The message is longer than a mailbox slot.
    #[error("a message of {length} bytes is longer than the {maximum} a mailbox takes; use put")]
    TooLong {
        /// Its length.
        length: usize,
        /// What fits.
        maximum: usize,
    },
    /// The type has two bits.
    #[error("message type {kind} does not fit in two bits")]
    InvalidKind {
        /// The type given.
        kind: u8,
    },
    /// The peer is down.
    #[error("the peer is down")]
    PeerDown,
    /// The handle names no peer of this endpoint.
    #[error("not a peer of this endpoint")]
    UnknownPeer,
}

/// Why a multicast group could not be joined or left.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum GroupError {
    /// Everybody is in the broadcast group, always.
    #[error("the broadcast group cannot be joined or left")]
    Broadcast,
    /// The broker did not answer, or refused.
    #[error("the node daemon could not change the group: {reason}")]
    Broker {
        /// What it said.
        reason: String,
    },
}

/// Why memory could not be registered.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// A region has at least one byte.
    #[error("a region of 0 bytes cannot be registered")]
    Empty,
    /// The endpoint has as many regions as it can have.
    #[error("this endpoint already has {maximum} regions, the most there can be")]
    Exhausted {
        /// How many there can be.
        maximum: usize,
    },
    /// The system refused the memory.
    #[error("{call} of {length} bytes failed with errno {errno}")]
    Os {
        /// The call.
        call: &'static str,
        /// Bytes asked for.
        length: usize,
        /// Its error number.
        errno: i32,
    },
}

/// Why a key could not be granted or revoked.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The region is not one of this endpoint's.
    #[error("the region belongs to another endpoint")]
    ForeignRegion,
    /// The grant gives nothing, or atomics without read and write.
    #[error(
        "access {access:#05b} is not a grant: atomics need read and write, and it cannot be empty"
    )]
    InvalidAccess {
        /// The bits asked for.
        access: u8,
    },
    /// No such key, or it was revoked before.
    #[error("the key is not valid (never granted, or already revoked)")]
    UnknownKey,
    /// The endpoint has as many keys as it can have.
    #[error("this endpoint already granted {maximum} keys, the most there can be")]
    Exhausted {
        /// How many there can be.
        maximum: usize,
    },
    /// The broker did not answer, or refused.
    #[error("the node daemon could not publish the key: {reason}")]
    Broker {
        /// What it said.
        reason: String,
    },
}

/// Why bytes of a local region could not be reached.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The range leaves the region.
    #[error("{length} bytes at offset {offset} leave a region of {region} bytes")]
    OutOfBounds {
        /// Start of the range.
        offset: u64,
        /// Its length.
        length: u64,
        /// Bytes the region has.
        region: u64,
    },
    /// A word must be aligned.
    #[error("offset {offset} is not a multiple of {alignment}")]
    Misaligned {
        /// The offset given.
        offset: u64,
        /// What it has to be a multiple of.
        alignment: u64,
    },
}

/// Why a one-sided operation was refused or failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum OperationError {
    /// A queue is full; [`crate::Event::Room`] tells when to try again.
    #[error("a queue on the way is full")]
    WouldBlock,
    /// The key is unknown, was revoked, or belongs to another partition.
    #[error("the key is not valid here (revoked, never granted, or of another partition)")]
    InvalidKey,
    /// The key does not give this right.
    #[error("the key does not allow {command:?}")]
    AccessDenied {
        /// What was tried.
        command: Command,
    },
    /// The range leaves the region that the key names.
    #[error("{length} bytes at offset {offset} leave the peer's region of {region} bytes")]
    OutOfBounds {
        /// Start of the range.
        offset: u64,
        /// Its length.
        length: u64,
        /// Bytes the region has.
        region: u64,
    },
    /// A word must be aligned to its width.
    #[error("offset {offset} is not a multiple of {alignment}")]
    Misaligned {
        /// The offset given.
        offset: u64,
        /// What it has to be a multiple of.
        alignment: u64,
    },
    /// An immediate put moves 1 to 8 bytes.
    #[error("an immediate put moves 1 to 8 bytes, not {length}")]
    InvalidLength {
        /// The length given.
        length: u64,
    },
    /// The lock does not exist.
    #[error("lock {number} does not exist; there are {maximum}")]
    InvalidLock {
        /// The number given.
        number: u32,
        /// How many there are.
        maximum: u32,
    },
    /// The combination of notifications is not one of Table 3.1.
    #[error("{command:?} has no responder to notify")]
    InvalidNotification {
        /// The operation.
        command: Command,
    },
    /// The local range leaves the local region.
    #[error("local {0}")]
    Local(#[from] RegionError),
    /// The peer died or was partitioned away before the operation ended.
    #[error("the peer is down")]
    PeerDown,
    /// The handle names no peer of this endpoint.
    #[error("not a peer of this endpoint")]
    UnknownPeer,
    /// The broker did not answer, or refused.
    #[error("the node daemon could not resolve the key: {reason}")]
    Broker {
        /// What it said.
        reason: String,
    },
}

impl OperationError {
    /// The POSIX number of this error.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::WouldBlock => errno::EAGAIN,
            Self::InvalidKey => errno::EKEYREVOKED,
            Self::AccessDenied { .. } => errno::EACCES,
            Self::OutOfBounds { .. }
            | Self::Misaligned { .. }
            | Self::InvalidLength { .. }
            | Self::InvalidLock { .. }
            | Self::InvalidNotification { .. }
            | Self::Local(_)
            | Self::UnknownPeer => errno::EINVAL,
            Self::PeerDown => errno::ECONNRESET,
            Self::Broker { .. } => errno::ENETDOWN,
        }
    }
}

impl SendError {
    /// The POSIX number of this error.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::WouldBlock => errno::EAGAIN,
            Self::TooLong { .. } => errno::EMSGSIZE,
            Self::InvalidKind { .. } | Self::UnknownPeer => errno::EINVAL,
            Self::PeerDown => errno::ECONNRESET,
        }
    }
}

impl ConnectError {
    /// The POSIX number of this error.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::NotExact(_) => errno::EINVAL,
            Self::NotFound(_) => errno::EHOSTUNREACH,
            Self::Exhausted { .. } => errno::EMFILE,
            Self::Broker { .. } => errno::ENETDOWN,
            Self::Os { errno, .. } => *errno,
        }
    }
}

impl OpenError {
    /// The POSIX number of this error.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::AddressInUse(_) => errno::EADDRINUSE,
            Self::Exhausted { .. } => errno::EMFILE,
            Self::Forbidden { .. } => errno::EACCES,
            Self::NoBroker { .. } => errno::ENETDOWN,
            Self::Os { errno, .. } => *errno,
        }
    }
}

/// Why a window could not be opened or an access through it failed: the errors of a get or put.
pub type WindowError = OperationError;
