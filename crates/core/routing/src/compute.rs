//! Computes the tables of a network.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use weft_topology::{Graph, Layout, Port, Vertex};

use crate::grid::GridRoutes;
use crate::indirect;
use crate::multicast::Multicast;
use crate::numbering::{HOSTS_OF_SEGMENT_MAX, Numbering, SEGMENTS_MAX};
use crate::route::{Choice, Heading, Route};
use crate::tables::{
    Adaptive, Entry, Layer, PORTS_OF_ENTRY_MAX, Plane, Side, Tables, Target, live_ports,
};
use crate::tree::Tree;
use crate::updown;

/// How routes are computed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Algorithm {
    /// The usual one of the network's layout: dimension order on a torus, mesh or hypercube, up and
    /// down a fat tree, the shortest way in a dragonfly and a full mesh, up*/down* elsewhere.
    Auto,
    /// Dimension order.
    DimensionOrder,
    /// Any shortest way, with the deterministic routes of `Auto` as the escape.
    Adaptive,
    /// To a random host first, each half of the way as by `Auto`.
    Valiant,
    /// Up*/down*.
    UpDown,
}

/// There is no such algorithm.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{0:?} is no routing algorithm; there are auto, dor, adaptive, valiant and updown")]
pub struct NoAlgorithm(pub String);

impl FromStr for Algorithm {
    type Err = NoAlgorithm;

    fn from_str(text: &str) -> Result<Self, NoAlgorithm> {
        match text {
            "auto" => Ok(Self::Auto),
            "dor" => Ok(Self::DimensionOrder),
            "adaptive" => Ok(Self::Adaptive),
            "valiant" => Ok(Self::Valiant),
            "updown" => Ok(Self::UpDown),
            _ => Err(NoAlgorithm(text.to_owned())),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::DimensionOrder => "dor",
            Self::Adaptive => "adaptive",
            Self::Valiant => "valiant",
            Self::UpDown => "updown",
        })
    }
}

/// Why a network has no routes of a kind.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RoutingError {
    /// The tables have too few entries.
    #[error(
        "the {hosts} hosts cannot be divided into {SEGMENTS_MAX} segments of \
         {HOSTS_OF_SEGMENT_MAX} to each of which one way leads from outside, as routing tables \
         need; take a network of other sizes, or of {HOSTS_OF_SEGMENT_MAX} hosts or fewer"
    )]
    TooLarge {
        /// The hosts of the network.
        hosts: u32,
    },
    /// Dimension order needs dimensions.
    #[error("dimension-order routing is for a torus, mesh or hypercube; take updown or auto")]
    NoGrid,
    /// An entry of a table cannot name the port.
    #[error("vertex {0} has more than {PORTS_OF_ENTRY_MAX} ports, which a table cannot name")]
    Ports(Vertex),
    /// Adaptive tables have sets of 32 ports.
    #[error("vertex {0} has more than 32 ports, of which adaptive routing has no sets; take auto")]
    PortsOfSet(Vertex),
    /// Adaptive routes of large networks need a layout that gives the shortest ways.
    #[error(
        "adaptive routing of more than {HOSTS_OF_SEGMENT_MAX} hosts needs a torus, mesh or \
         hypercube; take auto"
    )]
    NoAdaptive,
    /// Two numberings do not go together.
    #[error("the routes before the change are of another network; compute new ones")]
    OtherNetwork,
}

/// The tables that a vertex has loaded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Loaded {
    /// The bits of the global and local entries of the base layer and of both planes.
    pub layers: [(Vec<u16>, Vec<u16>); 3],
    /// The ports at which it sends a broadcast on.
    pub broadcast: Vec<Port>,
}

/// The routes of a network, for the links that were not cut when they were computed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Routes {
    tables: Tables,
    algorithm: Algorithm,
    /// The hosts, among which Valiant draws.
    hosts: Vec<Vertex>,
    /// The part of the network in which each vertex lies, where cut links leave several; for
    /// Valiant alone.
    parts: Vec<u32>,
    /// The one neighbour of each host that has one link; for Valiant alone.
    turns: Vec<Option<Vertex>>,
}

impl Routes {
    /// Computes the routes of a network.
    ///
    /// # Errors
    /// [`RoutingError`].
    pub fn compute(graph: &Graph, algorithm: Algorithm) -> Result<Self, RoutingError> {
        Self::compute_on(graph, algorithm, Side::A)
    }

