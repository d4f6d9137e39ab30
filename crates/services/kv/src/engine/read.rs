//! Reading: single keys, snapshots and ranges.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Core;
use super::view::{Place, View};
use crate::format::damaged;
use crate::segment::name_of;
use crate::slot::{Pointer, Slot};
use crate::store::{Pair, StoreError};

/// A view of a store at one moment. Tables and segments that it needs stay while it is held.
pub struct Snapshot {
    core: Arc<Core>,
    view: Arc<View>,
    lsn: u64,
}

impl Core {
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let view = self.view();
        self.check_safe(&view, key)?;
        match view.place(key, u64::MAX)? {
            None => Ok(None),
            Some(Place::Value(value)) => Ok(Some(value)),
            Some(Place::Logged(pointer)) => self.value(&view, pointer, key).map(Some),
        }
    }

    /// After a failure of the device, a key whose last write was not committed cannot be read: the
    /// write may be gone when the store is opened again.
    fn check_safe(&self, view: &View, key: &[u8]) -> Result<(), StoreError> {
        if !self.failure.is_set.load(Ordering::Acquire) {
            return Ok(());
        }
        let committed = self.committed.load(Ordering::Acquire);
        let levels = view.frozen.iter().map(|frozen| &frozen.level0);
        let mut lsns = levels.chain([&view.active]).filter_map(|level0| level0.lsn_of(key));
        if lsns.any(|lsn| lsn > committed) {
            return Err(StoreError::Unknown("the last write of the key failed".to_owned()));
        }
        Ok(())
    }

    /// The value that a pointer of a view leads to.
    pub(super) fn value(
        &self,
        view: &View,
        pointer: Pointer,
        key: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        let newer;
        let segment = match view.segment(pointer.segment) {
            Some(segment) => segment,
            None => {
                // The level 0 of the view is written on: its log may have a newer segment.
                newer = self.view();
                let unknown = || damaged(&name_of(pointer.segment), "a segment is missing");
                newer.segment(pointer.segment).ok_or_else(unknown)?
            }
        };
        if pointer.offset + pointer.length as u64 > segment.written() {
            // It is in the buffer, or on its way to the file. Its batch may still be on its way
            // into level 0: whoever has the writer next finds it whole.
            self.commit(self.end().lsn)?;
        }
        segment.value(pointer, key)
    }
}

impl Snapshot {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        let mut writer = core.writer.lock();
        let lsn = writer.next_lsn - 1;
        *writer.snapshots.entry(lsn).or_default() += 1;
        let view = core.view();
        drop(writer);
        Self { core: Arc::clone(core), view, lsn }
    }

    /// The number of the newest batch that it sees.
    #[must_use]
    pub fn lsn(&self) -> u64 {
        self.lsn
    }

    pub(super) fn view(&self) -> &View {
        &self.view
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.core.check_safe(&self.view, key)?;
        match self.view.place(key, self.lsn)? {
            None => Ok(None),
            Some(Place::Value(value)) => Ok(Some(value)),
            Some(Place::Logged(pointer)) => self.core.value(&self.view, pointer, key).map(Some),
        }
    }

    /// At most `limit` pairs of a range in order, or from its end back.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        let check = |key: &[u8]| self.core.check_safe(&self.view, key);
        let value = |pointer, key: &[u8]| self.core.value(&self.view, pointer, key);
        scan_view(&self.view, self.lsn, (from, to), backward, limit, check, value)
    }
}

/// At most `limit` pairs of a range of a view for a reader at this LSN, in order, or from its end
/// back. Each key is checked; `value` reads what a pointer leads to.
pub(super) fn scan_view(
    view: &View,
    lsn: u64,
    (from, to): (Bound<&[u8]>, Bound<&[u8]>),
    backward: bool,
    limit: usize,
    check: impl Fn(&[u8]) -> Result<(), StoreError>,
    value: impl Fn(Pointer, &[u8]) -> Result<Vec<u8>, StoreError>,
) -> Result<Vec<Pair>, StoreError> {
    let mut pairs = Vec::new();
    let mut merge = view.merge(from, to, backward, lsn)?;
    while pairs.len() < limit
        && let Some((_, key, slot)) = merge.entry()
    {
        if is_behind(key, if backward { from } else { to }, backward) {
            break;
        }
        check(key)?;
        match Slot::parse(slot) {
            Some(Slot::Value(value)) => pairs.push((key.to_vec(), value.to_vec())),
            Some(Slot::Logged(pointer)) => pairs.push((key.to_vec(), value(pointer, key)?)),
            Some(Slot::Deleted) | None => {}
        }
        merge.step(|_, _| {})?;
    }
    Ok(pairs)
}

/// Whether a key is behind the end of a range in the direction of a scan.
fn is_behind(key: &[u8], end: Bound<&[u8]>, is_backward: bool) -> bool {
    match (end, is_backward) {
        (Bound::Unbounded, _) => false,
        (Bound::Included(end), false) => key > end,
        (Bound::Excluded(end), false) => key >= end,
        (Bound::Included(end), true) => key < end,
        (Bound::Excluded(end), true) => key <= end,
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let mut writer = self.core.writer.lock();
        if let Some(count) = writer.snapshots.get_mut(&self.lsn) {
            *count -= 1;
            if *count == 0 {
                writer.snapshots.remove(&self.lsn);
            }
        }
    }
}
