//! The endpoints service: the broker of the node's endpoints.
//!
//! [`State`] has the rules; this module passes requests to it and sends its messages. When
//! a program ends, the peers of its endpoints are notified at once.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_broker::counts::Counts;
use weft_broker::{Limits, Listing, NodeMessage, Offer, State};
use weft_fabric::{NodeId, Register, Timed};
use weft_options::{Options, share};
use weft_wire::control::{Control, InvalidMessage, join, split};
use weft_wire::endpoint_control::{EndpointControl, KINDS, flags};

use super::{
    Counter, Event, Manifest, NodeEvent, Outbox, Outgoing, Peer, Placement, ProcessId, Report,
    Request, Service,
};
use crate::evidence::Shown;
use crate::quota::Lease;
use crate::status::{EndpointStatus, OfferStatus, TimesStatus};

/// How long endpoints from before a restart have to announce themselves.
const ANNOUNCE_WITHIN: Duration = Duration::from_secs(1);
/// How long after the start new endpoints wait, so that they do not take the VPIDs of endpoints
/// that come back.
const HOLD_FOR: Duration = Duration::from_millis(250);
/// Most held packets, and the percentage that one user may have of what the other users leave.
const HELD_MAX: usize = 1024;
const HELD_SHARE: u8 = 50;

/// Endpoints that closed and whose registers are kept until they are added to the sums.
const CLOSED_MAX: usize = 1024;

/// The event of a ticket that was not good.
const TICKET_REFUSED: &str = "tickets_refused";

/// The service.
pub struct Endpoints {
    state: State,
    /// Programs that have asked and are not gone.
    peers: HashMap<ProcessId, Peer>,
    /// The lease for the descriptors that the state keeps for each user.
    leases: HashMap<u32, Lease>,
    /// When endpoints that only their peers announced are given up. Happens once.
    settles_at: Option<Instant>,
    /// Until when new endpoints wait. `held` has their packets.
    holds_until: Option<Instant>,
    held: Vec<Request>,
    requests: u64,
    /// The own number, which waits until the former one is not used.
    number: Option<NodeId>,
    /// The other nodes that are joined.
    up: BTreeSet<NodeId>,
    /// When the state's clock began.
    began: Instant,
    /// Endpoints that closed, as [`Status::closed_endpoints`] has them.
    closed: VecDeque<(u64, EndpointStatus)>,
}

impl Endpoints {
    /// A service of node `node` without endpoints.
    pub fn new(options: &Options, node: NodeId, now: Instant) -> Self {
        let limits = Limits {
            endpoints_max: u16::try_from(options.daemon_endpoints_max()).unwrap_or(u16::MAX),
            user_share: options.daemon_user_share(),
            user_unbounded: rustix::process::geteuid().as_raw(),
            ..Limits::default()
        };
        let [first, ..] = std::process::id().to_le_bytes();
        Self {
            state: State::new(node, limits, weft_transport_shm::open_bell)
                .starting_at(u16::from(first))
                .with_policy(options.daemon_services())
                .with_silence(options.fabric_silence_ms())
                .with_stops(crate::stopped::is_stopped),
            peers: HashMap::new(),
            leases: HashMap::new(),
            settles_at: Some(now + ANNOUNCE_WITHIN),
            holds_until: Some(now + HOLD_FOR),
            held: Vec::new(),
            requests: 0,
            number: None,
            up: BTreeSet::new(),
            began: now,
            closed: VecDeque::new(),
        }
    }

    /// The endpoints of a process, with their registers.
    fn endpoints_of(&self, peer: &Peer) -> impl Iterator<Item = Open> {
        let pid = peer.pid;
        let open = self.state.endpoints_of(weft_broker::ProcessId(peer.process.0));
        open.map(move |Listing { vpid, peers, registers, port_counts }| {
            let status = EndpointStatus { vpid, pid, peers, ..EndpointStatus::default() };
            Open { status, registers, port_counts }
        })
    }