    /// Computes the routes of a network with `side` as the active plane, for a network in which
    /// another one is in use.
    ///
    /// # Errors
    /// [`RoutingError`].
    pub fn compute_on(
        graph: &Graph,
        algorithm: Algorithm,
        side: Side,
    ) -> Result<Self, RoutingError> {
        Self::with(graph, algorithm, Numbering::of(graph)?, side)
    }

    /// Computes the routes of a network after links were cut or mended. Hosts keep their numbers.
    /// The new routes use the other plane, and have the old one for the packets that are on it:
    /// see [`Tables::prepared`] for the order in which vertices change.
    ///
    /// # Errors
    /// [`RoutingError`].
    pub fn recompute(&self, graph: &Graph) -> Result<Self, RoutingError> {
        let numbering = self.tables.numbering.clone();
        if Numbering::of(graph)? != numbering {
            return Err(RoutingError::OtherNetwork);
        }
        let side = self.tables.side.other();
        let mut routes = Self::with(graph, self.algorithm, numbering, side)?;
        for (group, members) in self.tables.multicast().members() {
            routes.tables.multicast_mut().set_members(graph, group, members.clone());
        }
        routes.tables.spare = Some(self.tables.active.clone());
        Ok(routes)
    }

    /// The routes of a network whose vertices have loaded these tables, with `side` as the active
    /// plane. `loaded` gives the tables of a vertex; one that gives none has no entries. A vertex
    /// has the number of its place. Only broadcast is known of the groups.
    ///
    /// # Errors
    /// [`RoutingError`] if the network has no numbers.
    pub fn loaded(
        graph: &Graph,
        side: Side,
        base_vcs: u8,
        loaded: impl Fn(Vertex) -> Option<Loaded>,
    ) -> Result<Self, RoutingError> {
        let numbering = Numbering::of(graph)?;
        let all: Vec<Option<Loaded>> = (0..graph.vertices()).map(loaded).collect();
        let layer = |place: usize| {
            let rows: Vec<_> = (all.iter())
                .map(|own| own.as_ref().map(|own| own.layers[place].clone()).unwrap_or_default())
                .collect();
            let is_there =
                rows.iter().any(|(global, local)| !(global.is_empty() && local.is_empty()));
            is_there.then(|| Layer::loaded(graph.vertices(), &numbering, &rows))
        };
        let broadcast = all.iter().map(|own| own.as_ref().map(|own| own.broadcast.clone()));
        let multicast = Multicast::loaded(
            Tree::grow(graph, &numbering),
            broadcast.map(Option::unwrap_or_default),
        );
        let [one, other] = match side {
            Side::A => [1, 2],
            Side::B => [2, 1],
        };
        let spare =
            layer(other).map(|layer| Plane { layer: Some(layer), multicast: multicast.clone() });
        let tables = Tables {
            base: layer(0),
            base_vcs,
            side,
            active: Plane { layer: layer(one), multicast },
            spare,
            adaptive: None,
            numbering,
        };
        let (hosts, parts, turns) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { tables, algorithm: Algorithm::Auto, hosts, parts, turns })
    }

    fn with(
        graph: &Graph,
        algorithm: Algorithm,
        numbering: Numbering,
        side: Side,
    ) -> Result<Self, RoutingError> {
        let wide = |most: Port| (0..graph.vertices()).find(|vertex| graph.ports(*vertex) > most);
        if let Some(vertex) = wide(PORTS_OF_ENTRY_MAX) {
            return Err(RoutingError::Ports(vertex));
        }
        if algorithm == Algorithm::DimensionOrder && !matches!(graph.layout(), Layout::Grid(_)) {
            return Err(RoutingError::NoGrid);
        }
        let tables = match (algorithm, graph.layout()) {
            (Algorithm::UpDown, _) | (_, Layout::Irregular) => up_down(graph, numbering, side),
            _ => regular(graph, numbering, side),
        };
        let tables = if algorithm == Algorithm::Adaptive {
            if let Some(vertex) = wide(32) {
                return Err(RoutingError::PortsOfSet(vertex));
            }
            adaptive(graph, tables)?
        } else {
            tables
        };
        let (hosts, parts, turns) = (Vec::new(), Vec::new(), Vec::new());
        let mut routes = Self { tables, algorithm, hosts, parts, turns };
        if algorithm == Algorithm::Valiant {
            routes.hosts = graph.hosts().collect();
            routes.parts = parts_of(graph);
            let turn = |host| {
                let mut far = (0..graph.ports(host)).filter_map(|port| graph.wired(host, port));
                far.next().filter(|_| far.next().is_none()).map(|(vertex, _)| vertex)
            };
            routes.turns = (0..graph.vertices()).map(turn).collect();
        }
        Ok(routes)
    }

    /// The tables. For Valiant they are those of either half of the way.
    #[must_use]
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The tables, to change the members of groups.
    pub fn tables_mut(&mut self) -> &mut Tables {
        &mut self.tables
    }

    /// The algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The vertex where a packet that visits `via` turns to its destination: `via` itself, or its
    /// switch if it has one link.
    pub(crate) fn turn(&self, via: Vertex) -> Vertex {
        self.turns.get(via as usize).copied().flatten().unwrap_or(via)
    }
}

