//! The files of a backup: it writes what it receives.
//!
//! Always true: the directory is one that [`crate::engine::open_on`] can open, with all batches
//! that were answered by [`Message::Delivered`] or [`Message::Joined`]. Until a join is complete,
//! it is the store of before. No table is read, nothing is sorted, but for a [`Reader`], which
//! there is if somebody reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::message::{Envelope, Message, Offer};
use crate::disk::{Disk, DiskFile, read_error, write_error};
use crate::engine::{Contents, Options, Reader, contents};
use crate::format::{Epoch, checksum, damaged};
use crate::manifest::{Edit, Found, Joint, Manifest, NOWHERE, State, find};
use crate::record::{HEADER_BYTES, Header};
use crate::segment::name_of;
use crate::store::StoreError;
use crate::table::TableMeta;

/// A backup of one region.
pub struct Replica {
    disk: Arc<dyn Disk>,
    options: Options,
    epoch: Epoch,
    lsn: u64,
    mode: Mode,
    /// Bytes that were received in order to get in sync.
    catch_up_bytes: u64,
    /// Segments that were written and not synced, where batches are to be synced.
    unsynced: BTreeSet<u64>,
    /// The damage to the store that was there, until it was replaced.
    damage: Option<String>,
    /// Reads of clients.
    reader: Option<Arc<Reader>>,
}

enum Mode {
    /// It waits for an offer.
    Idle(Contents),
    Joining(Joining),
    Following(Following),
}

struct Joining {
    offer: Offer,
    tables: BTreeSet<(Epoch, u64)>,
    files: Files,
}

struct Following {
    manifest: Manifest,
    files: Files,
}

/// The segments with their ends.
type Files = BTreeMap<u64, (Arc<dyn DiskFile>, u64)>;

impl Replica {
    /// A backup with what its directory has.
    ///
    /// # Errors
    /// Those of the device. A store that is damaged is as one that is empty: it gets all again.
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<Self, StoreError> {
        let (contents, damage) = read(&disk, &options)?;
        let (epoch, lsn) = (contents.epoch, contents.end.lsn);
        let (mode, unsynced, reader) = (Mode::Idle(contents), BTreeSet::new(), None);
        let catch_up_bytes = 0;
        Ok(Self { disk, options, epoch, lsn, mode, catch_up_bytes, unsynced, damage, reader })
    }

    /// The damage to the store: it counts as empty until it has joined. It must not become
    /// the primary, whatever the record of the cluster says of it.
    #[must_use]
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    /// The newest batch that it has.
    #[must_use]
    pub fn lsn(&self) -> u64 {
        self.lsn
    }

    /// The newest primary that it knows.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Bytes that were received in order to get in sync.
    #[must_use]
    pub fn catch_up_bytes(&self) -> u64 {
        self.catch_up_bytes
    }

    /// A reader of the store, which follows it until [`Reader::has_retired`]. It costs the memory
    /// of a level 0 and some processor time.
    ///
    /// # Errors
    /// [`StoreError::NotServed`] while the backup does not follow a primary, and
    /// [`StoreError::Damaged`].
    pub fn reader(&mut self) -> Result<Arc<Reader>, StoreError> {
        if !matches!(self.mode, Mode::Following(_)) {
            return Err(StoreError::NotServed("this replica is not in sync".to_owned()));
        }
        if let Some(reader) = self.reader.as_ref().filter(|reader| !reader.has_retired()) {
            return Ok(Arc::clone(reader));
        }
        let reader = Arc::new(Reader::open(&self.disk, &self.options)?);
        self.reader = Some(Arc::clone(&reader));
        Ok(reader)
    }

