//! The network as a manager knows it: nodes by the number that they were made with, their links,
//! and the graph from which routes are computed.
//!
//! # Invariants
//! - A node keeps its vertex, and with it its number, for as long as a manager rules. The next
//!   manager takes the numbers from the nodes.
//! - A link that was seen once stays in the graph. It is cut while it is not seen.

use std::collections::{BTreeMap, BTreeSet};

use weft_routing::numbering::HOSTS_OF_SEGMENT_MAX;
use weft_topology::difference::{Difference, differences};
use weft_topology::{
    End, Graph, GraphBuilder, GraphError, Kind, Layout, LinkClass, PORTS_MAX, Port, VERTICES_MAX,
    Vertex,
};

use crate::message::Identity;

/// The network that a manager was told to expect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expected {
    /// The links, by port.
    pub graph: Graph,
    /// The number with which the node of each vertex was made.
    pub guids: Vec<u64>,
}

/// An end of a link by the number of its node.
pub(crate) type GuidEnd = (u64, Port);

/// The result of a sweep.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// The nodes that answered, and the way to each.
    pub(crate) nodes: BTreeMap<u64, (Identity, Vec<Port>)>,
    /// Their links, the lower end first.
    pub(crate) links: BTreeSet<(GuidEnd, GuidEnd)>,
}

/// The number that an earlier manager gave to a host. A higher one than networks of no regular form
/// have is left out.
fn number(identity: &Identity) -> Option<u16> {
    let is_possible = |number: &u16| u32::from(*number) < HOSTS_OF_SEGMENT_MAX;
    identity.number.filter(is_possible).filter(|_| !identity.is_switch)
}

/// All nodes and links that were ever seen or expected.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    expected: Option<Expected>,
    /// The node of each vertex. `None` for a number whose node was not seen.
    vertices: Vec<Option<u64>>,
    kinds: Vec<Kind>,
    places: BTreeMap<u64, Vertex>,
    links: BTreeSet<(GuidEnd, GuidEnd)>,
    ports: BTreeMap<u64, Port>,
}

impl Network {
    pub(crate) fn new(expected: Option<Expected>) -> Self {
        let mut own = Self {
            expected,
            vertices: Vec::new(),
            kinds: Vec::new(),
            places: BTreeMap::new(),
            links: BTreeSet::new(),
            ports: BTreeMap::new(),
        };
        if let Some(expected) = own.expected.clone() {
            for (vertex, guid) in (0..).zip(expected.guids) {
                let kind = expected.graph.kind(vertex).unwrap_or(Kind::Host);
                own.vertices.push(Some(guid));
                own.kinds.push(kind);
                own.places.insert(guid, vertex);
            }
        }
        own
    }

    /// The vertex of a node.
    pub(crate) fn vertex(&self, guid: u64) -> Option<Vertex> {
        self.places.get(&guid).copied()
    }

    /// The name of a node in messages for people.
    fn name(&self, guid: u64) -> String {
        let expected = self.expected.as_ref();
        let named = expected.zip(self.vertex(guid)).map(|(own, vertex)| own.graph.name(vertex));
        named.unwrap_or_else(|| format!("guid-{guid:x}"))
    }

    /// Takes the result of a sweep in. Nodes and links that are new get their places.
    pub(crate) fn take(&mut self, found: &Found) {
        if self.expected.is_some() {
            return;
        }
        // A first sweep keeps the numbers that an earlier manager gave.
        let mut new: Vec<_> = (found.nodes.iter())
            .filter(|(guid, _)| !self.places.contains_key(guid))
            .map(|(guid, (identity, _))| (identity.is_switch, number(identity), *guid))
            .collect();
        new.sort_by_key(|(is_switch, number, guid)| {
            (*is_switch, number.unwrap_or(u16::MAX), *guid)
        });
        for (is_switch, number, guid) in new {
            if self.vertices.len() >= VERTICES_MAX {
                return;
            }
            let kind = if is_switch { Kind::Switch } else { Kind::Host };
            // Hosts are numbered in the order of their vertices.
            let hosts = self.kinds.iter().filter(|own| **own == Kind::Host).count();
            for _ in hosts..number.map_or(0, |number| usize::from(number) + 1) {
                self.vertices.push(None);
                self.kinds.push(Kind::Host);
            }
            let vertex = number.and_then(|number| self.free(number));
            let vertex = vertex.unwrap_or_else(|| {
                self.vertices.push(None);
                self.kinds.push(kind);
                self.vertices.len() - 1
            });
            self.vertices[vertex] = Some(guid);
            // There are fewer vertices than numbers.
            self.places.insert(guid, Vertex::try_from(vertex).unwrap_or(Vertex::MAX));
        }
        for (guid, (identity, _)) in &found.nodes {
            let ports = Port::try_from(identity.ports.len()).unwrap_or(Port::MAX);
            let own = self.ports.entry(*guid).or_insert(0);
            *own = (*own).max(ports);
        }
        if self.links.len() <= PORTS_MAX {
            self.links.extend(found.links.iter().copied());
        }
    }

