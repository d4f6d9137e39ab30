//! The map from a global address to a node and an address on it: the two mappings of the SMFU.
//!
//! Source: 003 section 3.2.4, equations 3.1 to 3.4. A program that uses many regions assigns them
//! to one range of global addresses, and this map tells the node and address of each.

use thiserror::Error;

use crate::address::NodeId;

/// One interval: the global addresses `start..end` (half open) belong to `node`, from
/// `target_start` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval {
    /// First global address.
    pub start: u64,
    /// First global address behind the interval.
    pub end: u64,
    /// The node with the memory.
    pub node: NodeId,
    /// The interval's first address on that node.
    pub target_start: u64,
}

/// The mask mapping: some bits of the global address are the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mask {
    /// Bits that hold the node.
    pub mask: u64,
    /// How far these bits are shifted right.
    pub shift: u32,
    /// The first address of the shared segment on every node.
    pub target_start: u64,
}

/// The location of a global address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Located {
    /// The node.
    pub node: NodeId,
    /// The address on that node.
    pub address: u64,
    /// Number of bytes from that address on that are mapped contiguously.
    pub contiguous: u64,
}

/// Why a map refused a mapping.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum MapError {
    /// The interval is empty, or its end wraps around on the target.
    #[error("interval {start:#x}..{end:#x} is empty or wraps around")]
    InvalidInterval {
        /// The interval's start.
        start: u64,
        /// The interval's end.
        end: u64,
    },
    /// The interval overlaps another one.
    #[error("interval {start:#x}..{end:#x} overlaps another")]
    Overlap {
        /// The interval's start.
        start: u64,
        /// The interval's end.
        end: u64,
    },
    /// The map has its maximum of intervals.
    #[error("all {maximum} intervals are in use")]
    Exhausted {
        /// The maximum.
        maximum: usize,
    },
    /// The node bits are not contiguous, do not begin at the shift, or are more than 16.
    #[error("mask {mask:#x} with shift {shift} does not give a 16-bit node")]
    InvalidMask {
        /// The mask.
        mask: u64,
        /// The shift.
        shift: u32,
    },
}

/// A global address map.
///
/// ```
/// use weft_fabric::{GlobalAddressMap, Interval, NodeId};
///
/// // Node 5 has the addresses from 0x1000 on, where its own begin at 0x40.
/// let mut map = GlobalAddressMap::intervals();
/// map.insert(Interval { start: 0x1000, end: 0x3000, node: NodeId(5), target_start: 0x40 })?;
/// let found = map.locate(0x1010).expect("it is in the interval");
/// assert_eq!((found.node, found.address, found.contiguous), (NodeId(5), 0x50, 0x1ff0));
/// assert_eq!(map.locate(0x3000), None);
/// # Ok::<(), weft_fabric::MapError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GlobalAddressMap {
    /// Up to 64 intervals, sorted by `start`.
    Intervals(Vec<Interval>),
    /// A mask mapping.
    Mask(Mask),
}

impl GlobalAddressMap {
    /// The number of intervals of the SMFU.
    pub const INTERVALS_MAX: usize = 64;

    /// A map without intervals.
    #[must_use]
    pub const fn intervals() -> Self {
        Self::Intervals(Vec::new())
    }

    /// A map with a mask mapping.
    ///
    /// # Errors
    /// [`MapError::InvalidMask`].
    pub fn mask(mask: Mask) -> Result<Self, MapError> {
        let Mask { mask: bits, shift, .. } = mask;
        let invalid = MapError::InvalidMask { mask: bits, shift };
        if bits == 0 || shift >= 64 || bits.trailing_zeros() != shift {
            return Err(invalid);
        }
        let node = bits >> shift;
        let one_run = node & (node.wrapping_add(1)) == 0;
        if !one_run || node > 0xffff {
            return Err(invalid);
        }
        Ok(Self::Mask(mask))
    }

