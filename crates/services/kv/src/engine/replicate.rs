//! The requests of replication to an engine: for its writes, its inventory and its bytes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::log::Chunk;
use super::recover::load;
use super::{Core, Engine, Options, Snapshot};
use crate::disk::{Disk, read_error};
use crate::format::Epoch;
use crate::manifest::{Edit, Position};
use crate::replication::Shipper;
use crate::replication::message::{LogEnd, Offer};
use crate::store::StoreError;
use crate::table::TableMeta;

/// A part of the log on its way to its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Number of the segment.
    pub segment: u64,
    /// Where the bytes begin.
    pub offset: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// The inventory of a directory, without its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The newest primary.
    pub epoch: Epoch,
    /// The end of the log.
    pub end: Position,
    /// The tables.
    pub tables: Vec<TableMeta>,
    /// The segments, each up to its last whole batch.
    pub segments: Vec<LogEnd>,
}

/// The inventory of the store on a disk. Changes nothing.
///
/// # Errors
/// [`StoreError::Damaged`].
pub fn contents(disk: &Arc<dyn Disk>, options: &Options) -> Result<Contents, StoreError> {
    let loaded = load(disk, options)?;
    let end = |segment: &Arc<crate::segment::Segment>| LogEnd {
        segment: segment.number(),
        epoch: segment.header().epoch,
        end: segment.written(),
    };
    Ok(Contents {
        epoch: loaded.state.epoch,
        end: loaded.log.end,
        tables: loaded.state.levels.iter().flatten().cloned().collect(),
        segments: loaded.segments.iter().map(end).collect(),
    })
}

impl Engine {
    /// From now on this gets what is written; `None` ends it.
    pub fn set_shipper(&self, shipper: Option<Arc<dyn Shipper>>) {
        let _flusher = self.core.flusher.lock();
        let _manifest = self.core.manifest.lock();
        *self.core.shipper.write() = shipper;
    }

    /// The parts that a backup needs at this moment: `give` gets them before the shipper gets
    /// anything that was written later. The snapshot keeps the bytes.
    pub fn offer(&self, give: impl FnOnce(Offer, Snapshot)) {
        let core = &self.core;
        let _flusher = core.flusher.lock();
        let manifest = core.manifest.lock();
        let snapshot = Snapshot::new(core);
        let state = manifest.state();
        let is_needed =
            |number: u64| number >= state.watermark.segment || state.segments.contains_key(&number);
        let mut log: Vec<LogEnd> = Vec::new();
        for segment in &*snapshot.view().segments {
            if is_needed(segment.number()) && segment.written() > 0 {
                log.push(LogEnd {
                    segment: segment.number(),
                    epoch: segment.header().epoch,
                    end: segment.written(),
                });
            }
        }
        let lsn = core.committed.load(Ordering::Acquire);
        let mut edit = state.as_edit();
        edit.opened = None;
        edit.closed = None;
        give(Offer { region: core.region, state: edit, log, lsn }, snapshot);
    }
}

impl Snapshot {
    /// The bytes of a table of the view.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn table(&self, epoch: Epoch, id: u64) -> Result<(TableMeta, Vec<u8>), StoreError> {
        let mut tables = self.view().levels.iter().flatten();
        let table = tables.find(|table| (table.meta().epoch, table.meta().id) == (epoch, id));
        let table = table.ok_or_else(|| StoreError::Unknown("no such table".to_owned()))?;
        table.check()?;
        Ok((table.meta().clone(), table.bytes()?))
    }

    /// The bytes of a segment of the view from an offset to an end.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn log(&self, segment: u64, from: u64, to: u64) -> Result<Vec<u8>, StoreError> {
        let found = self.view().segment(segment);
        let found = found.ok_or_else(|| StoreError::Unknown("no such segment".to_owned()))?;
        let mut bytes = vec![0; usize::try_from(to.saturating_sub(from)).unwrap_or(0)];
        found.file().read_at(from, &mut bytes).map_err(|error| read_error(found.name(), &error))?;
        Ok(bytes)
    }
}

impl Core {
    pub(super) fn ship_log(&self, chunks: &[Chunk], newest: u64) {
        if let Some(shipper) = &*self.shipper.read() {
            let pieces: Vec<Piece<'_>> = chunks
                .iter()
                .map(|chunk| Piece {
                    segment: chunk.segment.number(),
                    offset: chunk.offset,
                    bytes: &chunk.bytes,
                })
                .collect();
            shipper.log(&pieces, newest);
        }
    }

    pub(super) fn ship_edit(&self, edit: &Edit, tables: Vec<(TableMeta, Vec<u8>)>) {
        if let Some(shipper) = &*self.shipper.read() {
            shipper.edit(edit, tables);
        }
    }

    pub(super) fn wait_for_backups(&self, lsn: u64) -> Result<(), StoreError> {
        let shipper = self.shipper.read().clone();
        shipper.map_or(Ok(()), |shipper| shipper.wait(lsn))
    }
}
