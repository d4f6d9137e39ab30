//! DUMP and RESTORE: values in the format of Redis's files (version 10, that of Redis 7.0).
//!
//! Written are strings as they are, hashes and sorted sets as plain lists, which every Redis since
//! 5 reads. Read are these, compressed strings (LZF), and listpacks, which Redis 7.0 writes for
//! small collections.

use weft_resp::Reply;

use super::expiry::{self, Unit};
use super::{hash, integer, is, zset};
use crate::fault::{Done, Fault, SYNTAX};
use crate::layout::{self, Body};
use crate::slot::slot;
use crate::transaction::Transaction;

const VERSION: u16 = 10;
const STRING: u8 = 0;
const HASH: u8 = 4;
const SORTED: u8 = 5;
const HASH_LISTPACK: u8 = 16;
const SORTED_LISTPACK: u8 = 17;

const BAD: Fault = Fault::Text(std::borrow::Cow::Borrowed("ERR Bad data format"));

/// CRC-64 of Redis: polynomial 0xad93d23594c935a9, reflected, begins with 0.
fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| {
            if crc & 1 == 1 { (crc >> 1) ^ 0x95ac_9329_ac4b_c9b5 } else { crc >> 1 }
        })
    })
}

fn write_length(out: &mut Vec<u8>, length: usize) {
    match (u8::try_from(length), u16::try_from(length), u32::try_from(length)) {
        (Ok(short @ 0..64), ..) => out.push(short),
        (_, Ok(middle @ 0..16_384), _) => out.extend_from_slice(&(middle | 0x4000).to_be_bytes()),
        (_, _, Ok(long)) => {
            out.push(0x80);
            out.extend_from_slice(&long.to_be_bytes());
        }
        _ => {
            out.push(0x81);
            out.extend_from_slice(&length.to_be_bytes());
        }
    }
}

fn write_string(out: &mut Vec<u8>, text: &[u8]) {
    write_length(out, text.len());
    out.extend_from_slice(text);
}

pub(crate) fn dump(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let key = words[1];
    let Some(head) = tx.look(key)? else {
        reply.null();
        return Ok(());
    };
    let mut out = Vec::new();
    match head.body {
        Body::Text(_) => {
            out.push(STRING);
            let text = tx.text(key)?.map(|(text, _)| text).unwrap_or_default();
            write_string(&mut out, &text);
        }
        Body::Hash(it) => {
            out.push(HASH);
            let pairs = tx.elements(slot(key), layout::FIELD, it.id, usize::MAX, usize::MAX)?;
            write_length(&mut out, pairs.len());
            for (place, value) in pairs {
                write_string(&mut out, &place[layout::ELEMENT_PREFIX..]);
                write_string(&mut out, &value.start);
            }
        }
        Body::Sorted(it) => {
            out.push(SORTED);
            let pairs = tx.elements(slot(key), layout::MEMBER, it.id, usize::MAX, 8)?;
            write_length(&mut out, pairs.len());
            for (place, value) in pairs {
                write_string(&mut out, &place[layout::ELEMENT_PREFIX..]);
                out.extend(value.start.iter().rev());
            }
        }
    }
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&crc64(&out).to_le_bytes());
    reply.bulk(&out);
    Ok(())
}

pub(crate) fn restore(tx: &mut Transaction<'_>, words: &[&[u8]], reply: &mut Reply<'_>) -> Done {
    let (mut replaces, mut is_absolute, mut at) = (false, false, 4);
    while let Some(word) = words.get(at) {
        if is(word, "REPLACE") {
            replaces = true;
        } else if is(word, "ABSTTL") {
            is_absolute = true;
        } else if let (true, Some(number)) =
            (is(word, "IDLETIME") || is(word, "FREQ"), words.get(at + 1))
        {
            // How often a key is used is not kept.
            integer(number)?;
            at += 1;
        } else {
            return Err(SYNTAX);
        }
        at += 1;
    }
    let key = words[1];
    if !replaces && tx.head(key)?.is_some() {
        return Err("BUSYKEY Target key name already exists.".into());
    }
    let expires = match integer(words[2])? {
        ..0 => return Err("ERR Invalid TTL value, must be >= 0".into()),
        0 => None,
        _ => {
            let unit = if is_absolute { Unit::MillisecondsSince1970 } else { Unit::Milliseconds };
            Some(expiry::positive(words[2], unit, tx.now, "restore")?)
        }
    };
    let value = Value::read(words[3], tx.text_max)?;
    tx.remove(key)?;
    if !tx.has_ended(expires) {
        value.put(tx, key)?;
        if expires.is_some() {
            tx.set_expiry(key, expires)?;
        }
    }
    reply.ok();
    Ok(())
}

