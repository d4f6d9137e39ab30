//! A fabric of agents in virtual time, with managers on some of its nodes, packets that are lost,
//! links, nodes and managers that fail, and clocks that are wrong. Simulators take routes from it,
//! and tests drive it.
//!
//! # Invariants
//! - The same seed and the same calls give the same run.
//! - A millisecond is the unit of managers and agents. A simulator may let one pass in less of its
//!   own time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_routing::check::parts;
use weft_routing::{Choice, Heading, Route};
use weft_topology::{Graph, Kind, Port, Vertex};

use crate::message::Packet;
use crate::{Agent, Expected, Manager, Output, Settings, Standing};

/// Milliseconds of a lease, which its holder renews in each.
const LEASE_MS: u64 = 500;
/// Milliseconds that a packet takes over a link at most.
const LINK_MS_MAX: u64 = 3;

/// A fabric under managers.
pub struct Model {
    /// The network, with the links that are cut by now.
    pub graph: Graph,
    /// The agents, by vertex.
    pub agents: Vec<Agent>,
    /// The managers that live, by the vertex of their node.
    pub managers: BTreeMap<Vertex, Manager>,
    /// The term and the holder of the lease.
    pub lease: (u64, Option<Vertex>),
    /// The time, in milliseconds.
    pub now: u64,
    /// Vertices that have crashed.
    pub dead: BTreeSet<Vertex>,
    settings: Settings,
    /// Another host takes the lease when it has run out.
    is_followed: bool,
    /// When the lease runs out, if its holder does not renew it.
    lease_until: u64,
    clocks: BTreeMap<Vertex, Clock>,
    random: ChaCha8Rng,
    /// Packets of agents under way: when, where, and in which order they were sent.
    packets: BTreeMap<(u64, u64), (Vertex, Port, Vec<u8>)>,
    sent: u64,
    /// Packets lost, of a thousand.
    loss: u32,
    /// Tables or links changed since this was last asked for.
    has_changed: bool,
}

/// The clock of a node: what it showed at a time, and how far it goes in a thousand milliseconds.
#[derive(Clone, Copy, Debug)]
struct Clock {
    at: u64,
    shown: u64,
    rate_per_mille: u64,
}

impl Clock {
    fn time(self, now: u64) -> u64 {
        self.shown + (now - self.at) * self.rate_per_mille / 1_000
    }
}

/// The number with which the node of a vertex was made.
#[must_use]
pub fn guid(vertex: Vertex) -> u64 {
    // No order of the vertices shows in the numbers with which they were made.
    u64::from(vertex).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
}

/// The expected network of a graph whose nodes have the numbers of [`guid`].
#[must_use]
pub fn expected(graph: &Graph) -> Expected {
    Expected { graph: graph.clone(), guids: (0..graph.vertices()).map(guid).collect() }
}

/// The routes that the agents lead packets by at a moment.
#[derive(Clone, Debug)]
pub struct AgentRoute {
    agents: Arc<[Agent]>,
    vcs: u8,
}

impl Route for AgentRoute {
    fn vcs(&self) -> u8 {
        self.vcs
    }

    fn next(
        &self,
        at: Vertex,
        arrived: Option<(Port, u8)>,
        heading: &Heading,
        choices: &mut Vec<Choice>,
    ) {
        choices.clear();
        let agent = |vertex: Vertex| self.agents.get(place(vertex));
        let number = agent(heading.to).and_then(Agent::number);
        if at != heading.to
            && let Some((agent, number)) = agent(at).zip(number)
        {
            let choice = agent.next(arrived.map(|(_, vc)| vc), number);
            choices.extend(choice.filter(|choice| choice.vc < self.vcs));
        }
    }
}

/// The place of a vertex in a table.
fn place(vertex: Vertex) -> usize {
    // Targets have pointers of 32 bits or more.
    vertex as usize
}

impl Model {
    /// A fabric of `graph` in which no node has a number, and `loss` of a thousand packets between
    /// agents are lost.
    #[must_use]
    pub fn new(graph: Graph, settings: Settings, loss: u32, seed: u64) -> Self {
        let mut own = Self {
            agents: Vec::new(),
            managers: BTreeMap::new(),
            lease: (0, None),
            now: 0,
            dead: BTreeSet::new(),
            settings,
            is_followed: false,
            lease_until: 0,
            clocks: BTreeMap::new(),
            random: ChaCha8Rng::seed_from_u64(seed),
            packets: BTreeMap::new(),
            sent: 0,
            loss,
            has_changed: false,
            graph,
        };
        for vertex in 0..own.graph.vertices() {
            own.agents.push(own.fresh(vertex));
        }
        own
    }

    /// A number below `end`.
    pub fn draw(&mut self, end: u32) -> u32 {
        self.random.random_range(0..end)
    }

    /// Has another host take the lease whenever it has run out.
    pub fn follow(&mut self) {
        self.is_followed = true;
    }

    /// The manager of the holder of the lease dies. False if there is none.
    pub fn crash_manager(&mut self) -> bool {
        let holder = self.lease.1;
        holder.is_some_and(|holder| self.managers.remove(&holder).is_some())
    }

    /// The clock of a node goes so far in a thousand milliseconds from now on.
    pub fn set_rate(&mut self, vertex: Vertex, rate_per_mille: u64) {
        let (at, shown) = (self.now, self.time(vertex));
        self.clocks.insert(vertex, Clock { at, shown, rate_per_mille });
    }

    /// The time by the clock of a node.
    fn time(&self, vertex: Vertex) -> u64 {
        self.clocks.get(&vertex).map_or(self.now, |clock| clock.time(self.now))
    }

