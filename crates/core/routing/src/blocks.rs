//! Divides a torus or mesh into blocks, which are the segments of its routing tables.
//!
//! The dimensions are corrected from the last to the first: outside of a block until the packet is
//! in it, then within it. Blocks are *in order* if no dimension is corrected outside after one that
//! is corrected within. A route then corrects its dimensions in one pass, as without segments.

use weft_topology::Vertex;
use weft_topology::layout::Grid;

use crate::numbering::{HOSTS_OF_SEGMENT_MAX, SEGMENTS_MAX};

/// The size of the blocks in each dimension, and how many there are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Blocks {
    pub(crate) sizes: Vec<u32>,
    pub(crate) counts: Vec<u32>,
    pub(crate) is_in_order: bool,
}

impl Blocks {
    /// Blocks of at most 1,024 vertices, at most 64 of them; in order if that is possible. `None`
    /// if there are none.
    pub(crate) fn of(grid: &Grid) -> Option<Self> {
        Self::in_order(grid).or_else(|| {
            let mut counts = Vec::new();
            divide(grid.sizes(), 1, 1, &mut counts).then(|| Self::with_counts(grid, &counts, false))
        })
    }

    fn with_counts(grid: &Grid, counts: &[u32], is_in_order: bool) -> Self {
        let sizes: Vec<u32> =
            grid.sizes().iter().zip(counts).map(|(size, count)| size.div_ceil(*count)).collect();
        // Rounding up may have made the last block of a dimension superfluous.
        let counts = grid.sizes().iter().zip(&sizes).map(|(all, own)| all.div_ceil(*own)).collect();
        Self { sizes, counts, is_in_order }
    }

    /// Whole dimensions first, then part of one, then single places.
    fn in_order(grid: &Grid) -> Option<Self> {
        let mut room = HOSTS_OF_SEGMENT_MAX;
        let mut counts = Vec::new();
        for size in grid.sizes() {
            let own = room.min(*size);
            counts.push(size.div_ceil(own));
            // After a dimension that is not whole, the others are divided into single places.
            room = if own == *size { room / own } else { 1 };
        }
        let all = counts.iter().try_fold(1_u32, |all, count| all.checked_mul(*count))?;
        (all <= SEGMENTS_MAX).then(|| Self::with_counts(grid, &counts, true))
    }

    /// The number of blocks.
    pub(crate) fn count(&self) -> u32 {
        self.counts.iter().product()
    }

    /// The places of a block.
    pub(crate) fn size(&self) -> u32 {
        self.sizes.iter().product()
    }

    /// The block of a vertex.
    pub(crate) fn segment(&self, grid: &Grid, vertex: Vertex) -> u32 {
        self.mixed(&self.counts, |d| grid.coordinate(vertex, d) / self.sizes[d])
    }

    /// The place of a vertex in its block.
    pub(crate) fn place(&self, grid: &Grid, vertex: Vertex) -> u32 {
        self.mixed(&self.sizes, |d| grid.coordinate(vertex, d) % self.sizes[d])
    }

    fn mixed(&self, sizes: &[u32], digit: impl Fn(usize) -> u32) -> u32 {
        (0..sizes.len()).rev().fold(0, |number, d| number * sizes[d] + digit(d))
    }

    /// The number of the block in `dimension` of a segment.
    pub(crate) fn coordinate(&self, segment: u32, dimension: usize) -> u32 {
        let stride: u32 = self.counts[..dimension].iter().product();
        segment / stride % self.counts[dimension]
    }
}

/// Looks for the number of blocks in each of the remaining dimensions.
fn divide(sizes: &[u32], blocks: u32, places: u32, counts: &mut Vec<u32>) -> bool {
    let Some((size, rest)) = sizes.split_first() else { return true };
    let own = (1..=(SEGMENTS_MAX / blocks).min(*size)).find(|count| {
        let places = places * size.div_ceil(*count);
        let depth = counts.len();
        counts.push(*count);
        let fits = places <= HOSTS_OF_SEGMENT_MAX
            && could_fit(rest, SEGMENTS_MAX / (blocks * count), HOSTS_OF_SEGMENT_MAX / places)
            && divide(rest, blocks * count, places, counts);
        if !fits {
            counts.truncate(depth);
        }
        fits
    });
    own.is_some()
}

/// False if the remaining dimensions have more vertices than the remaining blocks have places.
fn could_fit(sizes: &[u32], blocks: u32, places: u32) -> bool {
    let vertices: u64 = sizes.iter().map(|size| u64::from(*size)).product();
    vertices <= u64::from(blocks) * u64::from(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_in_order_where_they_can_be() {
        let blocks = |sizes: &[u32]| Blocks::of(&Grid::new(sizes.to_vec(), true));
        let own = |sizes: &[u32]| blocks(sizes).map(|own| (own.sizes, own.is_in_order));
        assert_eq!(own(&[32, 32, 64]), Some((vec![32, 32, 1], true)));
        assert_eq!(own(&[256, 256]), Some((vec![256, 4], true)));
        assert_eq!(own(&[2; 16]), Some(([vec![2; 10], vec![1; 6]].concat(), true)));
        let cube = blocks(&[40, 40, 40]).expect("64 blocks of 1,000");
        assert!(!cube.is_in_order);
        assert!(cube.count() <= 64 && cube.size() <= 1024, "{cube:?}");
        assert_eq!(own(&[255, 257]), None);
    }
}