/// A value that was read.
enum Value {
    String(Vec<u8>),
    Hash(Vec<(Vec<u8>, Vec<u8>)>),
    Sorted(Vec<(f64, Vec<u8>)>),
}

impl Value {
    fn read(bytes: &[u8], text_max: usize) -> Result<Self, Fault> {
        let wrong = || Fault::from("ERR DUMP payload version or checksum are wrong");
        let (content, checksum) = bytes.split_last_chunk::<8>().ok_or_else(wrong)?;
        let (body, version) = content.split_last_chunk::<2>().ok_or_else(wrong)?;
        let is_sound =
            u64::from_le_bytes(*checksum) == 0 || crc64(content) == u64::from_le_bytes(*checksum);
        if u16::from_le_bytes(*version) > VERSION || !is_sound {
            return Err(wrong());
        }
        let (kind, rest) = body.split_first().ok_or(BAD)?;
        let mut reader = Reader { rest, text_max };
        let value = reader.value(*kind).ok_or(BAD)?;
        if reader.rest.is_empty() { Ok(value) } else { Err(BAD) }
    }

    fn put(self, tx: &mut Transaction<'_>, key: &[u8]) -> Done {
        match self {
            Self::String(text) => tx.put_text(key, &text, None),
            Self::Hash(fields) => {
                let fields: Vec<_> =
                    fields.iter().map(|(name, value)| (&name[..], &value[..])).collect();
                hash::put(tx, key, &fields).map(|_| ())
            }
            Self::Sorted(members) => {
                let members: Vec<_> =
                    members.iter().map(|(score, member)| (*score, &member[..])).collect();
                zset::put(tx, key, &members, zset::Rules::default()).map(|_| ())
            }
        }
    }
}

/// Reads the format; `None` is a bad one.
struct Reader<'a> {
    rest: &'a [u8],
    text_max: usize,
}

/// A length, or a string in another form.
enum Length {
    Plain(usize),
    Special(u8),
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn big_endian(&mut self, count: usize) -> Option<usize> {
        self.take(count)?
            .iter()
            .try_fold(0_usize, |sum, byte| sum.checked_mul(256)?.checked_add(usize::from(*byte)))
    }

    fn length(&mut self) -> Option<Length> {
        let first = self.byte()?;
        Some(match first >> 6 {
            0 => Length::Plain(usize::from(first)),
            1 => Length::Plain(usize::from(first & 63) << 8 | usize::from(self.byte()?)),
            2 if first == 0x80 => Length::Plain(self.big_endian(4)?),
            2 if first == 0x81 => Length::Plain(self.big_endian(8)?),
            3 => Length::Special(first & 63),
            _ => return None,
        })
    }

    fn plain(&mut self) -> Option<usize> {
        match self.length()? {
            Length::Plain(length) => Some(length),
            Length::Special(_) => None,
        }
    }

    fn string(&mut self) -> Option<Vec<u8>> {
        match self.length()? {
            Length::Plain(length) => Some(self.take(length)?.to_vec()),
            Length::Special(form @ 0..=2) => {
                let bytes = self.take(1 << form)?;
                let mut wide = [if bytes.last()? & 0x80 == 0 { 0 } else { u8::MAX }; 8];
                wide[..bytes.len()].copy_from_slice(bytes);
                Some(i64::from_le_bytes(wide).to_string().into_bytes())
            }
            Length::Special(3) => {
                let (packed, whole) = (self.plain()?, self.plain()?);
                unpack(self.take(packed)?, whole, self.text_max)
            }
            Length::Special(_) => None,
        }
    }

