//! Packets between a manager and the agents of nodes.
//!
//! A packet goes from port to port: each agent takes the next port from its `route`, and adds the
//! port where it came to `back`. So it needs no numbers or tables, and the answer finds the way.
//!
//! # Invariants
//! - A packet that was parsed has at most [`HOPS_MAX`] ports each way, and an order at most
//!   [`ENTRIES_MAX`] entries.

use serde::{Deserialize, Serialize};
use weft_routing::tables::Side;
use weft_topology::Port;

/// Hops of a packet at most.
pub const HOPS_MAX: usize = 256;
/// Entries of a table in one order at most.
pub const ENTRIES_MAX: usize = 256;
/// Ports of a node at most.
pub const PORTS_MAX: usize = 2_048;
/// Bytes of a packet at most.
pub const PACKET_BYTES_MAX: usize = 8 * 1_024;

/// A packet on its way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Packet {
    /// The ports that are still to be taken, the next first.
    pub route: Vec<Port>,
    /// The ports where it came, the latest last.
    pub back: Vec<Port>,
    /// The message.
    pub body: Body,
}

impl Packet {
    /// A packet that starts.
    #[must_use]
    pub fn new(route: Vec<Port>, body: Body) -> Self {
        Self { route, back: Vec::new(), body }
    }

    /// The packet that answers it.
    #[must_use]
    pub fn reply(&self, body: Body) -> Self {
        Self::new(self.back.iter().rev().copied().collect(), body)
    }

    /// The bytes of the packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // Writing to a vector does not fail.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Parses a packet. `None` if it is none, or too long.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > PACKET_BYTES_MAX {
            return None;
        }
        let packet: Self = postcard::from_bytes(bytes).ok()?;
        let has_room = packet.route.len() <= HOPS_MAX && packet.back.len() <= HOPS_MAX;
        let fits = match &packet.body {
            Body::Order { order: Order::Load { entries, .. }, .. } => entries.len() <= ENTRIES_MAX,
            Body::Answer { answer: Answer::Identity(identity), .. } => {
                identity.ports.len() <= PORTS_MAX
            }
            _ => true,
        };
        (has_room && fits).then_some(packet)
    }
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Body {
    /// From the manager to an agent.
    Order {
        /// The term of the manager's lease.
        term: u64,
        /// Names the order in the answer.
        sequence: u64,
        /// The order.
        order: Order,
    },
    /// From an agent to the manager.
    Answer {
        /// The sequence of the order.
        sequence: u64,
        /// The result.
        answer: Answer,
    },
    /// From an agent to the manager: a link failed or came back. It is sent until it is heard.
    Notice {
        /// Counts the notices of the agent.
        serial: u64,
    },
    /// From the manager to an agent: the notice was heard.
    Heard {
        /// Its serial.
        serial: u64,
    },
}

/// An order. All may come twice.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Tell who you are.
    Identify,
    /// Take this number and segment. A node keeps both for as long as it has tables.
    Place {
        /// The number; `None` for a switch.
        number: Option<u16>,
        /// The segment, if any.
        segment: Option<u16>,
    },
    /// Forget all tables, unless you have heard of this version.
    Clear {
        /// The version that is about to come.
        version: u64,
    },
    /// Take entries of a table of a version to come.
    Load {
        /// The version.
        version: u64,
        /// The plane that it uses, which is not the one in use.
        side: Side,
        /// The table.
        row: Row,
        /// The place of the first entry.
        first: u16,
        /// The entries; of a multicast group, its ports.
        entries: Vec<u16>,
    },
    /// The version is whole. Its plane is in force for packets that come on it.
    Seal {
        /// The version.
        version: u64,
        /// The channels of the base layer.
        base_vcs: u8,
    },
    /// Use the version, and the links that came up since the last one.
    Activate {
        /// The version.
        version: u64,
    },
}

/// A table of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Row {
    /// The global table of the base layer.
    BaseGlobal,
    /// The local table of the base layer.
    BaseLocal,
    /// The global table of the plane.
    PlaneGlobal,
    /// The local table of the plane.
    PlaneLocal,
    /// The ports of a multicast group.
    Group(u8),
}

/// The result of an order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Order::Identify`].
    Identity(Identity),
    /// The order was carried out, now or before.
    Done,
    /// A manager with this higher term rules.
    Superseded(u64),
    /// The order does not fit the state of the node: a version that is not newer, or a place out of
    /// range.
    Refused,
}

/// The state of the link at a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Link {
    /// There is none, or it failed.
    Down,
    /// It is up, for packets of the manager alone: it came up after the last activation.
    Held,
    /// It is up.
    Up,
}

/// The state of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// The number that the node was made with.
    pub guid: u64,
    /// True for a switch.
    pub is_switch: bool,
    /// The link at each port.
    pub ports: Vec<Link>,
    /// The port where the order came; `None` at the manager's own node.
    pub arrived: Option<Port>,
    /// The number that a manager gave.
    pub number: Option<u16>,
    /// The version in use and its plane.
    pub active: Option<(u64, Side)>,
    /// The version that is sealed and not in use.
    pub sealed: Option<u64>,
    /// The highest version that it heard of.
    pub seen: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_parsed_within_their_bounds() {
        let packet = Packet::new(vec![3, 1], Body::Heard { serial: 7 });
        assert_eq!(Packet::parse(&packet.encode()), Some(packet.clone()));
        let mut long = packet.clone();
        long.back = vec![0; HOPS_MAX + 1];
        assert_eq!(Packet::parse(&long.encode()), None);
        let entries = vec![0; ENTRIES_MAX + 1];
        let order =
            Order::Load { version: 1, side: Side::A, row: Row::BaseLocal, first: 0, entries };
        let load = Packet::new(Vec::new(), Body::Order { term: 1, sequence: 1, order });
        assert_eq!(Packet::parse(&load.encode()), None);
        assert_eq!(Packet::parse(&[]), None);
        assert_eq!(Packet::parse(&vec![0; PACKET_BYTES_MAX + 1]), None);
        let reply = Packet { back: vec![4, 5], ..packet }.reply(Body::Heard { serial: 8 });
        assert_eq!(reply.route, [5, 4]);
    }
}
