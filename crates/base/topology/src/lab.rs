//! The nodes of a lab and the links between them, some of which are cut.
//!
//! If a link is cut, frames take other links, as in a fabric whose nodes forward for each other by
//! routing tables (EXTOLL-THESIS#3.3.3). A node to which no path leads is out of reach.

use std::collections::BTreeSet;

use thiserror::Error;

use crate::graph::{Graph, Port, Vertex};

/// There is no such link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("n{} and n{} have no link; `weft lab link` lists those that there are", .0.0, .0.1)]
pub struct NoLink(pub Link);

/// A link between two nodes, the lower number first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Link(pub u16, pub u16);

impl Link {
    /// The link between `a` and `b`, in either order.
    #[must_use]
    pub const fn between(a: u16, b: u16) -> Self {
        if a < b { Self(a, b) } else { Self(b, a) }
    }
}

/// A graph of nodes of which any two have at most one link, so that a link is named by its nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    graph: Graph,
}

impl Topology {
    /// The nodes and links of a graph without switches, numbered as they are there. `None` if it
    /// has a switch, too many nodes, or two links between the same nodes.
    #[must_use]
    pub fn of(graph: Graph) -> Option<Self> {
        u16::try_from(graph.vertices()).ok()?;
        let has_switch = graph.hosts().count() < graph.vertices() as usize;
        let links = graph.links().map(|(a, b, _)| (a.0, b.0)).collect::<BTreeSet<_>>();
        let has_twins = links.len() < graph.links().count();
        (!has_switch && !has_twins).then_some(Self { graph })
    }

    /// The nodes and links, with those cut that are.
    #[must_use]
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The number of nodes.
    #[must_use]
    pub fn nodes(&self) -> u16 {
        u16::try_from(self.graph.vertices()).unwrap_or(u16::MAX)
    }

    /// Every link, and whether it is cut.
    pub fn links(&self) -> impl Iterator<Item = (Link, bool)> {
        let mut links: Vec<_> = (self.graph.links())
            .filter_map(|(a, b, is_cut)| {
                Some((Link::between(a.0.try_into().ok()?, b.0.try_into().ok()?), is_cut))
            })
            .collect();
        links.sort_unstable();
        links.into_iter()
    }

    /// The links that are cut.
    pub fn cut(&self) -> impl Iterator<Item = Link> {
        self.links().filter(|(_, is_cut)| *is_cut).map(|(link, _)| link)
    }

    /// Cuts a link, or mends it.
    ///
    /// # Errors
    /// [`NoLink`] if there is no such link.
    pub fn set(&mut self, link: Link, is_cut: bool) -> Result<(), NoLink> {
        let (a, b) = (Vertex::from(link.0), Vertex::from(link.1));
        let leads = |port: &Port| self.graph.wired(a, *port).is_some_and(|(far, _)| far == b);
        let port = (0..self.graph.ports(a)).find(leads).ok_or(NoLink(link))?;
        self.graph.set_cut(a, port, is_cut);
        Ok(())
    }

    /// The distance of every node from `node` in links that are not cut. `None` for a node to which
    /// no path leads.
    #[must_use]
    pub fn hops(&self, node: u16) -> Vec<Option<u32>> {
        self.graph.hops(node.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;

    fn of(text: &str) -> Topology {
        text.parse::<Shape>().and_then(|shape| shape.topology(None)).expect("a shape")
    }

    #[test]
    fn a_ring_is_connected_until_it_is_cut_twice() {
        let mut ring = of("torus:5");
        assert_eq!(ring.hops(0), [0, 1, 2, 2, 1].map(Some));
        assert_eq!(ring.set(Link::between(1, 0), true), Ok(()));
        assert_eq!(ring.hops(0), [0, 4, 3, 2, 1].map(Some));
        assert_eq!(ring.set(Link::between(2, 3), true), Ok(()));
        assert_eq!(ring.hops(0), [Some(0), None, None, Some(2), Some(1)]);
        assert_eq!(ring.cut().collect::<Vec<_>>(), [Link(0, 1), Link(2, 3)]);
        assert_eq!(ring.set(Link::between(0, 1), false), Ok(()));
        assert_eq!(ring.hops(2), [Some(2), Some(1), Some(0), Some(4), Some(3)]);
        assert_eq!(ring.set(Link(0, 2), true), Err(NoLink(Link(0, 2))));
        assert_eq!(ring.set(Link(7, 9), true), Err(NoLink(Link(7, 9))));
    }

    #[test]
    fn nodes_without_links_are_unreachable() {
        let shape: Shape = "links:0-1".parse().expect("a shape");
        let alone = shape.topology(Some(3)).expect("the nodes are there");
        assert_eq!(alone.hops(2), [None, None, Some(0)]);
        assert_eq!(alone.hops(9), [None; 3]);
        assert_eq!(alone.links().collect::<Vec<_>>(), [(Link(0, 1), false)]);
        assert!(shape.topology(Some(1)).is_err());
    }
}
