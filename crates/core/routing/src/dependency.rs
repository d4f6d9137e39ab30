//! The channel-dependency graph: which channels a packet may wait for while it holds another one.
//!
//! A *channel* is a virtual channel of one direction of a link. Channel a depends on channel b if
//! the routes may lead a packet from a on to b. Routes do not deadlock if no channel depends on
//! itself over others (Dally and Seitz). Of adaptive routes the escape channels alone have to meet
//! that, by their *extended* dependencies: on escape channels that a packet may come to over
//! adaptive ones, too (Duato).
//!
//! # Invariants
//! - Every packet that the tables allow is covered: entries are followed for each segment and each
//!   place, for packets that start anywhere.

use weft_topology::{Graph, Port, Vertex};

use crate::compute::{Algorithm, Routes};
use crate::multicast::GROUPS_MAX;
use crate::route::Route;
use crate::tables::{Entry, Layer, Side, Stage, Tables, Target};

const STAGES: [Stage; 3] = [Stage::Base, Stage::Plane(Side::A), Stage::Plane(Side::B)];

/// A virtual channel of one direction of a link: out of a port of a vertex.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Channel {
    /// The vertex that it leads out of.
    pub from: Vertex,
    /// The port there.
    pub port: Port,
    /// The vertex that it leads to.
    pub to: Vertex,
    /// The virtual channel.
    pub vc: u8,
}

/// Hosts up to which extended dependencies of adaptive routes are computed. Beyond, their number
/// is too large, and the direct ones are used: they are enough where a packet that waits lies in
/// one buffer, as with virtual cut-through (Duato 1996).
pub const EXTENDED_HOSTS_MAX: usize = 1_024;

const NO_ROW: usize = usize::MAX;

/// A channel-dependency graph.
pub struct Dependencies<'a> {
    graph: &'a Graph,
    vcs: u8,
    /// For each vertex, the first of its rows and the words of a row. A row belongs to a channel
    /// that leads in, and has a bit for each channel that leads out.
    places: Vec<(usize, usize)>,
    /// The first word of each row in `bits`, `NO_ROW` while it has no bit.
    rows: Vec<usize>,
    bits: Vec<u64>,
    /// Indirect dependencies: a row for each channel, with a bit for each.
    extended: Option<Vec<u64>>,
}

impl<'a> Dependencies<'a> {
    /// A graph of dependencies without any, for `vcs` virtual channels of each link.
    #[must_use]
    pub fn new(graph: &'a Graph, vcs: u8) -> Self {
        let mut places = Vec::new();
        let mut end = 0;
        for vertex in 0..graph.vertices() {
            let channels = usize::from(graph.ports(vertex)) * usize::from(vcs);
            let words = channels.div_ceil(64);
            places.push((end, words));
            end += channels;
        }
        Self { graph, vcs, places, rows: vec![NO_ROW; end], bits: Vec::new(), extended: None }
    }

    /// The dependencies of routes.
    #[must_use]
    pub fn of(graph: &'a Graph, routes: &Routes) -> Self {
        let mut own = Self::new(graph, routes.vcs());
        let tables = routes.tables();
        own.add_unicast(tables, tables, 0);
        own.add_multicast(tables);
        if routes.algorithm() == Algorithm::Valiant {
            own.add_unicast(tables, tables, tables.vcs());
            own.add_turns(tables.vcs());
        }
        if let Some(adaptive) = tables.adaptive()
            && adaptive.returns
            && graph.hosts().count() <= EXTENDED_HOSTS_MAX
        {
            own.extend(tables);
        }
        own
    }

    /// The dependencies while vertices change from `old` to `new` in any order, after all have the
    /// plane of `new`: a packet may take each of its steps by an old or by a new entry. Those over
    /// adaptive channels are left out.
    #[must_use]
    pub fn of_change(graph: &'a Graph, old: &Routes, new: &Routes) -> Self {
        let mut own = Self::new(graph, old.vcs().max(new.vcs()));
        let prepared = old.tables().prepared(new.tables());
        let both = [&prepared, new.tables()];
        for first in both {
            own.add_multicast(first);
            for then in both {
                own.add_unicast(first, then, 0);
                if new.algorithm() == Algorithm::Valiant {
                    own.add_unicast(first, then, new.tables().vcs());
                }
            }
        }
        if new.algorithm() == Algorithm::Valiant {
            own.add_turns(new.tables().vcs());
        }
        own
    }

