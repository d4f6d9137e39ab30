//! A logical unit: its state, and which commands it takes.
//!
//! Invariants: `state` is held for a few instructions, never while a store works. A command is
//! checked in the order of SAM-5 section 5.3.3: does the command exist, is there a unit attention,
//! does a reservation forbid it, is the unit ready; then its fields.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use super::BLOCK_BYTES;
use super::inquiry::{self, Identity, Nature};
use super::job::Job;
use super::mode::{self, Medium, Settings};
use super::opcodes::{self, Access, Name, Row};
use super::report;
use super::reservation::{Notice, Port, Reservations, old_reservation_forbids};
use super::sense::{Key, Sense};
use super::work::{short, word};
use crate::gate::Gate;
use crate::statistics::Statistics;
use crate::store::{Keeper, Store, StoreError};

/// Sessions that a unit serves at most.
pub const LINKS_MAX: usize = 4096;
/// Unit attentions that are kept for a session; older ones give way.
const ATTENTIONS_MAX: usize = 8;

const POWER_ON: (u8, u8) = (0x29, 0x00);
const UNIT_RESET: (u8, u8) = (0x29, 0x03);
const COMMANDS_CLEARED: (u8, u8) = (0x2f, 0x00);
const MODE_CHANGED: (u8, u8) = (0x2a, 0x01);
const CAPACITY_CHANGED: (u8, u8) = (0x2a, 0x09);
const LUNS_CHANGED: (u8, u8) = (0x3f, 0x0e);
const MEDIUM_CHANGED: (u8, u8) = (0x28, 0x00);

/// A session's way to a unit (an I_T nexus of SAM-5).
#[derive(Debug)]
pub struct Link {
    /// Distinguishes sessions, also of one initiator port.
    number: u64,
    port: Port,
    /// How often its tasks were aborted from outside of its session.
    aborts: AtomicU64,
}

impl Link {
    /// How often tasks of this session were aborted by others: a task that began at another count
    /// is to end without an answer.
    #[must_use]
    pub fn aborts(&self) -> u64 {
        self.aborts.load(Ordering::Acquire)
    }

    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn port(&self) -> &Port {
        &self.port
    }
}

/// The end of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// GOOD.
    Good,
    /// CHECK CONDITION.
    Check(Sense),
    /// RESERVATION CONFLICT.
    Conflict,
    /// BUSY: to be tried again later.
    Busy,
}

/// The answer to a command that needs no work on the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// How it ended.
    pub status: Status,
    /// The data, cut to the allocation length.
    pub data: Vec<u8>,
}

impl Reply {
    const fn of(status: Status) -> Self {
        Self { status, data: Vec::new() }
    }
}

/// The outcome of a command.
#[derive(Debug)]
pub enum Begun {
    /// It is done.
    Done(Reply),
    /// It is to be run, with its data.
    Job(Job),
}

/// The other units of the target.
pub trait Directory {
    /// The numbers of all units, in order.
    fn numbers(&self) -> Vec<u64>;
    /// The unit that a designator of EXTENDED COPY names (kind, bytes).
    fn by_designator(&self, kind: u8, bytes: &[u8]) -> Option<Arc<Unit>>;
}

/// A target of one unit, whose number does not matter.
#[derive(Clone, Copy, Debug)]
pub struct NoUnits;

impl Directory for NoUnits {
    fn numbers(&self) -> Vec<u64> {
        vec![0]
    }

    fn by_designator(&self, _: u8, _: &[u8]) -> Option<Arc<Unit>> {
        None
    }
}

/// How a unit is made.
#[derive(Clone, Copy, Default, Debug)]
pub struct UnitOptions {
    /// Whether its medium can be taken out.
    pub is_removable: bool,
    /// Whether it cannot be written, whatever the store says.
    pub is_read_only: bool,
}

#[derive(Debug)]
struct Linked {
    link: Arc<Link>,
    attentions: VecDeque<(u8, u8)>,
    prevents_removal: bool,
}

/// The state of a unit after a sanitize.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sanitizing {
    No,
    /// In progress, by parts of 65,536.
    Runs(u16),
    Failed,
}

#[derive(Debug)]
pub(super) struct State {
    links: BTreeMap<u64, Linked>,
    pub(super) reservations: Reservations,
    old_reservation: Option<u64>,
    pub(super) settings: Settings,
    is_stopped: bool,
    is_ejected: bool,
    pub(super) sanitizing: Sanitizing,
    pub(super) copies: VecDeque<(u64, super::copy::Result)>,
}

