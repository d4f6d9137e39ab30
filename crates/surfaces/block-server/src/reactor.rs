//! A thread that serves connections, one for each processor.
//!
//! Invariants: a reactor never waits but in `epoll_wait`. Plain reads and writes of direct files go
//! to the kernel (`ring`). Other work that may wait goes to the threads of its unit (`workers`),
//! which send the end of it to the inbox of the connection's reactor. A connection is at one
//! reactor at a time; it moves when its target is known, to the node of the target's units, before
//! anything runs for it.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll;
use weft_block::iscsi;
use weft_block::nbd::{self, Exports};
use weft_block::scsi::{Direction, Directory, Job, NoUnits, Outcome, Status};
use weft_numa::ProcessorSet;

use crate::mailbox::Mailbox;
use crate::ring::{Carried, Ring};
use crate::server::Shared;
use crate::socket::{Listener, Socket};

/// Events that are taken at a time.
const EVENTS_MAX: usize = 64;
/// Reads of one connection before others have their turn.
const READS_MAX: usize = 8;
/// Timeouts are looked at so often.
const TICK: Duration = Duration::from_millis(500);
/// The token of the inbox.
const INBOX: u64 = 0;
/// The token of the ring.
const RING: u64 = 1;

/// The protocol of a listener's connections.
#[derive(Clone, Debug)]
pub enum Speaks {
    /// iSCSI.
    Iscsi,
    /// NBD.
    Nbd {
        /// The exports.
        exports: Arc<dyn Exports>,
        /// With TLS alone, if there is a configuration.
        tls: Option<Arc<rustls::ServerConfig>>,
    },
}

/// The end of a job.
pub struct Finished {
    connection: u64,
    ticket: Ticket,
    outcome: Outcome,
    data: Vec<u8>,
    spare: Vec<u8>,
}

/// A command of a connection, whose end it is told.
type Waiting = (u64, Ticket);

enum Ticket {
    Iscsi(iscsi::Ticket),
    Nbd(nbd::Ticket),
}

enum Message {
    Adopt(Box<Connection>),
    Finished(Box<Finished>),
    Stop,
}

/// The way to a reactor from other threads.
pub struct Inbox {
    mailbox: Mailbox<Message>,
    /// Connections that it serves.
    load: AtomicUsize,
    /// The node of its processor.
    node: Option<u32>,
}

impl Inbox {
    /// An inbox of a reactor on a node.
    pub fn new(node: Option<u32>) -> io::Result<Arc<Self>> {
        let (mailbox, load) = (Mailbox::new()?, AtomicUsize::new(0));
        Ok(Arc::new(Self { mailbox, load, node }))
    }

    /// Lets the reactor end.
    pub fn stop(&self) {
        self.send(Message::Stop);
    }

    /// Connections that it serves.
    pub fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    /// The node of its processor.
    pub const fn node(&self) -> Option<u32> {
        self.node
    }

    fn send(&self, message: Message) {
        self.mailbox.send(message);
    }
}

enum Machine {
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

    fn is_in_use(&self) -> bool {
        match self {
            Self::Iscsi(machine) => machine.is_logged_in(),
            Self::Nbd(machine) => machine.is_in_use(),
        }
    }

