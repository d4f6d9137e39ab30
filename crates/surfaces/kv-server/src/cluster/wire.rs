//! The session between a primary and a backup.
//!
//! The primary opens it, with a [`Hello`]. The backup lends a pool of blocks that the primary
//! fills: each message of replication is one or more blocks, the last of which has a head of
//! [`LAST`]. The backup's messages are requests, which have an empty answer. The primary asks for
//! its lease by a request without a body; the code of the answer is [`GIVEN`] or [`REFUSED`].

use serde::{Deserialize, Serialize};
use weft_fabric::ServiceName;
use weft_kv::format::Epoch;

/// The version of the protocol.
pub(super) const VERSION: u16 = 1;
/// Bytes of a block, and blocks of a pool. Memory: their product for each backup.
pub(super) const BLOCK_BYTES: u32 = 128 << 10;
pub(super) const BLOCKS: u32 = 64;
/// Most bytes of a message: a value of the longest size, with what a batch adds.
pub(super) const MESSAGE_BYTES_MAX: usize = 160 << 20;
/// The head of a block with the end of a message, and that of any other one.
pub(super) const LAST: &[u8] = &[1];
pub(super) const MORE: &[u8] = &[0];
/// Codes of answers about the lease.
pub(super) const GIVEN: u16 = 0;
pub(super) const REFUSED: u16 = 1;

/// The options of the hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The cluster.
    pub cluster: String,
    /// The epoch of the primary.
    pub epoch: Epoch,
}

/// The name of the protocol.
pub(super) fn protocol() -> ServiceName {
    ServiceName::new("weft-kv").expect("it is a name")
}

/// The name of the service of a node. Its id has 40 hexadecimal digits.
pub(super) fn service_of(id: &str) -> String {
    format!("weft-kv-{}", &id[..id.len().min(24)])
}