    fn value(&mut self, kind: u8) -> Option<Value> {
        match kind {
            STRING => Some(Value::String(self.string()?)),
            HASH => {
                let mut fields = Vec::new();
                for _ in 0..self.plain()? {
                    fields.push((self.string()?, self.string()?));
                }
                (!fields.is_empty()).then_some(Value::Hash(fields))
            }
            SORTED => {
                let mut members = Vec::new();
                for _ in 0..self.plain()? {
                    let member = self.string()?;
                    let score = f64::from_le_bytes(self.take(8)?.try_into().ok()?);
                    members.push((Some(score).filter(|score| !score.is_nan())?, member));
                }
                (!members.is_empty()).then_some(Value::Sorted(members))
            }
            HASH_LISTPACK => {
                let text = self.string()?;
                let entries = listpack(&text)?;
                let (pairs, rest) = entries.as_chunks::<2>();
                let fields: Vec<_> =
                    pairs.iter().cloned().map(<(Vec<u8>, Vec<u8>)>::from).collect();
                (rest.is_empty() && !fields.is_empty()).then_some(Value::Hash(fields))
            }
            SORTED_LISTPACK => {
                let text = self.string()?;
                let entries = listpack(&text)?;
                let (pairs, rest) = entries.as_chunks::<2>();
                let mut members = Vec::new();
                for [member, score] in pairs {
                    members.push((crate::number::double(score)?, member.clone()));
                }
                (rest.is_empty() && !members.is_empty()).then_some(Value::Sorted(members))
            }
            _ => None,
        }
    }
}

/// Undoes LZF: a byte below 32 says how many bytes follow as they are, another one a part of what
/// was written before.
fn unpack(packed: &[u8], length: usize, limit: usize) -> Option<Vec<u8>> {
    if length > limit {
        return None;
    }
    let mut out = Vec::new();
    let mut reader = Reader { rest: packed, text_max: limit };
    while !reader.rest.is_empty() && out.len() <= length {
        let control = usize::from(reader.byte()?);
        if control < 32 {
            out.extend_from_slice(reader.take(control + 1)?);
            continue;
        }
        let mut count = control >> 5;
        if count == 7 {
            count += usize::from(reader.byte()?);
        }
        let back = (control & 31) << 8 | usize::from(reader.byte()?);
        let from = out.len().checked_sub(back + 1)?;
        for at in from..from + count + 2 {
            out.push(*out.get(at)?);
        }
    }
    (out.len() == length).then_some(out)
}

/// The entries of a listpack: six bytes of header, entries with their length behind them, 0xff.
fn listpack(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let total = u32::from_le_bytes(*bytes.first_chunk::<4>()?);
    if usize::try_from(total).ok()? != bytes.len() {
        return None;
    }
    let mut reader = Reader { rest: bytes.get(6..)?, text_max: 0 };
    let mut entries = Vec::new();
    loop {
        let before = reader.rest.len();
        let first = reader.byte()?;
        let entry = match first {
            0xff => return reader.rest.is_empty().then_some(entries),
            0x00..=0x7f => first.to_string().into_bytes(),
            0x80..=0xbf => reader.take(usize::from(first & 63))?.to_vec(),
            0xc0..=0xdf => {
                let raw = i32::from(first & 31) << 8 | i32::from(reader.byte()?);
                let number = if raw >= 4096 { raw - 8192 } else { raw };
                number.to_string().into_bytes()
            }
            0xe0..=0xef => {
                let length = usize::from(first & 15) << 8 | usize::from(reader.byte()?);
                reader.take(length)?.to_vec()
            }
            0xf0 => {
                let length = u32::from_le_bytes(*reader.take(4)?.first_chunk()?);
                reader.take(usize::try_from(length).ok()?)?.to_vec()
            }
            0xf1..=0xf4 => {
                let width = [2, 3, 4, 8][usize::from(first - 0xf1)];
                let part = reader.take(width)?;
                let mut wide = [if part.last()? & 0x80 == 0 { 0 } else { u8::MAX }; 8];
                wide[..width].copy_from_slice(part);
                i64::from_le_bytes(wide).to_string().into_bytes()
            }
            _ => return None,
        };
        entries.push(entry);
        // The length of the entry, backwards, 7 bits in a byte.
        let length = before - reader.rest.len();
        reader.take(match length {
            0..128 => 1,
            128..16_384 => 2,
            16_384..2_097_152 => 3,
            2_097_152..268_435_456 => 4,
            _ => 5,
        })?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_redis() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn what_is_packed_comes_back() {
        // "aaaaaaaaaa": one byte as it is, then nine from one before.
        assert_eq!(unpack(&[0, b'a', 0xe0, 0, 0], 10, 100), Some(b"aaaaaaaaaa".to_vec()));
        assert_eq!(unpack(&[0, b'a', 0xe0, 0, 1], 10, 100), None);
        assert_eq!(unpack(&[0, b'a'], 10, 5), None);
    }
}
