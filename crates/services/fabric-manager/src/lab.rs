//! The nodes of a lab: an agent on each, the links between them, and who manages them.
//!
//! All nodes are in one process, so a packet crosses a link at once. A manager has a seat at the
//! lowest node of each part into which cut links divide the lab, since packets of one in another
//! part come nowhere. All seats belong to the one holder of the lease.
//!
//! # Invariants
//! - A part of the lab has one manager.
//! - Nodes reach each other as the tables of their agents lead, over links that are not cut.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weft_routing::Algorithm;
use weft_routing::check::parts;
use weft_topology::{Graph, Port, Vertex};

use crate::message::Packet;
use crate::{Agent, Expected, Manager, Output, Settings, Standing};

/// Milliseconds between two sweeps.
const SWEEP_MS: u64 = 5_000;
/// Milliseconds in which packets leave the lab: loops of devices that are stopped for longer are
/// counted out.
const SETTLE_MS: u64 = 20;
/// Milliseconds of the lease, which each tick renews.
const LEASE_MS: u64 = 60_000;
/// Times that packets go round in one tick. A change needs some ten.
const ROUNDS_MAX: usize = 1_000;

/// A pair of nodes, the lower one first.
pub type NodePair = (Vertex, Vertex);

/// A lab.
#[derive(Clone, Debug)]
pub struct Lab {
    graph: Graph,
    agents: Vec<Agent>,
    managers: BTreeMap<Vertex, Manager>,
    settings: Settings,
    term: u64,
    wire: VecDeque<(Vertex, Port, Vec<u8>)>,
    /// How often a link was cut or mended.
    changes: u64,
    /// The state for which `cuts` was computed: the changes, and the version of each agent.
    seen: (u64, Vec<Option<u64>>),
    cuts: BTreeSet<NodePair>,
}

/// The number with which the node of a vertex was made.
fn guid(vertex: Vertex) -> u64 {
    u64::from(vertex) + 1
}

impl Lab {
    /// The lab with the nodes and links of `graph`, which nobody rules yet.
    #[must_use]
    pub fn new(graph: Graph) -> Self {
        let mut whole = graph.clone();
        for (end, ..) in graph.links() {
            whole.set_cut(end.0, end.1, false);
        }
        let expected = Expected { guids: (0..graph.vertices()).map(guid).collect(), graph: whole };
        let agents = (0..graph.vertices()).map(|vertex| {
            let mut agent = Agent::new(guid(vertex), false, graph.ports(vertex));
            graph.neighbours(vertex).for_each(|(port, _)| agent.link(port, true));
            agent
        });
        let mut lab = Self {
            agents: agents.collect(),
            managers: BTreeMap::new(),
            settings: Settings {
                algorithm: Algorithm::Auto,
                expected: Some(expected),
                sweep_ms: SWEEP_MS,
                settle_ms: SETTLE_MS,
            },
            term: 0,
            wire: VecDeque::new(),
            changes: 0,
            seen: (0, Vec::new()),
            cuts: BTreeSet::new(),
            graph,
        };
        lab.seat();
        lab
    }

    /// The nodes and links, with those cut that are.
    #[must_use]
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The agent of a node.
    #[must_use]
    pub fn agent(&self, node: Vertex) -> Option<&Agent> {
        self.agents.get(node as usize)
    }

    /// The managers, by the node of their seat.
    pub fn managers(&self) -> impl Iterator<Item = (Vertex, &Manager)> {
        self.managers.iter().map(|(seat, manager)| (*seat, manager))
    }

    /// The term of the lease.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Cuts the link at a port, or mends it. False if there is none.
    pub fn set_cut(&mut self, node: Vertex, port: Port, is_cut: bool) -> bool {
        let Some(far) = self.graph.wired(node, port) else { return false };
        self.graph.set_cut(node, port, is_cut);
        for (node, port) in [(node, port), far] {
            if let Some(agent) = self.agents.get_mut(node as usize) {
                agent.link(port, !is_cut);
            }
        }
        self.changes += 1;
        self.seat();
        true
    }

