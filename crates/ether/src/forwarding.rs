//! Behind which node an address lives: learning, ageing, moves, forgeries.
//!
//! The own address of a node carries its number and needs no table. Others, of bridges, containers
//! and virtual machines, are learned from the frames that they send, per VLAN, as any switch does
//! (IEEE 802.1Q section 8.7; 004 section 2.2 has the table for Angara).

use std::collections::HashMap;
use std::time::Duration;

use thiserror::Error;
use weft_fabric::NodeId;

use crate::mac::MacAddress;

/// An address from which nothing came for so long is forgotten (the default of IEEE 802.1Q).
pub const AGE_MAX: Duration = Duration::from_secs(300);
/// Addresses that are learned behind one node; a node that makes more up fills nobody else's table.
pub const ADDRESSES_OF_NODE_MAX: u32 = 4096;

/// Where an address was seen last.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Place {
    /// Behind the device of this node.
    Here,
    /// Behind that of another.
    Node(NodeId),
}

/// What a frame taught.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Learned {
    /// Nothing that was not known, or the own address of a node, which is not kept.
    Known,
    /// An address that was not known.
    New,
    /// The address lived elsewhere before.
    Moved {
        /// Where.
        from: Place,
    },
    /// There are too many behind that node: frames to it go everywhere.
    Full,
}

/// Why a frame is refused by what it says of its sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SourceError {
    /// The address of several is nobody's own.
    #[error("a frame from {0}, which is the address of a group")]
    Group(MacAddress),
    /// The own address of another node.
    #[error("a frame from {0}, which is the own address of another node")]
    Forged(MacAddress),
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    place: Place,
    when: Duration,
}

/// The table of one node.
#[derive(Debug)]
pub struct Forwarding {
    own: NodeId,
    seen: HashMap<(u16, MacAddress), Seen>,
    counts: HashMap<Place, u32>,
}

impl Forwarding {
    /// That of node `own`, which knows nobody.
    #[must_use]
    pub fn new(own: NodeId) -> Self {
        Self { own, seen: HashMap::new(), counts: HashMap::new() }
    }

    /// A frame in `vlan` came from `source`, which is behind `place`.
    ///
    /// # Errors
    /// [`SourceError`]: the frame is not to be passed on.
    pub fn learn(
        &mut self,
        place: Place,
        source: MacAddress,
        vlan: u16,
        now: Duration,
    ) -> Result<Learned, SourceError> {
        if source.is_group() {
            return Err(SourceError::Group(source));
        }
        if let Some(owner) = source.node() {
            return if self.place_of(owner) == place {
                Ok(Learned::Known)
            } else {
                Err(SourceError::Forged(source))
            };
        }
        let former = self.seen.get(&(vlan, source)).copied();
        if let Some(former) = former
            && former.place == place
        {
            self.seen.insert((vlan, source), Seen { place, when: now });
            return Ok(Learned::Known);
        }
        let count = self.counts.entry(place).or_default();
        if *count >= ADDRESSES_OF_NODE_MAX {
            // What is known of it is no longer true.
            self.forget(vlan, source);
            return Ok(Learned::Full);
        }
        *count += 1;
        self.seen.insert((vlan, source), Seen { place, when: now });
        let Some(former) = former else { return Ok(Learned::New) };
        self.one_less(former.place);
        let is_old = now.saturating_sub(former.when) > AGE_MAX;
        Ok(if is_old { Learned::New } else { Learned::Moved { from: former.place } })
    }

    fn place_of(&self, node: NodeId) -> Place {
        if node == self.own { Place::Here } else { Place::Node(node) }
    }

    fn forget(&mut self, vlan: u16, address: MacAddress) {
        if let Some(seen) = self.seen.remove(&(vlan, address)) {
            self.one_less(seen.place);
        }
    }

