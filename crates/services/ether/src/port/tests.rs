//! A packet whose slot in a ring is gone. The other tests of ports are in `tests/port`.

use std::sync::Arc;

use weft_fabric::{EndpointOptions, Transport, Vpid};
use weft_transport_shm::broker::Limits as BrokerLimits;
use weft_transport_shm::local_broker;
use weft_transport_shm::{Parameters, ShmTransport};

use super::*;
use crate::packet::HEAD_BYTES;
use crate::switch::Switch;

#[test]
fn a_packet_whose_slot_is_gone_is_counted_as_lost() {
    let broker = local_broker(NodeId::LOCAL, BrokerLimits::default());
    let transport = ShmTransport::new(Arc::new(broker), Parameters::default());
    let options = EndpointOptions { vpid: Vpid(0), ..EndpointOptions::default() };
    let endpoint = transport.open(&options).expect("a fresh broker");
    let switch = SharedSwitch::new(Switch::new(NodeId(0), Duration::ZERO));
    let segment = Segment::Host { queues: 1 };
    let mut port = Port::new(endpoint, segment, switch, Limits::default(), Duration::ZERO);
    // Node 1 went between the read and this.
    port.depart_from_ring(NodeId(1), &mut [0; HEAD_BYTES + 500], Duration::ZERO);
    let counters = port.counters();
    assert_eq!((counters.packets_from_device, counters.lost), (1, 1));
    assert_eq!(counters.bytes_from_device, (HEAD_BYTES + 500) as u64);
}
