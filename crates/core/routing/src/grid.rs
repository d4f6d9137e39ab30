//! Dimension-order routes on tori and meshes, and the ways of adaptive ones.
//!
//! A packet corrects its coordinates one dimension after the other, the last first, each by the
//! shorter way round. On a ring it takes channel 0 as long as the link from the last vertex to the
//! first, or back, lies before it, and channel 1 afterwards (Dally and Seitz). Neither channel then
//! closes the ring, since no packet takes channel 1 of that link, or goes from channel 1 to 0.
//! Opposite vertices of an even ring are as far by either way. Those with an even coordinate send
//! up, the others down: every channel of a ring of 4, 8, 12, … has the same load then.

use weft_topology::Vertex;
use weft_topology::layout::Grid;

use crate::blocks::Blocks;
use crate::numbering::{HOSTS_OF_SEGMENT_MAX, Numbering};
use crate::route::Choice;

/// Routes on a grid.
pub(crate) struct GridRoutes<'a> {
    grid: &'a Grid,
    blocks: Option<Blocks>,
    /// The coordinates of each vertex, dimension by dimension.
    coordinates: Vec<u32>,
    /// The first block coordinates of each segment, dimension by dimension.
    starts: Vec<u32>,
    /// The first channel within a block.
    local_vc: u8,
}

impl<'a> GridRoutes<'a> {
    pub(crate) fn new(grid: &'a Grid, numbering: &Numbering) -> Self {
        let dimensions = grid.sizes().len();
        let is_divided = numbering.segments() > 1 && grid.vertices() > HOSTS_OF_SEGMENT_MAX;
        let blocks = is_divided.then(|| Blocks::of(grid)).flatten();
        let coordinates = (0..grid.vertices())
            .flat_map(|vertex| (0..dimensions).map(move |d| grid.coordinate(vertex, d)))
            .collect();
        let segments = 0..blocks.as_ref().map_or(0, Blocks::count);
        let starts = segments
            .flat_map(|segment| {
                let blocks = blocks.as_ref();
                (0..dimensions).map(move |d| {
                    blocks.map_or(0, |blocks| blocks.coordinate(segment, d) * blocks.sizes[d])
                })
            })
            .collect();
        let goes_back = blocks.as_ref().is_some_and(|blocks| !blocks.is_in_order);
        let local_vc = if goes_back { rings(grid) } else { 0 };
        Self { grid, blocks, coordinates, starts, local_vc }
    }

    /// The virtual channels of the routes.
    pub(crate) fn vcs(&self) -> u8 {
        self.local_vc + rings(self.grid)
    }

    fn dimensions(&self) -> usize {
        self.grid.sizes().len()
    }

    fn row(of: &[u32], place: u32, dimensions: usize) -> &[u32] {
        &of[place as usize * dimensions..(place as usize + 1) * dimensions]
    }

    /// The step of a packet for a segment to which `at` does not belong.
    pub(crate) fn toward(&self, at: Vertex, segment: u32) -> Option<Choice> {
        let blocks = self.blocks.as_ref()?;
        let own = Self::row(&self.coordinates, at, self.dimensions());
        let starts = Self::row(&self.starts, segment, self.dimensions());
        let dimension = (0..self.dimensions())
            .rev()
            .find(|d| own[*d].wrapping_sub(starts[*d]) >= self.extent(blocks, starts, *d))?;
        let last = starts[dimension] + self.extent(blocks, starts, dimension) - 1;
        let (up, down) = self.ways(dimension, own[dimension], starts[dimension], last);
        let is_up = up < down || up == down && own[dimension].is_multiple_of(2);
        let passes = if is_up { own[dimension] > last } else { own[dimension] < starts[dimension] };
        Some(self.choice(dimension, is_up, passes, 0))
    }

