//! Layer 4: copies of trees of files between places, around the machines of `weft-transfer`.
//!
//! It owns what those do without: files, threads, connections and the clock. May depend on every
//! lower layer. Always true: what is done at a destination is done by names in directories that
//! were opened without following a link; a file is under its name only when it is whole.
//!
//! | module | what |
//! |---|---|
//! | `local` | both ends in this process |
//! | `assembly` | how ends are put together |
//! | `source_end`, `walk`, `reading`, `tops`, `pace` | the end that reads |
//! | `target_end`, `destination`, `journal_file` | the end that writes |
//! | `writing`, `making`, `metadata`, `shortcut` | what it does to files, and to all else |
//! | `link`, `inbox`, `workers` | what joins threads and ends |
//! | `near` | threads near the memory node of their device |
//! | `space` | the memory of a block |
//! | `root` | a directory that is not left |
//! | `place`, `remote` | places on other hosts, and copies from and to them |
//! | `line`, `channel`, `secure` | connections that carry frames; TLS |
//! | `fabric` | sessions of the fabric, with blocks that the writing end grants |
//! | `far`, `server`, `users` | the far end of a transfer, a server of a directory, and its users |
//! | `between`, `asker` | a transfer between two others: the end that asks for it, and those |
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a surface owns its clock, threads and sockets")]

mod asker;
mod assembly;
mod between;
mod channel;
mod destination;
mod error;
mod fabric;
mod far;
mod inbox;
mod journal_file;
mod line;
mod link;
mod local;
mod making;
mod metadata;
mod near;
mod pace;
mod place;
mod reading;
mod remote;
mod report;
mod root;
mod secure;
mod server;
mod shortcut;
mod source_end;
mod space;
mod target_end;
mod tops;
mod users;
mod walk;
mod workers;
mod writing;

pub use assembly::Settings;
pub use error::CopyError;
pub use place::{PORT, Place};
pub use remote::{Reach, Transport, copy};
pub use report::{Gauge, Outcome, Reporter, Stage, Way};
pub use server::{Clients, ServeOptions, Server, answer_standard};