    /// Whether tables or links changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// The routes by the tables of now, for a network with `vcs` virtual channels.
    #[must_use]
    pub fn route(&self, vcs: u8) -> AgentRoute {
        AgentRoute { agents: self.agents.clone().into(), vcs }
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
        self.lease_until = self.now + LEASE_MS;
    }

    /// Cuts the link at a port, or mends it.
    pub fn set_cut(&mut self, vertex: Vertex, port: Port, is_cut: bool) {
        let far = self.graph.wired(vertex, port).expect("a link");
        self.graph.set_cut(vertex, port, is_cut);
        self.has_changed = true;
        self.agents[place(vertex)].link(port, !is_cut);
        self.agents[place(far.0)].link(far.1, !is_cut);
    }

    /// Cuts the links that are cut in `graph`, which has the same links, and mends all others.
    pub fn set_links(&mut self, graph: &Graph) {
        let links: Vec<_> = graph.links().collect();
        for ((vertex, port), _, is_cut) in links {
            if self.graph.is_cut(vertex, port) != is_cut {
                self.set_cut(vertex, port, is_cut);
            }
        }
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
        self.agents[place(vertex)] = self.fresh(vertex);
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
                    let delay = self.random.random_range(1..=LINK_MS_MAX);
                    self.packets.insert((self.now + delay, self.sent), (to, arrived, bytes));
                }
                Output::Deliver(packet) => {
                    let now = self.time(from);
                    let Some(manager) = self.managers.get_mut(&from) else { continue };
                    let packets = manager.receive(&packet, now);
                    self.originate(from, packets);
                }
            }
        }
    }

    fn originate(&mut self, from: Vertex, packets: Vec<Packet>) {
        for packet in packets {
            let outputs = self.agent(from, |agent| agent.originate(packet));
            self.put(from, outputs);
        }
    }

    /// Has an agent act, and notes whether packets take other ways from then on.
    fn agent<T>(&mut self, vertex: Vertex, act: impl FnOnce(&mut Agent) -> T) -> T {
        let agent = &mut self.agents[place(vertex)];
        let before = (agent.version(), agent.number());
        let result = act(agent);
        self.has_changed |= before != (agent.version(), agent.number());
        result
    }

    /// The holder of the lease renews it. If it has run out, another host may take it.
    fn renew_lease(&mut self) {
        let (term, Some(holder)) = self.lease else { return };
        let until = self.time(holder) + LEASE_MS;
        if let Some(manager) = self.managers.get_mut(&holder) {
            manager.lead(term, until);
            self.lease_until = self.now + LEASE_MS;
        } else if self.is_followed && self.now >= self.lease_until {
            let hosts = || self.graph.hosts().filter(|host| !self.dead.contains(host));
            let next = hosts().find(|host| *host > holder).or_else(|| hosts().next());
            if let Some(next) = next {
                self.elect(next);
            }
        }
    }

    /// A millisecond passes.
    pub fn step(&mut self) {
        self.now += 1;
        self.renew_lease();
        while let Some(entry) = self.packets.first_entry()
            && entry.key().0 <= self.now
        {
            let (to, port, bytes) = entry.remove();
            // A link that was cut meanwhile has lost its packets.
            if self.graph.far(to, port).is_some() {
                let outputs = self.agent(to, |agent| agent.receive(port, &bytes));
                self.put(to, outputs);
            }
        }
        for vertex in 0..self.graph.vertices() {
            let now = self.time(vertex);
            let outputs = self.agents[place(vertex)].tick(now);
            self.put(vertex, outputs);
        }
        let holders: Vec<Vertex> = self.managers.keys().copied().collect();
        for vertex in holders {
            let now = self.time(vertex);
            let packets = self.managers.get_mut(&vertex).map(|own| own.tick(now));
            self.originate(vertex, packets.unwrap_or_default());
        }
    }

    /// Lets milliseconds pass.
    pub fn run(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds {
            self.step();
        }
    }

    /// The state of the manager that has the lease.
    #[must_use]
    pub fn standing(&self) -> Option<Standing> {
        Some(self.managers.get(&self.lease.1?)?.standing())
    }

    /// Whether the holder of the lease rules over all hosts that it reaches, with tables that lead
    /// from each to each.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let Some(Standing::Ruling { version }) = self.standing() else { return false };
        self.part().iter().all(|host| self.agents[place(*host)].version() == Some(version))
            && self.unrouted().is_empty()
    }

    /// The hosts that the holder of the lease reaches.
    #[must_use]
    pub fn part(&self) -> Vec<Vertex> {
        let holder = self.lease.1.expect("a holder");
        let parts = parts(&self.graph);
        parts.into_iter().find(|part| part.contains(&holder)).expect("its own part")
    }

    /// Pairs of hosts of the part of the manager between which agents lead no packet.
    #[must_use]
    pub fn unrouted(&self) -> Vec<(Vertex, Vertex)> {
        let part = self.part();
        let pairs = part.iter().flat_map(|from| part.iter().map(move |to| (*from, *to)));
        pairs.filter(|(from, to)| !self.leads(*from, *to)).collect()
    }

    /// Whether agents lead a packet from one host to another.
    #[must_use]
    pub fn leads(&self, from: Vertex, to: Vertex) -> bool {
        let Some(number) = self.agents[place(to)].number() else { return false };
        let (mut at, mut vc) = (from, None);
        for _ in 0..4 * self.graph.vertices() {
            if at == to {
                return true;
            }
            let Some(choice) = self.agents[place(at)].next(vc, number) else { return false };
            let Some((next, _)) = self.graph.far(at, choice.port) else { return false };
            (at, vc) = (next, Some(choice.vc));
        }
        false
    }
}
