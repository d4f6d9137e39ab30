//! Opening a store: the manifest, the tables, and the log behind the watermark by its LSNs.
//!
//! Always true: [`load`] changes nothing. The recovery takes effect with one edit of the manifest,
//! a joint that says where the log ended and where it goes on; a crash before it leaves all as it
//! was, and what is behind the end is never read again after it.
//!
//! A log that stops at a bad record ends there if it was torn: the process was killed within its
//! last write, or the power went. It is damaged if a later write is in the log that shows that the
//! bad record was once right: of the same boot of the machine, or in a durable log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{Condvar, Mutex, RwLock};

use super::log::{Spare, Writer};
use super::view::{Frozen, View};
use super::work::Jobs;
use super::{Core, Counters, Engine, Failure, Options};
use crate::disk::{Disk, read_error, write_error};
use crate::format::{Region, damaged};
use crate::level0::Level0;
use crate::manifest::{self, Found, Joint, LEVELS_MAX, Manifest, NOWHERE, Position, State, Stored};
use crate::record::{HEADER_BYTES, Header, Record};
use crate::segment::{Segment, name_of, number_in};
use crate::slot::{Pointer, Slot};
use crate::store::StoreError;
use crate::table::{BlockCache, Table, block_cache};

/// Segments that a primary may write before its numbers meet those of the next one.
const EPOCH_SHIFT: u32 = 20;

/// The work of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Batches that were read from the log.
    pub replayed: u64,
    /// The newest batch.
    pub lsn: u64,
    /// All that was discarded, in words for an operator.
    pub discarded: Vec<String>,
}

/// A store that was read, and not changed.
pub(super) struct Loaded {
    pub region: Region,
    pub stored: Option<Box<Stored>>,
    pub state: State,
    pub cache: Arc<BlockCache>,
    pub levels: Vec<Vec<Arc<Table>>>,
    pub segments: Vec<Arc<Segment>>,
    pub log: Log,
    /// Numbers of all segments of the directory.
    pub numbers: Vec<u64>,
}

/// The log behind the watermark.
pub(super) struct Log {
    pub end: Position,
    pub frozen: Vec<Frozen>,
    pub active: Arc<Level0>,
    pub report: Report,
    /// The segments that were read, with the ends of their records.
    pub segments: Vec<Arc<Segment>>,
}

/// Opens the store of a disk, or makes one.
///
/// # Errors
/// [`StoreError::Damaged`], [`StoreError::Full`], [`StoreError::ReadOnly`].
///
/// # Panics
/// If no thread can be started.
pub fn open_on(disk: Arc<dyn Disk>, options: Options) -> Result<Engine, StoreError> {
    let loaded = load(&disk, &options)?;
    let report = loaded.log.report.clone();
    let core = Arc::new(take_over(disk, options, loaded)?);
    let mut threads = Vec::new();
    for number in 0..core.options.threads {
        let core = Arc::clone(&core);
        let builder = std::thread::Builder::new().name(format!("kv-work-{number}"));
        threads.push(builder.spawn(move || core.run()).expect("a thread can be started"));
    }
    Ok(Engine { core, threads, report })
}

/// Reads a store.
pub(super) fn load(disk: &Arc<dyn Disk>, options: &Options) -> Result<Loaded, StoreError> {
    let stored = match manifest::find(&**disk)? {
        Found::Nothing => None,
        Found::Store(stored) => Some(stored),
    };
    let region = stored.as_ref().map_or(options.region, |stored| stored.region);
    let state = stored.as_ref().map(|stored| stored.state.clone()).unwrap_or_default();
    let cache = Arc::new(block_cache(options.cache_bytes));
    let mut levels = Vec::new();
    for level in &state.levels {
        let open = |meta: &crate::table::TableMeta| {
            Table::open(disk, &cache, region, meta.clone()).map(Arc::new)
        };
        levels.push(level.iter().map(open).collect::<Result<Vec<_>, _>>()?);
    }
    let names = disk.list().map_err(|error| read_error("the directory", &error))?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| number_in(name)).collect();
    numbers.sort_unstable();
    let mut segments = Vec::new();
    for &number in state.segments.keys().filter(|number| **number < state.watermark.segment) {
        segments.push(Arc::new(Segment::open(disk, number)?));
    }
    let mut replay = Replay {
        disk,
        options,
        state: &state,
        region,
        numbers: &numbers,
        level0: Arc::default(),
        log: Log {
            end: state.watermark,
            frozen: Vec::new(),
            active: Arc::default(),
            report: Report::default(),
            segments: Vec::new(),
        },
    };
    replay.run()?;
    let mut log = replay.log;
    log.active = replay.level0;
    log.report.lsn = log.end.lsn;
    if let Some(torn) = stored.as_ref().map(|stored| stored.torn_bytes).filter(|torn| *torn > 0) {
        log.report.discarded.push(format!("manifest: {torn} bytes of an unfinished record"));
    }
    segments.extend(log.segments.iter().cloned());
    Ok(Loaded { region, stored, state, cache, levels, segments, log, numbers })
}

