//! The errors, one enum for each kind of call. A message says whose fault the error is and how to
//! proceed.

use thiserror::Error;

use crate::address::EndpointAddress;
use crate::operation::Command;
use crate::service::{ServiceName, Ticket};

/// Numbers of `errno.h` that transports give where no system call did.
pub mod errno {
    #![allow(missing_docs, reason = "named as in errno.h")]
    pub const EPERM: i32 = 1;
    pub const ESRCH: i32 = 3;
    pub const ENOMEM: i32 = 12;
    pub const EFAULT: i32 = 14;
    pub const EINVAL: i32 = 22;
}

/// Why an endpoint could not be opened.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The requested VPID is in use.
    #[error("endpoint {0} is in use; ask for another VPID or for any")]
    AddressInUse(EndpointAddress),
    /// All VPIDs of the node are in use.
    #[error("all {maximum} endpoints of this node are in use; close some")]
    Exhausted {
        /// The number of VPIDs.
        maximum: u16,
    },
    /// The partition belongs to another user.
    #[error("partition {partition:#x} belongs to another user")]
    Forbidden {
        /// The requested partition.
        partition: u64,
    },
    /// The partition would be offered to others, but it is the default one of its user, which other
    /// programs of the user are in.
    #[error("the default partition of a user is not for others; use a numbered one")]
    DefaultPartition,
    /// Another endpoint of the node offers a service of this name.
    #[error("a service {name} is there already; choose another name, or end the other one")]
    NameTaken {
        /// The name.
        name: ServiceName,
    },
    /// The policy gives the name to other users.
    #[error("this user may not offer a service {name}; the option daemon.services says who may")]
    OfferForbidden {
        /// The name.
        name: ServiceName,
    },
    /// No endpoint offers a service of this name.
    #[error("nobody offers a service {name} here; `weft status` lists those that are offered")]
    NotOffered {
        /// The name.
        name: ServiceName,
    },
    /// The policy does not let this user into the service.
    #[error("this user may not use the service {name}; the option daemon.services says who may")]
    ServiceForbidden {
        /// The name.
        name: ServiceName,
    },
    /// The ticket is not good: it was never given, was used, is too late, or the endpoint that gave
    /// it has ended. Which of these it is, is not told.
    #[error("the ticket is not good (wrong, used, too late, or its giver has ended); get another")]
    InvalidTicket,
    /// The transport has no such rail.
    #[error("transport {transport} has no rail {rail:?}; it has {}", .known.join(", "))]
    UnknownRail {
        /// The transport's name.
        transport: &'static str,
        /// The rail.
        rail: String,
        /// The rails that it has.
        known: Vec<String>,
    },
    /// No broker answers for this node.
    #[error("no node daemon answers: {reason}; start one with `weft daemon`")]
    NoBroker {
        /// The attempt and its result.
        reason: String,
    },
    /// The provider of the network under the transport refused.
    #[error("the network's provider refused: {reason}")]
    Provider {
        /// The provider's reason.
        reason: String,
    },
    /// The system refused a resource.
    #[error("{call} failed with errno {errno}")]
    Os {
        /// The system call.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
}

/// Why an endpoint could not connect to a peer.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address has a wildcard.
    #[error("{0} has a wildcard and cannot name a target")]
    NotExact(EndpointAddress),
    /// The own partition has no endpoint with that address.
    #[error("no endpoint {0} in this partition")]
    NotFound(EndpointAddress),
    /// The endpoint shares no memory, and this one reaches its own node by memory alone.
    #[error("endpoint {0} is reached over a network alone; open this one for networks, too")]
    NetworkAlone(EndpointAddress),
    /// The endpoint has its maximum of peers.
    #[error("this endpoint already has {maximum} peers, the maximum")]
    Exhausted {
        /// The maximum.
        maximum: usize,
    },
    /// The broker did not answer, or it refused.
    #[error("the node daemon could not connect: {reason}")]
    Broker {
        /// The broker's reason.
        reason: String,
    },
    /// The provider of the network under the transport refused.
    #[error("the network's provider refused: {reason}")]
    Provider {
        /// The provider's reason.
        reason: String,
    },
    /// The system refused a resource.
    #[error("{call} failed with errno {errno}")]
    Os {
        /// The system call.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
}

