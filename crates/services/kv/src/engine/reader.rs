//! Reads of a store that others write: those of a backup, from the tables that were shipped to it
//! and an index, in memory, of the log behind them. It begins with the first read, so that a backup
//! that nobody reads has none.
//!
//! Always true: readers see all batches up to the newest acknowledged one, each whole, and nothing
//! of later ones, or they are refused. A file that goes is removed when no reader needs it; after
//! [`Reader::retire`] nobody reads, and no file is removed any more.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::RwLock;

use super::Options;
use super::read::scan_view;
use super::recover::{load, slot_of};
use super::view::{Frozen, Place, View};
use crate::disk::{Disk, DiskFile};
use crate::format::{Epoch, Region, damaged};
use crate::manifest::{Edit, Position};
use crate::record::{HEADER_BYTES, Header, Record};
use crate::segment::{Segment, name_of};
use crate::slot::Pointer;
use crate::store::{Pair, StoreError};
use crate::table::{BlockCache, Table};

/// Most bytes of changes that came and are not acknowledged. A reader that has more retires.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// A reader.
pub struct Reader {
    disk: Arc<dyn Disk>,
    options: Options,
    region: Region,
    cache: Arc<BlockCache>,
    /// None when it has retired.
    shown: RwLock<Option<Shown>>,
}

/// The store as readers see it, and what is not shown yet.
struct Shown {
    view: View,
    /// The end of the log that the view has.
    end: Position,
    /// The newest batch that came.
    came: u64,
    /// The newest batch that is acknowledged.
    acknowledged: u64,
    steps: VecDeque<Step>,
    waiting_bytes: usize,
}

/// A change that came.
enum Step {
    /// A batch: keys with their slots.
    Batch { end: Position, changes: Vec<(Vec<u8>, Box<[u8]>)>, bytes: usize },
    /// An edit of the manifest, with the tables that it adds and their levels.
    Edit { edit: Edit, tables: Vec<(usize, Arc<Table>)> },
}

impl Reader {
    /// Reads what is on a disk. Nobody reads it before all of that is acknowledged.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn open(disk: &Arc<dyn Disk>, options: &Options) -> Result<Self, StoreError> {
        let loaded = load(disk, options)?;
        let view = View {
            active: loaded.log.active,
            frozen: loaded.log.frozen,
            levels: Arc::new(loaded.levels),
            segments: Arc::new(loaded.segments),
        };
        let end = loaded.log.end;
        let steps = VecDeque::new();
        let shown = Shown { view, end, came: end.lsn, acknowledged: 0, steps, waiting_bytes: 0 };
        Ok(Self {
            disk: Arc::clone(disk),
            options: options.clone(),
            region: loaded.region,
            cache: loaded.cache,
            shown: RwLock::new(Some(shown)),
        })
    }

    /// A part of the log came, and was written to this file.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if it does not continue the log; the reader has to retire then.
    pub fn log(
        &self,
        (number, offset): (u64, u64),
        bytes: &[u8],
        file: &Arc<dyn DiskFile>,
    ) -> Result<(), StoreError> {
        let mut slot = self.shown.write();
        let Some(shown) = &mut *slot else { return Ok(()) };
        let broken = || damaged(&name_of(number), "a part came that does not continue the log");
        let mut at = 0;
        if offset == 0 {
            let header = Header::parse(bytes).filter(|header| header.number == number);
            let header = header.ok_or_else(broken)?;
            at = HEADER_BYTES;
            shown.add(Segment::new(&self.disk, Arc::clone(file), header, 0));
        }
        let segment = Arc::clone(shown.view.segment(number).ok_or_else(broken)?);
        let (header, seed) = (*segment.header(), segment.seed());
        let (mut changes, mut size) = (Vec::new(), 0);
        while at < bytes.len() {
            let parsed = Record::parse(&header, seed, &bytes[at..]);
            let (record, length) = parsed.ok_or_else(broken)?;
            let pointer = Pointer { segment: number, offset: offset + at as u64, length };
            let slot = slot_of(&record, pointer, self.options.in_place_bytes).bytes();
            size += record.key.len() + slot.len();
            changes.push((record.key.to_vec(), slot));
            at += length;
            if record.is_last {
                let end = Position { segment: number, offset: offset + at as u64, lsn: record.lsn };
                let changes = std::mem::take(&mut changes);
                let bytes = std::mem::take(&mut size);
                match record.lsn {
                    // A write that was done again.
                    lsn if lsn <= shown.came => {}
                    lsn if lsn == shown.came + 1 => {
                        shown.came = lsn;
                        shown.waiting_bytes += bytes;
                        shown.steps.push_back(Step::Batch { end, changes, bytes });
                    }
                    _ => return Err(broken()),
                }
            }
        }
        segment.set_written(segment.written().max(offset + bytes.len() as u64));
        shown.advance(self.options.level0_bytes);
        if shown.waiting_bytes > WAITING_BYTES_MAX {
            *slot = None;
        }
        Ok(())
    }

    /// The manifest has an edit. Returns the names of files that the edit makes superfluous and
    /// that the reader removes when it can.
    ///
    /// # Errors
    /// [`StoreError::Damaged`]; the reader has to retire then.
    pub fn edit(&self, edit: &Edit) -> Result<BTreeSet<String>, StoreError> {
        let mut slot = self.shown.write();
        let Some(shown) = &mut *slot else { return Ok(BTreeSet::new()) };
        let mut tables = Vec::new();
        for at in &edit.added {
            let table = Table::open(&self.disk, &self.cache, self.region, at.meta.clone())?;
            tables.push((usize::from(at.level), Arc::new(table)));
        }
        // Tables and segments of edits that are not shown yet are among those that are there later.
        let waiting = shown.steps.iter().filter_map(|step| match step {
            Step::Edit { tables, .. } => Some(tables.iter().map(|(_, table)| table)),
            Step::Batch { .. } => None,
        });
        let there = shown.view.levels.iter().flatten().chain(waiting.flatten());
        let is_gone = |id: (Epoch, u64)| {
            edit.removed.contains(&id) && !tables.iter().any(|(_, table)| id_of(table) == id)
        };
        let mut kept: BTreeSet<String> =
            there.filter(|table| is_gone(id_of(table))).map(|table| table.meta().name()).collect();
        let segments = edit.dropped.iter().filter(|it| shown.view.segment(**it).is_some());
        kept.extend(segments.map(|segment| name_of(*segment)));
        shown.steps.push_back(Step::Edit { edit: edit.clone(), tables });
        shown.advance(self.options.level0_bytes);
        Ok(kept)
    }

    /// All batches up to this one are acknowledged.
    pub fn acknowledge(&self, lsn: u64) {
        if let Some(shown) = &mut *self.shown.write() {
            shown.acknowledged = shown.acknowledged.max(lsn);
            shown.advance(self.options.level0_bytes);
        }
    }

    /// Nobody reads from now on.
    pub fn retire(&self) {
        *self.shown.write() = None;
    }

    /// Whether nobody reads any more.
    #[must_use]
    pub fn has_retired(&self) -> bool {
        self.shown.read().is_none()
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::NotServed`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.read(|view| match view.place(key, u64::MAX)? {
            None => Ok(None),
            Some(Place::Value(value)) => Ok(Some(value)),
            Some(Place::Logged(pointer)) => value(view, pointer, key).map(Some),
        })
    }

    /// At most `limit` pairs of a range in order, or from its end back.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::NotServed`].
    pub fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        self.read(|view| {
            let value = |pointer, key: &[u8]| value(view, pointer, key);
            scan_view(view, u64::MAX, (from, to), backward, limit, |_| Ok(()), value)
        })
    }

    fn read<T>(&self, read: impl FnOnce(&View) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let slot = self.shown.read();
        // After a join some of what is acknowledged may be on its way, and after an opening there
        // may be more than that.
        let shown = slot.as_ref().filter(|it| it.acknowledged == it.end.lsn);
        let not_yet = || StoreError::NotServed("this replica is not ready for reads".to_owned());
        read(&shown.ok_or_else(not_yet)?.view)
    }
}

