//! Messages of PMI and their two forms on the wire, without I/O.
//!
//! PMI-1 sends a line: `cmd=put kvsname=k key=a value=1` and a newline. PMI-2 sends a frame: six
//! characters with the length in decimal, then `cmd=kvs-put;key=a;value=1;`, with `;` in a value
//! doubled. The first six bytes tell which one it is. A PMI-2 client begins with one line, too. One
//! command of PMI-1 has a line for each value: `mcmd=spawn`, then the values, then `endcmd`.
//!
//! # Invariants
//! - A [`Decoder`] holds less than one message of the greatest length, plus the last bytes pushed.

use crate::Malformed;

/// Longest line in bytes, with the newline. MPICH's clients send 1,024 at most; a `get_result` with
/// a value of 1,024 bytes is longer.
pub const LINE_BYTES_MAX: usize = 4096;
/// Longest body of a frame in bytes, as in MPICH.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;
/// Characters of the length before a frame.
pub const LENGTH_BYTES: usize = 6;
/// Most values in a message.
pub const PAIRS_MAX: usize = 1000;

/// The begin of a command that has a line for each value.
const LINES_BEGIN: &str = "mcmd=";
/// Its end.
const LINES_END: &[u8] = b"\nendcmd\n";

/// How a message is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A line of PMI-1.
    Line,
    /// A frame of PMI-2.
    Frame,
}

/// A command with its values, in their order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Message {
    /// The command, such as `barrier_in`.
    pub command: String,
    /// Names and values.
    pub pairs: Vec<(String, String)>,
}

impl Message {
    /// A message without values.
    pub fn new(command: &str) -> Self {
        Self { command: command.to_owned(), pairs: Vec::new() }
    }

    /// The same with a value more.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.pairs.push((name.to_owned(), value.to_string()));
        self
    }

    /// The first value of that name.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The value of that name as a number.
    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.value(name)?.parse().ok()
    }

    /// The bytes on the wire. A newline in a value becomes a space in a line: it would end it.
    pub fn encode(&self, form: Form) -> Vec<u8> {
        match form {
            Form::Line => self.encode_line(),
            Form::Frame => self.encode_frame(),
        }
    }

    fn encode_line(&self) -> Vec<u8> {
        let mut line = format!("cmd={}", self.command);
        for (name, value) in &self.pairs {
            line.push_str(&format!(" {name}={value}"));
        }
        let mut line = line.replace(['\n', '\r'], " ");
        line.push('\n');
        line.into_bytes()
    }

    fn encode_frame(&self) -> Vec<u8> {
        let mut body = format!("cmd={};", self.command);
        for (name, value) in &self.pairs {
            body.push_str(&format!("{name}={};", value.replace(';', ";;")));
        }
        let mut frame = format!("{:<width$}", body.len(), width = LENGTH_BYTES).into_bytes();
        frame.extend_from_slice(body.as_bytes());
        frame
    }

    /// Reads a line without its newline. Words are split by spaces. A word without a name belongs
    /// to the value before it: the message of an `abort` is written without quotes.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse_line(line: &[u8]) -> Result<Self, Malformed> {
        let text = std::str::from_utf8(line).map_err(|_| Malformed::NotText)?;
        let mut words = text.split([' ', '\r', '\t']).filter(|word| !word.is_empty());
        let command = words
            .next()
            .and_then(|word| word.strip_prefix("cmd="))
            .filter(|command| is_name(command))
            .ok_or(Malformed::NoCommand)?;
        let mut message = Self::new(command);
        for word in words {
            let pair = word.split_once('=').filter(|(name, _)| is_name(name));
            match (pair, message.pairs.last_mut()) {
                (Some((name, value)), _) => message.add(name.to_owned(), value.to_owned())?,
                (None, Some((_, value))) => {
                    value.push(' ');
                    value.push_str(word);
                }
                (None, None) => return Err(Malformed::NoPair),
            }
        }
        Ok(message)
    }

    /// Reads a command that has a line for each value, without `endcmd`.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse_lines(lines: &[u8]) -> Result<Self, Malformed> {
        let text = std::str::from_utf8(lines).map_err(|_| Malformed::NotText)?;
        let mut lines = text.lines();
        let command = lines.next().and_then(|line| line.strip_prefix(LINES_BEGIN));
        let command = command.map(str::trim).filter(|command| is_name(command));
        let mut message = Self::new(command.ok_or(Malformed::NoCommand)?);
        for line in lines {
            let (name, value) = line.split_once('=').ok_or(Malformed::NoPair)?;
            message.add(name.to_owned(), value.to_owned())?;
        }
        Ok(message)
    }

    /// Reads the body of a frame.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse_body(body: &[u8]) -> Result<Self, Malformed> {
        let text = std::str::from_utf8(body).map_err(|_| Malformed::NotText)?;
        let mut rest = text.trim_end_matches(['\n', '\0']);
        let mut message: Option<Self> = None;
        while !rest.is_empty() {
            let (name, after) = rest.split_once('=').ok_or(Malformed::NoPair)?;
            if !is_name(name) {
                return Err(Malformed::NoPair);
            }
            let (value, after) = value_of_body(after)?;
            rest = after;
            match &mut message {
                None if name == "cmd" && is_name(&value) => message = Some(Self::new(&value)),
                None => return Err(Malformed::NoCommand),
                Some(message) => message.add(name.to_owned(), value)?,
            }
        }
        message.ok_or(Malformed::NoCommand)
    }

    fn add(&mut self, name: String, value: String) -> Result<(), Malformed> {
        if self.pairs.len() == PAIRS_MAX {
            return Err(Malformed::TooManyPairs { max: PAIRS_MAX });
        }
        self.pairs.push((name, value));
        Ok(())
    }
}

