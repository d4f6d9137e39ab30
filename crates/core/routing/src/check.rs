//! Follows the tables from every host to every other one, and looks for deadlock.

use weft_topology::{Graph, Kind, Vertex};

use crate::compute::Routes;
use crate::dependency::{Channel, Dependencies, index};
use crate::multicast::BROADCAST;
use crate::numbering::Numbering;
use crate::route::Route;
use crate::tables::{Stage, Tables, Target};

/// Pairs without a route that a report names at most.
pub const EXAMPLES_MAX: usize = 10;

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The number of hosts.
    pub hosts: u64,
    /// The virtual channels of each link.
    pub vcs: u8,
    /// Pairs of a host and another one between which the tables lead.
    pub routed: u64,
    /// Pairs between which they do not.
    pub unrouted: u64,
    /// Some of those.
    pub examples: Vec<(Vertex, Vertex)>,
    /// The links of all routes together. For adaptive routing these are the escape routes, for
    /// Valiant one half of the way.
    pub hops: u64,
    /// The links of the longest route.
    pub hops_max: u32,
    /// The number of dependencies between channels.
    pub dependencies: u64,
    /// True when those over adaptive channels are among those that were searched.
    pub is_extended: bool,
    /// Channels that wait for each other in a circle.
    pub cycle: Option<Vec<Channel>>,
    /// The hosts that a broadcast of the first host that was checked comes to, with itself.
    pub broadcast: u64,
    /// The parts of the network that have no link between them: the hosts of each, the largest part
    /// first.
    pub parts: Vec<Vec<Vertex>>,
}

impl Report {
    /// True when all hosts reach each other, broadcast reaches all, and nothing can deadlock.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.unrouted == 0 && self.cycle.is_none() && self.broadcast == self.hosts
    }

    /// True when nothing can deadlock, and all hosts of a part reach each other.
    #[must_use]
    pub fn is_sound_in_parts(&self) -> bool {
        let pairs = |part: &Vec<Vertex>| {
            let hosts = part.len() as u64;
            hosts * hosts.saturating_sub(1)
        };
        let possible: u64 = self.parts.iter().map(pairs).sum();
        self.cycle.is_none() && self.routed == possible
    }
}

/// Checks routes.
#[must_use]
pub fn check(graph: &Graph, routes: &Routes) -> Report {
    check_from(graph, routes, |_| true)
}

/// Checks the routes that begin at some of the hosts, such as those of one part of a network, whose
/// tables are its own.
#[must_use]
pub fn check_from(graph: &Graph, routes: &Routes, is_from: impl Fn(Vertex) -> bool) -> Report {
    let dependencies = Dependencies::of(graph, routes);
    let walk = Walk::of(graph, routes.tables(), &is_from);
    let first = graph.hosts().find(|host| is_from(*host));
    Report {
        hosts: graph.hosts().count() as u64,
        vcs: routes.vcs(),
        routed: walk.routed,
        unrouted: walk.unrouted,
        examples: walk.examples,
        hops: walk.hops,
        hops_max: walk.hops_max,
        dependencies: dependencies.count(),
        is_extended: dependencies.is_extended(),
        cycle: dependencies.cycle(),
        broadcast: first.map_or(0, |first| broadcast(graph, routes.tables(), first)),
        parts: parts(graph),
    }
}

/// The hosts of each part of a network, the largest part first.
#[must_use]
pub fn parts(graph: &Graph) -> Vec<Vec<Vertex>> {
    let mut is_seen = vec![false; graph.vertices() as usize];
    let mut parts = Vec::new();
    for host in graph.hosts() {
        if is_seen[host as usize] {
            continue;
        }
        is_seen[host as usize] = true;
        let (mut part, mut stack) = (Vec::new(), vec![host]);
        while let Some(vertex) = stack.pop() {
            if graph.kind(vertex) == Some(Kind::Host) {
                part.push(vertex);
            }
            for (_, (next, _)) in graph.neighbours(vertex) {
                if !std::mem::replace(&mut is_seen[next as usize], true) {
                    stack.push(next);
                }
            }
        }
        part.sort_unstable();
        parts.push(part);
    }
    parts.sort_by_key(|part| std::cmp::Reverse(part.len()));
    parts
}

