//! A connection: login, then a session.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use super::input::{Input, Sink, Sunk};
use super::login::{Login, Next};
use super::output::Output;
use super::pdu::{Head, Request};
use super::session::{End, Session, Ticket};
use super::target::{Target, Targets};
use super::{LOGIN_SEGMENT_BYTES_MAX, SEGMENT_BYTES_MAX};
use crate::scsi::{Job, Outcome};

/// Time for a login, from the first byte on.
const LOGIN_WITHIN: Duration = Duration::from_secs(15);
/// A connection on which nothing arrives for so long is asked whether it is there.
const PING_AFTER: Duration = Duration::from_secs(30);
/// Time for an answer to that.
const PONG_WITHIN: Duration = Duration::from_secs(15);
/// PDUs that wait to be sent before no more are read.
const OUTPUT_PDUS_MAX: usize = 1024;

/// The parts that a driver gives a connection at its start.
#[derive(Clone, Debug)]
pub struct Start {
    /// The targets of the server.
    pub targets: Arc<Targets>,
    /// The address that the initiator connected to, as ADDRESS:PORT.
    pub portal: String,
    /// Random bytes that nobody can guess.
    pub random: [u8; 17],
    /// The time now.
    pub now: Duration,
}

/// Work for a driver.
#[derive(Debug)]
pub enum Event {
    /// The initiator is logged in at a target: the connection may be moved to where it is served.
    LoggedIn(Arc<Target>),
    /// Run a job, and tell its end by [`Connection::finished`].
    Run {
        /// To be given back.
        ticket: Ticket,
        /// The job.
        job: Job,
        /// Its data.
        data: Vec<u8>,
        /// A buffer for what the initiator gets.
        into: Vec<u8>,
    },
    /// Run a job whose end nobody is told.
    RunUnasked {
        /// The job.
        job: Job,
    },
}

#[derive(Debug)]
enum Phase {
    Login(Box<Login>),
    Full(Box<Session>),
    /// Nothing is read any more; the connection ends when all was sent.
    Ending,
}

/// A connection of an initiator.
#[derive(Debug)]
pub struct Connection {
    start: Start,
    phase: Phase,
    input: Input,
    output: Output,
    events: VecDeque<Event>,
    heard: Duration,
    pinged: Option<Duration>,
}

impl Connection {
    /// A connection that was accepted.
    #[must_use]
    pub fn new(start: Start) -> Self {
        let login = Login::new(Arc::clone(&start.targets), start.random);
        let heard = start.now;
        Self {
            start,
            phase: Phase::Login(Box::new(login)),
            input: Input::new(LOGIN_SEGMENT_BYTES_MAX),
            output: Output::default(),
            events: VecDeque::new(),
            heard,
            pinged: None,
        }
    }