    /// Nobody reads from now on.
    fn retire(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.retire();
        }
    }

    /// A message of a primary, and the answer to it.
    ///
    /// # Errors
    /// Those of the device, and [`StoreError::Unknown`] for a message that has no place here. The
    /// backup has to be opened again then.
    pub fn handle(&mut self, envelope: Envelope) -> Result<Option<Envelope>, StoreError> {
        if envelope.epoch < self.epoch {
            return Ok(Some(Envelope { epoch: self.epoch, message: Message::Stale }));
        }
        let answer = match envelope.message {
            Message::Offer(offer) => {
                self.epoch = envelope.epoch;
                Some(self.join(offer)?)
            }
            _ if envelope.epoch > self.epoch => return Err(out_of_place("an epoch")),
            Message::Table { meta, bytes } => {
                self.table(&meta, &bytes)?;
                None
            }
            Message::Log { segment, offset, bytes, newest } => {
                self.log(segment, offset, &bytes)?;
                if newest.is_some() {
                    self.sync_log()?;
                }
                newest.map(|lsn| {
                    self.lsn = lsn;
                    Message::Delivered { lsn }
                })
            }
            Message::Complete => Some(self.complete()?),
            Message::Edit(edit) => {
                self.edit(&edit)?;
                None
            }
            _ => return Err(out_of_place("a message")),
        };
        Ok(answer.map(|message| Envelope { epoch: self.epoch, message }))
    }

    /// The part of an offer that this directory lacks.
    fn join(&mut self, offer: Offer) -> Result<Message, StoreError> {
        self.retire();
        let own = match &self.mode {
            Mode::Idle(own) => own.clone(),
            Mode::Joining(_) | Mode::Following(_) => read(&self.disk, &self.options)?.0,
        };
        end_log(&self.disk, &own)?;
        let has = |meta: &TableMeta| own.tables.contains(meta);
        let added = offer.state.added.iter().map(|at| &at.meta);
        let tables: Vec<_> =
            added.filter(|meta| !has(meta)).map(|meta| (meta.epoch, meta.id)).collect();
        let mut files = Files::new();
        let mut log = Vec::new();
        for end in &offer.log {
            let there =
                own.segments.iter().find(|it| (it.segment, it.epoch) == (end.segment, end.epoch));
            let from = there.map_or(0, |it| it.end.min(end.end));
            if from > 0 {
                let name = name_of(end.segment);
                let file = self.disk.open(&name).map_err(|error| read_error(&name, &error))?;
                files.insert(end.segment, (file, from));
            }
            if from < end.end {
                log.push((end.segment, from));
            }
        }
        let wanted = tables.iter().copied().collect();
        self.mode = Mode::Joining(Joining { offer, tables: wanted, files });
        Ok(Message::Want { tables, log })
    }

    fn table(&mut self, meta: &TableMeta, bytes: &[u8]) -> Result<(), StoreError> {
        let name = meta.name();
        if bytes.len() as u64 != meta.bytes || checksum(0, bytes) != meta.crc {
            return Err(damaged(&name, "it came with a wrong checksum"));
        }
        match &mut self.mode {
            Mode::Joining(joining) => {
                if !joining.tables.remove(&(meta.epoch, meta.id)) {
                    return Err(out_of_place("a table"));
                }
                self.catch_up_bytes += meta.bytes;
            }
            Mode::Following(_) => {}
            Mode::Idle(_) => return Err(out_of_place("a table")),
        }
        let failed = |error: &std::io::Error| write_error(&name, error);
        let file = self.disk.create(&name, meta.bytes).map_err(|error| failed(&error))?;
        file.write_at(0, bytes).map_err(|error| failed(&error))?;
        file.sync().map_err(|error| failed(&error))
    }

    fn log(&mut self, segment: u64, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let files = match &mut self.mode {
            Mode::Joining(joining) => {
                self.catch_up_bytes += bytes.len() as u64;
                &mut joining.files
            }
            Mode::Following(following) => &mut following.files,
            Mode::Idle(_) => return Err(out_of_place("a part of the log")),
        };
        let name = name_of(segment);
        let failed = |error: &std::io::Error| write_error(&name, error);
        if offset == 0 {
            let header = Header::parse(bytes).filter(|header| header.number == segment);
            let header = header.ok_or_else(|| damaged(&name, "it came without a header"))?;
            let space = header.capacity.max(bytes.len() as u64);
            let file = self.disk.create(&name, space).map_err(|error| failed(&error))?;
            files.insert(segment, (file, 0));
        }
        let (file, end) = files.get_mut(&segment).ok_or_else(|| out_of_place("a segment"))?;
        if offset > *end {
            return Err(out_of_place("a part of the log behind a gap"));
        }
        file.write_at(offset, bytes).map_err(|error| failed(&error))?;
        *end = offset + bytes.len() as u64;
        if let Some(reader) = &self.reader
            && reader.log((segment, offset), bytes, file).is_err()
        {
            // Another one is made from the files if there are reads.
            reader.retire();
        }
        if self.options.is_durable && matches!(self.mode, Mode::Following(_)) {
            self.unsynced.insert(segment);
            if offset == 0 {
                self.disk.sync_names().map_err(|error| sync_error("the directory", &error))?;
            }
        }
        Ok(())
    }

    /// Syncs what came of the log, where the options ask for that.
    fn sync_log(&mut self) -> Result<(), StoreError> {
        let unsynced = std::mem::take(&mut self.unsynced);
        let Mode::Following(following) = &self.mode else { return Ok(()) };
        for segment in unsynced {
            if let Some((file, _)) = following.files.get(&segment) {
                file.sync().map_err(|error| sync_error(&name_of(segment), &error))?;
            }
        }
        Ok(())
    }

    /// The directory becomes as the offer was, by one step of the manifest.
    fn complete(&mut self) -> Result<Message, StoreError> {
        let Mode::Joining(joining) = &mut self.mode else { return Err(out_of_place("an end")) };
        let is_whole = |end: &super::message::LogEnd| {
            joining.files.get(&end.segment).is_some_and(|(_, there)| *there == end.end)
        };
        if !joining.tables.is_empty() || !joining.offer.log.iter().all(is_whole) {
            return Err(out_of_place("an end before all is there"));
        }
        for (segment, (file, _)) in &joining.files {
            file.sync().map_err(|error| sync_error(&name_of(*segment), &error))?;
        }
        self.disk.sync_names().map_err(|error| sync_error("the directory", &error))?;
        let mut state = State::default();
        state.apply(&joining.offer.state).map_err(|what| damaged("an offer", &what))?;
        state.boot.clone_from(&self.options.boot);
        state.closed = None;
        state.epoch = self.epoch;
        let manifest = match find(&*self.disk) {
            Ok(Found::Store(stored)) => stored.take_over(&self.disk, state)?,
            Ok(Found::Nothing) | Err(StoreError::Damaged(_)) => {
                Manifest::create(&self.disk, joining.offer.region, state)?
            }
            Err(error) => return Err(error),
        };
        self.lsn = joining.offer.lsn;
        let files = std::mem::take(&mut joining.files);
        let current = files.keys().next_back().copied();
        for (segment, (file, end)) in &files {
            // Records of an older primary behind the end were never acknowledged.
            if Some(*segment) != current {
                cut(&name_of(*segment), file, *end)?;
            }
        }
        remove_others(&self.disk, manifest.state(), &files)?;
        self.mode = Mode::Following(Following { manifest, files });
        self.damage = None;
        Ok(Message::Joined { lsn: self.lsn })
    }

    fn edit(&mut self, edit: &Edit) -> Result<(), StoreError> {
        let Mode::Following(following) = &mut self.mode else {
            return Err(out_of_place("an edit"));
        };
        if let Some(watermark) = edit.watermark {
            let from = following.manifest.state().watermark.segment;
            for (segment, (file, end)) in following.files.range(from..=watermark.segment) {
                if *segment < watermark.segment {
                    cut(&name_of(*segment), file, *end)?;
                }
                file.sync().map_err(|error| sync_error(&name_of(*segment), &error))?;
            }
        }
        self.disk.sync_names().map_err(|error| sync_error("the directory", &error))?;
        let removed: Vec<String> = following
            .manifest
            .state()
            .levels
            .iter()
            .flatten()
            .filter(|meta| edit.removed.contains(&(meta.epoch, meta.id)))
            .filter(|meta| !edit.added.iter().any(|at| at.meta == **meta))
            .map(TableMeta::name)
            .collect();
        following.manifest.commit(edit)?;
        for segment in &edit.dropped {
            following.files.remove(segment);
        }
        let mut kept = BTreeSet::new();
        if let Some(reader) = &self.reader {
            // A reader that cannot follow removes nothing.
            kept = reader.edit(edit).unwrap_or_else(|_| {
                reader.retire();
                BTreeSet::new()
            });
        }
        let dropped = edit.dropped.iter().map(|segment| name_of(*segment));
        for name in removed.into_iter().chain(dropped).filter(|name| !kept.contains(name)) {
            // A file that stays is removed by the next join or opening.
            let _ = self.disk.remove(&name);
        }
        Ok(())
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.retire();
    }
}

