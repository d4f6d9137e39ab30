//! The thread of the fabric: it owns the sockets and carries out what the machine wants.
//!
//! # Invariants
//! - The lock of the machine is never held while a user of the fabric is told something.
//! - Strangers have at most [`STRANGERS_MAX`] connections, all daemons together [`LINKS_MAX`].

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weft_membership::{
    ConnectionId, Event, FabricKeys, Fault, Identity, Message, NODES_MAX, Output, Role, Session,
    SessionEvent, SessionFault, Tls, Versions,
};

use super::etcd::EtcdClient;
use super::link::{Link, OUTPUT_BYTES_MAX};
use super::state::State;
use super::{FabricEvent, FabricUser, Shared};
use crate::complaints::Complaints;

/// Most connections of those that have not proved that they know the key.
const STRANGERS_MAX: usize = 32;
/// Most connections.
const LINKS_MAX: usize = 2 * NODES_MAX + STRANGERS_MAX;
/// Outputs that are carried out before the sockets have their turn.
const OUTPUTS_A_TURN: usize = 256;
/// How long the last words of a connection may take.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// How long nobody is accepted after the descriptors ran out.
const GATE_SHUT: Duration = Duration::from_millis(100);
/// The user in whose name complaints about strangers are counted: none that exists.
const STRANGERS: u32 = u32::MAX - 1;
/// Longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// The thread's state.
pub struct Driver {
    pub shared: Arc<Shared>,
    pub user: Arc<dyn FabricUser>,
    pub listener: TcpListener,
    pub waker: UnixStream,
    pub tls: Tls,
    pub own: Identity,
    pub keys: Arc<FabricKeys>,
    pub state: State,
    pub started: Instant,
    pub links: BTreeMap<ConnectionId, Link>,
    pub complaints: Complaints,
    /// The number was not kept from an earlier start, and has not been told yet.
    pub is_late: bool,
    pub etcd: Option<Arc<EtcdClient>>,
}

impl Driver {
    /// Runs until the fabric ends.
    pub fn run(mut self) {
        if let Err(error) = self.serve() {
            tracing::error!("the fabric is not served any more: {error:#}");
            eprintln!("weft daemon: the fabric is not served any more: {error:#}");
        }
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.changed.notify_all();
    }

    fn serve(&mut self) -> anyhow::Result<()> {
        let mut gate_opens = None;
        loop {
            let is_idle = self.carry_out()?;
            if self.shared.is_over.load(Ordering::Acquire) {
                return Ok(());
            }
            let now = Instant::now();
            gate_opens = gate_opens.filter(|at| *at > now);
            let (ids, ready) = self.sleep(gate_opens, is_idle)?;
            if ready[0].contains(PollFlags::IN) {
                let mut space = [0; 64];
                while self.waker.read(&mut space).is_ok_and(|count| count > 0) {}
            }
            if ready[1].contains(PollFlags::IN) && !self.accept() {
                gate_opens = Some(Instant::now() + GATE_SHUT);
            }
            for (id, ready) in ids.iter().zip(&ready[2..]) {
                if !ready.is_empty() {
                    self.receive(*id);
                }
            }
            let now = self.now();
            self.shared.lock().tick(now);
        }
    }

    /// Sleeps, if there `is_nothing` to do, until something is ready: the waker, the listener, then
    /// the links.
    fn sleep(
        &self,
        gate_opens: Option<Instant>,
        is_nothing: bool,
    ) -> anyhow::Result<(Vec<ConnectionId>, Vec<PollFlags>)> {
        let now = Instant::now();
        let wake = self.shared.lock().wakes_at().saturating_sub(now - self.started);
        let closing = self.links.values().filter_map(Link::ends_at);
        let left = closing.chain(gate_opens).map(|at| at.saturating_duration_since(now));
        let longest = if is_nothing { SLEEP_MAX } else { Duration::ZERO };
        let left = left.chain([wake, longest]).min().unwrap_or(longest);
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let gate = if gate_opens.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let mut watched =
            vec![PollFd::new(&self.waker, PollFlags::IN), PollFd::new(&self.listener, gate)];
        watched.extend(self.links.values().map(|link| PollFd::new(link, link.interest())));
        match poll(&mut watched, Some(&timeout)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => watched.iter_mut().for_each(PollFd::clear_revents),
            Err(errno) => return Err(errno).context("poll"),
        }
        let ready = watched.iter().map(PollFd::revents).collect();
        Ok((self.links.keys().copied().collect(), ready))
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Accepts the connections that wait. False if the descriptors ran out.
    fn accept(&mut self) -> bool {
        loop {
            let (stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) =>
                {
                    continue;
                }
                Err(_) => return false,
            };
            let strangers = self.links.values().filter(|link| !link.is_proved()).count();
            if strangers >= STRANGERS_MAX || self.links.len() >= LINKS_MAX {
                let fault = Fault::Other("too many connections without a proof".to_owned());
                self.complain(&from.to_string(), &fault);
                continue;
            }
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            let Ok(session) = self.session(Role::Listener) else { continue };
            let now = self.now();
            let id = self.shared.lock().inbound(from.to_string(), now);
            self.links.insert(id, Link::accepted(stream, session));
        }
    }

    fn session(&self, role: Role) -> Result<Session, SessionFault> {
        Session::new(&self.tls, role, self.own, Arc::clone(&self.keys), Versions::own())
    }

