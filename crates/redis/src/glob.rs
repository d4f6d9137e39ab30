//! Patterns of KEYS, SCAN and CONFIG GET: `*`, `?`, `[a-z]`, `[^a]`, and `\` before any byte.

/// Whether the whole of `text` fits the pattern. It takes at most the product of both lengths.
#[must_use]
pub fn fits(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut place) = (0, 0);
    // Where to go on after a mismatch: behind the last star, with one more byte for it.
    let mut star: Option<(usize, usize)> = None;
    while place < text.len() {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at + 1, place));
            at += 1;
            continue;
        }
        if let Some(length) = one(&pattern[at..], text[place]) {
            at += length;
            place += 1;
            continue;
        }
        let Some((after, taken)) = star else { return false };
        star = Some((after, taken + 1));
        at = after;
        place = taken + 1;
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// The length of the first part of the pattern if it fits the byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern.first()? {
        b'?' => Some(1),
        b'[' => set(pattern, byte),
        b'\\' if pattern.len() > 1 => (pattern[1] == byte).then_some(2),
        other => (other == byte).then_some(1),
    }
}

/// A set of bytes in brackets; one that is not closed ends with the pattern, as in Redis.
fn set(pattern: &[u8], byte: u8) -> Option<usize> {
    let mut at = 1;
    let is_not = pattern.get(at) == Some(&b'^');
    at += usize::from(is_not);
    let mut is_in = false;
    loop {
        match (pattern.get(at), pattern.get(at + 1), pattern.get(at + 2)) {
            (None, ..) => break,
            (Some(b'\\'), Some(escaped), _) => {
                is_in |= *escaped == byte;
                at += 2;
            }
            (Some(b']'), ..) => {
                at += 1;
                break;
            }
            (Some(first), Some(b'-'), Some(last)) => {
                let (low, high) = (*first.min(last), *first.max(last));
                is_in |= (low..=high).contains(&byte);
                at += 3;
            }
            (Some(one), ..) => {
                is_in |= *one == byte;
                at += 1;
            }
        }
    }
    (is_in != is_not).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("h?llo", "hello", true),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hxllo", false),
            ("a*b*c", "aXXbYYc", true),
            ("a*b*c", "aXXbYY", false),
            ("*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
            ("[", "a", false),
        ] {
            assert_eq!(fits(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