/// The inventory of a directory: of a damaged store nothing, and what is wrong with it.
fn read(disk: &Arc<dyn Disk>, options: &Options) -> Result<(Contents, Option<String>), StoreError> {
    match contents(disk, options) {
        Err(StoreError::Damaged(what)) => Ok((Contents::default(), Some(what))),
        other => Ok((other?, None)),
    }
}

/// Notes in the manifest where the log ends, before a join adds to its segments.
fn end_log(disk: &Arc<dyn Disk>, own: &Contents) -> Result<(), StoreError> {
    if *own == Contents::default() {
        return Ok(());
    }
    if let Found::Store(stored) = find(&**disk)? {
        let mut state = stored.state.clone();
        state.joints.retain(|joint| joint.next != NOWHERE);
        state.joints.push(Joint { end: own.end, next: NOWHERE });
        stored.take_over(disk, state)?;
    }
    Ok(())
}

/// Gives back what a segment reserved and did not need, and what is behind its end.
fn cut(name: &str, file: &Arc<dyn DiskFile>, end: u64) -> Result<(), StoreError> {
    let size = file.size().map_err(|error| read_error(name, &error))?;
    if size > end.max(HEADER_BYTES as u64) {
        file.truncate(end).map_err(|error| write_error(name, &error))?;
    }
    Ok(())
}

fn sync_error(name: &str, error: &std::io::Error) -> StoreError {
    StoreError::ReadOnly(format!("{name}: {error}"))
}

fn out_of_place(what: &str) -> StoreError {
    StoreError::Unknown(format!("{what} of the primary has no place here"))
}

fn remove_others(disk: &Arc<dyn Disk>, state: &State, files: &Files) -> Result<(), StoreError> {
    let tables: BTreeSet<String> = state.levels.iter().flatten().map(TableMeta::name).collect();
    let segments: BTreeSet<String> = files.keys().map(|segment| name_of(*segment)).collect();
    for name in disk.list().map_err(|error| read_error("the directory", &error))? {
        let is_other = (name.starts_with("table-") && !tables.contains(&name))
            || (name.starts_with("log-") && !segments.contains(&name));
        if is_other {
            disk.remove(&name).map_err(|error| write_error(&name, &error))?;
        }
    }
    Ok(())
}