    /// Adds an interval to a map of intervals.
    ///
    /// # Errors
    /// [`MapError`]; the map is unchanged then.
    ///
    /// # Panics
    /// When the map is a mask map.
    pub fn insert(&mut self, interval: Interval) -> Result<(), MapError> {
        let Self::Intervals(intervals) = self else {
            panic!("a mask map has no intervals");
        };
        let Interval { start, end, target_start, .. } = interval;
        if start >= end || target_start.checked_add(end - start).is_none() {
            return Err(MapError::InvalidInterval { start, end });
        }
        if intervals.len() == Self::INTERVALS_MAX {
            return Err(MapError::Exhausted { maximum: Self::INTERVALS_MAX });
        }
        let place = intervals.partition_point(|other| other.start < start);
        let before = place.checked_sub(1).map(|index| intervals[index].end);
        let after = intervals.get(place).map(|other| other.start);
        if before.is_some_and(|other| other > start) || after.is_some_and(|other| other < end) {
            return Err(MapError::Overlap { start, end });
        }
        intervals.insert(place, interval);
        Ok(())
    }

    /// The location of `address`, or `None` if it is not mapped.
    #[must_use]
    pub fn locate(&self, address: u64) -> Option<Located> {
        match self {
            Self::Intervals(intervals) => {
                let place = intervals.partition_point(|interval| interval.start <= address);
                let interval = intervals.get(place.checked_sub(1)?)?;
                if address >= interval.end {
                    return None;
                }
                // Equations 3.1 and 3.2.
                let global = address - interval.start;
                Some(Located {
                    node: interval.node,
                    address: global + interval.target_start,
                    contiguous: interval.end - address,
                })
            }
            Self::Mask(Mask { mask, shift, target_start }) => {
                // Equations 3.3 and 3.4.
                let node = u32::try_from((address & mask) >> shift).ok()?;
                let inside = address & !mask;
                let below = (1u64 << shift) - 1;
                Some(Located {
                    node: NodeId(node),
                    address: inside.checked_add(*target_start)?,
                    contiguous: below - (address & below) + 1,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn interval(start: u64, end: u64, node: u32, target_start: u64) -> Interval {
        Interval { start, end, node: NodeId(node), target_start }
    }

    #[test]
    fn an_interval_translates_by_subtracting_and_adding() {
        let mut map = GlobalAddressMap::intervals();
        map.insert(interval(0x1000, 0x2000, 3, 0x9000)).expect("fits");
        let found = map.locate(0x1800).expect("mapped");
        assert_eq!((found.node, found.address, found.contiguous), (NodeId(3), 0x9800, 0x800));
        assert_eq!(map.locate(0x2000), None);
        assert_eq!(map.locate(0xfff), None);
    }

    #[test]
    fn overlaps_and_the_65th_interval_are_refused() {
        let mut map = GlobalAddressMap::intervals();
        for number in 0..64 {
            map.insert(interval(number * 16, number * 16 + 16, 1, 0)).expect("fits");
        }
        assert_eq!(
            map.insert(interval(4096, 4097, 1, 0)),
            Err(MapError::Exhausted { maximum: 64 })
        );
        let mut map = GlobalAddressMap::intervals();
        map.insert(interval(16, 32, 1, 0)).expect("fits");
        assert!(matches!(map.insert(interval(0, 17, 1, 0)), Err(MapError::Overlap { .. })));
        assert!(matches!(map.insert(interval(31, 40, 1, 0)), Err(MapError::Overlap { .. })));
    }

    #[test]
    fn a_mask_gives_the_node_and_strips_its_bits() {
        let map = GlobalAddressMap::mask(Mask { mask: 0xffff << 40, shift: 40, target_start: 64 })
            .expect("valid");
        let found = map.locate((7 << 40) | 5).expect("mapped");
        assert_eq!((found.node, found.address), (NodeId(7), 69));
    }

    #[test]
    fn masks_that_do_not_give_a_node_are_refused() {
        for (mask, shift) in [(0, 0), (0b101 << 40, 40), (0x1_ffff << 20, 20), (0xff, 64)] {
            let mask = Mask { mask, shift, target_start: 0 };
            assert!(GlobalAddressMap::mask(mask).is_err(), "{mask:?}");
        }
    }

    proptest! {
        #[test]
        fn contiguous_bytes_stay_on_one_node(address in 0u64..1 << 44, step in 0u64..1 << 20) {
            let mask = Mask { mask: 0xf << 20, shift: 20, target_start: 0x1000 };
            let map = GlobalAddressMap::mask(mask).expect("valid");
            let first = map.locate(address).expect("mapped");
            prop_assert!(first.contiguous >= 1);
            let step = step.min(first.contiguous - 1);
            let later = map.locate(address + step).expect("mapped");
            prop_assert_eq!(later.node, first.node);
            prop_assert_eq!(later.address, first.address + step);
        }
    }
}
