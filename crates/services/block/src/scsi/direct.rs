//! Reads and writes whose bytes a driver moves itself, without a thread that waits for them:
//! between a place of its own and the memory of the store, or by requests to the file of the store.
//!
//! Invariant: as for a job, the gate of the unit is held from the begin to the end.

use std::sync::Arc;
use std::time::Duration;

use super::job::{Job, Work};
use super::sense::Sense;
use super::unit::{Sanitizing, Status, Unit};
use crate::gate::Held;
use crate::store::Store;

/// A read or write that is under way. One that is dropped was not begun after all, or its initiator
/// is gone: it is not counted.
pub struct Direct {
    unit: Arc<Unit>,
    store: Arc<dyn Store>,
    at: u64,
    length: u64,
    writes: bool,
    is_fua: bool,
    /// Held until the end, and given up in this order.
    _range: Option<Held>,
    _gate: Held,
}

impl Job {
    /// Begins a plain read or write in the memory of the store. `None` if it has to be run: it is
    /// something else, the store is no memory, or it would have to be waited for.
    #[must_use]
    pub fn direct(&self) -> Option<Direct> {
        self.begin_with(|store, at, length, writes| store.hold(at, length, writes).map(Some))
    }

    /// Begins a plain read or write, without FUA, of a store that is a file ([`Store::file`]).
    /// `None` as of [`Job::direct`].
    #[must_use]
    pub fn direct_in_file(&self) -> Option<Direct> {
        if matches!(self.work, Work::Write { fua: true, .. }) {
            return None;
        }
        self.begin_with(|store, _, _, _| store.file().map(|_| None))
    }

    fn begin_with(
        &self,
        hold: impl FnOnce(&dyn Store, u64, u64, bool) -> Option<Option<Held>>,
    ) -> Option<Direct> {
        let (at, length, writes, is_fua) = match self.work {
            Work::Read { at, length } => (at, length, false, false),
            Work::Write { at, length, fua, then_verify: false } => (at, length, true, fua),
            _ => return None,
        };
        if length == 0 || self.is_aborted() {
            return None;
        }
        let gate = self.unit.gate.try_shared()?;
        if self.unit.state.lock().sanitizing != Sanitizing::No {
            return None;
        }
        let store = self.unit.store();
        if at.checked_add(length)? > store.bytes() {
            return None;
        }
        let range = hold(&*store, at, length, writes)?;
        self.unit.statistics().begin();
        let unit = Arc::clone(&self.unit);
        let (_range, _gate) = (range, gate);
        Some(Direct { unit, store, at, length, writes, is_fua, _range, _gate })
    }

    /// Whether [`Job::direct`] is worth trying.
    #[must_use]
    pub fn may_be_direct(&self) -> bool {
        let is_plain =
            matches!(self.work, Work::Read { .. } | Work::Write { then_verify: false, .. });
        is_plain && self.unit.store().memory().is_some()
    }
}

impl std::fmt::Debug for Direct {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let way = if self.writes { "to" } else { "from" };
        write!(formatter, "Direct({} bytes {way} {})", self.length, self.at)
    }
}

impl Direct {
    /// The store.
    #[must_use]
    pub const fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The place of the first byte in the store, and the number of bytes.
    #[must_use]
    pub const fn range(&self) -> (u64, u64) {
        (self.at, self.length)
    }

    /// Whether bytes are moved to the store.
    #[must_use]
    pub const fn writes(&self) -> bool {
        self.writes
    }

    /// The bytes were moved, or not for the reason given, and that took so long. Returns the status
    /// of the command.
    #[must_use]
    pub fn end(self, moved: Result<(), Sense>, took: Duration) -> Status {
        let flushed = match moved {
            Ok(()) if self.is_fua => self.store.flush().map_err(Sense::of_store),
            moved => moved,
        };
        let status = flushed.map_or_else(Status::Check, |()| Status::Good);
        self.count(status == Status::Good, took);
        status
    }

    fn count(&self, is_good: bool, took: Duration) {
        let statistics = self.unit.statistics();
        let counters = if self.writes { &statistics.writes } else { &statistics.reads };
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        counters.count(if is_good { self.length } else { 0 }, nanoseconds, is_good);
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.unit.statistics().end();
    }
}
