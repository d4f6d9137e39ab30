//! Keys and values of login and text requests: `key=value`, each with a NUL behind it.
//!
//! Source: RFC 7143 section 6.1.

/// Keys that one request may have.
const KEYS_MAX: usize = 128;
/// Bytes of a key; RFC 7143 section 6.1.
const KEY_BYTES_MAX: usize = 63;

/// A request that is no list of keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidText;

/// The keys of a request in order.
///
/// # Errors
/// A pair without `=` or NUL, a key that is too long, bytes that are no UTF-8, too many keys.
pub fn parse(bytes: &[u8]) -> Result<Vec<(&str, &str)>, InvalidText> {
    let text = std::str::from_utf8(bytes).map_err(|_| InvalidText)?;
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let pairs = text.strip_suffix('\0').ok_or(InvalidText)?.split('\0');
    let mut all = Vec::new();
    // Some initiators pad the data with NULs inside of their length.
    for pair in pairs.filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or(InvalidText)?;
        if key.is_empty() || key.len() > KEY_BYTES_MAX || all.len() == KEYS_MAX {
            return Err(InvalidText);
        }
        all.push((key, value));
    }
    Ok(all)
}

/// Adds a key to an answer.
pub fn add(answer: &mut Vec<u8>, key: &str, value: &str) {
    answer.extend(key.as_bytes());
    answer.push(b'=');
    answer.extend(value.as_bytes());
    answer.push(0);
}

/// A number as values have it: decimal, or hexadecimal behind `0x`.
pub fn number(value: &str) -> Option<u64> {
    match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if value.bytes().all(|byte| byte.is_ascii_digit()) => value.parse().ok(),
        None => None,
    }
}

/// Binary values: hexadecimal behind `0x`, or base 64 behind `0b`.
pub fn binary(value: &str) -> Option<Vec<u8>> {
    const BYTES_MAX: usize = 1024;
    if value.len() > 2 * BYTES_MAX {
        return None;
    }
    if let Some(digits) = value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        if !digits.is_ascii() || !digits.len().is_multiple_of(2) {
            return None;
        }
        let pairs = (0..digits.len()).step_by(2);
        return pairs.map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok()).collect();
    }
    let digits = value.strip_prefix("0b").or_else(|| value.strip_prefix("0B"))?;
    base_64(digits.trim_end_matches('='))
}

fn base_64(digits: &str) -> Option<Vec<u8>> {
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for digit in digits.bytes() {
        let six = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(six)) & 0xffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from((bits >> count) & 0xff).expect("8 bits"));
        }
    }
    Some(bytes)
}

/// Bytes as a hexadecimal value.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_in_order() {
        assert_eq!(parse(b"a=1\0b=x=y\0"), Ok(vec![("a", "1"), ("b", "x=y")]));
        assert_eq!(parse(b"a=\0\0\0"), Ok(vec![("a", "")]));
        assert_eq!(parse(b""), Ok(Vec::new()));
    }

    #[test]
    fn text_without_an_end_or_a_value_is_refused() {
        for bytes in [&b"a=1"[..], b"a\0", b"=1\0", b"\xff=1\0"] {
            assert_eq!(parse(bytes), Err(InvalidText), "{bytes:?}");
        }
        assert_eq!(parse(&b"a=1\0".repeat(KEYS_MAX + 1)), Err(InvalidText));
    }

    #[test]
    fn numbers_and_binary_values_have_two_forms() {
        assert_eq!((number("0x10"), number("16"), number("-1")), (Some(16), Some(16), None));
        assert_eq!(binary("0x00fF"), Some(vec![0, 255]));
        assert_eq!(binary("0bAP8="), Some(vec![0, 255]));
        assert_eq!((binary("0x0"), binary("00"), binary("0x\u{e9}")), (None, None, None));
        assert_eq!(hexadecimal(&[1, 171]), "0x01ab");
    }
}
