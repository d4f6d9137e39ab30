//! Layer 4: serves block storage.
//!
//! | module | what it is |
//! |---|---|
//! | `server`, `reactor`, `connection` | a thread for each processor, and the connections of each |
//! | `ring` | reads and writes of files by io_uring, on the thread of their connection |
//! | `workers` | threads that wait for the store of one unit |
//! | `fabric` | targets over the fabric: a thread for each endpoint |
//! | `memory`, `file`, [`remote`] | stores |
//! | `socket`, `listeners` | sockets of TCP and of UNIX, and places to listen at |
//! | `configuration` | what is served: from the command line or a file |
//! | `service`, `control` | a server from its configuration, and its management |
//! | [`initiator`] | the initiator's side, for `weft block ls` |
//! | `mailbox` | messages for a thread that waits on descriptors |
//! | `keeper` | files that keep reservations |
//!
//! The protocols and the SCSI commands are state machines of `weft-block`; this crate gives them
//! bytes, time, threads and stores. May depend on every lower layer.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a surface owns its clock, threads and sockets")]

pub mod configuration;
mod connection;
pub mod control;
mod fabric;
mod file;
pub mod initiator;
mod keeper;
mod listeners;
mod mailbox;
mod memory;
mod reactor;
pub mod remote;
mod ring;
mod server;
pub mod service;
mod socket;
mod workers;

pub use fabric::service_name;
pub use file::{FileOptions, FileStore};
pub use listeners::unix_listener;
pub use memory::MemoryStore;
pub use reactor::Speaks;
pub use server::{CONNECTIONS_MAX, Running, Shared};
pub use socket::Listener;
