//! Rails: each has links and cuts of its own.

use std::time::Duration;

use weft_fabric::{
    Blocking, DownReason, Endpoint, EndpointOptions, Event, MessageHeader, NodeId, PATIENCE, Peer,
    SendError, Transport, Waited,
};
use weft_transport_sim::{Link, Settings, SimEndpoint, SimWorld};

/// One byte in a nanosecond, and a microsecond on the way.
const EVEN: Link = Link { latency_ns: 1_000, jitter_ns: 0, bits_per_second: 8_000_000_000 };
/// Bytes of a packet without its payload.
const HEADER: u64 = 16;
const NODES: (NodeId, NodeId) = (NodeId(0), NodeId(1));

fn world() -> SimWorld {
    let rails = vec!["left".to_owned(), "right".to_owned()];
    SimWorld::new(Settings {
        link: EVEN,
        rails,
        cut_down_after_ns: Some(50_000),
        ..Settings::seeded(1)
    })
}

fn open(world: &SimWorld, node: NodeId, rail: &str) -> SimEndpoint {
    let options = EndpointOptions { rail: Some(rail.to_owned()), ..EndpointOptions::default() };
    world.transport(node, 1000).open(&options).expect("the rail is there")
}

fn pair(world: &SimWorld, rails: (&str, &str)) -> (SimEndpoint, SimEndpoint, Peer) {
    let (mut left, right) = (open(world, NODES.0, rails.0), open(world, NODES.1, rails.1));
    let peer = left.connect_within(right.address(), PATIENCE).expect("open");
    (left, right, peer)
}

fn send(from: &mut SimEndpoint, to: Peer, tag: u8) {
    from.send_short(to, MessageHeader::tag(tag), &[]).expect("room");
}

/// The tags of the messages that came, and how many peers went down.
fn take(endpoint: &mut SimEndpoint) -> (Vec<u8>, Vec<DownReason>) {
    let (mut tags, mut downs) = (Vec::new(), Vec::new());
    endpoint.poll(100, &mut |event| match event {
        Event::Message(message) => tags.push(message.header.tag),
        Event::PeerDown { reason, .. } => downs.push(reason),
        _ => {}
    });
    (tags, downs)
}

#[test]
fn each_rail_has_a_link_of_its_own() {
    let world = world();
    world.set_rail_link(NODES.0, NODES.1, "right", Link { latency_ns: 5_000, ..EVEN });
    for (rails, takes) in
        [(("left", "left"), 1_000), (("right", "right"), 5_000), (("left", "right"), 1_000)]
    {
        let (mut left, mut right, peer) = pair(&world, rails);
        let start = world.now();
        send(&mut left, peer, 1);
        assert_eq!(right.wait(Some(Duration::from_secs(1))), Waited::Ready);
        assert_eq!(world.now() - start, takes + HEADER, "{rails:?}");
    }
    // Traffic on one rail takes no time of the other.
    let (mut one, mut two, by_left) = pair(&world, ("left", "left"));
    let (mut other, _far, by_right) = pair(&world, ("right", "right"));
    let start = world.now();
    for tag in 0..100 {
        send(&mut other, by_right, tag);
    }
    send(&mut one, by_left, 1);
    assert_eq!(two.wait(Some(Duration::from_secs(1))), Waited::Ready);
    assert_eq!(world.now() - start, 1_000 + HEADER);
}

#[test]
fn a_cut_of_one_rail_takes_down_who_needs_it_alone() {
    let world = world();
    let (mut left, mut far_left, by_left) = pair(&world, ("left", "left"));
    let (mut right, mut far_right, by_right) = pair(&world, ("right", "right"));
    let (mut both, mut far_both, by_both) = pair(&world, ("right", "left"));
    world.cut_rail(NODES.0, NODES.1, "left");
    for tag in 0..3 {
        send(&mut left, by_left, tag);
        send(&mut right, by_right, tag);
        send(&mut both, by_both, tag);
    }
    world.advance(100_000);
    assert_eq!(take(&mut far_right), (vec![0, 1, 2], vec![]));
    for end in [&mut left, &mut far_left, &mut both, &mut far_both] {
        assert_eq!(take(end), (vec![], vec![DownReason::Unreachable]));
    }
    assert!(take(&mut right).1.is_empty());
    let refused = left.send_short(by_left, MessageHeader::tag(1), &[]);
    assert_eq!(refused, Err(SendError::PeerDown));
    assert!(left.connect_within(far_left.address(), PATIENCE).is_err(), "it is cut off");
    world.heal_rail(NODES.0, NODES.1, "left");
    let again = left.connect_within(far_left.address(), PATIENCE).expect("mended");
    send(&mut left, again, 7);
    world.advance(100_000);
    assert_eq!(take(&mut far_left), (vec![7], vec![]));
}

/// Packets of ends on two rails wait until both are mended, in order, whichever is mended first.
#[test]
fn two_cuts_keep_the_order() {
    for cuts in [["left", "right"], ["right", "left"]] {
        for mends in [["left", "right"], ["right", "left"]] {
            let world = world();
            let (mut left, mut right, peer) = pair(&world, ("left", "right"));
            let mut tag = 0;
            let mut send = |world: &SimWorld| {
                send(&mut left, peer, tag);
                tag += 1;
                world.advance(2_000);
            };
            for rail in cuts {
                world.cut_rail(NODES.0, NODES.1, rail);
                send(&world);
            }
            world.heal_rail(NODES.0, NODES.1, mends[0]);
            send(&world);
            assert!(take(&mut right).0.is_empty(), "one is still cut");
            world.heal_rail(NODES.0, NODES.1, mends[1]);
            send(&world);
            assert_eq!(take(&mut right).0, [0, 1, 2, 3], "cut {cuts:?}, mended {mends:?}");
        }
    }
}

#[test]
fn a_cut_of_all_rails_is_a_cut_of_each() {
    let world = world();
    let ends = [("left", "left"), ("right", "right"), ("left", "right")];
    let mut ends = ends.map(|rails| pair(&world, rails));
    world.cut(NODES.0, NODES.1);
    for (left, _, peer) in &mut ends {
        send(left, *peer, 1);
    }
    world.advance(10_000);
    assert!(ends.iter_mut().all(|(_, right, _)| take(right).0.is_empty()));
    world.heal(NODES.1, NODES.0);
    world.advance(10_000);
    assert!(ends.iter_mut().all(|(_, right, _)| take(right) == (vec![1], vec![])));
}
