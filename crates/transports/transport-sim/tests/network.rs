//! Endpoints over the network of a graph: in order, once, and with an end, whatever links do.

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_fabric::{
    Blocking, DownReason, Endpoint, EndpointOptions, Event, MessageHeader, NodeId, Peer, SendError,
    Transport,
};
use weft_topology::Shape;
use weft_transport_sim::{Kind, NetworkSettings, Settings, SimEndpoint, SimWorld};

fn world(shape: &str, seed: u64, routing: &str) -> SimWorld {
    let graph = shape.parse::<Shape>().expect("a shape").graph(None).expect("a graph");
    let routing = routing.parse().expect("an algorithm");
    let network = Some(NetworkSettings { routing, ..NetworkSettings::of(graph) });
    SimWorld::new(Settings { network, cut_down_after_ns: Some(500_000), ..Settings::seeded(seed) })
}

/// Two endpoints on opposite nodes, and the handle of the second at the first.
fn pair(world: &SimWorld, nodes: (u32, u32)) -> (SimEndpoint, SimEndpoint, Peer) {
    let open = |node| {
        let transport = world.transport(NodeId(node), 1_000);
        transport.open(&EndpointOptions::default()).expect("room for an endpoint")
    };
    let (mut one, other) = (open(nodes.0), open(nodes.1));
    let peer = one.connect_within(other.address(), Duration::from_secs(1)).expect("a peer");
    (one, other, peer)
}

/// The numbers that arrived.
fn take(endpoint: &mut SimEndpoint, numbers: &mut Vec<u32>) {
    endpoint.poll(64, &mut |event| {
        if let Event::Message(message) = event {
            let bytes = message.payload.try_into().expect("four bytes");
            numbers.push(u32::from_le_bytes(bytes));
        }
    });
}

/// Messages over a torus whose links are cut and mended at random, one at a time, so that a way is
/// left. Returns the digest of the run, and how often packets were sent again.
fn soak(seed: u64, routing: &str) -> (u64, usize) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let world = world("torus:4x4", seed, routing);
    let (mut sender, mut receiver, peer) = pair(&world, (0, 10));
    let (mut sent, mut numbers) = (0_u32, Vec::new());
    let mut cut = None;
    while sent < 2_000 || numbers.len() < 2_000 {
        assert!(world.now() < 1_000_000_000, "seed {seed}: {} arrived of {sent}", numbers.len());
        match random.random_range(0..20) {
            0 if cut.is_none() => {
                let link = (random.random_range(0..16), random.random_range(0..4));
                assert!(world.cut_link(link.0, link.1));
                cut = Some(link);
            }
            1 => {
                if let Some((vertex, port)) = cut.take() {
                    assert!(world.heal_link(vertex, port));
                }
            }
            _ => {
                let header = MessageHeader::tag(1);
                let payload = sent.to_le_bytes();
                if sent < 2_000 {
                    match sender.send_short(peer, header, &[&payload]) {
                        Ok(()) => sent += 1,
                        Err(SendError::WouldBlock) => {}
                        Err(error) => panic!("seed {seed}: {error}"),
                    }
                }
            }
        }
        world.advance(random.random_range(0..400));
        take(&mut receiver, &mut numbers);
        sender.poll(64, &mut |event| {
            assert!(!matches!(event, Event::PeerDown { .. }), "seed {seed}: a way is left");
        });
    }
    assert_eq!(numbers, (0..2_000).collect::<Vec<_>>(), "seed {seed}: in order, and once");
    let again = world.trace().iter().filter(|entry| entry.kind == Kind::SendAgain).count();
    (world.digest(), again)
}

#[test]
fn messages_arrive_once_and_in_order_while_links_are_cut_and_mended() {
    let mut again = 0;
    for seed in 0..4 {
        for routing in ["dor", "adaptive"] {
            let once = soak(seed, routing);
            assert_eq!(once, soak(seed, routing), "seed {seed}: the same run each time");
            again += once.1;
        }
    }
    assert!(again > 0, "cuts lose packets, which are sent again");
}

#[test]
fn packets_go_around_a_link_that_stays_cut() {
    let world = world("torus:4x4", 1, "dor");
    let (mut sender, mut receiver, peer) = pair(&world, (0, 1));
    assert!(world.cut_link(0, 0), "the link from node 0 to node 1");
    sender.send_short(peer, MessageHeader::tag(1), &[&1_u32.to_le_bytes()]).expect("room");
    // Lost at once, and sent again after 20 us, when new routes are known.
    world.advance(25_000);
    sender.send_short(peer, MessageHeader::tag(1), &[&2_u32.to_le_bytes()]).expect("room");
    world.advance(1_000);
    let mut numbers = Vec::new();
    take(&mut receiver, &mut numbers);
    assert_eq!(numbers, [1, 2]);
}

#[test]
fn a_node_without_a_way_is_reported_down_in_the_promised_time() {
    let world = world("mesh:3", 1, "auto");
    let (mut sender, mut receiver, peer) = pair(&world, (0, 2));
    assert!(world.cut_link(0, 0));
    assert!(!world.cut_link(0, 7) && !world.heal_link(9, 0), "there are no such links");
    sender.send_short(peer, MessageHeader::tag(1), &[b"lost"]).expect("room");
    // Half a millisecond, and the time until the next look at the packet.
    world.advance(520_001 + 1_000);
    for endpoint in [&mut sender, &mut receiver] {
        let mut down = Vec::new();
        endpoint.poll(64, &mut |event| {
            if let Event::PeerDown { reason, .. } = event {
                down.push(reason);
            }
        });
        assert_eq!(down, [DownReason::Unreachable]);
    }
    // With the link back and a new pair, messages arrive again.
    assert!(world.heal_link(1, 1));
    world.advance(20_000);
    let connected = sender.connect_within(receiver.address(), Duration::from_secs(1));
    let peer = connected.expect("the node is reached again");
    sender.send_short(peer, MessageHeader::tag(1), &[&7_u32.to_le_bytes()]).expect("room");
    world.advance(10_000);
    let mut numbers = Vec::new();
    take(&mut receiver, &mut numbers);
    assert_eq!(numbers, [7]);
}

#[test]
fn a_longer_way_takes_longer() {
    let took = |nodes| {
        let world = world("mesh:8", 1, "dor");
        let (mut sender, mut receiver, peer) = pair(&world, nodes);
        sender.send_short(peer, MessageHeader::tag(1), &[&1_u32.to_le_bytes()]).expect("room");
        let mut numbers = Vec::new();
        while numbers.is_empty() {
            world.advance(1);
            take(&mut receiver, &mut numbers);
        }
        world.now()
    };
    // Each more link is 40 ns of a router and 20 ns of the link.
    assert_eq!(took((0, 7)) - took((0, 1)), 6 * 60);
}

#[test]
#[should_panic(expected = "is no host of the network")]
fn a_node_outside_of_the_network_is_refused() {
    let _ = world("mesh:3", 1, "auto").transport(NodeId(3), 1_000);
}
