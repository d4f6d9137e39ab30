//! Which nodes a port reaches: links may be cut.

use weft_fabric::NodeId;

/// Nodes, by their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reach([u64; 4]);

impl Reach {
    /// Every node.
    pub const ALL: Self = Self([u64::MAX; 4]);

    /// The nodes of which the bit is set, from the lowest of the first word on.
    #[must_use]
    pub const fn of_bits(bits: [u64; 4]) -> Self {
        Self(bits)
    }

    /// Whether `node` is among them; nodes from 256 on always are: no links to them are cut.
    #[must_use]
    pub fn has(self, node: NodeId) -> bool {
        let word = self.0.get(usize::from(node.0 / 64));
        word.is_none_or(|word| word >> (node.0 % 64) & 1 == 1)
    }

    /// Whether there is any beside `node` itself.
    #[must_use]
    pub fn is_more_than(self, node: NodeId) -> bool {
        (0..256).map(NodeId).any(|other| other != node && self.has(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_bits() {
        let reach = Reach::of_bits([1 << 3, 1, 0, 1 << 63]);
        let nodes: Vec<u16> = (0..256).filter(|node| reach.has(NodeId(*node))).collect();
        assert_eq!(nodes, [3, 64, 255]);
        assert!(reach.is_more_than(NodeId(3)));
        assert!(!Reach::of_bits([8, 0, 0, 0]).is_more_than(NodeId(3)));
        assert!(reach.has(NodeId(256)) && Reach::ALL.has(NodeId(255)));
    }
}
