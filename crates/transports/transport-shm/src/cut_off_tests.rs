//! Endpoints of two nodes of a lab between which no way leads for a while.

use std::sync::Arc;
use std::time::Duration;

use weft_broker::local::LocalBroker;
use weft_broker::{Cuts, Limits, Site};
use weft_fabric::{
    Access, Audience, Blocking, ConnectError, DownReason, Endpoint, EndpointOptions, Event, Group,
    LocalRange, MessageHeader, NodeId, Operation, OperationError, PATIENCE, Peer, Region,
    RemoteKey, SendError, Source, Target, Transport, Waited, Window,
};

use crate::{Parameters, ShmEndpoint, ShmRegion, ShmTransport, local_broker};

const SILENCE: Duration = Duration::from_secs(5);

struct Pair {
    broker: LocalBroker,
    ends: [ShmEndpoint; 2],
    /// The peers of the two ends.
    peers: [Peer; 2],
}

impl Pair {
    fn new(in_place: bool) -> Self {
        let broker = local_broker(NodeId::LOCAL, Limits::default());
        broker.tell_silence(SILENCE);
        let mut ends = [0, 1].map(|site| {
            let transport =
                ShmTransport::new(Arc::new(broker.at(Site(site))), Parameters::default());
            transport.open(&EndpointOptions::default()).expect("room")
        });
        if in_place {
            ends[1].keep_memory_in_place();
        }
        let [address, back] = [1, 0].map(|end| ends[end].address());
        let peers = [
            ends[0].connect_within(address, PATIENCE).expect("it is there"),
            ends[1].connect_within(back, PATIENCE).expect("it is there"),
        ];
        Self { broker, ends, peers }
    }

    fn set_cut(&self, is_cut: bool) {
        let pairs = is_cut.then_some((Site(1), Site(0)));
        self.broker.set_cuts(pairs.into_iter().collect::<Cuts>());
    }

    fn send(&mut self, number: u8) -> Result<(), SendError> {
        self.ends[0].send_short(self.peers[0], MessageHeader::tag(number), &[&[number]])
    }

    /// The tags of the messages that an end got, whether it was told of room, and its peer's end.
    fn poll(&mut self, end: usize) -> (Vec<u8>, bool, Option<DownReason>) {
        let (mut tags, mut has_room, mut down) = (Vec::new(), false, None);
        for _ in 0..16 {
            self.ends[end].poll(64, &mut |event| match event {
                Event::Message(message) => tags.push(message.header.tag),
                Event::Room { .. } | Event::GroupRoom { .. } => has_room = true,
                Event::PeerDown { reason, .. } => down = Some(reason),
                _ => {}
            });
        }
        (tags, has_room, down)
    }

    /// A region of the second end, with a key for all.
    fn region(&mut self) -> (ShmRegion, RemoteKey) {
        let region = self.ends[1].register(4096).expect("memory");
        let range = LocalRange { region: &region, offset: 0, length: 4096 };
        let access = Access::READ | Access::WRITE;
        let key = self.ends[1].grant_within(range, Audience::Partition, access, PATIENCE);
        (region, key.expect("a key"))
    }

    fn put(&mut self, key: RemoteKey, byte: u8) -> Result<(), OperationError> {
        let (source, target) = (Source::Bytes(&[byte]), Target { key, offset: 0 });
        self.ends[0].put(self.peers[0], source, target, Operation::new(u64::from(byte))).map(drop)
    }
}

#[test]
fn messages_wait_and_go_on_in_order_when_a_way_leads_there_again() {
    let mut pair = Pair::new(false);
    pair.send(1).expect("room");
    pair.set_cut(true);
    // The receiver hears of the cut before it has taken the message.
    assert_eq!(pair.poll(1), (vec![], false, None));
    assert!(!pair.poll(0).1);
    assert_eq!(pair.send(2), Err(SendError::WouldBlock));
    assert_eq!(pair.poll(0), (vec![], false, None), "no room, as long as nobody is there");
    assert_eq!(pair.ends[0].wait(Some(Duration::ZERO)), Waited::TimedOut);
    pair.set_cut(false);
    assert_eq!(pair.ends[0].wait(Some(PATIENCE)), Waited::Ready);
    assert!(pair.poll(0).1, "it is told when it is worth another try");
    pair.send(2).expect("room");
    assert_eq!(pair.poll(1), (vec![1, 2], false, None));
}

