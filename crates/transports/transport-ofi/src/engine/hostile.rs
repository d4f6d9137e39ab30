//! Peers that break the rules: the victim reports them, and goes on with the others.

use std::time::Duration;

use weft_fabric::{
    Access, Audience, Capabilities, DownReason, EndpointAddress, Event, LocalRange, MessageHeader,
    NodeId, OperationError, Peer, Region, RemoteKey, SignalChange, Source, Target, Vpid,
};
use weft_libfabric::Report;

use super::Engine;
use super::operations::Reply;
use super::wanted::Wanted;
use crate::meeting::Introduction;
use crate::nic::Nic;
use crate::packet::{Answer, Body, Credits, Greeting, Label, Packet, Range, Request, Short};
use crate::registers::Registers;
use crate::seeded::{SeededNet, SeededNic, Settings};
use crate::transport::Cards;

const SECRET: [u8; 16] = *b"what both show!!";
const DEPTH: usize = 256;

/// A victim, and a peer of it that says whatever it likes.
struct Scene {
    net: SeededNet,
    victim: Engine<SeededNic>,
    nic: SeededNic,
    /// The victim, as the hostile NIC knows it.
    to: weft_libfabric::Peer,
    /// How the victim wants its packets labelled, and how many it takes.
    label: Label,
    room: usize,
    /// The number of the last packet.
    sequence: u32,
    /// How much of the victim it says that it has handled.
    handled: u32,
    /// The victim's handle.
    peer: u32,
    downs: Vec<DownReason>,
    messages: usize,
}

impl Scene {
    fn new() -> Self {
        let net = SeededNet::new(Settings { busy: 0, ..Settings::default() });
        let (own, mut nic) = (net.open().expect("memory"), net.open().expect("memory"));
        let to = nic.insert(own.name()).expect("a name of this network");
        let address = EndpointAddress::new(NodeId::LOCAL, Vpid(1));
        let limits = Capabilities::extoll("ofi");
        let (registers, _) = Registers::create().expect("memory");
        let mut victim = Engine::new(own, registers, address, limits, Duration::from_secs(5));
        let introduction = Introduction {
            address: EndpointAddress::new(NodeId::LOCAL, Vpid(2)),
            name: nic.name().to_vec(),
            secret: SECRET,
            mailbox_depth: DEPTH,
            greets_first: true,
        };
        let peer = victim.introduce(&introduction).expect("a fresh endpoint");
        let label = Label::default();
        let (downs, messages) = (Vec::new(), 0);
        let mut scene = Self {
            net,
            victim,
            nic,
            to,
            label,
            room: 0,
            sequence: 0,
            handled: 0,
            peer,
            downs,
            messages,
        };
        let greeting = scene.turn().into_iter().find_map(|bytes| match Packet::parse(&bytes) {
            Ok(Packet { body: Body::Greeting(greeting), .. }) => Some(greeting),
            _ => None,
        });
        let greeting = greeting.expect("the victim greets first");
        assert_eq!(greeting.secret, SECRET);
        (scene.label, scene.room) = (greeting.label, greeting.packets.into());
        scene
    }

    /// Lets everything on its way arrive, and returns what the hostile peer got.
    fn turn(&mut self) -> Vec<Vec<u8>> {
        self.turn_taking(usize::MAX)
    }

    /// The same, while the victim's program takes so many events.
    fn turn_taking(&mut self, mut events: usize) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        for _ in 0..200 {
            self.net.step();
            self.victim.progress();
            while events > 0 {
                events -= 1;
                let Some(queued) = self.victim.take() else { break };
                match queued.as_event() {
                    Event::PeerDown { reason, .. } => self.downs.push(reason),
                    Event::Message(_) => self.messages += 1,
                    _ => {}
                }
            }
            let told = self.nic.poll(64, &mut |report| {
                if let Report::Message(bytes) = report {
                    got.push(bytes.to_vec());
                }
            });
            told.expect("a card in memory");
        }
        got
    }

    fn say(&mut self, body: Body<'_>) {
        self.say_with(Credits::default(), body);
    }

    fn say_with(&mut self, credits: Credits, body: Body<'_>) {
        if !matches!(body, Body::Greeting(_)) {
            self.sequence += 1;
        }
        let (label, sequence, handled) = (self.label, self.sequence, self.handled);
        let mut bytes = Vec::new();
        Packet { label, credits, sequence, handled, body }.emit(&mut bytes);
        self.nic.send(self.to, &bytes).expect("the network has room");
    }

    fn greet(&mut self) {
        let label = Label { number: 7, check: 7 };
        let greeting =
            Greeting { secret: SECRET, label, packets: 64, messages: 0, notifications: 0 };
        self.say(Body::Greeting(greeting));
        self.turn();
    }

    fn message() -> Body<'static> {
        Body::Message { header: MessageHeader::tag(1), group: None, payload: b"x" }
    }

    /// The victim has reported the peer once, and takes nothing of it any more.
    fn ends_misbehaved(mut self) {
        self.turn();
        assert_eq!(self.downs, [DownReason::Misbehaved]);
        let before = self.messages;
        self.say(Self::message());
        self.turn();
        assert_eq!((self.downs.len(), self.messages), (1, before));
        assert!(self.victim.check_peer(Peer(self.peer)).is_err());
    }
}

