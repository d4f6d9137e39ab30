//! The transports at which the ports of the tests meet.

use std::sync::Arc;

use weft_ether::hostile::Venue;
use weft_ether::{Seat, Segment};
use weft_fabric::{EndpointOptions, NodeId, Transport, Vpid};
use weft_transport_shm::broker::Limits;
use weft_transport_shm::local_broker;
use weft_transport_shm::{Parameters, ShmEndpoint, ShmTransport};
use weft_transport_sim::{Link, Settings, SimEndpoint, SimWorld};

/// One host: rings are memory, and long packets are taken in place.
pub struct Shm(ShmTransport);

impl Default for Shm {
    fn default() -> Self {
        let broker = local_broker(NodeId::LOCAL, Limits::default());
        Self(ShmTransport::new(Arc::new(broker), Parameters::default()))
    }
}

impl Venue for Shm {
    type Endpoint = ShmEndpoint;

    fn segment(queues: u8) -> Segment {
        Segment::Host { queues }
    }

    fn open(&self, segment: Segment, seat: Seat) -> ShmEndpoint {
        let vpid = segment.vpid_of(seat).expect("the VPID exists");
        let options = EndpointOptions { vpid, ..EndpointOptions::default() };
        self.0.open(&options).expect("the number is free")
    }

    fn pass(&self) {}
}

/// A network: long packets are fetched.
pub struct Sim(SimWorld);

impl Default for Sim {
    fn default() -> Self {
        Self(SimWorld::new(Settings::seeded(1)))
    }
}

impl Sim {
    /// The network of a world.
    pub fn of(world: SimWorld) -> Self {
        Self(world)
    }

    /// The simulated world.
    pub fn world(&self) -> &SimWorld {
        &self.0
    }
}

impl Venue for Sim {
    type Endpoint = SimEndpoint;

    fn segment(queues: u8) -> Segment {
        Segment::Fabric { vpid: Vpid(3), queues }
    }

    fn open(&self, segment: Segment, seat: Seat) -> SimEndpoint {
        open(&self.0, segment, seat)
    }

    fn pass(&self) {
        self.0.advance(100_000);
    }
}

/// A network on which operations overtake each other, calls take their time, and few may be under
/// way. It carries longer messages than ports send.
pub struct Slow(SimWorld);

impl Default for Slow {
    fn default() -> Self {
        Self(SimWorld::new(Settings {
            link: Link { latency_ns: 20_000, jitter_ns: 60_000, bits_per_second: 10_000_000_000 },
            ordered: false,
            control_ns: 30_000,
            operations_max: 5,
            message_bytes_max: 1280,
            notification_depth: 2,
            ..Settings::seeded(2)
        }))
    }
}

impl Slow {
    /// The simulated world.
    pub fn world(&self) -> &SimWorld {
        &self.0
    }
}

impl Venue for Slow {
    type Endpoint = SimEndpoint;

    fn segment(queues: u8) -> Segment {
        Sim::segment(queues)
    }

    fn open(&self, segment: Segment, seat: Seat) -> SimEndpoint {
        open(&self.0, segment, seat)
    }

    fn pass(&self) {
        self.0.advance(200_000);
    }
}

/// Opens the endpoint of a port on its node.
pub fn open(world: &SimWorld, segment: Segment, seat: Seat) -> SimEndpoint {
    let vpid = segment.vpid_of(seat).expect("the VPID exists");
    let options = EndpointOptions { vpid, ..EndpointOptions::default() };
    world.transport(seat.node, 1000).open(&options).expect("the number is free")
}
