//! Level 0 goes to level 1, and how tables are written and installed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Core;
use super::cursor::{FrozenPairs, LevelCursor, Merge, Source};
use super::view::{Frozen, View};
use crate::disk::write_error;
use crate::manifest::{Edit, Position, TableAt};
use crate::slot::Slot;
use crate::store::StoreError;
use crate::table::{Builder, Built, Table, TableMeta};

/// The output of a merge: tables, and how many bytes of each segment are used more or less.
#[derive(Default)]
pub(super) struct Output {
    pub tables: Vec<Arc<Table>>,
    pub live: BTreeMap<u64, i64>,
    /// The bytes of the tables, if there are backups.
    pub bytes: Vec<(TableMeta, Vec<u8>)>,
}

impl Output {
    /// Counts a pointer that tables have from now on, or have no more.
    fn count(&mut self, slot: &[u8], sign: i64) {
        if let Some(pointer) = Slot::pointer_of(slot) {
            let bytes = i64::try_from(pointer.length).unwrap_or(i64::MAX);
            *self.live.entry(pointer.segment).or_default() += sign * bytes;
        }
    }
}

/// A change of the tables: what a job read, and what it made.
pub(super) struct Change {
    /// The frozen levels 0 that are in tables now.
    pub frozen: usize,
    pub removed: Vec<Arc<Table>>,
    /// The level of the new tables, from 0 for level 1.
    pub level: usize,
    pub output: Output,
}