    /// Adds that packets which came to `at` by `came` may go on by `next`, both a port of `at` and
    /// a virtual channel.
    pub fn add(&mut self, at: Vertex, came: (Port, u8), next: (Port, u8)) {
        let (first, words) = self.places[at as usize];
        let bit = self.place(next);
        let row = first + self.place(came);
        if self.rows[row] == NO_ROW {
            self.rows[row] = self.bits.len();
            self.bits.resize(self.bits.len() + words, 0);
        }
        self.bits[self.rows[row] + bit / 64] |= 1 << (bit % 64);
    }

    fn place(&self, (port, vc): (Port, u8)) -> usize {
        usize::from(port) * usize::from(self.vcs) + usize::from(vc)
    }

    /// The number of direct dependencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.bits.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// True when the dependencies over adaptive channels are there, too.
    #[must_use]
    pub fn is_extended(&self) -> bool {
        self.extended.is_some()
    }

    /// Follows every entry of `first` for one step, and then those of `then`.
    fn add_unicast(&mut self, first: &Tables, then: &Tables, offset: u8) {
        let graph = self.graph;
        let numbering = first.numbering();
        // The ways on for any host of the own segment, for packets that come from outside.
        let any: Vec<[Vec<(Port, u8)>; 3]> = (0..graph.vertices())
            .map(|vertex| STAGES.map(|stage| distinct(then.layer(stage), vertex)))
            .collect();
        for at in 0..graph.vertices() {
            let own = numbering.segment(at);
            let nexts: Vec<_> = (0..graph.ports(at)).map(|port| graph.far(at, port)).collect();
            let far = |entry: Entry| {
                let choice = entry.choice()?;
                let (vertex, port) = nexts.get(usize::from(choice.port)).copied().flatten()?;
                Some((vertex, (port, choice.vc + offset), then.stage(choice.vc)))
            };
            for layer in STAGES.iter().filter_map(|stage| first.layer(*stage)) {
                for (segment, entry) in (0..).zip(layer.global(at)) {
                    let Some((next, came, stage)) = far(*entry) else { continue };
                    if numbering.segment(next) == Some(segment) {
                        for (port, vc) in &any[next as usize][index(stage)] {
                            if graph.far(next, *port).is_some() {
                                self.add(next, came, (*port, vc + offset));
                            }
                        }
                    } else {
                        let entry = then.entry(stage, next, Target::Segment(segment));
                        self.add_entry(next, came, entry, offset);
                    }
                }
                for (place, entry) in (0..).zip(layer.local(at)) {
                    let Some((next, came, stage)) = far(*entry) else { continue };
                    let target = match own {
                        Some(own) if numbering.segment(next) != Some(own) => Target::Segment(own),
                        _ => Target::Place(place),
                    };
                    self.add_entry(next, came, then.entry(stage, next, target), offset);
                }
            }
        }
    }

    fn add_entry(&mut self, at: Vertex, came: (Port, u8), entry: Entry, offset: u8) {
        if let Some(choice) = entry.choice()
            && self.graph.far(at, choice.port).is_some()
        {
            self.add(at, came, (choice.port, choice.vc + offset));
        }
    }

    fn add_multicast(&mut self, tables: &Tables) {
        for side in [Side::A, Side::B] {
            let Some(multicast) = tables.multicast_of(side) else { continue };
            let vc = tables.vc_of(side);
            for (group, at) in
                (0..GROUPS_MAX).flat_map(|g| (0..self.graph.vertices()).map(move |v| (g, v)))
            {
                for came in multicast.forward(group, at, None) {
                    for port in multicast.forward(group, at, Some(came)) {
                        self.add(at, (came, vc), (port, vc));
                    }
                }
            }
        }
    }