/// A logical unit. The module lists its invariants.
pub struct Unit {
    identity: Identity,
    options: UnitOptions,
    store: RwLock<Arc<dyn Store>>,
    keeper: Option<Arc<dyn Keeper>>,
    /// Held shared by work on the store, and alone by work that nothing may come between.
    pub(super) gate: Arc<Gate>,
    pub(super) state: Mutex<State>,
    /// Work with settings other than the usual: a write cache that is off.
    is_write_through: AtomicBool,
    links_made: AtomicU64,
    statistics: Statistics,
}

impl std::fmt::Debug for Unit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { identity, options, state, .. } = self;
        formatter
            .debug_struct("Unit")
            .field("identity", identity)
            .field("options", options)
            .field("state", state)
            .finish_non_exhaustive()
    }
}

impl Unit {
    /// A unit over a store. `kept` are the bytes that the keeper has from earlier.
    ///
    /// # Errors
    /// The kept bytes are none that a unit gave the keeper.
    pub fn new(
        identity: Identity,
        options: UnitOptions,
        store: Arc<dyn Store>,
        keeper: Option<Arc<dyn Keeper>>,
        kept: Option<&[u8]>,
    ) -> Result<Self, serde_json::Error> {
        let reservations = kept.map(Reservations::of_kept).transpose()?.unwrap_or_default();
        let state = State {
            links: BTreeMap::new(),
            reservations,
            old_reservation: None,
            settings: Settings::default(),
            is_stopped: false,
            is_ejected: false,
            sanitizing: Sanitizing::No,
            copies: VecDeque::new(),
        };
        Ok(Self {
            identity,
            options,
            store: RwLock::new(store),
            keeper,
            gate: Arc::default(),
            state: Mutex::new(state),
            is_write_through: AtomicBool::new(false),
            links_made: AtomicU64::new(1),
            statistics: Statistics::default(),
        })
    }

