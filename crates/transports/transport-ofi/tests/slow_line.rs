//! Two endpoints that put more than the line between them carries in the time after which a silent
//! peer is given up: each hears of the other meanwhile, and is told when it is silent indeed.

use std::sync::Arc;
use std::time::Duration;

use weft_broker::local::LocalBroker;
use weft_broker::{Limits, no_bells};
use weft_fabric::{
    Access, Audience, Blocking, DownReason, Endpoint, EndpointOptions, Event, Issued, LocalRange,
    MessageHeader, NodeId, Operation, OperationError, PATIENCE, Peer, RemoteKey, Source, Target,
    Transport, Value,
};
use weft_options::ServicePolicy;
use weft_transport_ofi::seeded::{Line, SeededNet, SeededNic, Settings};
use weft_transport_ofi::{OfiEndpoint, OfiRegion, OfiTransport, Parameters};

const SILENCE: Duration = Duration::from_secs(2);
const PUT_BYTES: usize = 256 << 10;
/// They take more than four silences, and fill the NIC again and again.
const PUTS: u64 = 32;
const LINE: Line = Line { bytes_per_ms: 1000, calls: 16 };

/// An end, and what it was told.
struct End {
    endpoint: OfiEndpoint<SeededNic>,
    peer: Peer,
    key: RemoteKey,
    ended: Vec<Result<Value, OperationError>>,
    /// When messages came.
    heard: Vec<Duration>,
    down: Option<(DownReason, Duration)>,
}

struct Ends {
    net: SeededNet,
    ends: [End; 2],
    _regions: Vec<OfiRegion>,
}

impl Ends {
    fn new() -> Self {
        let net = SeededNet::new(Settings { line: Some(LINE), ..Settings::default() });
        let (limits, policy) = (Limits::default(), ServicePolicy::default());
        let broker = LocalBroker::new(NodeId::LOCAL, limits, policy, no_bells);
        let parameters = Parameters { silence: SILENCE, spins: 0, yields: 0 };
        let mut endpoints = [0, 1].map(|_| {
            let transport = OfiTransport::new(net.clone(), Arc::new(broker.clone()), parameters);
            transport.open(&EndpointOptions::default()).expect("room")
        });
        let addresses = [1, 0].map(|other: usize| endpoints[other].address());
        let peers = [0, 1].map(|end: usize| {
            let peer = endpoints[end].connect_within(addresses[end], PATIENCE);
            peer.expect("it is there")
        });
        let mut regions = Vec::new();
        let keys = [1, 0].map(|other: usize| {
            let other = &mut endpoints[other];
            let region = other.register(PUT_BYTES as u64).expect("memory");
            let range = LocalRange::whole(&region);
            let key = other.grant_within(range, Audience::Partition, Access::all(), PATIENCE);
            regions.push(region);
            key.expect("a key")
        });
        let mut of = peers.into_iter().zip(keys);
        let ends = endpoints.map(|endpoint| {
            let (peer, key) = of.next().expect("as many");
            let (ended, heard, down) = Default::default();
            End { endpoint, peer, key, ended, heard, down }
        });
        Self { net, ends, _regions: regions }
    }

    fn put_all(&mut self, end: usize) {
        let End { endpoint, peer, key, .. } = &mut self.ends[end];
        let bytes = vec![7; PUT_BYTES];
        for number in 0..PUTS {
            let (source, target) = (Source::Bytes(&bytes), Target::new(*key, 0));
            let issued = endpoint.put(*peer, source, target, Operation::new(number));
            assert_eq!(issued, Ok(Issued::Pending));
        }
    }

    /// Lets time pass until it is enough, or it is too much.
    fn until(&mut self, is_enough: impl Fn(&[End; 2]) -> bool) {
        let end = self.net.now() + 60 * SILENCE;
        while !is_enough(&self.ends) {
            assert!(self.net.now() < end, "it has no end");
            self.net.step();
            let now = self.net.now();
            for end in &mut self.ends {
                let End { endpoint, ended, heard, down, .. } = end;
                endpoint.poll(64, &mut |event| match event {
                    Event::Completion(completion) => ended.push(completion.result),
                    Event::Message(_) => heard.push(now),
                    Event::PeerDown { reason, .. } => *down = Some((reason, now)),
                    other => panic!("{other:?}"),
                });
            }
        }
    }

    /// Waits for all puts of an end. None may be down meanwhile.
    fn finish(&mut self, end: usize) {
        let all = usize::try_from(PUTS).expect("a few");
        self.until(|ends| {
            assert_eq!(ends.each_ref().map(|end| end.down), [None; 2], "they live");
            ends[end].ended.len() == all
        });
        assert!(self.ends[end].ended.iter().all(Result::is_ok));
    }
}

#[test]
fn two_peers_that_put_to_each_other_are_not_taken_for_silent() {
    let mut ends = Ends::new();
    let begin = ends.net.now();
    ends.put_all(0);
    ends.put_all(1);
    ends.finish(0);
    ends.finish(1);
    assert!(ends.net.now() - begin > 4 * SILENCE, "the line is slow");
}

#[test]
fn a_peer_that_puts_alone_answers_when_it_is_asked() {
    let mut ends = Ends::new();
    ends.put_all(0);
    ends.finish(0);
}

#[test]
fn a_message_does_not_wait_behind_all_bytes_that_were_put_before() {
    let mut ends = Ends::new();
    ends.put_all(0);
    // The window has been found by then.
    ends.until(|ends| ends[0].ended.len() > 8);
    let begin = ends.net.now();
    let End { endpoint, peer, .. } = &mut ends.ends[0];
    endpoint.send_short(*peer, MessageHeader::tag(1), &[b"now"]).expect("room");
    ends.until(|ends| !ends[1].heard.is_empty());
    let after = ends.ends[1].heard[0] - begin;
    assert!(after < SILENCE / 2, "it came after {after:?}");
    assert!(ends.ends[0].ended.len() < usize::try_from(PUTS).expect("a few"), "amid the puts");
}

#[test]
fn a_peer_that_falls_silent_amid_puts_is_down_in_time() {
    let mut ends = Ends::new();
    ends.put_all(0);
    ends.put_all(1);
    ends.until(|ends| ends[0].ended.len() > 4);
    ends.net.fall_silent();
    let begin = ends.net.now();
    ends.until(|ends| ends.iter().all(|end| end.down.is_some()));
    let downs = ends.ends.each_ref().map(|end| end.down.expect("it was waited for"));
    // The first one that gives up tells the broker, which tells the other.
    assert!(downs.iter().any(|(reason, _)| *reason == DownReason::Unreachable), "{downs:?}");
    for (end, (_, when)) in ends.ends.iter().zip(downs) {
        assert!(when - begin <= SILENCE * 5 / 4, "after {:?}", when - begin);
        let down = Err(OperationError::PeerDown);
        assert_eq!(end.ended.last(), Some(&down), "what was under way ends");
        assert_eq!(end.ended.len(), usize::try_from(PUTS).expect("a few"));
    }
}
