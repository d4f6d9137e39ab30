//! Numbers in arguments and values, read as strictly as Redis reads them.

/// A whole number: digits without zeros or a plus before them, and a minus.
#[must_use]
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    match digits {
        [b'0'] if digits.len() == text.len() => return Some(0),
        [b'1'..=b'9', rest @ ..] if rest.len() < 19 && rest.iter().all(u8::is_ascii_digit) => {}
        _ => return None,
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A number of any kind that the C library reads, without spaces; no NaN.
#[must_use]
pub(crate) fn double(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let number = match text.to_ascii_lowercase().as_str() {
        "inf" | "+inf" | "infinity" | "+infinity" => f64::INFINITY,
        "-inf" | "-infinity" => f64::NEG_INFINITY,
        lower => match lower.find("0x") {
            Some(0..=1) => hexadecimal(lower)?,
            _ => text.parse().ok()?,
        },
    };
    // Redis refuses what overflows.
    (!number.is_nan() && (number.is_finite() || text.to_ascii_lowercase().contains("inf")))
        .then_some(number)
}

/// A bound of scores, which is read less strictly: spaces may be before it, nothing is 0, and what
/// is too large is infinite.
#[must_use]
pub(crate) fn bound(text: &[u8]) -> Option<f64> {
    let text = text.trim_ascii_start();
    if text.is_empty() {
        return Some(0.0);
    }
    let overflown = || std::str::from_utf8(text).ok()?.parse().ok();
    double(text).or_else(overflown).filter(|number| !number.is_nan())
}

/// Whole hexadecimal numbers, which `strtod` reads.
fn hexadecimal(text: &str) -> Option<f64> {
    let (sign, digits) = text.strip_prefix('-').map_or((1.0, text), |rest| (-1.0, rest));
    let digits = digits.strip_prefix('+').unwrap_or(digits).strip_prefix("0x")?;
    let is_short = !digits.is_empty() && digits.len() <= 13;
    let number = is_short.then(|| u64::from_str_radix(digits, 16).ok())??;
    // Thirteen digits are 52 bits, which a double holds.
    let (high, low) =
        (u32::try_from(number >> 32).ok()?, u32::try_from(number & 0xffff_ffff).ok()?);
    Some(sign * (f64::from(high) * 4_294_967_296.0 + f64::from(low)))
}

/// The bytes of a score in an order that is that of the numbers.
#[must_use]
pub(crate) fn ordered(score: f64) -> [u8; 8] {
    // Both zeros are one score.
    let score = if score == 0.0 { 0.0 } else { score };
    let bits = score.to_bits();
    let flipped = if bits >> 63 == 0 { bits | 1 << 63 } else { !bits };
    flipped.to_be_bytes()
}

/// The score of its ordered bytes.
#[must_use]
pub(crate) fn score(bytes: [u8; 8]) -> f64 {
    let flipped = u64::from_be_bytes(bytes);
    f64::from_bits(if flipped >> 63 == 1 { flipped & !(1 << 63) } else { !flipped })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_strictly() {
        assert_eq!(integer(b"0"), Some(0));
        assert_eq!(integer(b"-12"), Some(-12));
        assert_eq!(integer(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        for text in ["", "-", "-0", "01", "+1", " 1", "1 ", "1.0", "9223372036854775808", "a"] {
            assert_eq!(integer(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn scores_keep_their_order() {
        let scores = [f64::NEG_INFINITY, -1e300, -2.0, -1e-300, 0.0, 1e-300, 1.0, f64::INFINITY];
        for pair in scores.windows(2) {
            assert!(ordered(pair[0]) < ordered(pair[1]), "{pair:?}");
        }
        for one in scores {
            assert_eq!(score(ordered(one)).to_bits(), one.to_bits());
        }
        assert_eq!(ordered(-0.0), ordered(0.0));
    }
}
