//! Hashes: each field is a pair of its own in the store.

use weft_resp::Reply;

use super::integer;
use super::key::collection;
use crate::fault::{Done, Fault, NAME_TOO_LONG, OVERFLOW};
use crate::layout::{self, Body, Collection, Head};
use crate::number;
use crate::slot::slot;
use crate::transaction::Transaction;

fn of(body: Body) -> Option<Collection> {
    match body {
        Body::Hash(collection) => Some(collection),
        _ => None,
    }
}

/// The hash of a key, for reads.
fn look(tx: &mut Transaction<'_>, key: &[u8]) -> Result<Option<Collection>, Fault> {
    let head = tx.look(key)?;
    Ok(collection(head, of)?.map(|(_, it)| it))
}

/// Sets fields; says how many are new.
pub(crate) fn put(
    tx: &mut Transaction<'_>,
    key: &[u8],
    fields: &[(&[u8], &[u8])],
) -> Result<u64, Fault> {
    if fields.iter().any(|(name, _)| name.len() > layout::KEY_MAX) {
        return Err(NAME_TOO_LONG);
    }
    let head = tx.head(key)?;
    let old = collection(head, of)?;
    let slot = slot(key);
    let id = old.map_or_else(|| tx.new_collection(), |(_, it)| it.id);
    let mut new = 0;
    for (name, value) in fields {
        let place = layout::element(slot, layout::FIELD, id, name);
        new += u64::from(!tx.has_element(&place)?);
        tx.put_element(place, value.to_vec());
    }
    if new > 0 {
        let count = old.map_or(0, |(_, it)| it.count) + new;
        let expires = old.and_then(|(head, _)| head.expires);
        tx.put(key, Head { expires, body: Body::Hash(Collection { id, count }) }, b"")?;
    } else {
        tx.touch(key);
    }
    Ok(new)
}

fn pairs<'a>(words: &[&'a [u8]], name: &str) -> Result<Vec<(&'a [u8], &'a [u8])>, Fault> {
    let (pairs, rest) = words[2..].as_chunks::<2>();
    if !rest.is_empty() {
        return Err(format!("ERR wrong number of arguments for '{name}' command").into());
    }
    Ok(pairs.iter().map(|[field, value]| (*field, *value)).collect())
}

pub(crate) fn hset(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let new = put(tx, words[1], &pairs(words, "hset")?)?;
    reply.integer(i64::try_from(new).unwrap_or(i64::MAX));
    Ok(())
}

pub(crate) fn hmset(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    put(tx, words[1], &pairs(words, "hmset")?)?;
    reply.ok();
    Ok(())
}

pub(crate) fn hsetnx(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let head = tx.head(words[1])?;
    let is_there = match collection(head, of)? {
        None => false,
        Some((_, it)) => tx.element(slot(words[1]), layout::FIELD, it.id, words[2])?.is_some(),
    };
    if !is_there {
        put(tx, words[1], &[(words[2], words[3])])?;
    }
    reply.integer(i64::from(!is_there));
    Ok(())
}

fn field(
    tx: &mut Transaction<'_>,
    key: &[u8],
    it: Option<Collection>,
    name: &[u8],
) -> Result<Option<Vec<u8>>, Fault> {
    match it {
        None => Ok(None),
        Some(it) => tx.element(slot(key), layout::FIELD, it.id, name),
    }
}

pub(crate) fn hget(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let it = look(tx, words[1])?;
    let value = field(tx, words[1], it, words[2])?;
    reply.bulk_or_null(value.as_deref());
    Ok(())
}

pub(crate) fn hmget(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let it = look(tx, words[1])?;
    reply.array(words.len() - 2);
    for name in &words[2..] {
        let value = field(tx, words[1], it, name)?;
        reply.bulk_or_null(value.as_deref());
        if reply.is_over() {
            break;
        }
    }
    Ok(())
}

/// All fields in the order of their names.
fn all(
    tx: &mut Transaction<'_>,
    key: &[u8],
    at_most: usize,
) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Fault> {
    let Some(it) = look(tx, key)? else { return Ok(Vec::new()) };
    let pairs = tx.elements(slot(key), layout::FIELD, it.id, usize::MAX, at_most)?;
    Ok(pairs
        .into_iter()
        .map(|(place, value)| (place[layout::ELEMENT_PREFIX..].to_vec(), value.start))
        .collect())
}

pub(crate) fn hgetall(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let fields = all(tx, words[1], usize::MAX)?;
    reply.map(fields.len());
    for (name, value) in fields {
        reply.bulk(&name);
        reply.bulk(&value);
    }
    Ok(())
}

pub(crate) fn hkeys(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let fields = all(tx, words[1], 0)?;
    reply.array(fields.len());
    fields.iter().for_each(|(name, _)| reply.bulk(name));
    Ok(())
}

pub(crate) fn hvals(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let fields = all(tx, words[1], usize::MAX)?;
    reply.array(fields.len());
    fields.iter().for_each(|(_, value)| reply.bulk(value));
    Ok(())
}

pub(crate) fn hexists(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let it = look(tx, words[1])?;
    let value = field(tx, words[1], it, words[2])?;
    reply.integer(i64::from(value.is_some()));
    Ok(())
}

pub(crate) fn hstrlen(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let it = look(tx, words[1])?;
    let value = field(tx, words[1], it, words[2])?;
    reply.size(value.map_or(0, |value| value.len()));
    Ok(())
}

pub(crate) fn hdel(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let key = words[1];
    let head = tx.head(key)?;
    let Some((head, it)) = collection(head, of)? else {
        reply.integer(0);
        return Ok(());
    };
    let mut removed = 0;
    for name in words[2..].iter().filter(|name| name.len() <= layout::KEY_MAX) {
        let place = layout::element(slot(key), layout::FIELD, it.id, name);
        if tx.has_element(&place)? {
            tx.remove_element(place);
            removed += 1;
        }
    }
    shrink(tx, key, head, it, removed, Body::Hash)?;
    reply.integer(i64::try_from(removed).unwrap_or(i64::MAX));
    Ok(())
}

/// Counts removed pairs of a collection; the key goes with the last one.
pub(crate) fn shrink(
    tx: &mut Transaction<'_>,
    key: &[u8],
    head: Head,
    it: Collection,
    removed: u64,
    body: fn(Collection) -> Body,
) -> Done {
    match it.count.saturating_sub(removed) {
        _ if removed == 0 => Ok(()),
        0 => tx.unlink(key, head),
        count => tx.put(key, Head { body: body(Collection { count, ..it }), ..head }, b""),
    }
}

pub(crate) fn hlen(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let count = look(tx, words[1])?.map_or(0, |it| it.count);
    reply.integer(i64::try_from(count).unwrap_or(i64::MAX));
    Ok(())
}

pub(crate) fn hincrby(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let by = integer(words[3])?;
    let head = tx.head(words[1])?;
    let it = collection(head, of)?.map(|(_, it)| it);
    let old = field(tx, words[1], it, words[2])?.unwrap_or_else(|| b"0".to_vec());
    let number = number::integer(&old).ok_or("ERR hash value is not an integer")?;
    let sum = number.checked_add(by).ok_or(OVERFLOW)?;
    put(tx, words[1], &[(words[2], sum.to_string().as_bytes())])?;
    reply.integer(sum);
    Ok(())
}