    fn receive(&mut self, id: ConnectionId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let was_proved = link.is_proved();
        let mut events = Vec::new();
        let ended = link.receive(&mut events).err();
        let is_closing = link.is_closing();
        let now = self.now();
        for event in events {
            let mut machine = self.shared.lock();
            match event {
                SessionEvent::Proved { identity, .. } => machine.proved(id, identity, now),
                SessionEvent::Message(message) => machine.message(id, message, now),
            }
        }
        let Some(fault) = ended else { return };
        if is_closing {
            self.links.remove(&id);
            return;
        }
        if !was_proved {
            self.complain_of(id, &fault);
        }
        self.shared.lock().closed(id, &fault, now);
        self.shared.changed.notify_all();
        // A refusal may be on its way.
        let has_words = matches!(fault, Fault::Refused(_));
        self.finish(id, has_words);
    }

    /// Ends a link, with its last words if it `has_words`.
    fn finish(&mut self, id: ConnectionId, has_words: bool) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.close(Instant::now() + CLOSE_WITHIN);
        if !has_words || link.flush().is_err() {
            self.links.remove(&id);
        }
    }

    /// Carries out outputs of the machine, and writes what waits. True if all is done, false if
    /// there may be more to do than fits one turn.
    fn carry_out(&mut self) -> anyhow::Result<bool> {
        for _ in 0..OUTPUTS_A_TURN {
            let output = self.shared.lock().output();
            match output {
                Some(output) => self.act(output)?,
                None if self.flush() => return Ok(true),
                None => {}
            }
        }
        self.flush();
        Ok(false)
    }

    fn act(&mut self, output: Output) -> anyhow::Result<()> {
        match output {
            Output::Dial { connection, address } => self.dial(connection, address),
            Output::Send { connection, message } => {
                if let Message::User(bytes) = &message {
                    self.shared.queued.fetch_sub(bytes.len(), Ordering::Relaxed);
                }
                self.send(connection, &message);
            }
            Output::Close { connection } => self.finish(connection, true),
            Output::Save(roster) => self.state.keep(&roster)?,
            Output::Propose { table, version } => {
                if let Some(etcd) = &self.etcd {
                    etcd.propose(table, version);
                }
            }
            Output::DirectoryLost(reason) => {
                self.shared.changed.notify_all();
                tracing::warn!(
                    "etcd cannot be used: nobody new joins, and what runs goes on: {reason}"
                );
            }
            Output::DirectoryFound => tracing::info!("etcd can be used again"),
            Output::Tell(event) => self.tell(event),
            Output::Complain { about, fault } => {
                self.shared.changed.notify_all();
                self.complain(&about, &fault);
            }
        }
        Ok(())
    }

    /// Sends a message, unless its peer has not taken too much already.
    fn send(&mut self, id: ConnectionId, message: &Message) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.send(message);
        let fault = match link.flush_if_more_than(OUTPUT_BYTES_MAX) {
            Ok(true) => return,
            Ok(false) => None,
            Err(fault) => Some(fault),
        };
        let is_closing = link.is_closing();
        self.links.remove(&id);
        if !is_closing {
            self.lost(id, fault);
        }
    }

    /// Tells the machine of a link that is over by this fault, or because it takes nothing.
    fn lost(&self, id: ConnectionId, fault: Option<Fault>) {
        let now = self.now();
        let mut machine = self.shared.lock();
        match fault {
            Some(fault) => machine.closed(id, &fault, now),
            None => machine.overflowed(id, now),
        }
    }

    fn dial(&mut self, id: ConnectionId, address: SocketAddr) {
        let session = self.session(Role::Dialer).map_err(Fault::from);
        match session.and_then(|session| Link::dial(address, session)) {
            Ok(link) => {
                self.links.insert(id, link);
            }
            Err(fault) => {
                let now = self.now();
                self.shared.lock().closed(id, &fault, now);
            }
        }
    }

    /// Writes what waits for each peer. False if that gave the machine something to do.
    fn flush(&mut self) -> bool {
        let now = Instant::now();
        let mut over = Vec::new();
        for (id, link) in &mut self.links {
            let fault = match link.flush() {
                Ok(()) if link.ends_at().is_some_and(|at| at <= now) => None,
                Ok(()) => continue,
                Err(fault) => Some(fault),
            };
            over.push((*id, fault));
        }
        let is_quiet = over.is_empty();
        for (id, fault) in over {
            let is_closing = self.links.remove(&id).is_some_and(|link| link.is_closing());
            if !is_closing {
                self.lost(id, fault);
            }
        }
        is_quiet
    }

    fn tell(&mut self, event: Event) {
        let event = match event {
            Event::Numbered(node) => {
                self.shared.changed.notify_all();
                tracing::info!(node = node.0, "this host has its number");
                if !std::mem::take(&mut self.is_late) {
                    return;
                }
                FabricEvent::Numbered { node }
            }
            Event::Up { node, incarnation, about } => {
                tracing::info!(node = node.0, name = about.name, "up");
                let namesakes = self.shared.lock().namesakes(node);
                if let Some(other) = namesakes.first() {
                    tracing::warn!(
                        "the hosts with the numbers {} and {} are both called {:?}; start one of \
                         them with another name (--node NAME)",
                        other.0,
                        node.0,
                        about.name
                    );
                }
                FabricEvent::Up { node, incarnation, about }
            }
            Event::Down { node, reason } => {
                tracing::info!(node = node.0, reason, "down");
                FabricEvent::Down { node, reason }
            }
            Event::Message { node, bytes } => FabricEvent::Message { node, bytes },
        };
        self.user.handle(event);
    }

    /// Complains of a link that ended before its peer had proved that it knows the key.
    fn complain_of(&mut self, id: ConnectionId, fault: &Fault) {
        let place = self.shared.lock().place(id);
        if let Some(place) = place {
            self.complain(&place, fault);
        }
    }

    fn complain(&mut self, about: &str, fault: &Fault) {
        if let Some(left_out) = self.complaints.about(STRANGERS, Instant::now()) {
            tracing::warn!(left_out, "no work with {about}: {fault}");
        }
    }
}
