//! A copy of a store while it is written.

use std::sync::Arc;

use super::{Core, Snapshot};
use crate::disk::{Disk, DiskFile, read_error, write_error};
use crate::manifest::{self, Found, Manifest};
use crate::store::StoreError;

/// Bytes that are copied at once.
const PIECE: usize = 256 << 10;

impl Core {
    /// Copies the store as it is now to a disk without one.
    pub(super) fn backup(self: &Arc<Self>, to: &Arc<dyn Disk>) -> Result<(), StoreError> {
        if !matches!(manifest::find(&**to)?, Found::Nothing) {
            return Err(StoreError::NotServed("the directory has a store already".to_owned()));
        }
        let (snapshot, mut state) = {
            let manifest = self.manifest.lock();
            (Snapshot::new(self), manifest.state().clone())
        };
        // Files in the view cannot go: the copy may take its time.
        let end = self.end();
        self.commit(end.lsn)?;
        let view = snapshot.view();
        for table in view.levels.iter().flatten() {
            table.check()?;
            let name = table.meta().name();
            let source = self.disk.open(&name).map_err(|error| read_error(&name, &error))?;
            copy(to, &name, &source, table.meta().bytes)?;
        }
        for segment in &*view.segments {
            let number = segment.number();
            let is_needed =
                state.segments.contains_key(&number) || number >= state.watermark.segment;
            if is_needed {
                copy(to, segment.name(), segment.file(), segment.written())?;
            }
        }
        // Batches behind the snapshot may have come along; the log says where it ends.
        state.closed = None;
        state.boot = String::new();
        to.sync_names().map_err(|error| write_error("the directory", &error))?;
        Manifest::create(to, self.region, state).map(drop)
    }
}

fn copy(
    to: &Arc<dyn Disk>,
    name: &str,
    source: &Arc<dyn DiskFile>,
    bytes: u64,
) -> Result<(), StoreError> {
    let failed = |error: &std::io::Error| write_error(name, error);
    let target = to.create(name, bytes).map_err(|error| failed(&error))?;
    let mut buffer = vec![0; PIECE];
    let mut offset = 0;
    while offset < bytes {
        let part = PIECE.min(usize::try_from(bytes - offset).unwrap_or(PIECE));
        let piece = &mut buffer[..part];
        source.read_at(offset, piece).map_err(|error| read_error(name, &error))?;
        target.write_at(offset, piece).map_err(|error| failed(&error))?;
        offset += part as u64;
    }
    target.sync().map_err(|error| failed(&error))
}
