//! Lanes over the transport of libfabric, on its seeded network: what an endpoint orders there, and
//! what it does not.

use std::sync::Arc;

use weft_broker::local::LocalBroker;
use weft_broker::{Limits, no_bells};
use weft_fabric::{
    Blocking, Carry, Endpoint, EndpointOptions, NodeId, PATIENCE, ReceiveCursor, SendCursor,
    Standing, Transport,
};
use weft_lane::{Carrier, EndpointLane, Layout, Settings, Told};
use weft_options::ServicePolicy;
use weft_transport_ofi::seeded::{self, SeededNet, SeededNic};
use weft_transport_ofi::{OfiEndpoint, OfiTransport, Parameters};

type Port = OfiEndpoint<SeededNic>;

const SMALL: Layout = Layout { slots: 16, sink_bytes: 4096 };
/// Steps of the network after which everything has happened.
const POLLS: usize = 20_000;

/// A network, and two carriers on it.
fn carriers(seed: u64) -> (SeededNet, [Carrier<Port>; 2]) {
    let net = SeededNet::new(seeded::Settings { seed, ..seeded::Settings::default() });
    let policy = ServicePolicy::default();
    let directory = LocalBroker::new(NodeId::LOCAL, Limits::default(), policy, no_bells);
    let parameters = Parameters { spins: 0, yields: 0, ..Parameters::default() };
    let transport = OfiTransport::new(net.clone(), Arc::new(directory), parameters);
    let settings = Settings { layout: SMALL, lanes_max: 2, ..Settings::default() };
    let carriers = [0, 1].map(|_| {
        let endpoint = transport.open(&EndpointOptions::default()).expect("room");
        Carrier::new(endpoint, settings)
    });
    (net, carriers)
}

/// Lets the next thing happen.
fn step(net: &SeededNet, carriers: &[Carrier<Port>; 2]) {
    net.step();
    carriers.iter().for_each(Carrier::poll);
}

/// A lane between the two.
fn lane(net: &SeededNet, carriers: &[Carrier<Port>; 2]) -> [EndpointLane<Port>; 2] {
    let address = carriers[1].with_endpoint(|endpoint| endpoint.address());
    let peer = carriers[0].with_endpoint(|endpoint| endpoint.connect_within(address, PATIENCE));
    carriers[0].open(peer.expect("it is there"), 1).expect("room");
    let mut ends = [None, None];
    for _ in 0..POLLS {
        step(net, carriers);
        for (carrier, end) in carriers.iter().zip(&mut ends) {
            match carrier.told() {
                Some(Told::Offered(offer)) => drop(carrier.accept(offer).expect("room")),
                Some(Told::Opened { lane, .. }) => *end = Some(lane),
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        if ends.iter().all(Option::is_some) {
            return ends.map(|end| end.expect("seen above"));
        }
    }
    panic!("no lane: {carriers:?}")
}

/// An end that is dropped takes the key of its memory back, and its peer still tells there what it
/// took.
#[test]
fn an_end_that_is_dropped_behind_its_last_bytes_is_no_loss_for_the_peer() {
    for seed in 0..100 {
        let (net, carriers) = carriers(seed);
        let [left, right] = lane(&net, &carriers);
        let (mut send, mut receive) = (SendCursor::default(), ReceiveCursor::default());
        for _ in 0..12 {
            left.put(&mut send, &[7; 100]);
            while left.send(&mut send, 1, &[b"x"]).is_err() {
                step(&net, &carriers);
            }
        }
        drop(left);
        for _ in 0..POLLS {
            if right.peek(&receive).expect("no end is hostile").is_some() {
                right.release(&mut receive, 100);
                right.advance(&mut receive, true);
            } else if right.standing() != Standing::Open {
                break;
            }
            step(&net, &carriers);
        }
        assert_eq!((receive.messages, right.standing()), (12, Standing::Closed), "seed {seed}");
    }
}

/// A program that ends asks whether all has arrived.
#[test]
fn all_has_arrived_when_a_carrier_says_so() {
    for seed in 0..100 {
        let (net, carriers) = carriers(seed);
        let [left, right] = lane(&net, &carriers);
        let mut send = SendCursor::default();
        left.put(&mut send, &[7; 100]);
        left.send(&mut send, 1, &[b"x"]).expect("room");
        let mut polls = 0;
        while !carriers[0].is_out() {
            net.step();
            carriers[1].poll();
            polls += 1;
            assert!(polls < POLLS, "seed {seed}");
        }
        // Without a further step of the sender's.
        let receive = ReceiveCursor::default();
        assert!(right.peek(&receive).expect("no end is hostile").is_some(), "seed {seed}");
    }
}
