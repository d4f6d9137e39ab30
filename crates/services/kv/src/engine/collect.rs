//! Collection: what is used of an old segment is written again, and the segment is removed.
//!
//! Always true: a segment goes when all of its records that the index points to were written again,
//! and the log with them is synced. Older tables may still have pointers to it below newer pairs;
//! nobody follows these.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Core;
use super::view::{Place, View};
use crate::disk::read_error;
use crate::format::damaged;
use crate::manifest::Edit;
use crate::record::{HEADER_BYTES, Record};
use crate::segment::Segment;
use crate::slot::Pointer;
use crate::store::{Change, StoreError};

/// A segment is collected when at most this part of it is used.
const USED_PERCENT: u64 = 50;
/// Records that are written again under one lock.
const BATCH: usize = 16;

impl Core {
    /// The segment of which the least is used.
    pub(super) fn next_to_collect(&self, view: &View) -> Option<Arc<Segment>> {
        let manifest = self.manifest.lock();
        let state = manifest.state();
        let used = |segment: &Arc<Segment>| {
            let live = state.segments.get(&segment.number()).copied().unwrap_or_default();
            live.saturating_mul(100) / segment.written().max(1)
        };
        let worst = view
            .segments
            .iter()
            .filter(|segment| segment.number() < state.watermark.segment)
            .min_by_key(|segment| used(segment))?;
        (used(worst) <= USED_PERCENT).then(|| Arc::clone(worst))
    }

    pub(super) fn collect(&self, segment: &Arc<Segment>) -> Result<(), StoreError> {
        let size = usize::try_from(segment.written()).unwrap_or(usize::MAX);
        let mut bytes = vec![0; size];
        segment
            .file()
            .read_at(0, &mut bytes)
            .map_err(|error| read_error(segment.name(), &error))?;
        self.counters.compaction_read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let mut offset = HEADER_BYTES;
        let mut moved = Vec::new();
        while offset < bytes.len() {
            let found = Record::parse(segment.header(), segment.seed(), &bytes[offset..]);
            if found.is_none() && bytes[offset..].iter().all(|&byte| byte == 0) {
                self.write_again(&moved)?;
                break;
            }
            let Some((record, length)) = found else {
                return Err(damaged(
                    segment.name(),
                    &format!("the record at {offset} has a wrong checksum"),
                ));
            };
            if let Some(value) = record.value
                && !self.is_in_place(record.key, value)
            {
                let place = Pointer { segment: segment.number(), offset: offset as u64, length };
                moved.push((place, record.key, value));
            }
            offset += length;
            if moved.len() == BATCH || offset >= bytes.len() {
                self.write_again(&moved)?;
                moved.clear();
            }
        }
        self.drop_segment(segment)
    }

    /// Writes again the records that the index still points to.
    fn write_again(&self, records: &[(Pointer, &[u8], &[u8])]) -> Result<(), StoreError> {
        let is_used = |view: &View, place: Pointer, key: &[u8]| {
            Ok(view.place(key, u64::MAX)? == Some(Place::Logged(place)))
        };
        let view = self.view();
        let mut used = Vec::new();
        for (place, key, value) in records {
            if is_used(&view, *place, key)? {
                used.push((*place, *key, *value));
            }
        }
        if used.is_empty() {
            return Ok(());
        }
        self.wait_until_calm()?;
        let mut writer = self.writer.lock();
        // A writer may have changed a key since; nobody does now.
        let view = self.view();
        for (place, key, value) in used {
            if is_used(&view, place, key)? {
                let bytes = Record::bytes_max(key.len(), value.len()) as u64;
                let change = Change::Put { key: key.to_vec(), value: value.to_vec() };
                self.append(&mut writer, &[change], bytes)?;
            }
        }
        Ok(())
    }

    /// Waits while a level 0 is on its way, so that users come first.
    fn wait_until_calm(&self) -> Result<(), StoreError> {
        while self.view.read().frozen.len() >= self.options.frozen_max {
            if self.work()? {
                continue;
            }
            let mut jobs = self.jobs.lock();
            if let Some(full) = &jobs.full {
                return Err(StoreError::Full(full.clone()));
            }
            self.room.wait_for(&mut jobs, std::time::Duration::from_millis(20));
            drop(jobs);
            self.check_failure()?;
            if self.is_stopping.load(Ordering::Acquire) {
                return Err(StoreError::Full("the store is being closed".to_owned()));
            }
        }
        Ok(())
    }

    fn drop_segment(&self, segment: &Arc<Segment>) -> Result<(), StoreError> {
        let end = self.end();
        self.commit(end.lsn)?;
        self.sync_log(end)?;
        self.disk
            .sync_names()
            .map_err(|error| StoreError::ReadOnly(format!("the directory: {error}")))?;
        let number = segment.number();
        let mut manifest = self.manifest.lock();
        let edit = Edit { dropped: vec![number], ..Edit::default() };
        manifest.commit(&edit)?;
        self.ship_edit(&edit, Vec::new());
        let mut view = self.view.write();
        let mut segments = (*view.segments).clone();
        segments.retain(|other| other.number() != number);
        *view = Arc::new(View { segments: Arc::new(segments), ..(**view).clone() });
        drop(view);
        segment.doom();
        self.counters.collections.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
