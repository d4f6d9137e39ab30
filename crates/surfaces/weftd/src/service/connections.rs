//! The connections service: finds the two ends of a TCP connection, and hands out lanes.
//!
//! [`Matchmaker`] has the rules; this module gives it the examined descriptors. Programs wait for
//! each answer while they move a connection to the fabric, so the service is handled in place.
//! 006-daemon-services gives the cost of a thread.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use weft_memory::Segment;
use weft_options::Options;
use weft_socket::guesses::{BURST, Guesses};
use weft_socket::matchmaker::{Matchmaker, Offer, Offerer, Outcome, Pair, TableLimits};
use weft_socket::route::RECALL;
use weft_socket::tuple::{Route, Tuple};
use weft_transport_shm::lane::{LaneLayout, ShmLane};
use weft_wire::control::{
    CONNECTION_KINDS, Control, End, InvalidMessage, OfferBetweenHosts, Partner, split,
};

use self::between_hosts::{Others, is_between_hosts};
use super::paths::SharedPaths;
use super::ways::SharedWays;
use super::{
    Counter, Event, Holder, Manifest, NodeEvent, Outbox, Outgoing, Peer, Placement, ProcessId,
    Question, Report, Request, Service,
};
use crate::evidence::{LeasedFile, Shown};
use crate::kernel;
use crate::lab::LabCuts;
use crate::status::{ConnectionStatus, ListenerStatus};

mod between_hosts;

/// The service.
pub struct Connections {
    matchmaker: Matchmaker<ProcessId, Arc<LeasedFile>>,
    /// Programs that have asked and are not gone.
    peers: HashMap<ProcessId, Peer>,
    /// The sockets of waiting offers.
    sockets: HashMap<Offerer<ProcessId>, Socket>,
    /// The offers between namespaces whose other end has not come.
    guesses: Guesses,
    /// The other hosts of the fabric.
    others: Others,
    /// The nodes of the lab between which no way leads.
    cuts: Arc<LabCuts>,
    /// Whether the users' numbers are those of the first user namespace.
    names_users: bool,
    offers: u64,
    refusals: u64,
}

/// The socket of an offered end.
#[derive(Clone, Copy)]
struct Socket {
    holder: Holder,
    /// Whether the program's user made it. If not, it says nothing about the program.
    is_own: bool,
    /// The user for whom the offer counts as a guess, until the other end comes.
    guesses_for: Option<u32>,
}

/// An end of a connection that a program offers to serve.
struct OfferedEnd {
    end: End,
    tuple: Tuple,
    socket: Socket,
    /// The memory of a lane, offered by an accepting end.
    lane: Option<Arc<LeasedFile>>,
}

impl Connections {
    /// A service without connections.
    pub fn new(options: &Options, ways: SharedWays, paths: SharedPaths) -> Self {
        let limits = TableLimits {
            connections_max: options.daemon_connections_max(),
            user_share: options.daemon_user_share(),
            user_unbounded: rustix::process::geteuid().as_raw(),
            ..TableLimits::default()
        };
        Self {
            matchmaker: Matchmaker::new(limits),
            peers: HashMap::new(),
            sockets: HashMap::new(),
            guesses: Guesses::default(),
            others: Others::new(ways, paths),
            cuts: Arc::default(),
            names_users: kernel::is_in_first_user_namespace(),
            offers: 0,
            refusals: 0,
        }
    }

