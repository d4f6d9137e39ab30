//! A connection of a client, of whatever protocol, as the reactor that has it serves it.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use weft_block::iscsi;
use weft_block::nbd;
use weft_block::scsi::{Direction, Directory, Job, NoUnits, Outcome, Status};

use crate::reactor::Inbox;
use crate::ring::{Carried, Ring};
use crate::server::Shared;
use crate::socket::Socket;

/// Reads of one connection before others have their turn.
const READS_MAX: usize = 8;

/// The end of a job.
pub(crate) struct Finished {
    /// The connection that it is told to.
    pub connection: u64,
    ticket: Ticket,
    outcome: Outcome,
    data: Vec<u8>,
    spare: Vec<u8>,
}

/// A command of a connection, whose end it is told.
pub(crate) type Waiting = (u64, Ticket);

/// A ticket of a machine.
pub(crate) enum Ticket {
    Iscsi(iscsi::Ticket),
    Nbd(nbd::Ticket),
}

/// The state machine of a protocol.
pub(crate) enum Machine {
    Iscsi(Box<iscsi::Connection>),
    Nbd(Box<nbd::Server>),
}

impl Machine {
    fn wants_input(&self) -> bool {
        match self {
            Self::Iscsi(machine) => machine.wants_input(),
            Self::Nbd(machine) => machine.wants_input(),
        }
    }

    fn space(&mut self) -> (&mut [u8], &mut [u8]) {
        match self {
            Self::Iscsi(machine) => machine.space(),
            Self::Nbd(machine) => machine.space(),
        }
    }

    fn filled(&mut self, bytes: usize, now: Duration) {
        match self {
            Self::Iscsi(machine) => machine.filled(bytes, now),
            Self::Nbd(machine) => machine.filled(bytes),
        }
    }

    fn parts<'a>(&'a self, into: &mut Vec<IoSlice<'a>>) {
        match self {
            Self::Iscsi(machine) => machine.parts(into),
            Self::Nbd(machine) => machine.parts(into),
        }
    }

    fn sent(&mut self, bytes: usize) {
        match self {
            Self::Iscsi(machine) => machine.sent(bytes),
            Self::Nbd(machine) => machine.sent(bytes),
        }
    }

    fn is_over(&self) -> bool {
        match self {
            Self::Iscsi(machine) => machine.is_over(),
            Self::Nbd(machine) => machine.is_over(),
        }
    }

    pub fn is_in_use(&self) -> bool {
        match self {
            Self::Iscsi(machine) => machine.is_logged_in(),
            Self::Nbd(machine) => machine.is_in_use(),
        }
    }

    /// Whether a deadline has come, and whether the connection may go on.
    pub fn look_at_time(&mut self, now: Duration) -> (bool, bool) {
        match self {
            Self::Iscsi(machine) if machine.is_replaced() || machine.poll_timeout() <= now => {
                (true, machine.handle_timeout(now))
            }
            Self::Iscsi(_) => (false, true),
            Self::Nbd(machine) => (machine.is_late(now), !machine.is_late(now)),
        }
    }
}

/// Work of a machine, of whatever protocol.
enum Event {
    /// The unit or target that is served is known; it is near a node.
    Known {
        node: Option<u32>,
    },
    StartTls,
    Run {
        ticket: Option<Ticket>,
        job: Job,
        data: Vec<u8>,
        into: Vec<u8>,
    },
}

/// A connection of a client.
pub(crate) struct Connection {
    /// Names it in all reactors.
    pub token: u64,
    pub socket: Socket,
    pub machine: Machine,
    target: Option<Arc<iscsi::Target>>,
    tls: Option<Arc<rustls::ServerConfig>>,
    starts_tls: bool,
    /// The events that epoll is asked for now.
    pub interest: epoll::EventFlags,
}

/// The future of a connection after it was served.
pub(crate) enum Fate {
    Stays,
    Moves(Arc<Inbox>),
    Ends,
}

