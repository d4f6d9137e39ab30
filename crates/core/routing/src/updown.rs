//! Up*/down* routes: links up first, then links down, for any graph.
//!
//! A route never goes up after it went down, so no cycle of channels can wait for each other
//! (Schroeder et al., Autonet). The entry of a vertex depends on the destination alone: the vertex
//! sends a packet down where a way down leads to the destination, and up otherwise. Once a packet
//! can go down, all vertices that follow can, too.
//!
//! Costs are the weights of links ([`weft_topology::LinkClass::weight`]; 1 where there is none).

use weft_topology::{Graph, Vertex};

use crate::numbering::Numbering;
use crate::route::Choice;
use crate::tables::{Entry, Layer, Target};
use crate::tree::Tree;

/// The cost where no way leads. No way has so high a cost: it passes each vertex once.
const FAR: u64 = u64::MAX;

/// The tables of up*/down* routes on the channel `vc`: over all links if there is one segment, and
/// over the links of the tree otherwise, since only a tree has one way to each segment.
pub(crate) fn layer(graph: &Graph, numbering: &Numbering, tree: &Tree, vc: u8) -> Layer<Entry> {
    if numbering.segments() <= 1 {
        over_links(graph, numbering, tree, vc)
    } else {
        over_tree(graph, numbering, tree, vc)
    }
}

/// A link of a vertex, as the search needs it.
#[derive(Clone, Copy)]
struct Step {
    port: u16,
    far: Vertex,
    cost: u64,
    is_up: bool,
}

fn over_links(graph: &Graph, numbering: &Numbering, tree: &Tree, vc: u8) -> Layer<Entry> {
    let mut layer = Layer::new(graph.vertices(), numbering, Entry::NONE);
    let steps: Vec<Vec<Step>> = (0..graph.vertices())
        .map(|vertex| {
            let step = |(port, (far, _))| Step {
                port,
                far,
                cost: graph.class(vertex, port).weight.max(1).into(),
                is_up: tree.rank(far) < tree.rank(vertex),
            };
            graph.neighbours(vertex).map(step).collect()
        })
        .collect();
    for place in 0..numbering.width() {
        let Some(to) = numbering.host(0, place) else { continue };
        // The cost of a vertex to the destination by ways down alone, and by any.
        let mut down = vec![FAR; steps.len()];
        down[to as usize] = 0;
        for vertex in tree.order()[..tree.rank(to) as usize].iter().rev() {
            let own = steps[*vertex as usize].iter().filter(|step| !step.is_up);
            let costs = own.map(|step| down[step.far as usize].saturating_add(step.cost));
            down[*vertex as usize] = costs.min().unwrap_or(FAR);
        }
        let mut any = down.clone();
        for vertex in tree.order() {
            let goes_up = down[*vertex as usize] == FAR;
            let costs = if goes_up { &any } else { &down };
            let own = &steps[*vertex as usize];
            // Equal costs: destinations begin at different ports, which spreads them.
            let start = (to + vertex) as usize % own.len().max(1);
            let best = (own[start..].iter().chain(&own[..start]))
                .filter(|step| step.is_up == goes_up && costs[step.far as usize] != FAR)
                .min_by_key(|step| costs[step.far as usize].saturating_add(step.cost));
            let Some(best) = best.filter(|_| *vertex != to) else { continue };
            any[*vertex as usize] = costs[best.far as usize].saturating_add(best.cost);
            layer.set(*vertex, Target::Place(place), Entry::of(Choice { port: best.port, vc }));
        }
    }
    layer
}

fn over_tree(graph: &Graph, numbering: &Numbering, tree: &Tree, vc: u8) -> Layer<Entry> {
    let descent = Descent::of(graph, tree);
    let step = |at: Vertex, to: Vertex| Entry::from(descent.step(tree, at, to, vc));
    // The first vertex of each segment, which is the root of its part of the tree.
    let mut entries = vec![None; numbering.segments() as usize];
    for vertex in tree.order() {
        if let Some(segment) = numbering.segment(*vertex) {
            entries[segment as usize].get_or_insert(*vertex);
        }
    }
    let mut layer = Layer::new(graph.vertices(), numbering, Entry::NONE);
    let toward =
        |at, segment: u32| entries[segment as usize].map_or(Entry::NONE, |to| step(at, to));
    layer.fill(numbering, toward, step);
    layer
}

/// The vertices below each vertex, as ranges of a walk through the tree in depth.
struct Descent {
    /// The place of each vertex in the walk, and the end of those below it.
    places: Vec<(u32, u32)>,
    /// The children of each vertex in the order of the walk, and the ports to them.
    children: Vec<Vec<(Vertex, u16)>>,
    /// The root of the tree of each vertex.
    roots: Vec<Vertex>,
}

impl Descent {
    fn of(graph: &Graph, tree: &Tree) -> Self {
        let vertices = graph.vertices() as usize;
        let mut children = vec![Vec::new(); vertices];
        let mut sizes = vec![1_u32; vertices];
        for vertex in tree.order() {
            if let Some(branch) = tree.branch(*vertex) {
                children[branch.parent as usize].push((*vertex, branch.parent_port));
            }
        }
        for vertex in tree.order().iter().rev() {
            if let Some(branch) = tree.branch(*vertex) {
                sizes[branch.parent as usize] += sizes[*vertex as usize];
            }
        }
        let mut places = vec![(0, 0); vertices];
        let mut roots: Vec<Vertex> = (0..graph.vertices()).collect();
        let mut next = 0;
        for vertex in tree.order() {
            let own = *vertex as usize;
            match tree.branch(*vertex) {
                Some(branch) => roots[own] = roots[branch.parent as usize],
                None => {
                    places[own] = (next, next + sizes[own]);
                    next += sizes[own];
                }
            }
            let mut first = places[own].0 + 1;
            for (child, _) in &children[own] {
                let size = sizes[*child as usize];
                places[*child as usize] = (first, first + size);
                first += size;
            }
        }
        Self { places, children, roots }
    }

    fn step(&self, tree: &Tree, at: Vertex, to: Vertex, vc: u8) -> Option<Choice> {
        let (first, end) = self.places[at as usize];
        let place = self.places[to as usize].0;
        if place == first {
            return None;
        }
        if !(first..end).contains(&place) {
            let is_joined = self.roots[at as usize] == self.roots[to as usize];
            let branch = tree.branch(at).filter(|_| is_joined)?;
            return Some(Choice { port: branch.port, vc });
        }
        let children = &self.children[at as usize];
        let after = children.partition_point(|(child, _)| self.places[*child as usize].0 <= place);
        let (_, port) = children.get(after.checked_sub(1)?)?;
        Some(Choice { port: *port, vc })
    }
}