    /// Handles a packet. `is_asked` is set when the kernel has been asked about the offer that this
    /// packet would match.
    fn handle(
        &mut self,
        request: Request,
        is_asked: bool,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), InvalidMessage> {
        let from = request.from;
        self.peers.insert(from.process, from);
        match Control::parse(&request.bytes)? {
            Control::Offer { token, end, descriptor, between_hosts } => {
                if between_hosts != OfferBetweenHosts::Never {
                    self.look_at_hosts(out);
                }
                if let Some(holder) = self.suspect(&request)
                    && !is_asked
                {
                    out.ask(Question { holder, request });
                    return Ok(());
                }
                let offerer = Offerer { process: from.process, token };
                match offered(end, descriptor, from, request.shown) {
                    Ok(mut offered) => {
                        if between_hosts != OfferBetweenHosts::Never {
                            offered.tuple = self.others.route(from, offered.tuple);
                        }
                        if self.is_cut(offered.tuple) {
                            let reason = "no way leads to the other node of the lab at present; \
                                          the connection stays on TCP";
                            self.decline(from, token, reason.to_owned(), out);
                            return Ok(());
                        }
                        if between_hosts == OfferBetweenHosts::IfFaster
                            && self.others.is_faster_by_tcp(offered.tuple, now)
                        {
                            let reason = "TCP is faster to that host".to_owned();
                            self.decline(from, token, reason, out);
                            return Ok(());
                        }
                        if let Some(reason) = self.others.why_cut(offered.tuple) {
                            self.decline(from, token, reason, out);
                            return Ok(());
                        }
                        match self.guess(offered, from, now) {
                            Ok(offered) => self.offer(offerer, from, offered, out),
                            Err(reason) => self.decline(from, token, reason, out),
                        }
                    }
                    Err(reason) => self.refuse(from, token, reason, out),
                }
            }
            Control::Join { token } => match connection(request.shown.into_iter().next()) {
                Ok((tuple, ..)) => self.join(from, token, tuple, now, out),
                Err(reason) => self.refuse(from, token, reason, out),
            },
            Control::Listening { token } => {
                if let Some(Shown::Listener { namespace, address }) = request.shown.first() {
                    let offerer = Offerer { process: from.process, token };
                    self.matchmaker.listen(offerer, from.uid, *namespace, *address);
                }
                out.reply(from.process, &Control::Pending { token, listening: true });
            }
            Control::Withdraw { token } => {
                let offerer = Offerer { process: from.process, token };
                self.matchmaker.withdraw(offerer);
                self.sockets.remove(&offerer);
                self.others.withdraw(offerer, out);
            }
            Control::Tap { server, client, client_pid } => {
                self.tap(from, (&server, &client, client_pid), out);
            }
            _ => {
                let (kind, _) = split(&request.bytes)?;
                return Err(InvalidMessage::Kind { kind });
            }
        }
        Ok(())
    }

    /// Shows the memory of a lane to its own user and to root, for reading alone.
    fn tap(&self, from: Peer, (server, client, pid): (&str, &str, u32), out: &mut Outbox) {
        let is_it = |pair: &&Pair<ProcessId, Arc<LeasedFile>>| {
            pair.tuple.local.to_string() == server
                && pair.tuple.remote.to_string() == client
                && self.pid_of(pair.connected.process) == pid
        };
        let may_see = |pair: &&Pair<ProcessId, Arc<LeasedFile>>| {
            let ends = [pair.accepted.process, pair.connected.process];
            let is_own =
                |process| self.peers.get(process).is_some_and(|peer: &Peer| peer.uid == from.uid);
            from.may_command || ends.iter().all(is_own)
        };
        let found = self.matchmaker.pairs().find(is_it).filter(may_see);
        // A user who may not see it is not told that it exists.
        let shown = found.ok_or_else(|| "no such connection of yours is on the fabric".to_owned());
        let shown = shown.and_then(|pair| {
            let shown = Segment::reopen_read_only(pair.memory.as_fd());
            shown.map_err(|error| format!("the connection cannot be looked at: {error}"))
        });
        match shown {
            Ok(file) => out.send(Outgoing {
                to: from.process,
                bytes: Control::Tapped.emit(),
                descriptors: vec![Arc::new(file)],
                wakeup: None,
            }),
            Err(reason) => {
                out.reply(from.process, &Control::Refused { token: 0, reason });
            }
        }
    }