/// Why a ticket could not be made.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InviteError {
    /// The partition is of another user, who alone may invite.
    #[error("the partition belongs to another user; its owner alone invites")]
    Forbidden,
    /// The partition is the default one of its user, which other programs of the user are in.
    #[error("the default partition of a user is not for others; use a numbered one")]
    DefaultPartition,
    /// A ticket is good for more than no time and for [`Ticket::WITHIN_MAX`] at most.
    #[error("a ticket is good for more than no time and at most {:?}", Ticket::WITHIN_MAX)]
    InvalidTime,
    /// The user has the maximum of tickets that have not been used.
    #[error("this user already has {maximum} tickets that wait, the maximum")]
    Exhausted {
        /// The maximum.
        maximum: usize,
    },
    /// The broker did not answer, or it refused.
    #[error("the node daemon could not make the ticket: {reason}")]
    Broker {
        /// The broker's reason.
        reason: String,
    },
    /// The system refused a resource.
    #[error("{call} failed with errno {errno}")]
    Os {
        /// The system call.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
}

/// Why a message was not accepted.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The receiver's mailbox is full; [`crate::Event::Room`] says when to try again. For a message
    /// to a group: the mailbox of a member is full, or the members are being looked up;
    /// [`crate::Event::GroupRoom`] says when to try again.
    #[error(
        "the mailbox of the receiver is full, or the group is being looked up; try again later"
    )]
    WouldBlock,
    /// The message is longer than a mailbox slot.
    #[error("a message of {length} bytes is longer than the maximum of {maximum}; use put")]
    TooLong {
        /// The message's length.
        length: usize,
        /// The maximum.
        maximum: usize,
    },
    /// The message type does not fit in two bits.
    #[error("message type {kind} does not fit in two bits")]
    InvalidKind {
        /// The type.
        kind: u8,
    },
    /// The group has more members than the endpoint may have peers.
    #[error("the group has more members than this endpoint may have peers, {maximum}")]
    Exhausted {
        /// The maximum.
        maximum: usize,
    },
    /// The peer is down.
    #[error("the peer is down")]
    PeerDown,
    /// The handle names no peer of this endpoint.
    #[error("not a peer of this endpoint")]
    UnknownPeer,
    /// The broker did not say who the members of the group are.
    #[error("the members of the group could not be looked up: {reason}; try again later")]
    Broker {
        /// The broker's reason.
        reason: String,
    },
}

/// Why a multicast group could not be joined or left.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum GroupError {
    /// Every endpoint is always in the broadcast group.
    #[error("the broadcast group cannot be joined or left")]
    Broadcast,
    /// The broker does not know the endpoint: it was ended, or another endpoint got its VPID while
    /// the broker was restarted.
    #[error("the node daemon does not know this endpoint any more; open a new one")]
    UnknownEndpoint,
    /// The broker did not answer, or it refused.
    #[error("the node daemon could not change the group: {reason}")]
    Broker {
        /// The broker's reason.
        reason: String,
    },
}

/// Why memory could not be registered.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// A region needs at least one byte.
    #[error("a region of 0 bytes cannot be registered")]
    Empty,
    /// The endpoint has its maximum of regions.
    #[error("this endpoint already has {maximum} regions, the maximum")]
    Exhausted {
        /// The maximum.
        maximum: usize,
    },
    /// The system refused the memory.
    #[error("{call} of {length} bytes failed with errno {errno}")]
    Os {
        /// The system call.
        call: &'static str,
        /// Bytes requested.
        length: usize,
        /// Its error number.
        errno: i32,
    },
}

/// Why a key could not be granted or revoked.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The region belongs to another endpoint.
    #[error("the region belongs to another endpoint")]
    ForeignRegion,
    /// The grant is empty, or allows atomics without read and write.
    #[error(
        "access {access:#05b} is not a grant: atomics need read and write, and it cannot be empty"
    )]
    InvalidAccess {
        /// The requested bits.
        access: u8,
    },
    /// The key was never granted, or was revoked before.
    #[error("the key is not valid (never granted, or already revoked)")]
    UnknownKey,
    /// The endpoint has its maximum of keys.
    #[error("this endpoint already granted {maximum} keys, the maximum")]
    Exhausted {
        /// The maximum.
        maximum: usize,
    },
    /// The range leaves the region.
    #[error("local region: {0}")]
    Local(#[from] RegionError),
    /// The key would be for a peer that is down or was never connected.
    #[error("the peer that the key would be for is not connected")]
    Peer,
    /// The key is void. But its memory is in place and cannot move, and a write that this peer
    /// began before has not ended: its process is stopped, or very slow.
    #[error(
        "the key is void, but {peer} has begun a write that may still come; keep the memory, or \
         end that process"
    )]
    StillWriting {
        /// The peer.
        peer: EndpointAddress,
    },
    /// The provider of the network under the transport refused.
    #[error("the network's provider refused: {reason}")]
    Provider {
        /// The provider's reason.
        reason: String,
    },
    /// The broker did not answer, or it refused.
    #[error("the node daemon could not publish the key: {reason}")]
    Broker {
        /// The broker's reason.
        reason: String,
    },
}

