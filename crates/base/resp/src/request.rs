//! Requests of a client: arrays of bulk strings, or a line of words.
//!
//! A request is not copied: its words are ranges of the buffer that the driver read into.

use std::ops::Range;

use memchr::memchr;

use crate::words;

/// The longest line: a count, a length or an inline request (Redis `PROTO_INLINE_MAX_SIZE`).
const LINE_MAX: usize = 64 << 10;
/// Most words of a request.
const WORDS_MAX: i64 = 1 << 20;
/// Most words of a request of a client that did not say the password.
const WORDS_MAX_BEFORE_PASSWORD: i64 = 10;
/// Longest word of such a client.
const BULK_MAX_BEFORE_PASSWORD: usize = 16 << 10;

/// How much a client may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of one word (`proto-max-bulk-len`).
    pub bulk: usize,
    /// Most bytes of one request with its framing.
    pub request: usize,
    /// Whether the client said the password, or needs none.
    pub is_trusted: bool,
}

/// Bytes that are no request. The text follows `-ERR ` in the answer; then the connection ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A line without an end.
    #[error("Protocol error: too big inline request")]
    InlineTooBig,
    /// A quote of an inline request that is not closed.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// A count of words without an end.
    #[error("Protocol error: too big mbulk count string")]
    CountTooBig,
    /// A count of words that is no number, or too large.
    #[error("Protocol error: invalid multibulk length")]
    InvalidCount,
    /// More words than a client without the password may send.
    #[error("Protocol error: unauthenticated multibulk length")]
    CountBeforePassword,
    /// A length of a word without an end.
    #[error("Protocol error: too big bulk count string")]
    LengthTooBig,
    /// Something else where a word had to begin.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0))]
    ExpectedBulk(u8),
    /// A length of a word that is no number, or too large.
    #[error("Protocol error: invalid bulk length")]
    InvalidLength,
    /// A longer word than a client without the password may send.
    #[error("Protocol error: unauthenticated bulk length")]
    LengthBeforePassword,
    /// The words of one request are together above the limit.
    #[error("Protocol error: too big request")]
    RequestTooBig,
}

/// A request: at least one word.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    bytes: &'a [u8],
    words: &'a [Range<usize>],
}

impl<'a> Request<'a> {
    /// The words in their order.
    pub fn words(self) -> impl ExactSizeIterator<Item = &'a [u8]> {
        self.words.iter().map(move |word| &self.bytes[word.clone()])
    }
}

/// Where the parser is in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before a request.
    Start,
    /// So many words are left.
    Words(usize),
    /// So many words are left, of which the first has this length.
    Bulk(usize, usize),
}

/// Finds requests in the bytes of a client.
#[derive(Debug)]
pub struct Parser {
    /// The bytes that the driver read. Before `done` are requests that are over.
    buffer: Vec<u8>,
    done: usize,
    /// Where to look next.
    at: usize,
    state: State,
    words: Vec<Range<usize>>,
    /// The words of an inline request without their quotes.
    inline: Vec<u8>,
}

impl Default for Parser {
    fn default() -> Self {
        Self {
            buffer: Vec::new(),
            done: 0,
            at: 0,
            state: State::Start,
            words: Vec::new(),
            inline: Vec::new(),
        }
    }
}

