//! Where the accepting end of a connection can be asked for a lane, as sealed memory. It comes from
//! another process, so it is read once and checked.

use std::os::fd::{BorrowedFd, OwnedFd};

use weft_fabric::{EndpointAddress, NodeId, Vpid};
use weft_memory::Segment;
use weft_wire::versions::LANES;

const MAGIC: u64 = u64::from_le_bytes(*b"weftaddr");
/// Bytes of an address, and of the memory that holds it.
const ADDRESS_BYTES: usize = 32;
const ADDRESS_MEMORY: usize = 4096;

/// Where the accepting end can be asked for a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    pub(super) address: EndpointAddress,
    pub(super) number: u64,
}

impl Address {
    /// Sealed memory with the address; `None` without descriptors.
    pub(super) fn write(self) -> Option<OwnedFd> {
        let memory = Segment::create_file("weft-address", ADDRESS_MEMORY).ok()?;
        let mut bytes = [0; ADDRESS_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&LANES.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.address.node.0.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.address.vpid.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        (rustix::io::pwrite(&memory, &bytes, 0) == Ok(ADDRESS_BYTES)).then_some(memory)
    }

    /// The address in memory that the other end brought; `None` if it is none.
    pub fn read(memory: BorrowedFd<'_>) -> Option<Self> {
        let length = Segment::sealed_length(memory).ok()?;
        let mut bytes = [0; ADDRESS_BYTES];
        if length != ADDRESS_MEMORY as u64
            || rustix::io::pread(memory, &mut bytes, 0) != Ok(ADDRESS_BYTES)
        {
            return None;
        }
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        if word(0) != MAGIC || half(8) != LANES {
            return None;
        }
        let vpid = Vpid(u16::from_le_bytes([bytes[16], bytes[17]]));
        let address = EndpointAddress::new(NodeId(half(12)), vpid);
        Some(Self { address, number: word(24) })
    }
}
