//! Layer 2: the deterministic simulator, a fabric in virtual time inside one process.
//!
//! A [`SimWorld`] has nodes, links and endpoints. A [`SimTransport`] is the fabric as seen by the
//! programs of one user on one node. [`SimEndpoint`] implements all of `weft_fabric::Endpoint`. The
//! crate may depend on `weft-fabric`, on `weft-options` for the rules of services, on `weft-
//! network` and what that needs, and on a seeded random generator. It uses no clock, thread,
//! socket or file.
//!
//! Two nodes have a private link, unless [`Settings::network`] names a graph: then packets go over
//! its links.
//!
//! Source: EXTOLL-THESIS#3, as far as `weft-fabric` promises it; links after EXTOLL-THESIS#3.1.
//!
//! # Invariants
//! - The same seed and the same calls give exactly the same run. [`SimWorld::digest`] verifies it.
//! - Time passes only in [`SimWorld::advance`], [`SimWorld::step`], [`SimWorld::run`],
//!   `Endpoint::wait` and accesses through a [`SimWindow`].
//! - Messages and notifications from one endpoint to another arrive in order, and so do operations
//!   where [`Settings::ordered`] says so.
//! - Credits bound every queue. [`Settings`] has the limits.
//!
//! ```
//! use std::time::Duration;
//! use weft_fabric::{Blocking, Endpoint, EndpointOptions, Event, MessageHeader, NodeId, Transport};
//! use weft_transport_sim::{Settings, SimWorld};
//!
//! let world = SimWorld::new(Settings::seeded(7));
//! let options = EndpointOptions::default();
//! let mut ping = world.transport(NodeId(0), 1000).open(&options)?;
//! let mut pong = world.transport(NodeId(1), 1000).open(&options)?;
//! let peer = ping.connect_within(pong.address(), Duration::from_secs(1))?;
//! ping.send_short(peer, MessageHeader::tag(1), &[b"hello"])?;
//! world.advance(2_000);
//! let mut heard = Vec::new();
//! pong.poll(8, &mut |event| {
//!     if let Event::Message(message) = event {
//!         heard.extend_from_slice(message.payload);
//!     }
//! });
//! assert_eq!(heard, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod atomic;
mod attr;
mod census;
mod completion;
mod control;
mod domain;
mod endpoint;
mod fault;
mod memory;
mod msg;
mod network;
mod opening;
mod pressure;
mod progress;
mod rma;
mod trace;
mod window;
mod world;

pub use attr::{Link, Settings};
pub use census::Census;
pub use domain::SimTransport;
pub use endpoint::SimEndpoint;
pub use memory::SimRegion;
pub use network::NetworkSettings;
pub use trace::{Entry, Kind};
pub use window::SimWindow;
pub use world::SimWorld;
