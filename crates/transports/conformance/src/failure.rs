//! Cases: peers that die.

use weft_fabric::{
    Access, Atomic, ConnectError, DownReason, Endpoint, EndpointAddress, EndpointOptions, Group,
    LocalRange, MessageHeader, Operation, OperationError, Peer, Region, Register, RemoteKey,
    SendError, Source, Target, Value, Window,
};

use crate::{Bench, Down, Rig, Seen, pattern};

/// The death of a peer is reported once. Other peers are not reported.
pub fn a_dead_peer_is_reported_once<B: Bench>() {
    let mut rig = Rig::<B>::new(3);
    let (dead, alive) = (rig.address(1), rig.connect(0, 2));
    rig.connect(0, 1);
    rig.kill(1);
    wait_down(&mut rig, 0, dead);
    rig.settle();
    assert_eq!(rig.seen(0), &[Seen::PeerDown(dead)]);
    assert_eq!(rig.endpoint(0).register_value(Register::PeersDown), 1);
    rig.send(0, alive, MessageHeader::default(), &[b"still here"]);
    assert_eq!(rig.messages(2, 1)[0].payload, b"still here");
}

/// A message names its sender by a handle to which a reply can be sent. One that is opened at the
/// address of a dead sender is another peer, and the report of the death names the first.
pub fn an_address_that_is_used_again_is_another_peer<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    let mut handles = Vec::new();
    for round in 0..3 {
        let options = EndpointOptions { vpid: weft_fabric::Vpid(99), ..EndpointOptions::default() };
        let mut opened = None;
        rig.until("the VPID of a dead endpoint", |rig| {
            opened = rig.bench.open(&options).ok();
            opened.is_some()
        });
        let caller = rig.add(opened.expect("until() returned"));
        let (address, to) = (rig.address(caller), rig.connect(caller, 0));
        rig.send(caller, to, MessageHeader::tag(1), &[b"ask"]);
        let ask = rig.messages(0, 1).remove(0);
        assert_eq!(ask.source, address);
        rig.send(0, ask.peer, MessageHeader::tag(2), &[b"answer"]);
        let answer = rig.messages(caller, 1).remove(0);
        assert_eq!((answer.payload.as_slice(), answer.peer), (&b"answer"[..], to));
        assert_eq!(rig.try_connect(0, address), Ok(ask.peer), "one peer has one handle");
        assert!(!handles.contains(&ask.peer), "the handle of a dead peer is used again");
        rig.endpoint(caller).put_notification(to, 7, 1).expect("room");
        assert_eq!(rig.notifications(0, 1)[0].peer, ask.peer);
        handles.push(ask.peer);
        drop(rig.remove(caller));
        wait_down(&mut rig, 0, address);
        let reason = DownReason::Ended;
        assert_eq!(rig.downs(0)[round..], [Down { peer: ask.peer, address, reason }]);
        rig.take(0);
        for dead in &handles {
            let sent = rig.endpoint(0).send_short(*dead, MessageHeader::default(), &[b"x"]);
            assert_eq!(sent, Err(SendError::PeerDown));
        }
    }
}

/// A peer that was closed is reported like one that died.
pub fn a_closed_peer_is_reported_once<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let dead = rig.address(1);
    rig.connect(0, 1);
    drop(rig.remove(1));
    wait_down(&mut rig, 0, dead);
    rig.settle();
    assert_eq!(rig.seen(0), &[Seen::PeerDown(dead)]);
}

/// After the report every call with the handle fails, and the address is not found.
pub fn every_call_on_a_dead_peer_fails<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (_region, key) = rig.share(1, 64, Access::all());
    let window = rig.window(0, peer, key);
    let dead = rig.address(1);
    rig.kill(1);
    wait_down(&mut rig, 0, dead);
    let local = rig.local(0, &[0; 8]);
    let header = MessageHeader::default();
    let sent = rig.endpoint(0).send_short(peer, header, &[b"x"]);
    assert_eq!(sent, Err(SendError::PeerDown));
    for (name, result) in every_operation::<B>(&mut rig, peer, key, &local) {
        assert_eq!(result, Err(OperationError::PeerDown), "{name}");
    }
    assert_eq!(rig.endpoint(0).put_notification(peer, 1, 1), Err(OperationError::PeerDown));
    assert!(rig.endpoint(0).window(peer, key).is_err());
    if let Some(window) = window {
        let _ = window.load(0, &mut [0; 8]);
    }
    assert_eq!(rig.try_connect(0, dead), Err(ConnectError::NotFound(dead)));
    assert_eq!(rig.endpoint(0).peer_address(peer), Some(dead));
}

/// Operations pending on a peer complete, once each, before the report of its death.
pub fn what_was_pending_ends_before_the_report<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let dead = rig.address(1);
    let (_region, key) = rig.share(1, 1 << 20, Access::all());
    let bytes = pattern(31, 1 << 16);
    let mut pending = Vec::new();
    for number in 0..16 {
        let context = rig.context();
        let target = Target::new(key, number << 16);
        let source = Source::Bytes(&bytes);
        let issued = rig.endpoint(0).put(peer, source, target, Operation::new(context));
        if issued == Ok(weft_fabric::Issued::Pending) {
            pending.push(context);
        }
    }
    rig.kill(1);
    wait_down(&mut rig, 0, dead);
    rig.settle();
    let seen = rig.take(0);
    assert_eq!(seen.last(), Some(&Seen::PeerDown(dead)), "the report comes last");
    for context in &pending {
        let ends = seen.iter().filter(
            |seen| matches!(seen, Seen::Completion(completion) if completion.context == *context),
        );
        assert_eq!(ends.count(), 1, "operation {context:#x} completes once");
    }
    assert_eq!(seen.len(), pending.len() + 1);
}

