//! Reads and changes of one command, or of all commands of an EXEC, as one batch of the store.
//!
//! # Invariants
//! - Reads see the changes that were made before. The store sees them when all are over, whole.
//! - The record of a slot counts its heads. A head with an expiry has one pair of
//!   [`layout::EXPIRY`] of the same time.
//! - A collection that lost its head has its pairs removed in the same batch, or a pair of
//!   [`layout::GARBAGE`].

use std::collections::BTreeMap;
use std::ops::Bound;

use weft_kv::node::View;
use weft_kv::store::{Change, Peek, Store, StoreError};

use crate::fault::{Fault, WRONG_TYPE};
use crate::layout::{self, Body, Collection, Head, Record};
use crate::slot::slot;
use crate::slots::Slots;

/// Pairs of a removed collection that are removed with it; more are left to the background.
const REMOVED_AT_ONCE: u64 = 32;
/// Pairs that a scan takes from the store at once.
const SCAN_STEP: usize = 128;

/// A pair whose value may be in part.
pub(crate) type Peeked = (Vec<u8>, Peek);

/// The outcome of a batch.
pub(crate) struct Ended {
    /// Keys that changed.
    pub touched: Vec<Vec<u8>>,
    /// Whether all keys were removed.
    pub is_flushed: bool,
}

/// Numbers of collections: random, so that no two of one slot are equal in practice, on any node.
#[derive(Debug)]
pub(crate) struct Ids(pub u64);

impl Ids {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        layout::mix(self.0)
    }
}

/// The value that a key is to have, or none.
type Fresh = Option<Vec<u8>>;

/// A string, and when it ends.
type Text = (Vec<u8>, Option<u64>);

/// Changes of a batch to be.
pub(crate) struct Transaction<'s> {
    store: &'s dyn Store,
    view: &'s View,
    slots: &'s mut Slots,
    ids: &'s mut Ids,
    /// Milliseconds since 1970.
    pub now: u64,
    /// The longest string (`proto-max-bulk-len`).
    pub text_max: usize,
    changes: BTreeMap<Vec<u8>, Fresh>,
    records: BTreeMap<u16, Record>,
    touched: Vec<Vec<u8>>,
    is_flushed: bool,
    undo: Vec<(Vec<u8>, Option<Fresh>)>,
    undo_records: Vec<(u16, Option<Record>)>,
    undo_touched: usize,
    /// The head that was looked at last.
    memo: Option<(Vec<u8>, Option<Head>)>,
    /// Keys that were looked for, found or not.
    pub hits: u64,
    /// Keys that were looked for and not there.
    pub misses: u64,
}

impl<'s> Transaction<'s> {
    pub(crate) fn new(
        store: &'s dyn Store,
        view: &'s View,
        slots: &'s mut Slots,
        ids: &'s mut Ids,
        now: u64,
    ) -> Self {
        Self {
            store,
            view,
            slots,
            ids,
            now,
            text_max: weft_kv::store::VALUE_LIMIT - layout::HEAD_START,
            changes: BTreeMap::new(),
            records: BTreeMap::new(),
            touched: Vec::new(),
            is_flushed: false,
            undo: Vec::new(),
            undo_records: Vec::new(),
            undo_touched: 0,
            memo: None,
            hits: 0,
            misses: 0,
        }
    }

    /// From here on [`take_back`](Self::take_back) undoes.
    pub(crate) fn begin(&mut self) {
        self.undo.clear();
        self.undo_records.clear();
        self.undo_touched = self.touched.len();
    }

    /// Undoes the changes of a command that failed.
    pub(crate) fn take_back(&mut self) {
        for (key, before) in std::mem::take(&mut self.undo).into_iter().rev() {
            match before {
                Some(change) => self.changes.insert(key, change),
                None => self.changes.remove(&key),
            };
        }
        for (slot, before) in std::mem::take(&mut self.undo_records).into_iter().rev() {
            match before {
                Some(record) => self.records.insert(slot, record),
                None => self.records.remove(&slot),
            };
        }
        self.touched.truncate(self.undo_touched);
        self.memo = None;
    }

    /// Gives all changes to the store, as one batch.
    pub(crate) fn end(mut self) -> Result<Ended, StoreError> {
        for (slot, record) in &self.records {
            let key = layout::area(*slot, layout::RECORD);
            self.changes.insert(key, Some(record.encode()));
        }
        let ended = Ended { touched: self.touched, is_flushed: self.is_flushed };
        if self.changes.is_empty() {
            return Ok(ended);
        }
        let batch = self.changes.into_iter().map(|(key, value)| match value {
            Some(value) => Change::Put { key, value },
            None => Change::Delete { key },
        });
        self.store.write(batch.collect())?;
        for (slot, record) in self.records {
            self.slots.keep(self.view, slot, record);
        }
        Ok(ended)
    }

