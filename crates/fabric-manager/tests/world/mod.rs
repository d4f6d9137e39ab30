//! A network of agents in virtual time, with managers on some of its nodes, packets that are lost,
//! and links and nodes that fail. The same seed gives the same run.

use std::collections::{BTreeMap, BTreeSet};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_fabric_manager::message::{Body, Order, Packet};
use weft_fabric_manager::{Agent, Expected, Manager, Output, Settings, Standing};
use weft_routing::Algorithm;
use weft_routing::check::parts;
use weft_routing::dependency::Dependencies;
use weft_topology::{Graph, Kind, Port, Shape, Vertex};

/// Milliseconds of a lease, which its holder renews every step.
const LEASE_MS: u64 = 500;

pub struct World {
    pub graph: Graph,
    pub agents: Vec<Agent>,
    /// The managers that live, by the vertex of their node.
    pub managers: BTreeMap<Vertex, Manager>,
    /// The term and the holder of the lease.
    pub lease: (u64, Option<Vertex>),
    pub now: u64,
    pub settings: Settings,
    /// Vertices that have crashed.
    pub dead: BTreeSet<Vertex>,
    random: ChaCha8Rng,
    /// Packets of agents under way: when, where, and in which order they were sent.
    packets: BTreeMap<(u64, u64), (Vertex, Port, Vec<u8>)>,
    sent: u64,
    /// Packets lost, of a thousand.
    loss: u32,
}

pub fn graph(text: &str) -> Graph {
    text.parse::<Shape>().and_then(|shape| shape.graph(None)).expect("a graph")
}

pub fn guid(vertex: Vertex) -> u64 {
    // No order of the vertices shows in the numbers with which they were made.
    u64::from(vertex).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
}

/// The expected network of a graph whose nodes have the numbers of [`guid`].
pub fn expected(graph: &Graph) -> Expected {
    Expected { graph: graph.clone(), guids: (0..graph.vertices()).map(guid).collect() }
}

pub fn settings(expected: Option<Expected>) -> Settings {
    Settings { algorithm: Algorithm::Auto, expected, sweep_ms: 2_000, settle_ms: 200 }
}

impl World {
    pub fn new(graph: Graph, settings: Settings, loss: u32, seed: u64) -> Self {
        let mut own = Self {
            agents: Vec::new(),
            managers: BTreeMap::new(),
            lease: (0, None),
            now: 0,
            settings,
            dead: BTreeSet::new(),
            random: ChaCha8Rng::seed_from_u64(seed),
            packets: BTreeMap::new(),
            sent: 0,
            loss,
            graph,
        };
        for vertex in 0..own.graph.vertices() {
            own.agents.push(own.fresh(vertex));
        }
        own
    }

    pub fn draw(&mut self, end: u32) -> u32 {
        self.random.random_range(0..end)
    }

    /// The agent of a node that has just started.
    fn fresh(&self, vertex: Vertex) -> Agent {
        let is_switch = self.graph.kind(vertex) == Some(Kind::Switch);
        let mut agent = Agent::new(guid(vertex), is_switch, self.graph.ports(vertex));
        for (port, _) in self.graph.neighbours(vertex) {
            agent.link(port, true);
        }
        agent
    }

    /// Makes a manager on a node the holder of the lease. The one before does not hear of it.
    pub fn elect(&mut self, vertex: Vertex) {
        self.managers.entry(vertex).or_insert_with(|| Manager::new(self.settings.clone()));
        self.lease = (self.lease.0 + 1, Some(vertex));
    }

    /// Cuts the link at a port, or mends it.
    pub fn set_cut(&mut self, vertex: Vertex, port: Port, is_cut: bool) {
        let far = self.graph.wired(vertex, port).expect("a link");
        self.graph.set_cut(vertex, port, is_cut);
        self.agents[vertex as usize].link(port, !is_cut);
        self.agents[far.0 as usize].link(far.1, !is_cut);
    }

    /// A node crashes: its links are down, and it forgets everything.
    pub fn crash(&mut self, vertex: Vertex) {
        for port in 0..self.graph.ports(vertex) {
            if self.graph.far(vertex, port).is_some() {
                self.set_cut(vertex, port, true);
            }
        }
        self.dead.insert(vertex);
        self.managers.remove(&vertex);
        self.agents[vertex as usize] = self.fresh(vertex);
    }

    /// A node hears of a version that is higher than any to come.
    pub fn poison(&mut self, vertex: Vertex) {
        let order = Order::Clear { version: u64::MAX };
        let packet = Packet::new(Vec::new(), Body::Order { term: 0, sequence: 0, order });
        self.agents[vertex as usize].originate(packet);
    }

    /// A node that crashed comes back, with links to all neighbours that live.
    pub fn restart(&mut self, vertex: Vertex) {
        self.dead.remove(&vertex);
        for port in 0..self.graph.ports(vertex) {
            let far = self.graph.wired(vertex, port);
            if far.is_some_and(|(far, _)| !self.dead.contains(&far)) {
                self.set_cut(vertex, port, false);
            }
        }
    }

