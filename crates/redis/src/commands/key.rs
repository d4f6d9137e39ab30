//! Keys: whether they are there, when they end, their names.

use weft_resp::Reply;

use super::expiry::{self, Unit};
use super::{help, integer, is};
use crate::fault::{Done, Fault, NO_KEY, SYNTAX, WRONG_TYPE};
use crate::layout::{self, Body, Collection, Head};
use crate::number;
use crate::slot::slot;
use crate::transaction::Transaction;

pub(crate) fn del(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let mut count = 0;
    for key in &words[1..] {
        count += i64::from(tx.remove(key)?);
    }
    reply.integer(count);
    Ok(())
}

pub(crate) fn exists(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let mut count = 0;
    for key in &words[1..] {
        count += i64::from(tx.look(key)?.is_some());
    }
    reply.integer(count);
    Ok(())
}

/// The name of a type.
pub(crate) fn type_name(body: Body) -> &'static str {
    match body {
        Body::Text(_) => "string",
        Body::Hash(_) => "hash",
        Body::Sorted(_) => "zset",
    }
}

pub(crate) fn kind(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    reply.simple(tx.look(words[1])?.map_or("none", |head| type_name(head.body)));
    Ok(())
}

/// Answers when a key ends: -2 without the key, -1 if it does not end.
fn answer_expiry(
    tx: &mut Transaction<'_>,
    words: &[&[u8]],
    reply: &mut Reply<'_>,
    shown: fn(at: u64, now: u64) -> u64,
) -> Done {
    let number = match tx.look(words[1])? {
        None => -2,
        Some(Head { expires: None, .. }) => -1,
        Some(Head { expires: Some(at), .. }) => {
            i64::try_from(shown(at, tx.now)).unwrap_or(i64::MAX)
        }
    };
    reply.integer(number);
    Ok(())
}

pub(crate) fn ttl(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    answer_expiry(tx, words, reply, |at, now| (at.saturating_sub(now) + 500) / 1000)
}

pub(crate) fn pttl(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    answer_expiry(tx, words, reply, u64::saturating_sub)
}

pub(crate) fn expiretime(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    answer_expiry(tx, words, reply, |at, _| (at + 500) / 1000)
}

