//! A connection of a client: handshake, then transmission.
//!
//! Invariants: what a connection holds is bounded by [`HELD_BYTES_MAX`] and one request more, and
//! by [`REQUESTS_MAX`]; beyond that, nothing more is read.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use super::handshake::{GREETING, Handshake, Next, Tls};
use super::transmission::{Error, Kind, REQUEST_BYTES, Request, Ticket, Transmission};
use super::{Exports, HELD_BYTES_MAX, REQUEST_BYTES_MAX, REQUESTS_MAX};
use crate::scsi::{Job, Outcome, Port, Unit};

/// Time for a handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(15);
const BUFFER_BYTES: usize = 64 << 10;
/// Bytes of the buffer during the handshake: one option with its data fits.
const HANDSHAKE_BUFFER_BYTES: usize = 9 << 10;
/// Parts that are handed out at a time.
const PARTS_MAX: usize = 64;
const SPARE_MAX: usize = 64;
const SPARE_BYTES_MAX: usize = 1 << 20;

/// The parts that a driver gives a connection at its start.
#[derive(Clone, Debug)]
pub struct Start {
    /// The exports.
    pub exports: Arc<dyn Exports>,
    /// Whether the client has to use TLS.
    pub requires_tls: bool,
    /// The time now.
    pub now: Duration,
}

/// Work for a driver.
#[derive(Debug)]
pub enum Event {
    /// The export is chosen: the connection may be moved to where it is served.
    Chosen(Arc<Unit>),
    /// When what is to be sent was sent, the connection is encrypted.
    StartTls,
    /// Run a job, and tell its end by [`Server::finished`].
    Run {
        /// To be given back.
        ticket: Ticket,
        /// The job.
        job: Job,
        /// Its data.
        data: Vec<u8>,
        /// A buffer for what the client gets.
        into: Vec<u8>,
    },
}

#[derive(Debug)]
enum Phase {
    Handshake(Box<Handshake>),
    Transmission(Box<Transmission>),
    /// Nothing is read any more.
    Ending,
}

/// A write whose data arrive.
#[derive(Debug)]
struct Payload {
    request: Request,
    buffer: Vec<u8>,
    received: usize,
}

/// A connection of a client. The module lists its invariants.
#[derive(Debug)]
pub struct Server {
    phase: Phase,
    deadline: Duration,
    buffer: Vec<u8>,
    from: usize,
    to: usize,
    payload: Option<Payload>,
    straight: usize,
    output: VecDeque<(Vec<u8>, Vec<u8>, usize)>,
    sent: usize,
    events: VecDeque<Event>,
    open: usize,
    held: usize,
    spare: Vec<Vec<u8>>,
    awaits_tls: bool,
    /// The client said that it leaves: what is open is answered.
    leaves: bool,
}

impl Server {
    /// A connection that was accepted.
    #[must_use]
    pub fn new(start: &Start) -> Self {
        let tls = if start.requires_tls { Tls::Required } else { Tls::No };
        let handshake = Handshake::new(Arc::clone(&start.exports), tls);
        Self {
            phase: Phase::Handshake(Box::new(handshake)),
            deadline: start.now + HANDSHAKE_WITHIN,
            buffer: vec![0; HANDSHAKE_BUFFER_BYTES],
            from: 0,
            to: 0,
            payload: None,
            straight: 0,
            output: VecDeque::from([(GREETING.to_vec(), Vec::new(), 0)]),
            sent: 0,
            events: VecDeque::new(),
            open: 0,
            held: 0,
            spare: Vec::new(),
            awaits_tls: false,
            leaves: false,
        }
    }