impl Connection {
    /// A connection that was accepted.
    pub fn new(
        token: u64,
        socket: Socket,
        machine: Machine,
        tls: Option<Arc<rustls::ServerConfig>>,
    ) -> Self {
        let interest = epoll::EventFlags::IN | epoll::EventFlags::OUT;
        Self { token, socket, machine, target: None, tls, starts_tls: false, interest }
    }

    /// The events that it waits for.
    pub fn wanted(&self) -> epoll::EventFlags {
        let mut wanted = epoll::EventFlags::empty();
        if self.machine.wants_input() {
            wanted |= epoll::EventFlags::IN;
        }
        let mut parts = Vec::with_capacity(1);
        self.machine.parts(&mut parts);
        if !parts.is_empty() || self.socket.has_unsent() {
            wanted |= epoll::EventFlags::OUT;
        }
        wanted
    }

    /// Reads, works and writes as far as it goes without waiting.
    pub fn serve(
        &mut self,
        shared: &Arc<Shared>,
        inbox: &Arc<Inbox>,
        ring: &mut Ring<Waiting>,
        started: Instant,
    ) -> Fate {
        for _ in 0..READS_MAX {
            if let Some(to) = self.work(shared, inbox, ring) {
                return Fate::Moves(to);
            }
            if !self.flush() || self.machine.is_over() {
                return Fate::Ends;
            }
            if !self.machine.wants_input() {
                break;
            }
            let (first, second) = self.machine.space();
            let room = first.len() + second.len();
            match self.socket.read(first, second) {
                // Nothing more comes; what was asked for would be answered to nobody.
                Ok(0) => return Fate::Ends,
                Ok(bytes) => {
                    self.machine.filled(bytes, started.elapsed());
                    if bytes < room {
                        // The socket is empty: what came is worked on, and then it is waited.
                        if let Some(to) = self.work(shared, inbox, ring) {
                            return Fate::Moves(to);
                        }
                        if !self.flush() {
                            return Fate::Ends;
                        }
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Fate::Ends,
            }
        }
        if self.machine.is_over() { Fate::Ends } else { Fate::Stays }
    }

    fn poll_event(&mut self, shared: &Shared) -> Option<Event> {
        Some(match &mut self.machine {
            Machine::Iscsi(machine) => match machine.poll_event()? {
                iscsi::Event::LoggedIn(target) => {
                    let units = target.units();
                    let node = units.iter().find_map(|(_, unit)| shared.node_of(unit));
                    self.target = Some(target);
                    Event::Known { node }
                }
                iscsi::Event::Run { ticket, job, data, into } => {
                    Event::Run { ticket: Some(Ticket::Iscsi(ticket)), job, data, into }
                }
                iscsi::Event::RunUnasked { job } => {
                    Event::Run { ticket: None, job, data: Vec::new(), into: Vec::new() }
                }
            },
            Machine::Nbd(machine) => match machine.poll_event()? {
                nbd::Event::Chosen(unit) => Event::Known { node: shared.node_of(&unit) },
                nbd::Event::StartTls => Event::StartTls,
                nbd::Event::Run { ticket, job, data, into } => {
                    Event::Run { ticket: Some(Ticket::Nbd(ticket)), job, data, into }
                }
            },
        })
    }

    /// Runs what is quick, and gives the rest to the threads of its unit. Returns where the
    /// connection is to be served from now on, if that is elsewhere.
    fn work(
        &mut self,
        shared: &Arc<Shared>,
        inbox: &Arc<Inbox>,
        ring: &mut Ring<Waiting>,
    ) -> Option<Arc<Inbox>> {
        loop {
            match self.poll_event(shared)? {
                Event::StartTls => self.starts_tls = true,
                Event::Known { node } => {
                    let to = shared.place(node, inbox);
                    if to.is_some() {
                        return to;
                    }
                }
                Event::Run { ticket: Some(ticket), job, data, mut into }
                    if ring.may_run_in_place(&job) =>
                {
                    let outcome = run(&job, &data, &mut into, self.target.as_deref());
                    self.finish(ticket, outcome, into, data);
                }
                Event::Run { ticket: Some(ticket), job, data, into } => {
                    let carried = Carried { ticket: (self.token, ticket), data, into };
                    if let Err(carried) = ring.begin(&job, carried) {
                        self.run_elsewhere(job, carried, shared, inbox);
                    }
                }
                Event::Run { ticket: None, job, .. } => {
                    let target = self.target.clone();
                    let workers = shared.workers(job.unit());
                    workers.run(Box::new(move || {
                        run(&job, &[], &mut Vec::new(), target.as_deref());
                    }));
                }
            }
        }
    }

    /// Runs a job on a thread of its unit.
    fn run_elsewhere(
        &self,
        job: Job,
        carried: Carried<Waiting>,
        shared: &Arc<Shared>,
        inbox: &Arc<Inbox>,
    ) {
        let Carried { ticket: (connection, ticket), data, mut into } = carried;
        let (target, inbox) = (self.target.clone(), Arc::clone(inbox));
        let workers = shared.workers(job.unit());
        workers.run(Box::new(move || {
            let outcome = run(&job, &data, &mut into, target.as_deref());
            let (data, spare) = (into, data);
            let end = Finished { connection, ticket, outcome, data, spare };
            inbox.finished(end);
        }));
    }

    /// A job has ended on a thread of its unit.
    pub fn finished(&mut self, finished: Finished) {
        let Finished { ticket, outcome, data, spare, .. } = finished;
        self.finish(ticket, outcome, data, spare);
    }

    /// A command has ended.
    pub fn finish(&mut self, ticket: Ticket, outcome: Outcome, data: Vec<u8>, spare: Vec<u8>) {
        match (ticket, &mut self.machine) {
            (Ticket::Iscsi(ticket), Machine::Iscsi(machine)) => {
                machine.finished(ticket, outcome, data, spare);
            }
            (Ticket::Nbd(ticket), Machine::Nbd(machine)) => {
                machine.finished(ticket, &outcome, data, spare);
            }
            _ => unreachable!("a ticket comes back to the machine that gave it"),
        }
    }

    /// Sends what the socket takes. False when the peer is gone.
    fn flush(&mut self) -> bool {
        loop {
            let mut parts: Vec<IoSlice<'_>> = Vec::with_capacity(64);
            self.machine.parts(&mut parts);
            if parts.is_empty() {
                return self.all_taken();
            }
            let sent = match self.socket.write(&parts) {
                Ok(0) => return false,
                Ok(sent) => sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return false,
            };
            self.machine.sent(sent);
        }
    }

    /// The machine has nothing more to send: what is encrypted is sent, or encryption begins.
    fn all_taken(&mut self) -> bool {
        if self.starts_tls {
            self.starts_tls = false;
            let Some(config) = self.tls.clone() else { return false };
            if let Err(error) = self.socket.start_tls(config) {
                tracing::warn!("cannot begin TLS: {error}");
                return false;
            }
            if let Machine::Nbd(machine) = &mut self.machine {
                machine.tls_started();
            }
        }
        match self.socket.flush() {
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            Ok(()) => true,
        }
    }
}

/// Runs a job, and counts it.
pub(crate) fn run(
    job: &Job,
    data: &[u8],
    into: &mut Vec<u8>,
    target: Option<&iscsi::Target>,
) -> Outcome {
    let directory: &dyn Directory = target.map_or(&NoUnits, |target| target);
    let statistics = job.unit().statistics();
    statistics.begin();
    let began = Instant::now();
    let outcome = job.run(data, into, directory);
    let nanoseconds = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let is_good = matches!(outcome, Outcome::Done(Status::Good) | Outcome::Continues(_));
    let (counters, bytes) = match job.direction() {
        Direction::Read => (&statistics.reads, into.len()),
        Direction::Write => (&statistics.writes, data.len()),
        Direction::Other => (&statistics.others, 0),
    };
    counters.count(bytes as u64, nanoseconds, is_good);
    statistics.end();
    outcome
}