    fn refuse(&mut self, from: Peer, token: u64, reason: String, out: &mut Outbox) {
        out.complain(from, reason.clone());
        self.decline(from, token, reason, out);
    }

    /// Refuses an offer that is no mistake of the program.
    fn decline(&mut self, from: Peer, token: u64, reason: String, out: &mut Outbox) {
        self.refusals += 1;
        out.reply(from.process, &Control::Refused { token, reason });
    }

    /// Whether no way leads between the two nodes of the lab where a connection has its ends.
    fn is_cut(&self, tuple: Tuple) -> bool {
        match tuple.route {
            Route::Namespaces { here, there } => self.cuts.part(here, there),
            Route::Traced(_) | Route::Hosts { .. } => false,
        }
    }

    /// Recalls the lanes between nodes that are cut off from each other: their connections go on
    /// over TCP, which waits until a way leads there again.
    fn recall(&mut self, cuts: Arc<LabCuts>) {
        self.cuts = cuts;
        if !self.cuts.cuts().any() {
            return;
        }
        let (word, bit) = RECALL;
        for pair in self.matchmaker.pairs().filter(|pair| self.is_cut(pair.tuple)) {
            if let Err(error) = ShmLane::raise(pair.memory.as_fd(), word, bit) {
                tracing::debug!(%error, "a lane cannot be recalled");
            }
        }
    }

    /// Counts the offer of an end between namespaces whose other end is not there.
    fn guess(
        &mut self,
        offered: OfferedEnd,
        from: Peer,
        now: Instant,
    ) -> Result<OfferedEnd, String> {
        if !is_traced(offered.tuple) || self.matchmaker.waiting_for(offered.tuple).is_some() {
            return Ok(offered);
        }
        if !self.guesses.make(from.uid, now) {
            return Err(too_many_guesses(from.uid));
        }
        let socket = Socket { guesses_for: Some(from.uid), ..offered.socket };
        Ok(OfferedEnd { socket, ..offered })
    }

    /// The other end of an offer came.
    fn met(&mut self, offerer: Offerer<ProcessId>) {
        let socket = self.sockets.get_mut(&offerer);
        if let Some(user) = socket.and_then(|socket| socket.guesses_for.take()) {
            self.guesses.take_back(user);
        }
    }

    fn offer(
        &mut self,
        offerer: Offerer<ProcessId>,
        from: Peer,
        offered: OfferedEnd,
        out: &mut Outbox,
    ) {
        let OfferedEnd { end, tuple, socket, lane } = offered;
        let brings_lane = lane.is_some();
        let offer = match (end, lane) {
            (End::Connected, _) => Offer::Connected,
            (End::Accepted, None) => Offer::Expecting,
            (End::Accepted, Some(memory)) => Offer::Accepted(memory),
        };
        self.offers += 1;
        // This offer replaces a waiting one of the same end.
        self.others.withdraw(offerer, out);
        if let Some(replaced) = self.matchmaker.waiting_for(tuple.mirrored()) {
            self.sockets.remove(&replaced);
            self.others.withdraw(replaced, out);
        }
        self.sockets.insert(offerer, socket);
        match self.matchmaker.offer(offerer, from.uid, tuple, offer) {
            Outcome::Matched { connected, accepted, memory } if is_between_hosts(tuple) => {
                self.pass_address(connected, accepted, &memory, out);
            }
            Outcome::Matched { connected, accepted, memory } => {
                out.event("matched", from, || format!("{tuple:?}"));
                if is_traced(tuple) {
                    out.event("crossed", from, || format!("{tuple:?}"));
                }
                let partner = self.partner(accepted, connected, tuple);
                for end in [connected, accepted] {
                    self.met(end);
                }
                self.sockets.remove(&connected);
                self.sockets.remove(&accepted);
                let bytes = Control::Matched { token: connected.token, partner }.emit();
                let descriptors = vec![memory as _];
                out.send(Outgoing { to: connected.process, bytes, descriptors, wakeup: None });
            }
            Outcome::Wanted { accepted, .. } if is_between_hosts(tuple) => {
                self.want_address(accepted, out);
            }
            Outcome::Wanted { connected, accepted } => {
                for end in [connected, accepted] {
                    self.met(end);
                }
                let partner = self.partner(connected, accepted, tuple);
                let wanted = Control::Wanted { token: accepted.token, partner };
                out.reply(accepted.process, &wanted);
                if end == End::Connected {
                    let pending = Control::Pending { token: offerer.token, listening: true };
                    out.reply(offerer.process, &pending);
                }
            }
            // An end that offers a lane finds the answer in the lane.
            Outcome::Waiting { listening } => {
                if end == End::Connected && is_between_hosts(tuple) {
                    self.tell_host(offerer, tuple, out);
                }
                if !brings_lane {
                    let pending = Control::Pending { token: offerer.token, listening };
                    out.reply(offerer.process, &pending);
                }
            }
            Outcome::Full { maximum } => {
                self.refusals += 1;
                self.sockets.remove(&offerer);
                let reason = format!(
                    "user {} has {maximum} connections, the most that one user may have \
                     (daemon.connections_max, daemon.user_share)",
                    from.uid
                );
                out.reply(from.process, &Control::Refused { token: offerer.token, reason });
            }
        }
    }

