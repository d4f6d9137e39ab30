//! Endpoints of two nodes of a lab between which no way leads for a while, over the seeded network:
//! that still carries everything, so what is held up is held up by the two ends.

use std::sync::Arc;
use std::time::Duration;

use weft_broker::local::LocalBroker;
use weft_broker::{Cuts, Limits, Site, no_bells};
use weft_fabric::{
    Access, Atomic, Audience, Blocking, ConnectError, DownReason, Endpoint, EndpointOptions, Event,
    Group, Issued, LocalRange, MessageHeader, NodeId, Operation, OperationError, PATIENCE, Peer,
    Region, RemoteKey, SendError, Source, Target, Transport, Value,
};
use weft_options::ServicePolicy;
use weft_transport_ofi::seeded::{SeededNet, SeededNic, Settings};
use weft_transport_ofi::{OfiEndpoint, OfiRegion, OfiTransport, Parameters};

const SILENCE: Duration = Duration::from_secs(5);
/// More than a round trip, and less than a silence.
const A_WHILE: Duration = Duration::from_millis(100);

/// The reports that an end got.
#[derive(PartialEq, Eq, Debug, Default)]
struct Told {
    tags: Vec<u8>,
    has_room: bool,
    ended: Vec<(u64, Result<Value, OperationError>)>,
    down: Option<DownReason>,
}

impl Told {
    fn of(tags: &[u8]) -> Self {
        Self { tags: tags.to_vec(), ..Self::default() }
    }
}

struct Pair {
    net: SeededNet,
    broker: LocalBroker,
    /// The two ends; `None` for one that was closed.
    ends: [Option<OfiEndpoint<SeededNic>>; 2],
    /// The peers of the two ends.
    peers: [Peer; 2],
}

impl Pair {
    fn new() -> Self {
        let net = SeededNet::new(Settings::default());
        let policy = ServicePolicy::default();
        let broker = LocalBroker::new(NodeId::LOCAL, Limits::default(), policy, no_bells);
        broker.tell_silence(SILENCE);
        let ends = [0, 1].map(|site| {
            let parameters = Parameters { spins: 0, yields: 0, ..Parameters::default() };
            let broker = Arc::new(broker.at(Site(site)));
            let transport = OfiTransport::new(net.clone(), broker, parameters);
            Some(transport.open(&EndpointOptions::default()).expect("room"))
        });
        let mut pair = Self { net, broker, ends, peers: [Peer(0); 2] };
        pair.connect().expect("they are there");
        pair
    }

    fn connect(&mut self) -> Result<(), ConnectError> {
        for end in [0, 1] {
            let address = self.end(1 - end).address();
            self.peers[end] = self.end(end).connect_within(address, PATIENCE)?;
        }
        self.tell(A_WHILE);
        Ok(())
    }

    fn end(&mut self, end: usize) -> &mut OfiEndpoint<SeededNic> {
        self.ends[end].as_mut().expect("it is open")
    }

    fn set_cut(&self, is_cut: bool) {
        let pairs = is_cut.then_some((Site(1), Site(0)));
        self.broker.set_cuts(pairs.into_iter().collect::<Cuts>());
    }

    fn send(&mut self, number: u8) -> Result<(), SendError> {
        let peer = self.peers[0];
        self.end(0).send_short(peer, MessageHeader::tag(number), &[&[number]])
    }

    /// Lets time pass, and tells what the two ends are told.
    fn tell(&mut self, time: Duration) -> [Told; 2] {
        let until = self.net.now() + time;
        let mut told: [Told; 2] = Default::default();
        while self.net.now() < until {
            self.net.step();
            for (end, told) in self.ends.iter_mut().zip(&mut told) {
                let Some(end) = end else { continue };
                end.poll(64, &mut |event| match event {
                    Event::Message(message) => told.tags.push(message.header.tag),
                    Event::Room { .. } | Event::GroupRoom { .. } => told.has_room = true,
                    Event::Completion(end) => told.ended.push((end.context, end.result)),
                    Event::PeerDown { reason, .. } => told.down = Some(reason),
                    Event::Notification(_) => {}
                });
            }
        }
        told
    }

