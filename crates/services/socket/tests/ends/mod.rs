//! The lanes that the tests use: of shared memory, and over endpoints of two simulated nodes.

// Each test uses a part of it.
#![allow(dead_code)]

use std::os::fd::{AsFd, OwnedFd};

use weft_fabric::{Blocking, Endpoint, EndpointOptions, NodeId, PATIENCE, Transport};
use weft_lane::{Carrier, EndpointLane, Layout, Settings, Told};
use weft_memory::CopyMode;
use weft_socket::SendSide;
use weft_transport_shm::lane::{LaneLayout, ShmLane};
use weft_transport_sim::{SimEndpoint, SimWorld};

/// A lane of shared memory with sinks of 64 KiB.
pub fn memory() -> (ShmLane, ShmLane) {
    memory_of(LaneLayout { slots: 256, sink_bytes: 1 << 16 })
}

/// The same, with the descriptor that the node daemon has of it.
pub fn memory_and_file() -> (ShmLane, ShmLane, OwnedFd) {
    let layout = LaneLayout { slots: 256, sink_bytes: 1 << 16 };
    let (one, file) = ShmLane::create(layout, CopyMode::Plain).expect("memory");
    let two = ShmLane::open(file.as_fd(), 1, CopyMode::Plain).expect("a lane");
    (one, two, file)
}

/// A lane of shared memory.
pub fn memory_of(layout: LaneLayout) -> (ShmLane, ShmLane) {
    let (one, file) = ShmLane::create(layout, CopyMode::Plain).expect("memory");
    let two = ShmLane::open(file.as_fd(), 1, CopyMode::Plain).expect("a lane");
    (one, two)
}

/// Takes a direction back to TCP, whose kernel takes up to `most` copies of what the peer did not
/// read on the lane. Returns them.
pub fn back(send: &mut SendSide, lane: &ShmLane, most: usize) -> Vec<u8> {
    let mut again = send.to_send_again(lane);
    let sent = most.min(again.bytes.len());
    send.begin_tcp();
    send.wrote_copies(sent);
    send.return_to_tcp(lane, &again, sent);
    again.bytes.truncate(sent);
    again.bytes
}

/// A world with two nodes, a carrier on each, and lanes between them.
#[derive(Debug)]
pub struct Network {
    pub world: SimWorld,
    pub carriers: [Carrier<SimEndpoint>; 2],
    pub lanes: Vec<[EndpointLane<SimEndpoint>; 2]>,
}

impl Network {
    /// One small lane.
    pub fn new(seed: u64) -> Self {
        let layout = Layout { slots: 16, sink_bytes: 4096 };
        Self::with(&SimWorld::new(weft_transport_sim::Settings::seeded(seed)), layout, 1)
    }

    /// Carriers on nodes 0 and 1 of `world`, with `count` lanes.
    pub fn with(world: &SimWorld, layout: Layout, count: u64) -> Self {
        let options = EndpointOptions::default();
        let carriers = [0, 1].map(|node| {
            let endpoint = world.transport(NodeId(node), 1000).open(&options);
            let lanes_max = u32::try_from(count).expect("a few lanes");
            Carrier::new(
                endpoint.expect("a new world has room"),
                Settings { layout, lanes_max, ..Settings::default() },
            )
        });
        let address = carriers[1].with_endpoint(|endpoint| endpoint.address());
        let peer = carriers[0].with_endpoint(|endpoint| endpoint.connect_within(address, PATIENCE));
        let peer = peer.expect("the peer is there");
        let mut ends = [Vec::new(), Vec::new()];
        for token in 0..count {
            carriers[0].open(peer, token).expect("room");
        }
        while ends.iter().any(|ends| ends.len() < lanes(count)) {
            assert!(world.step(), "no lane comes");
            for (carrier, ends) in carriers.iter().zip(&mut ends) {
                carrier.poll();
                while let Some(told) = carrier.told() {
                    match told {
                        Told::Offered(offer) => drop(carrier.accept(offer).expect("room")),
                        Told::Opened { token, lane } => ends.push((token, lane)),
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
        ends.iter_mut().for_each(|ends| ends.sort_by_key(|(token, _)| *token));
        let [left, right] = ends;
        let pairs = left.into_iter().zip(right);
        let lanes = pairs.map(|((_, left), (_, right))| [left, right]).collect();
        Self { world: world.clone(), carriers, lanes }
    }

    /// Ends the process of one carrier.
    pub fn kill(&self, which: usize) {
        let address = self.carriers[which].with_endpoint(|endpoint| endpoint.address());
        self.world.kill(address);
    }
}

fn lanes(count: u64) -> usize {
    usize::try_from(count).expect("a few lanes")
}
