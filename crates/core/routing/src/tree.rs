//! A spanning tree, and the order of vertices by which links are up or down.
//!
//! # Invariants
//! - Each segment that the numbering has is connected in the tree, if its links connect it.
//! - The parent of a vertex has a lower rank. A link leads up towards the lower rank. Since ranks
//!   are an order, no path that goes up and then down comes back to a channel that it held.
//! - In a graph that is not connected there is a tree for each part.

use std::collections::VecDeque;

use weft_topology::{Graph, Layout, Port, Vertex};

use crate::numbering::Numbering;

/// The link from a vertex to its parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Branch {
    /// The port of the vertex.
    pub port: Port,
    /// The parent.
    pub parent: Vertex,
    /// The port of the parent.
    pub parent_port: Port,
}

/// A spanning tree of a graph without its cut links, or a tree for each part of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    ranks: Vec<u32>,
    /// The vertices by rank.
    order: Vec<Vertex>,
    branches: Vec<Option<Branch>>,
}

const UNSEEN: u32 = u32::MAX;

impl Tree {
    /// Grows a tree breadth first from a root that the layout suggests.
    #[must_use]
    pub fn grow(graph: &Graph, numbering: &Numbering) -> Self {
        let vertices = graph.vertices() as usize;
        let mut tree = Self {
            ranks: vec![UNSEEN; vertices],
            order: Vec::with_capacity(vertices),
            branches: vec![None; vertices],
        };
        let root = root(graph);
        for start in std::iter::once(root).chain(0..graph.vertices()) {
            if tree.ranks.get(start as usize) == Some(&UNSEEN) {
                tree.grow_part(graph, numbering, start);
            }
        }
        tree
    }

    /// Grows the tree of one part: the segment of a vertex whole before what lies behind it.
    fn grow_part(&mut self, graph: &Graph, numbering: &Numbering, root: Vertex) {
        let mut entries = VecDeque::from([(root, None)]);
        while let Some((entry, branch)) = entries.pop_front() {
            if self.ranks[entry as usize] != UNSEEN {
                continue;
            }
            self.add(entry, branch);
            let segment = numbering.segment(entry);
            let mut within = VecDeque::from([entry]);
            while let Some(vertex) = within.pop_front() {
                for (port, far) in graph.neighbours(vertex) {
                    if self.ranks[far.0 as usize] != UNSEEN {
                        continue;
                    }
                    let branch = Branch { port: far.1, parent: vertex, parent_port: port };
                    if segment.is_some() && numbering.segment(far.0) == segment {
                        self.add(far.0, Some(branch));
                        within.push_back(far.0);
                    } else {
                        entries.push_back((far.0, Some(branch)));
                    }
                }
            }
        }
    }

    fn add(&mut self, vertex: Vertex, branch: Option<Branch>) {
        // There are fewer vertices than numbers.
        self.ranks[vertex as usize] = u32::try_from(self.order.len()).unwrap_or(UNSEEN);
        self.branches[vertex as usize] = branch;
        self.order.push(vertex);
    }

    /// The rank of a vertex.
    #[must_use]
    pub fn rank(&self, vertex: Vertex) -> u32 {
        self.ranks[vertex as usize]
    }

    /// The vertices by rank: parents before children.
    #[must_use]
    pub fn order(&self) -> &[Vertex] {
        &self.order
    }

    /// The link from a vertex to its parent; `None` for a root.
    #[must_use]
    pub fn branch(&self, vertex: Vertex) -> Option<Branch> {
        self.branches[vertex as usize]
    }
}

/// The root: a highest switch of a fat tree, otherwise the vertex with the most links.
fn root(graph: &Graph) -> Vertex {
    if let Layout::FatTree(_) = graph.layout() {
        return graph.vertices().saturating_sub(1);
    }
    let links = |vertex: &Vertex| graph.neighbours(*vertex).count();
    (0..graph.vertices()).rev().max_by_key(links).unwrap_or(0)
}
