//! Graphs of hosts and switches with numbered ports, and the links between ports.
//!
//! # Invariants
//! - A link joins two ports, and a port has at most one link: `wired(a) == b` when `wired(b) == a`.
//! - A vertex has no link to itself. Two vertices may have several links.
//! - A cut link stays in the graph. It is cut at both ends.

use thiserror::Error;

use crate::layout::Layout;

/// The number of a vertex, from 0.
pub type Vertex = u32;

/// The number of a port of a vertex, from 0.
pub type Port = u16;

/// One end of a link.
pub type End = (Vertex, Port);

/// The ports of a graph at most. It bounds the memory of a mistyped number, to about 100 MB.
pub const PORTS_MAX: usize = 1 << 23;

/// The vertices of a graph at most.
pub const VERTICES_MAX: usize = 1 << 20;

/// The use of a vertex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// It sends and receives packets. One with several links also forwards, as the NIC of a direct
    /// network does.
    Host,
    /// It forwards packets and is the source and the destination of none.
    Switch,
}

/// The properties of a link that a file may state. Zero stands for a value that it does not state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct LinkClass {
    /// Bits in a second, each way.
    pub bandwidth: u64,
    /// Nanoseconds from end to end.
    pub latency: u64,
    /// The cost of a packet that takes the link, for routing. One with a higher weight is avoided.
    pub weight: u32,
}

/// Why a graph cannot be built.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum GraphError {
    /// It has more vertices than a graph may have.
    #[error("the graph has more than {VERTICES_MAX} vertices; take a smaller one")]
    Vertices,
    /// It has more ports than a graph may have.
    #[error("the graph has more than {PORTS_MAX} ports, or a vertex has more than 65535")]
    Ports,
    /// A link leads from a vertex to itself.
    #[error("vertex {0} has a link to itself; remove the link")]
    Loop(Vertex),
    /// There is no such vertex.
    #[error("there is no vertex {0}; add it before its links")]
    Vertex(Vertex),
    /// Two links use the same port.
    #[error("port {1} of vertex {0} has two links; give one of them another port")]
    Port(Vertex, Port),
    /// The links have more classes than a graph can tell apart.
    #[error("the links have more than 65535 different properties; round them")]
    Classes,
}

const NOBODY: Vertex = Vertex::MAX;

/// Hosts and switches, and the links between their ports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Graph {
    kinds: Vec<Kind>,
    /// The place of the first port of each vertex, and the end.
    first: Vec<u32>,
    /// The vertex and the port at the other end, by place. `NOBODY` where there is no link.
    far_vertex: Vec<Vertex>,
    far_port: Vec<Port>,
    is_cut: Vec<bool>,
    /// The class of each link, by place; empty if all are of class 0.
    class_of: Vec<u16>,
    classes: Vec<LinkClass>,
    /// The names of the vertices; empty if they have none of their own.
    names: Vec<String>,
    layout: Layout,
}

impl Graph {
    /// The number of vertices.
    #[must_use]
    pub fn vertices(&self) -> Vertex {
        // The builder refuses more than `VERTICES_MAX`.
        Vertex::try_from(self.kinds.len()).unwrap_or(NOBODY)
    }

    /// The vertices that are hosts, in ascending order.
    pub fn hosts(&self) -> impl Iterator<Item = Vertex> {
        (0..).zip(&self.kinds).filter(|(_, kind)| **kind == Kind::Host).map(|(vertex, _)| vertex)
    }

    /// The use of `vertex`; `None` if there is no such vertex.
    #[must_use]
    pub fn kind(&self, vertex: Vertex) -> Option<Kind> {
        self.kinds.get(index(vertex)).copied()
    }

    /// The number of ports of `vertex`, with those that have no link. Zero if there is no such
    /// vertex.
    #[must_use]
    pub fn ports(&self, vertex: Vertex) -> Port {
        let ports = self.first.get(index(vertex) + 1).map(|end| end - self.first[index(vertex)]);
        // The builder refuses a vertex with more.
        ports.and_then(|ports| Port::try_from(ports).ok()).unwrap_or(0)
    }

    /// The place of a port among all ports of the graph, which also numbers the channel that leads
    /// out of it. `None` if there is no such port.
    #[must_use]
    pub fn channel(&self, vertex: Vertex, port: Port) -> Option<u32> {
        (port < self.ports(vertex)).then(|| self.first[index(vertex)] + u32::from(port))
    }

    /// The number of ports of the graph, which is the end of the numbers of channels.
    #[must_use]
    pub fn channels(&self) -> u32 {
        self.first.last().copied().unwrap_or(0)
    }