    fn handle(
        &mut self,
        request: Request,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), InvalidMessage> {
        let (kind, body) = split(&request.bytes)?;
        if self.holds_until.is_some()
            && self.may_hold(request.from.uid)
            && let Ok(EndpointControl::Open(open)) = EndpointControl::parse(kind, body)
            && open.flags & flags::AGAIN == 0
        {
            self.held.push(request);
            return Ok(());
        }
        let from = request.from;
        let (mut files, mut leases) = (Vec::new(), Vec::new());
        for shown in request.shown {
            let kept = match shown {
                Shown::Memory { file, .. } | Shown::Wakeup(file) => file,
                other => {
                    let reason = match other {
                        Shown::Unusable(reason) => reason,
                        _ => "a descriptor is neither sealed memory nor a wakeup".to_owned(),
                    };
                    out.complain(from, reason.clone());
                    out.reply(from.process, &Control::Refused { token: 0, reason });
                    return Ok(());
                }
            };
            let (file, lease) = kept.into_parts();
            files.push(file);
            leases.push(lease);
        }
        self.requests += 1;
        self.peers.insert(from.process, from);
        let credentials = weft_broker::Credentials { pid: from.pid, uid: from.uid };
        let id = weft_broker::ProcessId(from.process.0);
        if let Some(site) = from.site {
            self.state.is_at(id, site);
        }
        if let Ok(EndpointControl::Close(close)) = EndpointControl::parse(kind, body) {
            self.keep_counts(&from, |vpid| vpid == close.vpid);
        }
        let mut messages = Vec::new();
        let refused = self.state.tickets_refused();
        let now = now.saturating_duration_since(self.began);
        self.state.handle(id, credentials, kind, body, files, now, &mut messages)?;
        if self.state.tickets_refused() != refused {
            out.event(TICKET_REFUSED, from, String::new);
        }
        self.count(from.uid, leases.pop());
        self.pack(messages, out);
        Ok(())
    }

    /// Takes a number over that came late, as soon as no endpoint has an address with the former
    /// one.
    fn take_number(&mut self, out: &mut Outbox) {
        if let Some(node) = self.number
            && self.state.renumber(node)
        {
            self.number = None;
            self.up.iter().for_each(|node| out.give_up_node(*node));
        }
    }

    /// Sends what the state says.
    fn pack(&mut self, messages: Vec<weft_broker::Outgoing>, out: &mut Outbox) {
        for one in messages {
            out.send(Outgoing {
                to: ProcessId(one.to.0),
                bytes: join(one.message.kind(), &one.message.emit()),
                descriptors: one.files.into_iter().map(|file| file as _).collect(),
                wakeup: one.wakeup,
            });
        }
        for (node, message) in self.state.take_node_messages() {
            out.send_to_node(node, message.emit());
        }
        self.take_number(out);
    }

    /// Updates the lease of a user to the descriptors that the state keeps. `lease` is a lease of
    /// that user, in case there is none yet.
    fn count(&mut self, user: u32, lease: Option<Lease>) {
        let kept = self.state.descriptors(user);
        if let Some(lease) = lease {
            self.leases.entry(user).or_insert(lease);
        }
        match self.leases.get_mut(&user) {
            Some(lease) if kept > 0 => lease.resize(kept),
            _ => drop(self.leases.remove(&user)),
        }
    }

    /// Whether one more packet of `user` may be held.
    fn may_hold(&self, user: u32) -> bool {
        let own = self.held.iter().filter(|request| request.from.uid == user).count();
        own < share::allowance(HELD_MAX, self.held.len() - own, HELD_SHARE)
    }

    /// Keeps what endpoints of a process counted that are about to close.
    fn keep_counts(&mut self, peer: &Peer, closes: impl Fn(u16) -> bool) {
        let open = self.endpoints_of(peer).filter(|open| closes(open.status.vpid));
        let last: Vec<_> = open.map(Open::read).collect();
        for endpoint in last {
            let number = self.closed.back().map_or(1, |(number, _)| number + 1);
            self.closed.push_back((number, endpoint));
            if self.closed.len() > CLOSED_MAX {
                self.closed.pop_front();
            }
        }
    }

    fn gone(&mut self, peer: Peer, out: &mut Outbox) {
        self.held.retain(|request| request.from.process != peer.process);
        self.peers.remove(&peer.process);
        self.keep_counts(&peer, |_| true);
        let mut messages = Vec::new();
        self.state.process_gone(weft_broker::ProcessId(peer.process.0), &mut messages);
        self.count(peer.uid, None);
        self.pack(messages, out);
    }
}

/// An open endpoint, and the files in which it counts: one in shared memory, and its port.
struct Open {
    status: EndpointStatus,
    registers: Option<Arc<OwnedFd>>,
    port_counts: Option<Arc<OwnedFd>>,
}

impl Open {
    /// Reads the counters, once.
    fn read(mut self) -> EndpointStatus {
        let near = self.registers.and_then(|file| weft_transport_shm::read_registers(file.as_fd()));
        let far = self.port_counts.and_then(|file| Counts::read(file.as_fd()));
        let both = [near, far].into_iter().flatten().reduce(|mut sum, more| {
            sum.add(&more);
            sum
        });
        let Some(seen) = both else { return self.status };
        for (register, value) in Register::ALL.iter().zip(seen.values) {
            if value > 0 {
                self.status.registers.insert(register.name().to_owned(), value);
            }
        }
        for (what, times) in Timed::ALL.iter().zip(&seen.times) {
            if times.count() > 0 {
                self.status.times.insert(what.name().to_owned(), TimesStatus::of(times));
            }
        }
        self.status
    }
}

