//! Scenarios at the level of endpoints: every message is a put of the fabric's own protocol code.
//!
//! Each host has an endpoint with a region, into which all others put. The notification at the
//! target tells that a message arrived. An endpoint sends again by itself what the network lost; a
//! put that fails in the end is told as lost.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use weft_fabric::{
    Access, Audience, Blocking, Endpoint, EndpointOptions, Event, LocalRange, NodeId, Notify,
    Operation, OperationError, RemoteKey, Side, Source, Target, TrafficClass, Transport,
};
use weft_network::time::{NANOSECOND, Time};
use weft_network::{LostBecause, Message, Outcome};
use weft_topology::{Port, Vertex};
use weft_transport_sim::{NetworkSettings, Settings, SimEndpoint, SimRegion, SimWorld};

use crate::run::RunError;
use crate::scenario::Scenario;

/// The user of all endpoints.
const USER: u32 = 1_000;
/// Control calls of the simulator end inside the call.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Events that an endpoint is asked for at once.
const EVENTS: usize = 64;

/// The endpoints of all hosts.
pub(crate) struct Endpoints {
    world: SimWorld,
    nodes: Vec<Node>,
    place_of: HashMap<Vertex, usize>,
    /// Messages that have not ended, and when each was sent.
    under_way: BTreeMap<u64, (Message, Time)>,
    outcomes: VecDeque<Outcome>,
    /// The bytes of every message.
    bytes: Vec<u8>,
}

struct Node {
    endpoint: SimEndpoint,
    key: RemoteKey,
    /// It lives as long as the key is in use.
    _region: SimRegion,
    /// Messages for which the fabric had no room yet.
    waiting: VecDeque<Message>,
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
        let longest = longest.max(1);
        let class = if class == 0 { TrafficClass::Latency } else { TrafficClass::Bulk };
        let (mut nodes, mut place_of) = (Vec::new(), HashMap::new());
        for (number, vertex) in (0..).zip(scenario.graph.hosts()) {
            let failed = |error: &dyn std::error::Error| RunError::Endpoint(error.to_string());
            let options = EndpointOptions { class, ..EndpointOptions::default() };
            let transport = world.transport(NodeId(number), USER);
            let mut endpoint = transport.open(&options).map_err(|error| failed(&error))?;
            let region = endpoint.register(longest).map_err(|error| failed(&error))?;
            let whole = LocalRange { region: &region, offset: 0, length: longest };
            let key = endpoint.grant_within(whole, Audience::Partition, Access::all(), AT_ONCE);
            let key = key.map_err(|error| failed(&error))?;
            place_of.insert(vertex, nodes.len());
            nodes.push(Node { endpoint, key, _region: region, waiting: VecDeque::new() });
        }
        let bytes = vec![0; usize::try_from(longest).unwrap_or(usize::MAX)];
        let (under_way, outcomes) = (BTreeMap::new(), VecDeque::new());
        Ok(Self { world, nodes, place_of, under_way, outcomes, bytes })
    }

    pub fn now(&self) -> Time {
        self.world.now().saturating_mul(NANOSECOND)
    }

    pub fn send(&mut self, message: Message) {
        self.under_way.insert(message.tag, (message, self.now()));
        let from = self.place_of[&message.from];
        self.nodes[from].waiting.push_back(message);
        self.put(from);
    }

    /// Puts the messages of a host that wait, as far as there is room.
    fn put(&mut self, from: usize) {
        while let Some(message) = self.nodes[from].waiting.front().copied() {
            let to = self.place_of[&message.to];
            let (key, address) = (self.nodes[to].key, self.nodes[to].endpoint.address());
            let endpoint = &mut self.nodes[from].endpoint;
            let length = usize::try_from(message.bytes).unwrap_or(usize::MAX);
            let source = Source::Bytes(&self.bytes[..length.min(self.bytes.len())]);
            let notify = Notify::COMPLETER.immediate(message.tag);
            let operation = Operation { notify, ..Operation::new(message.tag) };
            let issued = match endpoint.connect_within(address, AT_ONCE) {
                Ok(peer) => endpoint.put(peer, source, Target { key, offset: 0 }, operation),
                Err(_) => Err(OperationError::PeerDown),
            };
            match issued {
                Err(OperationError::WouldBlock) => return,
                Err(_) => self.lose(message.tag),
                Ok(_) => {}
            }
            self.nodes[from].waiting.pop_front();
        }
    }

    fn lose(&mut self, tag: u64) {
        if let Some((message, sent_at)) = self.under_way.remove(&tag) {
            let (at, because) = (self.now(), LostBecause::NoWay);
            self.outcomes.push_back(Outcome::Lost { message, sent_at, at, because });
        }
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
        let at = self.now();
        for from in 0..self.nodes.len() {
            let (mut arrived, mut failed, mut has_room) = (Vec::new(), Vec::new(), false);
            self.nodes[from].endpoint.poll(EVENTS, &mut |event| match event {
                Event::Notification(seen) if seen.side == Side::Completer => {
                    arrived.push(seen.immediate);
                }
                Event::Completion(completion) => {
                    // The end of an operation is room for the next.
                    has_room = true;
                    if completion.result.is_err() {
                        failed.push(completion.context);
                    }
                }
                Event::Room { .. } | Event::PeerDown { .. } => has_room = true,
                _ => {}
            });
            for tag in arrived {
                // A put whose answer was lost may have been told as lost before.
                if let Some((message, sent_at)) = self.under_way.remove(&tag) {
                    self.outcomes.push_back(Outcome::Delivered { message, sent_at, at, hops: 0 });
                }
            }
            failed.into_iter().for_each(|tag| self.lose(tag));
            if has_room {
                self.put(from);
            }
        }
    }

    pub fn cut(&self, (vertex, port): (Vertex, Port)) {
        self.world.cut_link(vertex, port);
    }

    pub fn heal(&self, (vertex, port): (Vertex, Port)) {
        self.world.heal_link(vertex, port);
    }
}
