//! The numbers of hosts: 16 bits, the upper 6 of which name a segment (EXTOLL-THESIS#5.4.5.2).
//!
//! A routing table has an entry for each segment and one for each host of the own segment. All
//! packets for one segment therefore leave a vertex outside of it by the same entry. So a segment
//! has to be a part of the network to which one way leads from anywhere: a block of a torus, a
//! subtree, a group.
//!
//! # Invariants
//! - Two hosts have different numbers. A host keeps its number when links are cut or mended.
//! - Every host belongs to the segment of its number. A switch may belong to a segment.

use weft_topology::layout::{Dragonfly, FatTree, Grid};
use weft_topology::{Graph, Kind, Layout, Vertex};

use crate::RoutingError;
use crate::blocks::Blocks;

/// Segments of a network at most.
pub const SEGMENTS_MAX: u32 = 64;
/// Hosts of a segment at most.
pub const HOSTS_OF_SEGMENT_MAX: u32 = 1_024;

const NONE: u32 = u32::MAX;

/// Which host has which number, and which vertex belongs to which segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Numbering {
    /// The number of each vertex, `NONE` for one that has none.
    numbers: Vec<u32>,
    /// The segment of each vertex, `NONE` for one that has none.
    segments: Vec<u32>,
    /// The vertex with each number up to the highest; `NONE` for a number that is free.
    vertices: Vec<Vertex>,
    count: u32,
    width: u32,
}

impl Numbering {
    /// Numbers the hosts of a graph by its layout. Links that are cut play no part.
    ///
    /// # Errors
    /// [`RoutingError::TooLarge`] if the network cannot be divided into 64 segments of 1,024 hosts
    /// to each of which one way leads from outside.
    pub fn of(graph: &Graph) -> Result<Self, RoutingError> {
        let hosts = u32::try_from(graph.hosts().count()).unwrap_or(NONE);
        let pieces: Vec<Vertex> = (0..graph.vertices()).collect();
        if hosts <= HOSTS_OF_SEGMENT_MAX {
            return Ok(Self::by(graph, &pieces, |_| Some(0)));
        }
        let fits = |segments: u32, size: u32| {
            let is_few = segments <= SEGMENTS_MAX && size <= HOSTS_OF_SEGMENT_MAX;
            is_few.then_some(()).ok_or(RoutingError::TooLarge { hosts })
        };
        match graph.layout() {
            Layout::Grid(grid) => {
                let blocks = Blocks::of(grid).ok_or(RoutingError::TooLarge { hosts })?;
                Ok(Self::of_blocks(grid, &blocks))
            }
            Layout::FatTree(tree) => {
                let size = segment_of_tree(tree);
                fits(tree.hosts() / size, size)?;
                Ok(Self::by(graph, &pieces, |vertex| match tree.switch(vertex) {
                    None => Some(vertex / size),
                    // A subtree has the switches of its levels, and those above belong to none.
                    Some((level, number)) => {
                        let reach = tree.arity.saturating_pow(level + 1);
                        (reach <= size).then(|| number / (size / tree.arity))
                    }
                }))
            }
            Layout::Dragonfly(dragonfly) => {
                let Dragonfly { groups, switches, hosts, .. } = *dragonfly;
                fits(groups, switches * hosts)?;
                Ok(Self::by(graph, &pieces, |vertex| Some(dragonfly.group(vertex))))
            }
            Layout::Full | Layout::Irregular => Err(RoutingError::TooLarge { hosts }),
        }
    }

    /// Gives the hosts of each segment numbers in the order of `order`.
    fn by(graph: &Graph, order: &[Vertex], segment: impl Fn(Vertex) -> Option<u32>) -> Self {
        let segments: Vec<u32> = order.iter().map(|v| segment(*v).unwrap_or(NONE)).collect();
        let is_host = |vertex: &Vertex| graph.kind(*vertex) == Some(Kind::Host);
        let count = segments.iter().filter(|s| **s != NONE).max().map_or(0, |s| s + 1);
        let mut sizes = vec![0_u32; count as usize];
        let mut places = Vec::new();
        for vertex in order.iter().copied().filter(is_host) {
            let size = &mut sizes[segments[vertex as usize] as usize];
            places.push((vertex, segments[vertex as usize], *size));
            *size += 1;
        }
        let width = sizes.iter().copied().max().unwrap_or(0);
        Self::from_places(segments, count, width, places)
    }

