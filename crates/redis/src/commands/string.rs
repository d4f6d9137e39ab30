//! Strings.

use weft_resp::Reply;

use super::expiry::{self, Unit, Wish};
use super::{integer, is};
use crate::fault::{Done, Fault, NOT_FLOAT, NOT_INTEGER, OVERFLOW, TOO_LONG, WRONG_TYPE};
use crate::layout::Body;
use crate::number;
use crate::transaction::Transaction;

pub(crate) fn get(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let text = tx.read_text(words[1])?;
    reply.bulk_or_null(text.as_deref());
    Ok(())
}

/// When SET sets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum If {
    Always,
    Absent,
    Present,
}

pub(crate) fn set(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let (mut wish, mut condition, mut answers_old) = (Wish::None, If::Always, false);
    let mut at = 3;
    while let Some(word) = words.get(at) {
        if is(word, "NX") && condition != If::Present {
            condition = If::Absent;
        } else if is(word, "XX") && condition != If::Absent {
            condition = If::Present;
        } else if is(word, "GET") {
            answers_old = true;
        } else if is(word, "KEEPTTL") && matches!(wish, Wish::None | Wish::Keep) {
            wish = Wish::Keep;
        } else {
            wish.take(word, words.get(at + 1))?;
            at += 1;
        }
        at += 1;
    }
    let expires = match wish {
        Wish::At(number, unit) => Some(expiry::positive(number, unit, tx.now, "set")?),
        _ => None,
    };
    set_if(tx, (words[1], words[2]), expires, wish == Wish::Keep, condition, answers_old, reply)
}

fn set_if(
    tx: &mut Transaction<'_>,
    (key, text): (&[u8], &[u8]),
    expires: Option<u64>,
    keeps: bool,
    condition: If,
    answers_old: bool,
    reply: &mut Reply<'_>,
) -> Done {
    let old = if answers_old { tx.read_text(key)? } else { None };
    let head = tx.head(key)?;
    let fits = match condition {
        If::Always => true,
        If::Absent => head.is_none(),
        If::Present => head.is_some(),
    };
    if fits {
        let kept = head.and_then(|head| head.expires).filter(|_| keeps);
        tx.put_text(key, text, expires.or(kept))?;
    }
    match (answers_old, fits) {
        (true, _) => reply.bulk_or_null(old.as_deref()),
        (false, true) => reply.ok(),
        (false, false) => reply.null(),
    }
    Ok(())
}

fn set_for(
    tx: &mut Transaction<'_>,
    words: &[&[u8]],
    reply: &mut Reply<'_>,
    unit: Unit,
    name: &str,
) -> Done {
    let expires = expiry::positive(words[2], unit, tx.now, name)?;
    tx.put_text(words[1], words[3], Some(expires))?;
    reply.ok();
    Ok(())
}

pub(crate) fn setex(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    set_for(tx, words, reply, Unit::Seconds, "setex")
}

pub(crate) fn psetex(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    set_for(tx, words, reply, Unit::Milliseconds, "psetex")
}

pub(crate) fn setnx(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let is_absent = tx.head(words[1])?.is_none();
    if is_absent {
        tx.put_text(words[1], words[2], None)?;
    }
    reply.integer(i64::from(is_absent));
    Ok(())
}

pub(crate) fn getset(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let old = tx.read_text(words[1])?;
    tx.put_text(words[1], words[2], None)?;
    reply.bulk_or_null(old.as_deref());
    Ok(())
}

pub(crate) fn getdel(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let old = tx.read_text(words[1])?;
    if old.is_some() {
        tx.remove(words[1])?;
    }
    reply.bulk_or_null(old.as_deref());
    Ok(())
}

pub(crate) fn getex(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let mut wish = Wish::None;
    let mut at = 2;
    while let Some(word) = words.get(at) {
        if is(word, "PERSIST") && matches!(wish, Wish::None | Wish::Persist) {
            wish = Wish::Persist;
        } else {
            wish.take(word, words.get(at + 1))?;
            at += 1;
        }
        at += 1;
    }
    let key = words[1];
    let Some(text) = tx.read_text(key)? else {
        reply.null();
        return Ok(());
    };
    let old = tx.head(key)?.and_then(|head| head.expires);
    match wish {
        Wish::At(number, unit) => {
            let expires = expiry::positive(number, unit, tx.now, "getex")?;
            if tx.has_ended(Some(expires)) {
                tx.remove(key)?;
            } else {
                tx.put_text(key, &text, Some(expires))?;
            }
        }
        Wish::Persist if old.is_some() => tx.put_text(key, &text, None)?,
        Wish::Persist | Wish::None | Wish::Keep => {}
    }
    reply.bulk(&text);
    Ok(())
}