    /// Its names.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its counters.
    #[must_use]
    pub const fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// The bytes behind it.
    #[must_use]
    pub fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store.read())
    }

    /// Its size in blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.store.read().bytes() / u64::from(BLOCK_BYTES)
    }

    /// Whether writing is refused, now.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.options.is_read_only || self.store.read().is_read_only()
    }

    /// Whether every write has to outlast a failure of power.
    #[must_use]
    pub fn is_write_through(&self) -> bool {
        self.is_write_through.load(Ordering::Relaxed)
    }

    /// The sessions that use it.
    #[must_use]
    pub fn links(&self) -> usize {
        self.state.lock().links.len()
    }

    /// Adds a session. `None` when there are too many.
    #[must_use]
    pub fn attach(&self, port: &Port) -> Option<Arc<Link>> {
        let number = self.links_made.fetch_add(1, Ordering::Relaxed);
        let link = Arc::new(Link { number, port: port.clone(), aborts: AtomicU64::new(0) });
        let mut state = self.state.lock();
        if state.links.len() >= LINKS_MAX {
            return None;
        }
        let attentions = VecDeque::from([POWER_ON]);
        let linked = Linked { link: Arc::clone(&link), attentions, prevents_removal: false };
        state.links.insert(number, linked);
        Some(link)
    }

    /// Ends a session: what belongs to it alone ends with it.
    pub fn detach(&self, link: &Link) {
        let mut state = self.state.lock();
        state.links.remove(&link.number);
        if state.old_reservation == Some(link.number) {
            state.old_reservation = None;
        }
    }

    /// Does something while no command works on the store.
    pub fn while_quiet<T>(&self, work: impl FnOnce() -> T) -> T {
        let _alone = self.gate.alone();
        work()
    }

    /// Replaces the store, after a change of size, and tells all sessions.
    pub fn resize(&self, store: Arc<dyn Store>) {
        *self.store.write() = store;
        self.state.lock().tell_all(None, CAPACITY_CHANGED);
    }

    /// Tells all sessions that units came or went.
    pub fn luns_changed(&self) {
        self.state.lock().tell_all(None, LUNS_CHANGED);
    }

    /// LOGICAL UNIT RESET (SAM-5 section 7.5): aborts all tasks. The work that already runs on the
    /// store is waited for by a [`Job::barrier`].
    pub fn reset(&self) {
        let mut state = self.state.lock();
        state.old_reservation = None;
        for linked in state.links.values_mut() {
            linked.link.aborts.fetch_add(1, Ordering::AcqRel);
            linked.prevents_removal = false;
        }
        state.tell_all(None, UNIT_RESET);
    }

    /// CLEAR TASK SET: aborts the tasks of all sessions, and tells the others.
    pub fn clear_tasks(&self, by: &Link) {
        let mut state = self.state.lock();
        for linked in state.links.values() {
            linked.link.aborts.fetch_add(1, Ordering::AcqRel);
        }
        state.tell_all(Some(by.number), COMMANDS_CLEARED);
    }

    /// ABORT TASK SET: aborts the tasks of one session.
    pub fn abort_tasks(&self, link: &Link) {
        link.aborts.fetch_add(1, Ordering::AcqRel);
    }

    /// Sense data in the format that the unit is set to.
    #[must_use]
    pub fn encode(&self, sense: &Sense) -> Vec<u8> {
        sense.encode(self.state.lock().settings.sense_as_descriptors)
    }

    /// Takes a command of a session.
    #[must_use]
    pub fn begin(
        self: &Arc<Self>,
        link: &Arc<Link>,
        command: &[u8; 16],
        directory: &dyn Directory,
    ) -> Begun {
        match self.admit(link, command, directory) {
            Ok(begun) => begun,
            Err(status) => Begun::Done(Reply::of(status)),
        }
    }

    /// Whether an access that is no SCSI command (NBD) is allowed now.
    ///
    /// # Errors
    /// The status that a command would have.
    pub fn permit(&self, link: &Link, access: Access) -> Result<(), Status> {
        let state = self.state.lock();
        if state.old_reservation.is_some() || !state.reservations.allow(&link.port, access) {
            return Err(Status::Conflict);
        }
        state.is_ready()?;
        if access == Access::Writes {
            self.check_writable(&state)?;
        }
        Ok(())
    }

    /// Keeps the reservations, if the unit has a keeper.
    pub(super) fn keep(&self, bytes: &[u8]) -> Result<(), StoreError> {
        self.keeper.as_ref().map_or(Ok(()), |keeper| keeper.keep(bytes))
    }

    pub(super) fn has_keeper(&self) -> bool {
        self.keeper.is_some()
    }

    pub(super) fn notify(&self, notices: &[Notice]) {
        let mut state = self.state.lock();
        for notice in notices {
            for linked in state.links.values_mut().filter(|it| it.link.port == notice.port) {
                linked.tell(notice.code);
                if notice.aborts {
                    linked.link.aborts.fetch_add(1, Ordering::AcqRel);
                }
            }
        }
    }

    pub(super) fn medium(&self, state: &State) -> Medium {
        Medium {
            blocks: self.blocks(),
            block_bytes: BLOCK_BYTES,
            is_protected: self.check_writable(state).is_err(),
        }
    }

    /// MODE SELECT, with its data.
    pub(super) fn select(&self, link: &Link, command: &[u8; 16], data: &[u8]) -> Result<(), Sense> {
        let mut state = self.state.lock();
        let after = mode::select(command, data, state.settings, self.medium(&state))?;
        if after != state.settings {
            state.settings = after;
            self.is_write_through.store(!after.write_cache, Ordering::Relaxed);
            state.tell_all(Some(link.number), MODE_CHANGED);
        }
        Ok(())
    }

    pub(super) fn nature(&self) -> Nature {
        Nature { is_thin: self.store.read().is_thin(), is_removable: self.options.is_removable }
    }

    fn check_writable(&self, state: &State) -> Result<(), Sense> {
        if state.settings.write_protected {
            // SOFTWARE WRITE PROTECTED.
            return Err(Sense::new(Key::DataProtect, 0x27, 0x02));
        }
        if self.is_read_only() { Err(Sense::WRITE_PROTECTED) } else { Ok(()) }
    }

    fn admit(
        self: &Arc<Self>,
        link: &Arc<Link>,
        command: &[u8; 16],
        directory: &dyn Directory,
    ) -> Result<Begun, Status> {
        let row = opcodes::find(command)?;
        let mut state = self.state.lock();
        let linked = state.links.get_mut(&link.number);
        let is_for_everybody =
            matches!(row.name, Name::Inquiry | Name::ReportLuns | Name::RequestSense);
        if let Some(linked) = linked
            && !is_for_everybody
            && let Some(code) = linked.attentions.pop_front()
        {
            return Err(Sense::new(Key::UnitAttention, code.0, code.1).into());
        }
        state.check_reservations(link, row)?;
        let needs_medium = !matches!(
            row.name,
            Name::Inquiry
                | Name::ReportLuns
                | Name::RequestSense
                | Name::StartStopUnit
                | Name::PreventAllow
                | Name::ModeSense
                | Name::ModeSelect
                | Name::Reserve6
                | Name::Release6
                | Name::ReserveIn
                | Name::ReserveOut
                | Name::ReportOpcodes
                | Name::ReportTaskManagement
        );
        // All but a few commands wait for the end of a sanitize; SBC-3 section 4.11.3.
        let waits = !is_for_everybody && !matches!(row.name, Name::ReserveIn | Name::ReportOpcodes);
        match state.sanitizing {
            Sanitizing::No if needs_medium => state.is_ready()?,
            Sanitizing::Runs(progress) if waits => {
                let sense = Sense::new(Key::NotReady, 0x04, 0x1b);
                return Err(Sense { progress: Some(progress), ..sense }.into());
            }
            Sanitizing::Failed if needs_medium && row.name != Name::Sanitize => {
                return Err(Sense::new(Key::Medium, 0x31, 0x03).into());
            }
            _ => {}
        }
        self.control(&mut state, link, row, command, directory)
            .transpose()
            .map(|done| done.map(Begun::Done))
            .unwrap_or_else(|| {
                let changes = row.access == Access::Writes
                    && !matches!(row.name, Name::ModeSelect | Name::SynchronizeCache);
                if changes {
                    self.check_writable(&state)?;
                }
                drop(state);
                let work = self.work(row, command)?;
                Ok(Begun::Job(Job::new(self, link, work)))
            })
    }

    /// Commands that are answered from the state of the unit; `None` for the others.
    fn control(
        &self,
        state: &mut State,
        link: &Link,
        row: &Row,
        command: &[u8; 16],
        directory: &dyn Directory,
    ) -> Result<Option<Reply>, Status> {
        let (data, allocation) = match row.name {
            Name::TestUnitReady => (Vec::new(), 0),
            Name::Reserve6 => {
                if state.reservations.is_in_use() {
                    return Err(Status::Conflict);
                }
                state.old_reservation = Some(link.number);
                (Vec::new(), 0)
            }
            Name::Release6 => {
                if state.reservations.is_in_use() {
                    return Err(Status::Conflict);
                }
                if state.old_reservation == Some(link.number) {
                    state.old_reservation = None;
                }
                (Vec::new(), 0)
            }
            Name::RequestSense => {
                let sense = state.pending_sense(link);
                (sense.encode(command[1] & 1 != 0), usize::from(command[4]))
            }
            Name::Inquiry => {
                let data = inquiry::inquiry(command, &self.identity, self.nature())?;
                (data, usize::from(u16::from_be_bytes([command[3], command[4]])))
            }
            Name::ReportLuns => {
                let data = report::luns(command, &directory.numbers())?;
                (data, word(command, 6))
            }
            Name::ModeSense => {
                let data = mode::sense(command, state.settings, self.medium(state))?;
                (data, if row.opcode == 0x1a { command[4].into() } else { short(command, 7) })
            }
            Name::StartStopUnit => {
                state.start_stop(command, self.options.is_removable)?;
                (Vec::new(), 0)
            }
            Name::PreventAllow => {
                if let Some(linked) = state.links.get_mut(&link.number) {
                    linked.prevents_removal = command[4] & 1 != 0;
                }
                (Vec::new(), 0)
            }
            Name::ReadCapacity10 => (report::capacity_10(command, self.blocks())?, 8),
            Name::ReadCapacity16 => {
                let data = report::capacity_16(command, self.blocks(), self.nature().is_thin)?;
                (data, word(command, 10))
            }
            Name::ReserveIn => (state.reservations.report(command[1] & 0x1f), short(command, 7)),
            Name::ReportOpcodes => (report::opcodes(command)?, word(command, 6)),
            Name::ReportTaskManagement => (report::task_management(command), word(command, 6)),
            Name::ReadDefectData => report::defects(command),
            Name::ReceiveCopyResults => {
                (super::copy::results(command, &state.copies, link.number)?, word(command, 10))
            }
            _ => return Ok(None),
        };
        let mut data = data;
        data.truncate(allocation);
        Ok(Some(Reply { status: Status::Good, data }))
    }

    pub(super) fn check_range(&self, block: u64, blocks: u64) -> Result<(), Sense> {
        let end = block.checked_add(blocks).ok_or(Sense::OUT_OF_RANGE)?;
        if end > self.blocks() { Err(Sense::OUT_OF_RANGE) } else { Ok(()) }
    }
}