/// Why an access to a local region failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The range leaves the region.
    #[error("{length} bytes at offset {offset} are outside a region of {region} bytes")]
    OutOfBounds {
        /// Start of the range.
        offset: u64,
        /// Its length.
        length: u64,
        /// Bytes of the region.
        region: u64,
    },
    /// The offset of a word is not aligned.
    #[error("offset {offset} is not a multiple of {alignment}")]
    Misaligned {
        /// The offset.
        offset: u64,
        /// The alignment that is needed.
        alignment: u64,
    },
}

/// Why a one-sided operation was refused or failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum OperationError {
    /// The queue to the peer is full, or the key is being looked up. [`crate::Event::Room`] says
    /// when to try again.
    #[error("the queue to the peer is full, or the key is being looked up; try again later")]
    WouldBlock,
    /// The key was never granted, was revoked, or belongs to another partition.
    #[error("the key is not valid here (revoked, never granted, or of another partition)")]
    InvalidKey,
    /// The key does not permit the operation.
    #[error("the key does not allow {command:?}")]
    AccessDenied {
        /// The operation.
        command: Command,
    },
    /// The owner took its memory away from others while the operation stood still for long, or
    /// while a window was used. A part of the operation may have been done. The key stays valid.
    #[error("the memory was moved while the operation stood still; a part of it may be done")]
    Interrupted,
    /// The peer's memory is in place: it cannot be mapped, so that there is no window to it, and
    /// none of its words is changed. See [`Way::Kernel`](crate::Way::Kernel).
    #[error("the peer's memory cannot be mapped; use put and get")]
    NotMapped,
    /// The kernel did not copy to or from the peer's memory in place. A part of the operation may
    /// have been done.
    #[error(
        "the kernel does not copy to or from the peer's memory (errno {errno}); EFAULT says that \
         the peer has it no more, others that this process may not"
    )]
    KernelCopy {
        /// The error number.
        errno: i32,
    },
    /// The range leaves the peer's region.
    #[error("{length} bytes at offset {offset} are outside the peer's region of {region} bytes")]
    OutOfBounds {
        /// Start of the range.
        offset: u64,
        /// Its length.
        length: u64,
        /// Bytes of the region.
        region: u64,
    },
    /// The offset of a word is not aligned to its width.
    #[error("offset {offset} is not a multiple of {alignment}")]
    Misaligned {
        /// The offset.
        offset: u64,
        /// The alignment that is needed.
        alignment: u64,
    },
    /// An immediate put needs 1 to 8 bytes.
    #[error("an immediate put moves 1 to 8 bytes, not {length}")]
    InvalidLength {
        /// The requested length.
        length: u64,
    },
    /// Table 3.1 does not have this combination of notifications.
    #[error("{command:?} has no responder to notify")]
    InvalidNotification {
        /// The operation.
        command: Command,
    },
    /// The local range leaves the local region, or is not aligned.
    #[error("local region: {0}")]
    Local(#[from] RegionError),
    /// The peer died or became unreachable before the operation completed.
    #[error("the peer is down")]
    PeerDown,
    /// The handle names no peer of this endpoint.
    #[error("not a peer of this endpoint")]
    UnknownPeer,
    /// A vectored operation has no range.
    #[error("a vectored operation needs at least one range")]
    Empty,
    /// [`crate::Endpoint::cancel`] ended the operation before anything of it left.
    #[error("the operation was cancelled; nothing of it was done")]
    Cancelled,
    /// A connect failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A grant or a revocation failed.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// A change of a group failed.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// An invitation failed.
    #[error(transparent)]
    Invite(#[from] InviteError),
    /// The provider of the network under the transport refused.
    #[error("the network's provider refused: {reason}")]
    Provider {
        /// The provider's reason.
        reason: String,
    },
    /// The broker did not answer, or it refused.
    #[error("the node daemon could not resolve the key: {reason}")]
    Broker {
        /// The broker's reason.
        reason: String,
    },
}

/// Why a window could not be opened, or an access through it failed: the errors of a put or get.
pub type WindowError = OperationError;