    /// The vertex of a number, if no node has it yet.
    fn free(&self, number: u16) -> Option<usize> {
        let mut hosts = (0..self.kinds.len()).filter(|vertex| self.kinds[*vertex] == Kind::Host);
        hosts.nth(number.into()).filter(|vertex| self.vertices[*vertex].is_none())
    }

    /// The graph, with the links cut that a sweep did not see.
    ///
    /// # Errors
    /// [`GraphError`] if nodes told links that cannot be.
    pub(crate) fn graph(&self, found: &Found) -> Result<Graph, GraphError> {
        let mut graph = match &self.expected {
            Some(expected) => expected.graph.clone(),
            None => self.build()?,
        };
        let is_up = |graph: &Graph, a: End, b: End| {
            let guid = |end: End| Some((*self.vertices.get(end.0 as usize)?.as_ref()?, end.1));
            let ends = guid(a).zip(guid(b));
            ends.is_some_and(|(a, b)| found.links.contains(&(a.min(b), a.max(b))))
                && graph.wired(a.0, a.1) == Some(b)
        };
        let ends: Vec<(End, End)> = graph.links().map(|(a, b, _)| (a, b)).collect();
        for (a, b) in ends {
            let is_cut = !is_up(&graph, a, b);
            graph.set_cut(a.0, a.1, is_cut);
        }
        Ok(graph)
    }

    fn build(&self) -> Result<Graph, GraphError> {
        let mut builder = GraphBuilder::new();
        for (vertex, kind) in self.vertices.iter().zip(&self.kinds) {
            let ports = vertex.and_then(|guid| self.ports.get(&guid)).copied().unwrap_or(0);
            builder.vertices(*kind, 1, ports)?;
        }
        // Nodes may tell two links of one port, while a cable is moved. The graph has one.
        let mut taken = BTreeSet::new();
        for (a, b) in &self.links {
            let (Some(from), Some(to)) = (self.vertex(a.0), self.vertex(b.0)) else { continue };
            let (from, to) = ((from, a.1), (to, b.1));
            if from.0 != to.0 && !taken.contains(&from) && !taken.contains(&to) {
                taken.extend([from, to]);
                builder.link(from, to, LinkClass::default())?;
            }
        }
        builder.build(Layout::Irregular)
    }

    /// Forgets links that a sweep did not see and whose ports it saw otherwise.
    pub(crate) fn forget_moved(&mut self, found: &Found) {
        let seen: BTreeSet<GuidEnd> = found.links.iter().flat_map(|(a, b)| [*a, *b]).collect();
        self.links.retain(|link| {
            found.links.contains(link) || !seen.contains(&link.0) && !seen.contains(&link.1)
        });
    }

    /// The differences between the network that was found and the expected one.
    pub(crate) fn differences(&self, found: &Found) -> Result<Vec<Difference>, GraphError> {
        let Some(expected) = &self.expected else { return Ok(Vec::new()) };
        let mut builder = GraphBuilder::new();
        let mut places = BTreeMap::new();
        for (guid, (identity, _)) in &found.nodes {
            let kind = if identity.is_switch { Kind::Switch } else { Kind::Host };
            places.insert(*guid, builder.named(kind, &self.name(*guid))?);
        }
        for (a, b) in &found.links {
            if let (Some(from), Some(to)) = (places.get(&a.0), places.get(&b.0))
                && from != to
            {
                builder.link((*from, a.1), (*to, b.1), LinkClass::default())?;
            }
        }
        Ok(differences(&expected.graph, &builder.build(Layout::Irregular)?, true))
    }

    /// The nodes of all vertices.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (Vertex, u64)> {
        (0..).zip(&self.vertices).filter_map(|(vertex, guid)| Some((vertex, (*guid)?)))
    }
}