/// The hosts to which a broadcast of `start` comes. One that came twice counts twice.
fn broadcast(graph: &Graph, tables: &Tables, start: Vertex) -> u64 {
    let mut count = 0;
    let mut packets = vec![(start, None)];
    while let Some((at, arrived)) = packets.pop() {
        count += u64::from(graph.kind(at) == Some(Kind::Host));
        if count > u64::from(graph.vertices()) {
            break;
        }
        let ports = tables.multicast().forward(BROADCAST, at, arrived);
        let ends = ports.filter_map(|port| graph.far(at, port));
        packets.extend(ends.map(|(next, port)| (next, Some(port))));
    }
    count
}

/// A vertex, and the layer of the packet there.
type Stop = (Vertex, Stage);

const UNKNOWN: u32 = u32::MAX;
const OPEN: u32 = u32::MAX - 1;
const NEVER: u32 = u32::MAX - 2;

/// The walk from the hosts that are checked to all hosts.
struct Walk<'a> {
    graph: &'a Graph,
    tables: &'a Tables,
    /// The vertices of each segment.
    vertices: Vec<Vec<Vertex>>,
    routed: u64,
    unrouted: u64,
    examples: Vec<(Vertex, Vertex)>,
    hops: u64,
    hops_max: u32,
}

/// The place where packets for a segment come into it, and the hops to there.
#[derive(Clone, Copy)]
struct Way {
    hops: u32,
    end: Stop,
}

/// The hosts that come into a segment at one place: how many, their hops to it, and the most.
#[derive(Clone, Copy, Default)]
struct Crowd {
    hosts: u64,
    hops: u64,
    hops_max: u32,
}

/// The places on the way that is followed, kept to spare allocations.
#[derive(Default)]
struct Paths {
    outside: Vec<Stop>,
    /// With the hops from each to the next.
    inside: Vec<(Stop, u32)>,
}

const fn slot((vertex, stage): Stop) -> usize {
    vertex as usize * 3 + index(stage)
}

impl<'a> Walk<'a> {
    fn of(graph: &'a Graph, tables: &'a Tables, is_from: &dyn Fn(Vertex) -> bool) -> Self {
        let numbering: &Numbering = tables.numbering();
        let mut vertices = vec![Vec::new(); numbering.segments() as usize];
        for vertex in 0..graph.vertices() {
            if let Some(segment) = numbering.segment(vertex) {
                vertices[segment as usize].push(vertex);
            }
        }
        let mut own = Self {
            graph,
            tables,
            vertices,
            routed: 0,
            unrouted: 0,
            examples: Vec::new(),
            hops: 0,
            hops_max: 0,
        };
        let slots = graph.vertices() as usize * 3;
        let mut ways = vec![Way { hops: UNKNOWN, end: (0, Stage::Base) }; slots];
        let mut hops = vec![UNKNOWN; slots];
        for segment in 0..numbering.segments() {
            ways.fill(Way { hops: UNKNOWN, end: (0, Stage::Base) });
            own.walk_segment(segment, is_from, &mut ways, &mut hops);
        }
        own
    }

    fn step(&self, (at, stage): Stop, target: Target) -> Option<Stop> {
        let choice = self.tables.entry(stage, at, target).choice()?;
        let (next, _) = self.graph.far(at, choice.port)?;
        Some((next, self.tables.stage(choice.vc)))
    }

    /// Follows the global tables to a segment from one place outside.
    fn approach(&self, start: Stop, segment: u32, ways: &mut [Way], path: &mut Vec<Stop>) -> Way {
        path.clear();
        let mut at = start;
        let mut way = loop {
            if self.tables.numbering().segment(at.0) == Some(segment) {
                break Way { hops: 0, end: at };
            }
            let known = ways[slot(at)];
            if known.hops != UNKNOWN {
                // A path that comes back to itself never ends.
                break if known.hops == OPEN { Way { hops: NEVER, ..known } } else { known };
            }
            ways[slot(at)].hops = OPEN;
            path.push(at);
            match self.step(at, Target::Segment(segment)) {
                Some(next) => at = next,
                None => break Way { hops: NEVER, end: at },
            }
        };
        for place in path.iter().rev() {
            if way.hops != NEVER {
                way.hops += 1;
            }
            ways[slot(*place)] = way;
        }
        way
    }

