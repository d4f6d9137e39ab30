//! The fabrics under test, and pairs of ends over them.

// Each test uses a part of it.
#![allow(dead_code)]

use std::sync::Arc;

use weft_conformance::{Hostile, LaneBench};
use weft_fabric::{Blocking, Endpoint, EndpointOptions, NodeId, PATIENCE, Region, Transport};
use weft_lane::{Carrier, EndpointLane, Layout, Settings, Told};
use weft_transport_shm::broker::{Connector, Limits, local::LocalBroker};
use weft_transport_shm::local_broker;
use weft_transport_shm::{Parameters, ShmEndpoint, ShmTransport};
use weft_transport_sim::{Link, SimEndpoint, SimWorld};

/// A fabric with two nodes.
pub trait Fabric: Sized {
    type Endpoint: Endpoint;

    fn new() -> Self;

    /// Opens an endpoint on one of the nodes.
    fn open(&self, node: u32) -> Self::Endpoint;

    /// Lets a little time pass. False if nothing is on its way.
    fn step(&self) -> bool;

    /// Ends an endpoint as if its process had died.
    fn kill(&self, carrier: &Carrier<Self::Endpoint>);
}

/// Shared memory, with a broker in this process.
pub struct Shm(LocalBroker);

const USER: u32 = 1000;

impl Fabric for Shm {
    type Endpoint = ShmEndpoint;

    fn new() -> Self {
        Self(local_broker(NodeId::LOCAL, Limits::default()))
    }

    fn open(&self, _node: u32) -> ShmEndpoint {
        let broker: Arc<dyn Connector> = Arc::new(self.0.clone());
        let transport = ShmTransport::new(broker, Parameters::default());
        transport.open(&EndpointOptions::default()).expect("a fresh fabric has room")
    }

    fn step(&self) -> bool {
        false
    }

    fn kill(&self, carrier: &Carrier<ShmEndpoint>) {
        let replacement = self.open(0);
        carrier.with_endpoint(|endpoint| std::mem::replace(endpoint, replacement)).vanish();
    }
}

/// The simulator.
pub struct Sim(pub SimWorld);

fn open_sim(world: &SimWorld, node: u32) -> SimEndpoint {
    let transport = world.transport(NodeId(node), USER);
    transport.open(&EndpointOptions::default()).expect("a fresh fabric has room")
}

fn kill_sim(world: &SimWorld, carrier: &Carrier<SimEndpoint>) {
    assert!(world.kill(carrier.with_endpoint(|endpoint| endpoint.address())), "it is there");
}

impl Fabric for Sim {
    type Endpoint = SimEndpoint;

    fn new() -> Self {
        // Without jitter no two messages arrive at the same time.
        let link = Link { jitter_ns: 0, ..Link::default() };
        Self(SimWorld::new(weft_transport_sim::Settings {
            link,
            ..weft_transport_sim::Settings::seeded(3)
        }))
    }

    fn open(&self, node: u32) -> SimEndpoint {
        open_sim(&self.0, node)
    }

    fn step(&self) -> bool {
        self.0.step()
    }

    fn kill(&self, carrier: &Carrier<SimEndpoint>) {
        kill_sim(&self.0, carrier);
    }
}

/// The simulator, where operations overtake each other and calls of the broker take time.
pub struct Unordered(SimWorld);

impl Fabric for Unordered {
    type Endpoint = SimEndpoint;

    fn new() -> Self {
        let link = Link { latency_ns: 1_000, jitter_ns: 50_000, ..Link::default() };
        let settings = weft_transport_sim::Settings {
            link,
            ordered: false,
            control_ns: 2_000,
            ..weft_transport_sim::Settings::seeded(5)
        };
        Self(SimWorld::new(settings))
    }

    fn open(&self, node: u32) -> SimEndpoint {
        open_sim(&self.0, node)
    }

    fn step(&self) -> bool {
        self.0.step()
    }

    fn kill(&self, carrier: &Carrier<SimEndpoint>) {
        kill_sim(&self.0, carrier);
    }
}