    /// The step of a packet for `to`, of the same segment as `at`.
    pub(crate) fn local(&self, at: Vertex, to: Vertex) -> Option<Choice> {
        let own = Self::row(&self.coordinates, at, self.dimensions());
        let other = Self::row(&self.coordinates, to, self.dimensions());
        let dimension = (0..self.dimensions()).rev().find(|d| own[*d] != other[*d])?;
        let (from, to) = (own[dimension], other[dimension]);
        let (up, down) = self.local_ways(dimension, from, to);
        let is_up = up < down || up == down && from.is_multiple_of(2);
        let passes = if is_up { from > to } else { from < to };
        Some(self.choice(dimension, is_up, passes, self.local_vc))
    }

    /// The ports that bring a packet closer to a segment to which `at` does not belong, as a set.
    pub(crate) fn ports_toward(&self, at: Vertex, segment: u32) -> u32 {
        let Some(blocks) = &self.blocks else { return 0 };
        let own = Self::row(&self.coordinates, at, self.dimensions());
        let starts = Self::row(&self.starts, segment, self.dimensions());
        let outside = (0..self.dimensions())
            .filter(|d| own[*d].wrapping_sub(starts[*d]) >= self.extent(blocks, starts, *d));
        outside.fold(0, |set, d| {
            let last = starts[d] + self.extent(blocks, starts, d) - 1;
            set | self.shorter(d, self.ways(d, own[d], starts[d], last))
        })
    }

    /// The ports that bring a packet closer to `to`, of the same segment as `at`, as a set.
    pub(crate) fn ports_local(&self, at: Vertex, to: Vertex) -> u32 {
        let own = Self::row(&self.coordinates, at, self.dimensions());
        let other = Self::row(&self.coordinates, to, self.dimensions());
        let differ = (0..self.dimensions()).filter(|d| own[*d] != other[*d]);
        differ.fold(0, |set, d| set | self.shorter(d, self.local_ways(d, own[d], other[d])))
    }

    /// The size in a dimension of the block that begins at `starts`. The last may be smaller.
    fn extent(&self, blocks: &Blocks, starts: &[u32], dimension: usize) -> u32 {
        blocks.sizes[dimension].min(self.grid.sizes()[dimension] - starts[dimension])
    }

    /// The steps up and down from a coordinate outside to the range from `first` to `last`.
    fn ways(&self, dimension: usize, from: u32, first: u32, last: u32) -> (u32, u32) {
        let size = self.grid.sizes()[dimension];
        if self.grid.wraps() {
            ((first + size - from) % size, (from + size - last) % size)
        } else if from < first {
            (first - from, u32::MAX)
        } else {
            (u32::MAX, from - last)
        }
    }

    /// The steps up and down between coordinates of one block, which packets do not leave.
    fn local_ways(&self, dimension: usize, from: u32, to: u32) -> (u32, u32) {
        let size = self.grid.sizes()[dimension];
        let is_whole = self.blocks.as_ref().is_none_or(|blocks| blocks.counts[dimension] == 1);
        if self.grid.wraps() && is_whole {
            ((to + size - from) % size, (from + size - to) % size)
        } else if from < to {
            (to - from, u32::MAX)
        } else {
            (u32::MAX, from - to)
        }
    }

    fn shorter(&self, dimension: usize, (up, down): (u32, u32)) -> u32 {
        let port = |is_up: bool| 1 << self.grid.port(dimension, is_up);
        let up_port = if up <= down { port(true) } else { 0 };
        up_port | if down <= up { port(false) } else { 0 }
    }

    /// `passes`: the link between the last and the first vertex lies before the packet.
    fn choice(&self, dimension: usize, is_up: bool, passes: bool, first: u8) -> Choice {
        let is_ring = self.grid.wraps() && self.grid.sizes()[dimension] > 2;
        let vc = first + u8::from(is_ring && !passes);
        Choice { port: self.grid.port(dimension, is_up), vc }
    }
}

/// The channels that rings need: two, and one where there is no ring.
fn rings(grid: &Grid) -> u8 {
    let has_ring = grid.wraps() && grid.sizes().iter().any(|size| *size > 2);
    1 + u8::from(has_ring)
}