/// The value that a pointer leads to.
fn value(view: &View, pointer: Pointer, key: &[u8]) -> Result<Vec<u8>, StoreError> {
    let unknown = || damaged(&name_of(pointer.segment), "a segment is missing");
    view.segment(pointer.segment).ok_or_else(unknown)?.value(pointer, key)
}

fn id_of(table: &Table) -> (Epoch, u64) {
    (table.meta().epoch, table.meta().id)
}

impl Shown {
    fn add(&mut self, segment: Segment) {
        let mut segments = (*self.view.segments).clone();
        segments.retain(|it| it.number() != segment.number());
        segments.push(Arc::new(segment));
        segments.sort_by_key(|it| it.number());
        self.view.segments = Arc::new(segments);
    }

    /// Shows all that is acknowledged.
    fn advance(&mut self, level0_bytes: usize) {
        while let Some(step) = self.steps.front() {
            // All that the tables of an edit have came before it, and is shown when its turn comes.
            if matches!(step, Step::Batch { end, .. } if end.lsn > self.acknowledged) {
                return;
            }
            match self.steps.pop_front() {
                Some(Step::Batch { end, changes, bytes }) => {
                    self.waiting_bytes -= bytes;
                    for (key, slot) in changes {
                        self.view.active.insert(&key, end.lsn, slot, None);
                    }
                    self.end = end;
                }
                Some(Step::Edit { edit, tables }) => self.apply(&edit, tables),
                None => {}
            }
            if self.view.active.bytes() >= level0_bytes {
                let level0 = std::mem::take(&mut self.view.active);
                self.view.frozen.push(Frozen { level0, end: self.end });
            }
        }
    }

    fn apply(&mut self, edit: &Edit, tables: Vec<(usize, Arc<Table>)>) {
        let mut levels = (*self.view.levels).clone();
        let stays = |id| tables.iter().any(|(_, table)| id_of(table) == id);
        for level in &mut levels {
            level.retain(|table| {
                let is_removed = edit.removed.contains(&id_of(table));
                if is_removed && !stays(id_of(table)) {
                    table.doom();
                }
                !is_removed
            });
        }
        for (number, table) in tables {
            if levels.len() <= number {
                levels.resize_with(number + 1, Vec::new);
            }
            let place = levels[number].partition_point(|it| it.meta().first < table.meta().first);
            levels[number].insert(place, table);
        }
        self.view.levels = Arc::new(levels);
        if let Some(watermark) = edit.watermark {
            self.view.frozen.retain(|frozen| frozen.end.lsn > watermark.lsn);
        }
        if !edit.dropped.is_empty() {
            let mut segments = (*self.view.segments).clone();
            segments.retain(|segment| {
                let is_dropped = edit.dropped.contains(&segment.number());
                if is_dropped {
                    segment.doom();
                }
                !is_dropped
            });
            self.view.segments = Arc::new(segments);
        }
    }
}
