//! Replies as a client reads them.

use memchr::memchr;

/// How deep arrays may lie in each other.
const DEPTH_MAX: usize = 16;
/// Longest bulk string of a reply.
const BULK_MAX: usize = 512 << 20;

/// Bytes that are no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer is no reply of the Redis protocol")]
pub struct Malformed;

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A line of text.
    Simple(String),
    /// An error with its code.
    Error(String),
    /// An integer.
    Integer(i64),
    /// A bulk string.
    Bulk(Vec<u8>),
    /// No value.
    Null,
    /// Replies in their order.
    Array(Vec<Value>),
    /// Pairs.
    Map(Vec<(Value, Value)>),
    /// Replies in no order.
    Set(Vec<Value>),
    /// A message of the server that nobody asked for.
    Push(Vec<Value>),
    /// A number.
    Double(f64),
    /// True or false.
    Boolean(bool),
    /// Text for people, with its three letters and colon.
    Verbatim(String),
}

impl Value {
    /// The reply that the bytes begin with, and its length; `None` until it is whole.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Malformed> {
        let mut at = 0;
        Ok(value(bytes, &mut at, 0)?.map(|value| (value, at)))
    }
}

fn value(bytes: &[u8], at: &mut usize, depth: usize) -> Result<Option<Value>, Malformed> {
    if depth > DEPTH_MAX {
        return Err(Malformed);
    }
    let Some(&mark) = bytes.get(*at) else { return Ok(None) };
    let rest = &bytes[*at + 1..];
    let Some(end) = memchr(b'\n', rest) else { return Ok(None) };
    let line = rest[..end].strip_suffix(b"\r").ok_or(Malformed)?;
    *at += end + 2;
    let text = || String::from_utf8_lossy(line).into_owned();
    let found = match mark {
        b'+' => Value::Simple(text()),
        b'-' => Value::Error(text()),
        b':' => Value::Integer(number(line)?),
        b'_' => Value::Null,
        b'#' => Value::Boolean(line == b"t"),
        b',' => Value::Double(text().parse().map_err(|_| Malformed)?),
        b'(' => Value::Simple(text()),
        b'$' | b'=' | b'!' => return bulk(bytes, at, mark, number(line)?),
        b'*' | b'~' | b'>' | b'%' => return many(bytes, at, mark, number(line)?, depth),
        _ => return Err(Malformed),
    };
    Ok(Some(found))
}

fn bulk(bytes: &[u8], at: &mut usize, mark: u8, length: i64) -> Result<Option<Value>, Malformed> {
    if length == -1 {
        return Ok(Some(Value::Null));
    }
    let length = usize::try_from(length).map_err(|_| Malformed)?;
    if length > BULK_MAX {
        return Err(Malformed);
    }
    let Some(content) = bytes.get(*at..*at + length) else { return Ok(None) };
    match bytes.get(*at + length..*at + length + 2) {
        None => return Ok(None),
        Some(b"\r\n") => {}
        Some(_) => return Err(Malformed),
    }
    *at += length + 2;
    let text = || String::from_utf8_lossy(content).into_owned();
    Ok(Some(match mark {
        b'$' => Value::Bulk(content.to_vec()),
        b'=' => Value::Verbatim(text()),
        _ => Value::Error(text()),
    }))
}

fn many(
    bytes: &[u8],
    at: &mut usize,
    mark: u8,
    count: i64,
    depth: usize,
) -> Result<Option<Value>, Malformed> {
    if count == -1 {
        return Ok(Some(Value::Null));
    }
    let count = usize::try_from(count).map_err(|_| Malformed)?;
    let count = if mark == b'%' { count.checked_mul(2).ok_or(Malformed)? } else { count };
    // Each takes three bytes at least.
    if count > bytes.len().saturating_sub(*at) {
        return if count > BULK_MAX { Err(Malformed) } else { Ok(None) };
    }
    let mut values = Vec::new();
    for _ in 0..count {
        let Some(value) = value(bytes, at, depth + 1)? else { return Ok(None) };
        values.push(value);
    }
    Ok(Some(match mark {
        b'*' => Value::Array(values),
        b'~' => Value::Set(values),
        b'>' => Value::Push(values),
        _ => {
            let mut pairs = Vec::new();
            let mut values = values.into_iter();
            while let (Some(key), Some(value)) = (values.next(), values.next()) {
                pairs.push((key, value));
            }
            Value::Map(pairs)
        }
    }))
}

fn number(line: &[u8]) -> Result<i64, Malformed> {
    std::str::from_utf8(line).ok().and_then(|text| text.parse().ok()).ok_or(Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_whole_or_not() {
        let whole = b"*3\r\n$1\r\na\r\n%1\r\n+k\r\n:-5\r\n~2\r\n_\r\n#t\r\n";
        for end in 0..whole.len() {
            assert_eq!(Value::decode(&whole[..end]), Ok(None), "{end}");
        }
        let expected = Value::Array(vec![
            Value::Bulk(b"a".to_vec()),
            Value::Map(vec![(Value::Simple("k".into()), Value::Integer(-5))]),
            Value::Set(vec![Value::Null, Value::Boolean(true)]),
        ]);
        assert_eq!(Value::decode(whole), Ok(Some((expected, whole.len()))));
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        let deep = b"*1\r\n".repeat(DEPTH_MAX + 2);
        for bytes in [&b"?\r\n"[..], b":x\r\n", b"$-2\r\n", b"$1\r\nabc", b"+a\n", &deep] {
            assert_eq!(Value::decode(bytes), Err(Malformed));
        }
    }
}