    /// Gives each part a manager. Where seats change, all managers begin a new term, so that one
    /// that was left hears of the nodes that are its own from now on.
    fn seat(&mut self) {
        let parts = parts(&self.graph);
        let seats: BTreeSet<Vertex> =
            parts.iter().filter_map(|part| part.first().copied()).collect();
        let is_same = seats.iter().eq(self.managers.keys());
        if is_same {
            return;
        }
        self.managers.retain(|seat, _| seats.contains(seat));
        for seat in seats {
            let settings = &self.settings;
            self.managers.entry(seat).or_insert_with(|| Manager::new(settings.clone()));
        }
        self.term += 1;
    }

    /// Time passes: `now` is in milliseconds, by any clock that does not go back. All that can
    /// happen at this time has happened when this returns.
    pub fn tick(&mut self, now: u64) {
        // A manager that begins a sweep gives its first packet in the next round.
        let mut is_quiet = false;
        for _ in 0..ROUNDS_MAX {
            for node in 0..self.graph.vertices() {
                let outputs = self.agents[node as usize].tick(now);
                self.put(node, outputs, now);
            }
            let seats: Vec<Vertex> = self.managers.keys().copied().collect();
            for seat in seats {
                let Some(manager) = self.managers.get_mut(&seat) else { continue };
                manager.lead(self.term, now + LEASE_MS);
                let packets = manager.tick(now);
                self.originate(seat, packets, now);
            }
            if self.wire.is_empty() && is_quiet {
                break;
            }
            is_quiet = self.wire.is_empty();
            while let Some((to, port, bytes)) = self.wire.pop_front() {
                let outputs = self.agents[to as usize].receive(port, &bytes);
                self.put(to, outputs, now);
            }
        }
        self.look();
    }

    /// A node has these packets: they go over its links, or to its manager.
    fn put(&mut self, node: Vertex, outputs: Vec<Output>, now: u64) {
        for output in outputs {
            match output {
                Output::Send(port, bytes) => {
                    if let Some((to, arrived)) = self.graph.far(node, port) {
                        self.wire.push_back((to, arrived, bytes));
                    }
                }
                Output::Deliver(packet) => {
                    let manager = self.managers.get_mut(&node);
                    let packets = manager.map(|manager| manager.receive(&packet, now));
                    self.originate(node, packets.unwrap_or_default(), now);
                }
            }
        }
    }

    fn originate(&mut self, node: Vertex, packets: Vec<Packet>, now: u64) {
        for packet in packets {
            let outputs = self.agents[node as usize].originate(packet);
            self.put(node, outputs, now);
        }
    }

    /// The pairs of nodes that do not reach each other, in one direction or the other.
    #[must_use]
    pub fn cuts(&self) -> &BTreeSet<NodePair> {
        &self.cuts
    }

