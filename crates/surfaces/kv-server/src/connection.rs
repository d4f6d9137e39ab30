//! A client: what it sent, and the answers that wait for it.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::SendFlags;
use weft_kv::store::Lsn;
use weft_redis::{Held, Server, Verdict};
use weft_resp::Parser;

/// While more bytes of answers wait for a client, its commands are not carried out.
pub const OUTPUT_SOFT: usize = 1 << 20;
/// Commands of one client in one turn.
const COMMANDS_OF_TURN: usize = 1_000;
/// Bytes read from one client in one turn.
const READ_OF_TURN: usize = 1 << 20;
/// The buffer that clients share.
const READ_STEP: usize = 64 << 10;
/// Buffers above are given back to the system.
const SPARE_MAX: usize = 1 << 20;
/// An idle client keeps at most this of its buffer for answers.
const IDLE_OUTPUT_MAX: usize = 4 << 10;

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Commands are carried out.
    Open,
    /// No more commands; the answers are sent, until this moment.
    Closing(Instant),
    /// All is sent; what the client still sends is thrown away, until this moment. Without it the
    /// system would throw the answers away.
    Lingering(Instant),
    /// It is over.
    Over,
}

/// A client.
pub(crate) struct Connection {
    pub stream: TcpStream,
    pub stage: Stage,
    parser: Parser,
    out: Vec<u8>,
    /// Bytes of `out` that were sent, and bytes of it that may be sent.
    sent: usize,
    ready: usize,
    /// Up to where `out` may be sent when which batch is safe.
    held: VecDeque<(Lsn, usize)>,
    /// Whether the client sends nothing more.
    pub is_at_end: bool,
    /// Whether the buffer may have a whole command that was not carried out.
    pub has_backlog: bool,
    /// Whether the socket took less than there was to send.
    pub is_blocked: bool,
    /// The interest that epoll knows.
    pub interest: rustix::event::epoll::EventFlags,
}