    /// A region of the second end, with a key for all that the first end knows.
    fn region(&mut self) -> (OfiRegion, RemoteKey) {
        let region = self.end(1).register(4096).expect("memory");
        let range = LocalRange { region: &region, offset: 0, length: 4096 };
        let key = self.end(1).grant_within(range, Audience::Partition, Access::all(), PATIENCE);
        let key = key.expect("a key");
        self.put(key, &[1]);
        assert_eq!(self.tell(A_WHILE)[0].ended, [(1, Ok(Value::Nothing))]);
        (region, key)
    }

    /// A put, with its first byte as its context.
    fn put(&mut self, key: RemoteKey, bytes: &[u8]) {
        let (source, target) = (Source::Bytes(bytes), Target { key, offset: 0 });
        let (peer, operation) = (self.peers[0], Operation::new(bytes[0].into()));
        let issued = self.end(0).put(peer, source, target, operation);
        assert_eq!(issued, Ok(Issued::Pending));
    }
}

fn byte(region: &OfiRegion) -> u8 {
    let mut byte = [0];
    region.read(0, &mut byte).expect("one's own");
    byte[0]
}

#[test]
fn messages_wait_and_go_on_in_order_when_a_way_leads_there_again() {
    let mut pair = Pair::new();
    pair.send(1).expect("room");
    // It is on its way.
    pair.set_cut(true);
    assert_eq!(pair.tell(A_WHILE), [Told::of(&[]), Told::of(&[])]);
    pair.send(2).expect("room");
    pair.send(3).expect("room");
    let longer = SILENCE - 2 * A_WHILE;
    assert_eq!(pair.tell(longer), [Told::of(&[]), Told::of(&[])]);
    pair.set_cut(false);
    assert_eq!(pair.tell(A_WHILE), [Told::of(&[]), Told::of(&[1, 2, 3])]);
    // The silence begins anew.
    assert_eq!(pair.tell(SILENCE), [Told::of(&[]), Told::of(&[])]);
}

#[test]
fn as_much_waits_as_the_peer_has_room_for() {
    let mut pair = Pair::new();
    pair.set_cut(true);
    assert_eq!(pair.tell(A_WHILE)[0], Told::of(&[]));
    let mut sent = Vec::new();
    while pair.send(u8::try_from(sent.len() % 256).expect("a byte")).is_ok() {
        sent.push(u8::try_from(sent.len() % 256).expect("a byte"));
    }
    let most = pair.end(0).capabilities().mailbox_depth;
    assert_eq!((sent.len(), pair.send(0)), (most, Err(SendError::WouldBlock)));
    assert!(!pair.tell(A_WHILE)[0].has_room, "nobody takes anything");
    pair.set_cut(false);
    let [own, other] = pair.tell(A_WHILE);
    assert_eq!(other.tags, sent);
    assert!(own.has_room, "it is told when it is worth another try");
    pair.send(0).expect("room");
}

#[test]
fn memory_is_out_of_reach_meanwhile_and_operations_end_once() {
    let mut pair = Pair::new();
    let (region, key) = pair.region();
    pair.set_cut(true);
    pair.tell(A_WHILE);
    // By a write of the NIC, and by a request.
    pair.put(key, &[4; 1000]);
    let (peer, target) = (pair.peers[0], Target { key, offset: 8 });
    let add = Atomic::fetch_add(1);
    let issued = pair.end(0).atomic(peer, target, add, Operation::new(5));
    assert_eq!((issued, pair.end(0).fence(peer, 6)), (Ok(Issued::Pending), Ok(Issued::Pending)));
    assert_eq!(pair.tell(A_WHILE)[0], Told::of(&[]));
    assert_eq!(byte(&region), 1);
    pair.set_cut(false);
    let mut ended = pair.tell(A_WHILE)[0].ended.clone();
    ended.sort_by_key(|(context, _)| *context);
    let contexts: Vec<_> = ended.iter().map(|(context, end)| (*context, end.is_ok())).collect();
    assert_eq!((contexts, byte(&region)), (vec![(4, true), (5, true), (6, true)], 4));
}

