//! Layer 1: what the fabric is, for those who use it and those who carry it.
//!
//! This crate holds the vocabulary (addresses, keys, operations, notifications, events), the
//! errors, and the traits that a transport implements ([`Transport`], [`Endpoint`], [`Region`],
//! [`Window`], [`Lane`]). It may depend on nothing of weft's and on no operating system: no clock,
//! thread, socket or file is named here.
//!
//! Source: 003 chapter 3 (RMA, VELO, SMFU, ATU, register file), 004 section 2.1.
//!
//! # What every transport promises
//! 1. *Delivery*: what was accepted is delivered once, or its initiator is told, or the peer is
//!    reported down.
//! 2. *Order*: messages and notifications from one endpoint to another arrive in order; the data
//!    of a put is visible before its completer notification.
//! 3. *Flow control*: queues are bounded; a full one is [`SendError::WouldBlock`], followed by
//!    [`Event::Room`] when it is worth another try.
//! 4. *Progress*: see [`Capabilities::progress`].
//! 5. *Waiting*: poll, adaptive wait or a descriptor.
//! 6. *Failure*: a dead peer is [`Event::PeerDown`], after every operation pending on it ended.
//! 7. *Protection*: only regions of the own partition, with the granted rights, inside their
//!    bounds, while their key is valid.
#![forbid(unsafe_code)]

mod address;
mod capabilities;
mod endpoint;
mod error;
mod event;
mod global_address;
mod lane;
mod operation;
mod register;

pub use address::{EndpointAddress, Group, NodeId, PartitionId, Vpid};
pub use capabilities::{Capabilities, Progress};
pub use endpoint::{
    Armed, Endpoint, EndpointOptions, Peer, Region, Source, Transport, Waited, Window,
};
pub use error::{
    ConnectError, GrantError, GroupError, OpenError, OperationError, RegionError, RegisterError,
    SendError, WindowError, errno,
};
pub use event::{Completion, Event, Filter, Message, Notification, Side};
pub use global_address::{GlobalAddressMap, Interval, Located, MapError, Mask};
pub use lane::{Attention, Lane, LaneClosed, LaneFull, ReceiveCursor, SendCursor, Slot, WaitFor};
pub use operation::{
    Access, Atomic, AtomicOperation, Command, Issued, LockRequest, MessageHeader, Notify,
    RemoteKey, Target, Width,
};
pub use register::Register;