    fn join(&mut self, from: Peer, token: u64, tuple: Tuple, now: Instant, out: &mut Outbox) {
        if is_traced(tuple) && !self.guesses.make(from.uid, now) {
            return self.decline(from, token, too_many_guesses(from.uid), out);
        }
        let memory = self.matchmaker.memory_of(tuple);
        // A process that inherited an end does not say which one.
        let memory = memory.or_else(|| self.matchmaker.memory_of(tuple.of_connecting_end()));
        if is_traced(tuple) && memory.is_some() {
            self.guesses.take_back(from.uid);
        }
        match memory {
            Some(memory) => out.send(Outgoing {
                to: from.process,
                bytes: Control::Matched { token, partner: None }.emit(),
                descriptors: vec![memory as _],
                wakeup: None,
            }),
            None => {
                let reason = "no lane is known for this connection".to_owned();
                out.reply(from.process, &Control::Refused { token, reason });
            }
        }
    }

    /// The partner of `other`: the program that offered `one`. `None` when the two may not keep
    /// their lane. Both must number processes as the daemon does, and hold sockets of their own
    /// users, so that the kernel's word about a socket's user is one about the program. The kernel
    /// says nothing of a socket in another network namespace.
    fn partner(
        &self,
        one: Offerer<ProcessId>,
        other: Offerer<ProcessId>,
        tuple: Tuple,
    ) -> Option<Partner> {
        if is_traced(tuple) {
            return None;
        }
        let [one, other] = [one, other].map(|end| {
            let peer = self.peers.get(&end.process)?;
            let is_own = self.sockets.get(&end).is_some_and(|socket| socket.is_own);
            (is_own && peer.is_numbered_here).then_some(*peer)
        });
        let (one, other) = (one?, other?);
        let user = (one.uid != other.uid).then_some(one.uid);
        let may_keep = user.is_none() || self.names_users;
        may_keep.then_some(Partner { process: one.pid, user })
    }

    /// The waiting offer that this packet would match.
    fn awaited(&self, request: &Request) -> Option<Offerer<ProcessId>> {
        let Control::Offer { end, between_hosts, .. } = Control::parse(&request.bytes).ok()? else {
            return None;
        };
        let Some(Shown::Connection { tuple, .. }) = request.shown.first() else { return None };
        let tuple = tuple_at(end, *tuple);
        let tuple = match between_hosts {
            OfferBetweenHosts::Never => tuple,
            _ => self.others.route(request.from, tuple),
        };
        self.matchmaker.waiting_for(tuple)
    }

