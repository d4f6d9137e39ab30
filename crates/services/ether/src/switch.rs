//! The switch of a node: decides where a frame goes by the forwarding table and the group table.
//!
//! Every node has a switch of its own, which decides alone. All switches learn from the same
//! frames. A frame never goes back to where it came from, and a frame that came over the fabric
//! goes to this node's device or nowhere: the fabric reaches every node, so no frame is relayed and
//! none can loop.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_fabric::NodeId;

use crate::forwarding::{Forwarding, Location, SourceError};
use crate::frame::Frame;
use crate::groups::{Audience, Groups};
use crate::segment::fabric_group;
use crate::snooping::heard;

/// Where a frame from this node's device goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Departure {
    /// Nowhere: the destination is behind this node's device, or no other node wants the group.
    Nobody,
    /// To one node.
    Node(NodeId),
    /// To these nodes, which want the group. Other nodes may get it, too, since groups share fabric
    /// groups.
    Some(BTreeSet<NodeId>),
    /// To every node.
    All,
}

/// A switch shared by the ports of a device with several queues. An address that one port learns is
/// known to all of them.
#[derive(Clone, Debug)]
pub struct SharedSwitch(Arc<Mutex<Switch>>);

impl SharedSwitch {
    /// Makes `switch` shareable.
    #[must_use]
    pub fn new(switch: Switch) -> Self {
        Self(Arc::new(Mutex::new(switch)))
    }

    /// Locks the switch.
    pub fn lock(&self) -> MutexGuard<'_, Switch> {
        // A panic while the lock was held left tables that are at worst incomplete.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The switch of one node.
#[derive(Debug)]
pub struct Switch {
    own: NodeId,
    forwarding: Forwarding,
    groups: Groups,
}

impl Switch {
    /// A switch of node `own` with empty tables.
    #[must_use]
    pub fn new(own: NodeId, now: Duration) -> Self {
        Self { own, forwarding: Forwarding::new(own), groups: Groups::new(now) }
    }

    /// Floods frames to groups for `learns_for` from `now` on, instead of
    /// [`LEARN_FOR`](crate::groups::LEARN_FOR).
    #[must_use]
    pub fn learning(mut self, learns_for: Duration, now: Duration) -> Self {
        self.groups.learn_until(now + learns_for);
        self
    }

    /// The switch's node.
    #[must_use]
    pub const fn own(&self) -> NodeId {
        self.own
    }

    /// Where a frame from this node's device goes. Learns from the frame.
    ///
    /// # Errors
    /// [`SourceError`]: the frame is refused.
    pub fn departs(&mut self, frame: &Frame<'_>, now: Duration) -> Result<Departure, SourceError> {
        let vlan = frame.vlan();
        let destination = frame.destination();
        self.forwarding.learn(Location::Here, frame.source(), vlan, now)?;
        if !destination.is_group() {
            return Ok(match self.forwarding.find(destination, vlan, now) {
                Some(Location::Here) => Departure::Nobody,
                Some(Location::Node(node)) => Departure::Node(node),
                None => Departure::All,
            });
        }
        let heard = heard(frame);
        self.groups.heard(Location::Here, vlan, &heard, now);
        // Every switch needs the report for its table. The receiving switches pass it on to
        // routers.
        if heard.for_routers {
            return Ok(Departure::All);
        }
        Ok(match self.groups.audience(destination, vlan, now) {
            Audience::All => Departure::All,
            Audience::Some(places) => {
                let node = |place| match place {
                    Location::Node(node) => Some(node),
                    Location::Here => None,
                };
                let nodes: BTreeSet<NodeId> = places.into_iter().filter_map(node).collect();
                if nodes.is_empty() { Departure::Nobody } else { Departure::Some(nodes) }
            }
        })
    }

    /// Whether a frame from `node` goes to this node's device. Learns from the frame.
    ///
    /// # Errors
    /// [`SourceError`]: the frame is refused, and `node` is at fault.
    pub fn arrives(
        &mut self,
        node: NodeId,
        frame: &Frame<'_>,
        now: Duration,
    ) -> Result<bool, SourceError> {
        let (vlan, destination) = (frame.vlan(), frame.destination());
        let from = Location::Node(node);
        self.forwarding.learn(from, frame.source(), vlan, now)?;
        if !destination.is_group() {
            // A flooded frame with an unknown destination goes to the device, since its owner may
            // live there.
            let lives = self.forwarding.find(destination, vlan, now);
            return Ok(matches!(lives, None | Some(Location::Here)));
        }
        let heard = heard(frame);
        self.groups.heard(from, vlan, &heard, now);
        let audience = if heard.for_routers {
            self.groups.routers(vlan, now)
        } else {
            self.groups.audience(destination, vlan, now)
        };
        Ok(match audience {
            Audience::All => true,
            Audience::Some(places) => places.contains(&Location::Here),
        })
    }

    /// The fabric groups that the port of `queue` has to join, one bit each: the broadcast group
    /// and those to which the wanted groups map; all of them if a router is here.
    #[must_use]
    pub fn joined(&self, queue: u8, now: Duration) -> u64 {
        const EVERYBODY: u64 = 1 << 63;
        let mut joined = EVERYBODY;
        for (group, vlan, places) in self.groups.list(now) {
            if places.contains(&Location::Here) {
                joined |= 1 << fabric_group(group, vlan, queue).number();
            }
        }
        if self.groups.wants_all(Location::Here, now) { u64::MAX } else { joined }
    }

    /// True when the hosts behind this node's device must be queried now. See [`Groups::asks`].
    pub fn asks(&mut self, now: Duration) -> bool {
        self.groups.asks(now)
    }

