//! Bytes to PDUs: heads are collected in a buffer; long data go straight to where they belong.
//!
//! Invariants: no more is stored than a head and the data that it announces, which are checked
//! against the largest length that was agreed on before a byte of them is stored.

use super::pdu::{HEAD_BYTES, Head, padding};

const DIGEST_BYTES: usize = 4;
/// Bytes of the buffer during login.
const LOGIN_BUFFER_BYTES: usize = 9 << 10;
/// Bytes of the buffer afterwards.
const BUFFER_BYTES: usize = 64 << 10;

/// Why a connection cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidPdu {
    /// The digest of a head is wrong: no later head can be found.
    #[error("the digest of a header is wrong")]
    HeadDigest,
    /// More data than this end takes.
    #[error("a data segment of {0} bytes is longer than was agreed on")]
    TooLong(usize),
}

/// The place for the data of a PDU.
#[derive(Debug)]
pub enum Sink {
    /// A buffer of its own.
    Own,
    /// The buffer of a command, given here, from an offset on.
    Task {
        /// The buffer, which has room for the data behind the offset.
        buffer: Vec<u8>,
        /// The offset.
        at: usize,
    },
    /// Nowhere.
    Discard,
}

/// A PDU that is here as a whole.
#[derive(Debug)]
pub struct Pdu {
    /// Its head.
    pub head: Head,
    /// Where its data are.
    pub data: Sunk,
    /// Whether the data are as they were sent.
    pub is_intact: bool,
}

/// Data that have arrived.
#[derive(Debug)]
pub enum Sunk {
    /// In a buffer of its own.
    Own(Vec<u8>),
    /// In the buffer of the command.
    Task(Vec<u8>),
    /// Nowhere.
    Discarded,
}

#[derive(Debug)]
struct Body {
    head: Head,
    sink: Sink,
    own: Vec<u8>,
    received: usize,
    crc: u32,
}

impl Body {
    fn rest(&self) -> usize {
        self.head.data_bytes() - self.received
    }

    fn take(&mut self, bytes: &[u8], has_digest: bool) {
        if has_digest {
            self.crc = crc32c::crc32c_append(self.crc, bytes);
        }
        match &mut self.sink {
            Sink::Own => self.own.extend(bytes),
            Sink::Task { buffer, at } => {
                let from = *at + self.received;
                buffer[from..from + bytes.len()].copy_from_slice(bytes);
            }
            Sink::Discard => {}
        }
        self.received += bytes.len();
    }
}

#[derive(Debug)]
enum Reading {
    Head,
    Body(Box<Body>),
}

/// Bytes that arrive.
#[derive(Debug)]
pub struct Input {
    buffer: Vec<u8>,
    from: usize,
    to: usize,
    reading: Reading,
    head_digest: bool,
    data_digest: bool,
    segment_bytes_max: usize,
    /// Bytes of the last [`Input::space`] that go straight to a command.
    straight: usize,
}

impl Input {
    /// Input of a connection that logs in.
    pub fn new(segment_bytes_max: usize) -> Self {
        Self {
            buffer: vec![0; LOGIN_BUFFER_BYTES],
            from: 0,
            to: 0,
            reading: Reading::Head,
            head_digest: false,
            data_digest: false,
            segment_bytes_max,
            straight: 0,
        }
    }

    /// After login: digests, and more room.
    pub fn set_full(&mut self, head: bool, data: bool, segment_bytes_max: usize) {
        self.head_digest = head;
        self.data_digest = data;
        self.segment_bytes_max = segment_bytes_max;
        self.buffer.resize(BUFFER_BYTES, 0);
    }