    /// Gives each vertex of a grid the place that it has in its block.
    fn of_blocks(grid: &Grid, blocks: &Blocks) -> Self {
        let all = 0..grid.vertices();
        let segments: Vec<u32> = all.clone().map(|vertex| blocks.segment(grid, vertex)).collect();
        let places: Vec<_> = (all.zip(&segments))
            .map(|(vertex, segment)| (vertex, *segment, blocks.place(grid, vertex)))
            .collect();
        Self::from_places(segments, blocks.count(), blocks.size(), places)
    }

    fn from_places(
        segments: Vec<u32>,
        count: u32,
        width: u32,
        places: Vec<(Vertex, u32, u32)>,
    ) -> Self {
        let mut numbers = vec![NONE; segments.len()];
        let mut vertices = vec![NONE; (count * width) as usize];
        for (vertex, segment, place) in places {
            numbers[vertex as usize] = segment * HOSTS_OF_SEGMENT_MAX + place;
            vertices[(segment * width + place) as usize] = vertex;
        }
        Self { numbers, segments, vertices, count, width }
    }

    /// The number of a host; `None` for a switch.
    #[must_use]
    pub fn number(&self, vertex: Vertex) -> Option<u16> {
        self.numbers.get(vertex as usize).and_then(|number| u16::try_from(*number).ok())
    }

    /// The host with a number.
    #[must_use]
    pub fn vertex(&self, number: u16) -> Option<Vertex> {
        let number = u32::from(number);
        self.host(number / HOSTS_OF_SEGMENT_MAX, number % HOSTS_OF_SEGMENT_MAX)
    }

    /// The host at a place of a segment.
    #[must_use]
    pub fn host(&self, segment: u32, place: u32) -> Option<Vertex> {
        if segment >= self.count || place >= self.width {
            return None;
        }
        let vertex = self.vertices[(segment * self.width + place) as usize];
        (vertex != NONE).then_some(vertex)
    }

    /// The segment and the place in it of a host.
    #[must_use]
    pub fn place(&self, vertex: Vertex) -> Option<(u32, u32)> {
        let number = u32::from(self.number(vertex)?);
        Some((number / HOSTS_OF_SEGMENT_MAX, number % HOSTS_OF_SEGMENT_MAX))
    }

    /// The segment to which a vertex belongs, if any.
    #[must_use]
    pub fn segment(&self, vertex: Vertex) -> Option<u32> {
        self.segments.get(vertex as usize).copied().filter(|segment| *segment != NONE)
    }

    /// The number of segments.
    #[must_use]
    pub fn segments(&self) -> u32 {
        self.count
    }

    /// The places of a segment.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.width
    }
}

/// The hosts of the largest subtree that is a segment.
fn segment_of_tree(tree: &FatTree) -> u32 {
    let mut size = tree.arity;
    while size.saturating_mul(tree.arity) <= HOSTS_OF_SEGMENT_MAX {
        size *= tree.arity;
    }
    size
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_topology::Shape;

    fn numbering(text: &str) -> Result<Numbering, RoutingError> {
        let graph = text.parse::<Shape>().expect("a shape").graph(None).expect("a graph");
        let numbering = Numbering::of(&graph)?;
        let mut seen = std::collections::HashSet::new();
        for host in graph.hosts() {
            let number = numbering.number(host).expect("a host has a number");
            assert!(seen.insert(number), "{text}: {number} is there twice");
            assert_eq!(numbering.vertex(number), Some(host), "{text}");
            assert_eq!(numbering.segment(host), Some(u32::from(number) / 1024), "{text}");
        }
        Ok(numbering)
    }

    #[test]
    fn every_host_has_a_number_of_its_own() {
        let segments = [
            ("torus:8x8", 1),
            ("torus:32x32x64", 64),
            ("torus:40x40x40", 64),
            ("mesh:256x256", 64),
            ("hypercube:12", 4),
            ("fattree:4x6", 4),
            ("dragonfly:16,4,4,40", 40),
            ("dragonfly:2", 1),
            ("full:200", 1),
        ];
        for (text, segments) in segments {
            assert_eq!(numbering(text).map(|own| own.segments()), Ok(segments), "{text}");
        }
    }

    #[test]
    fn networks_that_do_not_fit_are_refused() {
        for text in ["fattree:16x4", "dragonfly:8"] {
            assert!(matches!(numbering(text), Err(RoutingError::TooLarge { .. })), "{text}");
        }
    }
}