    /// Whether a key of the slot may have ended.
    pub(crate) fn may_have_ended(&self, slot: u16) -> bool {
        self.slots.may_have_ended(slot, self.now)
    }

    /// The next slot from this one on that this node serves as primary and that has keys.
    pub(crate) fn next_slot(&mut self, from: u16) -> Result<Option<u16>, Fault> {
        for slot in from..crate::slot::SLOTS {
            if self.slots.is_served(self.view, slot) && self.record(slot)?.count > 0 {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    /// The record of a slot.
    pub(crate) fn record(&mut self, slot: u16) -> Result<Record, Fault> {
        match self.records.get(&slot) {
            Some(record) => Ok(*record),
            None => Ok(self.slots.record(self.store, self.view, slot)?),
        }
    }

    fn set_record(&mut self, slot: u16, record: Record) {
        let before = self.records.insert(slot, record);
        self.undo_records.push((slot, before));
    }

    fn change(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        let before = self.changes.insert(key.clone(), value);
        self.undo.push((key, before));
    }

    fn head_place(&mut self, key: &[u8]) -> Result<Vec<u8>, Fault> {
        let generation = self.record(slot(key))?.generation;
        Ok(layout::head(generation, key))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        match self.changes.get(key) {
            Some(change) => Ok(change.clone()),
            None => Ok(self.store.get(key)?),
        }
    }

    fn peek(&self, key: &[u8], at_most: usize) -> Result<Option<Peek>, Fault> {
        let Some(change) = self.changes.get(key) else {
            return Ok(self.store.peek(key, at_most)?);
        };
        Ok(change.as_ref().map(|value| peeked(value, at_most)))
    }

    /// The head of a key, also of one that has ended.
    pub(crate) fn raw(&mut self, key: &[u8]) -> Result<Option<Head>, Fault> {
        if let Some((_, head)) = self.memo.as_ref().filter(|(known, _)| known == key) {
            return Ok(*head);
        }
        let place = self.head_place(key)?;
        let head = match self.peek(&place, layout::HEAD_START)? {
            None => None,
            Some(peek) => Some(decode(&peek)?),
        };
        self.memo = Some((key.to_vec(), head));
        Ok(head)
    }

    /// Whether a key with this expiry has ended.
    pub(crate) fn has_ended(&self, expires: Option<u64>) -> bool {
        expires.is_some_and(|at| at <= self.now)
    }

    /// The head of a key, for changes. A key that has ended is not there.
    pub(crate) fn head(&mut self, key: &[u8]) -> Result<Option<Head>, Fault> {
        let head = self.raw(key)?;
        Ok(head.filter(|head| !self.has_ended(head.expires)))
    }

    /// The head of a key, for reads: it counts as found or not.
    pub(crate) fn look(&mut self, key: &[u8]) -> Result<Option<Head>, Fault> {
        let head = self.head(key)?;
        self.count_look(head.is_some());
        Ok(head)
    }

    fn count_look(&mut self, is_there: bool) {
        if is_there {
            self.hits += 1;
        } else {
            self.misses += 1;
        }
    }

    /// A string with its expiry.
    pub(crate) fn text(&mut self, key: &[u8]) -> Result<Option<Text>, Fault> {
        let place = self.head_place(key)?;
        let Some(mut value) = self.get(&place)? else {
            self.memo = Some((key.to_vec(), None));
            return Ok(None);
        };
        let start = &value[..value.len().min(layout::HEAD_START)];
        let head = decode(&Peek { start: start.to_vec(), length: value.len() })?;
        self.memo = Some((key.to_vec(), Some(head)));
        if self.has_ended(head.expires) {
            return Ok(None);
        }
        match head.body {
            Body::Text(_) => {
                value.drain(..head.text_offset());
                Ok(Some((value, head.expires)))
            }
            Body::Hash(_) | Body::Sorted(_) => Err(WRONG_TYPE),
        }
    }

    /// A string, for reads: it counts as found or not.
    pub(crate) fn read_text(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        let text = self.text(key);
        // A value of another type is found.
        self.count_look(!matches!(text, Ok(None)));
        Ok(text?.map(|(text, _)| text))
    }

    /// Makes the key a string.
    pub(crate) fn put_text(
        &mut self,
        key: &[u8],
        text: &[u8],
        expires: Option<u64>,
    ) -> Result<(), Fault> {
        self.put(key, Head { expires, body: Body::Text(text.len()) }, text)
    }

    /// Sets the head of a key; what was there before goes. `text` are the bytes of a string.
    pub(crate) fn put(&mut self, key: &[u8], head: Head, text: &[u8]) -> Result<(), Fault> {
        let old = self.raw(key)?;
        let slot = slot(key);
        match old {
            None => {
                let record = self.record(slot)?;
                self.set_record(slot, Record { count: record.count + 1, ..record });
            }
            Some(old)
                if collection(old.body).map(|it| it.id)
                    != collection(head.body).map(|it| it.id) =>
            {
                self.discard(slot, old.body)?;
            }
            Some(_) => {}
        }
        self.move_expiry(key, old.and_then(|old| old.expires), head.expires);
        let place = self.head_place(key)?;
        self.change(place, Some(head.encode(text)));
        self.touch(key);
        self.memo = Some((key.to_vec(), Some(head)));
        Ok(())
    }

    /// Sets when a key ends that is there; a string keeps its bytes.
    pub(crate) fn set_expiry(&mut self, key: &[u8], expires: Option<u64>) -> Result<(), Fault> {
        let Some(old) = self.raw(key)? else { return Ok(()) };
        let text = match old.body {
            Body::Text(_) => self.text(key)?.map(|(text, _)| text).unwrap_or_default(),
            Body::Hash(_) | Body::Sorted(_) => Vec::new(),
        };
        self.put(key, Head { expires, ..old }, &text)
    }

    fn move_expiry(&mut self, key: &[u8], old: Option<u64>, new: Option<u64>) {
        if old == new {
            return;
        }
        if let Some(at) = old {
            self.change(layout::expiry(at, key), None);
        }
        if let Some(at) = new {
            self.slots.will_end(slot(key), at);
            self.change(layout::expiry(at, key), Some(Vec::new()));
        }
    }

    /// Removes a key. Says whether it was there; one that has ended was not.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Result<bool, Fault> {
        let Some(old) = self.raw(key)? else { return Ok(false) };
        self.unlink(key, old)?;
        self.discard(slot(key), old.body)?;
        Ok(!self.has_ended(old.expires))
    }

    /// Removes the head of a key and leaves its collection, which another head takes over.
    pub(crate) fn unlink(&mut self, key: &[u8], old: Head) -> Result<(), Fault> {
        let place = self.head_place(key)?;
        self.change(place, None);
        self.move_expiry(key, old.expires, None);
        let record = self.record(slot(key))?;
        let count = record.count.saturating_sub(1);
        self.set_record(slot(key), Record { count, ..record });
        self.touch(key);
        self.memo = Some((key.to_vec(), None));
        Ok(())
    }

    /// Removes the pairs of a collection without a head, now or in the background.
    pub(crate) fn discard(&mut self, slot: u16, body: Body) -> Result<(), Fault> {
        let Some(Collection { id, count }) = collection(body) else { return Ok(()) };
        if count > REMOVED_AT_ONCE {
            self.slots.has_garbage(slot);
            self.change(layout::elements(slot, layout::GARBAGE, id), Some(Vec::new()));
            return Ok(());
        }
        for kind in [layout::FIELD, layout::MEMBER, layout::ORDER] {
            for (key, _) in self.elements(slot, kind, id, usize::MAX, 0)? {
                self.change(key, None);
            }
        }
        Ok(())
    }

    /// At most `limit` pairs of a collection in order, with the first bytes of their values.
    pub(crate) fn elements(
        &mut self,
        slot: u16,
        kind: u8,
        id: u64,
        limit: usize,
        at_most: usize,
    ) -> Result<Vec<Peeked>, Fault> {
        let from = layout::elements(slot, kind, id);
        let to = layout::behind(&from);
        let end = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        self.range(Bound::Included(&from), end, false, limit, at_most)
    }

    /// A number for a new collection.
    pub(crate) fn new_collection(&mut self) -> u64 {
        self.ids.next()
    }

    /// The value of a pair of a collection.
    pub(crate) fn element(
        &mut self,
        slot: u16,
        kind: u8,
        id: u64,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>, Fault> {
        if name.len() > layout::KEY_MAX {
            return Ok(None);
        }
        self.get(&layout::element(slot, kind, id, name))
    }

    /// Whether a pair of a collection is there.
    pub(crate) fn has_element(&self, place: &[u8]) -> Result<bool, Fault> {
        Ok(self.peek(place, 0)?.is_some())
    }

    /// Sets a pair of a collection.
    pub(crate) fn put_element(&mut self, place: Vec<u8>, value: Vec<u8>) {
        self.change(place, Some(value));
    }

    /// Removes a pair of a collection.
    pub(crate) fn remove_element(&mut self, place: Vec<u8>) {
        self.change(place, None);
    }

    /// The key changed: whoever watches it is told.
    pub(crate) fn touch(&mut self, key: &[u8]) {
        self.touched.push(key.to_vec());
    }

    /// Takes all keys of a slot away by its next generation.
    pub(crate) fn flush(&mut self, slot: u16) -> Result<(), Fault> {
        let record = self.record(slot)?;
        let generation = record.generation.wrapping_add(1);
        if generation == record.oldest {
            return Err("BUSY older keys of the slot are still being removed".into());
        }
        self.set_record(slot, Record { count: 0, generation, oldest: record.oldest });
        self.slots.has_garbage(slot);
        self.is_flushed = true;
        self.memo = None;
        Ok(())
    }

    /// Says that the oldest generation of a slot is gone.
    pub(crate) fn drop_generation(&mut self, slot: u16) -> Result<(), Fault> {
        let record = self.record(slot)?;
        if record.oldest != record.generation {
            let oldest = record.oldest.wrapping_add(1);
            self.set_record(slot, Record { oldest, ..record });
        }
        Ok(())
    }

    /// At most `limit` pairs of a range with the first bytes of their values, with all changes.
    pub(crate) fn range(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
        at_most: usize,
    ) -> Result<Vec<Peeked>, Fault> {
        let mut found: Vec<Peeked> = Vec::new();
        let (mut low, mut high) = (from.map(<[u8]>::to_vec), to.map(<[u8]>::to_vec));
        while found.len() < limit {
            let (from, to) = (low.as_ref().map(Vec::as_slice), high.as_ref().map(Vec::as_slice));
            if is_empty_range(from, to) {
                break;
            }
            let step = SCAN_STEP.min(limit - found.len());
            let pairs = self.store.peek_scan(from, to, backward, step, at_most)?;
            let is_last = pairs.len() < step;
            let last = pairs.last().map(|(key, _)| key.clone());
            // Changes up to the last pair that the store gave take part.
            let (from, to) = match (&last, backward) {
                (Some(last), false) if !is_last => (from, Bound::Included(last.as_slice())),
                (Some(last), true) if !is_last => (Bound::Included(last.as_slice()), to),
                _ => (from, to),
            };
            self.merge(pairs, (from, to), backward, at_most, &mut found);
            let Some(last) = last.filter(|_| !is_last) else { break };
            if backward {
                high = Bound::Excluded(last);
            } else {
                low = Bound::Excluded(last);
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    fn merge(
        &self,
        pairs: Vec<Peeked>,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        backward: bool,
        at_most: usize,
        found: &mut Vec<Peeked>,
    ) {
        let changed: Vec<_> = self.changes.range::<[u8], _>(range).collect();
        if changed.is_empty() {
            found.extend(pairs);
            return;
        }
        let mut all: BTreeMap<Vec<u8>, Peek> = pairs.into_iter().collect();
        for (key, value) in changed {
            match value {
                Some(value) => all.insert(key.clone(), peeked(value, at_most)),
                None => all.remove(key),
            };
        }
        if backward {
            found.extend(all.into_iter().rev());
        } else {
            found.extend(all);
        }
    }
}

/// Whether no key can be in a range; `BTreeMap` panics on some of them.
fn is_empty_range(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to))
        | (Bound::Excluded(from), Bound::Included(to)) => from >= to,
        _ => false,
    }
}

fn collection(body: Body) -> Option<Collection> {
    match body {
        Body::Text(_) => None,
        Body::Hash(collection) | Body::Sorted(collection) => Some(collection),
    }
}

fn peeked(value: &[u8], at_most: usize) -> Peek {
    Peek { start: value[..value.len().min(at_most)].to_vec(), length: value.len() }
}

/// Reads a head.
pub(crate) fn decode(peek: &Peek) -> Result<Head, Fault> {
    let damaged = || StoreError::Damaged("the head of a key has no form that is known".to_owned());
    Ok(Head::decode(&peek.start, peek.length).ok_or_else(damaged)?)
}
