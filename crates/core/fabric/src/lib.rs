//! Layer 1: the interface between users of the fabric and transports.
//!
//! This crate has the vocabulary (addresses, keys, operations, notifications, events), the errors,
//! and the traits that a transport implements ([`Transport`], [`Endpoint`], [`Region`], [`Window`],
//! [`Lane`]). It depends on nothing else of weft, and uses no clock, thread, socket or file. These
//! traits name no operating system; what a transport offers on a host is in [`HostMemory`],
//! [`HostWindow`], [`Addressable`] and [`Watchable`].
//!
//! # Where to begin
//! A program opens an [`Endpoint`] at a [`Transport`], connects to peers, and has a loop in which
//! it polls. The example of [`Endpoint`] is a whole program; the one below is the loop of a sender.
//!
//! | to do this | use |
//! |---|---|
//! | send up to 120 bytes to one peer | [`Endpoint::send_short`] |
//! | the same to all members of a group | [`Endpoint::send_multicast`] |
//! | let peers reach memory | [`Endpoint::register`], [`Endpoint::grant`], [`Endpoint::revoke`] |
//! | write and read there | [`Endpoint::put`], [`Endpoint::get`] |
//! | change a word there | [`Endpoint::atomic`] |
//! | tell a peer that bytes are there | [`Operation::notify`], [`Endpoint::put_signal`] |
//! | say what comes before what | [`Endpoint::order`] |
//! | learn that all is visible | [`Endpoint::fence`], [`Endpoint::fence_all`] |
//! | sleep until something happens | [`Endpoint::wait`], or [`Endpoint::arm`] and a descriptor |
//! | have no loop yet | [`Blocking`] |
//! | register memory that exists already | [`HostMemory`] |
//! | meet programs of other users | [`Partition`] |
//! | use a peer's memory by load and store | [`Window`] |
//!
//! Every call ends at once in one of three ways. It is [`Issued::Done`]. It is [`Issued::Pending`],
//! and one [`Event::Completion`] with the caller's context follows. Or it fails with an error: if
//! that is `WouldBlock`, the program polls until [`Event::Room`] and tries again.
//!
//! ```
//! use weft_fabric::{
//!     Blocking, Endpoint, EndpointOptions, Event, MessageHeader, NodeId, PATIENCE, SendError,
//!     Transport,
//! };
//!
//! # let settings = weft_transport_sim::Settings::seeded(1);
//! # let world = weft_transport_sim::SimWorld::new(settings);
//! # let mut receiver = world.transport(NodeId(1), 1000).open(&EndpointOptions::default())?;
//! # let address = receiver.address();
//! let mut sender = world.transport(NodeId(0), 1000).open(&EndpointOptions::default())?;
//! let peer = sender.connect_within(address, PATIENCE)?;
//! let mut number = 0_u64;
//! while number < 1000 {
//!     match sender.send_short(peer, MessageHeader::tag(1), &[&number.to_le_bytes()]) {
//!         Ok(()) => number += 1,
//!         Err(SendError::WouldBlock) => {
//!             let mut has_room = false;
//!             while !has_room {
//! #               receiver.poll(64, &mut |_| {});
//!                 sender.wait(Some(PATIENCE));
//!                 sender.poll(64, &mut |event| {
//!                     has_room |= matches!(event, Event::Room { peer: of } if of == peer);
//!                 });
//!             }
//!         }
//!         Err(error) => return Err(error.into()),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Source: EXTOLL-THESIS#3 (RMA, VELO, SMFU, ATU, register file), ANGARA-ETH#2.1.
//!
//! [`terms`] has the words of Extoll's NIC and of libfabric for each of these.
//!
//! # Promises of every transport
//! 1. *Delivery*: an accepted message or operation is delivered once, or its initiator gets an
//!    error, or the peer is reported down.
//! 2. *Order*: messages and notifications from one endpoint to another arrive in order. The data of
//!    a put is visible before its completer notification.
//! 3. *Flow control*: queues are bounded. A full queue is [`SendError::WouldBlock`], and
//!    [`Event::Room`] follows when there is room again; for a message to a group it is
//!    [`Event::GroupRoom`].
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
mod host;
mod lane;
mod notify;
mod opening;
mod operation;
mod register;
mod request;
pub mod rules;
mod service;
pub mod terms;
mod word;

pub use address::{EndpointAddress, Group, NodeId, PartitionId, Vpid};
pub use atomic::{Atomic, AtomicOperation, Width};
pub use blocking::{Blocking, PATIENCE};
pub use capabilities::{Capabilities, Progress, Reach, Way};
pub use endpoint::{
    Armed, Audience, Endpoint, LocalRange, Peer, Region, Revoked, Source, Transport, Waited, Window,
};
pub use error::{
    ConnectError, GrantError, GroupError, InviteError, OpenError, OperationError, RegionError,
    RegisterError, SendError, WindowError, errno,
};
pub use event::{Completion, DownReason, Event, Filter, Message, Notification, Side};
pub use host::{Addressable, HostMemory, HostWindow, Watchable};
pub use lane::{
    Attention, Carry, Lane, LaneClosed, LaneFull, Medium, ReceiveCursor, SendCursor, Slot,
    Standing, WaitFor, Wake,
};
pub use notify::Notify;
pub use opening::{EndpointLimits, EndpointOptions, Partition, TrafficClass};
pub use operation::{
    Access, Command, Issued, MessageHeader, Operation, RemoteKey, Report, Signal, SignalChange,
    Target, Value,
};
pub use register::{Register, Timed};
pub use request::Request;
pub use service::{InvalidName, ServiceName, Ticket};
pub use word::Word;
