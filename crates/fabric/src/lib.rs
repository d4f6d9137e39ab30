//! Layer 1: the interface between users of the fabric and transports.
//!
//! This crate has the vocabulary (addresses, keys, operations, notifications, events), the errors,
//! and the traits that a transport implements ([`Transport`], [`Endpoint`], [`Region`], [`Window`],
//! [`Lane`]). It depends on nothing else of weft, and uses no clock, thread, socket or file. These
//! traits name no operating system; what a transport offers on a host is in [`HostMemory`],
//! [`HostWindow`], [`Addressable`] and [`Watchable`].
//!
//! Source: 003 chapter 3 (RMA, VELO, SMFU, ATU, register file), 004 section 2.1.
//!
//! [`terms`] has the words of Extoll's NIC and of libfabric for each of these.
//!
//! # Promises of every transport
//! 1. *Delivery*: an accepted message or operation is delivered once, or its initiator gets an
//!    error, or the peer is reported down.
//! 2. *Order*: messages and notifications from one endpoint to another arrive in order. The data of
//!    a put is visible before its completer notification.
//! 3. *Flow control*: queues are bounded. A full queue is [`SendError::WouldBlock`], and
//!    [`Event::Room`] follows when there is room again.
//! 4. *Completion*: an operation that completed well is visible to whoever reads the target's
//!    memory from then on. See [`Capabilities::progress`] for the thread that it needs.
//! 5. *Waiting*: by polling, by an adaptive wait, or on a descriptor.
//! 6. *Failure*: a dead peer is [`Event::PeerDown`], which comes after all operations pending on it
//!    have completed with an error.
//! 7. *Protection*: an operation reaches only regions of the own partition, with the granted
//!    rights, inside their bounds, while their key is valid.
#![forbid(unsafe_code)]

mod address;
mod atomic;
mod blocking;
mod capabilities;
mod endpoint;
mod error;
mod event;
mod global_address;
mod host;
mod lane;
mod notify;
mod opening;
mod operation;
mod register;
mod service;
pub mod terms;
mod word;

pub use address::{EndpointAddress, Group, NodeId, PartitionId, Vpid};
pub use atomic::{Atomic, AtomicOperation, LockRequest, Width};
pub use blocking::{Blocking, PATIENCE};
pub use capabilities::{Capabilities, Progress};
pub use endpoint::{
    Armed, Audience, Endpoint, LocalRange, Peer, Region, Revoked, Source, Transport, Waited, Window,
};
pub use error::{
    ConnectError, GrantError, GroupError, InviteError, OpenError, OperationError, RegionError,
    RegisterError, SendError, WindowError, errno,
};
pub use event::{Completion, DownReason, Event, Filter, Message, Notification, Side};
pub use global_address::{GlobalAddressMap, Interval, Located, MapError, Mask};
pub use host::{Addressable, HostMemory, HostWindow, Watchable};
pub use lane::{
    Attention, Carry, Lane, LaneClosed, LaneFull, Medium, ReceiveCursor, SendCursor, Slot,
    Standing, WaitFor, Wake,
};
pub use notify::Notify;
pub use opening::{EndpointLimits, EndpointOptions, Partition, TrafficClass};
pub use operation::{
    Access, Command, Issued, MessageHeader, Operation, RemoteKey, Report, Signal, SignalChange,
    Target,
};
pub use register::Register;
pub use service::{InvalidName, ServiceName, Ticket};
pub use word::Word;
