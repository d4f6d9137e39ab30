//! Work between commands: keys that have ended go, and so do the pairs of removed keys.

use std::ops::Bound;

use crate::fault::Fault;
use crate::layout::{self, Body};
use crate::server::Server;
use crate::slot::SLOTS;
use crate::transaction::{self, Transaction};

/// Slots that are looked at in one step.
const SLOTS_OF_STEP: u16 = 256;
/// Slots with something to do in one step.
const BUSY_OF_STEP: u16 = 16;
/// Keys that are removed in one batch.
const KEYS_OF_BATCH: usize = 64;
/// Pairs of collections that are removed in one batch.
const PAIRS_OF_BATCH: usize = 256;

/// The slot to look at next.
#[derive(Debug, Default)]
pub(crate) struct Place(u16);

/// One step. Says whether there is more to do at once.
pub(crate) fn step(server: &mut Server) -> bool {
    let now = crate::server::millis(server.clock.wall());
    let (mut busy, mut looked) = (0, 0);
    for _ in 0..SLOTS {
        if busy == BUSY_OF_STEP || looked == SLOTS_OF_STEP {
            return true;
        }
        let slot = server.place.0;
        server.place.0 = (slot + 1) % SLOTS;
        let has_ended = server.slots.may_have_ended(slot, now);
        let has_garbage = server.slots.may_have_garbage(slot);
        if !server.slots.is_served(&server.view, slot) || !(has_ended || has_garbage) {
            continue;
        }
        looked += 1;
        let did = expire(server, slot).and_then(|did| Ok(did | collect(server, slot)?));
        match did {
            Ok(did) => busy += u16::from(did),
            // The store takes no writes now. It is tried again with the next tick.
            Err(_) => return false,
        }
    }
    busy > 0
}

/// Removes keys of a slot that have ended. Says whether there were some.
fn expire(server: &mut Server, slot: u16) -> Result<bool, Fault> {
    let (removed, seen) = server.transact(|tx| expire_keys(tx, slot))?;
    server.counters.expired += removed;
    if seen == KEYS_OF_BATCH {
        return Ok(true);
    }
    let area = layout::area(slot, layout::EXPIRY);
    let end = layout::behind(&area);
    let first = server.transact(|tx| {
        let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        tx.range(Bound::Included(&area), end, false, 1, 0)
    })?;
    let at = first.first().and_then(|(place, _)| time_of(place));
    server.slots.ends_not_before(slot, at.unwrap_or(u64::MAX));
    Ok(seen > 0)
}

fn time_of(place: &[u8]) -> Option<u64> {
    place.get(3..)?.first_chunk::<8>().map(|at| u64::from_be_bytes(*at))
}

/// A pair of an expiry: its key in the store, its time and the user's key.
type EndedKey = (Vec<u8>, u64, Vec<u8>);

/// The pairs of keys of a slot that have ended.
pub(crate) fn ended(tx: &Transaction<'_>, slot: u16, limit: usize) -> Result<Vec<EndedKey>, Fault> {
    let from = layout::area(slot, layout::EXPIRY);
    let mut to = from.clone();
    to.extend_from_slice(&(tx.now.saturating_add(1)).to_be_bytes());
    let pairs = tx.range(Bound::Included(&from), Bound::Excluded(&to), false, limit, 0)?;
    let part = |(place, _): (Vec<u8>, _)| {
        let at = time_of(&place)?;
        let key = place.get(layout::EXPIRY_PREFIX..)?.to_vec();
        Some((place, at, key))
    };
    Ok(pairs.into_iter().filter_map(part).collect())
}

fn expire_keys(tx: &mut Transaction<'_>, slot: u16) -> Result<(u64, usize), Fault> {
    let ended = ended(tx, slot, KEYS_OF_BATCH)?;
    let (seen, mut removed) = (ended.len(), 0);
    for (place, at, key) in ended {
        if tx.raw(&key)?.is_some_and(|head| head.expires == Some(at)) {
            tx.remove(&key)?;
            removed += 1;
        } else {
            // It belongs to a key of an older generation.
            tx.remove_element(place);
        }
    }
    Ok((removed, seen))
}

/// Removes pairs of removed keys of a slot. Says whether there were some.
fn collect(server: &mut Server, slot: u16) -> Result<bool, Fault> {
    if !server.slots.may_have_garbage(slot) {
        return Ok(false);
    }
    let did = server.transact(|tx| Ok(collect_pairs(tx, slot)? || collect_heads(tx, slot)?))?;
    if !did {
        server.slots.is_clean(slot);
    }
    Ok(did)
}

fn collect_pairs(tx: &mut Transaction<'_>, slot: u16) -> Result<bool, Fault> {
    let from = layout::area(slot, layout::GARBAGE);
    let to = layout::behind(&from);
    let end = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let first = tx.range(Bound::Included(&from), end, false, 1, 0)?;
    let Some((garbage, _)) = first.into_iter().next() else { return Ok(false) };
    let id = garbage
        .get(3..)
        .and_then(|it| it.first_chunk::<8>())
        .map_or(0, |it| u64::from_be_bytes(*it));
    for kind in [layout::FIELD, layout::MEMBER, layout::ORDER] {
        let pairs = tx.elements(slot, kind, id, PAIRS_OF_BATCH, 0)?;
        if !pairs.is_empty() {
            pairs.into_iter().for_each(|(place, _)| tx.remove_element(place));
            return Ok(true);
        }
    }
    tx.remove_element(garbage);
    Ok(true)
}

/// Removes heads of older generations, which FLUSHALL left.
fn collect_heads(tx: &mut Transaction<'_>, slot: u16) -> Result<bool, Fault> {
    let record = tx.record(slot)?;
    if record.oldest == record.generation {
        return Ok(false);
    }
    let from = layout::heads(slot, record.oldest, 0);
    let to = layout::behind(&from[..layout::HEAD_PREFIX - 6]);
    let end = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let heads = tx.range(Bound::Included(&from), end, false, KEYS_OF_BATCH, layout::HEAD_START)?;
    if heads.is_empty() {
        tx.drop_generation(slot)?;
        return Ok(true);
    }
    for (place, peek) in heads {
        let head = transaction::decode(&peek)?;
        let key = place[layout::HEAD_PREFIX..].to_vec();
        if let Some(at) = head.expires {
            let live = tx.raw(&key)?.and_then(|head| head.expires);
            if live != Some(at) {
                tx.remove_element(layout::expiry(at, &key));
            }
        }
        if !matches!(head.body, Body::Text(_)) {
            tx.discard(slot, head.body)?;
        }
        tx.remove_element(place);
    }
    Ok(true)
}
