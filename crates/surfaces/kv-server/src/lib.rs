//! Layer 4: the server of `weft kv`: clients of the Redis protocol on TCP.
//!
//! One thread has all clients: it reads what they sent, carries the commands out in their order and
//! commits once for each turn. An answer is sent when the store said that all batches that were
//! taken before it are safe. If committing waits for devices or other nodes, another thread does
//! it, and the first one goes on with other clients.
//!
//! # Invariants
//! - No answer leaves before what it depends on is safe.
//! - Memory for each client is bounded: what it sends is not read above
//!   `client-query-buffer-limit`, and not carried out while [`OUTPUT_SOFT`] of answers wait for it.
//! - No client holds up others: each turn carries out a bounded part of what each one sent.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a surface owns its clock, threads and sockets")]

mod alone;
mod answers;
mod client;
mod clock;
mod cluster;
mod committer;
mod connection;
mod counts;
mod gauges;
mod listener;
mod turn;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use weft_kv::node::Node;
use weft_redis::Parameters;

pub use alone::Alone;
pub use client::{AskError, ask};
pub use cluster::{ClusterNode, ClusterSettings, Replicated, Replication, cluster_of, regions_in};
pub use connection::OUTPUT_SOFT;
pub use counts::Counts;
pub use listener::Listener;

/// How to serve.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The password that clients say; none needed if absent.
    pub password: Option<Vec<u8>>,
    /// The directory of the data, which CONFIG GET shows.
    pub directory: String,
    /// Limits.
    pub parameters: Parameters,
    /// The counts, which others watch.
    pub counts: Arc<Counts>,
}

/// Serves until SIGTERM, SIGINT or SHUTDOWN.
///
/// # Errors
/// When the machine refuses what is needed; clients are never the cause.
pub fn serve(listener: Listener, node: Arc<dyn Node>, settings: Settings) -> io::Result<()> {
    turn::Turns::new(listener, node, settings)?.run()
}

/// Listens at an address, with as many descriptors as the clients need.
///
/// # Errors
/// When the address is taken or not of this host.
pub fn listen(addresses: &[SocketAddr]) -> io::Result<Listener> {
    Listener::bind(addresses)
}