/// Buffers that clients share one after the other.
#[derive(Default)]
pub(crate) struct Spares {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            stage: Stage::Open,
            parser: Parser::default(),
            out: Vec::new(),
            sent: 0,
            ready: 0,
            held: VecDeque::new(),
            is_at_end: false,
            has_backlog: false,
            is_blocked: false,
            interest: rustix::event::epoll::EventFlags::empty(),
        }
    }

    /// Reads what is there. Returns how many bytes.
    pub(crate) fn read(&mut self, spares: &mut Spares) -> io::Result<usize> {
        if matches!(self.stage, Stage::Closing(_) | Stage::Lingering(_)) {
            return self.throw_away(spares);
        }
        self.parser.lend(&mut spares.input);
        let mut sum = 0;
        while sum < READ_OF_TURN {
            let pending = self.parser.pending();
            let buffer = self.parser.buffer();
            buffer.reserve(READ_STEP.max((pending / 2).min(4 << 20)));
            let room = buffer.capacity() - buffer.len();
            match rustix::io::read(&self.stream, spare_capacity(buffer)) {
                Ok(0) => {
                    self.is_at_end = true;
                    break;
                }
                Ok(count) => {
                    sum += count;
                    if count < room {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.has_backlog |= sum > 0;
        if sum == 0 {
            self.parser.release(&mut spares.input);
        }
        Ok(sum)
    }

    fn throw_away(&mut self, spares: &mut Spares) -> io::Result<usize> {
        for _ in 0..READ_OF_TURN / READ_STEP {
            spares.input.clear();
            spares.input.reserve(READ_STEP);
            match rustix::io::read(&self.stream, spare_capacity(&mut spares.input)) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => break,
                Err(error) => return Err(error.into()),
            }
        }
        spares.input.clear();
        Ok(0)
    }

    /// Carries out commands that are whole.
    pub(crate) fn execute(&mut self, id: u64, server: &mut Server, spares: &mut Spares) {
        if self.stage != Stage::Open {
            self.has_backlog = false;
            return;
        }
        if self.out.capacity() == 0 {
            std::mem::swap(&mut self.out, &mut spares.output);
            self.out.clear();
        }
        let mut count = 0;
        while self.has_backlog && count < COMMANDS_OF_TURN && self.waiting() < OUTPUT_SOFT {
            count += 1;
            let limits = server.limits(id);
            match self.parser.next(&limits) {
                Ok(None) => self.has_backlog = false,
                Ok(Some(request)) => {
                    let words: Vec<&[u8]> = request.words().collect();
                    if server.execute(id, &words, &mut self.out) == Verdict::Close {
                        self.close();
                    }
                }
                Err(error) => {
                    self.out.extend_from_slice(format!("-ERR {error}\r\n").as_bytes());
                    self.close();
                }
            }
        }
        self.parser.release(&mut spares.input);
        if spares.input.capacity() > SPARE_MAX {
            spares.input = Vec::new();
        }
    }

    /// No more commands are carried out.
    pub(crate) fn close(&mut self) {
        if self.stage == Stage::Open {
            self.stage = Stage::Closing(Instant::now() + CLOSING);
        }
        self.has_backlog = false;
    }

    /// Bytes of answers that were not sent.
    fn waiting(&self) -> usize {
        self.out.len() - self.sent
    }

    /// The answers since the last call may be sent when this batch is safe.
    pub(crate) fn hold(&mut self, lsn: Lsn) {
        let last = self.held.back().map_or(self.ready, |(_, end)| *end);
        if self.out.len() > last {
            self.held.push_back((lsn, self.out.len()));
        }
    }

    /// Whether answers wait for a batch.
    pub(crate) fn is_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// All batches up to this one are safe.
    pub(crate) fn release(&mut self, safe: Lsn) {
        while let Some((lsn, end)) = self.held.front() {
            if *lsn > safe {
                break;
            }
            self.ready = *end;
            self.held.pop_front();
        }
    }

    /// The connection ends, and answers that wait for a batch are never sent.
    pub(crate) fn cut_off(&mut self) {
        self.held.clear();
        self.out.truncate(self.ready);
        self.stage = Stage::Over;
    }

    /// Sends what may be sent. Returns how many bytes.
    pub(crate) fn send(&mut self, spares: &mut Spares) -> io::Result<usize> {
        self.is_blocked = false;
        let mut sum = 0;
        while self.sent < self.ready {
            let part = &self.out[self.sent..self.ready];
            match rustix::net::send(&self.stream, part, SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.sent += count;
                    sum += count;
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    self.is_blocked = true;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.shrink(spares);
        if let (Stage::Closing(_), true) = (self.stage, self.out.is_empty()) {
            let _ = self.stream.shutdown(std::net::Shutdown::Write);
            self.stage = Stage::Lingering(Instant::now() + LINGERING);
        }
        if self.is_at_end && !self.has_backlog && self.out.is_empty() {
            self.stage = Stage::Over;
        }
        Ok(sum)
    }

    /// Gives back memory of answers that were sent.
    fn shrink(&mut self, spares: &mut Spares) {
        if self.sent == self.out.len() {
            self.out.clear();
            (self.sent, self.ready) = (0, 0);
            if self.out.capacity() > IDLE_OUTPUT_MAX {
                let buffer = std::mem::take(&mut self.out);
                if buffer.capacity() <= SPARE_MAX {
                    spares.output = buffer;
                }
            }
        } else if self.sent > self.out.len() / 2 {
            self.out.drain(..self.sent);
            self.ready -= self.sent;
            self.held.iter_mut().for_each(|(_, end)| *end -= self.sent);
            self.sent = 0;
        }
    }

    /// Bytes that the connection holds.
    pub(crate) fn held_bytes(&self) -> Held {
        Held {
            input: self.parser.pending(),
            output: self.waiting(),
            memory: self.parser.memory() + self.out.capacity(),
        }
    }

    /// Whether more may be read.
    pub(crate) fn may_read(&self, input_max: usize) -> bool {
        !self.is_at_end && (self.stage != Stage::Open || self.parser.pending() < input_max)
    }

    /// Whether commands that are there may be carried out.
    pub(crate) fn may_execute(&self) -> bool {
        self.has_backlog && self.waiting() < OUTPUT_SOFT
    }
}

/// Until when answers to a client that ends must be sent.
const CLOSING: std::time::Duration = std::time::Duration::from_secs(5);
/// Until when what such a client sends is thrown away.
const LINGERING: std::time::Duration = std::time::Duration::from_secs(2);
