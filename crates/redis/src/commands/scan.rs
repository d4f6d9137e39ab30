//! Going through all keys.
//!
//! A cursor of SCAN is a place in the order of slot and hash: the slot times 2^48 plus the hash of
//! the next key. It has no state in the server, and a key that is there all the time is passed
//! exactly once, whatever happens to others.

use std::ops::Bound;

use weft_resp::Reply;

use super::key::type_name;
use super::{integer, is};
use crate::background;
use crate::fault::{Done, Fault, SYNTAX};
use crate::glob;
use crate::layout::{self, Head};
use crate::slot::SLOTS;
use crate::transaction::{self, Transaction};

/// A key with its head.
type Found = (Vec<u8>, Head);

/// Heads of a slot from a hash on, also of keys that have ended; at most `limit`, and then those
/// with the hash of the last one.
fn heads(
    tx: &mut Transaction<'_>,
    slot: u16,
    hash: u64,
    limit: usize,
) -> Result<Vec<(u64, Found)>, Fault> {
    let generation = tx.record(slot)?.generation;
    let from = layout::heads(slot, generation, hash);
    let all = layout::behind(&from[..layout::HEAD_PREFIX - 6]);
    let end = |key: &Option<Vec<u8>>| key.clone().map_or(Bound::Unbounded, Bound::Excluded);
    let range = |tx: &Transaction<'_>, from: Bound<&[u8]>, to: Bound<Vec<u8>>, limit: usize| {
        tx.range(from, to.as_ref().map(Vec::as_slice), false, limit, layout::HEAD_START)
    };
    let mut pairs = range(tx, Bound::Included(&from), end(&all), limit)?;
    if let (true, Some((last, _))) = (pairs.len() == limit, pairs.last()) {
        let last = last.clone();
        let same = layout::behind(&last[..layout::HEAD_PREFIX]);
        pairs.extend(range(tx, Bound::Excluded(&last), end(&same), usize::MAX)?);
    }
    let mut found = Vec::with_capacity(pairs.len());
    for (place, peek) in pairs {
        let hash = layout::hash_of(&place[layout::HEAD_PREFIX - 6..]);
        let key = place[layout::HEAD_PREFIX..].to_vec();
        found.push((hash, (key, transaction::decode(&peek)?)));
    }
    Ok(found)
}

/// Keys from a cursor on: about `count` of them, and the next cursor, which is 0 at the end.
fn part(tx: &mut Transaction<'_>, cursor: u64, count: usize) -> Result<(u64, Vec<Found>), Fault> {
    let mut found = Vec::new();
    let (mut from, mut hash) = (
        u16::try_from(cursor >> layout::HASH_BITS).unwrap_or(SLOTS),
        cursor & ((1 << layout::HASH_BITS) - 1),
    );
    while let Some(slot) = tx.next_slot(from)? {
        if slot != from {
            hash = 0;
        }
        let left = count - found.len();
        let heads = heads(tx, slot, hash, left)?;
        let is_last = heads.len() < left;
        let last = heads.last().map(|(hash, _)| *hash);
        found.extend(heads.into_iter().map(|(_, one)| one));
        match last.filter(|_| !is_last) {
            Some(last) => {
                let next = (u64::from(slot) << layout::HASH_BITS) + last + 1;
                return Ok((next, found));
            }
            None => (from, hash) = (slot + 1, 0),
        }
    }
    Ok((0, found))
}

pub(crate) fn scan(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let cursor = std::str::from_utf8(words[1]).ok().and_then(|text| text.parse::<u64>().ok());
    let cursor = cursor.ok_or("ERR invalid cursor")?;
    let (mut count, mut pattern, mut wanted) = (10, None, None);
    let (options, rest) = words[2..].as_chunks::<2>();
    for [name, value] in options {
        if is(name, "COUNT") {
            count = usize::try_from(integer(value)?).ok().filter(|it| *it > 0).ok_or(SYNTAX)?;
        } else if is(name, "MATCH") {
            pattern = Some(*value);
        } else if is(name, "TYPE") {
            wanted = Some(*value);
        } else {
            return Err(SYNTAX);
        }
    }
    if !rest.is_empty() {
        return Err(SYNTAX);
    }
    let (next, mut found) = part(tx, cursor, count)?;
    found.retain(|(key, head)| {
        !tx.has_ended(head.expires)
            && pattern.is_none_or(|pattern| glob::fits(pattern, key))
            && wanted.is_none_or(|wanted| is(wanted, type_name(head.body)))
    });
    reply.array(2);
    reply.bulk(next.to_string().as_bytes());
    reply.array(found.len());
    found.iter().for_each(|(key, _)| reply.bulk(key));
    Ok(())
}

pub(crate) fn keys(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let mut fitting = Vec::new();
    let mut cursor = 0;
    loop {
        let (next, found) = part(tx, cursor, 1024)?;
        let fits = |(key, head): &Found| !tx.has_ended(head.expires) && glob::fits(words[1], key);
        fitting.extend(found.into_iter().filter(fits).map(|(key, _)| key));
        if next == 0 {
            break;
        }
        cursor = next;
    }
    reply.array(fitting.len());
    fitting.iter().for_each(|key| reply.bulk(key));
    Ok(())
}

pub(crate) fn randomkey(tx: &mut Transaction<'_>, _: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let start = tx.new_collection() >> 2;
    // Keys that have ended are passed over; the second round begins with the first slot.
    for mut cursor in [start, 0] {
        loop {
            let (next, found) = part(tx, cursor, 16)?;
            let live = found.iter().find(|(_, head)| !tx.has_ended(head.expires));
            if let Some((key, _)) = live {
                reply.bulk(key);
                return Ok(());
            }
            if next == 0 {
                break;
            }
            cursor = next;
        }
    }
    reply.null();
    Ok(())
}

/// At most `count` keys of a slot.
pub(crate) fn keys_of_slot(
    tx: &mut Transaction<'_>,
    slot: u16,
    count: usize,
) -> Result<Vec<Vec<u8>>, Fault> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let mut found = heads(tx, slot, 0, count)?;
    found.retain(|(_, (_, head))| !tx.has_ended(head.expires));
    found.truncate(count);
    Ok(found.into_iter().map(|(_, (key, _))| key).collect())
}

/// How many keys this node serves, without those that have ended.
pub(crate) fn count_keys(tx: &mut Transaction<'_>) -> Result<u64, Fault> {
    let mut count = 0;
    let mut from = 0;
    while let Some(slot) = tx.next_slot(from)? {
        count += tx.record(slot)?.count;
        from = slot + 1;
        if !tx.may_have_ended(slot) {
            continue;
        }
        for (_, at, key) in background::ended(tx, slot, usize::MAX)? {
            if tx.raw(&key)?.is_some_and(|head| head.expires == Some(at)) {
                count -= 1;
            }
        }
    }
    Ok(count)
}

pub(crate) fn dbsize(tx: &mut Transaction<'_>, _: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let count = count_keys(tx)?;
    reply.integer(i64::try_from(count).unwrap_or(i64::MAX));
    Ok(())
}

pub(crate) fn flush(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    match &words[1..] {
        [] => {}
        [option] if is(option, "ASYNC") || is(option, "SYNC") => {}
        _ => return Err(SYNTAX),
    }
    let mut from = 0;
    while let Some(slot) = tx.next_slot(from)? {
        tx.flush(slot)?;
        from = slot + 1;
    }
    reply.ok();
    Ok(())
}
