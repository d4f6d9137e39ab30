//! Scenarios at the level of endpoints: every message goes by the fabric's own protocol code.
//!
//! Each host of a group has an endpoint, and on it the protocol of the group ([`Program`]). What a
//! message is, and when it has arrived, is said by the protocol. Endpoints send again by themselves
//! what the network lost; a message that fails in the end is told as lost.
//!
//! # Invariant
//! Every message that was accepted ends once: it arrives, it fails, or one of its hosts is down.

mod frames;
mod lanes;
mod letters;
mod operations;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use weft_fabric::{
    EndpointAddress, EndpointOptions, NodeId, OperationError, RemoteKey, TrafficClass, Transport,
};
use weft_network::time::{NANOSECOND, Time};
use weft_network::{Counts, LostBecause, Message, NetworkError, Outcome};
use weft_routing::Route;
use weft_topology::{Graph, Port, Vertex};
use weft_transport_sim::{NetworkSettings, Settings, SimEndpoint, SimWorld};

use self::frames::Frames;
use self::lanes::Lanes;
use self::letters::Letters;
use self::operations::Operations;
use crate::engine::Sent;
use crate::run::RunError;
use crate::scenario::{Change, Group, Operation, Scenario, group_of};

/// The user of the endpoints of the first group.
const USER: u32 = 1_000;
/// Control calls of the simulator end inside the call.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Events that an endpoint is asked for at once.
const EVENTS: usize = 64;
/// How long hosts may take to find each other before the run begins, in ns.
const READY_WITHIN_NS: u64 = 100_000_000;

/// A protocol at one host: an endpoint, and what it has sent.
trait Program {
    fn address(&mut self) -> EndpointAddress;

    /// The key to its memory, for those who send to it.
    fn key(&self) -> Option<RemoteKey> {
        None
    }

    /// Whether it may send. Until then nobody does.
    fn is_ready(&self, hosts: usize) -> bool {
        let _ = hosts;
        true
    }

    /// Begins a message.
    ///
    /// # Errors
    /// [`OperationError::WouldBlock`] without room, and any other one if it will never be sent.
    fn begin(&mut self, message: &Message, to: Contact, now_ns: u64) -> Result<(), OperationError>;

    /// Takes what has happened.
    fn poll(&mut self, now_ns: u64) -> Ends;
}

/// A receiver, as its senders have to know it.
#[derive(Clone, Copy)]
struct Contact {
    address: EndpointAddress,
    key: Option<RemoteKey>,
}

/// The reports that a program got.
#[derive(Default)]
struct Ends {
    /// Messages that have arrived: here, or there where the sender is told.
    arrived: Vec<u64>,
    failed: Vec<u64>,
    /// Receivers that are down. Messages to them that were begun are lost, unless each is told.
    down: Vec<Vertex>,
    /// A message that was refused may be begun now.
    has_room: bool,
}

/// The hosts of a group.
struct Members {
    operation: Operation,
    options: EndpointOptions,
    user: u32,
    /// Bytes of its longest message.
    longest: u64,
    nodes: Vec<Node>,
    place_of: HashMap<Vertex, usize>,
}

struct Node {
    /// The number of its host.
    number: u32,
    vertex: Vertex,
    /// `None` while the host is down.
    program: Option<Box<dyn Program>>,
    /// Messages for which the fabric had no room yet.
    waiting: VecDeque<Message>,
}

/// The endpoints of all hosts.
pub(crate) struct Endpoints {
    world: SimWorld,
    /// The time of the world when the run began.
    begun_ns: u64,
    /// The graph, with the links that are cut.
    graph: Graph,
    groups: Vec<Members>,
    /// Messages that have not ended, and when each was sent.
    under_way: BTreeMap<u64, (Message, Time)>,
    /// The times, in ns of the world, at which messages count as lost of whose loss nobody is told.
    given_up_at: VecDeque<(u64, u64)>,
    /// How long those may take.
    patience_ns: u64,
    outcomes: VecDeque<Outcome>,
}