/// Two carriers, and the two ends of one lane between them.
pub struct Pair<F: Fabric> {
    pub fabric: F,
    pub carriers: [Carrier<F::Endpoint>; 2],
    pub ends: Vec<EndpointLane<F::Endpoint>>,
    dead: [bool; 2],
}

impl<F: Fabric> Pair<F> {
    /// Two carriers without a lane.
    pub fn carriers(settings: Settings) -> (F, [Carrier<F::Endpoint>; 2]) {
        let fabric = F::new();
        let carriers = [0, 1].map(|node| Carrier::new(fabric.open(node), settings));
        (fabric, carriers)
    }

    pub fn turn(&self) -> bool {
        let moved = self.fabric.step();
        self.carriers.iter().for_each(Carrier::poll);
        moved
    }
}

/// Makes a lane. Returns the ends of both carriers.
pub fn lane<F: Fabric>(
    fabric: &F,
    carriers: &[Carrier<F::Endpoint>; 2],
    token: u64,
) -> [EndpointLane<F::Endpoint>; 2] {
    let address = carriers[1].with_endpoint(|endpoint| endpoint.address());
    let peer = carriers[0]
        .with_endpoint(|endpoint| endpoint.connect_within(address, PATIENCE))
        .expect("the peer is there");
    carriers[0].open(peer, token).expect("room");
    let mut ends = [None, None];
    for _ in 0..10_000 {
        fabric.step();
        for (carrier, end) in carriers.iter().zip(&mut ends) {
            carrier.poll();
            match carrier.told() {
                Some(Told::Offered(offer)) => drop(carrier.accept(offer).expect("room")),
                Some(Told::Opened { token: told, lane }) => {
                    assert_eq!(told, token);
                    *end = Some(lane);
                }
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        if ends.iter().all(Option::is_some) {
            return ends.map(|end| end.expect("both are there"));
        }
    }
    panic!("no lane: {carriers:?}")
}

impl<F: Fabric> LaneBench for Pair<F> {
    type Lane = EndpointLane<F::Endpoint>;

    fn new(mailbox_depth: u64, sink_bytes: u64) -> Self {
        let layout = Layout {
            slots: u32::try_from(mailbox_depth.next_power_of_two().max(16)).expect("small"),
            sink_bytes: u32::try_from(sink_bytes.next_power_of_two().max(4096)).expect("small"),
        };
        let (fabric, carriers) =
            Self::carriers(Settings { layout, lanes_max: 4, ..Settings::default() });
        let ends = lane(&fabric, &carriers, 7).into();
        Self { fabric, carriers, ends, dead: [false; 2] }
    }

    fn end(&self, which: usize) -> &Self::Lane {
        assert!(!self.dead[which], "the end is dead");
        &self.ends[which]
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            if !self.turn() && !self.turn() {
                return;
            }
        }
        panic!("the fabric does not come to rest");
    }

    fn step(&mut self) -> bool {
        self.fabric.step()
    }

    fn kill(&mut self, which: usize) -> bool {
        self.fabric.kill(&self.carriers[which]);
        self.dead[which] = true;
        true
    }

    fn corrupt(&mut self, which: usize, what: Hostile) -> bool {
        const MESSAGES_TAKEN: u64 = 96;
        const BYTES_TAKEN: u64 = 104;
        const SLOTS_START: u64 = 128;
        let end = &self.ends[which];
        let (region, start) = end.memory();
        let store = |offset: u64, value: u64| {
            region.store(start + offset, value).expect("a word of the end");
        };
        match what {
            Hostile::MessagesTaken(count) => store(MESSAGES_TAKEN, count),
            Hostile::BytesTaken(count) => store(BYTES_TAKEN, count),
            Hostile::MessageLength(length) => {
                for slot in 0..u64::from(end.layout().slots) {
                    let offset = SLOTS_START + 128 * slot;
                    let former = region.load(start + offset).expect("a word of the end");
                    if former != 0 {
                        store(offset, former & !(0xff << 32) | u64::from(length) << 32);
                    }
                }
            }
        }
        true
    }
}
