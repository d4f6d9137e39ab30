//! MAC addresses, and the layout of those that contain a node's number.

use std::fmt;

use weft_fabric::NodeId;

/// An Ethernet address: six octets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// The first four octets of a node's own address, locally administered (EXTOLL-THESIS#5.4.4.1,
    /// figure 5.13).
    const OF_NODES: [u8; 4] = [0x2e, 0x87, 0x04, 0x07];

    /// The own address of `node`: the last two octets are its number (EXTOLL-THESIS#5.4.4). `None`
    /// if the number does not fit.
    #[must_use]
    pub fn of_node(node: NodeId) -> Option<Self> {
        let [a, b, c, d] = Self::OF_NODES;
        let [high, low] = node.extoll().filter(|_| !node.is_any())?.to_be_bytes();
        Some(Self([a, b, c, d, high, low]))
    }

    /// The node whose own address this is, or `None` for any other address.
    #[must_use]
    pub fn node(self) -> Option<NodeId> {
        let [a, b, c, d, high, low] = self.0;
        let node = NodeId::of_extoll(u16::from_be_bytes([high, low]))?;
        ([a, b, c, d] == Self::OF_NODES && !node.is_any()).then_some(node)
    }

    /// True for multicast addresses and the broadcast address.
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_two_octets_are_the_node() {
        let address = MacAddress::of_node(NodeId(0x0102)).expect("it fits");
        assert_eq!(address.to_string(), "2e:87:04:07:01:02");
        assert_eq!(address.node(), Some(NodeId(0x0102)));
        assert!(!address.is_group());
        assert_eq!(MacAddress([0x2e, 0x87, 0x04, 0x08, 1, 2]).node(), None);
        for number in [0xfffe, 0xffff] {
            let [high, low] = u16::to_be_bytes(number);
            let address = MacAddress([0x2e, 0x87, 0x04, 0x07, high, low]);
            assert_eq!(address.node(), None, "{address} names no node");
        }
        for node in [NodeId(0xfffe), NodeId(0x1_0102), NodeId::ANY] {
            assert_eq!(MacAddress::of_node(node), None, "{node:?} has no address");
        }
    }

    #[test]
    fn broadcast_is_a_group() {
        assert!(MacAddress::BROADCAST.is_group());
        assert!(MacAddress([0x33, 0x33, 0, 0, 0, 1]).is_group());
        assert!(MacAddress([0x01, 0, 0x5e, 0, 0, 1]).is_group());
    }
}
