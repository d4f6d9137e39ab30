//! The view of readers: levels 0, tables and segments at one moment.

use std::sync::Arc;

use super::cursor::{Level0Cursor, LevelCursor, Merge, Source};
use crate::level0::Level0;
use crate::manifest::Position;
use crate::segment::Segment;
use crate::slot::{Pointer, Slot};
use crate::store::StoreError;
use crate::table::{Table, hash};
use std::ops::Bound;

/// The parts of a store at one moment. What it holds is not removed while it is held.
#[derive(Clone)]
pub struct View {
    /// The level 0 that is written.
    pub active: Arc<Level0>,
    /// Levels 0 on their way to level 1, the oldest first.
    pub frozen: Vec<Frozen>,
    /// Tables of each level in order of their keys; the first is level 1.
    pub levels: Arc<Vec<Vec<Arc<Table>>>>,
    /// Segments in order of their numbers.
    pub segments: Arc<Vec<Arc<Segment>>>,
}

/// A level 0 that does not change any more.
#[derive(Clone)]
pub struct Frozen {
    /// Its pairs.
    pub level0: Arc<Level0>,
    /// The end of the log when it was frozen.
    pub end: Position,
}

/// The entry of a key in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is in the index itself.
    Value(Vec<u8>),
    /// It is in the log.
    Logged(Pointer),
}

fn place(slot: &[u8]) -> Option<Place> {
    match Slot::parse(slot) {
        Some(Slot::Value(value)) => Some(Place::Value(value.to_vec())),
        Some(Slot::Logged(pointer)) => Some(Place::Logged(pointer)),
        Some(Slot::Deleted) | None => None,
    }
}

impl View {
    /// Where the value of a key is for a reader at this LSN.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn place(&self, key: &[u8], lsn: u64) -> Result<Option<Place>, StoreError> {
        if let Some(found) = self.active.get(key, lsn, place) {
            return Ok(found);
        }
        for frozen in self.frozen.iter().rev() {
            if let Some(found) = frozen.level0.get(key, lsn, place) {
                return Ok(found);
            }
        }
        let hash = hash(key);
        for level in &*self.levels {
            let number = level.partition_point(|table| *table.meta().last < *key);
            if let Some(table) = level.get(number).filter(|table| table.covers(key))
                && let Some(found) = table.get(key, hash, place)?
            {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The segment of a number.
    #[must_use]
    pub fn segment(&self, number: u64) -> Option<&Arc<Segment>> {
        let at = self.segments.binary_search_by_key(&number, |segment| segment.number());
        at.ok().map(|at| &self.segments[at])
    }

    /// All keys of a range with their slots, for a reader at this LSN.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn merge(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        is_backward: bool,
        lsn: u64,
    ) -> Result<Merge<'static>, StoreError> {
        let mut sources = Vec::new();
        let levels0 = self.frozen.iter().rev().map(|frozen| &frozen.level0);
        for level0 in std::iter::once(&self.active).chain(levels0) {
            let cursor = Level0Cursor::new(Arc::clone(level0), from, to, is_backward, lsn);
            sources.push(Source::Level0(cursor));
        }
        let start = if is_backward { to } else { from };
        for level in 0..self.levels.len() {
            let levels = Arc::clone(&self.levels);
            sources.push(Source::Level(LevelCursor::seek(levels, level, start, is_backward)?));
        }
        Ok(Merge::new(sources, is_backward))
    }
}