#[test]
fn a_peer_that_keeps_to_the_rules_is_heard() {
    let mut scene = Scene::new();
    scene.greet();
    scene.say(Scene::message());
    scene.turn();
    assert_eq!((scene.messages, scene.downs.len()), (1, 0));
}

#[test]
fn a_stranger_is_not_heard() {
    let mut scene = Scene::new();
    scene.greet();
    let good = scene.label;
    let wrong = [
        Label { check: good.check ^ 1, ..good },
        Label { number: good.number + 1, ..good },
        Label { number: u32::MAX, check: 0 },
    ];
    for label in wrong {
        scene.label = label;
        scene.say(Scene::message());
    }
    (scene.label, scene.sequence) = (good, 0);
    let (label, secret) = (Label::default(), *b"not what is told");
    let wrong = Greeting { secret, label, packets: 9, messages: 0, notifications: 0 };
    for _ in 0..super::STRANGERS_MAX * 2 {
        scene.say(Body::Greeting(wrong));
    }
    scene.turn();
    assert_eq!((scene.messages, scene.downs.len()), (0, 0));
    assert!(scene.victim.strangers.len() <= super::STRANGERS_MAX, "they are bounded");
    scene.say(Scene::message());
    scene.turn();
    assert_eq!(scene.messages, 1, "the peer is still heard");
}

#[test]
fn arbitrary_bytes_are_dropped() {
    let mut scene = Scene::new();
    scene.greet();
    for length in 0..140 {
        let bytes = vec![u8::try_from(length).expect("small"); length];
        scene.nic.send(scene.to, &bytes[..length.min(140)]).expect("room");
    }
    scene.turn();
    assert!(scene.victim.dropped >= 130, "{}", scene.victim.dropped);
    assert!(scene.downs.is_empty());
}

#[test]
fn a_second_greeting_of_the_pair_changes_nothing() {
    let mut scene = Scene::new();
    scene.greet();
    let label = Label { number: 9, check: 9 };
    let again = Greeting { secret: SECRET, label, packets: 9, messages: 0, notifications: 0 };
    scene.say(Body::Greeting(again));
    scene.turn();
    assert_eq!(
        scene.victim.pair(Peer(scene.peer)).expect("alive").theirs.expect("known").number,
        7
    );
}

#[test]
fn a_packet_that_was_lost_ends_the_pair() {
    let mut scene = Scene::new();
    scene.greet();
    scene.say(Scene::message());
    scene.sequence += 1;
    scene.say(Scene::message());
    scene.turn();
    assert_eq!((scene.messages, scene.downs), (1, vec![DownReason::Unreachable]));
}

#[test]
fn packets_before_the_greeting_are_misbehaviour() {
    let mut scene = Scene::new();
    scene.say(Scene::message());
    scene.ends_misbehaved();
}

#[test]
fn more_packets_than_there_is_room_for_are_misbehaviour() {
    let mut scene = Scene::new();
    scene.greet();
    // The victim returns room only where it takes reports, which it does not meanwhile.
    for _ in 0..=scene.room {
        scene.say(Body::Request(1, Request::Flush));
    }
    for _ in 0..scene.room * 2 {
        scene.net.step();
    }
    scene.ends_misbehaved();
}

#[test]
fn a_peer_to_which_no_way_leads_can_make_this_end_keep_so_much_and_no_more() {
    let mut scene = Scene::new();
    scene.greet();
    let address = EndpointAddress::new(NodeId::LOCAL, Vpid(2));
    scene.victim.set_apart(address, true);
    let most = {
        let receiving = &scene.victim.pair(Peer(scene.peer)).expect("alive").receiving;
        receiving.packets_max + receiving.responses_max + super::pair::SPARE
    };
    for _ in 0..most {
        scene.say(Body::Ping);
        // Few steps: the time of a silence may not pass.
        while scene.net.step() {}
        scene.victim.progress();
    }
    assert!(scene.victim.check_peer(Peer(scene.peer)).is_ok());
    scene.say(Body::Ping);
    scene.ends_misbehaved();
}

