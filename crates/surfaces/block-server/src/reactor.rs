//! A thread that serves connections, one for each processor.
//!
//! Invariants: a reactor never waits but in `epoll_wait`. Plain reads and writes of direct files go
//! to the kernel (`ring`). Other work that may wait goes to the threads of its unit (`workers`),
//! which send the end of it to the inbox of the connection's reactor. A connection is at one
//! reactor at a time; it moves when its target is known, to the node of the target's units, before
//! anything runs for it.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll;
use weft_block::iscsi;
use weft_block::nbd::{self, Exports};
use weft_block::scsi::Outcome;
use weft_numa::ProcessorSet;

use crate::connection::{Connection, Fate, Finished, Machine, Waiting};
use crate::mailbox::Mailbox;
use crate::ring::{Carried, Ring};
use crate::server::Shared;
use crate::socket::Listener;

/// Events that are taken at a time.
const EVENTS_MAX: usize = 64;
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

    /// A job of a connection has ended.
    pub(crate) fn finished(&self, finished: Finished) {
        self.send(Message::Finished(Box::new(finished)));
    }

    fn send(&self, message: Message) {
        self.mailbox.send(message);
    }
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
            let token = TOKENS.fetch_add(1, Ordering::Relaxed);
            let connection = Connection::new(token, socket, machine, tls);
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