impl Members {
    fn new(number: usize, group: &Group, graph: &Graph) -> Self {
        let (longest, class) = group.workload.longest();
        let class = if class == 0 { TrafficClass::Latency } else { TrafficClass::Bulk };
        let mut options = EndpointOptions { class, ..EndpointOptions::default() };
        let number = u16::try_from(number).expect("a scenario has few groups");
        if group.operation == Operation::Frame {
            options.vpid = frames::vpid(number);
        }
        let members: HashSet<Vertex> = group.members.iter().copied().collect();
        let hosts = (0..).zip(graph.hosts()).filter(|(_, vertex)| members.contains(vertex));
        let nodes: Vec<Node> = hosts
            .map(|(number, vertex)| Node {
                number,
                vertex,
                program: None,
                waiting: VecDeque::new(),
            })
            .collect();
        let place_of = nodes.iter().enumerate().map(|(place, node)| (node.vertex, place)).collect();
        let user = USER + u32::from(number);
        Self { operation: group.operation, options, user, longest, nodes, place_of }
    }

    fn open(&self, world: &SimWorld, place: usize) -> Result<Box<dyn Program>, RunError> {
        let failed = |error: String| RunError::Endpoint(error);
        let transport = world.transport(NodeId(self.nodes[place].number), self.user);
        let endpoint: SimEndpoint =
            transport.open(&self.options).map_err(|error| failed(error.to_string()))?;
        Ok(match self.operation {
            Operation::LongMessage => Box::new(Letters::new(endpoint, self.longest)),
            Operation::Lane => Box::new(Lanes::new(endpoint, self.nodes.len())),
            Operation::Frame => {
                Box::new(Frames::new(endpoint, self.nodes[place].number, world.now()))
            }
            Operation::Put | Operation::Message | Operation::Get | Operation::Atomic => {
                let made = Operations::new(endpoint, self.operation, self.longest);
                Box::new(made.map_err(failed)?)
            }
        })
    }

    /// The contact of a host, if it is up.
    fn contact(&mut self, vertex: Vertex) -> Option<Contact> {
        let place = *self.place_of.get(&vertex)?;
        let program = self.nodes[place].program.as_mut()?;
        Some(Contact { address: program.address(), key: program.key() })
    }

    /// Begins a message, if its hosts are up.
    fn begin(&mut self, from: usize, message: &Message, now: u64) -> Result<(), OperationError> {
        let receiver = message.to.host().expect("a scenario sends between hosts");
        let to = self.contact(receiver).ok_or(OperationError::PeerDown)?;
        let program = self.nodes[from].program.as_mut().ok_or(OperationError::PeerDown)?;
        program.begin(message, to, now)
    }

    fn is_ready(&self) -> bool {
        let hosts = self.nodes.len();
        let mut programs = self.nodes.iter().filter_map(|node| node.program.as_ref());
        programs.all(|program| program.is_ready(hosts))
    }
}

