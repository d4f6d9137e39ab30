//! Replication of a region: a primary that compacts, and backups that receive its log and its
//! finished tables (Send-Index, RED-SEA-D2.3#2.1).
//!
//! Segments and tables have logical addresses, so the bytes of all replicas are the same: a backup
//! writes what it receives, reads no table and sorts nothing. It has no level 0. Its directory is
//! at each moment one that [`crate::engine`] can open: promotion is recovery.
//!
//! | module | what |
//! |---|---|
//! | [`message`] | what primary and backup say |
//! | [`primary`] | who has which batch, when one is acknowledged, who is in sync; without I/O |
//! | [`replica`] | the files of a backup |
//! | [`builder`] | a backup that builds its index itself, for comparison |
//!
//! Always true:
//! - A batch is acknowledged when the primary's system has it, and each backup that counts.
//! - A backup counts from its [`message::Message::Joined`] on, before the record of the cluster
//!   says that it is in sync; it ceases to count after the record says that it is not.
//! - A message of a lower epoch changes nothing, and is answered by [`message::Message::Stale`].

pub mod builder;
pub mod message;
pub mod primary;
pub mod replica;

use crate::engine::Piece;
use crate::manifest::Edit;
use crate::store::StoreError;
use crate::table::TableMeta;

/// Gets what a primary's engine writes, in its order. Calls come with locks of the engine: they
/// must not call it.
pub trait Shipper: Send + Sync {
    /// A part of the log is about to be written here.
    fn log(&self, pieces: &[Piece<'_>], newest: u64);

    /// The manifest has this edit; the tables that it adds follow with their bytes.
    fn edit(&self, edit: &Edit, tables: Vec<(TableMeta, Vec<u8>)>);

    /// Waits until a batch that is written here is in the memory of all that count.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if that cannot be said any more.
    fn wait(&self, lsn: u64) -> Result<(), StoreError>;
}