fn offer_status(offer: Offer<'_>) -> OfferStatus {
    let Offer { name, address, user, .. } = offer;
    OfferStatus { name: name.to_owned(), node: address.node.0, vpid: address.vpid.0, user }
}

impl Service for Endpoints {
    fn manifest(&self) -> Manifest {
        Manifest {
            name: "endpoints",
            kinds: &[KINDS],
            placement: Placement::Thread,
            options: &[
                "daemon.endpoints_max",
                "daemon.services",
                "daemon.user_share",
                "fabric.silence_ms",
            ],
            events: &[(TICKET_REFUSED, "A program asked to open an endpoint by a bad ticket.")],
        }
    }

    fn handle_event(&mut self, event: Event, now: Instant, out: &mut Outbox) {
        match event {
            Event::Packet(request) => {
                let from = request.from;
                if let Err(error) = self.handle(request, now, out) {
                    out.reject(from, error);
                }
            }
            // A process that it forked may go on with its channel, but endpoints belong to the
            // process that opened them.
            Event::Ended(peer) | Event::Gone(peer) => self.gone(peer, out),
            Event::Answer(..) => {}
        }
    }

    fn handle_node(&mut self, event: NodeEvent, now: Instant, out: &mut Outbox) {
        let mut messages = Vec::new();
        match event {
            NodeEvent::Numbered(node) => self.number = Some(node),
            NodeEvent::Up(node) => {
                self.up.insert(node);
                if self.number.is_none() {
                    self.state.node_up(node);
                }
            }
            NodeEvent::Down(node) => {
                self.up.remove(&node);
                self.state.node_down(node, &mut messages);
            }
            NodeEvent::Cuts(lab) => {
                let now = now.saturating_duration_since(self.began);
                self.state.set_cuts(lab.cuts().clone(), now, &mut messages);
            }
            // It is said again when this node has its number.
            NodeEvent::Message(..) if self.number.is_some() => {}
            NodeEvent::Message(node, bytes) => match NodeMessage::parse(&bytes) {
                Ok(message) => {
                    let now = now.saturating_duration_since(self.began);
                    self.state.node_says(node, message, now, &mut messages);
                }
                Err(error) => tracing::warn!(node = node.0, %error, "a node is not understood"),
            },
        }
        self.pack(messages, out);
    }

    /// Opens the held endpoints, and gives up endpoints that did not announce themselves after a
    /// restart.
    fn handle_timeout(&mut self, now: Instant, out: &mut Outbox) {
        if self.holds_until.is_some_and(|at| at <= now) {
            self.holds_until = None;
            for request in std::mem::take(&mut self.held) {
                // The request was parsed before it was held.
                let _ = self.handle(request, now, out);
            }
        }
        if self.settles_at.is_some_and(|at| at <= now) {
            self.settles_at = None;
            let mut messages = Vec::new();
            self.state.settle(&mut messages);
            self.pack(messages, out);
        }
        let mut messages = Vec::new();
        self.state.handle_timeout(now.saturating_duration_since(self.began), &mut messages);
        self.pack(messages, out);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let state = self.state.poll_timeout().map(|at| self.began + at);
        [self.holds_until, self.settles_at, state].into_iter().flatten().min()
    }

    fn report(&self) -> Report {
        let mut endpoints: Vec<_> =
            self.peers.values().flat_map(|peer| self.endpoints_of(peer)).collect();
        endpoints.sort_by_key(|open| open.status.vpid);
        let closed: Vec<_> = self.closed.iter().cloned().collect();
        let mut offers: Vec<_> = self.state.offers().map(offer_status).collect();
        offers.sort_by(|one, other| (&one.name, one.node).cmp(&(&other.name, other.node)));
        Box::new(move |status| {
            status.endpoints = endpoints.into_iter().map(Open::read).collect();
            (status.offers, status.closed_endpoints) = (offers, closed);
        })
    }

    fn counters(&self) -> Vec<Counter> {
        let open = self.state.endpoints() as u64;
        let help = "Requests of programs about endpoints.";
        vec![
            Counter { name: "requests", unit: "packets", help, value: self.requests },
            Counter {
                name: "invitations",
                unit: "tickets",
                help: "Tickets that wait for their use.",
                value: self.state.invitations() as u64,
            },
            Counter { name: "open", unit: "endpoints", help: "Endpoints now.", value: open },
        ]
    }
}