impl Endpoints {
    /// The endpoints of a scenario, whose hosts have found each other.
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
        let patience_ns = patience / NANOSECOND;
        let world = SimWorld::new(Settings {
            network: Some(network),
            cut_down_after_ns: Some(patience_ns),
            ..Settings::seeded(scenario.seed())
        });
        let graph = scenario.graph.clone();
        let groups = scenario.groups.iter().enumerate();
        let mut all = Self {
            groups: groups.map(|(number, group)| Members::new(number, group, &graph)).collect(),
            world,
            begun_ns: 0,
            graph,
            under_way: BTreeMap::new(),
            given_up_at: VecDeque::new(),
            patience_ns,
            outcomes: VecDeque::new(),
        };
        for group in &mut all.groups {
            for place in 0..group.nodes.len() {
                group.nodes[place].program = Some(group.open(&all.world, place)?);
            }
        }
        all.get_ready()?;
        Ok(all)
    }

    /// Lets time pass until all hosts of each group have found each other.
    fn get_ready(&mut self) -> Result<(), RunError> {
        while !self.groups.iter().all(Members::is_ready) {
            self.poll();
            if self.world.now() > READY_WITHIN_NS || !self.world.step_to(READY_WITHIN_NS) {
                let reason = "its hosts do not find each other; see that the graph is connected";
                return Err(RunError::Endpoint(reason.to_owned()));
            }
        }
        self.begun_ns = self.world.now();
        Ok(())
    }

    pub fn now(&self) -> Time {
        (self.world.now() - self.begun_ns).saturating_mul(NANOSECOND)
    }

    pub fn send(&mut self, message: Message) -> Sent {
        let group = group_of(message.tag);
        let from = self.groups[group].place_of[&message.from];
        if self.groups[group].nodes[from].program.is_none() {
            return Sent::Refused;
        }
        self.under_way.insert(message.tag, (message, self.now()));
        self.groups[group].nodes[from].waiting.push_back(message);
        self.begin_waiting(group, from);
        Sent::OnItsWay
    }

    /// Begins the messages of a host that wait, as far as there is room.
    fn begin_waiting(&mut self, group: usize, from: usize) {
        let now = self.world.now();
        while let Some(message) = self.groups[group].nodes[from].waiting.front().copied() {
            match self.groups[group].begin(from, &message, now) {
                Err(OperationError::WouldBlock) => return,
                Err(_) => self.lose(message.tag),
                Ok(()) if self.groups[group].operation == Operation::Frame => {
                    self.given_up_at.push_back((now + self.patience_ns, message.tag));
                }
                Ok(()) => {}
            }
            self.groups[group].nodes[from].waiting.pop_front();
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
        let until_ns = (until / NANOSECOND).saturating_add(self.begun_ns);
        loop {
            if let Some(outcome) = self.outcomes.pop_front() {
                return Some(outcome);
            }
            // Of messages that have ended it is forgotten.
            while let Some((_, tag)) = self.given_up_at.front().copied()
                && !self.under_way.contains_key(&tag)
            {
                self.given_up_at.pop_front();
            }
            let given_up = self.given_up_at.front().copied().filter(|(at, _)| *at <= until_ns);
            let at = given_up.map_or(until_ns, |(at, _)| at);
            if self.world.step_to(at) {
                self.poll();
                continue;
            }
            self.world.advance(at.saturating_sub(self.world.now()));
            let (_, tag) = given_up?;
            self.lose(tag);
        }
    }

    /// Takes the events of all programs.
    fn poll(&mut self) {
        let now = self.world.now();
        for group in 0..self.groups.len() {
            for place in 0..self.groups[group].nodes.len() {
                let Some(program) = &mut self.groups[group].nodes[place].program else { continue };
                let ends = program.poll(now);
                ends.arrived.into_iter().for_each(|tag| self.deliver(tag));
                ends.failed.into_iter().for_each(|tag| self.lose(tag));
                ends.down.into_iter().for_each(|to| self.lose_begun(group, place, to));
                if ends.has_room {
                    self.begin_waiting(group, place);
                }
            }
        }
    }

    /// Messages to a host that is down are lost, but for those that were not begun.
    fn lose_begun(&mut self, group: usize, from: usize, to: Vertex) {
        let node = &self.groups[group].nodes[from];
        let waiting: HashSet<u64> = node.waiting.iter().map(|message| message.tag).collect();
        let from = node.vertex;
        self.lose_where(|message| {
            group_of(message.tag) == group
                && message.from == from
                && message.to.host() == Some(to)
                && !waiting.contains(&message.tag)
        });
    }

    /// Changes the network, or a host. True if the links that are up have changed.
    pub fn change(&mut self, change: Change) -> Result<bool, RunError> {
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
                self.crash(vertex);
                return Ok(self.world.crash_router(vertex));
            }
            Change::Restart(vertex) => {
                for group in &mut self.groups {
                    if let Some(place) = group.place_of.get(&vertex).copied()
                        && group.nodes[place].program.is_none()
                    {
                        group.nodes[place].program = Some(group.open(&self.world, place)?);
                    }
                }
                return Ok(self.world.restart_router(vertex));
            }
            Change::Starve(vertex) => {
                for address in self.addresses(vertex) {
                    self.world.starve(address);
                }
            }
            Change::Relieve(vertex) => {
                for address in self.addresses(vertex) {
                    self.world.relieve(address);
                }
                // Those that were refused are told of room at once, or try again.
                self.poll();
                for group in 0..self.groups.len() {
                    if let Some(place) = self.groups[group].place_of.get(&vertex).copied() {
                        self.begin_waiting(group, place);
                    }
                }
            }
            Change::CrashManager | Change::Clock(..) => {}
        }
        Ok(false)
    }

    /// The endpoints of a host that is up.
    fn addresses(&mut self, vertex: Vertex) -> Vec<EndpointAddress> {
        let contacts = self.groups.iter_mut().filter_map(|group| group.contact(vertex));
        contacts.map(|contact| contact.address).collect()
    }

    /// The programs of a host die, with all that they sent.
    fn crash(&mut self, vertex: Vertex) {
        for address in self.addresses(vertex) {
            self.world.kill(address);
        }
        for group in &mut self.groups {
            if let Some(place) = group.place_of.get(&vertex).copied() {
                group.nodes[place].program = None;
                group.nodes[place].waiting.clear();
            }
        }
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
