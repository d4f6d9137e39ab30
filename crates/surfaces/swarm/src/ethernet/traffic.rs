//! Packets that tell who sent them, so that a receiver can check each.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_ether::MacAddress;
use weft_fabric::NodeId;

/// Bytes of a packet in front of its pattern: offloads, frame header, and what follows there.
const FRONT: usize = 12 + 14 + 16;
/// The longest pattern.
pub const PATTERN_MAX: usize = 64_000;

/// Bytes of which each packet has a part.
static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    (0..PATTERN_MAX + 0x1_0000).map(|_| random.random()).collect()
});

/// A life of a node, as its packets name it.
pub type Life = (u32, u32);

/// The address of a node.
pub fn address(node: u32) -> MacAddress {
    MacAddress::of_node(NodeId(node)).expect("16 bits")
}

/// Packet `number` of a life, to one node or, for `None`, to all.
pub fn packet((node, life): Life, to: Option<u32>, number: u64, length: usize) -> Vec<u8> {
    let to = to.map_or(MacAddress::BROADCAST, address);
    let mut packet = vec![0; 12];
    packet.extend_from_slice(&to.0);
    packet.extend_from_slice(&address(node).0);
    packet.extend_from_slice(&[0x88, 0xb5]);
    packet.extend_from_slice(&node.to_le_bytes());
    packet.extend_from_slice(&life.to_le_bytes());
    packet.extend_from_slice(&number.to_le_bytes());
    packet.extend_from_slice(pattern(life, number, length));
    packet
}

fn pattern(life: u32, number: u64, length: usize) -> &'static [u8] {
    let start = (number * 977 + u64::from(life) * 31 + length as u64) & 0xffff;
    let start = usize::try_from(start).expect("16 bits");
    &NOISE[start..start + length]
}

/// The traffic that one life of a receiver has seen: the last number of each life of a sender.
#[derive(Default)]
pub struct Seen(BTreeMap<Life, u64>);

impl Seen {
    /// Checks a packet that `node` got. Returns the life of its sender, and its number.
    ///
    /// # Errors
    /// Text, if it was changed on its way or came out of order.
    pub fn check(&mut self, node: u32, packet: &[u8]) -> Result<(Life, u64), String> {
        if packet.len() < FRONT {
            return Err(format!("a packet of {} bytes at node {node}", packet.len()));
        }
        let word = |at: usize| packet[at..at + 4].try_into().map(u32::from_le_bytes);
        let sender = word(26).expect("4 bytes");
        let life = word(30).expect("4 bytes");
        let number = u64::from_le_bytes(packet[34..42].try_into().expect("8 bytes"));
        let from = format!("packet {number} of node {sender}, life {life}, at node {node}");
        let length = packet.len() - FRONT;
        let to = (packet[12] != 0xff).then_some(node);
        if length > PATTERN_MAX || packet != self::packet((sender, life), to, number, length) {
            return Err(format!("{from} was changed on its way"));
        }
        match self.0.insert((sender, life), number) {
            Some(last) if last >= number => Err(format!("{from} came after packet {last}")),
            _ => Ok(((sender, life), number)),
        }
    }
}