/// Reads the log behind the watermark into levels 0.
struct Replay<'a> {
    disk: &'a Arc<dyn Disk>,
    options: &'a Options,
    state: &'a State,
    region: Region,
    numbers: &'a [u64],
    level0: Arc<Level0>,
    log: Log,
}

/// How a segment ended.
struct SegmentEnd {
    header: Header,
    bytes: Vec<u8>,
    /// End of the last whole batch.
    end: usize,
}

impl Replay<'_> {
    fn run(&mut self) -> Result<(), StoreError> {
        let mut number = self.state.watermark.segment;
        let mut offset = self.state.watermark.offset;
        loop {
            let last = if number == 0 { None } else { Some(self.segment(number, offset)?) };
            offset = HEADER_BYTES as u64;
            let joint = self.state.joints.iter().find(|joint| joint.end.segment == number);
            if let Some(joint) = joint {
                self.check_joint(joint)?;
                if joint.next == NOWHERE {
                    return Ok(());
                }
                number = joint.next;
                continue;
            }
            if self.goes_on_in(number + 1)? {
                number += 1;
                continue;
            }
            return self.judge(last.as_ref());
        }
    }

    /// At a joint the log must have all that the recovery found that made the joint.
    fn check_joint(&self, joint: &Joint) -> Result<(), StoreError> {
        if self.log.end == joint.end {
            return Ok(());
        }
        Err(damaged(
            &name_of(joint.end.segment),
            &format!("its records end at {} in place of {}", self.log.end.offset, joint.end.offset),
        ))
    }

    /// Whether the next segment continues the log.
    fn goes_on_in(&self, number: u64) -> Result<bool, StoreError> {
        let is_there = self.numbers.binary_search(&number).is_ok();
        Ok(is_there
            && self.header(number)?.is_some_and(|header| header.first_lsn == self.log.end.lsn + 1))
    }

    fn header(&self, number: u64) -> Result<Option<Header>, StoreError> {
        let name = name_of(number);
        let failed = |error: &std::io::Error| read_error(&name, error);
        let file = self.disk.open(&name).map_err(|error| failed(&error))?;
        if file.size().map_err(|error| failed(&error))? < HEADER_BYTES as u64 {
            return Ok(None);
        }
        let mut bytes = [0; HEADER_BYTES];
        file.read_at(0, &mut bytes).map_err(|error| failed(&error))?;
        let header = Header::parse(&bytes);
        Ok(header.filter(|header| (header.region, header.number) == (self.region, number)))
    }

    /// The state of a segment behind the end. A file is there with its space or not at all, so a
    /// short one was cut.
    fn later(&self, number: u64) -> Result<Later, StoreError> {
        let header = self.header(number)?;
        let name = name_of(number);
        let failed = |error: &std::io::Error| read_error(&name, error);
        let file = self.disk.open(&name).map_err(|error| failed(&error))?;
        let size = file.size().map_err(|error| failed(&error))?;
        if size <= HEADER_BYTES as u64 {
            return Ok(Later::Odd);
        }
        let mut behind = vec![0; usize::try_from(size).unwrap_or(0) - HEADER_BYTES];
        file.read_at(HEADER_BYTES as u64, &mut behind).map_err(|error| failed(&error))?;
        let is_unused = behind.iter().all(|&byte| byte == 0);
        Ok(match header {
            _ if is_unused => Later::Unused,
            None => Later::Odd,
            Some(header) if has_later_write(&header, &behind, self.log.end.lsn) => Later::Written,
            Some(_) => Later::Torn,
        })
    }

    /// Reads the whole batches of a segment.
    fn segment(&mut self, number: u64, offset: u64) -> Result<SegmentEnd, StoreError> {
        let segment = Segment::open(self.disk, number)?;
        let header = *segment.header();
        let mut bytes = vec![0; usize::try_from(segment.written()).unwrap_or(0)];
        segment
            .file()
            .read_at(0, &mut bytes)
            .map_err(|error| read_error(segment.name(), &error))?;
        let mut end = usize::try_from(offset).unwrap_or(usize::MAX);
        let mut batch: Vec<(Record<'_>, Pointer)> = Vec::new();
        let mut at = end;
        // Records behind a joint were discarded, also if they are still there.
        let joint = self.state.joints.iter().find(|joint| joint.end.segment == number);
        let limit = joint.and_then(|joint| usize::try_from(joint.end.offset).ok());
        while limit.is_none_or(|limit| at < limit)
            && let Some((record, length)) =
                bytes.get(at..).and_then(|rest| Record::parse(&header, segment.seed(), rest))
        {
            if record.lsn != self.log.end.lsn + 1 {
                break;
            }
            batch.push((record, Pointer { segment: number, offset: at as u64, length }));
            at += length;
            if record.is_last {
                end = at;
                self.log.end = Position { segment: number, offset: at as u64, lsn: record.lsn };
                self.take(&batch);
                batch.clear();
            }
        }
        drop(batch);
        if self.log.end.segment != number {
            self.log.end = Position { segment: number, offset, lsn: self.log.end.lsn };
        }
        segment.set_written(end as u64);
        self.log.segments.push(Arc::new(segment));
        Ok(SegmentEnd { header, bytes, end })
    }

    fn take(&mut self, batch: &[(Record<'_>, Pointer)]) {
        for (record, pointer) in batch {
            let slot = slot_of(record, *pointer, self.options.in_place_bytes);
            self.level0.insert(record.key, record.lsn, slot.bytes(), None);
        }
        self.log.report.replayed += 1;
        if self.level0.bytes() >= self.options.level0_bytes {
            let level0 = std::mem::take(&mut self.level0);
            self.log.frozen.push(Frozen { level0, end: self.log.end });
        }
    }

    /// Whether the end of the log is one: what is behind it was torn, or never there.
    fn judge(&mut self, last: Option<&SegmentEnd>) -> Result<(), StoreError> {
        let end = self.log.end;
        if let Some(closed) = self.state.closed.filter(|closed| closed.lsn > end.lsn) {
            let what =
                format!("the log ends at {}, the store was closed at {}", end.lsn, closed.lsn);
            return Err(damaged(&name_of(end.segment), &what));
        }
        let later: Vec<u64> =
            self.numbers.iter().copied().filter(|number| *number > end.segment).collect();
        let Some(last) = last else { return Ok(()) };
        let is_same_boot = !self.options.boot.is_empty() && self.options.boot == self.state.boot;
        let proves = is_same_boot || last.header.is_durable;
        let is_cut = (last.bytes.len() as u64) < last.header.capacity
            && self.state.closed.is_none_or(|closed| closed.segment != end.segment);
        if is_cut && is_same_boot {
            return Err(damaged(&name_of(end.segment), "the file was cut"));
        }
        let behind = &last.bytes[last.end..];
        let torn = behind.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let is_followed = has_later_write(&last.header, &behind[..torn], end.lsn);
        let mut lost = Vec::new();
        for number in later {
            let name = name_of(number);
            match self.later(number)? {
                Later::Unused => {}
                Later::Written if proves => {
                    let what = format!("it goes on behind batch {}, where the log ends", end.lsn);
                    return Err(damaged(&name, &what));
                }
                Later::Odd if is_same_boot => {
                    return Err(damaged(&name, "its header has a wrong checksum"));
                }
                Later::Torn | Later::Written | Later::Odd => lost.push(name),
            }
        }
        if is_followed && proves {
            let what = format!("the record at {} has a wrong checksum", end.offset);
            return Err(damaged(&name_of(end.segment), &what));
        }
        if torn > 0 {
            self.log.report.discarded.push(format!(
                "{}: {torn} bytes of an unfinished write behind batch {}",
                name_of(end.segment),
                end.lsn
            ));
        }
        for name in lost {
            self.log.report.discarded.push(format!("{name}: it does not continue the log"));
        }
        Ok(())
    }
}

/// The slot of a record that is at this place.
pub(super) fn slot_of<'r>(
    record: &Record<'r>,
    pointer: Pointer,
    in_place_bytes: usize,
) -> Slot<'r> {
    match record.value {
        None => Slot::Deleted,
        Some(value) if record.key.len() + value.len() <= in_place_bytes => Slot::Value(value),
        Some(_) => Slot::Logged(pointer),
    }
}

