//! The session between a primary and a backup.
//!
//! The primary opens it, with a [`Hello`]. The backup lends a pool of blocks that the primary
//! fills: each message of replication is one or more blocks, the last of which has a head of
//! [`LAST`]. The backup's messages are requests, which have an empty answer. The primary asks for
//! its lease by a request without a body; the code of the answer is [`GIVEN`] or [`REFUSED`]. The
//! head of the question is a [`Word`], or empty, and that of the answer the time of the backup:
//! thus the backup knows how old the word is, by its own clock, however long a question was on its
//! way.

use std::time::Duration;

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

/// The part of the primary's state that backups answer reads by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// The newest batch that is acknowledged.
    pub acknowledged: u64,
    /// The time that the backup said in its last answer: later than that the number was read.
    pub answered: Duration,
}

impl Word {
    /// The head of a question.
    pub fn emit(self) -> [u8; 16] {
        let mut head = [0; 16];
        head[..8].copy_from_slice(&self.acknowledged.to_le_bytes());
        head[8..].copy_from_slice(&emit_time(self.answered));
        head
    }

    /// Reads it back. `None` if the head is no word.
    pub fn parse(head: &[u8]) -> Option<Self> {
        let (number, time) = head.split_first_chunk::<8>()?;
        Some(Self { acknowledged: u64::from_le_bytes(*number), answered: parse_time(time)? })
    }
}

/// The time in an answer.
pub(super) fn emit_time(time: Duration) -> [u8; 8] {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).to_le_bytes()
}

/// Reads it back. `None` if the head is no time.
pub(super) fn parse_time(head: &[u8]) -> Option<Duration> {
    Some(Duration::from_nanos(u64::from_le_bytes(head.try_into().ok()?)))
}

/// The name of the protocol.
pub(super) fn protocol() -> ServiceName {
    ServiceName::new("weft-kv").expect("it is a name")
}

/// The name of the service of a node for a region. Its id has 40 hexadecimal digits.
pub(super) fn service_of(id: &str, region: u32) -> String {
    let name = format!("weft-kv-{}", &id[..id.len().min(24)]);
    if region == 0 { name } else { format!("{name}-{region}") }
}

/// The cluster of a hello, as the backups of a region know it.
pub(super) fn cluster_of_hello(cluster: &str, region: u32) -> String {
    if region == 0 { cluster.to_owned() } else { format!("{cluster}/{region}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_comes_back_and_other_heads_are_none() {
        let word = Word { acknowledged: 7, answered: Duration::from_nanos(u64::MAX) };
        assert_eq!(Word::parse(&word.emit()), Some(word));
        for head in [&[][..], &[1; 15], &[1; 17]] {
            assert_eq!(Word::parse(head), None);
            assert_eq!(parse_time(head), None);
        }
    }
}
