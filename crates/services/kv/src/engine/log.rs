//! The end of the log: batches become records in a buffer, and buffers become writes.
//!
//! Always true: records are in the buffer in the order of their LSNs, and so are the writes. While
//! a write is on its way, the next buffer fills: it is written when this one is down, not by a
//! timer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::Core;
use super::view::{Frozen, View};
use crate::disk::{DiskFile, write_error};
use crate::format::Epoch;
use crate::level0::Level0;
use crate::manifest::Position;
use crate::record::{HEADER_BYTES, Header, Record};
use crate::segment::{Segment, name_of};
use crate::slot::{Pointer, Slot};
use crate::store::{Change, KEY_LIMIT, StoreError, VALUE_LIMIT};

/// How long a writer waits for room before it looks again.
const PATIENCE: Duration = Duration::from_millis(100);

/// The parts that a writer needs: the end of the log and level 0.
pub(crate) struct Writer {
    pub segment: Arc<Segment>,
    /// Bytes that the file of the segment has.
    pub capacity: u64,
    /// End of the log in the segment, with what is in the buffer.
    pub end: u64,
    pub next_lsn: u64,
    pub chunks: Vec<Chunk>,
    pub active: Arc<Level0>,
    /// Open snapshots: their LSNs with their numbers.
    pub snapshots: BTreeMap<u64, usize>,
    pub spare: Spare,
}

/// A file for the segment after the current one, which a thread makes before it is needed.
pub(crate) enum Spare {
    None,
    /// A thread is at it: nobody else may make a file of this name.
    OnItsWay,
    Ready(Arc<dyn DiskFile>),
}

/// Bytes for a place of a segment.
pub(crate) struct Chunk {
    pub segment: Arc<Segment>,
    pub offset: u64,
    pub bytes: Vec<u8>,
}

impl Writer {
    pub fn position(&self) -> Position {
        Position { segment: self.segment.number(), offset: self.end, lsn: self.next_lsn - 1 }
    }

    /// The buffer for the end of the log.
    fn buffer(&mut self) -> &mut Chunk {
        let is_at_end =
            self.chunks.last().is_some_and(|chunk| Arc::ptr_eq(&chunk.segment, &self.segment));
        if !is_at_end {
            let segment = Arc::clone(&self.segment);
            self.chunks.push(Chunk { segment, offset: self.end, bytes: Vec::new() });
        }
        self.chunks.last_mut().expect("one was pushed")
    }
}

fn parts(change: &Change) -> (&[u8], Option<&[u8]>) {
    match change {
        Change::Put { key, value } => (key, Some(value)),
        Change::Delete { key } => (key, None),
    }
}

fn bytes_max(batch: &[Change]) -> u64 {
    let record = |change| {
        let (key, value) = parts(change);
        assert!(key.len() <= KEY_LIMIT, "a key of {} bytes", key.len());
        let value = value.map_or(0, <[u8]>::len);
        assert!(value <= VALUE_LIMIT, "a value of {value} bytes");
        Record::bytes_max(key.len(), value) as u64
    };
    batch.iter().map(record).sum()
}

impl Core {
    /// Takes a batch into the buffer and level 0.
    pub(crate) fn write(&self, batch: &[Change]) -> Result<u64, StoreError> {
        let bytes = bytes_max(batch);
        self.check_failure()?;
        if self.is_stuck.load(Ordering::Acquire)
            && let Err(StoreError::Unknown(full)) = self.commit(self.newest.load(Ordering::Acquire))
        {
            return Err(StoreError::Full(full));
        }
        self.wait_for_room()?;
        let mut writer = self.writer.lock();
        self.append(&mut writer, batch, bytes)
    }

    /// Appends a batch, for a caller that has the writer.
    pub(super) fn append(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        batch: &[Change],
        bytes: u64,
    ) -> Result<u64, StoreError> {
        if batch.is_empty() {
            return Ok(writer.next_lsn - 1);
        }
        if writer.end + bytes > writer.capacity {
            self.begin_segment(writer, bytes)?;
        }
        let lsn = writer.next_lsn;
        let kept_for = writer.snapshots.last_key_value().map(|(&lsn, _)| lsn);
        let (header, seed) = (*writer.segment.header(), writer.segment.seed());
        let mut starts_group = writer.chunks.is_empty();
        for (number, change) in batch.iter().enumerate() {
            let (key, value) = parts(change);
            let is_last = number + 1 == batch.len();
            let record = Record { lsn, key, value, is_last, starts_group };
            starts_group = false;
            let chunk = writer.buffer();
            let start = chunk.bytes.len();
            record.emit(&header, seed, &mut chunk.bytes);
            let offset = chunk.offset + start as u64;
            let length = chunk.bytes.len() - start;
            writer.end = offset + length as u64;
            let slot = match value {
                None => Slot::Deleted,
                Some(value) if self.is_in_place(key, value) => Slot::Value(value),
                Some(_) => Slot::Logged(Pointer { segment: header.number, offset, length }),
            };
            writer.active.insert(key, lsn, slot.bytes(), kept_for);
        }
        writer.next_lsn += 1;
        self.newest.store(lsn, Ordering::Release);
        if writer.active.bytes() >= self.options.level0_bytes {
            self.freeze_active(writer);
        }
        Ok(lsn)
    }

    pub(super) fn is_in_place(&self, key: &[u8], value: &[u8]) -> bool {
        key.len() + value.len() <= self.options.in_place_bytes
    }