impl Route for Routes {
    fn vcs(&self) -> u8 {
        let halves = if self.algorithm == Algorithm::Valiant { 2 } else { 1 };
        self.tables.vcs() * halves
    }

    fn next(
        &self,
        at: Vertex,
        arrived: Option<(Port, u8)>,
        heading: &Heading,
        choices: &mut Vec<Choice>,
    ) {
        if self.algorithm != Algorithm::Valiant {
            return self.tables.next(at, arrived, heading, choices);
        }
        let half = self.tables.vcs();
        let is_first = arrived.is_none_or(|(_, vc)| vc < half);
        let via = heading
            .via
            .filter(|via| is_first && self.turn(*via) != at && *via != at && *via != heading.from);
        if at == heading.to {
            choices.clear();
        } else if let Some(via) = via {
            let first = Heading { to: via, ..*heading };
            self.tables.next(at, arrived, &first, choices);
        } else {
            let second = arrived.and_then(|(port, vc)| Some((port, vc.checked_sub(half)?)));
            self.tables.next(at, second, heading, choices);
            for choice in choices {
                choice.vc += half;
            }
        }
    }

    fn via(&self, from: Vertex, to: Vertex, random: u64) -> Option<Vertex> {
        let count = u64::try_from(self.hosts.len()).ok().filter(|count| *count > 0)?;
        let drawn = usize::try_from(random % count).ok()?;
        let via = self.hosts.get(drawn).copied()?;
        // A detour by a host without a way would lose the packet.
        let part = |vertex: Vertex| self.parts.get(vertex as usize);
        (via != from && via != to && part(via) == part(from)).then_some(via)
    }

    // Groups have no detours: they are on the channels of the first half.
    fn forward(
        &self,
        group: u8,
        at: Vertex,
        arrived: Option<(Port, u8)>,
        copies: &mut Vec<Choice>,
    ) {
        self.tables.forward(group, at, arrived, copies);
    }

    fn is_member(&self, group: u8, vertex: Vertex) -> bool {
        self.tables.is_member(group, vertex)
    }
}

/// The part of the network in which each vertex lies.
fn parts_of(graph: &Graph) -> Vec<u32> {
    let mut parts: Vec<Option<u32>> = vec![None; graph.vertices() as usize];
    for vertex in 0..graph.vertices() {
        if parts[vertex as usize].is_none() {
            for (part, hops) in parts.iter_mut().zip(graph.hops(vertex)) {
                *part = part.or(hops.map(|_| vertex));
            }
        }
    }
    parts.into_iter().flatten().collect()
}

fn up_down(graph: &Graph, numbering: Numbering, side: Side) -> Tables {
    let tree = Tree::grow(graph, &numbering);
    let vc = u8::from(side == Side::B);
    let layer = Some(updown::layer(graph, &numbering, &tree, vc));
    Tables {
        numbering,
        base: None,
        base_vcs: 0,
        side,
        active: Plane { layer, multicast: Multicast::new(graph, tree) },
        spare: None,
        adaptive: None,
    }
}

