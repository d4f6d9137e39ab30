//! Layer 1: libfabric at run time.
//!
//! weft is built without libfabric and runs without it. [`Library::load`] opens `libfabric.so.1`
//! when a program needs it. [`Library::offers`] says what its providers offer here, and a [`Port`]
//! is one endpoint of one provider: it sends and receives short messages, and writes and reads
//! memory of peers. All calls into libfabric are in this crate, behind an interface that is safe.
//!
//! May depend on `weft-memory` and the operating system.
//!
//! Source: the manual pages fi_getinfo(3), fi_endpoint(3), fi_msg(3), fi_rma(3), fi_cq(3), fi_mr(3)
//! and fi_av(3) of libfabric 1.17.
//!
//! # Invariants
//! - Memory that the own operations use is kept until the provider said that they are over, or its
//!   endpoint is closed.
//! - The addresses of memory that peers could reach are kept until the endpoint is closed: the end
//!   of a registration does not end an operation of a peer. The exception is told by the caller
//!   ([`Port::deregister_settled`]).
//! - What the provider refuses to close stays for good, and all that it uses.
//! - Only addresses and registrations that the port itself has reach the provider: the numbers that
//!   callers have for them are never used again.
//! - Objects are closed before those that they were made of.
//! - One thread at a time uses a port and what was made of it.

#[allow(missing_docs, reason = "the names are those of libfabric's manual pages")]
pub mod abi;
mod apart;
mod error;
mod graveyard;
mod handlers;
mod library;
mod listening;
mod monitor;
mod objects;
mod offer;
mod peers;
mod port;
mod registered;
mod slots;
mod waits;

pub use apart::keep_apart;
pub use error::Error;
pub use library::Library;
pub use offer::{Offer, Progress, Wanted};
pub use peers::Peer;
pub use port::{Port, PortOptions, Refused, Registration, Report, Spot};
pub use registered::Rights;
