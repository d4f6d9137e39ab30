//! Scenarios at the level of endpoints: every message is an operation of the fabric's own protocol
//! code.
//!
//! Each host has an endpoint with a region, which all others may use. A put or a short message has
//! arrived when the target's program hears of it; a get or an atomic when its completion is there.
//! An endpoint sends again by itself what the network lost; an operation that fails in the end is
//! told as lost.
//!
//! # Invariant
//! Every message that was accepted ends once: it arrives, it fails, or one of its hosts is down.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use weft_fabric::{
    Access, Atomic, Audience, Blocking, Endpoint, EndpointOptions, Event, LocalRange,
    MessageHeader, NodeId, Notify, OperationError, Peer, RemoteKey, SendError, Side, Source,
    Target, TrafficClass, Transport,
};
use weft_network::time::{NANOSECOND, Time};
use weft_network::{Counts, LostBecause, Message, NetworkError, Outcome};
use weft_routing::Route;
use weft_topology::{Graph, Port, Vertex};
use weft_transport_sim::{NetworkSettings, Settings, SimEndpoint, SimRegion, SimWorld};

use crate::engine::Sent;
use crate::run::RunError;
use crate::scenario::{Change, Operation, Scenario};

/// The user of all endpoints.
const USER: u32 = 1_000;
/// Control calls of the simulator end inside the call.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Events that an endpoint is asked for at once.
const EVENTS: usize = 64;
/// Bytes of the word that all add to.
const WORD_BYTES: u64 = 8;

/// The endpoints of all hosts.
pub(crate) struct Endpoints {
    world: SimWorld,
    /// The graph, with the links that are cut.
    graph: Graph,
    operation: Operation,
    class: TrafficClass,
    /// Bytes of each region.
    region_bytes: u64,
    nodes: Vec<Node>,
    place_of: HashMap<Vertex, usize>,
    /// Messages that have not ended, and when each was sent.
    under_way: BTreeMap<u64, (Message, Time)>,
    outcomes: VecDeque<Outcome>,
    /// The bytes of every message.
    bytes: Vec<u8>,
}

struct Node {
    number: u32,
    /// `None` while the host is down.
    open: Option<Open>,
    /// Messages for which the fabric had no room yet.
    waiting: VecDeque<Message>,
}

struct Open {
    endpoint: SimEndpoint,
    key: RemoteKey,
    /// Others put into it and get from it. It lives as long as the key is in use.
    region: SimRegion,
    /// The vertices of peers that were called, for reports of their end.
    peers: BTreeMap<Peer, Vertex>,
}

impl Endpoints {
    pub fn new(scenario: &Scenario) -> Result<Self, RunError> {
        let timing = &scenario.timing;
        let network = NetworkSettings {
            graph: scenario.graph.clone(),
            routing: scenario.routing,
            network: scenario.settings.clone(),
            resend_after_ns: timing.resend_after / NANOSECOND,
            reroute_after_ns: timing.reroute_after / NANOSECOND,
        };
        let patience = timing.resend_after.saturating_mul(u64::from(timing.resends_max) + 1);
        let world = SimWorld::new(Settings {
            network: Some(network),
            cut_down_after_ns: Some(patience / NANOSECOND),
            ..Settings::seeded(scenario.seed())
        });
        let (longest, class) = scenario.workload.longest();
        let region_bytes = longest.max(WORD_BYTES);
        let mut all = Self {
            world,
            graph: scenario.graph.clone(),
            operation: scenario.operation,
            class: if class == 0 { TrafficClass::Latency } else { TrafficClass::Bulk },
            region_bytes,
            nodes: Vec::new(),
            place_of: HashMap::new(),
            under_way: BTreeMap::new(),
            outcomes: VecDeque::new(),
            bytes: vec![0; usize::try_from(region_bytes).unwrap_or(usize::MAX)],
        };
        for (number, vertex) in (0..).zip(scenario.graph.hosts()) {
            let open = Some(all.open(number)?);
            all.place_of.insert(vertex, all.nodes.len());
            all.nodes.push(Node { number, open, waiting: VecDeque::new() });
        }
        Ok(all)
    }

    fn open(&self, number: u32) -> Result<Open, RunError> {
        let failed = |error: &dyn std::error::Error| RunError::Endpoint(error.to_string());
        let options = EndpointOptions { class: self.class, ..EndpointOptions::default() };
        let transport = self.world.transport(NodeId(number), USER);
        let mut endpoint = transport.open(&options).map_err(|error| failed(&error))?;
        let region = endpoint.register(self.region_bytes).map_err(|error| failed(&error))?;
        let whole = LocalRange::whole(&region);
        let key = endpoint.grant_within(whole, Audience::Partition, Access::all(), AT_ONCE);
        let key = key.map_err(|error| failed(&error))?;
        Ok(Open { endpoint, key, region, peers: BTreeMap::new() })
    }