#[test]
fn an_end_that_sleeps_is_woken_when_a_way_leads_there_again() {
    let mut pair = Pair::new(false);
    pair.set_cut(true);
    assert_eq!(pair.poll(1).0, []);
    pair.send(7).expect("it has not heard yet");
    assert_eq!(pair.ends[1].wait(Some(Duration::ZERO)), Waited::TimedOut);
    pair.set_cut(false);
    assert_eq!(pair.ends[1].wait(Some(PATIENCE)), Waited::Ready);
    assert_eq!(pair.poll(1).0, [7]);
}

#[test]
fn memory_is_out_of_reach_meanwhile() {
    let mut pair = Pair::new(false);
    let (region, key) = pair.region();
    for byte in [1, 2, 3] {
        pair.put(key, byte).expect("a put");
    }
    let window = pair.ends[0].window(pair.peers[0], key).expect("mapped");
    pair.set_cut(true);
    pair.poll(0);
    assert_eq!(pair.put(key, 4), Err(OperationError::WouldBlock));
    assert_eq!(window.store(0, &[5]), Err(OperationError::WouldBlock));
    let mut byte = [0];
    region.read(0, &mut byte).expect("one's own");
    assert_eq!(byte, [3]);
    pair.set_cut(false);
    assert!(pair.poll(0).1);
    pair.put(key, 6).expect("a put");
    window.load(0, &mut byte).expect("it is there again");
    assert_eq!(byte, [6]);
}

#[test]
fn operations_on_memory_in_place_wait_and_end_once() {
    let mut pair = Pair::new(true);
    let (region, key) = pair.region();
    pair.put(key, 1).expect("a put");
    for _ in 0..64 {
        pair.poll(1);
        pair.poll(0);
    }
    pair.set_cut(true);
    pair.poll(0);
    pair.poll(1);
    let refused = pair.put(key, 2);
    let mut byte = [0];
    region.read(0, &mut byte).expect("one's own");
    assert_eq!(byte, [1], "{refused:?}");
    pair.set_cut(false);
    pair.poll(0);
    if refused.is_err() {
        pair.put(key, 2).expect("a put");
    }
    for _ in 0..64 {
        pair.poll(1);
        pair.poll(0);
    }
    region.read(0, &mut byte).expect("one's own");
    assert_eq!(byte, [2]);
}

#[test]
fn a_peer_is_down_after_the_promised_silence_and_can_be_met_again() {
    let mut pair = Pair::new(false);
    pair.set_cut(true);
    pair.broker.let_pass(SILENCE - Duration::from_millis(500));
    pair.set_cut(true);
    assert_eq!([0, 1].map(|end| pair.poll(end).2), [None, None]);
    pair.broker.let_pass(Duration::from_secs(1));
    pair.set_cut(true);
    assert_eq!([0, 1].map(|end| pair.poll(end).2), [Some(DownReason::Unreachable); 2]);
    assert_eq!(pair.send(1), Err(SendError::PeerDown));
    let address = pair.ends[1].address();
    let refused = pair.ends[0].connect_within(address, PATIENCE);
    match refused {
        Err(ConnectError::Broker { reason }) => assert!(reason.contains("no way"), "{reason}"),
        other => panic!("{other:?}"),
    }
    pair.set_cut(false);
    pair.peers[0] = pair.ends[0].connect_within(address, PATIENCE).expect("a way");
    pair.send(2).expect("room");
    assert_eq!(pair.poll(1).0, [2]);
}

#[test]
fn a_message_to_a_group_waits_for_a_peer_that_is_cut_off() {
    let mut pair = Pair::new(false);
    let broadcast = |pair: &mut Pair| {
        pair.ends[0].send_multicast(Group::BROADCAST, MessageHeader::tag(9), &[b"all"])
    };
    assert_eq!(broadcast(&mut pair), Ok(1));
    pair.set_cut(true);
    pair.poll(0);
    assert_eq!(broadcast(&mut pair), Err(SendError::WouldBlock));
    assert!(!pair.poll(0).1);
    pair.set_cut(false);
    assert!(pair.poll(0).1);
    assert_eq!(broadcast(&mut pair), Ok(1));
    assert_eq!(pair.poll(1).0, [9, 9]);
}