#[test]
fn more_messages_than_the_mailbox_holds_are_misbehaviour() {
    let mut scene = Scene::new();
    scene.greet();
    let mut sent = 0;
    // The program of the victim takes nothing, so that only packets are returned.
    while sent <= DEPTH {
        for _ in 0..scene.room.min(16) {
            scene.say(Scene::message());
            sent += 1;
        }
        for _ in 0..100 {
            scene.net.step();
            scene.victim.progress();
            let _ = scene.nic.poll(64, &mut |_| {});
        }
    }
    scene.ends_misbehaved();
}

#[test]
fn returning_more_than_was_sent_is_misbehaviour() {
    for credits in [
        Credits { messages: 1, ..Credits::default() },
        Credits { notifications: 1, ..Credits::default() },
    ] {
        let mut scene = Scene::new();
        scene.greet();
        scene.say_with(credits, Body::Credit(false));
        scene.ends_misbehaved();
    }
}

#[test]
fn an_answer_that_nobody_asked_for_is_misbehaviour() {
    let mut scene = Scene::new();
    scene.greet();
    scene.say(Body::Response(1, Ok(Answer::Value(1))));
    scene.ends_misbehaved();
}

#[test]
fn a_key_that_is_not_for_the_peer_serves_it_nothing() {
    let mut scene = Scene::new();
    scene.greet();
    let region = scene.victim.register(64).expect("memory");
    let whole = LocalRange::whole(&region);
    let key = scene.victim.grant(whole, Audience::Partition, Access::READ).expect("a grant");
    assert_eq!(
        scene.victim.revoke(key, 1),
        Ok(weft_fabric::Issued::Done(weft_fabric::Value::Revoked(weft_fabric::Revoked::Published))),
        "nobody knows it"
    );
    for key in [key, RemoteKey(0), RemoteKey(u64::MAX)] {
        scene.say(Body::Request(5, Request::Resolve(key)));
        let got = scene.turn();
        let answers = got.iter().filter_map(|bytes| Packet::parse(bytes).ok());
        let refused = |packet: Packet<'_>| matches!(packet.body, Body::Response(5, Err(_)));
        assert!(answers.into_iter().any(refused));
    }
    // Nothing is known of these keys, and nothing is done.
    scene.say(Body::Released(RemoteKey(9)));
    scene.say(Body::Void(RemoteKey(9)));
    scene.turn();
    assert!(scene.downs.is_empty());
}

#[test]
fn saying_to_have_handled_more_than_was_sent_is_misbehaviour() {
    for handled in [1, 1000, u32::MAX / 2] {
        let mut scene = Scene::new();
        scene.greet();
        scene.handled = handled;
        scene.say(Body::Credit(false));
        scene.ends_misbehaved();
    }
}

fn short(number: u64, key: RemoteKey, offset: u64, bytes: &[u8]) -> Body<'_> {
    let (signal, notify) = (Some((0, SignalChange::Add(1))), Some((1, 2, 3)));
    let target = Target { key, offset };
    Body::Short(Short { number, is_immediate: false, target, signal, notify, bytes })
}

#[test]
fn a_short_put_that_may_not_be_writes_nothing_and_is_answered() {
    let mut scene = Scene::new();
    scene.greet();
    let region = scene.victim.register(64).expect("memory");
    let whole = LocalRange::whole(&region);
    let all = Access::READ | Access::WRITE | Access::ATOMIC;
    let good = scene.victim.grant(whole, Audience::Partition, all).expect("a grant");
    let whole = LocalRange::whole(&region);
    let readable = scene.victim.grant(whole, Audience::Partition, Access::READ).expect("a grant");
    for (key, offset) in [(good.0, 60), (good.0, u64::MAX), (readable.0, 8), (7, 8)] {
        scene.say(short(5, RemoteKey(key), offset, b"sixteen of bytes"));
        let got = scene.turn();
        let answers = got.iter().filter_map(|bytes| Packet::parse(bytes).ok());
        let refused = |packet: Packet<'_>| matches!(packet.body, Body::Response(5, Err(_)));
        assert!(answers.into_iter().any(refused), "{key} {offset}");
    }
    let mut bytes = [1; 64];
    region.read(0, &mut bytes).expect("its own memory");
    assert_eq!(bytes, [0; 64]);
    scene.say(short(6, RemoteKey(good.0), 8, b"sixteen of bytes"));
    let got = scene.turn();
    assert!(got.iter().all(|bytes| !matches!(
        Packet::parse(bytes).map(|packet| packet.body),
        Ok(Body::Response(..))
    )));
    region.read(0, &mut bytes).expect("its own memory");
    assert_eq!((&bytes[..8], &bytes[8..24]), (&1_u64.to_le_bytes()[..], &b"sixteen of bytes"[..]));
    assert!(scene.downs.is_empty());
}

