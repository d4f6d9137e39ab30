//! Sorted sets: each member is two pairs in the store, by its name and by its score.

use std::ops::Bound;

use weft_resp::{Protocol, Reply};

use super::hash::shrink;
use super::key::collection;
use super::{integer, is};
use crate::fault::{Done, Fault, NAME_TOO_LONG, NOT_FLOAT, SYNTAX};
use crate::layout::{self, Body, Collection, Head};
use crate::number;
use crate::slot::slot;
use crate::transaction::Transaction;

fn of(body: Body) -> Option<Collection> {
    match body {
        Body::Sorted(collection) => Some(collection),
        _ => None,
    }
}

fn look(tx: &mut Transaction<'_>, key: &[u8]) -> Result<Option<Collection>, Fault> {
    let head = tx.look(key)?;
    Ok(collection(head, of)?.map(|(_, it)| it))
}

fn score_of(
    tx: &mut Transaction<'_>,
    slot: u16,
    id: u64,
    member: &[u8],
) -> Result<Option<f64>, Fault> {
    let value = tx.element(slot, layout::MEMBER, id, member)?;
    Ok(value.and_then(|value| value.try_into().ok()).map(f64::from_be_bytes))
}

fn order_place(slot: u16, id: u64, score: f64, member: &[u8]) -> Vec<u8> {
    let mut place = layout::elements(slot, layout::ORDER, id);
    place.extend_from_slice(&number::ordered(score));
    place.extend_from_slice(member);
    place
}

/// The options of ZADD.
#[derive(Clone, Copy, Default)]
pub(crate) struct Rules {
    absent: bool,
    present: bool,
    greater: bool,
    less: bool,
    adds: bool,
}

/// The effect of ZADD on a member.
enum Did {
    Nothing,
    Added(f64),
    Updated(f64),
    Same(f64),
}

/// Adds or changes members as ZADD does. Returns how many were added and changed, and the score
/// of the last one, if it was not passed over.
pub(crate) fn put(
    tx: &mut Transaction<'_>,
    key: &[u8],
    members: &[(f64, &[u8])],
    rules: Rules,
) -> Result<(u64, u64, Option<f64>), Fault> {
    if members.iter().any(|(_, member)| member.len() > layout::KEY_MAX) {
        return Err(NAME_TOO_LONG);
    }
    let head = tx.head(key)?;
    let old = collection(head, of)?;
    if old.is_none() && rules.present {
        return Ok((0, 0, None));
    }
    let id = old.map_or_else(|| tx.new_collection(), |(_, it)| it.id);
    let (mut added, mut updated, mut last) = (0, 0, None);
    for (score, member) in members {
        last = match put_one(tx, slot(key), id, (*score, member), rules)? {
            Did::Nothing => None,
            Did::Added(score) => {
                added += 1;
                Some(score)
            }
            Did::Updated(score) => {
                updated += 1;
                Some(score)
            }
            Did::Same(score) => Some(score),
        };
    }
    if added > 0 {
        let count = old.map_or(0, |(_, it)| it.count) + added;
        let expires = old.and_then(|(head, _)| head.expires);
        tx.put(key, Head { expires, body: Body::Sorted(Collection { id, count }) }, b"")?;
    } else if updated > 0 {
        tx.touch(key);
    }
    Ok((added, updated, last))
}

fn put_one(
    tx: &mut Transaction<'_>,
    slot: u16,
    id: u64,
    (score, member): (f64, &[u8]),
    rules: Rules,
) -> Result<Did, Fault> {
    let old = score_of(tx, slot, id, member)?;
    let score = match old {
        Some(_) if rules.absent => return Ok(Did::Nothing),
        None if rules.present => return Ok(Did::Nothing),
        Some(old) if rules.adds => old + score,
        _ => score,
    };
    if score.is_nan() {
        return Err("ERR resulting score is not a number (NaN)".into());
    }
    if let Some(old) = old {
        if rules.less && score >= old || rules.greater && score <= old {
            return Ok(Did::Nothing);
        }
        if score.total_cmp(&old).is_eq() || score == old {
            return Ok(Did::Same(old));
        }
        tx.remove_element(order_place(slot, id, old, member));
    }
    let place = layout::element(slot, layout::MEMBER, id, member);
    tx.put_element(place, score.to_be_bytes().to_vec());
    tx.put_element(order_place(slot, id, score, member), Vec::new());
    Ok(if old.is_some() { Did::Updated(score) } else { Did::Added(score) })
}