    /// Whether bytes are taken now.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        !matches!(self.phase, Phase::Ending)
            && !self.awaits_tls
            && !self.leaves
            && self.open < REQUESTS_MAX
            && (self.held < HELD_BYTES_MAX || self.payload.is_some())
    }

    /// Places for the next bytes; the second is behind the first, which may be empty.
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
        match &mut self.payload {
            Some(payload) if is_empty => {
                let rest = &mut payload.buffer[payload.received..];
                self.straight = rest.len();
                (rest, behind)
            }
            _ => (&mut [], behind),
        }
    }

    /// That many bytes were stored in the places of the last [`Server::space`].
    ///
    /// # Panics
    /// When there was no room for so many.
    pub fn filled(&mut self, bytes: usize) {
        let straight = bytes.min(self.straight);
        if let Some(payload) = &mut self.payload {
            payload.received += straight;
        }
        self.to += bytes - straight;
        assert!(self.to <= self.buffer.len(), "no more than there was room for");
        while self.wants_input() && self.step() {}
    }

    /// The connection is encrypted from now on. What came before in the clear is thrown away.
    pub fn tls_started(&mut self) {
        (self.from, self.to, self.awaits_tls) = (0, 0, false);
        if let Phase::Handshake(handshake) = &mut self.phase {
            handshake.tls = Tls::On;
        }
    }

    /// Work for the driver.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// A job has ended, with what the client gets and a buffer that is not needed any more.
    pub fn finished(
        &mut self,
        ticket: Ticket,
        outcome: &Outcome,
        mut data: Vec<u8>,
        spare: Vec<u8>,
    ) {
        self.keep_spare(spare);
        self.open -= 1;
        let Phase::Transmission(transmission) = &self.phase else { return };
        let head = transmission.reply(&ticket, outcome, &mut data);
        if data.is_empty() {
            self.held -= ticket.held;
            self.output.push_back((head, data, 0));
        } else {
            self.output.push_back((head, data, ticket.held));
        }
        while self.wants_input() && self.step() {}
    }

    /// The next bytes to send, as parts in order.
    pub fn parts<'a>(&'a self, into: &mut Vec<IoSlice<'a>>) {
        let mut skip = self.sent;
        for part in self.output.iter().flat_map(|(head, data, _)| [&head[..], &data[..]]) {
            if into.len() == PARTS_MAX {
                break;
            }
            let gone = skip.min(part.len());
            skip -= gone;
            if gone < part.len() {
                into.push(IoSlice::new(&part[gone..]));
            }
        }
    }

    /// The first bytes of the parts were sent.
    ///
    /// # Panics
    /// When there were not so many.
    pub fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        while let Some((head, data, _)) = self.output.front() {
            let length = head.len() + data.len();
            if self.sent < length {
                break;
            }
            self.sent -= length;
            let (_, data, held) = self.output.pop_front().expect("looked at");
            self.held -= held;
            self.keep_spare(data);
        }
        assert!(self.sent == 0 || !self.output.is_empty(), "no more than there was");
        while self.wants_input() && self.step() {}
    }

    /// Whether the connection is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let is_ending = match self.phase {
            Phase::Ending => true,
            _ => self.leaves && self.open == 0,
        };
        is_ending && self.output.is_empty()
    }

    /// Whether an export is chosen.
    #[must_use]
    pub const fn is_in_use(&self) -> bool {
        matches!(self.phase, Phase::Transmission(_))
    }

    /// When the connection is to be closed if it is not in use, and whether that time has come.
    #[must_use]
    pub fn is_late(&self, now: Duration) -> bool {
        !self.is_in_use() && now >= self.deadline
    }

    fn keep_spare(&mut self, buffer: Vec<u8>) {
        let is_useful = (1..=SPARE_BYTES_MAX).contains(&buffer.len());
        if is_useful && self.spare.len() < SPARE_MAX {
            self.spare.push(buffer);
        }
    }

    /// Takes one message, if it is here.
    fn step(&mut self) -> bool {
        match &mut self.phase {
            Phase::Handshake(handshake) => {
                let mut out = Vec::new();
                let bytes = &self.buffer[self.from..self.to];
                let (length, next) = handshake.step(bytes, &mut out);
                self.from += length;
                if !out.is_empty() {
                    self.output.push_back((out, Vec::new(), 0));
                }
                self.after_option(next)
            }
            Phase::Transmission(_) => self.request(),
            Phase::Ending => false,
        }
    }

    fn after_option(&mut self, next: Next) -> bool {
        match next {
            Next::More => return false,
            Next::Options => {}
            Next::Tls => {
                self.awaits_tls = true;
                self.events.push_back(Event::StartTls);
            }
            Next::End => self.phase = Phase::Ending,
            Next::Chosen(unit) => {
                // A client has no name that a reservation could know.
                let port = Port { name: "nbd".to_owned(), isid: [0; 6] };
                let Phase::Handshake(handshake) = &self.phase else { return false };
                let Some(link) = unit.attach(&port) else {
                    self.phase = Phase::Ending;
                    return false;
                };
                let transmission = Transmission::new(unit, link, &handshake.agreed);
                self.events.push_back(Event::Chosen(Arc::clone(transmission.unit())));
                self.phase = Phase::Transmission(Box::new(transmission));
                self.buffer.resize(BUFFER_BYTES, 0);
            }
        }
        true
    }

    fn request(&mut self) -> bool {
        if self.payload.is_some() {
            return self.payload();
        }
        let bytes = &self.buffer[self.from..self.to];
        let Some(bytes) = bytes.first_chunk::<REQUEST_BYTES>() else { return false };
        let request = Request::parse(bytes);
        self.from += REQUEST_BYTES;
        // Without the magic, or with more data than anybody may send, nothing can be trusted.
        let request = request
            .filter(|request| request.kind != Kind::Write || request.length <= REQUEST_BYTES_MAX);
        let Some(request) = request else {
            self.phase = Phase::Ending;
            return false;
        };
        match request.kind {
            Kind::Disconnect => {
                self.leaves = true;
                false
            }
            Kind::Write => {
                let mut buffer = self.spare.pop().unwrap_or_default();
                buffer.resize(request.length as usize, 0);
                self.held += buffer.len();
                self.payload = Some(Payload { request, buffer, received: 0 });
                true
            }
            _ => {
                let into = self.spare.pop().unwrap_or_default();
                self.begin(request, Vec::new(), into);
                true
            }
        }
    }

    fn payload(&mut self) -> bool {
        let Some(payload) = &mut self.payload else { return false };
        let bytes = &self.buffer[self.from..self.to];
        let rest = payload.buffer.len() - payload.received;
        let step = rest.min(bytes.len());
        payload.buffer[payload.received..payload.received + step].copy_from_slice(&bytes[..step]);
        payload.received += step;
        self.from += step;
        if step < rest {
            return false;
        }
        let Some(payload) = self.payload.take() else { return false };
        self.begin(payload.request, payload.buffer, Vec::new());
        true
    }

    fn begin(&mut self, request: Request, data: Vec<u8>, into: Vec<u8>) {
        let Phase::Transmission(transmission) = &self.phase else { return };
        match transmission.job(&request) {
            Err(error) => {
                let head = transmission.error(&request, error);
                self.refused(head, data, into);
            }
            Ok(job) => {
                let read = match request.kind {
                    Kind::Read => request.length as usize,
                    _ => 0,
                };
                self.held += read;
                self.open += 1;
                let ticket = Ticket { request, held: data.len().max(read) };
                self.events.push_back(Event::Run { ticket, job, data, into });
            }
        }
    }

    fn refused(&mut self, head: Vec<u8>, data: Vec<u8>, into: Vec<u8>) {
        self.held -= data.len();
        self.keep_spare(data);
        self.keep_spare(into);
        self.output.push_back((head, Vec::new(), 0));
    }
}

impl From<Error> for u32 {
    fn from(error: Error) -> Self {
        error as Self
    }
}