    /// Whether the nodes of each part reach each other, as of the last tick.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        if self.seen.0 != self.changes {
            return false;
        }
        let within = |part: &Vec<Vertex>| (part.len() * part.len().saturating_sub(1)) / 2;
        let nodes = self.agents.len();
        let all = nodes * nodes.saturating_sub(1) / 2;
        let reached: usize = parts(&self.graph).iter().map(within).sum();
        self.cuts.len() == all - reached
    }

    /// Why a manager has no routes for its part.
    #[must_use]
    pub fn stuck(&self) -> Option<String> {
        self.managers.values().find_map(|manager| match manager.standing() {
            Standing::Stuck { reason } => Some(reason),
            _ => None,
        })
    }

    /// Follows the tables, if they or the links have changed.
    fn look(&mut self) {
        let seen = (self.changes, self.agents.iter().map(Agent::version).collect());
        if seen == self.seen {
            return;
        }
        self.seen = seen;
        let nodes = self.graph.vertices();
        let pairs = (0..nodes).flat_map(|one| (one + 1..nodes).map(move |other| (one, other)));
        let is_cut =
            |(one, other): &NodePair| !self.leads(*one, *other) || !self.leads(*other, *one);
        self.cuts = pairs.filter(is_cut).collect();
    }

    /// Whether the tables of the agents lead from a node to another one.
    fn leads(&self, from: Vertex, to: Vertex) -> bool {
        let Some(number) = self.agents[to as usize].number() else { return false };
        let (mut at, mut vc) = (from, None);
        // A route through both layers passes no node twice in one of them.
        for _ in 0..=2 * self.graph.vertices() {
            if at == to {
                return true;
            }
            let Some(choice) = self.agents[at as usize].next(vc, number) else { return false };
            let Some((next, _)) = self.graph.far(at, choice.port) else { return false };
            (at, vc) = (next, Some(choice.vc));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use weft_topology::Shape;

    use super::*;

    fn lab(shape: &str) -> Lab {
        let graph = shape.parse::<Shape>().and_then(|shape| shape.graph(None)).expect("a graph");
        let mut lab = Lab::new(graph);
        lab.tick(0);
        lab
    }

    /// Lets time pass until the lab has settled.
    fn settle(lab: &mut Lab, now: &mut u64) {
        let end = *now + 1_000;
        while !lab.is_settled() {
            assert!(*now < end, "not settled after a second: {:?}", lab.stuck());
            *now += 1;
            lab.tick(*now);
        }
    }

    #[test]
    fn nodes_reach_each_other_by_the_tables_of_their_manager() {
        for shape in ["full:4", "torus:4x4", "mesh:3x3", "hypercube:3", "links:0-1,1-2,3-4"] {
            let lab = lab(shape);
            assert!(lab.is_settled(), "{shape}: {:?}", lab.stuck());
        }
        assert_eq!(lab("links:0-1,2-3").cuts().len(), 4);
    }

    #[test]
    fn traffic_is_led_around_a_link_that_fails_and_over_it_when_it_is_mended() {
        let (mut lab, mut now) = (lab("torus:5"), 0);
        let first = lab.agent(0).and_then(Agent::version);
        assert!(lab.set_cut(0, 0, true));
        settle(&mut lab, &mut now);
        assert!(lab.cuts().is_empty() && lab.agent(0).and_then(Agent::version) > first);
        assert!(lab.set_cut(2, 0, true));
        settle(&mut lab, &mut now);
        // 0 3 4 and 1 2.
        let cut = [(0, 1), (0, 2), (1, 3), (1, 4), (2, 3), (2, 4)];
        assert_eq!(lab.cuts().iter().copied().collect::<Vec<_>>(), cut);
        assert_eq!(lab.managers().map(|(seat, _)| seat).collect::<Vec<_>>(), [0, 1]);
        assert!(lab.set_cut(0, 0, false));
        settle(&mut lab, &mut now);
        assert!(lab.cuts().is_empty());
        assert_eq!(lab.managers().count(), 1, "two managers never rule one part");
        assert!(!lab.set_cut(0, 9, true));
    }

    #[test]
    fn each_part_has_a_manager_of_its_own_that_leads_around_failures() {
        let (mut lab, mut now) = (lab("mesh:4x2"), 0);
        // Two squares, and then a link of the second one.
        for (node, port) in [(1, 0), (5, 0), (2, 0)] {
            assert!(lab.set_cut(node, port, true), "{node}:{port}");
            settle(&mut lab, &mut now);
        }
        assert_eq!(lab.cuts().len(), 16);
        let terms: Vec<_> =
            lab.managers().map(|(seat, _)| lab.agent(seat).map(Agent::term)).collect();
        assert_eq!(terms, [Some(lab.term()), Some(lab.term())]);
    }

    #[test]
    fn links_that_fail_and_return_at_random_leave_what_reaches_each_other() {
        let mut state = 1_u64;
        let mut draw = |end: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % end
        };
        let (mut lab, mut now) = (lab("torus:4x4"), 0);
        let links: Vec<_> = lab.graph().links().map(|(end, ..)| end).collect();
        for _ in 0..200 {
            let (node, port) = links[usize::try_from(draw(links.len() as u64)).expect("few")];
            let is_cut = lab.graph().is_cut(node, port);
            lab.set_cut(node, port, !is_cut);
            if draw(3) > 0 {
                settle(&mut lab, &mut now);
            }
        }
        settle(&mut lab, &mut now);
        for (node, port) in links {
            lab.set_cut(node, port, false);
        }
        settle(&mut lab, &mut now);
        assert!(lab.cuts().is_empty());
    }
}