    /// Two places for the next bytes, the second behind the first. The first may be empty.
    pub fn space(&mut self) -> (&mut [u8], &mut [u8]) {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        } else if self.buffer.len() - self.to < self.buffer.len() / 2 {
            self.buffer.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        let is_empty = self.from == self.to;
        let behind = &mut self.buffer[self.to..];
        self.straight = 0;
        if is_empty
            && let Reading::Body(body) = &mut self.reading
            && body.rest() > 0
        {
            let (rest, received) = (body.rest(), body.received);
            if let Sink::Task { buffer, at } = &mut body.sink {
                self.straight = rest;
                let from = *at + received;
                return (&mut buffer[from..from + rest], behind);
            }
        }
        (&mut [], behind)
    }

    /// That many bytes were stored in the places of the last [`Input::space`].
    pub fn filled(&mut self, bytes: usize) {
        let straight = bytes.min(self.straight);
        if straight > 0
            && let Reading::Body(body) = &mut self.reading
        {
            if self.data_digest
                && let Sink::Task { buffer, at } = &body.sink
            {
                let from = *at + body.received;
                body.crc = crc32c::crc32c_append(body.crc, &buffer[from..from + straight]);
            }
            body.received += straight;
        }
        self.to += bytes - straight;
        assert!(self.to <= self.buffer.len(), "no more than there was room for");
    }

    /// The next PDU, if all of it is here. `sink` chooses the place for the data of a head, or
    /// refuses it.
    ///
    /// # Errors
    /// [`InvalidPdu`]: nothing more can be read.
    pub fn next(&mut self, sink: impl FnOnce(&Head) -> Sink) -> Result<Option<Pdu>, InvalidPdu> {
        if matches!(self.reading, Reading::Head) && !self.read_head(sink)? {
            return Ok(None);
        }
        let Reading::Body(body) = &mut self.reading else { return Ok(None) };
        let available = &self.buffer[self.from..self.to];
        let step = body.rest().min(available.len());
        body.take(&available[..step], self.data_digest);
        self.from += step;
        if body.rest() > 0 {
            return Ok(None);
        }
        let length = body.head.data_bytes();
        let has_digest = self.data_digest && length > 0;
        let tail = padding(length) + if has_digest { DIGEST_BYTES } else { 0 };
        let available = &self.buffer[self.from..self.to];
        if available.len() < tail {
            return Ok(None);
        }
        let (padding, digest) = available[..tail].split_at(padding(length));
        let crc = crc32c::crc32c_append(body.crc, padding);
        let is_intact = !has_digest || digest == crc.to_le_bytes();
        self.from += tail;
        let Reading::Body(body) = std::mem::replace(&mut self.reading, Reading::Head) else {
            return Ok(None);
        };
        let data = match body.sink {
            Sink::Own => Sunk::Own(body.own),
            Sink::Task { buffer, .. } => Sunk::Task(buffer),
            Sink::Discard => Sunk::Discarded,
        };
        Ok(Some(Pdu { head: body.head, data, is_intact }))
    }

    fn read_head(&mut self, sink: impl FnOnce(&Head) -> Sink) -> Result<bool, InvalidPdu> {
        let available = &self.buffer[self.from..self.to];
        let Some(head) = available.first_chunk::<HEAD_BYTES>() else { return Ok(false) };
        let head = Head(*head);
        let whole = HEAD_BYTES + head.additional_bytes();
        let digest = if self.head_digest { DIGEST_BYTES } else { 0 };
        let Some(bytes) = available.get(..whole + digest) else { return Ok(false) };
        if self.head_digest && bytes[whole..] != crc32c::crc32c(&bytes[..whole]).to_le_bytes() {
            return Err(InvalidPdu::HeadDigest);
        }
        if head.data_bytes() > self.segment_bytes_max {
            return Err(InvalidPdu::TooLong(head.data_bytes()));
        }
        self.from += whole + digest;
        let sink = if head.data_bytes() == 0 { Sink::Own } else { sink(&head) };
        let body = Body { head, sink, own: Vec::new(), received: 0, crc: 0 };
        self.reading = Reading::Body(Box::new(body));
        Ok(true)
    }
}
