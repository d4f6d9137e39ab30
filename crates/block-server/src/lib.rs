//! Layer 4: serves block storage.
//!
//! | module | what it is |
//! |---|---|
//! | `server`, `reactor` | a thread for each processor, and the connections of each |
//! | `workers` | threads that wait for the store of one unit |
//! | `memory`, `file` | stores |
//! | `socket` | sockets of TCP and of UNIX |
//! | `configuration` | what is served: from the command line or a file |
//!
//! The protocols and the SCSI commands are state machines of `weft-block`; this crate gives them
//! bytes, time, threads and stores. May depend on every lower layer.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a surface owns its clock, threads and sockets")]

mod file;
mod memory;
mod reactor;
mod server;
mod socket;
mod workers;

pub use file::{FileOptions, FileStore};
pub use memory::MemoryStore;
pub use reactor::Speaks;
pub use server::{CONNECTIONS_MAX, Running, Shared};
pub use socket::Listener;
