//! Replies to a client, in the form of its protocol.

use crate::double::shortest_of_17;

/// The version that a client chose with `HELLO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Protocol {
    /// RESP2, which every connection begins with.
    #[default]
    Resp2,
    /// RESP3.
    Resp3,
}

/// Writes replies behind those that are there. It writes nothing more above its limit.
#[derive(Debug)]
pub struct Reply<'a> {
    out: &'a mut Vec<u8>,
    /// The form of what has one in both protocols.
    pub protocol: Protocol,
    limit: usize,
    is_over: bool,
}

impl<'a> Reply<'a> {
    /// Writes to `out`, which may hold `limit` bytes.
    pub fn new(out: &'a mut Vec<u8>, protocol: Protocol, limit: usize) -> Self {
        Self { out, protocol, limit, is_over: false }
    }

    /// Whether something was left out because of the limit: what is there is of no use.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Bytes that are there.
    #[must_use]
    pub fn length(&self) -> usize {
        self.out.len()
    }

    /// Removes what was written behind this length.
    pub fn truncate(&mut self, length: usize) {
        self.out.truncate(length);
    }

    /// The bytes that were written behind this length.
    #[must_use]
    pub fn since(&self, length: usize) -> &[u8] {
        self.out.get(length..).unwrap_or_default()
    }

    /// Bytes that are a reply already.
    pub fn raw(&mut self, bytes: &[u8]) {
        if self.out.len() + bytes.len() > self.limit {
            self.is_over = true;
            return;
        }
        self.out.extend_from_slice(bytes);
    }

    fn head(&mut self, mark: u8, number: i64) {
        let mut text = [0_u8; 24];
        let mut at = text.len() - 2;
        text[at..].copy_from_slice(b"\r\n");
        let mut rest = number.unsigned_abs();
        loop {
            at -= 1;
            text[at] = b'0' + u8::try_from(rest % 10).expect("a digit");
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            at -= 1;
            text[at] = b'-';
        }
        at -= 1;
        text[at] = mark;
        let text = text;
        self.raw(&text[at..]);
    }

    fn count(&mut self, mark: u8, count: usize) {
        self.head(mark, i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// A line of text without line ends.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// `+OK`.
    pub fn ok(&mut self) {
        self.raw(b"+OK\r\n");
    }

    /// An error: its code, a space, and the text. Line ends become spaces.
    pub fn error(&mut self, text: &str) {
        self.line(b'-', text);
    }

    fn line(&mut self, mark: u8, text: &str) {
        self.raw(&[mark]);
        if text.contains(['\r', '\n']) {
            self.raw(text.replace(['\r', '\n'], " ").as_bytes());
        } else {
            self.raw(text.as_bytes());
        }
        self.raw(b"\r\n");
    }

    /// An integer.
    pub fn integer(&mut self, number: i64) {
        self.head(b':', number);
    }

    /// A count as an integer.
    pub fn size(&mut self, number: usize) {
        self.count(b':', number);
    }

    /// A bulk string.
    pub fn bulk(&mut self, bytes: &[u8]) {
        if self.out.len() + bytes.len() + 32 > self.limit {
            self.is_over = true;
            return;
        }
        self.count(b'$', bytes.len());
        self.raw(bytes);
        self.raw(b"\r\n");
    }

    /// A bulk string, or null.
    pub fn bulk_or_null(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    /// No value.
    pub fn null(&mut self) {
        self.raw(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// No array.
    pub fn null_array(&mut self) {
        self.raw(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// So many replies follow.
    pub fn array(&mut self, count: usize) {
        self.count(b'*', count);
    }

    /// So many pairs of replies follow.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.count(b'*', pairs * 2),
            Protocol::Resp3 => self.count(b'%', pairs),
        }
    }

    /// So many replies follow, in no order.
    pub fn set(&mut self, count: usize) {
        match self.protocol {
            Protocol::Resp2 => self.count(b'*', count),
            Protocol::Resp3 => self.count(b'~', count),
        }
    }

    /// A number.
    pub fn double(&mut self, number: f64) {
        let text = shortest_of_17(number);
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => self.line(b',', &text),
        }
    }

    /// Text for people.
    pub fn verbatim(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => {
                self.count(b'=', text.len() + 4);
                self.raw(b"txt:");
                self.raw(text.as_bytes());
                self.raw(b"\r\n");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: Protocol, write: impl Fn(&mut Reply<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Reply::new(&mut out, protocol, 10_000));
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn replies_have_the_form_of_the_protocol() {
        let all = |reply: &mut Reply<'_>| {
            reply.simple("PONG");
            reply.error("ERR a\r\nb");
            reply.integer(i64::MIN);
            reply.bulk(b"");
            reply.null();
            reply.null_array();
            reply.map(1);
            reply.set(2);
            reply.double(0.5);
            reply.verbatim("x");
        };
        assert_eq!(
            written(Protocol::Resp2, all),
            "+PONG\r\n-ERR a  b\r\n:-9223372036854775808\r\n$0\r\n\r\n$-1\r\n*-1\r\n*2\r\n*2\r\n\
             $3\r\n0.5\r\n$1\r\nx\r\n"
        );
        assert_eq!(
            written(Protocol::Resp3, all),
            "+PONG\r\n-ERR a  b\r\n:-9223372036854775808\r\n$0\r\n\r\n_\r\n_\r\n%1\r\n~2\r\n\
             ,0.5\r\n=5\r\ntxt:x\r\n"
        );
    }

    #[test]
    fn nothing_is_written_above_the_limit() {
        let mut out = Vec::new();
        let mut reply = Reply::new(&mut out, Protocol::Resp2, 100);
        reply.bulk(&[0; 50]);
        assert!(!reply.is_over());
        reply.bulk(&[0; 50]);
        assert!(reply.is_over());
        assert!(out.len() <= 100);
    }
}