pub(crate) fn zadd(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let (mut rules, mut counts_changed, mut at) = (Rules::default(), false, 2);
    while let Some(word) = words.get(at) {
        match word.to_ascii_uppercase().as_slice() {
            b"NX" => rules.absent = true,
            b"XX" => rules.present = true,
            b"GT" => rules.greater = true,
            b"LT" => rules.less = true,
            b"CH" => counts_changed = true,
            b"INCR" => rules.adds = true,
            _ => break,
        }
        at += 1;
    }
    let (pairs, rest) = words.get(at..).unwrap_or_default().as_chunks::<2>();
    if !rest.is_empty() || pairs.is_empty() {
        return Err(SYNTAX);
    }
    check(rules, pairs.len())?;
    let mut members = Vec::with_capacity(pairs.len());
    for [score, member] in pairs {
        members.push((number::double(score).ok_or(NOT_FLOAT)?, *member));
    }
    let (added, updated, last) = put(tx, words[1], &members, rules)?;
    match (rules.adds, last) {
        (true, Some(score)) => reply.double(score),
        (true, None) => reply.null(),
        (false, _) => {
            let count = if counts_changed { added + updated } else { added };
            reply.integer(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
    Ok(())
}

fn check(rules: Rules, pairs: usize) -> Done {
    if rules.absent && rules.present {
        return Err("ERR XX and NX options at the same time are not compatible".into());
    }
    let exclusive = [rules.absent, rules.greater, rules.less];
    if exclusive.into_iter().filter(|it| *it).count() > 1 {
        return Err("ERR GT, LT, and/or NX options at the same time are not compatible".into());
    }
    if rules.adds && pairs > 1 {
        return Err("ERR INCR option supports a single increment-element pair".into());
    }
    Ok(())
}

pub(crate) fn zincrby(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let by = number::double(words[2]).ok_or(NOT_FLOAT)?;
    let rules = Rules { adds: true, ..Rules::default() };
    let (_, _, score) = put(tx, words[1], &[(by, words[3])], rules)?;
    match score {
        Some(score) => reply.double(score),
        None => reply.null(),
    }
    Ok(())
}

pub(crate) fn zrem(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let key = words[1];
    let head = tx.head(key)?;
    let Some((head, it)) = collection(head, of)? else {
        reply.integer(0);
        return Ok(());
    };
    let (slot, mut removed) = (slot(key), 0);
    for member in &words[2..] {
        if let Some(score) = score_of(tx, slot, it.id, member)? {
            tx.remove_element(layout::element(slot, layout::MEMBER, it.id, member));
            tx.remove_element(order_place(slot, it.id, score, member));
            removed += 1;
        }
    }
    shrink(tx, key, head, it, removed, Body::Sorted)?;
    reply.integer(i64::try_from(removed).unwrap_or(i64::MAX));
    Ok(())
}

pub(crate) fn zcard(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let count = look(tx, words[1])?.map_or(0, |it| it.count);
    reply.integer(i64::try_from(count).unwrap_or(i64::MAX));
    Ok(())
}

pub(crate) fn zscore(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let score = match look(tx, words[1])? {
        None => None,
        Some(it) => score_of(tx, slot(words[1]), it.id, words[2])?,
    };
    match score {
        Some(score) => reply.double(score),
        None => reply.null(),
    }
    Ok(())
}

pub(crate) fn zmscore(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let it = look(tx, words[1])?;
    reply.array(words.len() - 2);
    for member in &words[2..] {
        let score = match it {
            None => None,
            Some(it) => score_of(tx, slot(words[1]), it.id, member)?,
        };
        match score {
            Some(score) => reply.double(score),
            None => reply.null(),
        }
    }
    Ok(())
}

/// A bound of scores: the number, and whether it is outside.
fn bound(word: &[u8]) -> Result<Bound<f64>, Fault> {
    let (is_outside, digits) =
        word.strip_prefix(b"(").map_or((false, word), |digits| (true, digits));
    let number = number::bound(digits).ok_or("ERR min or max is not a float")?;
    Ok(if is_outside { Bound::Excluded(number) } else { Bound::Included(number) })
}

/// The pairs between two scores, as bounds of keys of the store.
fn span(slot: u16, id: u64, low: Bound<f64>, high: Bound<f64>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let at = |score: f64| order_place(slot, id, score, b"");
    let behind = |score: f64| layout::behind(&at(score)).map_or(Bound::Unbounded, Bound::Excluded);
    let from = match low {
        Bound::Included(score) => Bound::Included(at(score)),
        Bound::Excluded(score) => match layout::behind(&at(score)) {
            Some(key) => Bound::Included(key),
            None => Bound::Excluded(vec![u8::MAX; 16]),
        },
        Bound::Unbounded => Bound::Included(layout::elements(slot, layout::ORDER, id)),
    };
    let to = match high {
        Bound::Included(score) => behind(score),
        Bound::Excluded(score) => Bound::Excluded(at(score)),
        Bound::Unbounded => layout::behind(&layout::elements(slot, layout::ORDER, id))
            .map_or(Bound::Unbounded, Bound::Excluded),
    };
    (from, to)
}

fn members(
    tx: &Transaction<'_>,
    (from, to): &(Bound<Vec<u8>>, Bound<Vec<u8>>),
    backward: bool,
    limit: usize,
) -> Result<Vec<(Vec<u8>, f64)>, Fault> {
    let (from, to) = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
    let pairs = tx.range(from, to, backward, limit, 0)?;
    let member = |(place, _): (Vec<u8>, _)| {
        let (score, member) = place[layout::ELEMENT_PREFIX..].split_first_chunk::<8>()?;
        Some((member.to_vec(), number::score(*score)))
    };
    Ok(pairs.into_iter().filter_map(member).collect())
}

pub(crate) fn zcount(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let (low, high) = (bound(words[2])?, bound(words[3])?);
    let count = match look(tx, words[1])? {
        None => 0,
        Some(it) => members(tx, &span(slot(words[1]), it.id, low, high), false, usize::MAX)?.len(),
    };
    reply.size(count);
    Ok(())
}

fn range_by_score(
    tx: &mut Transaction<'_>,
    words: &[&[u8]],
    reply: &mut Reply<'_>,
    backward: bool,
) -> Done {
    let (mut with_scores, mut offset, mut limit) = (false, 0_i64, -1_i64);
    let mut at = 4;
    while let Some(word) = words.get(at) {
        if is(word, "WITHSCORES") {
            with_scores = true;
        } else if let (true, Some(first), Some(second)) =
            (is(word, "LIMIT"), words.get(at + 1), words.get(at + 2))
        {
            (offset, limit) = (integer(first)?, integer(second)?);
            at += 2;
        } else {
            return Err(SYNTAX);
        }
        at += 1;
    }
    let (low, high) = if backward { (words[3], words[2]) } else { (words[2], words[3]) };
    let (low, high) = (bound(low)?, bound(high)?);
    let found = match (look(tx, words[1])?, usize::try_from(offset)) {
        (Some(it), Ok(offset)) => {
            let limit = usize::try_from(limit).map_or(usize::MAX, |it| it.saturating_add(offset));
            let mut found = members(tx, &span(slot(words[1]), it.id, low, high), backward, limit)?;
            found.drain(..offset.min(found.len()));
            found
        }
        _ => Vec::new(),
    };
    let is_nested = with_scores && reply.protocol == Protocol::Resp3;
    let flat = if with_scores { 2 } else { 1 };
    reply.array(if is_nested { found.len() } else { found.len() * flat });
    for (member, score) in found {
        if is_nested {
            reply.array(2);
        }
        reply.bulk(&member);
        if with_scores {
            reply.double(score);
        }
    }
    Ok(())
}

pub(crate) fn zrangebyscore(
    tx: &mut Transaction<'_>,
    words: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Done {
    range_by_score(tx, words, reply, false)
}

pub(crate) fn zrevrangebyscore(
    tx: &mut Transaction<'_>,
    words: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Done {
    range_by_score(tx, words, reply, true)
}
