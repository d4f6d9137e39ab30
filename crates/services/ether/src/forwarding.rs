//! The forwarding table: behind which node an address lives. Learning, ageing, moves, forgeries.
//!
//! A node's own address contains its number and needs no entry. Other addresses, those of bridges,
//! containers and virtual machines, are learned for each VLAN from the source addresses of frames,
//! as any switch does (IEEE 802.1Q section 8.7; ANGARA-ETH#2.2 has the table for Angara).

use std::collections::HashMap;
use std::time::Duration;

use thiserror::Error;
use weft_fabric::NodeId;

use crate::mac::MacAddress;

/// An address is forgotten if no frame came from it for this long (the default of IEEE 802.1Q).
pub const AGE_MAX: Duration = Duration::from_secs(300);
/// Addresses learned behind one node at most. A node that invents addresses fills only its own
/// share.
pub const ADDRESSES_OF_NODE_MAX: u32 = 4096;

/// Where an address was seen last.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Location {
    /// Behind this node's device.
    Here,
    /// Behind another node's device.
    Node(NodeId),
}

/// The effect of a frame on the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Learned {
    /// No change: the address was known, or is a node's own address, which has no entry.
    Known,
    /// The address is a new entry.
    New,
    /// The address was behind another node before.
    Moved {
        /// The former place.
        from: Location,
    },
    /// The node has its maximum of entries, so the address is not kept. Frames to it are flooded.
    Full,
}

/// Why the source address of a frame is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SourceError {
    /// A group address is no source address.
    #[error("a frame from {0}, which is the address of a group")]
    Group(MacAddress),
    /// The source address is the own address of another node.
    #[error("a frame from {0}, which is the own address of another node")]
    Forged(MacAddress),
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    place: Location,
    when: Duration,
}

/// The forwarding table of one node.
#[derive(Debug)]
pub struct Forwarding {
    own: NodeId,
    seen: HashMap<(u16, MacAddress), Seen>,
    counts: HashMap<Location, u32>,
}

impl Forwarding {
    /// An empty table of node `own`.
    #[must_use]
    pub fn new(own: NodeId) -> Self {
        Self { own, seen: HashMap::new(), counts: HashMap::new() }
    }

    /// Records that a frame in `vlan` with source address `source` came from `place`.
    ///
    /// # Errors
    /// [`SourceError`]: the frame must not be forwarded.
    pub fn learn(
        &mut self,
        place: Location,
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
            // The old entry is wrong: the address has moved.
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

    fn place_of(&self, node: NodeId) -> Location {
        if node == self.own { Location::Here } else { Location::Node(node) }
    }

    fn forget(&mut self, vlan: u16, address: MacAddress) {
        if let Some(seen) = self.seen.remove(&(vlan, address)) {
            self.one_less(seen.place);
        }
    }

    fn one_less(&mut self, place: Location) {
        if let Some(count) = self.counts.get_mut(&place) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&place);
            }
        }
    }

    /// Where `address` lives in `vlan`, or `None` if frames to it have to be flooded.
    #[must_use]
    pub fn find(&self, address: MacAddress, vlan: u16, now: Duration) -> Option<Location> {
        if let Some(node) = address.node() {
            return Some(self.place_of(node));
        }
        let seen = self.seen.get(&(vlan, address))?;
        (now.saturating_sub(seen.when) <= AGE_MAX).then_some(seen.place)
    }

    /// Removes entries that are too old. Call it now and then to free memory; lookups ignore old
    /// entries in any case.
    pub fn age(&mut self, now: Duration) {
        self.retain(|seen| now.saturating_sub(seen.when) <= AGE_MAX);
    }

    /// Removes all entries of a node that went away.
    pub fn lost(&mut self, node: NodeId) {
        self.retain(|seen| seen.place != Location::Node(node));
    }

    fn retain(&mut self, keep: impl Fn(&Seen) -> bool) {
        let gone: Vec<(u16, MacAddress)> =
            self.seen.iter().filter(|(_, seen)| !keep(seen)).map(|(key, _)| *key).collect();
        for (vlan, address) in gone {
            self.forget(vlan, address);
        }
    }

    /// Every entry in order: address, VLAN, place, and the time since its last frame.
    #[must_use]
    pub fn list(&self, now: Duration) -> Vec<(MacAddress, u16, Location, Duration)> {
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

    const ONE: Location = Location::Node(NodeId(1));
    const TWO: Location = Location::Node(NodeId(2));
    const START: Duration = Duration::from_secs(1_000);

    fn guest(number: u32) -> MacAddress {
        let [a, b, c, d] = number.to_be_bytes();
        MacAddress([2, 0, a, b, c, d])
    }

    #[test]
    fn own_addresses_need_no_table_and_are_not_forged() {
        let mut table = Forwarding::new(NodeId(7));
        let [own, other] = [7, 1].map(|node| MacAddress::of_node(NodeId(node)).expect("16 bits"));
        assert_eq!(table.find(other, 0, START), Some(ONE));
        assert_eq!(table.find(own, 0, START), Some(Location::Here));
        assert_eq!(table.learn(ONE, other, 0, START), Ok(Learned::Known));
        assert_eq!(table.learn(Location::Here, own, 0, START), Ok(Learned::Known));
        for (place, address) in [(TWO, other), (ONE, own), (Location::Here, other)] {
            let error = SourceError::Forged(address);
            assert_eq!(table.learn(place, address, 0, START), Err(error));
        }
        let all = MacAddress::BROADCAST;
        assert_eq!(table.learn(ONE, all, 0, START), Err(SourceError::Group(all)));
        assert!(table.list(START).is_empty());
    }

    #[test]
    fn other_addresses_are_learned_move_and_age() {
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
    fn the_addresses_of_a_lost_node_are_forgotten() {
        let mut table = Forwarding::new(NodeId(7));
        table.learn(ONE, guest(1), 0, START).expect("no forgery");
        table.learn(TWO, guest(2), 3, START).expect("no forgery");
        table.lost(NodeId(1));
        assert_eq!(table.list(START), [(guest(2), 3, TWO, Duration::ZERO)]);
    }

    #[test]
    fn a_node_that_invents_addresses_fills_only_its_own_share() {
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
