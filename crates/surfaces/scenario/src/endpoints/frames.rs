//! Ethernet frames between the ports of hosts. Nobody is told of a frame that is lost.

use std::time::Duration;

use weft_ether::groups::LEARN_FOR;
use weft_ether::{Limits, MacAddress, Port, Segment, SharedSwitch, Switch};
use weft_fabric::{Endpoint, EndpointAddress, NodeId, OperationError, Vpid};
use weft_network::Message;
use weft_transport_sim::SimEndpoint;

use super::{Contact, EVENTS, Ends, Program};

/// The number of the ports of the first group, which other endpoints do not take.
const FIRST_VPID: u16 = 200;
/// The clocks of ports at the start of virtual time.
const START: Duration = Duration::from_secs(1_000);
/// A port is asked for the work that depends on time this often, in ns: runs are short.
const TICK_EVERY_NS: u64 = 200_000;
/// Room for four long packets for each other host: there are many.
const SLOTS: u32 = 4;
/// Bytes in front of the payload: offloads, addresses and type.
const FRONT_BYTES: usize = 12 + 14;
/// For experiments (IEEE 802).
const TYPE: [u8; 2] = [0x88, 0xb5];

/// The number of the ports of a group.
pub(super) fn vpid(group: u16) -> Vpid {
    Vpid(FIRST_VPID + group)
}

pub(super) struct Frames {
    port: Port<SimEndpoint>,
    own: u32,
    ticks_at: u64,
}

fn clock(now_ns: u64) -> Duration {
    START + Duration::from_nanos(now_ns)
}

fn mac(node: u32) -> Result<MacAddress, OperationError> {
    MacAddress::of_node(NodeId(node)).ok_or(OperationError::PeerDown)
}

impl Frames {
    /// The endpoint has the number of the ports of its group.
    pub fn new(endpoint: SimEndpoint, own: u32, now_ns: u64) -> Self {
        let segment = Segment::Fabric { vpid: endpoint.address().vpid, queues: 1 };
        let switch = Switch::new(NodeId(own), clock(now_ns).saturating_sub(LEARN_FOR));
        let limits = Limits { slots: SLOTS, ..Limits::default() };
        let switch = SharedSwitch::new(switch);
        Self { port: Port::new(endpoint, segment, switch, limits, clock(now_ns)), own, ticks_at: 0 }
    }
}

impl Program for Frames {
    fn address(&mut self) -> EndpointAddress {
        self.port.endpoint().address()
    }

    fn is_ready(&self, hosts: usize) -> bool {
        self.port.peers().count() + 1 == hosts
    }

    fn begin(&mut self, message: &Message, to: Contact, now_ns: u64) -> Result<(), OperationError> {
        let node = to.address.node;
        if !self.port.peers().any(|(known, ..)| known == node) {
            return Err(OperationError::PeerDown);
        }
        if !self.port.may_depart(clock(now_ns)) {
            return Err(OperationError::WouldBlock);
        }
        let length = usize::try_from(message.bytes).unwrap_or(usize::MAX);
        let mut packet = vec![0; FRONT_BYTES + length];
        packet[12..18].copy_from_slice(&mac(node.0)?.0);
        packet[18..24].copy_from_slice(&mac(self.own)?.0);
        packet[24..26].copy_from_slice(&TYPE);
        packet[FRONT_BYTES..FRONT_BYTES + 8].copy_from_slice(&message.tag.to_le_bytes());
        self.port.depart(&packet, clock(now_ns));
        Ok(())
    }

    fn poll(&mut self, now_ns: u64) -> Ends {
        // The device is read again when there is room.
        let mut ends = Ends { has_room: true, ..Ends::default() };
        if now_ns >= self.ticks_at {
            self.ticks_at = now_ns + TICK_EVERY_NS;
            // Its queries for hosts behind a device are no messages of the run.
            self.port.tick(clock(now_ns), &mut |_| {});
        }
        self.port.poll(EVENTS, clock(now_ns), &mut |packet| {
            let packet = packet.to_vec();
            let word = packet.get(FRONT_BYTES..).and_then(|payload| payload.first_chunk());
            ends.arrived.extend(word.map(|word| u64::from_le_bytes(*word)));
        });
        ends
    }
}
