//! The connections service: finds the two ends of a TCP connection, and hands out lanes.
//!
//! [`Matchmaker`] has the rules; this module gives it the examined descriptors. Programs wait for
//! each answer while they move a connection to the fabric, so the service is handled in place.
//! 006-daemon-services gives the cost of a thread.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use weft_options::Options;
use weft_socket::matchmaker::{Matchmaker, Offer, Offerer, Outcome, Pair, TableLimits, Tuple};
use weft_transport_shm::lane::{LaneLayout, ShmLane};
use weft_wire::control::{CONNECTION_KINDS, Control, End, InvalidMessage, split};

use super::{
    Counter, Event, Holder, Manifest, Outbox, Outgoing, Peer, Placement, ProcessId, Question,
    Report, Request, Service,
};
use crate::evidence::{Kept, Shown};
use crate::status::{ConnectionStatus, ListenerStatus};

/// The service.
pub struct Connections {
    matchmaker: Matchmaker<ProcessId, Arc<Kept>>,
    /// Programs that have asked and are not gone.
    peers: HashMap<ProcessId, Peer>,
    /// The sockets of waiting offers.
    sockets: HashMap<Offerer<ProcessId>, Holder>,
    offers: u64,
    refusals: u64,
}

/// An end of a connection that a program offers to serve.
struct OfferedEnd {
    end: End,
    tuple: Tuple,
    socket: Holder,
    /// The memory of a lane, offered by an accepting end.
    lane: Option<Arc<Kept>>,
}

impl Connections {
    /// A service without connections.
    pub fn new(options: &Options) -> Self {
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
        out: &mut Outbox,
    ) -> Result<(), InvalidMessage> {
        let from = request.from;
        self.peers.insert(from.process, from);
        match Control::parse(&request.bytes)? {
            Control::Offer { token, end, descriptor } => {
                if let Some(holder) = self.suspect(&request.shown)
                    && !is_asked
                {
                    out.ask(Question { holder, request });
                    return Ok(());
                }
                let offerer = Offerer { process: from.process, token };
                match offered(end, descriptor, from, request.shown) {
                    Ok(offered) => self.offer(offerer, from, offered, out),
                    Err(reason) => self.refuse(from, token, reason, out),
                }
            }
            Control::Join { token } => match connection(request.shown.into_iter().next()) {
                Ok((tuple, _)) => self.join(from, token, tuple, out),
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
            }
            _ => {
                let (kind, _) = split(&request.bytes)?;
                return Err(InvalidMessage::Kind { kind });
            }
        }
        Ok(())
    }