    /// The port out of which a channel leads; `None` if there is no such channel.
    #[must_use]
    pub fn source(&self, channel: u32) -> Option<End> {
        if channel >= self.channels() {
            return None;
        }
        let vertex = self.first.partition_point(|first| *first <= channel) - 1;
        let port = Port::try_from(channel - self.first[vertex]).ok()?;
        Vertex::try_from(vertex).ok().map(|vertex| (vertex, port))
    }

    /// The other end of the link at a port. `None` if there is no such port, no link, or it is cut.
    #[must_use]
    pub fn far(&self, vertex: Vertex, port: Port) -> Option<End> {
        let channel = index(self.channel(vertex, port)?);
        let far = self.far_vertex[channel];
        (far != NOBODY && !self.is_cut[channel]).then(|| (far, self.far_port[channel]))
    }

    /// The other end of the link at a port, whether or not it is cut.
    #[must_use]
    pub fn wired(&self, vertex: Vertex, port: Port) -> Option<End> {
        let channel = index(self.channel(vertex, port)?);
        let far = self.far_vertex[channel];
        (far != NOBODY).then(|| (far, self.far_port[channel]))
    }

    /// The links of `vertex` that are not cut: its port, and the other end.
    pub fn neighbours(&self, vertex: Vertex) -> impl Iterator<Item = (Port, End)> {
        (0..self.ports(vertex)).filter_map(move |port| Some((port, self.far(vertex, port)?)))
    }

    /// Every link, the lower end first, and whether it is cut.
    pub fn links(&self) -> impl Iterator<Item = (End, End, bool)> {
        (0..self.vertices()).flat_map(move |vertex| {
            (0..self.ports(vertex)).filter_map(move |port| {
                let far = self.wired(vertex, port)?;
                ((vertex, port) < far).then(|| ((vertex, port), far, self.is_cut(vertex, port)))
            })
        })
    }

    /// True when the port has a link and it is cut.
    #[must_use]
    pub fn is_cut(&self, vertex: Vertex, port: Port) -> bool {
        self.channel(vertex, port).is_some_and(|channel| self.is_cut[index(channel)])
    }

    /// Cuts the link at a port, or mends it. False if there is no such link.
    pub fn set_cut(&mut self, vertex: Vertex, port: Port, is_cut: bool) -> bool {
        let ends = self.wired(vertex, port).map(|far| [(vertex, port), far]);
        for (vertex, port) in ends.into_iter().flatten() {
            if let Some(channel) = self.channel(vertex, port) {
                self.is_cut[index(channel)] = is_cut;
            }
        }
        ends.is_some()
    }

    /// Cuts all links of `vertex`, or mends them.
    pub fn set_isolated(&mut self, vertex: Vertex, is_isolated: bool) {
        for port in 0..self.ports(vertex) {
            self.set_cut(vertex, port, is_isolated);
        }
    }

    /// The properties of the link at a port.
    #[must_use]
    pub fn class(&self, vertex: Vertex, port: Port) -> LinkClass {
        let channel = self.channel(vertex, port).map(index);
        let class = channel.and_then(|channel| self.class_of.get(channel)).copied().unwrap_or(0);
        self.classes.get(usize::from(class)).copied().unwrap_or_default()
    }

    /// The name of `vertex`: its own, or `n` or `s` and its number for a host or a switch.
    #[must_use]
    pub fn name(&self, vertex: Vertex) -> String {
        match (self.names.get(index(vertex)), self.kind(vertex)) {
            (Some(name), _) => name.clone(),
            (None, Some(Kind::Switch)) => format!("s{vertex}"),
            (None, _) => format!("n{vertex}"),
        }
    }

    /// The vertex with this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Vertex> {
        if let Some(place) = self.names.iter().position(|own| own == name) {
            return Vertex::try_from(place).ok();
        }
        let digits = name.strip_prefix(['n', 's']).unwrap_or(name);
        let vertex = digits.parse().ok().filter(|vertex| *vertex < self.vertices())?;
        let is_its_name = digits == name || self.name(vertex) == name;
        (self.names.is_empty() && is_its_name).then_some(vertex)
    }

    /// The regular form from which the graph was generated, if any. Links that were cut later do
    /// not change it.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The distance of every vertex from `vertex` in links that are not cut. `None` for a vertex to
    /// which no path leads.
    #[must_use]
    pub fn hops(&self, vertex: Vertex) -> Vec<Option<u32>> {
        let mut hops = vec![None; self.kinds.len()];
        if index(vertex) >= hops.len() {
            return hops;
        }
        hops[index(vertex)] = Some(0);
        let mut level = vec![vertex];
        let mut far = 0;
        while !level.is_empty() {
            far += 1;
            let mut next = Vec::new();
            for here in level {
                for (_, (there, _)) in self.neighbours(here) {
                    if hops[index(there)].is_none() {
                        hops[index(there)] = Some(far);
                        next.push(there);
                    }
                }
            }
            level = next;
        }
        hops
    }
}

