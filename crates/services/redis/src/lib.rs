//! Layer 3: the commands of Redis 7.0 over the store of `weft kv`, without I/O.
//!
//! [`Server`] has the clients and carries out their commands; a driver owns sockets, threads and
//! clocks, and sends answers when the store says that what they depend on is safe. The crate
//! imports the trait [`weft_kv::node::Node`] alone, so that the engine below can be any.
//!
//! # Invariants
//! - A command is one batch of the store, and so are all commands of an EXEC: all or nothing, also
//!   across a crash.
//! - An answer with MOVED, CLUSTERDOWN, CROSSSLOT, MISCONF or BUSY says that nothing was done.
//! - Each table that a client can fill is bounded by [`Parameters`].
#![forbid(unsafe_code)]

mod background;
mod call;
mod client;
mod commands;
mod configuration;
mod extended;
mod fault;
mod glob;
mod layout;
#[cfg(any(test, feature = "test-doors"))]
pub mod memory;
mod number;
mod server;
pub mod slot;
mod slots;
mod table;
mod transaction;

pub use client::{Held, Peer};
pub use configuration::Parameters;
pub use server::{Clock, Gauges, REDIS_VERSION, Server, Settings, Totals, Verdict};

#[cfg(test)]
mod tests;