    /// Ends the segment and begins the next one.
    fn begin_segment(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        bytes: u64,
    ) -> Result<(), StoreError> {
        let number = writer.segment.number() + 1;
        let wanted = HEADER_BYTES as u64 + bytes;
        let capacity = self.options.segment_bytes.max(wanted);
        while matches!(writer.spare, Spare::OnItsWay) {
            self.spare.wait(writer);
        }
        let file = match std::mem::replace(&mut writer.spare, Spare::None) {
            Spare::Ready(file) if capacity == self.options.segment_bytes => file,
            _ => self.create_segment(number, capacity)?,
        };
        let first_lsn = writer.next_lsn;
        let header = self.header(number, writer.segment.header().epoch, first_lsn, capacity);
        self.start_segment(writer, file, header);
        self.add_segment(&writer.segment);
        self.wake_for_spare();
        Ok(())
    }

    pub(super) fn header(
        &self,
        number: u64,
        epoch: Epoch,
        first_lsn: u64,
        capacity: u64,
    ) -> Header {
        let is_durable = self.options.is_durable;
        Header { region: self.region, epoch, number, first_lsn, capacity, is_durable }
    }

    /// Makes the file of a segment, lasting where the options ask for that.
    pub(super) fn create_segment(
        &self,
        number: u64,
        capacity: u64,
    ) -> Result<Arc<dyn DiskFile>, StoreError> {
        let name = name_of(number);
        let failed = |error: &std::io::Error| match write_error(&name, error) {
            full @ StoreError::Full(_) => full,
            error => self.fail(error),
        };
        let file = self.disk.create(&name, capacity).map_err(|error| failed(&error))?;
        if self.options.is_durable {
            let synced = file.sync().and_then(|()| self.disk.sync_names());
            synced.map_err(|error| failed(&error))?;
        }
        Ok(file)
    }

    /// The log goes on in this file, with the header as the first bytes of the buffer.
    fn start_segment(&self, writer: &mut Writer, file: Arc<dyn DiskFile>, header: Header) {
        let segment = Arc::new(Segment::new(&self.disk, file, header, 0));
        writer.capacity = header.capacity;
        writer.end = HEADER_BYTES as u64;
        writer.segment = Arc::clone(&segment);
        writer.chunks.push(Chunk { segment, offset: 0, bytes: header.emit().to_vec() });
    }

    fn add_segment(&self, segment: &Arc<Segment>) {
        let mut view = self.view.write();
        let mut segments = (*view.segments).clone();
        segments.push(Arc::clone(segment));
        *view = Arc::new(View { segments: Arc::new(segments), ..(**view).clone() });
    }

    /// Freezes level 0, for a caller that has the writer.
    fn freeze_active(&self, writer: &mut Writer) {
        if writer.active.is_empty() {
            return;
        }
        let level0 = std::mem::take(&mut writer.active);
        let mut view = self.view.write();
        let mut frozen = view.frozen.clone();
        frozen.push(Frozen { level0, end: writer.position() });
        let active = Arc::clone(&writer.active);
        *view = Arc::new(View { active, frozen, ..(**view).clone() });
        drop(view);
        self.wake();
    }

    pub(super) fn freeze(&self) {
        self.freeze_active(&mut self.writer.lock());
    }

    /// Waits while too many levels 0 are on their way.
    fn wait_for_room(&self) -> Result<(), StoreError> {
        let mut has_waited = false;
        while self.view.read().frozen.len() > self.options.frozen_max {
            if !has_waited {
                self.counters.stalls.fetch_add(1, Ordering::Relaxed);
                has_waited = true;
            }
            if self.options.threads == 0 {
                self.work()?;
                continue;
            }
            let mut jobs = self.jobs.lock();
            if let Some(full) = &jobs.full {
                return Err(StoreError::Full(full.clone()));
            }
            self.room.wait_for(&mut jobs, PATIENCE);
            drop(jobs);
            self.check_failure()?;
        }
        Ok(())
    }

    /// Waits until all batches up to this one are as safe here as the options say.
    pub(crate) fn commit(&self, upto: u64) -> Result<(), StoreError> {
        while self.committed.load(Ordering::Acquire) < upto {
            let _flusher = self.flusher.lock();
            if self.committed.load(Ordering::Acquire) >= upto {
                break;
            }
            self.check_failure()?;
            self.write_buffer()?;
        }
        Ok(())
    }

    /// Writes what is in the buffer, for the caller that has the flusher.
    fn write_buffer(&self) -> Result<(), StoreError> {
        let (mut chunks, newest) = {
            let mut writer = self.writer.lock();
            (std::mem::take(&mut writer.chunks), writer.next_lsn - 1)
        };
        self.ship_log(&chunks, newest);
        for (done, chunk) in chunks.iter().enumerate() {
            if let Err(error) = chunk.segment.file().write_at(chunk.offset, &chunk.bytes) {
                let error = write_error(chunk.segment.name(), &error);
                if !matches!(error, StoreError::Full(_)) {
                    return Err(self.fail(error));
                }
                // Where space cannot be reserved, the write finds the full disk. It may be done
                // again: the same bytes at the same place.
                let mut writer = self.writer.lock();
                chunks.drain(..done);
                chunks.append(&mut writer.chunks);
                writer.chunks = chunks;
                self.is_stuck.store(true, Ordering::Release);
                return Err(StoreError::Unknown(error.to_string()));
            }
            let end = chunk.offset + chunk.bytes.len() as u64;
            chunk.segment.set_written(end);
            self.counters.log_written.fetch_add(chunk.bytes.len() as u64, Ordering::Relaxed);
        }
        if self.options.is_durable {
            for chunk in &chunks {
                let synced = chunk.segment.file().sync();
                synced.map_err(|error| {
                    self.fail(StoreError::ReadOnly(format!("{}: {error}", chunk.segment.name())))
                })?;
            }
        }
        self.committed.store(newest, Ordering::Release);
        self.is_stuck.store(false, Ordering::Release);
        Ok(())
    }
}