/// The place of a number in a table.
#[must_use]
pub(crate) const fn index(number: u32) -> usize {
    // Targets have pointers of 32 bits or more.
    number as usize
}

/// Builds a [`Graph`]: vertices first, then their links.
#[derive(Clone, Debug, Default)]
pub struct GraphBuilder {
    kinds: Vec<Kind>,
    ports: Vec<u32>,
    links: Vec<(End, End, u16)>,
    classes: Vec<LinkClass>,
    names: Vec<String>,
}

impl GraphBuilder {
    /// A graph without vertices.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `count` vertices without names, with `ports` ports each, and returns the first.
    ///
    /// # Errors
    /// [`GraphError::Vertices`].
    pub fn vertices(&mut self, kind: Kind, count: u32, ports: Port) -> Result<Vertex, GraphError> {
        let first = self.kinds.len();
        if first + index(count) > VERTICES_MAX {
            return Err(GraphError::Vertices);
        }
        self.kinds.resize(first + index(count), kind);
        self.ports.resize(first + index(count), ports.into());
        Vertex::try_from(first).map_err(|_| GraphError::Vertices)
    }

    /// Adds a vertex with a name. A graph names all of its vertices or none.
    ///
    /// # Errors
    /// [`GraphError::Vertices`].
    pub fn named(&mut self, kind: Kind, name: &str) -> Result<Vertex, GraphError> {
        let vertex = self.vertices(kind, 1, 0)?;
        self.names.push(name.to_owned());
        Ok(vertex)
    }

    /// Adds a link between the next free ports of `a` and `b`.
    ///
    /// # Errors
    /// Those of [`GraphBuilder::link`].
    pub fn join(&mut self, a: Vertex, b: Vertex, class: LinkClass) -> Result<(), GraphError> {
        let free = |vertex: Vertex| {
            let ports = self.ports.get(index(vertex)).ok_or(GraphError::Vertex(vertex))?;
            Port::try_from(*ports).map_err(|_| GraphError::Ports)
        };
        let (port_a, port_b) = (free(a)?, free(b)?);
        self.link((a, port_a), (b, port_b), class)
    }

    /// Adds a link between two ports. A vertex gets the ports up to the highest that is named.
    ///
    /// # Errors
    /// [`GraphError::Vertex`], [`GraphError::Loop`], [`GraphError::Ports`] and
    /// [`GraphError::Classes`]. [`GraphBuilder::build`] tells of ports with two links.
    pub fn link(&mut self, a: End, b: End, class: LinkClass) -> Result<(), GraphError> {
        if a.0 == b.0 {
            return Err(GraphError::Loop(a.0));
        }
        let class = self.class(class)?;
        if self.links.len() >= PORTS_MAX / 2 {
            return Err(GraphError::Ports);
        }
        for (vertex, port) in [a, b] {
            let ports = self.ports.get_mut(index(vertex)).ok_or(GraphError::Vertex(vertex))?;
            *ports = (*ports).max(u32::from(port) + 1);
            if *ports > u32::from(Port::MAX) {
                return Err(GraphError::Ports);
            }
        }
        self.links.push((a, b, class));
        Ok(())
    }

    fn class(&mut self, class: LinkClass) -> Result<u16, GraphError> {
        // Links of one class mostly come one after the other.
        let place = match self.classes.iter().rposition(|known| *known == class) {
            Some(place) => place,
            None => {
                self.classes.push(class);
                self.classes.len() - 1
            }
        };
        u16::try_from(place).map_err(|_| GraphError::Classes)
    }

