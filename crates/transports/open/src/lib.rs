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
//! # Services and clients
//! A [`Service`] offers a name, and a [`Client`] on any host that is joined finds it by `NAME`,
//! `NAME@HOST` or the address of its endpoint ([`ServicePlace`]); both have a session
//! (`weft-session`). [`Client`] asks and waits, [`Service`] takes and answers. Programs that move
//! blocks, or wait for other things beside, have a loop with [`turn`].
//!
//! ```no_run
//! use std::time::Duration;
//! use weft_open::{Client, Opening, Service};
//!
//! // One program:
//! let mut echo = Service::offer(&Opening::named("an echo")?, "echo", &(1..=1))?;
//! while let Some(asked) = echo.next(None) {
//!     let _ = echo.answer(&asked, 0, b"", &[&asked.body]);
//! }
//! // Another, on any host:
//! let mut client = Client::connect(&Opening::named("a client")?, "echo@host2", "echo", &(1..=1))?;
//! println!("{:?}", client.ask(b"", &[b"hello"], Duration::from_secs(1))?.body);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what |
//! |---|---|
//! | `opening` | [`Opening`] |
//! | `daemon` | finds the node daemon, asks it, starts one |
//! | `ports` | ports of libfabric that are opened when the first other host is wanted |
//! | `waiting`, `clock` | [`Waiter`]: waits on an endpoint beside other descriptors |
//! | `place` | [`ServicePlace`]: where a service is, as people write it |
//! | `sessions` | [`Service`], [`Client`], [`turn`] |
//! | `counting` | [`Counting`]: counters that the daemon shows |
//! | `error` | [`OpeningError`] |
//!
//! May depend on the core, the transports and `weft-layers`. It reads the environment, and starts
//! no thread but those of the transports.
//!
//! Source: `docs/design/014-opening.md`.
#![forbid(unsafe_code)]

mod clock;
mod counting;
mod daemon;
mod error;
mod opening;
mod place;
mod ports;
mod sessions;
mod waiting;

pub use clock::now;
pub use counting::Counting;
pub use daemon::{Daemon, HostStatus, control_socket};
pub use error::OpeningError;
pub use opening::{
    AnyEndpoint, AnyTransport, Driver, FarEndpoint, FarTransport, NearEndpoint, NearTransport,
    Opening, Source, shm_parameters,
};
pub use place::ServicePlace;
pub use ports::HostPorts;
pub use sessions::{Answered, AskError, Asked, Client, Service, turn};
pub use waiting::{Waiter, Wakes, Woken};
