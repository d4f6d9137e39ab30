//! The fabric addresses of a network's ports: one for each queue of each node.
//!
//! A device may have several queues, each with a port of its own. Queue 0 of a node talks to queue
//! 0 of the others, queue 1 to queue 1, so that a flow stays on one queue and in order
//! (RED-SEA-D2.3#3.3). The ports of a node share its switch and nothing else.

use weft_fabric::{EndpointAddress, Group, NodeId, Vpid};

use crate::mac::MacAddress;

/// How the addresses of ports are assigned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Segment {
    /// All ports are endpoints of one host. Queue 0 of a node has the node's number times `queues`
    /// as its VPID, the other queues the next VPIDs.
    Host {
        /// Queues of each device.
        queues: u8,
    },
    /// Each node is a node of the fabric. Its queues have the VPIDs from `vpid` on
    /// (EXTOLL-THESIS#5.4.6: one VPID is reserved).
    Fabric {
        /// The VPID of queue 0.
        vpid: Vpid,
        /// Queues of each device.
        queues: u8,
    },
}

/// A port, by the node and the queue that it serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Seat {
    /// The node.
    pub node: NodeId,
    /// The queue.
    pub queue: u8,
}

impl Segment {
    /// Queues of each device.
    #[must_use]
    pub const fn queues(self) -> u8 {
        let (Self::Host { queues } | Self::Fabric { queues, .. }) = self;
        queues
    }

    /// The port at `address`, or `None` where no port can be.
    #[must_use]
    pub fn seat_at(self, address: EndpointAddress) -> Option<Seat> {
        let (node, queue) = match self {
            Self::Host { queues } => {
                let queues = u16::from(queues.max(1));
                (NodeId((address.vpid.0 / queues).into()), address.vpid.0 % queues)
            }
            Self::Fabric { vpid, .. } => (address.node, address.vpid.0.checked_sub(vpid.0)?),
        };
        let queue = u8::try_from(queue).ok().filter(|queue| *queue < self.queues())?;
        Some(Seat { node, queue })
    }

    /// The VPID of the port at `seat`, or `None` if the number is too large.
    #[must_use]
    pub fn vpid_of(self, seat: Seat) -> Option<Vpid> {
        let (first, queues) = match self {
            Self::Host { queues } => {
                let node = u16::try_from(seat.node.0).ok()?;
                (node.checked_mul(queues.into())?, queues)
            }
            Self::Fabric { vpid, queues } => (vpid.0, queues),
        };
        let vpid = first.checked_add(u16::from(seat.queue)).map(Vpid)?;
        (seat.queue < queues && !vpid.is_any()).then_some(vpid)
    }
}

/// The fabric group for frames to `group` in `vlan` between the ports of `queue`. There are 63
/// fabric groups beside the broadcast group, so several Ethernet groups share one; receivers tell
/// them apart by the frame's destination.
#[must_use]
pub fn fabric_group(group: MacAddress, vlan: u16, queue: u8) -> Group {
    // FNV-1a spreads neighbouring addresses, and gives the same result on all nodes.
    let bytes = group.0.into_iter().chain(vlan.to_be_bytes()).chain([queue]);
    let hash = bytes
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let number = (hash ^ (hash >> 16)) % u32::from(Group::COUNT - 1);
    u8::try_from(number).ok().and_then(Group::new).unwrap_or(Group::BROADCAST)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn addresses_and_ports_map_to_each_other() {
        let segments = [
            Segment::Host { queues: 1 },
            Segment::Host { queues: 3 },
            Segment::Fabric { vpid: Vpid(9), queues: 2 },
        ];
        for segment in segments {
            for (node, queue) in [(0, 0), (5, 0), (5, 1), (80, 2)] {
                let seat = Seat { node: NodeId(node), queue };
                let Some(vpid) = segment.vpid_of(seat) else {
                    assert!(queue >= segment.queues(), "{seat:?} of {segment:?}");
                    continue;
                };
                let node = match segment {
                    Segment::Host { .. } => NodeId::LOCAL,
                    Segment::Fabric { .. } => seat.node,
                };
                let found = segment.seat_at(EndpointAddress::new(node, vpid));
                assert_eq!(found, Some(seat), "{segment:?}");
            }
        }
        let fabric = segments[2];
        for vpid in [8, 11] {
            let address = EndpointAddress::new(NodeId(1), Vpid(vpid));
            assert_eq!(fabric.seat_at(address), None, "{vpid}");
        }
        let far = Seat { node: NodeId(0x1_0000), queue: 0 };
        assert_eq!(segments[0].vpid_of(far), None, "it has more than 16 bits");
        let far = Seat { node: NodeId(30_000), queue: 0 };
        assert_eq!(segments[1].vpid_of(far), None, "there is no VPID for it");
    }

    #[test]
    fn ethernet_groups_spread_over_the_fabric_groups() {
        let all = (0..=255).map(|last| fabric_group(MacAddress([1, 0, 0x5e, 1, 1, last]), 0, 0));
        let numbers: BTreeSet<u8> = all.map(Group::number).collect();
        assert!(numbers.len() > 55 && !numbers.contains(&63), "{numbers:?}");
    }
}
