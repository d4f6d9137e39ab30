//! The server's side of NBD without I/O: fixed newstyle handshake, then transmission.
//!
//! Source: the NBD protocol document (NetworkBlockDevice/nbd, doc/proto.md). Replies may come in
//! another order than requests. A flush covers what was answered before it, on all connections, so
//! clients may use several (`NBD_FLAG_CAN_MULTI_CONN`).

mod handshake;
mod server;
mod transmission;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use server::{Event, Server, Start};
pub use transmission::Ticket;

use crate::scsi::Unit;

/// Bytes of one request at most.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// Bytes of data that a connection holds before no more requests are read.
pub const HELD_BYTES_MAX: usize = 64 << 20;
/// Requests of a connection that are open at a time.
pub const REQUESTS_MAX: usize = 256;

/// The exports of a server.
pub trait Exports: Send + Sync + std::fmt::Debug {
    /// The unit of a name; the empty name is the default.
    fn find(&self, name: &str) -> Option<Arc<Unit>>;
    /// All names.
    fn names(&self) -> Vec<String>;
}