    fn refuse(&mut self, from: Peer, token: u64, reason: String, out: &mut Outbox) {
        self.refusals += 1;
        out.complain(from, reason.clone());
        out.reply(from.process, &Control::Refused { token, reason });
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
        if let Some(replaced) = self.matchmaker.waiting_for(tuple.mirrored()) {
            self.sockets.remove(&replaced);
        }
        self.sockets.insert(offerer, socket);
        match self.matchmaker.offer(offerer, from.uid, tuple, offer) {
            Outcome::Matched { connected, accepted, memory } => {
                out.event("matched", from, || format!("{tuple:?}"));
                self.sockets.remove(&connected);
                self.sockets.remove(&accepted);
                let process = self.number_of(accepted.process, connected.process);
                let bytes = Control::Matched { token: connected.token, process }.emit();
                let descriptors = vec![memory as _];
                out.send(Outgoing { to: connected.process, bytes, descriptors, wakeup: None });
            }
            Outcome::Wanted { connected, accepted } => {
                let process = self.number_of(connected.process, accepted.process);
                let wanted = Control::Wanted { token: accepted.token, process };
                out.reply(accepted.process, &wanted);
                if end == End::Connected {
                    let pending = Control::Pending { token: offerer.token, listening: true };
                    out.reply(offerer.process, &pending);
                }
            }
            // An end that offers a lane finds the answer in the lane.
            Outcome::Waiting { listening } => {
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

    fn join(&self, from: Peer, token: u64, tuple: Tuple, out: &mut Outbox) {
        match self.matchmaker.memory_of(tuple) {
            Some(memory) => out.send(Outgoing {
                to: from.process,
                bytes: Control::Matched { token, process: 0 }.emit(),
                descriptors: vec![memory as _],
                wakeup: None,
            }),
            None => {
                let reason = "no lane is known for this connection".to_owned();
                out.reply(from.process, &Control::Refused { token, reason });
            }
        }
    }

    /// The number of `process` for `other`, when both are of one user and number processes as the
    /// daemon does; else 0.
    fn number_of(&self, process: ProcessId, other: ProcessId) -> u32 {
        let (Some(one), Some(other)) = (self.peers.get(&process), self.peers.get(&other)) else {
            return 0;
        };
        let is_told = one.uid == other.uid && one.is_numbered_here && other.is_numbered_here;
        if is_told { one.pid } else { 0 }
    }

    /// The socket of the waiting offer that this packet would match. The offering program may have
    /// closed the socket without telling the daemon.
    fn suspect(&self, shown: &[Shown]) -> Option<Holder> {
        let Some(Shown::Connection { tuple, .. }) = shown.first() else { return None };
        let offerer = self.matchmaker.waiting_for(*tuple)?;
        self.sockets.get(&offerer).copied()
    }

    /// Removes an offer whose program no longer has the socket.
    fn forget(&mut self, question: &Question) {
        // Another offer may have taken its place since.
        if self.suspect(&question.request.shown) == Some(question.holder)
            && let Some(Shown::Connection { tuple, .. }) = question.request.shown.first()
            && let Some(offerer) = self.matchmaker.waiting_for(*tuple)
        {
            self.matchmaker.withdraw(offerer);
            self.sockets.remove(&offerer);
        }
    }

    fn gone(&mut self, process: ProcessId) {
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
            events: &[("matched", "Both ends of a connection were offered.")],
        }
    }

    fn handle_event(&mut self, event: Event, _now: Instant, out: &mut Outbox) {
        let (request, is_asked) = match event {
            Event::Packet(request) => (request, false),
            Event::Answer(question, holds) => {
                if !holds {
                    self.forget(&question);
                }
                (question.request, true)
            }
            Event::Gone(peer) => return self.gone(peer.process),
            // A process that it forked may go on with its connections.
            Event::Ended(_) => return,
        };
        let from = request.from;
        if let Err(error) = self.handle(request, is_asked, out) {
            out.reject(from, error);
        }
    }

    fn report(&self) -> Report {
        let mut listeners: Vec<_> = (self.matchmaker.listeners())
            .map(|(process, at)| (self.pid_of(process), at.to_string()))
            .map(|(pid, address)| ListenerStatus { pid, address })
            .collect();
        listeners.sort_by(|one, other| one.address.cmp(&other.address));
        let pair = |pair: &Pair<ProcessId, Arc<Kept>>| {
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
fn counted((mut connection, memory): (ConnectionStatus, Arc<Kept>)) -> ConnectionStatus {
    // The accepting end made the lane, so it is end 0 and sends in direction 0.
    [connection.bytes_from_server, connection.bytes_from_client] =
        ShmLane::stream_bytes(memory.as_fd()).unwrap_or_default();
    connection
}

/// The connection that a program showed, and the inode of its socket.
fn connection(shown: Option<Shown>) -> Result<(Tuple, u64), String> {
    match shown {
        Some(Shown::Connection { tuple, inode }) => Ok((tuple, inode)),
        Some(Shown::Unusable(reason)) => Err(reason),
        Some(_) => Err("the descriptor is not a connected TCP socket".to_owned()),
        None => Err("the message has no descriptor".to_owned()),
    }
}

fn offered(end: End, number: u32, from: Peer, shown: Vec<Shown>) -> Result<OfferedEnd, String> {
    let given = shown.len();
    let mut shown = shown.into_iter();
    let (tuple, inode) = connection(shown.next())?;
    let due = if end == End::Accepted { 1..=2 } else { 1..=1 };
    if !due.contains(&given) {
        return Err(format!("{given} descriptors in place of {}", due.end()));
    }
    let lane = shown.next().map(lane).transpose()?.map(Arc::new);
    Ok(OfferedEnd { end, tuple, socket: Holder { pid: from.pid, number, inode }, lane })
}

/// Memory that may be a lane; the end that opens it checks the layout.
fn lane(shown: Shown) -> Result<Kept, String> {
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

    fn offer(token: u64) -> Event {
        let control = Control::Offer { token, end: End::Connected, descriptor: 3 };
        let process = ProcessId(1);
        let from = Peer { process, pid: 1, uid: 1000, is_numbered_here: true, may_command: false };
        let at = |port| std::net::SocketAddr::from(([127, 0, 0, 1], port));
        let shown = vec![Shown::Connection { tuple: Tuple::new(1, at(5000), at(80)), inode: 9 }];
        Event::Packet(Request { from, bytes: control.emit(), shown })
    }

    #[test]
    fn repeated_offers_of_one_end_are_one_offer() {
        let nothing: [(&str, &str); 0] = [];
        let (options, _) = Options::from_environment(nothing);
        let mut connections = Connections::new(&options);
        for token in 0..100 {
            connections.handle_event(offer(token), Instant::now(), &mut Outbox::default());
        }
        assert_eq!((connections.matchmaker.waiting(), connections.sockets.len()), (1, 1));
    }
}