    /// Where packets turn from the first half of their way to the second: from any channel below
    /// `half` to any from it on. There are more than packets take; none leads back.
    fn add_turns(&mut self, half: u8) {
        for at in 0..self.graph.vertices() {
            let ports: Vec<Port> = self.graph.neighbours(at).map(|(port, _)| port).collect();
            for (came, next) in ports.iter().flat_map(|came| ports.iter().map(move |p| (*came, *p)))
            {
                for (first, second) in (0..half).flat_map(|a| (half..2 * half).map(move |b| (a, b)))
                {
                    self.add(at, (came, first), (next, second));
                }
            }
        }
    }

    /// Adds the dependencies over adaptive channels: for each destination, from an escape channel
    /// to those of all vertices that adaptive hops lead to from its end.
    fn extend(&mut self, tables: &Tables) {
        let Some(adaptive) = tables.adaptive() else { return };
        let graph = self.graph;
        let channels = graph.channels() as usize * usize::from(self.vcs);
        let words = channels.div_ceil(64);
        let mut extended = vec![0_u64; channels * words];
        let channel = |at: Vertex, port: Port, vc: u8| {
            let channel = graph.channel(at, port)?;
            Some(channel as usize * usize::from(self.vcs) + usize::from(vc))
        };
        let mut seen = vec![u32::MAX; graph.vertices() as usize];
        let mut round = 0;
        for to in graph.hosts() {
            for at in 0..graph.vertices() {
                let escape =
                    |vertex| tables.base()?.get(vertex, tables.target(vertex, to)?).choice();
                let Some(held) = escape(at) else { continue };
                let Some((next, _)) = graph.far(at, held.port) else { continue };
                let Some(row) = channel(at, held.port, held.vc) else { continue };
                if tables.stage(held.vc) != Stage::Base {
                    continue;
                }
                round += 1;
                let mut stack = vec![next];
                while let Some(vertex) = stack.pop() {
                    if seen[vertex as usize] == round || vertex == to {
                        continue;
                    }
                    seen[vertex as usize] = round;
                    let wanted = escape(vertex).and_then(|c| channel(vertex, c.port, c.vc));
                    if let Some(bit) = wanted {
                        extended[row * words + bit / 64] |= 1 << (bit % 64);
                    }
                    let Some(target) = tables.target(vertex, to) else { continue };
                    let set = adaptive.ports.get(vertex, target);
                    let ports = (0..graph.ports(vertex)).filter(|port| set >> port & 1 == 1);
                    stack.extend(ports.filter_map(|port| Some(graph.far(vertex, port)?.0)));
                }
            }
        }
        self.extended = Some(extended);
    }

    /// The next channel on which `node` depends, from the bit `from` on, and the bit after it.
    fn successor(&self, node: usize, from: usize) -> Option<(usize, usize)> {
        let vcs = usize::from(self.vcs);
        let place = u32::try_from(node / vcs).ok()?;
        let (vertex, port) = self.graph.source(place)?;
        let mut direct_end = 0;
        if let Some((next, came)) = self.graph.far(vertex, port) {
            let (first, words) = self.places[next as usize];
            let row = self.rows[first + usize::from(came) * vcs + node % vcs];
            direct_end = words * 64;
            if row != NO_ROW
                && let Some(bit) = next_bit(&self.bits[row..row + words], from)
            {
                let start = self.graph.channel(next, 0)? as usize * vcs;
                return Some((start + bit, bit + 1));
            }
        }
        let extended = self.extended.as_ref()?;
        let words = (self.graph.channels() as usize * vcs).div_ceil(64);
        let bit =
            next_bit(&extended[node * words..(node + 1) * words], from.saturating_sub(direct_end))?;
        Some((bit, direct_end + bit + 1))
    }