/// Whether a name of a command or of a value is one: letters, digits, `_`, `-` and `/`.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-/".contains(&byte))
}

/// A value up to a single `;`, and the text behind that.
fn value_of_body(text: &str) -> Result<(String, &str), Malformed> {
    let mut value = String::new();
    let mut rest = text;
    loop {
        let (before, after) = rest.split_once(';').ok_or(Malformed::NoPair)?;
        value.push_str(before);
        match after.strip_prefix(';') {
            Some(after) => {
                value.push(';');
                rest = after;
            }
            None => return Ok((value, after)),
        }
    }
}

/// Bytes of a stream, cut into messages.
#[derive(Default, Debug)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// Bytes before this one have been handed out.
    begin: usize,
}

impl Decoder {
    /// Adds bytes of the stream. Push no more than a few KiB before the messages are taken.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.begin);
        self.begin = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete message and its form. After an error the stream is of no use.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn next_message(&mut self) -> Result<Option<(Form, Message)>, Malformed> {
        loop {
            let rest = self.bytes.get(self.begin..).unwrap_or_default();
            match rest.first() {
                None => return Ok(None),
                // A frame may be followed by a newline, and empty lines mean nothing.
                Some(b'\n' | b'\r') => self.begin += 1,
                Some(b'0'..=b'9' | b' ') => return self.next_frame(),
                Some(b'm') => return self.next_lines(),
                Some(_) => return self.next_line(),
            }
        }
    }

    fn next_lines(&mut self) -> Result<Option<(Form, Message)>, Malformed> {
        let rest = self.bytes.get(self.begin..).unwrap_or_default();
        let end = rest.windows(LINES_END.len()).position(|bytes| bytes == LINES_END);
        let Some(end) = end else {
            let begin = LINES_BEGIN.as_bytes();
            let shown = rest.get(..begin.len().min(rest.len())).unwrap_or_default();
            if !begin.starts_with(shown) {
                return Err(Malformed::NoCommand);
            }
            let is_bounded = rest.len() < FRAME_BYTES_MAX;
            return if is_bounded { Ok(None) } else { Err(too_long(FRAME_BYTES_MAX)) };
        };
        let message = Message::parse_lines(rest.get(..end).unwrap_or_default())?;
        self.begin += end + LINES_END.len();
        Ok(Some((Form::Line, message)))
    }

    fn next_line(&mut self) -> Result<Option<(Form, Message)>, Malformed> {
        let rest = self.bytes.get(self.begin..).unwrap_or_default();
        let Some(length) = rest.iter().position(|&byte| byte == b'\n') else {
            let is_bounded = rest.len() < LINE_BYTES_MAX;
            return if is_bounded { Ok(None) } else { Err(too_long(LINE_BYTES_MAX)) };
        };
        if length >= LINE_BYTES_MAX {
            return Err(too_long(LINE_BYTES_MAX));
        }
        let message = Message::parse_line(rest.get(..length).unwrap_or_default())?;
        self.begin += length + 1;
        Ok(Some((Form::Line, message)))
    }

    fn next_frame(&mut self) -> Result<Option<(Form, Message)>, Malformed> {
        let rest = self.bytes.get(self.begin..).unwrap_or_default();
        let Some((length, body)) = rest.split_at_checked(LENGTH_BYTES) else { return Ok(None) };
        let length = std::str::from_utf8(length).map_err(|_| Malformed::NoLength)?;
        let length: usize = length.trim().parse().map_err(|_| Malformed::NoLength)?;
        if length > FRAME_BYTES_MAX {
            return Err(too_long(FRAME_BYTES_MAX));
        }
        let Some(body) = body.get(..length) else { return Ok(None) };
        let message = Message::parse_body(body)?;
        self.begin += LENGTH_BYTES + length;
        Ok(Some((Form::Frame, message)))
    }
}