/// Messages that a peer sent before it was closed arrive before the report.
pub fn last_words_arrive_before_the_report<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let (_, back) = (rig.connect(0, 1), rig.connect(1, 0));
    let dead = rig.address(1);
    for number in 0..10u64 {
        rig.send(1, back, MessageHeader::default(), &[&number.to_le_bytes()]);
    }
    drop(rig.remove(1));
    wait_down(&mut rig, 0, dead);
    rig.settle();
    let seen = rig.take(0);
    let messages = seen.iter().filter(|seen| matches!(seen, Seen::Message(_))).count();
    assert_eq!(messages, 10);
    assert_eq!(seen.last(), Some(&Seen::PeerDown(dead)));
}

/// A group delivers messages to its other members after one died.
pub fn a_group_works_without_its_dead_members<B: Bench>() {
    let mut rig = Rig::<B>::new(4);
    let group = Group::new(3).expect("below 64");
    for number in 1..4 {
        rig.join(number, group).expect("the group exists");
    }
    let (dead, header) = (rig.address(1), MessageHeader::default());
    rig.connect(0, 1);
    rig.kill(1);
    wait_down(&mut rig, 0, dead);
    for (group, expected) in [(group, 2), (Group::BROADCAST, 2)] {
        let mut tries = 0;
        rig.until("a group without its dead members", |rig| {
            // Each try is an event for the others, so that the rig never gets tired.
            tries += 1;
            assert!(tries < 1000, "the dead are still counted, or the living are not");
            rig.multicast(0, group, header, &[b"on we go"]) == Ok(expected)
        });
    }
    rig.settle();
    assert!(!rig.take_messages(2).is_empty() && !rig.take_messages(3).is_empty());
}

/// A sender that waits for room in a mailbox gets the report when the peer dies.
pub fn a_sender_without_room_gets_the_report_of_the_death<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let dead = rig.address(1);
    let header = MessageHeader::default();
    let full =
        (0..100_000).any(|_| rig.endpoint(0).send_short(peer, header, &[b"filler"]).is_err());
    assert!(full, "the mailbox never gets full");
    rig.kill(1);
    wait_down(&mut rig, 0, dead);
    let sent = rig.endpoint(0).send_short(peer, header, &[b"x"]);
    assert_eq!(sent, Err(SendError::PeerDown));
}

/// A new endpoint at the address of a dead one is another peer.
pub fn a_successor_at_the_same_address_is_another_peer<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    let options = EndpointOptions { vpid: weft_fabric::Vpid(99), ..EndpointOptions::default() };
    let first = rig.bench.open(&options).expect("free");
    let first = rig.add(first);
    let old = rig.connect(0, first);
    let address = rig.address(first);
    rig.kill(first);
    wait_down(&mut rig, 0, address);
    let mut second = None;
    rig.until("the VPID of a dead endpoint", |rig| {
        second = rig.bench.open(&options).ok();
        second.is_some()
    });
    let second = rig.add(second.expect("until() returned"));
    let new = rig.connect(0, second);
    assert_ne!(old, new);
    let header = MessageHeader::default();
    let sent = rig.endpoint(0).send_short(old, header, &[b"x"]);
    assert_eq!(sent, Err(SendError::PeerDown));
    rig.send(0, new, header, &[b"welcome"]);
    rig.settle();
    let messages = rig.take_messages(second);
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].payload, b"welcome");
}

/// The death of a peer does not harm the memory of this endpoint.
pub fn own_memory_survives_the_death_of_a_peer<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let back = rig.connect(1, 0);
    rig.connect(0, 1);
    let (region, key) = rig.share(0, 4096, Access::all());
    let bytes = pattern(33, 4096);
    let put = rig.run(1, |endpoint, context| {
        endpoint.put(back, Source::Bytes(&bytes), Target::new(key, 0), Operation::new(context))
    });
    assert_eq!(put, Ok(Value::Nothing));
    let dead = rig.address(1);
    rig.kill(1);
    wait_down(&mut rig, 0, dead);
    let mut found = vec![0; 4096];
    region.read(0, &mut found).expect("inside");
    assert_eq!(found, bytes);
}

fn wait_down<B: Bench>(rig: &mut Rig<B>, number: usize, dead: EndpointAddress) {
    rig.until("the report of a death", |rig| rig.seen(number).contains(&Seen::PeerDown(dead)));
}

fn every_operation<B: Bench>(
    rig: &mut Rig<B>,
    peer: Peer,
    key: RemoteKey,
    local: &<B::Endpoint as Endpoint>::Region,
) -> [(&'static str, Result<Value, OperationError>); 5] {
    let target = Target::new(key, 0);
    let put = rig
        .run(0, |one, context| one.put(peer, Source::Bytes(b"x"), target, Operation::new(context)));
    let immediate =
        rig.run(0, |one, context| one.put_immediate(peer, 1, 1, target, Operation::new(context)));
    let get = rig.run(0, |one, context| {
        one.get(peer, target, LocalRange::new(local, 0, 8), Operation::new(context))
    });
    let atomic = rig.run(0, |one, context| {
        one.atomic(peer, target, Atomic::fetch_add(1), Operation::new(context))
    });
    let fence = rig.run(0, |one, context| one.fence(peer, context));
    assert_eq!(local.length(), 8);
    [("put", put), ("immediate put", immediate), ("get", get), ("atomic", atomic), ("fence", fence)]
}