    /// A circle of channels of which each depends on the next, and the last on the first; `None` if
    /// there is none.
    #[must_use]
    pub fn cycle(&self) -> Option<Vec<Channel>> {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let nodes = self.graph.channels() as usize * usize::from(self.vcs);
        let mut states = vec![Mark::New; nodes];
        for start in 0..nodes {
            if states[start] != Mark::New {
                continue;
            }
            states[start] = Mark::Open;
            let mut path = vec![(start, 0)];
            while let Some((node, from)) = path.last_mut() {
                let Some((next, after)) = self.successor(*node, *from) else {
                    states[*node] = Mark::Done;
                    path.pop();
                    continue;
                };
                *from = after;
                match states[next] {
                    Mark::Done => {}
                    Mark::New => {
                        states[next] = Mark::Open;
                        path.push((next, 0));
                    }
                    Mark::Open => {
                        let first = path.iter().position(|(node, _)| *node == next)?;
                        let nodes = path[first..].iter().map(|(node, _)| *node);
                        return Some(nodes.filter_map(|node| self.channel(node)).collect());
                    }
                }
            }
        }
        None
    }

    fn channel(&self, node: usize) -> Option<Channel> {
        let vcs = usize::from(self.vcs);
        let (from, port) = self.graph.source(u32::try_from(node / vcs).ok()?)?;
        let (to, _) = self.graph.wired(from, port)?;
        Some(Channel { from, port, to, vc: u8::try_from(node % vcs).ok()? })
    }
}

/// The place of a layer in [`STAGES`].
pub(crate) const fn index(stage: Stage) -> usize {
    match stage {
        Stage::Base => 0,
        Stage::Plane(Side::A) => 1,
        Stage::Plane(Side::B) => 2,
    }
}

/// The ways on that the local table of a vertex has, each once.
fn distinct(layer: Option<&Layer<Entry>>, vertex: Vertex) -> Vec<(Port, u8)> {
    let Some(layer) = layer else { return Vec::new() };
    let mut last = Entry::NONE;
    let mut all = Vec::new();
    for entry in layer.local(vertex) {
        // Neighbouring places often have the same entry.
        if *entry != last
            && let Some(choice) = entry.choice()
        {
            last = *entry;
            let way = (choice.port, choice.vc);
            if !all.contains(&way) {
                all.push(way);
            }
        }
    }
    all
}

fn next_bit(row: &[u64], from: usize) -> Option<usize> {
    let mut place = from / 64;
    let mut word = row.get(place)? & (u64::MAX << (from % 64));
    while word == 0 {
        place += 1;
        word = *row.get(place)?;
    }
    Some(place * 64 + word.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_topology::Shape;

    fn ring() -> Graph {
        "torus:4".parse::<Shape>().and_then(|shape| shape.graph(None)).expect("a graph")
    }

    #[test]
    fn a_ring_with_one_channel_is_a_circle() {
        let graph = ring();
        let mut dependencies = Dependencies::new(&graph, 1);
        for at in 0..3 {
            // Packets come at the port down, from the vertex below, and go on up.
            dependencies.add(at, (1, 0), (0, 0));
        }
        assert_eq!(dependencies.cycle(), None);
        dependencies.add(3, (1, 0), (0, 0));
        assert_eq!(dependencies.count(), 4);
        let cycle = dependencies.cycle().expect("the ring is closed");
        assert_eq!(cycle.len(), 4);
        assert!(cycle.iter().all(|channel| channel.to == (channel.from + 1) % 4), "{cycle:?}");
    }

    #[test]
    fn a_second_channel_opens_the_circle() {
        let graph = ring();
        let mut dependencies = Dependencies::new(&graph, 2);
        for at in 1..4 {
            dependencies.add(at, (1, 0), (0, 0));
            dependencies.add(at, (1, 1), (0, 1));
        }
        dependencies.add(0, (1, 0), (0, 1));
        assert_eq!(dependencies.cycle(), None);
        dependencies.add(0, (1, 1), (0, 0));
        assert_eq!(dependencies.cycle().map(|cycle| cycle.len()), Some(8));
    }
}