/// A quiet put of the victim is one packet from the second use of its key on. The peer confirms it
/// with whatever it says next, or refuses it.
#[test]
fn a_quiet_put_is_one_packet_and_ends_with_the_word_of_its_peer() {
    let mut scene = Scene::new();
    scene.greet();
    let key = RemoteKey(77);
    let region = scene.victim.register(64).expect("memory");
    let known = Range {
        spot: weft_libfabric::Spot { address: 0, key: 0 },
        skew: 0,
        length: 64,
        access: Access::WRITE,
    };
    assert_eq!(scene.victim.resolve(Peer(scene.peer), key, 1), Ok(weft_fabric::Issued::Pending));
    let got = scene.turn();
    let asked = got.iter().find_map(|bytes| match Packet::parse(bytes).map(|it| it.body) {
        Ok(Body::Request(number, Request::Resolve(_))) => Some(number),
        _ => None,
    });
    scene.say(Body::Response(asked.expect("it asks"), Ok(Answer::Range(known))));
    scene.turn();
    drop(region);
    let put = |scene: &mut Scene, context| {
        let source = Source::Bytes(&[9; 16]);
        let wanted = Wanted::Put(vec![(source, Target { key, offset: 8 })], None);
        let asked = weft_fabric::Operation::new(context).quiet();
        let number = scene.victim.issue(Peer(scene.peer), wanted, asked, Reply::Event);
        number.expect("room");
        scene.turn_taking(0)
    };
    let packets = put(&mut scene, 5);
    assert_eq!(packets.len(), 1);
    let Ok(Body::Short(first)) = Packet::parse(&packets[0]).map(|packet| packet.body) else {
        panic!("not a short put");
    };
    assert_eq!((first.bytes, first.signal, first.notify), (&[9; 16][..], None, None));
    assert_eq!(scene.victim.places, 1);
    scene.handled = 1;
    scene.say(Body::Credit(false));
    scene.turn();
    assert_eq!((scene.victim.places, scene.victim.has_events()), (0, false));
    let packets = put(&mut scene, 6);
    let Ok(Body::Short(second)) = Packet::parse(&packets[0]).map(|packet| packet.body) else {
        panic!("not a short put");
    };
    scene.handled = 2;
    scene.say(Body::Response(second.number, Err(OperationError::InvalidKey)));
    scene.turn_taking(0);
    let told = scene.victim.take().expect("an error");
    let Event::Completion(ended) = told.as_event() else { panic!("not an end") };
    assert_eq!((ended.context, ended.result), (6, Err(OperationError::InvalidKey)));
    assert_eq!(scene.victim.places, 0);
    // Those that the peer has not handled end with it.
    put(&mut scene, 7);
    scene.say(Body::Farewell(DownReason::Ended));
    scene.turn_taking(0);
    let mut ends = Vec::new();
    while let Some(queued) = scene.victim.take() {
        if let Event::Completion(ended) = queued.as_event() {
            ends.push((ended.context, ended.result));
        }
    }
    assert_eq!(ends, [(7, Err(OperationError::PeerDown))]);
}

/// Messages that came by a former pair and wait are counted in the next one's greeting, and
/// returned by that: so a peer that parts and comes back gets no more of the mailbox.
#[test]
fn messages_of_a_former_pair_count_for_the_next_one() {
    let mut scene = Scene::new();
    scene.greet();
    scene.say(Scene::message());
    scene.turn_taking(0);
    scene.say(Body::Farewell(DownReason::Disconnected));
    scene.turn_taking(0);
    let secret = *b"the next secret!";
    let again = Introduction {
        address: EndpointAddress::new(NodeId::LOCAL, Vpid(2)),
        name: scene.nic.name().to_vec(),
        secret,
        mailbox_depth: DEPTH,
        greets_first: true,
    };
    let peer = scene.victim.introduce(&again).expect("room");
    let got = scene.turn_taking(0);
    let greeting = got.iter().find_map(|bytes| match Packet::parse(bytes) {
        Ok(Packet { body: Body::Greeting(greeting), .. }) => Some(greeting),
        _ => None,
    });
    let greeting = greeting.expect("the victim greets first");
    assert_eq!((greeting.secret, greeting.messages), (secret, 1));
    // The victim counts those that wait with the peer in the same way.
    let label = Label { number: 8, check: 8 };
    let answer = Greeting { secret, label, packets: 64, messages: 3, notifications: 2 };
    (scene.label, scene.sequence) = (greeting.label, 0);
    scene.say(Body::Greeting(answer));
    let got = scene.turn();
    assert_eq!((scene.messages, scene.downs.clone()), (1, vec![DownReason::Disconnected]));
    let returned = |bytes: &Vec<u8>| Packet::parse(bytes).map_or(0, |it| it.credits.messages);
    assert_eq!(got.iter().map(returned).sum::<u16>(), 1, "the message was taken");
    let pair = scene.victim.pair(Peer(peer)).expect("alive");
    assert_eq!((pair.sending.messages, pair.sending.notifications), (3, 2));
}
