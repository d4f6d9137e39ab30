//! Checking a store that nobody has open: every byte that could be read back.

use std::path::Path;
use std::sync::Arc;

use super::recover::{Loaded, load};
use super::{Options, Report};
use crate::disk::{Disk, read_error};
use crate::record::{HEADER_BYTES, Record};
use crate::segment::Segment;
use crate::slot::Slot;
use crate::store::StoreError;
use crate::table::TableCursor;

/// Checks the store of a directory that no process has open.
///
/// # Errors
/// [`StoreError::NotServed`] if one has.
pub fn check_directory(
    directory: &Path,
    options: Options,
) -> Result<(Vec<String>, Report), StoreError> {
    let (disk, options) = super::lock_directory(directory, options)?;
    Ok(check(&disk, &options))
}

/// Reads all of a store and changes nothing. Each text of the answer is one damage by name; the
/// report says what a recovery would do.
#[must_use]
pub fn check(disk: &Arc<dyn Disk>, options: &Options) -> (Vec<String>, Report) {
    let loaded = match load(disk, options) {
        Ok(loaded) => loaded,
        Err(error) => return (vec![error.to_string()], Report::default()),
    };
    let mut damage = Vec::new();
    let mut note = |result: Result<(), StoreError>| {
        if let Err(error) = result {
            damage.push(error.to_string());
        }
    };
    for segment in &loaded.segments {
        note(check_segment(segment));
    }
    for table in loaded.levels.iter().flatten() {
        note(table.check().and_then(|()| check_pointers(&loaded, Arc::clone(table))));
    }
    (damage, loaded.log.report)
}

fn check_segment(segment: &Segment) -> Result<(), StoreError> {
    let mut bytes = vec![0; usize::try_from(segment.written()).unwrap_or(0)];
    segment.file().read_at(0, &mut bytes).map_err(|error| read_error(segment.name(), &error))?;
    let mut at = HEADER_BYTES;
    while at < bytes.len() && bytes[at..].iter().any(|&byte| byte != 0) {
        let found = Record::parse(segment.header(), segment.seed(), &bytes[at..]);
        let (_, length) = found.ok_or_else(|| {
            let what = format!("the record at {at} has a wrong checksum");
            crate::format::damaged(segment.name(), &what)
        })?;
        at += length;
    }
    Ok(())
}

/// A pointer to a segment that is there must lead to a record inside of it. One to a segment that
/// was collected is below a newer pair, and nobody follows it.
fn check_pointers(loaded: &Loaded, table: Arc<crate::table::Table>) -> Result<(), StoreError> {
    let name = table.meta().name();
    let mut cursor = TableCursor::whole(table)?;
    while let Some((_, slot)) = cursor.entry() {
        let Some(slot) = Slot::parse(slot) else {
            return Err(crate::format::damaged(&name, "a pair has no slot"));
        };
        if let Slot::Logged(pointer) = slot {
            let segment = loaded.segments.iter().find(|it| it.number() == pointer.segment);
            let end = pointer.offset.saturating_add(pointer.length as u64);
            if segment.is_some_and(|segment| end > segment.written()) {
                return Err(crate::format::damaged(&name, "a pointer leads behind its segment"));
            }
        }
        cursor.step()?;
    }
    Ok(())
}
