//! Layer 2: the one way to open endpoints on a host.
//!
//! An [`Opening`] says what a program wants, in a few words; it finds the node daemon, reads the
//! options, and opens the endpoint. Each front end opens its endpoints here. Tests and programs of
//! one process may give a broker of their own ([`Opening::by`]).
//!
//! | call | endpoint | reaches |
//! |---|---|---|
//! | [`Opening::open`] | [`AnyEndpoint`] | this host through memory, others through libfabric |
//! | [`Opening::open_near`] | [`NearEndpoint`] | this host |
//! | [`Opening::open_far`] | [`FarEndpoint`] | all hosts through libfabric |
//!
//! [`Opening::any`], [`Opening::near`] and [`Opening::far`] give the transport, for a program that
//! opens several.
//!
//! ```no_run
//! use weft_fabric::Endpoint;
//! use weft_open::Opening;
//!
//! let mut endpoint = Opening::named("my program")?.starting_daemon().open()?;
//! println!("this is endpoint {}", endpoint.address());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what |
//! |---|---|
//! | `opening` | [`Opening`] |
//! | `daemon` | finds the node daemon, asks it, starts one |
//! | `ports` | ports of libfabric that are opened when the first other host is wanted |
//! | `waiting` | [`Waiter`]: waits on an endpoint beside other descriptors |
//! | `error` | [`OpeningError`] |
//!
//! May depend on the core, the transports and `weft-layers`. It reads the environment, and starts
//! no thread but those of the transports.
//!
//! Source: `docs/design/014-opening.md`.
#![forbid(unsafe_code)]

mod daemon;
mod error;
mod opening;
mod ports;
mod waiting;

pub use daemon::{Daemon, HostStatus, control_socket};
pub use error::OpeningError;
pub use opening::{
    AnyEndpoint, AnyTransport, Driver, FarEndpoint, FarTransport, NearEndpoint, NearTransport,
    Opening, Source, shm_parameters,
};
pub use ports::HostPorts;
pub use waiting::{Waiter, Wakes, Woken};
