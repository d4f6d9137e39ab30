//! The turns of the thread that has all clients.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::Timespec;
use weft_kv::node::Node;
use weft_kv::store::Lsn;
use weft_redis::{Gauges, Peer, Server};

use crate::answers::Waiting;
use crate::clock::System;
use crate::committer::Committer;
use crate::connection::{Connection, Spares, Stage};
use crate::listener::{self, Listener, Next};
use crate::{Counts, Settings, gauges};

/// Between two looks at what ended and what is too large.
const TICK: Duration = Duration::from_millis(100);
/// How long the listener rests when no descriptor is left.
const REST: Duration = Duration::from_millis(100);
/// Clients that are taken in one turn.
const CLIENTS_OF_TURN: usize = 64;
/// Events of one turn.
const EVENTS: usize = 512;
/// How long answers are sent at the end.
const FAREWELL: Duration = Duration::from_secs(1);

/// Events that are not of a client. Clients have numbers from 1 on.
const SIGNAL: u64 = u64::MAX;
const COMMITTED: u64 = u64::MAX - 1;
const LISTENERS: u64 = u64::MAX - 64;

/// The thread that has all clients.
pub(crate) struct Turns {
    poll: OwnedFd,
    listener: Listener,
    node: Arc<dyn Node>,
    server: Server,
    committer: Committer,
    signals: UnixStream,
    connections: BTreeMap<u64, Connection>,
    /// Clients with something to do in this turn.
    busy: BTreeSet<u64>,
    waiting: Waiting,
    /// Clients whose last command waits for replicas.
    for_replicas: BTreeSet<u64>,
    spares: Spares,
    gauges: Gauges,
    counts: Arc<Counts>,
    needs_password: bool,
    resting_until: Option<Instant>,
    is_over: bool,
}