    fn one_less(&mut self, place: Place) {
        if let Some(count) = self.counts.get_mut(&place) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&place);
            }
        }
    }

    /// Where `address` lives in `vlan`, or `None` when only a frame to everybody finds it.
    #[must_use]
    pub fn find(&self, address: MacAddress, vlan: u16, now: Duration) -> Option<Place> {
        if let Some(node) = address.node() {
            return Some(self.place_of(node));
        }
        let seen = self.seen.get(&(vlan, address))?;
        (now.saturating_sub(seen.when) <= AGE_MAX).then_some(seen.place)
    }

    /// Forgets what is too old. To be called now and then; lookups pass it over in any case.
    pub fn age(&mut self, now: Duration) {
        self.retain(|seen| now.saturating_sub(seen.when) <= AGE_MAX);
    }

    /// A node is gone, with all that was behind it.
    pub fn lost(&mut self, node: NodeId) {
        self.retain(|seen| seen.place != Place::Node(node));
    }

    fn retain(&mut self, keep: impl Fn(&Seen) -> bool) {
        let gone: Vec<(u16, MacAddress)> =
            self.seen.iter().filter(|(_, seen)| !keep(seen)).map(|(key, _)| *key).collect();
        for (vlan, address) in gone {
            self.forget(vlan, address);
        }
    }

    /// Every address with its VLAN, its place and how long nothing came from it, in order.
    #[must_use]
    pub fn list(&self, now: Duration) -> Vec<(MacAddress, u16, Place, Duration)> {
        let mut list: Vec<_> = self
            .seen
            .iter()
            .map(|((vlan, address), seen)| {
                (*address, *vlan, seen.place, now.saturating_sub(seen.when))
            })
            .collect();
        list.sort_unstable();
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Place = Place::Node(NodeId(1));
    const TWO: Place = Place::Node(NodeId(2));
    const START: Duration = Duration::from_secs(1_000);

    fn guest(number: u32) -> MacAddress {
        let [a, b, c, d] = number.to_be_bytes();
        MacAddress([2, 0, a, b, c, d])
    }

    #[test]
    fn own_addresses_need_no_table_and_are_not_forged() {
        let mut table = Forwarding::new(NodeId(7));
        let (own, other) = (MacAddress::of_node(NodeId(7)), MacAddress::of_node(NodeId(1)));
        assert_eq!(table.find(other, 0, START), Some(ONE));
        assert_eq!(table.find(own, 0, START), Some(Place::Here));
        assert_eq!(table.learn(ONE, other, 0, START), Ok(Learned::Known));
        assert_eq!(table.learn(Place::Here, own, 0, START), Ok(Learned::Known));
        for (place, address) in [(TWO, other), (ONE, own), (Place::Here, other)] {
            let error = SourceError::Forged(address);
            assert_eq!(table.learn(place, address, 0, START), Err(error));
        }
        let all = MacAddress::BROADCAST;
        assert_eq!(table.learn(ONE, all, 0, START), Err(SourceError::Group(all)));
        assert!(table.list(START).is_empty());
    }

    #[test]
    fn others_are_learned_move_and_grow_old() {
        let mut table = Forwarding::new(NodeId(7));
        assert_eq!(table.find(guest(1), 0, START), None);
        assert_eq!(table.learn(ONE, guest(1), 0, START), Ok(Learned::New));
        assert_eq!(table.learn(ONE, guest(1), 0, START), Ok(Learned::Known));
        assert_eq!(table.find(guest(1), 0, START), Some(ONE));
        assert_eq!(table.find(guest(1), 5, START), None, "another VLAN is another network");
        let moved = table.learn(TWO, guest(1), 0, START + AGE_MAX);
        assert_eq!(moved, Ok(Learned::Moved { from: ONE }));
        assert_eq!(table.find(guest(1), 0, START + AGE_MAX * 2), Some(TWO));
        let late = START + AGE_MAX * 2 + Duration::from_nanos(1);
        assert_eq!(table.find(guest(1), 0, late), None);
        assert_eq!(table.learn(ONE, guest(1), 0, late), Ok(Learned::New), "it was forgotten");
        table.age(late + AGE_MAX * 2);
        assert!(table.list(late).is_empty() && table.counts.is_empty());
    }

    #[test]
    fn a_lost_node_takes_its_addresses_along() {
        let mut table = Forwarding::new(NodeId(7));
        table.learn(ONE, guest(1), 0, START).expect("no forgery");
        table.learn(TWO, guest(2), 3, START).expect("no forgery");
        table.lost(NodeId(1));
        assert_eq!(table.list(START), [(guest(2), 3, TWO, Duration::ZERO)]);
    }

    #[test]
    fn a_node_that_makes_addresses_up_fills_its_own_part_alone() {
        let mut table = Forwarding::new(NodeId(7));
        table.learn(TWO, guest(0), 0, START).expect("no forgery");
        for number in 1..=ADDRESSES_OF_NODE_MAX {
            assert_eq!(table.learn(ONE, guest(number), 0, START), Ok(Learned::New));
        }
        let one_more = guest(ADDRESSES_OF_NODE_MAX + 1);
        assert_eq!(table.learn(ONE, one_more, 0, START), Ok(Learned::Full));
        assert_eq!(table.learn(ONE, guest(0), 0, START), Ok(Learned::Full));
        assert_eq!(table.find(guest(0), 0, START), None, "it is no longer behind the second");
        assert_eq!(table.learn(TWO, one_more, 0, START), Ok(Learned::New));
        table.age(START + AGE_MAX * 2);
        assert_eq!(table.learn(ONE, guest(0), 0, START + AGE_MAX * 2), Ok(Learned::New));
    }
}