/// A segment behind the end of the log.
enum Later {
    /// Made before it was needed, or by a recovery that did not end.
    Unused,
    /// It has a part of the last write.
    Torn,
    /// It has a later write than one that is not there.
    Written,
    /// It has no header and should.
    Odd,
}

/// Whether bytes have a record that began a write after the batch that follows this one: that one
/// was whole then.
fn has_later_write(header: &Header, bytes: &[u8], lsn: u64) -> bool {
    let seed = header.seed();
    (0..bytes.len()).any(|start| {
        Record::parse(header, seed, &bytes[start..]).is_some_and(|(record, _)| {
            record.starts_group && record.lsn > lsn + 1 && record.lsn - lsn <= bytes.len() as u64
        })
    })
}

/// Makes the recovery lasting, and makes the engine.
fn take_over(disk: Arc<dyn Disk>, options: Options, loaded: Loaded) -> Result<Core, StoreError> {
    let Loaded { region, stored, mut state, cache, levels, mut segments, log, numbers } = loaded;
    for segment in &log.segments {
        let synced = segment.file().sync();
        synced.map_err(|error| StoreError::ReadOnly(format!("{}: {error}", segment.name())))?;
    }
    let mut number = numbers.last().copied().unwrap_or(0).max(log.end.segment) + 1;
    if stored.is_some() && options.epoch > state.epoch {
        // Each primary has numbers of its own, so that no two write a segment of the same number.
        number = number.max(u64::from(options.epoch) << EPOCH_SHIFT);
    }
    state.epoch = state.epoch.max(options.epoch);
    let header = Header {
        region,
        epoch: state.epoch,
        number,
        first_lsn: log.end.lsn + 1,
        capacity: options.segment_bytes,
        is_durable: options.is_durable,
    };
    let segment = begin_segment(&disk, header)?;
    state.joints.retain(|joint| joint.next != NOWHERE);
    state.joints.push(Joint { end: log.end, next: number });
    state.boot.clone_from(&options.boot);
    state.closed = None;
    state.next_table = state.next_table.max(1);
    let manifest = match stored {
        None => Manifest::create(&disk, region, state)?,
        Some(stored) => stored.take_over(&disk, state)?,
    };
    remove_orphans(&disk, manifest.state(), number, &log)?;
    segments.push(Arc::clone(&segment));
    let view = View {
        active: Arc::clone(&log.active),
        frozen: log.frozen,
        levels: Arc::new(levels),
        segments: Arc::new(segments),
    };
    let jobs = Jobs {
        busy: [false; LEVELS_MAX + 1],
        is_collecting: false,
        next_table: manifest.state().next_table,
        epoch: manifest.state().epoch,
        full: None,
    };
    let writer = Writer {
        segment,
        capacity: header.capacity,
        end: HEADER_BYTES as u64,
        next_lsn: header.first_lsn,
        chunks: Vec::new(),
        active: log.active,
        snapshots: BTreeMap::new(),
        spare: Spare::None,
    };
    Ok(Core {
        disk,
        options,
        region,
        cache,
        view: RwLock::new(Arc::new(view)),
        writer: Mutex::new(writer),
        flusher: Mutex::new(()),
        newest: AtomicU64::new(log.end.lsn),
        committed: AtomicU64::new(log.end.lsn),
        manifest: Mutex::new(manifest),
        jobs: Mutex::new(jobs),
        work: Condvar::new(),
        room: Condvar::new(),
        spare: Condvar::new(),
        is_stopping: AtomicBool::new(false),
        is_stuck: AtomicBool::new(false),
        shipper: RwLock::new(None),
        failure: Failure::default(),
        counters: Counters::default(),
    })
}

