//! Endpoints of processes that are stopped for longer than the time after which a silent peer is
//! given up, on one node and on two.

use std::sync::Arc;
use std::time::Duration;

use weft_broker::local::LocalBroker;
use weft_broker::{Limits, no_bells};
use weft_fabric::{
    Blocking, DownReason, Endpoint, EndpointOptions, Event, MessageHeader, NodeId, PATIENCE, Peer,
    Transport,
};
use weft_options::ServicePolicy;
use weft_transport_ofi::seeded::{SeededNet, SeededNic, Settings};
use weft_transport_ofi::{OfiEndpoint, OfiTransport, Parameters};

const SILENCE: Duration = Duration::from_secs(2);

struct Pair {
    net: SeededNet,
    broker: LocalBroker,
    ends: [OfiEndpoint<SeededNic>; 2],
    peers: [Peer; 2],
    /// The second end does not look.
    is_stopped: bool,
    messages: usize,
    down: Option<DownReason>,
}

impl Pair {
    fn new(nodes: [u32; 2]) -> Self {
        let net = SeededNet::new(Settings::default());
        let (limits, policy) = (Limits::default(), ServicePolicy::default());
        let broker = LocalBroker::new(NodeId(nodes[0]), limits, policy, no_bells);
        let other = match nodes[0] == nodes[1] {
            true => broker.clone(),
            false => broker.beside(NodeId(nodes[1])),
        };
        let parameters = Parameters { silence: SILENCE, spins: 0, yields: 0 };
        let mut ends = [broker.clone(), other].map(|broker| {
            let transport = OfiTransport::new(net.clone(), Arc::new(broker), parameters);
            transport.open(&EndpointOptions::default()).expect("room")
        });
        let addresses = [1, 0].map(|other: usize| ends[other].address());
        let peers = [0, 1].map(|end: usize| {
            ends[end].connect_within(addresses[end], PATIENCE).expect("it is there")
        });
        let (messages, down) = Default::default();
        let mut pair = Self { net, broker, ends, peers, is_stopped: false, messages, down };
        pair.pass(SILENCE / 8);
        pair
    }

    fn stop(&mut self, is_stopped: bool) {
        self.is_stopped = is_stopped;
        self.net.stop(1, is_stopped);
    }

    /// Lets time pass, in which those look that are not stopped.
    fn pass(&mut self, time: Duration) {
        let end = self.net.now() + time;
        while self.net.now() < end && self.down.is_none() {
            self.net.step();
            let running = if self.is_stopped { 1 } else { 2 };
            for end in &mut self.ends[..running] {
                let (messages, down) = (&mut self.messages, &mut self.down);
                end.poll(64, &mut |event| match event {
                    Event::Message(_) => *messages += 1,
                    Event::PeerDown { reason, .. } => *down = Some(reason),
                    _ => {}
                });
            }
        }
    }

    /// Both reach each other.
    fn expect_to_talk(&mut self) {
        let before = self.messages;
        for (end, peer) in self.ends.iter_mut().zip(self.peers) {
            end.send_short(peer, MessageHeader::tag(1), &[b"there"]).expect("room");
        }
        self.pass(2 * SILENCE);
        assert_eq!((self.messages - before, self.down), (2, None));
    }
}

#[test]
fn the_time_in_which_both_were_stopped_is_no_silence() {
    let mut pair = Pair::new([0, 0]);
    for silences in [1, 3, 50] {
        // At any moment between two signs of life.
        pair.pass(SILENCE * silences / 7);
        pair.net.stand_still(SILENCE * silences);
        pair.expect_to_talk();
    }
}

#[test]
fn a_peer_of_which_the_host_says_that_it_is_stopped_is_not_down() {
    for nodes in [[0, 0], [0, 1]] {
        let mut pair = Pair::new(nodes);
        for _ in 0..3 {
            pair.broker.tell_stopped(true);
            pair.stop(true);
            pair.pass(5 * SILENCE);
            assert_eq!(pair.down, None, "{nodes:?}");
            pair.stop(false);
            pair.broker.tell_stopped(false);
            pair.expect_to_talk();
        }
        pair.stop(true);
        let begin = pair.net.now();
        pair.pass(5 * SILENCE);
        assert_eq!(pair.down, Some(DownReason::Unreachable), "it is silent, and runs");
        assert!(pair.net.now() - begin <= SILENCE * 5 / 4);
    }
}
