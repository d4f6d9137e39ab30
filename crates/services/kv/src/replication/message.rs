//! The messages between primary and backup of a region, over channels that keep the order.

use serde::{Deserialize, Serialize};

use crate::format::{Epoch, Region};
use crate::manifest::Edit;
use crate::table::TableMeta;

/// How far a segment goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEnd {
    /// Number of the segment.
    pub segment: u64,
    /// The primary that wrote it.
    pub epoch: Epoch,
    /// Bytes of it.
    pub end: u64,
}

/// All that a store has at one moment, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The region.
    pub region: Region,
    /// The edit that makes the state of the manifest.
    pub state: Edit,
    /// The segments.
    pub log: Vec<LogEnd>,
    /// The newest batch.
    pub lsn: u64,
}

/// One message. Each carries the epoch of the primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Primary: this is what you need in order to get in sync.
    Offer(Offer),
    /// Backup: of this I lack these tables, and these segments from these offsets on.
    Want {
        /// Epoch and id of tables.
        tables: Vec<(Epoch, u64)>,
        /// Segments with offsets.
        log: Vec<(u64, u64)>,
    },
    /// Primary: a table.
    Table {
        /// Its entry in the manifest.
        meta: TableMeta,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// Primary: a part of the log.
    Log {
        /// Number of the segment.
        segment: u64,
        /// Where the bytes begin.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
        /// The newest batch in them; `None` while a backup joins, or if more of a write follow.
        newest: Option<u64>,
    },
    /// Primary: all that was lacking is with you.
    Complete,
    /// Backup: my store is as the offer was.
    Joined {
        /// Its newest batch.
        lsn: u64,
    },
    /// Primary: my manifest has this edit; its tables were sent before.
    Edit(Edit),
    /// Backup: I have all batches up to this one.
    Delivered {
        /// The batch.
        lsn: u64,
    },
    /// Backup: there is a newer primary.
    Stale,
}

impl Message {
    /// Bytes of a table or of the log that it carries.
    #[must_use]
    pub fn bulk(&self) -> usize {
        match self {
            Self::Table { bytes, .. } | Self::Log { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }
}

/// A message with the epoch of the primary that sent it, or of the newest that the backup knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// The epoch.
    pub epoch: Epoch,
    /// The message.
    pub message: Message,
}

impl Envelope {
    /// The form on the wire.
    ///
    /// # Panics
    /// Never: an envelope is plain data.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("plain data")
    }

    /// Reads it back; `None` if the bytes are none.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (envelope, rest) = postcard::take_from_bytes(bytes).ok()?;
        rest.is_empty().then_some(envelope)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_refused_without_a_panic(bytes: Vec<u8>) {
            if let Some(envelope) = Envelope::parse(&bytes) {
                prop_assert_eq!(Envelope::parse(&envelope.emit()), Some(envelope));
            }
        }
    }
}