    /// Whether a deadline has come, and whether the connection may go on.
    fn look_at_time(&mut self, now: Duration) -> (bool, bool) {
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

struct Connection {
    token: u64,
    socket: Socket,
    machine: Machine,
    target: Option<Arc<iscsi::Target>>,
    tls: Option<Arc<rustls::ServerConfig>>,
    starts_tls: bool,
    /// The events that epoll is asked for now.
    interest: epoll::EventFlags,
}

/// The future of a connection after it was served.
enum Fate {
    Stays,
    Moves(Arc<Inbox>),
    Ends,
}

/// A thread that serves connections. The module lists its invariants.
pub struct Reactor {
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    epoll: OwnedFd,
    listeners: Vec<(u64, Listener, Speaks)>,
    connections: HashMap<u64, Connection>,
    ring: Ring<Waiting>,
    /// Whether `epoll` has the ring.
    has_ring: bool,
    started: Instant,
}

static TOKENS: AtomicU64 = AtomicU64::new(RING + 1);

impl Reactor {
    /// A reactor with its inbox, which is served by [`Reactor::run`].
    pub fn new(shared: Arc<Shared>, inbox: Arc<Inbox>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(INBOX);
        epoll::add(&epoll, &inbox.mailbox, data, epoll::EventFlags::IN)?;
        let started = shared.started;
        Ok(Self {
            shared,
            inbox,
            epoll,
            listeners: Vec::new(),
            connections: HashMap::new(),
            ring: Ring::default(),
            has_ring: false,
            started,
        })
    }

    /// Takes the connections of a listener.
    pub fn listen(&mut self, listener: Listener, speaks: Speaks) -> io::Result<()> {
        let token = TOKENS.fetch_add(1, Ordering::Relaxed);
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, &listener, data, epoll::EventFlags::IN)?;
        self.listeners.push((token, listener, speaks));
        Ok(())
    }

    /// Serves until it is told to stop.
    pub fn run(mut self, near: Option<&ProcessorSet>) {
        if let Some(near) = near
            && let Err(error) = weft_numa::bind_thread(near)
        {
            tracing::warn!("cannot bind a thread to processors {near}: {error}");
        }
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let mut looked = self.started.elapsed();
        loop {
            events.clear();
            let tick = Timespec::try_from(TICK).expect("half a second");
            let buffer = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, buffer, Some(&tick)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => {
                    tracing::error!("a reactor cannot wait for its connections: {errno}");
                    return;
                }
            }
            let tokens: Vec<u64> = events.iter().map(|event| event.data.u64()).collect();
            for token in tokens {
                if token == INBOX {
                    if !self.read_inbox() {
                        return;
                    }
                } else if token == RING {
                    // Taken below.
                } else if let Some(at) = self.listeners.iter().position(|it| it.0 == token) {
                    self.accept(at);
                } else {
                    self.serve(token);
                }
            }
            self.serve_ring();
            let now = self.started.elapsed();
            if now - looked >= TICK {
                looked = now;
                self.look_at_timeouts(now);
            }
        }
    }

    /// False when the reactor is to end.
    fn read_inbox(&mut self) -> bool {
        let mut served = Vec::new();
        for message in self.inbox.mailbox.take(true) {
            match message {
                Message::Stop => return false,
                Message::Adopt(connection) => {
                    let token = connection.token;
                    if self.adopt(*connection) {
                        served.push(token);
                    }
                }
                Message::Finished(finished) => {
                    let token = finished.connection;
                    if let Some(connection) = self.connections.get_mut(&token) {
                        connection.finished(*finished);
                        served.push(token);
                    }
                }
            }
        }
        served.dedup();
        for token in served {
            self.serve(token);
        }
        true
    }

    /// Passes on what was begun in the ring, and answers what has ended, until there is nothing of
    /// either.
    fn serve_ring(&mut self) {
        loop {
            let ended = self.ring.take();
            if ended.is_empty() {
                break;
            }
            let mut served = Vec::new();
            for (Carried { ticket: (token, ticket), data, into }, status) in ended {
                if let Some(connection) = self.connections.get_mut(&token) {
                    connection.finish(ticket, Outcome::Done(status), into, data);
                    served.push(token);
                }
            }
            served.dedup();
            served.into_iter().for_each(|token| self.serve(token));
        }
        if let Some(ring) = self.ring.descriptor().filter(|_| !self.has_ring) {
            let data = epoll::EventData::new_u64(RING);
            match epoll::add(&self.epoll, ring, data, epoll::EventFlags::IN) {
                Ok(()) => self.has_ring = true,
                Err(errno) => tracing::error!("a ring cannot be waited for: {errno}"),
            }
        }
    }

