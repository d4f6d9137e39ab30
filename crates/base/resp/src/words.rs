//! Inline requests: words between spaces, with quotes.

/// Splits a line into words as Redis does: spaces separate; `"` quotes with `\n`, `\r`, `\t`,
/// `\b`, `\a` and `\xHH`; `'` quotes with `\'`. `None` when a quote is not closed or something
/// follows a closed one.
#[must_use]
pub fn split(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(|byte| is_space(*byte)) {
            at += 1;
        }
        if at == line.len() {
            return Some(words);
        }
        let (word, after) = word(line, at)?;
        words.push(word);
        at = after;
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t' | 0x0b | 0x0c)
}

/// One word that begins at `at`, and where it ends.
fn word(line: &[u8], mut at: usize) -> Option<(Vec<u8>, usize)> {
    let mut word = Vec::new();
    loop {
        match line.get(at) {
            None | Some(0) => return Some((word, line.len())),
            Some(byte) if is_space(*byte) => return Some((word, at)),
            Some(quote @ (b'"' | b'\'')) => {
                at = quoted(line, at + 1, *quote, &mut word)?;
                let is_over = line.get(at).is_none_or(|byte| is_space(*byte));
                return is_over.then_some((word, at));
            }
            Some(byte) => word.push(*byte),
        }
        at += 1;
    }
}

/// Reads a quoted part from `at` on; returns the place behind the closing quote.
fn quoted(line: &[u8], mut at: usize, quote: u8, word: &mut Vec<u8>) -> Option<usize> {
    loop {
        let byte = *line.get(at)?;
        let next = line.get(at + 1).copied();
        match (byte, next) {
            (b'\\', Some(b'x')) if quote == b'"' && hex(line, at + 2).is_some() => {
                word.push(hex(line, at + 2)?);
                at += 4;
            }
            (b'\\', Some(escaped)) if quote == b'"' => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => other,
                });
                at += 2;
            }
            (b'\\', Some(b'\'')) if quote == b'\'' => {
                word.push(b'\'');
                at += 2;
            }
            _ if byte == quote => return Some(at + 1),
            _ => {
                word.push(byte);
                at += 1;
            }
        }
    }
}

fn hex(line: &[u8], at: usize) -> Option<u8> {
    let digits = std::str::from_utf8(line.get(at..at + 2)?).ok()?;
    let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then(|| u8::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_redis_does() {
        let words = |line: &str| split(line.as_bytes());
        let owned = |words: &[&[u8]]| Some(words.iter().map(|word| word.to_vec()).collect());
        assert_eq!(words("  SET a  b "), owned(&[b"SET", b"a", b"b"]));
        assert_eq!(words(r#"a "b c\x41\n" 'd\'e'"#), owned(&[b"a", b"b cA\n", b"d'e"]));
        assert_eq!(words(""), owned(&[]));
        assert_eq!(words(r#"a "b"#), None);
        assert_eq!(words(r#"a "b"c"#), None);
        assert_eq!(words("a 'b"), None);
        assert_eq!(words(r#"x"y z""#), owned(&[b"xy z"]));
        assert_eq!(words(r#""\xzz""#), owned(&[b"xzz"]));
    }
}
