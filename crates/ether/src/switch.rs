//! Which way a frame goes: the forwarding table and the table of groups at work.
//!
//! Every node has a switch of its own and decides alone; what one learns, the others learn from the
//! same frames. A frame never goes back to where it came from, and one that came over the fabric
//! goes to the own device or nowhere: the fabric reaches everybody, so nothing is relayed and
//! nothing can go in circles.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_fabric::NodeId;

use crate::forwarding::{Forwarding, Place, SourceError};
use crate::frame::Frame;
use crate::groups::{Audience, Groups};
use crate::membership::heard;
use crate::segment::fabric_group;

/// Where a frame of the own device goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Departure {
    /// Nowhere: whom it is for lives behind the own device, or nobody wants it.
    Nobody,
    /// To one node.
    Node(NodeId),
    /// To some, who want this group; on the fabric perhaps to others, too.
    Some(BTreeSet<NodeId>),
    /// To every node.
    All,
}

/// The switch of a node whose device has several queues, each with a port of its own: what one
/// learns, the others know.
#[derive(Clone, Debug)]
pub struct SharedSwitch(Arc<Mutex<Switch>>);

impl SharedSwitch {
    /// `switch`, for several.
    #[must_use]
    pub fn new(switch: Switch) -> Self {
        Self(Arc::new(Mutex::new(switch)))
    }

    /// The switch, for one alone and a moment.
    pub fn lock(&self) -> MutexGuard<'_, Switch> {
        // Whoever panicked with it has left tables that are at worst incomplete.
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
    /// That of node `own`, which knows nobody.
    #[must_use]
    pub fn new(own: NodeId, now: Duration) -> Self {
        Self { own, forwarding: Forwarding::new(own), groups: Groups::new(now) }
    }

    /// The same, which keeps nothing from anybody until it has learned for so long since `now`, in
    /// place of [`LEARN_FOR`](crate::groups::LEARN_FOR).
    #[must_use]
    pub fn learning(mut self, learns_for: Duration, now: Duration) -> Self {
        self.groups.learn_until(now + learns_for);
        self
    }

    /// The node it belongs to.
    #[must_use]
    pub const fn own(&self) -> NodeId {
        self.own
    }

    /// Where a frame goes that the own device gave.
    ///
    /// # Errors
    /// [`SourceError`]: it goes nowhere.
    pub fn departs(&mut self, frame: &Frame<'_>, now: Duration) -> Result<Departure, SourceError> {
        let vlan = frame.vlan();
        let destination = frame.destination();
        self.forwarding.learn(Place::Here, frame.source(), vlan, now)?;
        if !destination.is_group() {
            return Ok(match self.forwarding.find(destination, vlan, now) {
                Some(Place::Here) => Departure::Nobody,
                Some(Place::Node(node)) => Departure::Node(node),
                None => Departure::All,
            });
        }
        let heard = heard(frame);
        self.groups.heard(Place::Here, vlan, &heard, now);
        // Reports go to all switches, whose tables live by them, and from there to routers.
        if heard.for_routers {
            return Ok(Departure::All);
        }
        Ok(match self.groups.audience(destination, vlan, now) {
            Audience::All => Departure::All,
            Audience::Some(places) => {
                let node = |place| match place {
                    Place::Node(node) => Some(node),
                    Place::Here => None,
                };
                let nodes: BTreeSet<NodeId> = places.into_iter().filter_map(node).collect();
                if nodes.is_empty() { Departure::Nobody } else { Departure::Some(nodes) }
            }
        })
    }

    /// Whether a frame that came from `node` goes to the own device.
    ///
    /// # Errors
    /// [`SourceError`]: it does not, and the node is not to be believed.
    pub fn arrives(
        &mut self,
        node: NodeId,
        frame: &Frame<'_>,
        now: Duration,
    ) -> Result<bool, SourceError> {
        let (vlan, destination) = (frame.vlan(), frame.destination());
        let from = Place::Node(node);
        self.forwarding.learn(from, frame.source(), vlan, now)?;
        if !destination.is_group() {
            // What was flooded is for one of all; the device's owner knows for whom.
            let lives = self.forwarding.find(destination, vlan, now);
            return Ok(matches!(lives, None | Some(Place::Here)));
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
            Audience::Some(places) => places.contains(&Place::Here),
        })
    }

    /// The groups of the fabric that the port of `queue` has to be a member of, a bit each: that of
    /// everybody, those onto which wanted ones fall, and all of them for a router.
    #[must_use]
    pub fn joined(&self, queue: u8, now: Duration) -> u64 {
        const EVERYBODY: u64 = 1 << 63;
        let mut joined = EVERYBODY;
        for (group, vlan, places) in self.groups.list(now) {
            if places.contains(&Place::Here) {
                joined |= 1 << fabric_group(group, vlan, queue).number();
            }
        }
        if self.groups.wants_all(Place::Here, now) { u64::MAX } else { joined }
    }

    /// True when the hosts behind the own device are to be asked now which groups they want; they
    /// are then, and not again for a while.
    pub fn asks(&mut self, now: Duration) -> bool {
        self.groups.asks(now)
    }

    /// A node came that knows nothing yet.
    pub fn appeared(&mut self, now: Duration) {
        self.groups.appeared(now);
    }

    /// Forgets what is over. To be called now and then.
    pub fn age(&mut self, now: Duration) {
        self.forwarding.age(now);
        self.groups.age(now);
    }

    /// A node is gone, with all that was behind it.
    pub fn lost(&mut self, node: NodeId) {
        self.forwarding.lost(node);
        self.groups.lost(Place::Node(node));
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

    fn of(node: u16) -> MacAddress {
        MacAddress::of_node(NodeId(node))
    }

    fn departs(switch: &mut Switch, bytes: &[u8]) -> Departure {
        let frame = Frame::new(bytes).expect("it is whole");
        switch.departs(&frame, START).expect("nothing is forged")
    }

    fn arrives(switch: &mut Switch, node: u16, bytes: &[u8]) -> Result<bool, SourceError> {
        switch.arrives(NodeId(node), &Frame::new(bytes).expect("it is whole"), START)
    }

    #[test]
    fn unicast_goes_to_the_node_or_everywhere() {
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
    fn what_came_goes_to_the_device_unless_it_is_anothers() {
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
    fn groups_go_to_those_who_asked() {
        let (mut here, mut there) = (switch(), Switch::new(NodeId(1), START - LEARN_FOR));
        let data = frame(GROUP, of(7));
        let fabric = fabric_group(MacAddress(GROUP), 0, 2);
        assert_eq!(departs(&mut here, &data), Departure::Nobody);
        assert_eq!(there.joined(2, START), 1 << 63);
        assert_eq!(departs(&mut there, &report(of(1))), Departure::All, "switches live by it");
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