impl Core {
    /// Brings the levels 0 that are frozen now to level 1.
    pub(super) fn flush_frozen(&self) -> Result<(), StoreError> {
        let view = self.view();
        let Some(end) = view.frozen.last().map(|frozen| frozen.end) else { return Ok(()) };
        self.commit(end.lsn)?;
        let overlapping = overlap(&view.frozen, view.levels.first().map_or(&[], Vec::as_slice));
        let guards: Vec<_> = view.frozen.iter().rev().map(|frozen| frozen.level0.read()).collect();
        let mut sources: Vec<Source<'_>> = Vec::new();
        for guard in &guards {
            let pairs: FrozenPairs<'_> = Box::new(guard.iter());
            sources.push(Source::Frozen(pairs.peekable()));
        }
        let from_memory = sources.len();
        sources.push(Source::Level(LevelCursor::whole(overlapping.clone())?));
        self.count_read(&overlapping);
        let output = self.merge(Merge::new(sources, false), from_memory, 0, &view)?;
        drop(guards);
        let change = Change { frozen: view.frozen.len(), removed: overlapping, level: 0, output };
        self.install(change, Some(end))?;
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn flush_all(&self) -> Result<(), StoreError> {
        while !self.view.read().frozen.is_empty() {
            if !self.work()? {
                // Another thread is at it.
                let mut jobs = self.jobs.lock();
                self.room.wait_for(&mut jobs, std::time::Duration::from_millis(20));
            }
            self.check_failure()?;
        }
        Ok(())
    }

    pub(super) fn count_read(&self, tables: &[Arc<Table>]) {
        let bytes = tables.iter().map(|table| table.meta().bytes).sum();
        self.counters.compaction_read.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Merges sources into tables of a level. The first `from_memory` sources are levels 0, whose
    /// pointers no table has yet.
    pub(super) fn merge(
        &self,
        mut merge: Merge<'_>,
        from_memory: usize,
        level: usize,
        view: &View,
    ) -> Result<Output, StoreError> {
        let mut output = Output::default();
        let mut builder: Option<Builder> = None;
        let deeper = view.levels.get(level + 1..).unwrap_or_default();
        while let Some((source, key, slot)) = merge.entry() {
            let is_needed = !Slot::is_deleted(slot) || deeper.iter().any(|level| has(level, key));
            if is_needed {
                let builder = builder.get_or_insert_with(|| self.new_table());
                builder.push(key, slot);
                if source < from_memory {
                    output.count(slot, 1);
                }
            }
            merge.step(|source, slot| {
                if source >= from_memory {
                    output.count(slot, -1);
                }
            })?;
            let is_full = |it: &mut Builder| it.bytes() >= self.options.table_bytes;
            if let Some(full) = builder.take_if(is_full) {
                self.add_table(full.finish(), &mut output)?;
            }
        }
        if let Some(last) = builder {
            self.add_table(last.finish(), &mut output)?;
        }
        Ok(output)
    }

    fn add_table(&self, built: Built, output: &mut Output) -> Result<(), StoreError> {
        output.tables.push(self.write_table(&built)?);
        if self.shipper.read().is_some() {
            output.bytes.push((built.meta, built.bytes));
        }
        Ok(())
    }

    fn new_table(&self) -> Builder {
        let mut jobs = self.jobs.lock();
        let id = jobs.next_table;
        jobs.next_table += 1;
        Builder::new(self.region, jobs.epoch, id)
    }

    /// Writes and syncs a table. One that no manifest names is removed at the next opening.
    fn write_table(&self, built: &Built) -> Result<Arc<Table>, StoreError> {
        let name = built.meta.name();
        let written = (|| {
            let file = self.disk.create(&name, built.meta.bytes)?;
            file.write_at(0, &built.bytes)?;
            Ok::<_, std::io::Error>(file)
        })();
        let file = match written {
            Ok(file) => file,
            Err(error) => {
                let _ = self.disk.remove(&name);
                return Err(write_error(&name, &error));
            }
        };
        file.sync().map_err(|error| StoreError::ReadOnly(format!("{name}: {error}")))?;
        self.counters.table_written.fetch_add(built.meta.bytes, Ordering::Relaxed);
        Table::open(&self.disk, &self.cache, self.region, built.meta.clone()).map(Arc::new)
    }

    /// Syncs the log up to a place, so that tables may point to it.
    pub(super) fn sync_log(&self, end: Position) -> Result<(), StoreError> {
        let from = self.manifest.lock().state().watermark.segment;
        let view = self.view();
        for segment in &*view.segments {
            if (from..=end.segment).contains(&segment.number()) {
                let synced = segment.file().sync();
                synced.map_err(|error| {
                    StoreError::ReadOnly(format!("{}: {error}", segment.name()))
                })?;
            }
        }
        Ok(())
    }

    /// Makes a change lasting, then visible, and removes what nobody needs.
    pub(super) fn install(
        &self,
        mut change: Change,
        watermark: Option<Position>,
    ) -> Result<(), StoreError> {
        if let Some(end) = watermark {
            self.sync_log(end)?;
        }
        self.disk
            .sync_names()
            .map_err(|error| StoreError::ReadOnly(format!("the directory: {error}")))?;
        let next_table = self.jobs.lock().next_table;
        let mut manifest = self.manifest.lock();
        let mut edit = Edit { watermark, next_table: Some(next_table), ..Edit::default() };
        let level = u8::try_from(change.level).expect("few levels");
        let at = |table: &Arc<Table>| TableAt { level, meta: table.meta().clone() };
        edit.added = change.output.tables.iter().map(at).collect();
        edit.removed =
            change.removed.iter().map(|table| (table.meta().epoch, table.meta().id)).collect();
        let state = manifest.state();
        let limit = watermark.unwrap_or(state.watermark).segment;
        let ended = state.watermark.segment..limit;
        let mut live = state.segments.clone();
        for (&segment, &bytes) in &change.output.live {
            // A segment that was collected may still be pointed to by old tables, in vain.
            if bytes > 0 || live.contains_key(&segment) {
                let value = live.entry(segment).or_default();
                *value = value.saturating_add_signed(bytes);
                edit.live.push((segment, *value));
            }
        }
        edit.dropped.extend(self.unused(limit, &live));
        edit.live.retain(|(segment, _)| !edit.dropped.contains(segment));
        manifest.commit(&edit)?;
        self.ship_edit(&edit, std::mem::take(&mut change.output.bytes));
        self.show(&change, &edit.dropped, &ended);
        drop(manifest);
        self.wake();
        Ok(())
    }

    /// Segments before the watermark that no table points to.
    fn unused(&self, limit: u64, live: &BTreeMap<u64, u64>) -> Vec<u64> {
        let view = self.view();
        let numbers = view.segments.iter().map(|segment| segment.number());
        numbers
            .filter(|number| *number < limit && live.get(number).is_none_or(|bytes| *bytes == 0))
            .collect()
    }

    /// Shows readers what the manifest says, and cuts the segments that the watermark has passed.
    /// The caller has the manifest.
    fn show(&self, change: &Change, dropped: &[u64], ended: &Range<u64>) {
        let mut view = self.view.write();
        let mut levels = (*view.levels).clone();
        for level in &mut levels {
            level.retain(|table| !change.removed.iter().any(|gone| Arc::ptr_eq(gone, table)));
        }
        if levels.len() <= change.level {
            levels.resize_with(change.level + 1, Vec::new);
        }
        let level = &mut levels[change.level];
        level.extend(change.output.tables.iter().cloned());
        level.sort_by(|a, b| a.meta().first.cmp(&b.meta().first));
        let mut segments = (*view.segments).clone();
        segments.retain(|segment| !dropped.contains(&segment.number()));
        let old = Arc::clone(&view);
        *view = Arc::new(View {
            active: Arc::clone(&old.active),
            frozen: old.frozen[change.frozen..].to_vec(),
            levels: Arc::new(levels),
            segments: Arc::new(segments),
        });
        drop(view);
        for table in &change.removed {
            // A table that moved down a level as it is stays.
            if !change.output.tables.iter().any(|kept| Arc::ptr_eq(kept, table)) {
                table.doom();
            }
        }
        for segment in &*old.segments {
            if dropped.contains(&segment.number()) {
                segment.doom();
            } else if ended.contains(&segment.number())
                && segment.file().size().is_ok_and(|size| size > segment.written())
            {
                // It gives back what it reserved and did not need.
                let _ = segment.file().truncate(segment.written());
            }
        }
    }
}

/// Whether a level may have a key.
fn has(level: &[Arc<Table>], key: &[u8]) -> bool {
    let number = level.partition_point(|table| *table.meta().last < *key);
    level.get(number).is_some_and(|table| table.covers(key))
}

/// The tables of a level between the lowest and the highest key of levels 0.
fn overlap(frozen: &[Frozen], level: &[Arc<Table>]) -> Vec<Arc<Table>> {
    let mut first: Option<Vec<u8>> = None;
    let mut last: Option<Vec<u8>> = None;
    for frozen in frozen {
        let pairs = frozen.level0.read();
        let Some((low, high)) = pairs.ends() else { continue };
        if first.as_deref().is_none_or(|first| low < first) {
            first = Some(low.to_vec());
        }
        if last.as_deref().is_none_or(|last| high > last) {
            last = Some(high.to_vec());
        }
    }
    let (Some(first), Some(last)) = (first, last) else { return Vec::new() };
    let overlaps = |table: &&Arc<Table>| table.meta().first <= last && first <= table.meta().last;
    level.iter().filter(overlaps).cloned().collect()
}