#[test]
fn a_put_that_the_card_has_begun_is_as_one_before_the_cut() {
    let mut pair = Pair::new();
    let (region, key) = pair.region();
    pair.put(key, &[2; 1000]);
    pair.set_cut(true);
    let told = pair.tell(A_WHILE);
    // Both ways are right: the NIC had it when the end heard of the cut, or had no room before.
    match told[0].ended[..] {
        [(2, Ok(Value::Nothing))] => assert_eq!(byte(&region), 2),
        [] => assert_eq!(byte(&region), 1),
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn a_peer_is_down_after_the_silence_that_the_broker_counts_and_can_be_met_again() {
    let mut pair = Pair::new();
    let (_, key) = pair.region();
    pair.set_cut(true);
    pair.tell(A_WHILE);
    pair.send(1).expect("room");
    pair.put(key, &[7; 1000]);
    pair.broker.let_pass(SILENCE - Duration::from_millis(500));
    pair.set_cut(true);
    assert_eq!(pair.tell(A_WHILE), [Told::of(&[]), Told::of(&[])]);
    pair.broker.let_pass(Duration::from_secs(1));
    pair.set_cut(true);
    let told = pair.tell(2 * A_WHILE);
    let [own, other] = &told;
    assert_eq!([own.down, other.down], [Some(DownReason::Unreachable); 2]);
    assert_eq!(own.ended, [(7, Err(OperationError::PeerDown))]);
    assert_eq!(other.tags, []);
    assert_eq!(pair.send(1), Err(SendError::PeerDown));
    match pair.connect() {
        Err(ConnectError::Broker { reason }) => assert!(reason.contains("no way"), "{reason}"),
        other => panic!("{other:?}"),
    }
    pair.set_cut(false);
    pair.connect().expect("a way");
    pair.send(2).expect("room");
    assert_eq!(pair.tell(A_WHILE)[1], Told::of(&[2]));
}

#[test]
fn a_peer_is_down_after_the_silence_also_without_the_broker_s_word() {
    let mut pair = Pair::new();
    pair.set_cut(true);
    assert_eq!(pair.tell(SILENCE - A_WHILE), [Told::of(&[]), Told::of(&[])]);
    let told = pair.tell(4 * A_WHILE);
    // The first one that gives up tells the broker, which tells the other.
    assert!(told.iter().all(|told| told.down.is_some()), "{told:?}");
    assert!(told.iter().any(|told| told.down == Some(DownReason::Unreachable)), "{told:?}");
}

#[test]
fn the_end_of_a_peer_is_told_at_once_behind_what_it_sent_before() {
    let mut pair = Pair::new();
    pair.send(1).expect("room");
    pair.set_cut(true);
    assert_eq!(pair.tell(A_WHILE)[1], Told::of(&[]));
    pair.send(2).expect("room");
    pair.ends[0] = None;
    let told = pair.tell(Duration::from_secs(2));
    assert_eq!((&told[1].tags[..], told[1].down), (&[1][..], Some(DownReason::Ended)));
}

#[test]
fn a_message_to_a_group_waits_for_peers_and_leaves_others_out() {
    let mut pair = Pair::new();
    let broadcast = |pair: &mut Pair| {
        for _ in 0..64 {
            let header = MessageHeader::tag(9);
            match pair.end(0).send_multicast(Group::BROADCAST, header, &[b"all"]) {
                Err(SendError::WouldBlock) => drop(pair.tell(Duration::from_millis(2))),
                other => return other.expect("no other error"),
            }
        }
        panic!("it is refused again and again");
    };
    assert_eq!(broadcast(&mut pair), 1);
    assert_eq!(pair.tell(A_WHILE)[1].tags, [9]);
    pair.set_cut(true);
    pair.tell(A_WHILE);
    assert_eq!(broadcast(&mut pair), 1);
    assert_eq!(pair.tell(A_WHILE)[1].tags, []);
    pair.set_cut(false);
    assert_eq!(pair.tell(A_WHILE)[1].tags, [9]);
    pair.set_cut(true);
    pair.tell(SILENCE + 4 * A_WHILE);
    assert_eq!(broadcast(&mut pair), 0, "it is no peer any more, and no way leads there");
    pair.set_cut(false);
    assert_eq!(broadcast(&mut pair), 1);
    assert_eq!(pair.tell(A_WHILE)[1].tags, [9]);
}
