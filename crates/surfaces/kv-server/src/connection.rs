//! A client: what it sent, and the answers that wait for it.

use std::io;
use std::net::TcpStream;
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::SendFlags;
use weft_redis::{Held, Server, Verdict};
use weft_resp::Parser;

use crate::answers::Answers;

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
    pub answers: Answers,
    /// Whether the client sends nothing more.
    pub is_at_end: bool,
    /// Whether the buffer may have a whole command that was not carried out.
    pub has_backlog: bool,
    /// Whether its last command waits for replicas.
    pub is_waiting: bool,
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
            answers: Answers::default(),
            is_at_end: false,
            has_backlog: false,
            is_waiting: false,
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
        if self.answers.bytes.capacity() == 0 {
            std::mem::swap(&mut self.answers.bytes, &mut spares.output);
            self.answers.bytes.clear();
        }
        let mut count = 0;
        self.is_waiting = self.is_waiting && !server.waited(id, &mut self.answers.bytes);
        while self.has_backlog
            && !self.is_waiting
            && count < COMMANDS_OF_TURN
            && self.answers.waiting() < OUTPUT_SOFT
        {
            count += 1;
            let limits = server.limits(id);
            match self.parser.next(&limits) {
                Ok(None) => self.has_backlog = false,
                Ok(Some(request)) => {
                    let words: Vec<&[u8]> = request.words().collect();
                    match server.execute(id, &words, &mut self.answers.bytes) {
                        Verdict::Go => {}
                        Verdict::Wait => self.is_waiting = true,
                        Verdict::Close => self.close(),
                    }
                }
                Err(error) => {
                    self.answers.bytes.extend_from_slice(format!("-ERR {error}\r\n").as_bytes());
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

    /// The connection ends, and answers that wait for a batch are never sent.
    pub(crate) fn cut_off(&mut self) {
        self.answers.cut_off();
        self.stage = Stage::Over;
    }

    /// Sends what may be sent. Returns how many bytes.
    pub(crate) fn send(&mut self, spares: &mut Spares) -> io::Result<usize> {
        self.is_blocked = false;
        let mut sum = 0;
        while !self.answers.unsent().is_empty() {
            match rustix::net::send(&self.stream, self.answers.unsent(), SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.answers.sent(count);
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
        if let (Stage::Closing(_), true) = (self.stage, self.answers.bytes.is_empty()) {
            let _ = self.stream.shutdown(std::net::Shutdown::Write);
            self.stage = Stage::Lingering(Instant::now() + LINGERING);
        }
        let is_over = !self.has_backlog || self.is_waiting;
        if self.is_at_end && is_over && self.answers.bytes.is_empty() {
            self.stage = Stage::Over;
        }
        Ok(sum)
    }

    /// Gives back memory of answers that were sent.
    fn shrink(&mut self, spares: &mut Spares) {
        if self.answers.shrink() && self.answers.bytes.capacity() > IDLE_OUTPUT_MAX {
            let buffer = std::mem::take(&mut self.answers.bytes);
            if buffer.capacity() <= SPARE_MAX {
                spares.output = buffer;
            }
        }
    }

    /// Bytes that the connection holds.
    pub(crate) fn held_bytes(&self) -> Held {
        Held {
            input: self.parser.pending(),
            output: self.answers.waiting(),
            memory: self.parser.memory() + self.answers.bytes.capacity(),
        }
    }

    /// Whether more may be read.
    pub(crate) fn may_read(&self, input_max: usize) -> bool {
        !self.is_at_end && (self.stage != Stage::Open || self.parser.pending() < input_max)
    }

    /// Whether commands that are there may be carried out.
    pub(crate) fn may_execute(&self) -> bool {
        self.has_backlog && !self.is_waiting && self.answers.waiting() < OUTPUT_SOFT
    }
}

/// Until when answers to a client that ends must be sent.
const CLOSING: std::time::Duration = std::time::Duration::from_secs(5);
/// Until when what such a client sends is thrown away.
const LINGERING: std::time::Duration = std::time::Duration::from_secs(2);