    /// The socket of the waiting offer that this packet would match. The offering program may have
    /// closed the socket without telling the daemon.
    fn suspect(&self, request: &Request) -> Option<Holder> {
        let offerer = self.awaited(request)?;
        self.sockets.get(&offerer).map(|socket| socket.holder)
    }

    /// Removes an offer whose program no longer has the socket.
    fn forget(&mut self, question: &Question) {
        // Another offer may have taken its place since.
        if self.suspect(&question.request) == Some(question.holder)
            && let Some(offerer) = self.awaited(&question.request)
        {
            self.matchmaker.withdraw(offerer);
            self.sockets.remove(&offerer);
        }
    }

    fn gone(&mut self, process: ProcessId, out: &mut Outbox) {
        self.others.gone(process, out);
        self.peers.remove(&process);
        self.matchmaker.process_gone(process);
        self.sockets.retain(|offerer, _| offerer.process != process);
    }

    fn pid_of(&self, process: ProcessId) -> u32 {
        self.peers.get(&process).map_or(0, |peer| peer.pid)
    }
}

impl Service for Connections {
    fn manifest(&self) -> Manifest {
        Manifest {
            name: "connections",
            kinds: CONNECTION_KINDS,
            placement: Placement::InPlace,
            options: &["daemon.connections_max", "daemon.user_share"],
            events: &[
                ("matched", "Both ends of a connection were offered."),
                ("crossed", "Those ends may be in two network namespaces, as of containers."),
                ("between_hosts", "Both ends of a connection were offered, on two hosts."),
            ],
        }
    }

    fn handle_event(&mut self, event: Event, now: Instant, out: &mut Outbox) {
        let (request, is_asked) = match event {
            Event::Packet(request) => (request, false),
            Event::Answer(question, holds) => {
                if !holds {
                    self.forget(&question);
                }
                (question.request, true)
            }
            Event::Gone(peer) => return self.gone(peer.process, out),
            // A process that it forked may go on with its connections.
            Event::Ended(_) => return,
        };
        let from = request.from;
        if let Err(error) = self.handle(request, is_asked, now, out) {
            out.reject(from, error);
        }
    }

    fn handle_node(&mut self, event: NodeEvent, _now: Instant, out: &mut Outbox) {
        match event {
            NodeEvent::Cuts(cuts) => self.recall(cuts),
            of_host => self.news_of_host(of_host, out),
        }
    }

    fn report(&self) -> Report {
        let mut listeners: Vec<_> = (self.matchmaker.listeners())
            .map(|(process, at)| (self.pid_of(process), at.to_string()))
            .map(|(pid, address)| ListenerStatus { pid, address })
            .collect();
        listeners.sort_by(|one, other| one.address.cmp(&other.address));
        let pair = |pair: &Pair<ProcessId, Arc<LeasedFile>>| {
            let status = ConnectionStatus {
                server: pair.tuple.local.to_string(),
                client: pair.tuple.remote.to_string(),
                server_pid: self.pid_of(pair.accepted.process),
                client_pid: self.pid_of(pair.connected.process),
                bytes_from_server: 0,
                bytes_from_client: 0,
            };
            (status, Arc::clone(&pair.memory))
        };
        let pairs: Vec<_> = self.matchmaker.pairs().map(pair).collect();
        let waiting = self.matchmaker.waiting();
        Box::new(move |status| {
            status.listeners = listeners;
            status.waiting = waiting;
            status.connections = pairs.into_iter().map(counted).collect();
            status.connections.sort_by(|one, other| one.client.cmp(&other.client));
        })
    }

    fn counters(&self) -> Vec<Counter> {
        let counter = |name, unit, help, value| Counter { name, unit, help, value };
        let lanes = self.matchmaker.pairs().count() as u64;
        vec![
            counter("offers", "offers", "Ends of connections that were offered.", self.offers),
            counter(
                "refusals",
                "offers",
                "Offered ends that were refused and stay on TCP.",
                self.refusals,
            ),
            counter("lanes", "lanes", "Connections on the fabric now.", lanes),
        ]
    }
}