impl Parser {
    /// The buffer to append what was read to, after the requests that are over were removed.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        // A byte moves once for each one that is over, at most.
        if self.done > self.buffer.len() / 2 {
            self.compact();
        }
        &mut self.buffer
    }

    /// Takes the place of the buffer, which must be empty, by one with memory; see
    /// [`release`](Self::release).
    pub fn lend(&mut self, buffer: &mut Vec<u8>) {
        self.compact();
        if self.buffer.is_empty() {
            buffer.clear();
            std::mem::swap(&mut self.buffer, buffer);
        }
    }

    /// Gives the buffer back if nothing is in it: an idle client keeps no memory.
    pub fn release(&mut self, buffer: &mut Vec<u8>) {
        self.compact();
        if self.buffer.is_empty() {
            self.words = Vec::new();
            self.inline = Vec::new();
            std::mem::swap(&mut self.buffer, buffer);
            self.buffer = Vec::new();
        }
    }

    /// Bytes of memory that the parser takes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.buffer.capacity()
            + self.words.capacity() * size_of::<Range<usize>>()
            + self.inline.capacity()
    }

    /// Bytes that were read and are not answered yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.buffer.len() - self.done
    }

    /// The next request that is whole, or `None` until there is more in the buffer.
    ///
    /// # Errors
    /// Bytes that are no request. The parser is of no use then.
    pub fn next(&mut self, limits: &Limits) -> Result<Option<Request<'_>>, ProtocolError> {
        loop {
            let found = match self.state {
                State::Start => self.start(limits)?,
                State::Words(left) => self.length(left, limits)?,
                State::Bulk(left, length) => self.bulk(left, length),
            };
            match found {
                Step::More => {
                    let announced = match self.state {
                        State::Bulk(_, length) => length,
                        _ => 0,
                    };
                    if self.at - self.done + announced > limits.request {
                        return Err(ProtocolError::RequestTooBig);
                    }
                    return Ok(None);
                }
                Step::Again => {}
                Step::Whole => {
                    self.done = self.at;
                    self.state = State::Start;
                    return Ok(Some(Request { bytes: &self.buffer, words: &self.words }));
                }
                Step::WholeInline => {
                    self.done = self.at;
                    return Ok(Some(Request { bytes: &self.inline, words: &self.words }));
                }
            }
        }
    }

    fn compact(&mut self) {
        if self.done == 0 {
            return;
        }
        self.buffer.drain(..self.done);
        // The words of a request that is not whole yet move with their bytes.
        if self.state == State::Start {
            self.words.clear();
        } else {
            for word in &mut self.words {
                *word = word.start - self.done..word.end - self.done;
            }
        }
        self.at -= self.done;
        self.done = 0;
    }

    fn start(&mut self, limits: &Limits) -> Result<Step, ProtocolError> {
        self.words.clear();
        let rest = &self.buffer[self.at..];
        match rest.first() {
            None => return Ok(Step::More),
            Some(b'*') => {}
            Some(_) => return self.inline(),
        }
        let Some(line) = self.line(ProtocolError::CountTooBig)? else { return Ok(Step::More) };
        let count = number(&self.buffer[line.start + 1..line.end]);
        let count = count.filter(|count| *count <= WORDS_MAX).ok_or(ProtocolError::InvalidCount)?;
        if count > WORDS_MAX_BEFORE_PASSWORD && !limits.is_trusted {
            return Err(ProtocolError::CountBeforePassword);
        }
        self.at = line.end + 2;
        match usize::try_from(count) {
            // Redis passes over empty and negative ones.
            Err(_) | Ok(0) => self.done = self.at,
            Ok(count) => self.state = State::Words(count),
        }
        Ok(Step::Again)
    }

    fn length(&mut self, left: usize, limits: &Limits) -> Result<Step, ProtocolError> {
        let Some(line) = self.line(ProtocolError::LengthTooBig)? else { return Ok(Step::More) };
        let first = self.buffer[line.start];
        if first != b'$' {
            return Err(ProtocolError::ExpectedBulk(first));
        }
        let length = number(&self.buffer[line.start + 1..line.end])
            .and_then(|length| usize::try_from(length).ok())
            .filter(|length| *length <= limits.bulk)
            .ok_or(ProtocolError::InvalidLength)?;
        if length > BULK_MAX_BEFORE_PASSWORD && !limits.is_trusted {
            return Err(ProtocolError::LengthBeforePassword);
        }
        self.at = line.end + 2;
        self.state = State::Bulk(left, length);
        Ok(Step::Again)
    }

    fn bulk(&mut self, left: usize, length: usize) -> Step {
        let end = self.at + length;
        if self.buffer.len() < end + 2 {
            return Step::More;
        }
        self.words.push(self.at..end);
        // As Redis, which does not look at the two bytes behind a word.
        self.at = end + 2;
        if left == 1 {
            return Step::Whole;
        }
        self.state = State::Words(left - 1);
        Step::Again
    }

    /// The line that begins at `at`, without its end, if it is there.
    fn line(&self, too_big: ProtocolError) -> Result<Option<Range<usize>>, ProtocolError> {
        let rest = &self.buffer[self.at..];
        match memchr(b'\r', rest) {
            // The byte behind the return is passed over, as Redis does.
            Some(end) if end + 1 < rest.len() => Ok(Some(self.at..self.at + end)),
            None if rest.len() > LINE_MAX => Err(too_big),
            _ => Ok(None),
        }
    }

    fn inline(&mut self) -> Result<Step, ProtocolError> {
        let rest = &self.buffer[self.at..];
        let Some(end) = memchr(b'\n', rest) else {
            let is_too_big = rest.len() > LINE_MAX;
            return if is_too_big { Err(ProtocolError::InlineTooBig) } else { Ok(Step::More) };
        };
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        let words = words::split(line).ok_or(ProtocolError::UnbalancedQuotes)?;
        self.at += end + 1;
        if words.is_empty() {
            self.done = self.at;
            return Ok(Step::Again);
        }
        self.inline.clear();
        for word in words {
            let start = self.inline.len();
            self.inline.extend_from_slice(&word);
            self.words.push(start..self.inline.len());
        }
        Ok(Step::WholeInline)
    }
}

