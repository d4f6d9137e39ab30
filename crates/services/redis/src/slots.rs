//! Facts about slots that are known without asking the store. They are forgotten when the cluster
//! changes.

use weft_kv::node::View;
use weft_kv::store::{Store, StoreError};

use crate::layout::{self, Record};
use crate::slot::SLOTS;

/// When the first key of a slot may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// The store was not asked yet.
    Unknown,
    /// Not before this time, in milliseconds since 1970.
    NotBefore(u64),
}

#[derive(Clone, Copy, Debug)]
struct Known {
    record: Option<Record>,
    ends: Ends,
    /// Whether something of removed keys may still be there.
    has_garbage: bool,
}

const NOTHING: Known = Known { record: None, ends: Ends::Unknown, has_garbage: true };

/// The facts about each slot: less than 1 MiB together.
#[derive(Debug)]
pub(crate) struct Slots {
    known: Vec<Known>,
    version: u64,
}

impl Slots {
    pub(crate) fn new() -> Self {
        Self { known: vec![NOTHING; usize::from(SLOTS)], version: 0 }
    }

    /// Knows nothing and keeps nothing.
    pub(crate) fn nothing() -> Self {
        Self { known: Vec::new(), version: 0 }
    }

    fn at(&self, slot: u16) -> Known {
        self.known.get(usize::from(slot)).copied().unwrap_or(NOTHING)
    }

    fn change(&mut self, slot: u16, change: impl FnOnce(&mut Known)) {
        if let Some(known) = self.known.get_mut(usize::from(slot)) {
            change(known);
        }
    }

    /// Forgets all when the cluster changed: another node may have written.
    pub(crate) fn follow(&mut self, view: &View) {
        if self.version != view.version {
            self.known.fill(NOTHING);
            self.version = view.version;
        }
    }

    /// Whether this node is the primary of a slot.
    #[expect(clippy::unused_self, reason = "what is known of a slot begins with whose it is")]
    pub(crate) fn is_served(&self, view: &View, slot: u16) -> bool {
        view.region(slot).is_some_and(|region| region.primary == Some(view.myself))
    }

    /// The record of a slot. Of a slot of another primary nothing is kept.
    pub(crate) fn record(
        &mut self,
        store: &dyn Store,
        view: &View,
        slot: u16,
    ) -> Result<Record, StoreError> {
        if let Some(record) = self.at(slot).record {
            return Ok(record);
        }
        let record = match store.get(&layout::area(slot, layout::RECORD))? {
            None => Record::default(),
            Some(value) => Record::decode(&value)
                .ok_or_else(|| StoreError::Damaged(format!("the record of slot {slot}")))?,
        };
        self.keep(view, slot, record);
        Ok(record)
    }

    /// Keeps the record that the store has.
    pub(crate) fn keep(&mut self, view: &View, slot: u16, record: Record) {
        if self.is_served(view, slot) {
            self.change(slot, |known| known.record = Some(record));
        }
    }

    /// A key of the slot will end at this time.
    pub(crate) fn will_end(&mut self, slot: u16, at: u64) {
        self.change(slot, |known| {
            if let Ends::NotBefore(first) = known.ends {
                known.ends = Ends::NotBefore(first.min(at));
            }
        });
    }

    /// The store was asked: no key of the slot ends before this time.
    pub(crate) fn ends_not_before(&mut self, slot: u16, at: u64) {
        self.change(slot, |known| known.ends = Ends::NotBefore(at));
    }

    /// Whether a key of the slot may have ended.
    pub(crate) fn may_have_ended(&self, slot: u16, now: u64) -> bool {
        match self.at(slot).ends {
            Ends::Unknown => true,
            Ends::NotBefore(at) => at <= now,
        }
    }

    /// Something of removed keys is there.
    pub(crate) fn has_garbage(&mut self, slot: u16) {
        self.change(slot, |known| known.has_garbage = true);
    }

    /// Nothing of removed keys is there.
    pub(crate) fn is_clean(&mut self, slot: u16) {
        self.change(slot, |known| known.has_garbage = false);
    }

    /// Whether something of removed keys may be there.
    pub(crate) fn may_have_garbage(&self, slot: u16) -> bool {
        self.at(slot).has_garbage
    }
}