    pub fn now(&self) -> Time {
        self.world.now().saturating_mul(NANOSECOND)
    }

    pub fn send(&mut self, message: Message) -> Sent {
        let from = self.place_of[&message.from];
        if self.nodes[from].open.is_none() {
            return Sent::Refused;
        }
        self.under_way.insert(message.tag, (message, self.now()));
        self.nodes[from].waiting.push_back(message);
        self.begin_waiting(from);
        Sent::OnItsWay
    }

    /// Begins the messages of a host that wait, as far as there is room.
    fn begin_waiting(&mut self, from: usize) {
        while let Some(message) = self.nodes[from].waiting.front().copied() {
            match self.begin(from, &message) {
                Err(OperationError::WouldBlock) => return,
                Err(_) => self.lose(message.tag),
                Ok(()) => {}
            }
            self.nodes[from].waiting.pop_front();
        }
    }

    fn begin(&mut self, from: usize, message: &Message) -> Result<(), OperationError> {
        let receiver = message.to.host().expect("a scenario sends between hosts");
        let to = self.nodes[self.place_of[&receiver]].open.as_ref();
        let (key, address) =
            to.map(|to| (to.key, to.endpoint.address())).ok_or(OperationError::PeerDown)?;
        let Some(open) = &mut self.nodes[from].open else { return Err(OperationError::PeerDown) };
        let endpoint = &mut open.endpoint;
        let peer =
            endpoint.connect_within(address, AT_ONCE).map_err(|_| OperationError::PeerDown)?;
        open.peers.insert(peer, receiver);
        let length = usize::try_from(message.bytes).unwrap_or(usize::MAX).min(self.bytes.len());
        let target = Target { key, offset: 0 };
        let operation = weft_fabric::Operation::new(message.tag);
        match self.operation {
            Operation::Put => {
                let notify = Notify::COMPLETER.immediate(message.tag);
                let source = Source::Bytes(&self.bytes[..length]);
                endpoint.put(peer, source, target, operation.notify(notify)).map(drop)
            }
            Operation::Message => {
                let word = message.tag.to_le_bytes();
                let rest = &self.bytes[..length.saturating_sub(word.len())];
                let sent = endpoint.send_short(peer, MessageHeader::tag(0), &[&word, rest]);
                sent.map_err(|error| match error {
                    SendError::WouldBlock => OperationError::WouldBlock,
                    _ => OperationError::PeerDown,
                })
            }
            Operation::Get => {
                let into = LocalRange::new(&open.region, 0, message.bytes);
                endpoint.get(peer, target, into, operation).map(drop)
            }
            Operation::Atomic => {
                endpoint.atomic(peer, target, Atomic::fetch_add(1), operation).map(drop)
            }
        }
    }

    fn lose(&mut self, tag: u64) {
        if let Some((message, sent_at)) = self.under_way.remove(&tag) {
            let (at, because) = (self.now(), LostBecause::NoWay);
            self.outcomes.push_back(Outcome::Lost { message, sent_at, at, because });
        }
    }

    fn deliver(&mut self, tag: u64) {
        // An operation whose answer was lost may have been told as lost before.
        if let Some((message, sent_at)) = self.under_way.remove(&tag) {
            let at = self.now();
            self.outcomes.push_back(Outcome::Delivered { message, sent_at, at, hops: 0 });
        }
    }

    /// Loses all messages of which this is true.
    fn lose_where(&mut self, is_lost: impl Fn(&Message) -> bool) {
        let lost = self.under_way.values().filter(|(message, _)| is_lost(message));
        let lost: Vec<u64> = lost.map(|(message, _)| message.tag).collect();
        lost.into_iter().for_each(|tag| self.lose(tag));
    }

    /// Lets time pass until a message ends, or until `until`.
    pub fn run(&mut self, until: Time) -> Option<Outcome> {
        let until_ns = until / NANOSECOND;
        loop {
            if let Some(outcome) = self.outcomes.pop_front() {
                return Some(outcome);
            }
            if !self.world.step_to(until_ns) {
                self.world.advance(until_ns.saturating_sub(self.world.now()));
                return None;
            }
            self.poll();
        }
    }