/// The routes of the layout, with detours where links are cut.
fn regular(graph: &Graph, numbering: Numbering, side: Side) -> Tables {
    let tree = Tree::grow(graph, &numbering);
    let (mut base, base_vcs) = base(graph, &numbering);
    let has_cut = graph.links().any(|(_, _, is_cut)| is_cut);
    let vc = base_vcs + u8::from(side == Side::B);
    let layer = has_cut.then(|| updown::layer(graph, &numbering, &tree, vc));
    if let Some(layer) = &layer {
        lead_around(graph, &mut base, layer);
    }
    Tables {
        numbering,
        base: Some(base),
        base_vcs,
        side,
        active: Plane { layer, multicast: Multicast::new(graph, tree) },
        spare: None,
        adaptive: None,
    }
}

/// The base layer of a layout, and its virtual channels.
fn base(graph: &Graph, numbering: &Numbering) -> (Layer<Entry>, u8) {
    let mut base = Layer::new(graph.vertices(), numbering, Entry::NONE);
    let vcs = match graph.layout() {
        Layout::Grid(grid) => {
            let routes = GridRoutes::new(grid, numbering);
            base.fill(
                numbering,
                |at, segment| routes.toward(at, segment).into(),
                |at, to| routes.local(at, to).into(),
            );
            routes.vcs()
        }
        Layout::Full => {
            let none = |_, _| Entry::NONE;
            base.fill(numbering, none, |at, to| indirect::full(at, to).into());
            1
        }
        Layout::FatTree(own) => {
            let first = |segment| numbering.host(segment, 0).unwrap_or(0);
            base.fill(
                numbering,
                |at, segment| indirect::fat_tree(own, at, first(segment), at + segment).into(),
                |at, to| indirect::fat_tree(own, at, to, to).into(),
            );
            1
        }
        Layout::Dragonfly(own) => {
            let first = |segment| numbering.host(segment, 0).unwrap_or(0);
            base.fill(
                numbering,
                |at, segment| indirect::dragonfly(own, at, first(segment)).into(),
                |at, to| indirect::dragonfly(own, at, to).into(),
            );
            2
        }
        Layout::Irregular => 0,
    };
    (base, vcs)
}

/// Replaces base entries whose link is cut by those of the detour layer.
fn lead_around(graph: &Graph, base: &mut Layer<Entry>, detour: &Layer<Entry>) {
    for vertex in 0..graph.vertices() {
        let is_whole = (0..graph.ports(vertex)).all(|port| !graph.is_cut(vertex, port));
        if is_whole {
            continue;
        }
        base.replace(vertex, detour, |own| {
            own.choice().is_some_and(|choice| graph.far(vertex, choice.port).is_none())
        });
    }
}

/// Adds the ports of shortest ways.
fn adaptive(graph: &Graph, mut tables: Tables) -> Result<Tables, RoutingError> {
    let numbering = &tables.numbering;
    let mut ports = Layer::new(graph.vertices(), numbering, 0_u32);
    let returns = match graph.layout() {
        Layout::Grid(grid) if tables.base.is_some() => {
            let routes = GridRoutes::new(grid, numbering);
            let live: Vec<u32> =
                (0..graph.vertices()).map(|vertex| live_ports(graph, vertex)).collect();
            ports.fill(
                numbering,
                |at, segment| routes.ports_toward(at, segment) & live[at as usize],
                |at, to| routes.ports_local(at, to) & live[at as usize],
            );
            true
        }
        _ if numbering.segments() > 1 => return Err(RoutingError::NoAdaptive),
        _ => {
            closer(graph, numbering, &mut ports);
            false
        }
    };
    let vc = tables.base_vcs + 2;
    tables.adaptive = Some(Adaptive { ports, vc, returns });
    Ok(tables)
}

/// The ports towards neighbours that are closer to each host.
fn closer(graph: &Graph, numbering: &Numbering, ports: &mut Layer<u32>) {
    for place in 0..numbering.width() {
        let Some(to) = numbering.host(0, place) else { continue };
        let hops = graph.hops(to);
        for at in 0..graph.vertices() {
            let Some(far) = hops[at as usize] else { continue };
            let is_closer = |next: Vertex| hops[next as usize].is_some_and(|hops| hops < far);
            let own = graph.neighbours(at).filter(|(_, (next, _))| is_closer(*next));
            let set = own.fold(0, |set, (port, _)| set | 1 << port);
            ports.set(at, Target::Place(place), set);
        }
    }
}