    fn walk_segment(
        &mut self,
        segment: u32,
        is_from: &dyn Fn(Vertex) -> bool,
        ways: &mut [Way],
        hops: &mut [u32],
    ) {
        let numbering = self.tables.numbering();
        let mut paths = Paths::default();
        let mut crowds = vec![Crowd::default(); ways.len()];
        let mut lost = Vec::new();
        for host in self.graph.hosts() {
            if numbering.segment(host) == Some(segment) || !is_from(host) {
                continue;
            }
            let way = self.approach((host, self.tables.start()), segment, ways, &mut paths.outside);
            if way.hops == NEVER {
                lost.push(host);
                continue;
            }
            let crowd = &mut crowds[slot(way.end)];
            crowd.hosts += 1;
            crowd.hops += u64::from(way.hops);
            crowd.hops_max = crowd.hops_max.max(way.hops);
        }
        // Packets come into the active plane if it has routes, and never into the other one.
        let start = self.tables.start();
        let plane = Stage::Plane(self.tables.side());
        let mut stages = vec![start];
        stages.extend((start != plane && self.tables.layer(plane).is_some()).then_some(plane));
        let own = std::mem::take(&mut self.vertices[segment as usize]);
        for place in 0..numbering.width() {
            let Some(to) = numbering.host(segment, place) else { continue };
            for vertex in &own {
                for stage in &stages {
                    hops[slot((*vertex, *stage))] = UNKNOWN;
                }
            }
            for vertex in &own {
                for stage in &stages {
                    let crowd = crowds[slot((*vertex, *stage))];
                    let is_start = *stage == start
                        && self.graph.kind(*vertex) == Some(Kind::Host)
                        && *vertex != to
                        && is_from(*vertex);
                    if crowd.hosts == 0 && !is_start {
                        continue;
                    }
                    let begin = (*vertex, *stage);
                    let far = self.reach(begin, (segment, place), to, ways, hops, &mut paths);
                    let alone = Crowd { hosts: 1, hops: 0, hops_max: 0 };
                    for crowd in [Some(crowd), is_start.then_some(alone)].into_iter().flatten() {
                        self.count(crowd, far, (*vertex, to));
                    }
                }
            }
            for host in &lost {
                self.count(Crowd { hosts: 1, hops: 0, hops_max: 0 }, NEVER, (*host, to));
            }
        }
        self.vertices[segment as usize] = own;
    }

    fn count(&mut self, crowd: Crowd, far: u32, pair: (Vertex, Vertex)) {
        if far == NEVER {
            self.unrouted += crowd.hosts;
            if crowd.hosts > 0 && self.examples.len() < EXAMPLES_MAX {
                self.examples.push(pair);
            }
        } else {
            self.routed += crowd.hosts;
            self.hops += crowd.hops + crowd.hosts * u64::from(far);
            if crowd.hosts > 0 {
                self.hops_max = self.hops_max.max(crowd.hops_max + far);
            }
        }
    }

    /// Follows the tables to a host from one place in its segment; the number of hops.
    fn reach(
        &self,
        start: Stop,
        (segment, place): (u32, u32),
        to: Vertex,
        ways: &mut [Way],
        hops: &mut [u32],
        paths: &mut Paths,
    ) -> u32 {
        let Paths { outside, inside } = paths;
        inside.clear();
        let mut at = start;
        let mut far = loop {
            if at.0 == to {
                break 0;
            }
            let known = hops[slot(at)];
            if known != UNKNOWN {
                break if known == OPEN { NEVER } else { known };
            }
            hops[slot(at)] = OPEN;
            let Some(next) = self.step(at, Target::Place(place)) else {
                inside.push((at, 1));
                break NEVER;
            };
            inside.push((at, 1));
            if self.tables.numbering().segment(next.0) == Some(segment) {
                at = next;
                continue;
            }
            // A way may leave the segment and come back.
            let back = self.approach(next, segment, ways, outside);
            if back.hops == NEVER {
                break NEVER;
            }
            if let Some(step) = inside.last_mut() {
                step.1 += back.hops;
            }
            at = back.end;
        };
        for (place, more) in inside.iter().rev() {
            if far != NEVER {
                far += more;
            }
            hops[slot(*place)] = far;
        }
        far
    }
}