const fn too_long(max: usize) -> Malformed {
    Malformed::TooLong { max }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(bytes: &[u8]) -> Result<Vec<(Form, Message)>, Malformed> {
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        let mut messages = Vec::new();
        while let Some(message) = decoder.next_message()? {
            messages.push(message);
        }
        Ok(messages)
    }

    #[test]
    fn a_line_is_a_command_with_values() {
        let put = Message::new("put").with("kvsname", "k_0").with("key", "a").with("value", "b=c");
        let bytes = put.encode(Form::Line);
        assert_eq!(bytes, b"cmd=put kvsname=k_0 key=a value=b=c\n");
        assert_eq!(decode(&bytes), Ok(vec![(Form::Line, put)]));
    }

    #[test]
    fn a_frame_doubles_semicolons_and_tells_its_length() {
        let put = Message::new("kvs-put").with("key", "a").with("value", "1;2;;");
        let bytes = put.encode(Form::Frame);
        assert_eq!(bytes, b"33    cmd=kvs-put;key=a;value=1;;2;;;;;".to_vec());
        assert_eq!(decode(&bytes), Ok(vec![(Form::Frame, put)]));
    }

    #[test]
    fn a_command_has_the_characters_of_a_name() {
        for bytes in [
            &b"23    cmd=kvs-get/a=b;;2;k=v;"[..],
            b"8     cmd=a b;",
            b"cmd=a=b\n",
            b"cmd=\xc3\xa9\n",
            b"mcmd=spawn;\nendcmd\n",
        ] {
            assert_eq!(decode(bytes), Err(Malformed::NoCommand), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn words_without_a_name_belong_to_the_message_before() {
        let line = b"cmd=abort exitcode=3 message=rank 0 said (a)=b : c\n";
        let (_, abort) = decode(line).unwrap().remove(0);
        assert_eq!(abort.number("exitcode"), Some(3));
        assert_eq!(abort.value("message"), Some("rank 0 said (a)=b : c"));
    }

    #[test]
    fn lines_and_frames_follow_each_other_in_pieces() {
        let init = Message::new("init").with("pmi_version", 2);
        let full = Message::new("fullinit").with("pmirank", 0);
        let mut bytes = init.encode(Form::Line);
        bytes.extend(full.encode(Form::Frame));
        let mut decoder = Decoder::default();
        let mut seen = Vec::new();
        for byte in bytes {
            decoder.push(&[byte]);
            seen.extend(decoder.next_message().unwrap());
        }
        assert_eq!(seen, [(Form::Line, init), (Form::Frame, full)]);
    }

    #[test]
    fn what_is_no_message_is_refused_by_name() {
        assert_eq!(decode(b"hello\n"), Err(Malformed::NoCommand));
        assert_eq!(decode(b"cmd=\n"), Err(Malformed::NoCommand));
        assert_eq!(decode(b"cmd=a b\n"), Err(Malformed::NoPair));
        assert_eq!(decode(b"cmd=\xff\n"), Err(Malformed::NotText));
        assert_eq!(decode(b"12ab  cmd=a;"), Err(Malformed::NoLength));
        assert_eq!(decode(b"4     cmd="), Err(Malformed::NoPair));
        assert_eq!(decode(b"4     a=b;"), Err(Malformed::NoCommand));
        assert_eq!(decode(b"999999"), Err(too_long(FRAME_BYTES_MAX)));
        assert_eq!(decode(&[b'c'; LINE_BYTES_MAX]), Err(too_long(LINE_BYTES_MAX)));
        let many = format!("cmd=a{}\n", " b=".repeat(PAIRS_MAX + 1));
        assert_eq!(decode(many.as_bytes()), Err(Malformed::TooManyPairs { max: PAIRS_MAX }));
    }

    #[test]
    fn a_command_of_several_lines_ends_at_endcmd() {
        let bytes = b"mcmd=spawn\nnprocs=1\nargcnt=1\narg1=a b=c\nendcmd\ncmd=get_maxes\n";
        let spawn = Message::new("spawn").with("nprocs", 1).with("argcnt", 1).with("arg1", "a b=c");
        let maxes = Message::new("get_maxes");
        assert_eq!(decode(bytes), Ok(vec![(Form::Line, spawn), (Form::Line, maxes)]));
        assert_eq!(decode(b"mcmd=spawn\nnprocs=1\n"), Ok(vec![]));
        assert_eq!(decode(b"mxyz"), Err(Malformed::NoCommand));
    }

    #[test]
    fn a_newline_in_a_value_does_not_end_the_line() {
        let abort = Message::new("abort").with("message", "a\ncmd=put");
        assert_eq!(decode(&abort.encode(Form::Line)).unwrap().len(), 1);
    }
}
