//! Bulk yields to latency on a link.

use std::time::Duration;

use weft_fabric::{
    Access, Audience, Blocking, Endpoint, EndpointOptions, LocalRange, MessageHeader, NodeId,
    Operation, PATIENCE, RemoteKey, Source, Target, TrafficClass, Transport, Waited,
};
use weft_transport_sim::{Link, Settings, SimEndpoint, SimWorld};

/// One byte in a nanosecond, and a microsecond on the way.
const EVEN: Link = Link { latency_ns: 1_000, jitter_ns: 0, bits_per_second: 8_000_000_000 };
/// Bytes of a packet without its payload.
const HEADER: u64 = 16;
/// Bytes of a long transfer.
const LONG: u64 = 100_000;
/// A piece of bulk that is on the link goes first: a packet on the wire and its header.
const PIECE: u64 = 496 + HEADER;

struct Stage {
    world: SimWorld,
    /// Moves much, on node 0.
    mover: SimEndpoint,
    /// Sends a short message now and then, on node 0.
    caller: SimEndpoint,
    /// On node 1.
    far: SimEndpoint,
    key: RemoteKey,
}

fn stage(class: TrafficClass) -> Stage {
    let world = SimWorld::new(Settings { link: EVEN, ..Settings::seeded(1) });
    let open = |node, class| {
        let options = EndpointOptions { class, ..EndpointOptions::default() };
        world.transport(NodeId(node), 1000).open(&options).expect("a VPID is free")
    };
    let (mover, caller) = (open(0, class), open(0, TrafficClass::Latency));
    let mut far = open(1, TrafficClass::Latency);
    let region = far.register(LONG).expect("memory is available");
    let whole = LocalRange::whole(&region);
    let key = far.grant_within(whole, Audience::Partition, Access::all(), PATIENCE);
    Stage { key: key.expect("a sound grant"), world, mover, caller, far }
}

/// The time of the next event of an endpoint, and takes its events.
fn next(world: &SimWorld, endpoint: &mut SimEndpoint) -> u64 {
    assert_eq!(endpoint.wait(Some(Duration::from_secs(1))), Waited::Ready);
    let time = world.now();
    assert!(endpoint.poll(100, &mut |_| {}) > 0);
    time
}

/// When two messages arrive that leave behind a long put, and when the put and another one behind
/// the messages complete.
fn beside_puts(class: TrafficClass) -> [u64; 4] {
    let Stage { world, mut mover, mut caller, mut far, key } = stage(class);
    let to = mover.connect_within(far.address(), PATIENCE).expect("open");
    let called = caller.connect_within(far.address(), PATIENCE).expect("open");
    let bytes = vec![7; usize::try_from(LONG).expect("small")];
    let mut put = |context| {
        let (source, target) = (Source::Bytes(&bytes[..]), Target::new(key, 0));
        mover.put(to, source, target, Operation::new(context)).map(drop).expect("room");
    };
    put(1);
    for tag in 0..2 {
        caller.send_short(called, MessageHeader::tag(tag), &[]).expect("room");
    }
    put(2);
    let heard = [next(&world, &mut far), next(&world, &mut far)];
    let ended = [next(&world, &mut mover), next(&world, &mut mover)];
    [heard[0], heard[1], ended[0], ended[1]]
}

#[test]
fn a_message_waits_for_a_piece_of_bulk_at_most_and_later_bulk_waits_for_it() {
    let long = LONG + HEADER;
    let answer = 1_000 + HEADER + 8 + 1_000;
    assert_eq!(
        beside_puts(TrafficClass::Bulk),
        [
            PIECE + HEADER + 1_000,
            PIECE + 2 * HEADER + 1_000,
            long + answer,
            2 * long + 2 * HEADER + answer,
        ]
    );
    assert_eq!(
        beside_puts(TrafficClass::Latency),
        [
            long + HEADER + 1_000,
            long + 2 * HEADER + 1_000,
            long + answer,
            2 * long + 2 * HEADER + answer,
        ]
    );
}

/// The answer to a bulk endpoint is bulk, though an endpoint of class latency sends it.
#[test]
fn the_answer_to_a_bulk_get_is_bulk() {
    let heard = [TrafficClass::Bulk, TrafficClass::Latency].map(|class| {
        let Stage { world, mut mover, mut caller, mut far, key } = stage(class);
        let from = mover.connect_within(far.address(), PATIENCE).expect("open");
        let back = far.connect_within(caller.address(), PATIENCE).expect("open");
        let into = mover.register(LONG).expect("memory is available");
        let (source, whole) = (Target::new(key, 0), LocalRange::whole(&into));
        mover.get(from, source, whole, Operation::new(1)).map(drop).expect("room");
        world.advance(1_000 + 2 * HEADER);
        far.send_short(back, MessageHeader::tag(1), &[]).expect("room");
        next(&world, &mut caller) - (1_000 + 2 * HEADER)
    });
    assert!(heard[0] <= PIECE + HEADER + 1_000, "{heard:?}");
    assert!(heard[1] > LONG, "{heard:?}");
}