pub(crate) fn pexpiretime(
    tx: &mut Transaction<'_>,
    words: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Done {
    answer_expiry(tx, words, reply, |at, _| at)
}

/// The options of EXPIRE.
#[derive(Default)]
struct Conditions {
    absent: bool,
    present: bool,
    later: bool,
    earlier: bool,
}

impl Conditions {
    fn read(words: &[&[u8]]) -> Result<Self, Fault> {
        let mut it = Self::default();
        for word in words {
            match word.to_ascii_uppercase().as_slice() {
                b"NX" => it.absent = true,
                b"XX" => it.present = true,
                b"GT" => it.later = true,
                b"LT" => it.earlier = true,
                _ => return Err(format!("ERR Unsupported option {}", super::shown(word)).into()),
            }
        }
        if it.absent && (it.present || it.later || it.earlier) {
            return Err(
                "ERR NX and XX, GT or LT options at the same time are not compatible".into()
            );
        }
        if it.later && it.earlier {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(it)
    }

    fn allow(&self, old: Option<u64>, new: i64) -> bool {
        let old = old.map(|old| i64::try_from(old).unwrap_or(i64::MAX));
        !(self.absent && old.is_some()
            || self.present && old.is_none()
            || self.later && old.is_none_or(|old| new <= old)
            || self.earlier && old.is_some_and(|old| new >= old))
    }
}

fn expire_in(
    tx: &mut Transaction<'_>,
    words: &[&[u8]],
    reply: &mut Reply<'_>,
    unit: Unit,
    name: &str,
) -> Done {
    let conditions = Conditions::read(&words[3..])?;
    let at = expiry::any(words[2], unit, tx.now, name)?;
    let Some(head) = tx.head(words[1])?.filter(|head| conditions.allow(head.expires, at)) else {
        reply.integer(0);
        return Ok(());
    };
    match u64::try_from(at) {
        Ok(at) if !tx.has_ended(Some(at)) => {
            if head.expires != Some(at) {
                tx.set_expiry(words[1], Some(at))?;
            }
        }
        _ => {
            tx.remove(words[1])?;
        }
    }
    reply.integer(1);
    Ok(())
}

pub(crate) fn expire(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    expire_in(tx, words, reply, Unit::Seconds, "expire")
}

pub(crate) fn pexpire(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    expire_in(tx, words, reply, Unit::Milliseconds, "pexpire")
}

pub(crate) fn expireat(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    expire_in(tx, words, reply, Unit::SecondsSince1970, "expireat")
}

pub(crate) fn pexpireat(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    expire_in(tx, words, reply, Unit::MillisecondsSince1970, "pexpireat")
}

pub(crate) fn persist(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let ends = tx.head(words[1])?.is_some_and(|head| head.expires.is_some());
    if ends {
        tx.set_expiry(words[1], None)?;
    }
    reply.integer(i64::from(ends));
    Ok(())
}

/// Gives the value of a key to another key, whose value goes.
fn give(tx: &mut Transaction<'_>, source: &[u8], target: &[u8], head: Head) -> Done {
    let text = match head.body {
        Body::Text(_) => tx.text(source)?.map(|(text, _)| text).unwrap_or_default(),
        Body::Hash(_) | Body::Sorted(_) => Vec::new(),
    };
    if slot(source) == slot(target) || matches!(head.body, Body::Text(_)) {
        // The collection goes along as it is.
        tx.put(target, head, &text)?;
        return tx.unlink(source, head);
    }
    duplicate(tx, source, target, head)?;
    tx.remove(source)?;
    Ok(())
}

/// Puts a copy of a value under another key, whose value goes.
fn duplicate(tx: &mut Transaction<'_>, source: &[u8], target: &[u8], head: Head) -> Done {
    let (collection, kinds): (_, &[u8]) = match head.body {
        Body::Text(_) => {
            let text = tx.text(source)?.map(|(text, _)| text).unwrap_or_default();
            return tx.put_text(target, &text, head.expires);
        }
        Body::Hash(it) => (it, &[layout::FIELD]),
        Body::Sorted(it) => (it, &[layout::MEMBER, layout::ORDER]),
    };
    let copy = Collection { id: tx.new_collection(), count: collection.count };
    let body = match head.body {
        Body::Hash(_) => Body::Hash(copy),
        _ => Body::Sorted(copy),
    };
    tx.put(target, Head { body, ..head }, b"")?;
    for kind in kinds {
        let pairs = tx.elements(slot(source), *kind, collection.id, usize::MAX, usize::MAX)?;
        for (place, value) in pairs {
            let name = &place[layout::ELEMENT_PREFIX..];
            let place = layout::element(slot(target), *kind, copy.id, name);
            tx.put_element(place, value.start);
        }
    }
    Ok(())
}

pub(crate) fn rename(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let head = tx.head(words[1])?.ok_or(NO_KEY)?;
    if words[1] != words[2] {
        give(tx, words[1], words[2], head)?;
    }
    reply.ok();
    Ok(())
}

pub(crate) fn renamenx(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let head = tx.head(words[1])?.ok_or(NO_KEY)?;
    let is_free = words[1] != words[2] && tx.head(words[2])?.is_none();
    if is_free {
        give(tx, words[1], words[2], head)?;
    }
    reply.integer(i64::from(is_free));
    Ok(())
}

pub(crate) fn copy(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let mut replaces = false;
    let mut at = 3;
    while let Some(word) = words.get(at) {
        if is(word, "REPLACE") {
            replaces = true;
        } else if let (true, Some(database)) = (is(word, "DB"), words.get(at + 1)) {
            if integer(database)? != 0 {
                return Err("ERR DB index is out of range".into());
            }
            at += 1;
        } else {
            return Err(SYNTAX);
        }
        at += 1;
    }
    let (source, target) = (words[1], words[2]);
    if source == target {
        return Err("ERR source and destination objects are the same".into());
    }
    let Some(head) = tx.head(source)? else {
        reply.integer(0);
        return Ok(());
    };
    let may = replaces || tx.head(target)?.is_none();
    if may {
        duplicate(tx, source, target, head)?;
    }
    reply.integer(i64::from(may));
    Ok(())
}

pub(crate) fn memory_usage(
    tx: &mut Transaction<'_>,
    words: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Done {
    let mut samples = 5;
    match &words[3..] {
        [] => {}
        [option, number] if is(option, "SAMPLES") => {
            samples = usize::try_from(integer(number)?).map_err(|_| SYNTAX)?;
        }
        _ => return Err(SYNTAX),
    }
    let key = words[2];
    let Some(head) = tx.look(key)? else {
        reply.null();
        return Ok(());
    };
    let own = layout::HEAD_PREFIX + key.len() + head.text_offset();
    let (collection, kind, factor) = match head.body {
        Body::Text(length) => {
            reply.size(own + length);
            return Ok(());
        }
        Body::Hash(it) => (it, layout::FIELD, 1),
        Body::Sorted(it) => (it, layout::MEMBER, 2),
    };
    let limit = if samples == 0 { usize::MAX } else { samples };
    let pairs = tx.elements(slot(key), kind, collection.id, limit, 0)?;
    let bytes: usize = pairs.iter().map(|(key, value)| key.len() + value.length).sum();
    let count = usize::try_from(collection.count).unwrap_or(usize::MAX);
    reply.size(own + 16 + bytes * factor * count / pairs.len().max(1));
    Ok(())
}

pub(crate) fn encoding(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let Some(head) = tx.look(words[2])? else {
        reply.null();
        return Ok(());
    };
    let name = match head.body {
        Body::Hash(_) => "hashtable",
        Body::Sorted(_) => "skiplist",
        Body::Text(length) => {
            let text = if length <= 20 { tx.text(words[2])? } else { None };
            match text {
                Some((text, _)) if number::integer(&text).is_some() => "int",
                _ if length <= 44 => "embstr",
                _ => "raw",
            }
        }
    };
    reply.bulk(name.as_bytes());
    Ok(())
}

pub(crate) fn refcount(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    match tx.look(words[2])? {
        None => reply.null(),
        Some(_) => reply.integer(1),
    }
    Ok(())
}

pub(crate) fn idletime(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    match tx.look(words[2])? {
        None => reply.null(),
        Some(_) => return Err("ERR weft kv does not keep when a key was used last".into()),
    }
    Ok(())
}

pub(crate) fn freq(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    match tx.look(words[2])? {
        None => reply.null(),
        Some(_) => {
            return Err(
                "ERR An LFU maxmemory policy is not selected, access frequency not tracked. \
                 Please note that when switching between policies at runtime LRU and LFU data will \
                 take some time to adjust."
                    .into(),
            );
        }
    }
    Ok(())
}

pub(crate) fn object_help(_: &mut Transaction<'_>, _: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    help(
        reply,
        "OBJECT",
        &[
            "ENCODING <key>",
            "    Return how the value of <key> is kept.",
            "REFCOUNT <key>",
            "    Return how many refer to the value of <key>: 1.",
        ],
    )
}

/// The collection of a key, of the wanted type.
pub(crate) fn collection(
    head: Option<Head>,
    wanted: fn(Body) -> Option<Collection>,
) -> Result<Option<(Head, Collection)>, Fault> {
    let Some(head) = head else { return Ok(None) };
    wanted(head.body).map(|it| Some((head, it))).ok_or(WRONG_TYPE)
}
