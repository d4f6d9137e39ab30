//! The set of nodes that a port reaches. Links between nodes may be cut.

use std::fmt;
use std::str::FromStr;

use weft_fabric::NodeId;

/// A set of nodes by number. It always contains the nodes from 256 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reach([u64; 4]);

impl Reach {
    /// Every node.
    pub const ALL: Self = Self([u64::MAX; 4]);

    /// The nodes whose bit is set. The lowest bit of the first word is node 0.
    #[must_use]
    pub const fn of_bits(bits: [u64; 4]) -> Self {
        Self(bits)
    }

    /// One bit for each node, as [`of_bits`](Self::of_bits) takes them.
    #[must_use]
    pub const fn bits(self) -> [u64; 4] {
        self.0
    }

    /// Whether `node` is in the set. Nodes from 256 on always are: links to them cannot be cut.
    #[must_use]
    pub fn has(self, node: NodeId) -> bool {
        let word = usize::try_from(node.0 / 64).ok().and_then(|word| self.0.get(word));
        word.is_none_or(|word| word >> (node.0 % 64) & 1 == 1)
    }

    /// Whether the set contains a node below 256 other than `node`.
    #[must_use]
    pub fn is_more_than(self, node: NodeId) -> bool {
        (0..256).map(NodeId).any(|other| other != node && self.has(other))
    }
}

impl FromIterator<NodeId> for Reach {
    /// Nodes from 256 on are in the set in any case.
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> Self {
        let mut bits = [0; 4];
        for NodeId(node) in nodes {
            if let Some(word) = usize::try_from(node / 64).ok().and_then(|word| bits.get_mut(word))
            {
                *word |= 1 << (node % 64);
            }
        }
        Self(bits)
    }
}

impl fmt::Display for Reach {
    /// The numbers of the nodes below 256, separated by plus signs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = (0..256).map(NodeId).filter(|node| self.has(*node));
        for (number, NodeId(node)) in nodes.enumerate() {
            if number > 0 {
                f.write_str("+")?;
            }
            write!(f, "{node}")?;
        }
        Ok(())
    }
}

impl FromStr for Reach {
    type Err = String;

    /// Parses the text that `Display` writes.
    fn from_str(text: &str) -> Result<Self, String> {
        let node = |text: &str| {
            let node = text.parse().ok().filter(|node| *node < 256).map(NodeId);
            node.ok_or_else(|| format!("{text:?} is not a node, 0 to 255"))
        };
        text.split('+').map(node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_as_they_are_printed() {
        let reach: Reach = [3, 64, 255].into_iter().map(NodeId).collect();
        assert_eq!(reach, Reach::of_bits([1 << 3, 1, 0, 1 << 63]));
        assert_eq!(reach.to_string(), "3+64+255");
        assert_eq!("3+64+255".parse(), Ok(reach));
        for text in ["", "3+", "256", "-1", "a"] {
            assert!(text.parse::<Reach>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn nodes_have_bits() {
        let reach = Reach::of_bits([1 << 3, 1, 0, 1 << 63]);
        let nodes: Vec<u32> = (0..256).filter(|node| reach.has(NodeId(*node))).collect();
        assert_eq!(nodes, [3, 64, 255]);
        assert!(reach.is_more_than(NodeId(3)));
        assert!(!Reach::of_bits([8, 0, 0, 0]).is_more_than(NodeId(3)));
        assert!(reach.has(NodeId(256)) && Reach::ALL.has(NodeId(255)));
    }
}