/// The result of one step of the parser.
enum Step {
    /// The buffer has no more.
    More,
    /// The state changed.
    Again,
    /// The words lie in the buffer.
    Whole,
    /// The words lie in `inline`.
    WholeInline,
}

/// A whole decimal number without a plus or zeros before it, as Redis reads it.
fn number(digits: &[u8]) -> Option<i64> {
    let (sign, magnitude) = match digits {
        [b'-', rest @ ..] => (-1, rest),
        _ => (1, digits),
    };
    match magnitude {
        [b'0'] if sign == 1 => return Some(0),
        [b'1'..=b'9', ..] if magnitude.len() <= 18 => {}
        _ => return None,
    }
    magnitude
        .iter()
        .try_fold(0_i64, |sum, digit| {
            digit.is_ascii_digit().then(|| sum * 10 + i64::from(digit - b'0'))
        })
        .map(|magnitude| sign * magnitude)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { bulk: 1_000_000, request: 2_000_000, is_trusted: true };

    fn all(input: &[u8], limits: &Limits) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
        let mut parser = Parser::default();
        parser.buffer().extend_from_slice(input);
        let mut requests = Vec::new();
        while let Some(request) = parser.next(limits)? {
            requests.push(request.words().map(<[u8]>::to_vec).collect());
        }
        Ok(requests)
    }

    #[test]
    fn a_pipeline_gives_its_requests_in_order() {
        let input =
            b"*2\r\n$3\r\nGET\r\n$1\r\na\r\nPING\r\n\r\n*0\r\n*1\r\n$0\r\n\r\n*1\r\n$4\r\nPI";
        let requests = all(input, &LIMITS).expect("they are valid");
        assert_eq!(
            requests,
            [vec![b"GET".to_vec(), b"a".to_vec()], vec![b"PING".to_vec()], vec![Vec::new()]]
        );
    }

    #[test]
    fn what_is_no_request_is_refused_with_the_text_of_redis() {
        let untrusted = Limits { is_trusted: false, ..LIMITS };
        for (input, limits, text) in [
            (&b"*1x\r\n"[..], &LIMITS, "invalid multibulk length"),
            (b"*2147483648\r\n", &LIMITS, "invalid multibulk length"),
            (b"*\r\n", &LIMITS, "invalid multibulk length"),
            (b"*1\r\n:5\r\n", &LIMITS, "expected '$', got ':'"),
            (b"*1\r\n$-1\r\n", &LIMITS, "invalid bulk length"),
            (b"*1\r\n$1000001\r\n", &LIMITS, "invalid bulk length"),
            (b"*11\r\n", &untrusted, "unauthenticated multibulk length"),
            (b"*1\r\n$16385\r\n", &untrusted, "unauthenticated bulk length"),
            (b"SET \"a\r\n", &LIMITS, "unbalanced quotes in request"),
        ] {
            let error = all(input, limits).expect_err("no request");
            assert_eq!(error.to_string(), format!("Protocol error: {text}"));
        }
        let long = vec![b'a'; LINE_MAX + 1];
        assert_eq!(all(&long, &LIMITS), Err(ProtocolError::InlineTooBig));
        let long = [b"*".to_vec(), vec![b'1'; LINE_MAX + 1]].concat();
        assert_eq!(all(&long, &LIMITS), Err(ProtocolError::CountTooBig));
        let long = [b"*1\r\n$".to_vec(), vec![b'1'; LINE_MAX + 1]].concat();
        assert_eq!(all(&long, &LIMITS), Err(ProtocolError::LengthTooBig));
    }

    #[test]
    fn the_words_of_a_request_are_bounded_together() {
        let word = [b"$1000000\r\n".to_vec(), vec![b'a'; 1_000_000], b"\r\n".to_vec()].concat();
        let input = [b"*9\r\n".to_vec(), word.clone(), word, b"$1000000\r\n".to_vec()].concat();
        assert_eq!(all(&input, &LIMITS), Err(ProtocolError::RequestTooBig));
    }

    #[test]
    fn a_buffer_is_given_back_when_nothing_is_in_it() {
        let mut spare = Vec::with_capacity(4096);
        let mut parser = Parser::default();
        parser.lend(&mut spare);
        parser.buffer().extend_from_slice(b"PING\r\n");
        assert!(parser.next(&LIMITS).expect("valid").is_some());
        assert!(parser.next(&LIMITS).expect("valid").is_none());
        parser.release(&mut spare);
        assert_eq!((parser.memory(), spare.capacity()), (0, 4096));
    }
}