/// A segment with a header that lasts.
fn begin_segment(disk: &Arc<dyn Disk>, header: Header) -> Result<Arc<Segment>, StoreError> {
    let name = name_of(header.number);
    let made = (|| {
        let file = disk.create(&name, header.capacity)?;
        file.write_at(0, &header.emit())?;
        file.sync()?;
        disk.sync_names()?;
        Ok(file)
    })();
    let file = made.map_err(|error: std::io::Error| write_error(&name, &error))?;
    Ok(Arc::new(Segment::new(disk, file, header, HEADER_BYTES as u64)))
}

/// Removes files that no manifest names, and what is behind the end of the log.
fn remove_orphans(
    disk: &Arc<dyn Disk>,
    state: &State,
    current: u64,
    log: &Log,
) -> Result<(), StoreError> {
    let failed = |error: &std::io::Error| write_error("the directory", error);
    for segment in &log.segments {
        let size = segment.file().size().map_err(|error| failed(&error))?;
        if size > segment.written() {
            segment.file().truncate(segment.written()).map_err(|error| failed(&error))?;
            segment.file().sync().map_err(|error| failed(&error))?;
        }
    }
    let is_named = |name: &str| state.levels.iter().flatten().any(|meta| meta.name() == name);
    for name in disk.list().map_err(|error| failed(&error))? {
        let is_orphan = match number_in(&name) {
            Some(number) => {
                let is_read = log.segments.iter().any(|segment| segment.number() == number);
                number != current && !is_read && !state.segments.contains_key(&number)
            }
            None => name.starts_with("table-") && !is_named(&name),
        };
        if is_orphan {
            disk.remove(&name).map_err(|error| failed(&error))?;
        }
    }
    Ok(())
}
