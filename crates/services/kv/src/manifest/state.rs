//! The content of a manifest: the tables, segments and places of a region, and how an edit changes
//! them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::format::Epoch;
use crate::table::TableMeta;

/// Most levels of tables.
pub const LEVELS_MAX: usize = 8;

/// A place between two batches of the log.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Position {
    /// Number of the segment.
    pub segment: u64,
    /// Offset in its file.
    pub offset: u64,
    /// The LSN of the last batch before it.
    pub lsn: u64,
}

/// A [`Joint::next`] that says that the log ends: what follows belongs to a join that did not end.
pub const NOWHERE: u64 = 0;

/// The log goes on in another segment than the next: behind the end that a recovery found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joint {
    /// The end. What is behind it in the segment was discarded.
    pub end: Position,
    /// Number of the segment in which the log goes on.
    pub next: u64,
}

/// A table of a level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableAt {
    /// The level, from 0 for level 1.
    pub level: u8,
    /// The table.
    pub meta: TableMeta,
}

/// One change of the state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edit {
    /// Tables that are there from now on.
    pub added: Vec<TableAt>,
    /// Epoch and id of tables that are not.
    pub removed: Vec<(Epoch, u64)>,
    /// Segments with the bytes of their records that tables point to.
    pub live: Vec<(u64, u64)>,
    /// Segments that are not needed any more.
    pub dropped: Vec<u64>,
    /// All batches before it are in tables.
    pub watermark: Option<Position>,
    /// The number for the next table.
    pub next_table: Option<u64>,
    /// The primary from now on.
    pub epoch: Option<Epoch>,
    /// Where the log goes on after a recovery.
    pub joints: Vec<Joint>,
    /// The boot of the machine on which the store was opened; it is open from now on.
    pub opened: Option<String>,
    /// The store was closed, and its log ends here.
    pub closed: Option<Position>,
}

/// The sum of all edits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Tables of each level in order of their keys; the first is level 1.
    pub levels: Vec<Vec<TableMeta>>,
    /// Segments that tables point to, with the bytes of those records.
    pub segments: BTreeMap<u64, u64>,
    /// All batches before it are in tables.
    pub watermark: Position,
    /// The number for the next table.
    pub next_table: u64,
    /// The newest primary.
    pub epoch: Epoch,
    /// Joints of the log behind the watermark.
    pub joints: Vec<Joint>,
    /// The boot of the machine on which the store was opened last.
    pub boot: String,
    /// Where the log ended when the store was closed.
    pub closed: Option<Position>,
}

impl State {
    /// Changes the state.
    ///
    /// # Errors
    /// The contradiction; the state is of no use then.
    pub fn apply(&mut self, edit: &Edit) -> Result<(), String> {
        for &(epoch, id) in &edit.removed {
            let is_it = |meta: &TableMeta| (meta.epoch, meta.id) == (epoch, id);
            let level = self.levels.iter_mut().find(|level| level.iter().any(is_it));
            let level = level.ok_or_else(|| format!("no table {epoch:x}-{id:x} to remove"))?;
            level.retain(|meta| !is_it(meta));
        }
        for TableAt { level, meta } in &edit.added {
            let level = usize::from(*level);
            if level >= LEVELS_MAX {
                return Err(format!("level {level}"));
            }
            if self.levels.len() <= level {
                self.levels.resize_with(level + 1, Vec::new);
            }
            let tables = &mut self.levels[level];
            let place = tables.partition_point(|other| other.first < meta.first);
            tables.insert(place, meta.clone());
            if tables.windows(2).any(|pair| pair[0].last >= pair[1].first) {
                return Err(format!("tables of level {} overlap", level + 1));
            }
        }
        self.segments.extend(edit.live.iter().copied());
        for segment in &edit.dropped {
            self.segments.remove(segment);
        }
        self.joints.extend_from_slice(&edit.joints);
        if let Some(watermark) = edit.watermark {
            self.watermark = watermark;
            self.joints.retain(|joint| joint.end >= watermark);
        }
        self.next_table = edit.next_table.unwrap_or(self.next_table);
        self.epoch = edit.epoch.unwrap_or(self.epoch);
        if let Some(boot) = &edit.opened {
            self.boot.clone_from(boot);
            self.closed = None;
        }
        self.closed = edit.closed.or(self.closed);
        Ok(())
    }

    /// The edit that makes this state of an empty one.
    #[must_use]
    pub fn as_edit(&self) -> Edit {
        let mut added = Vec::new();
        for (level, tables) in (0..).zip(&self.levels) {
            added.extend(tables.iter().map(|meta| TableAt { level, meta: meta.clone() }));
        }
        Edit {
            added,
            removed: Vec::new(),
            live: self.segments.iter().map(|(&segment, &bytes)| (segment, bytes)).collect(),
            dropped: Vec::new(),
            watermark: Some(self.watermark),
            next_table: Some(self.next_table),
            epoch: Some(self.epoch),
            joints: self.joints.clone(),
            opened: Some(self.boot.clone()),
            closed: self.closed,
        }
    }

    /// Bytes of the tables of each level.
    #[must_use]
    pub fn level_bytes(&self) -> Vec<u64> {
        self.levels.iter().map(|level| level.iter().map(|meta| meta.bytes).sum()).collect()
    }
}