impl Turns {
    pub(crate) fn new(
        listener: Listener,
        node: Arc<dyn Node>,
        settings: Settings,
    ) -> io::Result<Self> {
        let mut parameters = settings.parameters;
        let wanted = parameters.clients_max;
        parameters.clients_max = listener::raise_descriptors(wanted);
        if parameters.clients_max < wanted {
            tracing::warn!(
                "the limit of descriptors (ulimit -n) is enough for {} clients, not for {wanted}",
                parameters.clients_max
            );
        }
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let addresses = listener.addresses();
        let mut random = [0_u8; 28];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let (seed, id) = random.split_at(8);
        let known = weft_redis::Settings {
            password: settings.password.clone(),
            seed: seed.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
            port: addresses.first().map_or(0, std::net::SocketAddr::port),
            bind: addresses.iter().map(|it| it.ip().to_string()).collect::<Vec<_>>().join(" "),
            directory: settings.directory,
            process: std::process::id(),
            run_id: id.iter().map(|byte| format!("{byte:02x}")).collect(),
            system: system(),
        };
        let signals = signals()?;
        let committer = Committer::start(Arc::clone(&node))?;
        for (number, socket) in (0_u64..).zip(&listener.sockets) {
            let data = EventData::new_u64(LISTENERS + number);
            epoll::add(&poll, socket, data, EventFlags::IN)?;
        }
        epoll::add(&poll, &signals, EventData::new_u64(SIGNAL), EventFlags::IN)?;
        epoll::add(&poll, committer.over(), EventData::new_u64(COMMITTED), EventFlags::IN)?;
        Ok(Self {
            poll,
            listener,
            waiting: Waiting::new(&*node),
            server: Server::new(Arc::clone(&node), known, parameters, Box::new(System::new())),
            node,
            committer,
            signals,
            connections: BTreeMap::new(),
            busy: BTreeSet::new(),
            for_replicas: BTreeSet::new(),
            spares: Spares::default(),
            gauges: Gauges::default(),
            counts: settings.counts,
            needs_password: settings.password.is_some(),
            resting_until: None,
            is_over: false,
        })
    }

    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        let mut next_tick = Instant::now();
        while !self.is_over {
            let now = Instant::now();
            let wait = match self.busy.is_empty() {
                true => next_tick.saturating_duration_since(now),
                false => Duration::ZERO,
            };
            self.wait(&mut events, wait)?;
            self.server.begin_turn();
            for event in events.drain(..) {
                self.take(event)?;
            }
            self.execute();
            if Instant::now() >= next_tick {
                let has_more = self.tick();
                let pause = if has_more { Duration::from_millis(1) } else { TICK };
                next_tick = Instant::now() + pause;
            }
            self.commit();
            self.send();
            self.is_over |= self.server.is_ending();
        }
        self.farewell();
        Ok(())
    }

    fn wait(&self, events: &mut Vec<epoll::Event>, wait: Duration) -> io::Result<()> {
        // Rounded up, so that a turn does not come before its time.
        let wait = wait + Duration::from_micros(if wait.is_zero() { 0 } else { 100 });
        let wait = Timespec::try_from(wait).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        events.clear();
        match epoll::wait(&self.poll, spare_capacity(events), Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn take(&mut self, event: epoll::Event) -> io::Result<()> {
        let (number, flags) = (event.data.u64(), event.flags);
        match number {
            SIGNAL => {
                let mut byte = [0; 16];
                let _ = self.signals.read(&mut byte);
                self.is_over = true;
            }
            COMMITTED => self.committed(),
            LISTENERS.. => self.accept(usize::try_from(number - LISTENERS).unwrap_or(0))?,
            _ => self.client(number, flags),
        }
        Ok(())
    }

    fn client(&mut self, id: u64, flags: EventFlags) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        self.busy.insert(id);
        if !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return;
        }
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            connection.stage = Stage::Over;
            return;
        }
        match connection.read(&mut self.spares) {
            Ok(count) => {
                self.gauges.input_bytes += u64::try_from(count).unwrap_or(0);
            }
            Err(_) => connection.stage = Stage::Over,
        }
    }

    fn accept(&mut self, socket: usize) -> io::Result<()> {
        for _ in 0..CLIENTS_OF_TURN {
            match self.listener.next(socket) {
                Next::Client(stream, address) => self.admit(stream, address),
                Next::NoDescriptor => {
                    self.gauges.refused += 1;
                    tracing::warn!("no descriptor is left: a client was refused");
                    self.rest(true)?;
                    return Ok(());
                }
                Next::None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Takes no clients for a while, or takes them again.
    fn rest(&mut self, rests: bool) -> io::Result<()> {
        self.resting_until = rests.then(|| Instant::now() + REST);
        let flags = if rests { EventFlags::empty() } else { EventFlags::IN };
        for (number, socket) in (0_u64..).zip(&self.listener.sockets) {
            epoll::modify(&self.poll, socket, EventData::new_u64(LISTENERS + number), flags)?;
        }
        Ok(())
    }

    fn admit(&mut self, stream: std::net::TcpStream, address: std::net::SocketAddr) {
        self.gauges.connections += 1;
        let refusal = if self.connections.len() >= self.server.parameters.clients_max {
            Some("max number of clients reached")
        } else if !self.needs_password && !listener::is_near(address.ip()) {
            Some("clients from outside of private networks need a password: see --password-file")
        } else {
            None
        };
        if let Some(why) = refusal {
            self.gauges.refused += 1;
            listener::refuse(&stream, why);
            return;
        }
        if stream.set_nonblocking(true).is_err() || stream.set_nodelay(true).is_err() {
            return;
        }
        let keepalive = self.server.parameters.keepalive;
        if keepalive > 0 {
            let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
            let _ = rustix::net::sockopt::set_tcp_keepidle(&stream, Duration::from_secs(keepalive));
        }
        let peer = Peer {
            address: address.to_string(),
            local_address: stream.local_addr().map(|it| it.to_string()).unwrap_or_default(),
            descriptor: stream.as_fd().as_raw_fd(),
        };
        let id = self.server.open(peer);
        let mut connection = Connection::new(stream);
        connection.interest = EventFlags::IN;
        let data = EventData::new_u64(id);
        if epoll::add(&self.poll, &connection.stream, data, EventFlags::IN).is_err() {
            self.server.close(id);
            return;
        }
        self.connections.insert(id, connection);
    }

    /// Carries out what busy clients sent.
    fn execute(&mut self) {
        self.busy.extend(&self.for_replicas);
        for id in &self.busy {
            let Some(connection) = self.connections.get_mut(id) else { continue };
            connection.execute(*id, &mut self.server, &mut self.spares);
            match connection.is_waiting {
                true => self.for_replicas.insert(*id),
                false => self.for_replicas.remove(id),
            };
            self.waiting.hold(*id, &mut connection.answers, &*self.node);
        }
        for id in self.server.take_killed() {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.stage = Stage::Over;
                self.busy.insert(id);
            }
        }
    }

    /// Makes safe what answers depend on.
    fn commit(&mut self) {
        if let Some(newest) = self.waiting.wanted(&*self.node) {
            if self.node.commit_is_quick() {
                let result = self.node.commit(newest);
                self.settle(result.map(|()| newest));
            } else {
                self.committer.want(newest);
            }
        }
        self.release();
    }

    fn committed(&mut self) {
        let result = self.committer.result();
        self.settle(result);
        self.release();
    }

    fn settle(&mut self, result: Result<Lsn, weft_kv::store::StoreError>) {
        for id in self.waiting.settle(result, &*self.node) {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.cut_off();
                self.busy.insert(id);
            }
        }
    }

    fn release(&mut self) {
        let (connections, busy) = (&mut self.connections, &mut self.busy);
        self.waiting.release(|id, safe| {
            let Some(connection) = connections.get_mut(&id) else { return false };
            connection.answers.release(safe);
            busy.insert(id);
            connection.answers.is_held()
        });
    }

    /// Sends answers of busy clients. They stay busy if they have more to carry out.
    fn send(&mut self) {
        let busy = std::mem::take(&mut self.busy);
        for id in busy {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            match connection.send(&mut self.spares) {
                Ok(count) => self.gauges.output_bytes += u64::try_from(count).unwrap_or(0),
                Err(_) => connection.stage = Stage::Over,
            }
            if connection.stage == Stage::Over {
                self.end(id);
                continue;
            }
            self.server.note(id, connection.held_bytes());
            if connection.may_execute() {
                self.busy.insert(id);
            }
            let mut interest = EventFlags::empty();
            interest.set(EventFlags::OUT, connection.is_blocked);
            let may_read = connection.may_read(self.server.parameters.input_max);
            interest.set(EventFlags::IN, may_read);
            if interest != connection.interest {
                connection.interest = interest;
                let data = EventData::new_u64(id);
                let _ = epoll::modify(&self.poll, &connection.stream, data, interest);
            }
        }
    }

    fn end(&mut self, id: u64) {
        self.server.close(id);
        self.connections.remove(&id);
        self.waiting.forget(id);
        self.for_replicas.remove(&id);
        self.busy.remove(&id);
    }

    /// Says whether there is more to do at once.
    fn tick(&mut self) -> bool {
        let now = Instant::now();
        if self.resting_until.is_some_and(|until| until <= now) {
            let _ = self.rest(false);
        }
        let (user, system) = gauges::processor_time();
        self.gauges = Gauges { user, system, ..self.gauges };
        self.gauges.resident_bytes = gauges::resident_bytes();
        let late: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, it)| match it.stage {
                Stage::Closing(until) | Stage::Lingering(until) => until <= now,
                Stage::Open | Stage::Over => it.stage == Stage::Over,
            })
            .map(|(id, _)| *id)
            .collect();
        late.into_iter().chain(self.server.idle()).for_each(|id| self.end(id));
        while let Some(id) = self.server.greediest() {
            tracing::warn!("clients take too much memory: the one that takes most is cut off");
            self.gauges.evicted += 1;
            self.end(id);
        }
        self.server.gauges = self.gauges;
        self.counts.note(self.server.totals(), &self.gauges);
        self.server.tick()
    }

    /// Makes safe what was taken, and sends the answers.
    fn farewell(&mut self) {
        self.counts.note(self.server.totals(), &self.gauges);
        self.node.ending();
        if let Some(newest) = self.waiting.wanted(&*self.node) {
            let result = self.node.commit(newest).map(|()| newest);
            self.settle(result);
        }
        self.busy.extend(self.connections.keys());
        self.release();
        let end = Instant::now() + FAREWELL;
        loop {
            self.send();
            let is_blocked = self.connections.values().any(|it| it.is_blocked);
            if !is_blocked || Instant::now() >= end {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
            self.busy.extend(self.connections.keys());
        }
    }
}

/// A stream that becomes readable when the process is asked to end.
fn signals() -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::low_level::pipe::register(signal, theirs.try_clone()?)?;
    }
    Ok(ours)
}

fn system() -> String {
    let name = rustix::system::uname();
    [name.sysname(), name.release(), name.machine()].map(|it| it.to_string_lossy()).join(" ")
}