    fn put(&mut self, from: Vertex, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Send(port, bytes) => {
                    let Some((to, arrived)) = self.graph.far(from, port) else { continue };
                    if self.random.random_range(0..1_000) < self.loss {
                        continue;
                    }
                    self.sent += 1;
                    let delay = self.random.random_range(1..4);
                    self.packets.insert((self.now + delay, self.sent), (to, arrived, bytes));
                }
                Output::Deliver(packet) => {
                    let now = self.now;
                    let Some(manager) = self.managers.get_mut(&from) else { continue };
                    let packets = manager.receive(&packet, now);
                    self.originate(from, packets);
                }
            }
        }
    }

    fn originate(&mut self, from: Vertex, packets: Vec<Packet>) {
        for packet in packets {
            let outputs = self.agents[from as usize].originate(packet);
            self.put(from, outputs);
        }
    }

    /// A millisecond passes.
    pub fn step(&mut self) {
        self.now += 1;
        if let (term, Some(holder)) = self.lease
            && let Some(manager) = self.managers.get_mut(&holder)
        {
            manager.lead(term, self.now + LEASE_MS);
        }
        while let Some(entry) = self.packets.first_entry()
            && entry.key().0 <= self.now
        {
            let (to, port, bytes) = entry.remove();
            // A link that was cut meanwhile has lost its packets.
            if self.graph.far(to, port).is_some() {
                let outputs = self.agents[to as usize].receive(port, &bytes);
                self.put(to, outputs);
            }
        }
        for vertex in 0..self.graph.vertices() {
            let outputs = self.agents[vertex as usize].tick(self.now);
            self.put(vertex, outputs);
        }
        let holders: Vec<Vertex> = self.managers.keys().copied().collect();
        for vertex in holders {
            let now = self.now;
            let packets = self.managers.get_mut(&vertex).map(|own| own.tick(now));
            self.originate(vertex, packets.unwrap_or_default());
        }
    }

    pub fn run(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds {
            self.step();
        }
    }

    /// Runs until the holder of the lease rules over the network as it is now.
    pub fn settle(&mut self) {
        let end = self.now + 60_000;
        // A manager that has not heard of the latest failure still rules the network of before.
        self.run(300);
        while !self.is_settled() {
            assert!(self.now < end, "not settled after a minute: {:?}", self.standing());
            self.step();
        }
    }

    pub fn standing(&self) -> Option<Standing> {
        Some(self.managers.get(&self.lease.1?)?.standing())
    }

    fn is_settled(&self) -> bool {
        let Some(Standing::Ruling { version }) = self.standing() else { return false };
        self.part().iter().all(|host| self.agents[*host as usize].version() == Some(version))
            && self.unrouted().is_empty()
    }

    /// The hosts that the holder of the lease reaches.
    pub fn part(&self) -> Vec<Vertex> {
        let holder = self.lease.1.expect("a holder");
        let parts = parts(&self.graph);
        parts.into_iter().find(|part| part.contains(&holder)).expect("its own part")
    }

    /// Pairs of hosts of the part of the manager between which agents lead no packet.
    pub fn unrouted(&self) -> Vec<(Vertex, Vertex)> {
        let part = self.part();
        let pairs = part.iter().flat_map(|from| part.iter().map(move |to| (*from, *to)));
        pairs.filter(|(from, to)| !self.leads(*from, *to)).collect()
    }

    fn leads(&self, from: Vertex, to: Vertex) -> bool {
        let Some(number) = self.agents[to as usize].number() else { return false };
        let (mut at, mut vc) = (from, None);
        for _ in 0..4 * self.graph.vertices() {
            if at == to {
                return true;
            }
            let Some(choice) = self.agents[at as usize].next(vc, number) else { return false };
            let Some((next, _)) = self.graph.far(at, choice.port) else { return false };
            (at, vc) = (next, Some(choice.vc));
        }
        false
    }

    /// The dependencies between channels by the tables that the agents have at this moment.
    pub fn has_circle(&self) -> bool {
        let vcs = 8;
        let mut dependencies = Dependencies::new(&self.graph, vcs);
        let numbers: Vec<u16> = self.agents.iter().filter_map(Agent::number).collect();
        for at in 0..self.graph.vertices() {
            for vc in [None].into_iter().chain((0..vcs).map(Some)) {
                for number in &numbers {
                    let Some(first) = self.agents[at as usize].next(vc, *number) else { continue };
                    let Some((next, port)) = self.graph.far(at, first.port) else { continue };
                    let then = self.agents[next as usize].next(Some(first.vc), *number);
                    if let Some(then) = then {
                        dependencies.add(next, (port, first.vc), (then.port, then.vc));
                    }
                }
            }
        }
        dependencies.cycle().is_some()
    }
}