impl State {
    fn tell_all(&mut self, but: Option<u64>, code: (u8, u8)) {
        for (number, linked) in &mut self.links {
            if Some(*number) != but {
                linked.tell(code);
            }
        }
    }

    fn check_reservations(&self, link: &Link, row: &Row) -> Result<(), Status> {
        let others = self.old_reservation.is_some_and(|holder| holder != link.number);
        if others && old_reservation_forbids(row.name) {
            return Err(Status::Conflict);
        }
        if self.reservations.allow(&link.port, row.access) { Ok(()) } else { Err(Status::Conflict) }
    }

    fn is_ready(&self) -> Result<(), Status> {
        if self.is_ejected {
            return Err(Sense::NO_MEDIUM.into());
        }
        if self.is_stopped {
            // INITIALIZING COMMAND REQUIRED.
            return Err(Sense::new(Key::NotReady, 0x04, 0x02).into());
        }
        Ok(())
    }

    /// The report of REQUEST SENSE.
    fn pending_sense(&mut self, link: &Link) -> Sense {
        let linked = self.links.get_mut(&link.number);
        if let Some(code) = linked.and_then(|linked| linked.attentions.pop_front()) {
            return Sense::new(Key::UnitAttention, code.0, code.1);
        }
        match self.sanitizing {
            Sanitizing::Runs(progress) => {
                Sense { progress: Some(progress), ..Sense::new(Key::NotReady, 0x04, 0x1b) }
            }
            _ => Sense::new(Key::NoSense, 0, 0),
        }
    }