    /// A node appeared that knows no memberships.
    pub fn appeared(&mut self, now: Duration) {
        self.groups.appeared(now);
    }

    /// Removes expired entries. Call it now and then.
    pub fn age(&mut self, now: Duration) {
        self.forwarding.age(now);
        self.groups.age(now);
    }

    /// Forgets a node that went away, with all addresses behind it.
    pub fn lost(&mut self, node: NodeId) {
        self.forwarding.lost(node);
        self.groups.lost(Location::Node(node));
    }

    /// The forwarding table.
    #[must_use]
    pub const fn forwarding(&self) -> &Forwarding {
        &self.forwarding
    }

    /// The table of groups.
    #[must_use]
    pub const fn groups(&self) -> &Groups {
        &self.groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::LEARN_FOR;
    use crate::mac::MacAddress;

    const START: Duration = Duration::from_secs(1_000);
    const GROUP: [u8; 6] = [1, 0, 0x5e, 1, 2, 3];

    fn switch() -> Switch {
        Switch::new(NodeId(7), START - LEARN_FOR)
    }

    fn frame(destination: [u8; 6], source: MacAddress) -> Vec<u8> {
        [&destination[..], &source.0, &[0x88, 0xb5]].concat()
    }

    /// A report of IGMPv2 that its sender wants [`GROUP`].
    fn report(source: MacAddress) -> Vec<u8> {
        let packet = [0x45, 0, 0, 28, 0, 0, 0, 0, 1, 2, 0, 0, 10, 0, 0, 9, 239, 1, 2, 3];
        let body = [0x16, 0, 0xf8, 0xfa, 239, 1, 2, 3];
        let mut bytes = frame(GROUP, source);
        bytes[12..14].copy_from_slice(&[8, 0]);
        [&bytes[..], &packet, &body].concat()
    }

    fn of(node: u32) -> MacAddress {
        MacAddress::of_node(NodeId(node)).expect("16 bits")
    }

    fn departs(switch: &mut Switch, bytes: &[u8]) -> Departure {
        let frame = Frame::new(bytes).expect("the input is complete");
        switch.departs(&frame, START).expect("nothing is forged")
    }

    fn arrives(switch: &mut Switch, node: u32, bytes: &[u8]) -> Result<bool, SourceError> {
        switch.arrives(NodeId(node), &Frame::new(bytes).expect("the input is complete"), START)
    }

    #[test]
    fn unicast_goes_to_the_learned_node_or_is_flooded() {
        let mut switch = switch();
        let guest = MacAddress([2, 0, 0, 0, 0, 9]);
        assert_eq!(departs(&mut switch, &frame(of(1).0, of(7))), Departure::Node(NodeId(1)));
        assert_eq!(departs(&mut switch, &frame(of(7).0, of(7))), Departure::Nobody);
        assert_eq!(departs(&mut switch, &frame(guest.0, of(7))), Departure::All);
        assert_eq!(arrives(&mut switch, 3, &frame(of(7).0, guest)), Ok(true));
        assert_eq!(departs(&mut switch, &frame(guest.0, of(7))), Departure::Node(NodeId(3)));
        assert_eq!(departs(&mut switch, &frame(of(1).0, guest)), Departure::Node(NodeId(1)));
        assert_eq!(departs(&mut switch, &frame(guest.0, of(7))), Departure::Nobody, "it moved");
        switch.lost(NodeId(3));
        assert_eq!(departs(&mut switch, &frame(guest.0, of(7))), Departure::Nobody);
    }

    #[test]
    fn frames_for_other_nodes_do_not_reach_the_device() {
        let mut switch = switch();
        let unknown = [2, 0, 0, 0, 0, 9];
        assert_eq!(arrives(&mut switch, 1, &frame(of(7).0, of(1))), Ok(true));
        assert_eq!(arrives(&mut switch, 1, &frame(unknown, of(1))), Ok(true), "it was flooded");
        assert_eq!(arrives(&mut switch, 1, &frame(of(2).0, of(1))), Ok(false));
        assert_eq!(arrives(&mut switch, 1, &frame([0xff; 6], of(1))), Ok(true));
        let forged = arrives(&mut switch, 1, &frame(of(7).0, of(2)));
        assert_eq!(forged, Err(SourceError::Forged(of(2))));
    }

    #[test]
    fn group_frames_go_to_the_nodes_that_reported_the_group() {
        let (mut here, mut there) = (switch(), Switch::new(NodeId(1), START - LEARN_FOR));
        let data = frame(GROUP, of(7));
        let fabric = fabric_group(MacAddress(GROUP), 0, 2);
        assert_eq!(departs(&mut here, &data), Departure::Nobody);
        assert_eq!(there.joined(2, START), 1 << 63);
        assert_eq!(
            departs(&mut there, &report(of(1))),
            Departure::All,
            "every switch needs reports"
        );
        assert_eq!(there.joined(2, START), 1 << 63 | 1 << fabric.number());
        assert_eq!(arrives(&mut here, 1, &report(of(1))), Ok(true), "no router is known");
        let some = Departure::Some(BTreeSet::from([NodeId(1)]));
        assert_eq!(departs(&mut here, &data), some);
        assert_eq!(arrives(&mut there, 7, &data), Ok(true));
        assert_eq!(arrives(&mut here, 1, &frame(GROUP, of(1))), Ok(false), "not wanted here");
        assert_eq!(departs(&mut there, &frame(GROUP, of(1))), Departure::Nobody);
        here.lost(NodeId(1));
        assert_eq!(departs(&mut here, &data), Departure::Nobody);
    }
}
