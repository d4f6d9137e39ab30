//! Layer 0: nodes and the links between them.
//!
//! - [`Graph`]: hosts and switches with ports, and the links between them, some of which are cut.
//! - [`layout`]: the regular forms of graphs, from which routes are computed.
//! - [`shape`]: the initial links of a lab: all pairs, a torus, or a list.
//! - [`Topology`]: the nodes and links of a lab.
//!
//! If a link is cut, frames take other links, as in a fabric whose nodes forward for each other by
//! routing tables (003 section 3.3.3). A node to which no path leads is out of reach.
#![forbid(unsafe_code)]

mod graph;
pub mod layout;
pub mod shape;

use std::collections::{BTreeSet, VecDeque};

use thiserror::Error;

pub use graph::{
    End, Graph, GraphBuilder, GraphError, Kind, LinkClass, PORTS_MAX, Port, VERTICES_MAX, Vertex,
};
pub use layout::Layout;
pub use shape::{Shape, ShapeError};

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

/// Nodes, their links, and the set of links that are cut.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    neighbours: Vec<Vec<u16>>,
    cut: BTreeSet<Link>,
}

impl Topology {
    /// `nodes` nodes with `links`, none of which is cut.
    ///
    /// # Panics
    /// When a link names a node from `nodes` on.
    #[must_use]
    pub fn new(nodes: u16, links: impl IntoIterator<Item = Link>) -> Self {
        let links: BTreeSet<Link> = links.into_iter().filter(|link| link.0 != link.1).collect();
        let mut neighbours = vec![Vec::new(); usize::from(nodes)];
        for Link(a, b) in links {
            neighbours[usize::from(a)].push(b);
            neighbours[usize::from(b)].push(a);
        }
        Self { neighbours, cut: BTreeSet::new() }
    }

    /// The number of nodes.
    #[must_use]
    pub fn nodes(&self) -> u16 {
        u16::try_from(self.neighbours.len()).unwrap_or(u16::MAX)
    }

    /// Every link, and whether it is cut.
    pub fn links(&self) -> impl Iterator<Item = (Link, bool)> {
        (0..).zip(&self.neighbours).flat_map(move |(node, neighbours)| {
            let higher = neighbours.iter().filter(move |other| **other > node);
            higher.map(move |other| {
                let link = Link(node, *other);
                (link, self.cut.contains(&link))
            })
        })
    }

    /// The links that are cut.
    pub fn cut(&self) -> impl Iterator<Item = Link> {
        self.cut.iter().copied()
    }

    /// Cuts a link, or mends it.
    ///
    /// # Errors
    /// [`NoLink`] if there is no such link.
    pub fn set(&mut self, link: Link, is_cut: bool) -> Result<(), NoLink> {
        let Link(a, b) = link;
        let neighbours = self.neighbours.get(usize::from(a)).ok_or(NoLink(link))?;
        if !neighbours.contains(&b) {
            return Err(NoLink(link));
        }
        if is_cut {
            self.cut.insert(link);
        } else {
            self.cut.remove(&link);
        }
        Ok(())
    }

    /// The distance of every node from `node` in links that are not cut. `None` for a node to which
    /// no path leads.
    #[must_use]
    pub fn hops(&self, node: u16) -> Vec<Option<u16>> {
        let mut hops = vec![None; self.neighbours.len()];
        if usize::from(node) >= hops.len() {
            return hops;
        }
        hops[usize::from(node)] = Some(0);
        let mut next = VecDeque::from([(node, 0)]);
        while let Some((here, far)) = next.pop_front() {
            for there in &self.neighbours[usize::from(here)] {
                let place = &mut hops[usize::from(*there)];
                if place.is_none() && !self.cut.contains(&Link::between(here, *there)) {
                    *place = Some(far + 1);
                    next.push_back((*there, far + 1));
                }
            }
        }
        hops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let alone = Topology::new(3, [Link(0, 1), Link(2, 2)]);
        assert_eq!(alone.hops(2), [None, None, Some(0)]);
        assert_eq!(alone.hops(9), [None; 3]);
        assert_eq!(alone.links().collect::<Vec<_>>(), [(Link(0, 1), false)]);
    }
}