    fn start_stop(&mut self, command: &[u8; 16], is_removable: bool) -> Result<(), Sense> {
        let (power, loads, starts) = (command[4] >> 4, command[4] & 2 != 0, command[4] & 1 != 0);
        if power != 0 {
            // Power conditions do nothing here, as SBC-3 allows.
            return Ok(());
        }
        match (loads && is_removable, starts) {
            (true, true) if self.is_ejected => {
                self.is_ejected = false;
                self.is_stopped = false;
                self.tell_all(None, MEDIUM_CHANGED);
            }
            (true, false) => {
                if self.links.values().any(|linked| linked.prevents_removal) {
                    // MEDIUM REMOVAL PREVENTED.
                    return Err(Sense::new(Key::IllegalRequest, 0x53, 0x02));
                }
                self.is_ejected = true;
            }
            (_, starts) => self.is_stopped = !starts,
        }
        Ok(())
    }
}

impl Linked {
    fn tell(&mut self, code: (u8, u8)) {
        if self.attentions.contains(&code) {
            return;
        }
        if self.attentions.len() == ATTENTIONS_MAX {
            self.attentions.pop_front();
        }
        self.attentions.push_back(code);
    }
}

impl From<Sense> for Status {
    fn from(sense: Sense) -> Self {
        Self::Check(sense)
    }
}

/// A command to a number at which there is no unit; SPC-4 section 4.6.1.
#[must_use]
pub fn absent(command: &[u8; 16], numbers: &[u64]) -> Reply {
    let answer = |row: &Row| {
        let (mut data, allocation) = match row.name {
            Name::Inquiry => {
                let data = inquiry::inquiry_of_none(command)?;
                (data, usize::from(u16::from_be_bytes([command[3], command[4]])))
            }
            Name::ReportLuns => (report::luns(command, numbers)?, word(command, 6)),
            Name::RequestSense => {
                (Sense::NO_UNIT.encode(command[1] & 1 != 0), usize::from(command[4]))
            }
            _ => return Err(Sense::NO_UNIT),
        };
        data.truncate(allocation);
        Ok(data)
    };
    match opcodes::find(command).map_err(|_| Sense::NO_UNIT).and_then(answer) {
        Ok(data) => Reply { status: Status::Good, data },
        Err(sense) => Reply::of(sense.into()),
    }
}
