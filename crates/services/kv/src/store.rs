//! A store, as a front end sees it: ordered pairs, batches that are whole also across a crash.

use std::ops::Bound;

/// The number of a batch in the order of its store. Numbers are dense and only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key has this value from now on.
    Put {
        /// At most [`KEY_LIMIT`] bytes.
        key: Vec<u8>,
        /// At most [`VALUE_LIMIT`] bytes.
        value: Vec<u8>,
    },
    /// The key has no value any more; it may have had none.
    Delete {
        /// At most [`KEY_LIMIT`] bytes.
        key: Vec<u8>,
    },
}

/// Most bytes of a key: 1 KiB of a user, and what a front end adds to it.
pub const KEY_LIMIT: usize = 4096;

/// Most bytes of a value: 32 MiB of a user, and what a front end adds to it.
pub const VALUE_LIMIT: usize = 64 << 20;

/// Why a store did not do what it was asked. The texts are for an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The device is full. Nothing of the batch happened; reads go on.
    #[error("no space left for {0}")]
    Full(String),
    /// The store refuses writes from now on, because the device failed. Nothing of the batch
    /// is acknowledged; reads go on.
    #[error("the store takes no writes: {0}")]
    ReadOnly(String),
    /// Bytes on the device are not those that were written.
    #[error("damaged: {0}")]
    Damaged(String),
    /// This node does not serve the key: it is not the primary, or has lost its lease. Nothing of
    /// the batch happened.
    #[error("not served here: {0}")]
    NotServed(String),
    /// The batch may have happened or not: its acknowledgement did not come.
    #[error("unknown outcome: {0}")]
    Unknown(String),
}

/// A pair that a scan found.
pub type Pair = (Vec<u8>, Vec<u8>);

/// The beginning of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peek {
    /// At most as many bytes as were asked for.
    pub start: Vec<u8>,
    /// Bytes of the whole value.
    pub length: usize,
}

/// An ordered store of pairs. Calls may come from any thread.
pub trait Store: Send + Sync {
    /// The value of a key, with all batches that [`write`](Self::write) took before.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::NotServed`].
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// The first `at_most` bytes of a value and its length. A store need not read the rest of a
    /// large value for it.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    fn peek(&self, key: &[u8], at_most: usize) -> Result<Option<Peek>, StoreError> {
        Ok(self.get(key)?.map(|mut value| {
            let length = value.len();
            value.truncate(at_most);
            Peek { start: value, length }
        }))
    }

    /// Takes a batch: all of its changes or none, also across a crash. Reads see it at once; it is
    /// acknowledged, and may be answered to a client, when [`commit`](Self::commit) of its number
    /// came back. So is whatever was read behind it.
    ///
    /// # Errors
    /// Any [`StoreError`]; nothing of the batch happened unless it is [`StoreError::Unknown`].
    fn write(&self, batch: Vec<Change>) -> Result<Lsn, StoreError>;

    /// Waits until all batches up to this one are as safe as the store's durability says (given to
    /// the operating system, in the memory of all replicas, synced). Calls from several threads
    /// share one round (group commit).
    ///
    /// # Errors
    /// [`StoreError::Unknown`], [`StoreError::ReadOnly`].
    fn commit(&self, upto: Lsn) -> Result<(), StoreError>;

    /// Whether [`commit`](Self::commit) comes back without waiting for a device or another node,
    /// as a rule. A front end then commits on the thread that executes.
    fn commit_is_quick(&self) -> bool {
        false
    }

    /// The number of the newest batch that was taken: a reader waits for it before it answers.
    /// After a commit that failed it is the number of the newest batch that is safe.
    fn newest(&self) -> Lsn;

    /// At most `limit` pairs with keys in the range, in order of their bytes; from the end of the
    /// range back if `backward`.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::NotServed`].
    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError>;

    /// As [`scan`](Self::scan), with the first `at_most` bytes of each value alone. A store need
    /// not read the rest of large values for it.
    ///
    /// # Errors
    /// As [`scan`](Self::scan).
    fn peek_scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
        at_most: usize,
    ) -> Result<Vec<(Vec<u8>, Peek)>, StoreError> {
        let peek = |(key, mut value): Pair| {
            let length = value.len();
            value.truncate(at_most);
            (key, Peek { start: value, length })
        };
        Ok(self.scan(from, to, backward, limit)?.into_iter().map(peek).collect())
    }
}