    /// Takes the events of all endpoints.
    fn poll(&mut self) {
        for place in 0..self.nodes.len() {
            let ends_here = matches!(self.operation, Operation::Get | Operation::Atomic);
            let Some(open) = &mut self.nodes[place].open else { continue };
            let (mut arrived, mut failed, mut down) = (Vec::new(), Vec::new(), Vec::new());
            let mut has_room = false;
            open.endpoint.poll(EVENTS, &mut |event| match event {
                Event::Notification(seen) if seen.side == Side::Completer => {
                    arrived.push(seen.immediate);
                }
                Event::Message(message) => {
                    let word = message.payload.first_chunk::<8>();
                    arrived.extend(word.map(|word| u64::from_le_bytes(*word)));
                }
                Event::Completion(completion) => {
                    // The end of an operation is room for the next.
                    has_room = true;
                    match completion.result {
                        Ok(_) if ends_here => arrived.push(completion.context),
                        Ok(_) => {}
                        Err(_) => failed.push(completion.context),
                    }
                }
                Event::Room { .. } => has_room = true,
                Event::PeerDown { peer, .. } => {
                    has_room = true;
                    down.push(peer);
                }
                _ => {}
            });
            let down: Vec<Vertex> =
                down.into_iter().filter_map(|peer| open.peers.remove(&peer)).collect();
            arrived.into_iter().for_each(|tag| self.deliver(tag));
            failed.into_iter().for_each(|tag| self.lose(tag));
            if self.operation == Operation::Message {
                down.into_iter().for_each(|to| self.lose_begun(place, to));
            }
            if has_room {
                self.begin_waiting(place);
            }
        }
    }

    /// Short messages have no completion: those to a peer that is down are lost, unless they wait.
    fn lose_begun(&mut self, from: usize, to: Vertex) {
        let waiting: Vec<u64> =
            self.nodes[from].waiting.iter().map(|message| message.tag).collect();
        let place_of = std::mem::take(&mut self.place_of);
        self.lose_where(|message| {
            place_of[&message.from] == from
                && message.to.host() == Some(to)
                && !waiting.contains(&message.tag)
        });
        self.place_of = place_of;
    }

    /// Changes the network, or a host. True if the links that are up have changed.
    pub fn change(&mut self, change: Change) -> Result<bool, RunError> {
        let place = |vertex| self.place_of.get(&vertex).copied();
        match change {
            Change::Cut((vertex, port)) => {
                self.graph.set_cut(vertex, port, true);
                return Ok(self.world.cut_link(vertex, port));
            }
            Change::Heal((vertex, port)) => {
                self.graph.set_cut(vertex, port, false);
                return Ok(self.world.heal_link(vertex, port));
            }
            Change::Model((vertex, port), model) => {
                self.world.set_model(vertex, port, model)?;
            }
            Change::Crash(vertex) => {
                if let Some(place) = place(vertex) {
                    self.crash(place, vertex);
                }
                return Ok(self.world.crash_router(vertex));
            }
            Change::Restart(vertex) => {
                if let Some(place) = place(vertex)
                    && self.nodes[place].open.is_none()
                {
                    self.nodes[place].open = Some(self.open(self.nodes[place].number)?);
                }
                return Ok(self.world.restart_router(vertex));
            }
            Change::Starve(vertex) | Change::Relieve(vertex) => {
                let open = place(vertex).and_then(|place| self.nodes[place].open.as_ref());
                if let Some(address) = open.map(|open| open.endpoint.address()) {
                    if matches!(change, Change::Starve(_)) {
                        self.world.starve(address);
                    } else {
                        self.world.relieve(address);
                        // Those that were refused are told of room at once.
                        self.poll();
                    }
                }
            }
            Change::CrashManager | Change::Clock(..) => {}
        }
        Ok(false)
    }

    /// The program of a host dies, with all that it sent.
    fn crash(&mut self, place: usize, vertex: Vertex) {
        if let Some(open) = self.nodes[place].open.take() {
            self.world.kill(open.endpoint.address());
        }
        self.nodes[place].waiting.clear();
        self.lose_where(|message| message.from == vertex);
    }

    /// The traffic of the link out of a port.
    pub fn counts(&self, vertex: Vertex, port: Port) -> Counts {
        self.world.link_counts(vertex, port).unwrap_or_default()
    }

    /// Has packets take `route` from now on.
    pub fn set_route(&self, route: Box<dyn Route + Send>) -> Result<(), NetworkError> {
        self.world.set_route(route).map(drop)
    }

    /// The graph without links that are cut or lead to one of these nodes.
    pub fn reachable(&self, stopped: &[Vertex]) -> Graph {
        let mut graph = self.graph.clone();
        stopped.iter().for_each(|vertex| graph.set_isolated(*vertex, true));
        graph
    }
}