pub(crate) fn mget(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    reply.array(words.len() - 1);
    for key in &words[1..] {
        match tx.read_text(key) {
            Ok(text) => reply.bulk_or_null(text.as_deref()),
            Err(fault) if fault == WRONG_TYPE => reply.null(),
            Err(fault) => return Err(fault),
        }
        if reply.is_over() {
            break;
        }
    }
    Ok(())
}

fn pairs<'a, 'w>(words: &'a [&'w [u8]], name: &str) -> Result<Vec<(&'w [u8], &'w [u8])>, Fault> {
    let (pairs, rest) = words[1..].as_chunks::<2>();
    if !rest.is_empty() {
        return Err(format!("ERR wrong number of arguments for '{name}' command").into());
    }
    Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect())
}

pub(crate) fn mset(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    for (key, text) in pairs(words, "mset")? {
        tx.put_text(key, text, None)?;
    }
    reply.ok();
    Ok(())
}

pub(crate) fn msetnx(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let pairs = pairs(words, "msetnx")?;
    for (key, _) in &pairs {
        if tx.head(key)?.is_some() {
            reply.integer(0);
            return Ok(());
        }
    }
    for (key, text) in pairs {
        tx.put_text(key, text, None)?;
    }
    reply.integer(1);
    Ok(())
}

fn add(tx: &mut Transaction<'_>, key: &[u8], by: i64, reply: &mut Reply<'_>) -> Done {
    let (text, expires) = tx.text(key)?.unwrap_or((b"0".to_vec(), None));
    let number = number::integer(&text).ok_or(NOT_INTEGER)?;
    let sum = number.checked_add(by).ok_or(OVERFLOW)?;
    tx.put_text(key, sum.to_string().as_bytes(), expires)?;
    reply.integer(sum);
    Ok(())
}

pub(crate) fn incr(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    add(tx, words[1], 1, reply)
}

pub(crate) fn decr(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    add(tx, words[1], -1, reply)
}

pub(crate) fn incrby(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    add(tx, words[1], integer(words[2])?, reply)
}

pub(crate) fn decrby(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let by = integer(words[2])?.checked_neg().ok_or("ERR decrement would overflow")?;
    add(tx, words[1], by, reply)
}

pub(crate) fn incrbyfloat(
    tx: &mut Transaction<'_>,
    words: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Done {
    let (text, expires) = tx.text(words[1])?.unwrap_or((b"0".to_vec(), None));
    let sum = crate::extended::add(&text, words[2]).map_err(|error| match error {
        crate::extended::Error::NoNumber => NOT_FLOAT,
        crate::extended::Error::NotFinite => "ERR increment would produce NaN or Infinity".into(),
    })?;
    tx.put_text(words[1], sum.as_bytes(), expires)?;
    reply.bulk(sum.as_bytes());
    Ok(())
}

pub(crate) fn append(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let (mut text, expires) = tx.text(words[1])?.unwrap_or_default();
    if text.len() + words[2].len() > tx.text_max {
        return Err(TOO_LONG);
    }
    text.extend_from_slice(words[2]);
    tx.put_text(words[1], &text, expires)?;
    reply.size(text.len());
    Ok(())
}

pub(crate) fn strlen(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    match tx.look(words[1])?.map(|head| head.body) {
        None => reply.integer(0),
        Some(Body::Text(length)) => reply.size(length),
        Some(_) => return Err(WRONG_TYPE),
    }
    Ok(())
}

pub(crate) fn getrange(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let (start, end) = (integer(words[2])?, integer(words[3])?);
    let text = tx.read_text(words[1])?.unwrap_or_default();
    let length = i64::try_from(text.len()).unwrap_or(i64::MAX);
    if start < 0 && end < 0 && start > end {
        reply.bulk(b"");
        return Ok(());
    }
    let place = |at: i64| if at < 0 { (at.saturating_add(length)).max(0) } else { at };
    let (start, end) = (place(start), place(end).min(length - 1));
    let part = match (usize::try_from(start), usize::try_from(end)) {
        (Ok(start), Ok(end)) if start <= end => text.get(start..=end).unwrap_or_default(),
        _ => b"",
    };
    reply.bulk(part);
    Ok(())
}

pub(crate) fn setrange(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let offset = usize::try_from(integer(words[2])?).map_err(|_| "ERR offset is out of range")?;
    let (mut text, expires) = tx.text(words[1])?.unwrap_or_default();
    let part = words[3];
    if part.is_empty() {
        reply.size(text.len());
        return Ok(());
    }
    let end = offset.checked_add(part.len()).filter(|end| *end <= tx.text_max).ok_or(TOO_LONG)?;
    if text.len() < end {
        text.resize(end, 0);
    }
    text[offset..end].copy_from_slice(part);
    tx.put_text(words[1], &text, expires)?;
    reply.size(text.len());
    Ok(())
}