    /// The graph, with the layout from which it was generated.
    ///
    /// # Errors
    /// [`GraphError::Ports`] if there are too many, [`GraphError::Port`] if two links use one.
    pub fn build(self, layout: Layout) -> Result<Graph, GraphError> {
        let mut first = Vec::with_capacity(self.ports.len() + 1);
        let mut end = 0_u32;
        first.push(0);
        for ports in &self.ports {
            end = end.checked_add(*ports).ok_or(GraphError::Ports)?;
            first.push(end);
        }
        if index(end) > PORTS_MAX {
            return Err(GraphError::Ports);
        }
        let is_of_one_class = self.classes.len() <= 1;
        let mut graph = Graph {
            kinds: self.kinds,
            first,
            far_vertex: vec![NOBODY; index(end)],
            far_port: vec![0; index(end)],
            is_cut: vec![false; index(end)],
            class_of: if is_of_one_class { Vec::new() } else { vec![0; index(end)] },
            classes: self.classes,
            names: self.names,
            layout,
        };
        for (a, b, class) in self.links {
            for (own, far) in [(a, b), (b, a)] {
                let channel = index(graph.first[index(own.0)] + u32::from(own.1));
                if graph.far_vertex[channel] != NOBODY {
                    return Err(GraphError::Port(own.0, own.1));
                }
                (graph.far_vertex[channel], graph.far_port[channel]) = far;
                if let Some(place) = graph.class_of.get_mut(channel) {
                    *place = class;
                }
            }
        }
        Ok(graph)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_with_two_links() -> Graph {
        let mut builder = GraphBuilder::new();
        let first = builder.vertices(Kind::Host, 2, 0).expect("room for two");
        let switch = builder.vertices(Kind::Switch, 1, 4).expect("room for a switch");
        assert_eq!((first, switch), (0, 2));
        let slow = LinkClass { latency: 500, ..LinkClass::default() };
        builder.join(0, 1, LinkClass::default()).expect("a link");
        builder.join(0, 1, slow).expect("a second link");
        builder.link((2, 3), (1, 4), slow).expect("a link at named ports");
        builder.build(Layout::Irregular).expect("a graph")
    }

    #[test]
    fn links_are_seen_from_both_ends() {
        let graph = two_with_two_links();
        assert_eq!(graph.far(0, 1), Some((1, 1)));
        assert_eq!(graph.far(1, 1), Some((0, 1)));
        assert_eq!((graph.far(1, 4), graph.far(2, 3)), (Some((2, 3)), Some((1, 4))));
        assert_eq!((graph.far(1, 2), graph.far(2, 0), graph.far(9, 0)), (None, None, None));
        assert_eq!((graph.ports(0), graph.ports(1), graph.ports(2)), (2, 5, 4));
        assert_eq!((graph.class(0, 1).latency, graph.class(0, 0).latency), (500, 0));
        assert_eq!(graph.hosts().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(graph.links().count(), 3);
        let channel = graph.channel(1, 4).expect("the port is there");
        assert_eq!(graph.source(channel), Some((1, 4)));
        assert_eq!(graph.source(graph.channels()), None);
    }

    #[test]
    fn a_cut_link_is_cut_at_both_ends_and_can_be_mended() {
        let mut graph = two_with_two_links();
        assert!(graph.set_cut(2, 3, true));
        assert!(!graph.set_cut(2, 0, true), "no link is there");
        assert_eq!((graph.far(1, 4), graph.far(2, 3)), (None, None));
        assert_eq!(graph.wired(1, 4), Some((2, 3)));
        assert_eq!(graph.hops(0), [Some(0), Some(1), None]);
        assert!(graph.set_cut(1, 4, false));
        assert_eq!(graph.hops(0), [Some(0), Some(1), Some(2)]);
        graph.set_isolated(1, true);
        assert_eq!(graph.hops(0), [Some(0), None, None]);
    }

    #[test]
    fn faults_of_a_description_are_named() {
        let mut builder = GraphBuilder::new();
        builder.vertices(Kind::Host, 3, 0).expect("room for three");
        let class = LinkClass::default();
        assert_eq!(builder.join(1, 1, class), Err(GraphError::Loop(1)));
        assert_eq!(builder.join(1, 3, class), Err(GraphError::Vertex(3)));
        assert_eq!(builder.vertices(Kind::Host, u32::MAX, 0), Err(GraphError::Vertices));
        builder.link((0, 0), (1, 0), class).expect("a link");
        builder.link((2, 0), (1, 0), class).expect("a link");
        assert_eq!(builder.build(Layout::Irregular), Err(GraphError::Port(1, 0)));
    }

    #[test]
    fn vertices_are_found_by_name() {
        let graph = two_with_two_links();
        assert_eq!((graph.name(1), graph.name(2)), ("n1".into(), "s2".into()));
        assert_eq!(
            ["1", "n1", "s2", "n2", "n7"].map(|name| graph.find(name)),
            [Some(1), Some(1), Some(2), None, None]
        );
    }
}