    fn accept(&mut self, at: usize) {
        loop {
            let (_, listener, speaks) = &self.listeners[at];
            let socket = match listener.accept() {
                Ok(socket) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    if matches!(error.raw_os_error(), Some(23 | 24)) {
                        // No descriptors are left: those without a login make room.
                        self.close_strangers();
                    }
                    return;
                }
            };
            let now = self.started.elapsed();
            let (machine, tls) = match speaks {
                Speaks::Iscsi => {
                    let start = iscsi::Start {
                        targets: Arc::clone(&self.shared.targets),
                        portal: socket.local(),
                        random: self.shared.random(),
                        now,
                    };
                    (Machine::Iscsi(Box::new(iscsi::Connection::new(start))), None)
                }
                Speaks::Nbd { exports, tls } => {
                    let (exports, requires_tls) = (Arc::clone(exports), tls.is_some());
                    let start = nbd::Start { exports, requires_tls, now };
                    (Machine::Nbd(Box::new(nbd::Server::new(&start))), tls.clone())
                }
            };
            if !self.shared.admit() {
                // The connections that are not logged in give way.
                self.close_strangers();
                if !self.shared.admit() {
                    continue;
                }
            }
            let connection = Connection {
                token: TOKENS.fetch_add(1, Ordering::Relaxed),
                socket,
                machine,
                target: None,
                tls,
                starts_tls: false,
                interest: epoll::EventFlags::IN | epoll::EventFlags::OUT,
            };
            self.inbox.load.fetch_add(1, Ordering::Relaxed);
            if !self.adopt(connection) {
                self.shared.leave();
            }
        }
    }

    fn adopt(&mut self, connection: Connection) -> bool {
        let data = epoll::EventData::new_u64(connection.token);
        match epoll::add(&self.epoll, &connection.socket, data, connection.interest) {
            Ok(()) => {
                self.connections.insert(connection.token, connection);
                true
            }
            Err(errno) => {
                tracing::warn!("cannot serve a connection: {errno}");
                self.inbox.load.fetch_sub(1, Ordering::Relaxed);
                false
            }
        }
    }

    /// Reads, works and writes for a connection as far as it goes without waiting.
    fn serve(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let fate = connection.serve(&self.shared, &self.inbox, &mut self.ring, self.started);
        match fate {
            Fate::Ends => self.close(token),
            Fate::Moves(to) => {
                let Some(connection) = self.connections.remove(&token) else { return };
                let _ = epoll::delete(&self.epoll, &connection.socket);
                self.inbox.load.fetch_sub(1, Ordering::Relaxed);
                to.load.fetch_add(1, Ordering::Relaxed);
                to.send(Message::Adopt(Box::new(connection)));
            }
            Fate::Stays => {
                let wanted = connection.wanted();
                if wanted != connection.interest {
                    let data = epoll::EventData::new_u64(token);
                    if epoll::modify(&self.epoll, &connection.socket, data, wanted).is_err() {
                        self.close(token);
                        return;
                    }
                    connection.interest = wanted;
                }
            }
        }
    }

    fn look_at_timeouts(&mut self, now: Duration) {
        let tokens: Vec<u64> = self.connections.keys().copied().collect();
        for token in tokens {
            let Some(connection) = self.connections.get_mut(&token) else { continue };
            match connection.machine.look_at_time(now) {
                (_, false) => self.close(token),
                (true, true) => self.serve(token),
                (false, true) => {}
            }
        }
    }

    fn close_strangers(&mut self) {
        let strangers: Vec<u64> = self
            .connections
            .values()
            .filter(|connection| !connection.machine.is_in_use())
            .map(|connection| connection.token)
            .collect();
        for token in strangers {
            self.close(token);
        }
    }

    fn close(&mut self, token: u64) {
        if let Some(connection) = self.connections.remove(&token) {
            let _ = epoll::delete(&self.epoll, &connection.socket);
            self.inbox.load.fetch_sub(1, Ordering::Relaxed);
            self.shared.leave();
        }
    }
}

impl Connection {
    fn wanted(&self) -> epoll::EventFlags {
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

    fn serve(
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
            inbox.send(Message::Finished(Box::new(end)));
        }));
    }

    fn finished(&mut self, finished: Finished) {
        let Finished { ticket, outcome, data, spare, .. } = finished;
        self.finish(ticket, outcome, data, spare);
    }

    fn finish(&mut self, ticket: Ticket, outcome: Outcome, data: Vec<u8>, spare: Vec<u8>) {
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
pub fn run(job: &Job, data: &[u8], into: &mut Vec<u8>, target: Option<&iscsi::Target>) -> Outcome {
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