/// Adds the byte counts of a lane, which are read by a system call.
fn counted((mut connection, memory): (ConnectionStatus, Arc<LeasedFile>)) -> ConnectionStatus {
    // The accepting end made the lane, so it is end 0 and sends in direction 0.
    [connection.bytes_from_server, connection.bytes_from_client] =
        ShmLane::stream_bytes(memory.as_fd()).unwrap_or_default();
    connection
}

/// The connection that a program showed, and the inode and the user of its socket.
fn connection(shown: Option<Shown>) -> Result<(Tuple, u64, u32), String> {
    match shown {
        Some(Shown::Connection { tuple, inode, owner }) => Ok((tuple, inode, owner)),
        Some(Shown::Unusable(reason)) => Err(reason),
        Some(_) => Err("the descriptor is not a connected TCP socket".to_owned()),
        None => Err("the message has no descriptor".to_owned()),
    }
}

fn offered(end: End, number: u32, from: Peer, shown: Vec<Shown>) -> Result<OfferedEnd, String> {
    let given = shown.len();
    let mut shown = shown.into_iter();
    let (tuple, inode, owner) = connection(shown.next())?;
    let due = if end == End::Accepted { 1..=2 } else { 1..=1 };
    if !due.contains(&given) {
        return Err(format!("{given} descriptors in place of {}", due.end()));
    }
    let lane = shown.next().map(lane).transpose()?.map(Arc::new);
    let tuple = tuple_at(end, tuple);
    let holder = Holder { pid: from.pid, number, inode };
    let socket = Socket { holder, is_own: owner == from.uid, guesses_for: None };
    Ok(OfferedEnd { end, tuple, socket, lane })
}

/// The tuple of this end, as the kernel described its socket.
const fn tuple_at(end: End, tuple: Tuple) -> Tuple {
    match end {
        End::Accepted => tuple,
        End::Connected => tuple.of_connecting_end(),
    }
}

fn too_many_guesses(user: u32) -> String {
    format!(
        "the other ends of {BURST} connections of user {user} did not come, which may be in other \
         network namespaces; further ones wait on TCP until some time has passed"
    )
}

const fn is_traced(tuple: Tuple) -> bool {
    matches!(tuple.route, Route::Traced(_))
}