    /// Whether bytes are taken now. When so much waits to be sent that none are, the peer has to
    /// read first.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        !matches!(self.phase, Phase::Ending) && self.output.len() < OUTPUT_PDUS_MAX
    }

    /// Places for the next bytes; the second is behind the first, which may be empty.
    pub fn space(&mut self) -> (&mut [u8], &mut [u8]) {
        self.input.space()
    }

    /// That many bytes were stored in the places of the last [`Connection::space`]. Then
    /// [`Connection::poll_event`] and [`Connection::parts`] may have more.
    pub fn filled(&mut self, bytes: usize, now: Duration) {
        self.input.filled(bytes);
        (self.heard, self.pinged) = (now, None);
        while self.wants_input() && self.step() {}
    }

    /// Work for the driver.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// A job has ended, with what the initiator gets and a buffer that is not needed any more.
    pub fn finished(&mut self, ticket: Ticket, outcome: Outcome, data: Vec<u8>, spare: Vec<u8>) {
        if let Phase::Full(session) = &mut self.phase {
            let (output, events) = (&mut self.output, &mut self.events);
            session.finished(ticket, outcome, data, spare, output, events);
        }
        self.look_at_end();
    }

    /// The next bytes to send, as parts in order.
    pub fn parts<'a>(&'a self, into: &mut Vec<IoSlice<'a>>) {
        self.output.parts(into);
    }

    /// The first bytes of the parts were sent.
    pub fn sent(&mut self, bytes: usize) {
        if let Phase::Full(session) = &mut self.phase {
            let mut released = Vec::new();
            let mut spare = Vec::new();
            self.output.sent(
                bytes,
                |lun, bytes| {
                    if bytes > 0 {
                        released.push((lun, bytes));
                    }
                },
                |buffer| spare.push(buffer),
            );
            let has_room = !released.is_empty();
            released.into_iter().for_each(|(lun, bytes)| session.release(lun, bytes));
            spare.into_iter().for_each(|buffer| session.keep_spare(buffer));
            if has_room {
                session.start_waiting(&mut self.output, &mut self.events);
            }
        } else {
            self.output.sent(bytes, |_, _| {}, |_| {});
        }
        // Bytes that were read before may go on now.
        while self.wants_input() && self.step() {}
    }

    /// Whether the connection is over: nothing is read, and all was sent.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Ending) && self.output.is_empty()
    }

    /// Whether an initiator is logged in.
    #[must_use]
    pub fn is_logged_in(&self) -> bool {
        matches!(self.phase, Phase::Full(_))
    }

    /// The time at which [`Connection::handle_timeout`] is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Duration {
        match (&self.phase, self.pinged) {
            (Phase::Full(_), Some(pinged)) => pinged + PONG_WITHIN,
            (Phase::Full(_), None) => self.heard + PING_AFTER,
            (Phase::Login(_), _) => self.start.now + LOGIN_WITHIN,
            // The peer takes nothing any more.
            (Phase::Ending, _) => self.heard + PONG_WITHIN,
        }
    }

    /// The time has come. False when the connection is to be closed at once.
    #[must_use]
    pub fn handle_timeout(&mut self, now: Duration) -> bool {
        if let Phase::Full(session) = &self.phase
            && session.is_replaced()
        {
            return false;
        }
        if now < self.poll_timeout() {
            return true;
        }
        match (&mut self.phase, self.pinged) {
            (Phase::Full(session), None) => {
                self.pinged = Some(now);
                session.ping_initiator(&mut self.output);
                true
            }
            _ => false,
        }
    }

    /// Whether another login of the same initiator port took its place: it is to be closed.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        matches!(&self.phase, Phase::Full(session) if session.is_replaced())
    }

    /// Takes one PDU, if it is here.
    fn step(&mut self) -> bool {
        let pdu = match &mut self.phase {
            Phase::Login(_) => self.input.next(|_| Sink::Own),
            Phase::Full(session) => self.input.next(|head| session.sink(head)),
            Phase::Ending => return false,
        };
        let Ok(pdu) = pdu else {
            self.phase = Phase::Ending;
            return false;
        };
        let Some(pdu) = pdu else { return false };
        match &mut self.phase {
            Phase::Login(_) => {
                let data = if let Sunk::Own(data) = &pdu.data { data } else { &Vec::new() };
                self.login(&pdu.head, data);
            }
            Phase::Full(session) => session.request(pdu, &mut self.output, &mut self.events),
            Phase::Ending => {}
        }
        self.look_at_end();
        true
    }

    fn login(&mut self, head: &Head, data: &[u8]) {
        let Phase::Login(login) = &mut self.phase else { return };
        if head.request() != Some(Request::Login) {
            self.phase = Phase::Ending;
            return;
        }
        let (reply, answer, next) = login.request(head, data);
        self.output.push_own(&reply, answer);
        match next {
            Next::Login => {}
            Next::Refused => self.phase = Phase::Ending,
            Next::Full(established) => {
                let negotiated = established.negotiated;
                let (head, data) = (negotiated.head_digest, negotiated.data_digest);
                self.output.set_digests(head, data);
                self.input.set_full(head, data, SEGMENT_BYTES_MAX);
                let (targets, portal) =
                    (Arc::clone(&self.start.targets), self.start.portal.clone());
                let session = Session::new(targets, portal, *established);
                if let Some(target) = session.target() {
                    self.events.push_back(Event::LoggedIn(Arc::clone(target)));
                }
                self.phase = Phase::Full(Box::new(session));
            }
        }
    }

    fn look_at_end(&mut self) {
        if let Phase::Full(session) = &self.phase
            && session.end() == End::WhenSent
        {
            self.phase = Phase::Ending;
        }
    }
}
