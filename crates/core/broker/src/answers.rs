//! The two numbers of a [`Reply`], by the request that it answers. The broker makes them here, and
//! transports take them apart here.

use weft_fabric::{Access, EndpointAddress, NodeId, PartitionId, Vpid};
use weft_wire::endpoint_control::{IN_PLACE, NO_VPID, Reply, status};

/// The two numbers of a reply.
pub(crate) type Words = (u64, u64);

/// An endpoint on this node was opened, or announced again after a restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenedHere {
    /// Its address.
    pub address: EndpointAddress,
    /// Its partition.
    pub partition: PartitionId,
    /// The endpoint that let it in. It is on the same node.
    pub host: Option<EndpointAddress>,
}

impl OpenedHere {
    pub(crate) fn words(self) -> Words {
        let host = self.host.map_or(NO_VPID, |host| host.vpid.0);
        (u64::from(host) << 48 | address_word(self.address), self.partition.0)
    }

    /// The answer in a reply that says that the request was carried out.
    #[must_use]
    pub fn of(reply: &Reply) -> Self {
        let address = address_of(reply.first);
        let [.., h0, h1] = reply.first.to_le_bytes();
        let host = u16::from_le_bytes([h0, h1]);
        let host = (host != NO_VPID).then(|| EndpointAddress::new(address.node, Vpid(host)));
        Self { address, partition: PartitionId(reply.second), host }
    }
}

/// An endpoint was connected to a peer of its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connected {
    /// The peer's flags.
    pub flags: u32,
    /// Slots of the rings that the peer owns.
    pub slots: u32,
    /// The random number of this life of the peer.
    pub birth: u64,
}

impl Connected {
    pub(crate) fn words(self) -> Words {
        (u64::from(self.slots) << 32 | u64::from(self.flags), self.birth)
    }

    /// The answer in a reply that says that the request was carried out.
    #[must_use]
    pub fn of(reply: &Reply) -> Self {
        let [f0, f1, f2, f3, s0, s1, s2, s3] = reply.first.to_le_bytes();
        let flags = u32::from_le_bytes([f0, f1, f2, f3]);
        let slots = u32::from_le_bytes([s0, s1, s2, s3]);
        Self { flags, slots, birth: reply.second }
    }
}

/// The place of the memory of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// The range starts here in the descriptor that comes with the answer.
    File(u64),
    /// It is memory of the owner's process, at this address, if it is told.
    InPlace(Option<u64>),
}

/// A key of a peer was looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyFound {
    /// Bytes of its range.
    pub length: u64,
    /// Its rights.
    pub access: Access,
    /// Its memory.
    pub memory: Memory,
}

impl KeyFound {
    /// The last start of a range that there is room for.
    pub(crate) const START_MAX: u64 = u64::MAX >> 8;

    pub(crate) fn words(self) -> Words {
        let access = self.access.bits();
        let (start, bits) = match self.memory {
            Memory::File(start) => (start, access),
            Memory::InPlace(address) => (address.unwrap_or(0), access | IN_PLACE),
        };
        (self.length, start << 8 | u64::from(bits))
    }

    /// The answer in a reply that says that the request was carried out; `None` if it is none.
    #[must_use]
    pub fn of(reply: &Reply) -> Option<Self> {
        let [bits, ..] = reply.second.to_le_bytes();
        let (length, start) = (reply.first, reply.second >> 8);
        let access = Access::of_key(bits & !IN_PLACE)?;
        if bits & IN_PLACE == 0 {
            return Some(Self { length, access, memory: Memory::File(start) });
        }
        let address = (start != 0).then_some(start);
        let wraps = address.is_some_and(|address| address.checked_add(length).is_none());
        (!wraps).then_some(Self { length, access, memory: Memory::InPlace(address) })
    }
}

/// A key was taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retracted {
    /// How many peers were told of the key.
    pub told: u64,
}

impl Retracted {
    pub(crate) const fn words(self) -> Words {
        (self.told, 0)
    }

    /// The answer in a reply that says that the request was carried out.
    #[must_use]
    pub const fn of(reply: &Reply) -> Self {
        Self { told: reply.first }
    }
}

/// The port of an endpoint was announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortKnown {
    /// The endpoint, if another connection opened it.
    pub address: EndpointAddress,
    /// How long a peer may be silent, in milliseconds; 0 for any time.
    pub silence_ms: u64,
}

impl PortKnown {
    pub(crate) fn words(self) -> Words {
        (address_word(self.address), self.silence_ms)
    }

    /// The answer in a reply that says that the request was carried out.
    #[must_use]
    pub fn of(reply: &Reply) -> Self {
        Self { address: address_of(reply.first), silence_ms: reply.second }
    }
}

/// The maximum of the table that is full, in a reply with [`status::EXHAUSTED`].
#[must_use]
pub fn maximum(reply: &Reply) -> usize {
    debug_assert_eq!(reply.status, status::EXHAUSTED);
    usize::try_from(reply.first).unwrap_or(usize::MAX)
}

/// The address that is taken, in a reply with [`status::IN_USE`].
pub(crate) fn taken(reply: &Reply) -> EndpointAddress {
    address_of(reply.first)
}

pub(crate) fn address_word(address: EndpointAddress) -> u64 {
    u64::from(address.node.0) << 16 | u64::from(address.vpid.0)
}

fn address_of(word: u64) -> EndpointAddress {
    let [v0, v1, n0, n1, n2, n3, ..] = word.to_le_bytes();
    let node = NodeId(u32::from_le_bytes([n0, n1, n2, n3]));
    EndpointAddress::new(node, Vpid(u16::from_le_bytes([v0, v1])))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn reply((first, second): Words) -> Reply {
        Reply { ticket: 1, status: status::DONE, first, second }
    }

    #[test]
    fn each_answer_is_what_the_broker_made() {
        let address = EndpointAddress::new(NodeId::MAX, Vpid(0x1234));
        for host in [None, Some(EndpointAddress::new(NodeId::MAX, Vpid(7)))] {
            let opened = OpenedHere { address, partition: PartitionId(u64::MAX - 1), host };
            assert_eq!(OpenedHere::of(&reply(opened.words())), opened);
        }
        let connected = Connected { flags: 0x8000_0001, slots: u32::MAX, birth: 9 };
        assert_eq!(Connected::of(&reply(connected.words())), connected);
        let known = PortKnown { address, silence_ms: 15_000 };
        assert_eq!(PortKnown::of(&reply(known.words())), known);
        assert_eq!(Retracted::of(&reply(Retracted { told: 3 }.words())), Retracted { told: 3 });
        for memory in [
            Memory::File(0),
            Memory::File(KeyFound::START_MAX),
            Memory::InPlace(None),
            Memory::InPlace(Some(0x7fff_0000)),
        ] {
            let found = KeyFound { length: 4096, access: Access::READ, memory };
            assert_eq!(KeyFound::of(&reply(found.words())), Some(found));
        }
    }

    #[test]
    fn a_key_without_rights_or_around_the_end_of_memory_is_none() {
        assert_eq!(KeyFound::of(&reply((8, 0))), None);
        assert_eq!(KeyFound::of(&reply((8, u64::from(Access::ATOMIC.bits())))), None);
        let word = |address: u64| address << 8 | u64::from(Access::READ.bits() | IN_PLACE);
        assert_eq!(KeyFound::of(&reply((u64::MAX, word(2)))), None);
        assert!(KeyFound::of(&reply((u64::MAX, word(0)))).is_some());
    }
}
