//! Addresses on the fabric: nodes, endpoints, partitions and multicast groups.
//!
//! An address is two numbers, as on the Extoll NIC (EXTOLL-THESIS#3.2.3): the node, which the
//! manager assigns, and the endpoint on it (VPID). Either number may be a wildcard in a pattern
//! that matches several endpoints. An address with a wildcard never names a target.

use std::fmt;

/// A node: one NIC, which is a host, a network namespace or a simulated node.
///
/// Extoll's formats have 16 bits for it ([`NodeId::extoll`]). Here it has 32, so that a simulated
/// machine of 65,536 nodes has a number for each of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl NodeId {
    /// The wildcard: any node.
    pub const ANY: Self = Self(u32::MAX);
    /// The number of the own node until a manager assigns another one.
    pub const LOCAL: Self = Self(0);
    /// The highest number that names a node.
    pub const MAX: Self = Self(u32::MAX - 2);
    /// The wildcard in Extoll's formats, as in its driver, which reserves `0xfffe` as well.
    const EXTOLL_ANY: u16 = 0xffff;
    /// The highest number that names a node in Extoll's formats.
    const EXTOLL_MAX: u16 = 0xfffd;

    /// The node that a number in one of Extoll's formats names; `None` for the reserved one.
    #[must_use]
    pub const fn of_extoll(number: u16) -> Option<Self> {
        match number {
            Self::EXTOLL_ANY => Some(Self::ANY),
            number if number <= Self::EXTOLL_MAX => Some(Self(number as u32)),
            _ => None,
        }
    }

    /// The number in Extoll's formats; `None` if it does not fit.
    #[must_use]
    pub fn extoll(self) -> Option<u16> {
        if self.is_any() {
            return Some(Self::EXTOLL_ANY);
        }
        u16::try_from(self.0).ok().filter(|number| *number <= Self::EXTOLL_MAX)
    }

    /// True for the wildcard.
    #[must_use]
    pub const fn is_any(self) -> bool {
        self.0 == Self::ANY.0
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_any() { f.write_str("*") } else { write!(f, "{}", self.0) }
    }
}

/// The number of an endpoint on its node (EXTOLL-THESIS#3.2.3: virtual process identifier).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vpid(pub u16);

impl Vpid {
    /// The wildcard: any endpoint.
    pub const ANY: Self = Self(0xffff);

    /// True for the wildcard.
    #[must_use]
    pub const fn is_any(self) -> bool {
        self.0 == Self::ANY.0
    }
}

impl fmt::Debug for Vpid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_any() { f.write_str("*") } else { write!(f, "{}", self.0) }
    }
}

/// The address of an endpoint. Prints as `node:vpid`, with `*` for a wildcard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointAddress {
    /// The node.
    pub node: NodeId,
    /// The endpoint on that node.
    pub vpid: Vpid,
}

impl EndpointAddress {
    /// Matches every endpoint of every node.
    pub const ANY: Self = Self { node: NodeId::ANY, vpid: Vpid::ANY };

    /// The address of endpoint `vpid` on node `node`.
    #[must_use]
    pub const fn new(node: NodeId, vpid: Vpid) -> Self {
        Self { node, vpid }
    }

    /// True when neither number is a wildcard, so that the address can name a target.
    #[must_use]
    pub const fn is_exact(self) -> bool {
        !self.node.is_any() && !self.vpid.is_any()
    }

    /// True when this pattern matches `other`: each number is equal, or a wildcard in `self`.
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        (self.node.is_any() || self.node.0 == other.node.0)
            && (self.vpid.is_any() || self.vpid.0 == other.vpid.0)
    }
}

impl fmt::Debug for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}:{:?}", self.node, self.vpid)
    }
}

impl fmt::Display for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A set of endpoints that may talk to each other. Endpoints of other partitions cannot even find
/// them.
///
/// The default partition of a program is that of its user ([`PartitionId::of_user`]). A
/// direct-socket connection has a partition of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PartitionId(pub u64);

impl PartitionId {
    /// The partition that all programs of a user share by default.
    #[must_use]
    pub const fn of_user(uid: u32) -> Self {
        Self(uid as u64)
    }

    /// A numbered partition of a user. Programs of this user can open it, and others by a service
    /// or a ticket. Number 0 is that of [`PartitionId::of_user`].
    #[must_use]
    pub const fn of_user_named(uid: u32, number: u32) -> Self {
        Self(((number as u64) << 32) | uid as u64)
    }

    /// The user to whom the partition belongs.
    #[must_use]
    pub const fn user(self) -> u32 {
        (self.0 & 0xffff_ffff) as u32
    }

    /// True for the partition that all programs of its user share by default.
    #[must_use]
    pub const fn is_default(self) -> bool {
        self.0 >> 32 == 0
    }
}

/// A multicast group (EXTOLL-THESIS#3.2.2: the target node is interpreted as a group number).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Group(u8);

impl Group {
    /// The number of groups.
    pub const COUNT: u8 = 64;
    /// The group of all endpoints of a partition. Every endpoint is always a member.
    pub const BROADCAST: Self = Self(63);

    /// The group with this number, or `None` above 63.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number < Self::COUNT { Some(Self(number)) } else { None }
    }

    /// The group's number, 0 to 63.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_several_endpoints_and_exact_addresses_one() {
        let one = EndpointAddress::new(NodeId(1), Vpid(7));
        assert!(EndpointAddress::ANY.covers(one));
        assert!(EndpointAddress::new(NodeId(1), Vpid::ANY).covers(one));
        assert!(!EndpointAddress::new(NodeId(2), Vpid::ANY).covers(one));
        assert!(one.covers(one) && one.is_exact());
        assert!(!EndpointAddress::new(NodeId(1), Vpid::ANY).is_exact());
        assert_eq!(format!("{one} {}", EndpointAddress::ANY), "1:7 *:*");
    }

    #[test]
    fn nodes_of_extolls_formats_have_16_bits() {
        for number in [0, 1, 0xfffd, 0xffff] {
            let node = NodeId::of_extoll(number).expect("a node or the wildcard");
            assert_eq!(node.extoll(), Some(number));
        }
        assert_eq!(NodeId::of_extoll(0xfffe), None);
        assert_eq!(NodeId::of_extoll(0xffff), Some(NodeId::ANY));
        for number in [0xfffe, 0xffff, 0x1_0000, NodeId::MAX.0] {
            assert_eq!(NodeId(number).extoll(), None);
            assert!(!NodeId(number).is_any());
        }
    }

    #[test]
    fn a_group_has_six_bits_and_the_last_is_broadcast() {
        assert_eq!(Group::new(64), None);
        assert_eq!(Group::new(63), Some(Group::BROADCAST));
    }

    #[test]
    fn a_partition_keeps_its_user() {
        assert_eq!(PartitionId::of_user_named(1000, 9).user(), 1000);
        assert_ne!(PartitionId::of_user_named(1000, 9), PartitionId::of_user(1000));
    }
}
