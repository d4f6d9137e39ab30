//! Layer 4: serves block storage.
//!
//! | module | what it is |
//! |---|---|
//! | `server`, `reactor` | a thread for each processor, and the connections of each |
//! | `workers` | threads that wait for the store of one unit |
//! | `memory`, `file` | stores |
//! | `socket` | sockets of TCP and of UNIX |
//! | `configuration` | what is served: from the command line or a file |
//! | `service`, `control` | a server from its configuration, and its management |
//! | [`initiator`] | the initiator's side, for `weft block ls` |
//! | `keeper` | files that keep reservations |
//!
//! The protocols and the SCSI commands are state machines of `weft-block`; this crate gives them
//! bytes, time, threads and stores. May depend on every lower layer.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a surface owns its clock, threads and sockets")]

pub mod configuration;
pub mod control;
mod file;
pub mod initiator;
mod keeper;
mod memory;
mod reactor;
mod server;
pub mod service;
mod socket;
mod workers;

pub use file::{FileOptions, FileStore};
pub use memory::MemoryStore;
pub use reactor::Speaks;
pub use server::{CONNECTIONS_MAX, Running, Shared};
pub use socket::Listener;