/// Memory that may be a lane; the end that opens it checks the layout.
fn lane(shown: Shown) -> Result<LeasedFile, String> {
    match shown {
        Shown::Memory { length, .. } if length > LaneLayout::BYTES_MAX => {
            Err(format!("a lane of {length} bytes is larger than {} bytes", LaneLayout::BYTES_MAX))
        }
        Shown::Memory { file, .. } => Ok(file),
        Shown::Unusable(reason) => Err(reason),
        _ => Err("the descriptor of the lane is not sealed memory".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::networks::Origin;
    use weft_socket::tuple::Trace;

    fn at(port: u16) -> std::net::SocketAddr {
        std::net::SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn connections() -> Connections {
        let nothing: [(&str, &str); 0] = [];
        let (options, _) = Options::from_environment(nothing);
        Connections::new(&options, SharedWays::new(Instant::now()), SharedPaths::default())
    }

    /// An offer by a program of `user`; the socket is one of `owner`.
    fn offer_of(end: End, token: u64, user: u32, owner: u32) -> Event {
        let control =
            Control::Offer { token, end, descriptor: 3, between_hosts: OfferBetweenHosts::Never };
        let pid = if end == End::Connected { 1 } else { 2 };
        let process = ProcessId(pid.into());
        let from = Peer {
            process,
            pid,
            uid: user,
            is_numbered_here: true,
            may_command: false,
            origin: Origin::Home,
            site: None,
        };
        let tuple = Tuple::new(1, at(5000), at(80));
        let tuple = if end == End::Connected { tuple } else { tuple.mirrored() };
        let shown = vec![Shown::Connection { tuple, inode: 9, owner }];
        Event::Packet(Request { from, bytes: control.emit(), shown })
    }

    /// The same in two namespaces, as the kernel tells of the connection.
    fn offer_between_namespaces(end: End, sent: u32, received: u32) -> Event {
        let Event::Packet(mut request) = offer_of(end, 7, 5, 5) else { panic!("made above") };
        let Some(Shown::Connection { tuple, .. }) = request.shown.first_mut() else {
            panic!("made above")
        };
        let (far_local, far_remote) = (tuple.remote, tuple.local);
        let trace = Trace { owner: 1, sent, received, far_local, far_remote };
        tuple.route = Route::Traced(trace);
        Event::Packet(request)
    }

    fn offer(token: u64) -> Event {
        offer_of(End::Connected, token, 1000, 1000)
    }

    /// The partner that the accepting end is told.
    fn told(names_users: bool, offers: [Event; 2]) -> Option<Partner> {
        let mut connections = Connections { names_users, ..connections() };
        let mut out = Outbox::default();
        for event in offers {
            connections.handle_event(event, Instant::now(), &mut out);
            // The first socket is still there.
            if let Some(question) = out.question.take() {
                connections.handle_event(Event::Answer(question, true), Instant::now(), &mut out);
            }
        }
        let answers = out.packets.iter().map(|packet| Control::parse(&packet.bytes));
        let mut wanted = answers.filter_map(|answer| match answer.expect("our own message") {
            Control::Wanted { partner, .. } => Some(partner),
            _ => None,
        });
        wanted.next().expect("both ends were offered")
    }

    #[test]
    fn a_lane_may_be_kept_with_the_owner_of_the_other_ends_socket_alone() {
        let offers = |connected: (u32, u32), accepted: (u32, u32)| {
            [(End::Connected, connected), (End::Accepted, accepted)]
                .map(|(end, (user, owner))| offer_of(end, 7, user, owner))
        };
        let same = Some(Partner { process: 1, user: None });
        assert_eq!(told(true, offers((5, 5), (5, 5))), same);
        assert_eq!(told(false, offers((5, 5), (5, 5))), same);
        let other = Some(Partner { process: 1, user: Some(6) });
        assert_eq!(told(true, offers((6, 6), (5, 5))), other);
        assert_eq!(told(false, offers((6, 6), (5, 5))), None, "the users have no names");
        assert_eq!(told(true, offers((6, 5), (5, 5))), None, "it was given its socket");
        assert_eq!(told(true, offers((6, 6), (5, 6))), None, "the other one was given its socket");
        assert_eq!(told(true, offers((5, 0), (5, 5))), None, "it gave up the rights of root");
    }

    #[test]
    fn ends_in_two_namespaces_meet_by_the_numbers_of_the_kernel_and_keep_no_lane() {
        // At the end that connected, the kernel counts the SYN among the bytes acknowledged.
        let ends = |client_sent| {
            let client = offer_between_namespaces(End::Connected, client_sent, 2_000);
            [client, offer_between_namespaces(End::Accepted, 2_000, 1_000)]
        };
        assert_eq!(told(true, ends(999)), None, "the kernel says nothing of the other end's user");
        for wrong in [998, 1_000] {
            let mut connections = connections();
            let mut out = Outbox::default();
            for event in ends(wrong) {
                connections.handle_event(event, Instant::now(), &mut out);
            }
            assert_eq!(connections.matchmaker.waiting(), 2);
            assert!(out.happened.is_empty());
        }
    }

    #[test]
    fn numbers_cannot_be_guessed_by_many_offers() {
        let (mut connections, now) = (connections(), Instant::now());
        let tried = |connections: &mut Connections, sent| {
            let mut out = Outbox::default();
            let guess = offer_between_namespaces(End::Accepted, sent, 1_000);
            connections.handle_event(guess, now, &mut out);
            match Control::parse(&out.packets[0].bytes) {
                Ok(Control::Refused { reason, .. }) => Some(reason),
                _ => None,
            }
        };
        for sent in 0..BURST {
            assert_eq!(tried(&mut connections, sent), None);
        }
        let refused = tried(&mut connections, BURST).expect("it made too many");
        assert!(refused.contains("did not come"), "{refused}");
        // Another user's connection meets its other end, often, and the guesser's offer waits.
        for _ in 0..2 * BURST {
            let mut out = Outbox::default();
            for event in [(End::Connected, 999, 2_000), (End::Accepted, 2_000, 1_000)] {
                let (end, sent, received) = event;
                let Event::Packet(mut request) = offer_between_namespaces(end, sent, received)
                else {
                    panic!("made above")
                };
                request.from.uid = 6;
                connections.handle_event(Event::Packet(request), now, &mut out);
                if let Some(question) = out.question.take() {
                    connections.handle_event(Event::Answer(question, true), now, &mut out);
                }
            }
            let wanted = |packet: &Outgoing| {
                matches!(Control::parse(&packet.bytes), Ok(Control::Wanted { .. }))
            };
            assert!(out.packets.iter().any(wanted));
        }
    }

    #[test]
    fn a_connection_is_shown_to_its_own_user_and_to_root_alone() {
        let mut connections = Connections { names_users: true, ..connections() };
        let mut out = Outbox::default();
        let (_, file) = weft_memory::Segment::create("weft-test", 4096).expect("memory");
        for end in [End::Connected, End::Accepted] {
            let Event::Packet(mut request) = offer_of(end, 7, 5, 5) else { panic!("made above") };
            if end == End::Accepted {
                let quota = crate::quota::Quota { user_share: 50, own_user: 0 };
                let pool = crate::quota::Pool::new(8, quota);
                let file = file.try_clone().expect("a copy");
                let more = crate::evidence::examine(vec![file], 5, &pool, |_, tuple| tuple);
                request.shown.extend(more);
            }
            connections.handle_event(Event::Packet(request), Instant::now(), &mut out);
            if let Some(question) = out.question.take() {
                connections.handle_event(Event::Answer(question, true), Instant::now(), &mut out);
            }
        }
        let pair = connections.matchmaker.pairs().next().expect("both ends were offered");
        let (server, client) = (pair.tuple.local.to_string(), pair.tuple.remote.to_string());
        let mut ask = |user: u32, may_command: bool, client_pid: u32| {
            let Event::Packet(mut request) = offer_of(End::Connected, 9, user, user) else {
                panic!("made above")
            };
            (request.from.process, request.from.may_command) = (ProcessId(99), may_command);
            let (server, client) = (server.clone(), client.clone());
            request.bytes = Control::Tap { server, client, client_pid }.emit();
            request.shown.clear();
            let mut out = Outbox::default();
            connections.handle_event(Event::Packet(request), Instant::now(), &mut out);
            let packet = out.packets.pop().expect("an answer");
            (Control::parse(&packet.bytes) == Ok(Control::Tapped)).then(|| {
                let shown = packet.descriptors[0].as_fd();
                assert!(Segment::open(shown, 4096, true).is_err(), "it is for reading alone");
                Segment::open(shown, 4096, false).is_ok()
            })
        };
        assert_eq!((ask(5, false, 1), ask(0, true, 1)), (Some(true), Some(true)));
        assert_eq!((ask(6, false, 1), ask(5, false, 2)), (None, None));
    }

    #[test]
    fn repeated_offers_of_one_end_are_one_offer() {
        let mut connections = connections();
        for token in 0..100 {
            connections.handle_event(offer(token), Instant::now(), &mut Outbox::default());
        }
        assert_eq!((connections.matchmaker.waiting(), connections.sockets.len()), (1, 1));
    }
}
