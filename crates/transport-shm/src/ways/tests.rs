//! Memory in place: revocations that meet writers, peers that break the rules, and rings without
//! room.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weft_broker::{Limits, local::LocalBroker};
use weft_fabric::{
    Access, Atomic, Audience, Blocking, Completion, DownReason, Endpoint, EndpointOptions, Event,
    GrantError, HostMemory, Issued, LocalRange, MessageHeader, NodeId, Notify, Operation,
    OperationError, PATIENCE, Peer, Region, RemoteKey, Revoked, SendError, Side, Source, Target,
    Transport, Way, errno,
};
use weft_memory::Memory;

use super::packet::{ANSWER_FLAGS, Answer, Outcome, Piece, QUESTION_FLAGS, Question, Verb};
use crate::door::{Door, on_passing};
use crate::local_broker;
use crate::pair::Place;
use crate::{Parameters, ShmEndpoint, ShmRegion, ShmTransport, WayInPlace};

fn endpoints<const N: usize>(ways: [WayInPlace; N]) -> [ShmEndpoint; N] {
    let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
    ways.map(|in_place| {
        let parameters = Parameters { in_place, ring_slots: 16, ..Parameters::default() };
        let transport = ShmTransport::new(Arc::<LocalBroker>::clone(&broker), parameters);
        transport.open(&EndpointOptions::default()).expect("a fresh broker")
    })
}

/// Registers memory that is never freed and begins `skip` bytes behind a word.
fn in_place(owner: &mut ShmEndpoint, length: usize, skip: usize) -> ShmRegion {
    let words = vec![0_u64; (length + skip) / 8 + 1].leak();
    let base = NonNull::from(&mut words[0]).cast::<u8>();
    // SAFETY: nobody else has these words, which are never freed, and the only reference to them
    // ends here.
    let memory = unsafe { Memory::in_place(base.add(skip), length) }.expect("some bytes");
    owner.register_memory(&memory).expect("there is room")
}

/// A key to all of a region, and the handle that `peer` has for the owner.
fn grant(owner: &mut ShmEndpoint, region: &ShmRegion, peer: &mut ShmEndpoint) -> (Peer, RemoteKey) {
    let whole = LocalRange::whole(region);
    let key = owner.grant_within(whole, Audience::Partition, Access::all(), PATIENCE);
    let to = peer.connect_within(owner.address(), PATIENCE).expect("there");
    (to, key.expect("a grant"))
}

fn put(
    by: &mut ShmEndpoint,
    to: Peer,
    target: Target,
    bytes: &[u8],
) -> Result<Issued, OperationError> {
    by.put(to, Source::Bytes(bytes), target, Operation::new(1))
}

fn contents(region: &ShmRegion) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(region.length()).expect("small")];
    region.read(0, &mut bytes).expect("inside");
    bytes
}

/// The events of an endpoint.
#[derive(Debug, Default)]
struct Heard {
    ends: Vec<Completion>,
    tags: Vec<u8>,
    sides: Vec<Side>,
    rooms: usize,
    downs: Vec<DownReason>,
    polls: u32,
}

fn poll(endpoint: &mut ShmEndpoint, heard: &mut Heard) {
    heard.polls += 1;
    assert!(heard.polls < 200_000, "nothing happens any more: {heard:?}");
    endpoint.poll(64, &mut |event| match event {
        Event::Completion(end) => heard.ends.push(end),
        Event::Message(message) => heard.tags.push(message.header.tag),
        Event::Notification(told) => heard.sides.push(told.side),
        Event::Room { .. } | Event::GroupRoom { .. } => heard.rooms += 1,
        Event::PeerDown { reason, .. } => heard.downs.push(reason),
    });
}

/// Has this thread call `act` the first time that it passes `door`.
fn once_at(door: Door, act: impl FnOnce() + 'static) {
    let mut act = Some(act);
    on_passing(move |passed| {
        if passed == door
            && let Some(act) = act.take()
        {
            act();
        }
    });
}

#[test]
fn a_revocation_names_a_writer_that_stands_still() {
    let [mut owner, mut writer] = endpoints([WayInPlace::Best; 2]);
    owner.wait_for_writers(Duration::ZERO);
    let region = in_place(&mut owner, 100, 3);
    let (to, key) = grant(&mut owner, &region, &mut writer);
    let _ = put(&mut writer, to, Target::new(key, 0), b"before").expect("allowed");
    let peer = writer.address();
    let owner = Rc::new(RefCell::new(owner));
    let revoker = Rc::clone(&owner);
    once_at(Door::Before, move || {
        let refused = revoker.borrow_mut().revoke_within(key, PATIENCE);
        assert_eq!(refused, Err(GrantError::StillWriting { peer }));
    });
    let late = put(&mut writer, to, Target::new(key, 0), b"behind");
    assert_eq!(late, Err(OperationError::InvalidKey), "it is not reported as done");
    assert_eq!(put(&mut writer, to, Target::new(key, 0), b"x"), Err(OperationError::InvalidKey));
    let key = owner.borrow_mut().grant_within(
        LocalRange::whole(&region),
        Audience::Partition,
        Access::all(),
        PATIENCE,
    );
    let key = key.expect("the next one");
    assert!(put(&mut writer, to, Target::new(key, 0), b"again!").is_ok());
    assert_eq!(owner.borrow_mut().revoke_within(key, PATIENCE), Ok(Revoked::Published));
    assert_eq!(contents(&region)[..6], *b"again!");
}

#[test]
fn a_revocation_waits_for_a_writer_and_stops_it_between_pieces() {
    let [mut owner, mut writer] = endpoints([WayInPlace::Kernel; 2]);
    owner.wait_for_writers(PATIENCE);
    let region = in_place(&mut owner, 20 << 20, 1);
    let (to, key) = grant(&mut owner, &region, &mut writer);
    let _ = put(&mut writer, to, Target::new(key, 0), b"before").expect("allowed");
    let owner = Rc::new(RefCell::new(owner));
    let revoker = Rc::clone(&owner);
    once_at(Door::Before, move || {
        let issued = revoker.borrow_mut().revoke(key, 7);
        assert_eq!(issued, Ok(Issued::Pending), "a write is under way");
    });
    let cut = put(&mut writer, to, Target::new(key, 0), &vec![9; 20 << 20]);
    assert_eq!(cut, Err(OperationError::InvalidKey));
    let end = owner.borrow_mut().finish(7, PATIENCE);
    assert_eq!(end, Some(Ok(Revoked::Published.value())));
    let bytes = contents(&region);
    assert_eq!(bytes[(8 << 20) - 1..(8 << 20) + 1], [9, 0], "one piece was under way");
}

#[test]
fn nothing_is_written_to_a_process_that_does_not_show_its_sign() {
    let [mut owner, mut writer] = endpoints([WayInPlace::Kernel; 2]);
    let region = in_place(&mut owner, 100, 0);
    let (to, key) = grant(&mut owner, &region, &mut writer);
    assert_eq!(writer.reach(to).map(|reach| reach.in_place), Ok(Way::Kernel));
    // As after an exec, or in a process that got the number of a dead one.
    owner.sign.take_down();
    let late = put(&mut writer, to, Target::new(key, 0), b"late");
    assert_eq!(late, Err(OperationError::PeerDown));
    assert_eq!(contents(&region), vec![0; 100]);
    let into = writer.register(8).expect("memory");
    let got = writer.get(to, Target::new(key, 0), LocalRange::whole(&into), Operation::new(2));
    assert_eq!(got, Err(OperationError::PeerDown));
}

#[test]
fn what_the_kernel_refuses_goes_by_the_target_or_is_an_error() {
    for way in [WayInPlace::Best, WayInPlace::Kernel] {
        let [mut owner, mut writer] = endpoints([way; 2]);
        let region = in_place(&mut owner, 100, 0);
        let (to, key) = grant(&mut owner, &region, &mut writer);
        let (target, permitted) =
            (Target::new(key, 0), put(&mut writer, to, Target::new(key, 0), b"1"));
        assert_eq!(permitted, Ok(Issued::Done(0)));
        let lose_address = |writer: &mut ShmEndpoint, address| {
            writer.peers.find(to).expect("alive").in_place[0].address = address;
        };
        // The owner broke its promise.
        lose_address(&mut writer, Some(64));
        let refused = put(&mut writer, to, target, b"2");
        assert_eq!(refused, Err(OperationError::KernelCopy { errno: errno::EFAULT }));
        lose_address(&mut writer, None);
        let untold = put(&mut writer, to, target, b"3");
        // Another user's memory, say.
        writer.peers.find(to).expect("alive").owner = super::Owner::Shut { errno: errno::EPERM };
        let shut = put(&mut writer, to, target, b"4");
        let reach = writer.reach(to).map(|reach| reach.in_place);
        if way == WayInPlace::Best {
            assert_eq!((untold, shut), (Ok(Issued::Pending), Ok(Issued::Pending)));
            assert_eq!(reach, Ok(Way::Target));
            let mut heard = Heard::default();
            while heard.ends.len() < 2 {
                poll(&mut owner, &mut Heard::default());
                poll(&mut writer, &mut heard);
            }
            assert_eq!(contents(&region)[0], b'4');
        } else {
            let eperm = Err(OperationError::KernelCopy { errno: errno::EPERM });
            assert_eq!((untold, shut), (eperm.clone(), eperm));
            assert_eq!(reach, Ok(Way::Refused));
            assert_eq!(contents(&region)[0], b'1');
        }
    }
}

#[test]
fn nothing_overtakes_what_a_peer_carries_out() {
    let [mut owner, mut writer] = endpoints([WayInPlace::Target; 2]);
    let region = in_place(&mut owner, 300_000, 5);
    let mapped = owner.register(64).expect("memory");
    let (to, key) = grant(&mut owner, &region, &mut writer);
    let (_, direct) = grant(&mut owner, &mapped, &mut writer);
    let add = |writer: &mut ShmEndpoint| {
        writer.atomic(to, Target::new(direct, 0), Atomic::fetch_add(1), Operation::new(2))
    };
    assert_eq!(add(&mut writer), Ok(Issued::Done(0)));
    let bytes = vec![3; 300_000];
    assert_eq!(put(&mut writer, to, Target::new(key, 0), &bytes), Ok(Issued::Pending));
    // Each would be seen before the data.
    assert_eq!(add(&mut writer), Err(OperationError::WouldBlock));
    let header = MessageHeader::tag(8);
    assert_eq!(writer.send_short(to, header, &[b"x"]), Err(SendError::WouldBlock));
    assert_eq!(writer.put_notification(to, 1, 1), Err(OperationError::WouldBlock));
    let direct_put = put(&mut writer, to, Target::new(direct, 8), b"direct");
    assert_eq!(direct_put, Err(OperationError::WouldBlock));
    assert_eq!(writer.fence(to, 3), Ok(Issued::Pending));
    assert_eq!(writer.fence_all(4), Ok(Issued::Pending));
    let (mut heard, mut theirs) = (Heard::default(), Heard::default());
    while heard.ends.len() < 3 {
        assert_eq!(heard.rooms, 0, "there is none before the end");
        poll(&mut owner, &mut theirs);
        poll(&mut writer, &mut heard);
    }
    let ends: Vec<_> = heard.ends.iter().map(|end| (end.context, end.result.clone())).collect();
    assert_eq!(ends, [(1, Ok(0)), (3, Ok(0)), (4, Ok(0))]);
    assert_eq!(contents(&region), bytes);
    poll(&mut writer, &mut heard);
    assert_eq!((heard.rooms, theirs.tags.len(), theirs.sides.len()), (1, 0, 0));
    assert_eq!(add(&mut writer), Ok(Issued::Done(1)));
    assert_eq!(writer.send_short(to, header, &[b"x"]), Ok(()));
}

#[test]
fn an_operation_of_which_nothing_was_asked_can_be_cancelled() {
    let [mut owner, mut writer] = endpoints([WayInPlace::Target; 2]);
    let region = in_place(&mut owner, 1 << 20, 0);
    let (to, key) = grant(&mut owner, &region, &mut writer);
    let bytes = vec![1; 1 << 20];
    for context in [1, 2] {
        let (source, target) = (Source::Bytes(&bytes[..]), Target::new(key, 0));
        assert_eq!(writer.put(to, source, target, Operation::new(context)), Ok(Issued::Pending));
    }
    for context in [1, 2, 3] {
        assert_eq!(writer.cancel(to, context), Ok(()));
    }
    let mut heard = Heard::default();
    while heard.ends.len() < 2 {
        poll(&mut owner, &mut Heard::default());
        poll(&mut writer, &mut heard);
    }
    let ends: Vec<_> = heard.ends.iter().map(|end| (end.context, end.result.clone())).collect();
    assert_eq!(ends, [(2, Err(OperationError::Cancelled)), (1, Ok(0))], "one was under way");
    assert_eq!(writer.peers.find(to).expect("alive").jobs.kept, 0);
}

#[test]
fn what_waits_is_bounded_and_room_is_told() {
    let [mut owner, mut writer] = endpoints([WayInPlace::Target; 2]);
    let region = in_place(&mut owner, 20 << 20, 0);
    let (to, key) = grant(&mut owner, &region, &mut writer);
    let bytes = vec![1; 17 << 20];
    let target = Target::new(key, 0);
    assert_eq!(put(&mut writer, to, target, &bytes), Ok(Issued::Pending), "one alone may be long");
    assert_eq!(put(&mut writer, to, target, b"x"), Err(OperationError::WouldBlock));
    // A region need not be kept.
    let local = writer.register(8).expect("memory");
    let source = Source::Region(LocalRange::whole(&local));
    assert_eq!(writer.put(to, source, target, Operation::new(2)), Ok(Issued::Pending));
    let mut heard = Heard::default();
    while heard.rooms == 0 {
        poll(&mut owner, &mut Heard::default());
        poll(&mut writer, &mut heard);
    }
    assert_eq!(put(&mut writer, to, target, b"x"), Ok(Issued::Pending));
    while heard.ends.len() < 3 {
        poll(&mut owner, &mut Heard::default());
        poll(&mut writer, &mut heard);
    }
    let maximum = writer.capabilities().operations_max;
    let add = |writer: &mut ShmEndpoint| {
        writer.atomic(to, target, Atomic::fetch_add(1), Operation::new(9).quiet())
    };
    for _ in 0..maximum {
        assert_eq!(add(&mut writer), Ok(Issued::Pending));
    }
    assert_eq!(add(&mut writer), Err(OperationError::WouldBlock));
    assert_eq!(writer.fence(to, 10), Err(OperationError::WouldBlock));
    assert_eq!(writer.fence_all(11), Err(OperationError::WouldBlock));
    heard.rooms = 0;
    while heard.rooms == 0 {
        poll(&mut owner, &mut Heard::default());
        poll(&mut writer, &mut heard);
    }
    assert_eq!(writer.fence_all(11), Ok(Issued::Pending));
    while heard.ends.len() < 4 {
        poll(&mut owner, &mut Heard::default());
        poll(&mut writer, &mut heard);
    }
    let last = &heard.ends[3];
    assert_eq!((last.context, last.result.clone()), (11, Ok(0)), "the quiet ones are silent");
    // The local region had zeros.
    assert_eq!(region.load(0), Ok(u64::from(b'x') + maximum as u64));
}

/// Neither a full ring to the owner nor one from it loses a question, an answer or a notification.
#[test]
fn full_rings_delay_operations_and_lose_nothing() {
    let [mut owner, mut writer] = endpoints([WayInPlace::Target; 2]);
    let region = in_place(&mut owner, 200_000, 0);
    let (to, key) = grant(&mut owner, &region, &mut writer);
    let back = owner.connect_within(writer.address(), PATIENCE).expect("there");
    let header = MessageHeader::tag(1);
    let fill = |by: &mut ShmEndpoint, peer| {
        let mut sent = 0;
        while by.send_short(peer, header, &[]).is_ok() {
            sent += 1;
        }
        sent
    };
    let (to_owner, to_writer) = (fill(&mut writer, to), fill(&mut owner, back));
    let notify = Notify::COMPLETER.and(Notify::REQUESTER);
    let bytes = vec![4; 200_000];
    let (source, target) = (Source::Bytes(&bytes[..]), Target::new(key, 0));
    let issued = writer.put(to, source, target, Operation::new(1).notify(notify));
    assert_eq!(issued, Ok(Issued::Pending));
    let (mut heard, mut theirs) = (Heard::default(), Heard::default());
    // The owner reads and answers, but its ring is full.
    for _ in 0..8 {
        poll(&mut owner, &mut theirs);
        // A wait sends what was stuck, too.
        writer.wait(Some(Duration::ZERO));
    }
    assert_eq!(theirs.tags.len(), to_owner);
    while heard.ends.is_empty() || theirs.sides.is_empty() {
        poll(&mut writer, &mut heard);
        poll(&mut owner, &mut theirs);
    }
    assert_eq!((heard.tags.len(), contents(&region) == bytes), (to_writer, true));
    poll(&mut writer, &mut heard);
    assert_eq!((heard.sides, theirs.sides), (vec![Side::Requester], vec![Side::Completer]));
}

fn question(number: u32, key: RemoteKey, offset: u64, bytes: u64) -> [u64; 8] {
    let place = Place::new(0).expect("there are four");
    let piece = Piece { target: Target::new(key, offset), length: bytes, start: 0, bytes };
    Question { number, verb: Verb::Write(place), piece }.encode()
}

#[test]
fn a_peer_that_breaks_the_rules_of_packets_is_given_up() {
    type Breach = fn(&mut ShmEndpoint, Peer, RemoteKey);
    let ask = |by: &mut ShmEndpoint, to: Peer, words: &[u64; 8]| {
        let own = by.address().vpid.0;
        by.peers.find(to).expect("alive").outlet().emit_words(own, 0, QUESTION_FLAGS, words, false)
    };
    fn answer(by: &mut ShmEndpoint, to: Peer, number: u32) {
        let own = by.address().vpid.0;
        let words = Answer { number, outcome: Outcome::Done(0) }.encode();
        let sent = by.peers.find(to).expect("alive").outlet().emit_words(
            own,
            0,
            ANSWER_FLAGS,
            &words,
            false,
        );
        assert!(sent);
    }
    let breaches: [Breach; 3] = [
        // Nobody asked.
        |peer, to, _| answer(peer, to, 1),
        |peer, to, _| answer(peer, to, 0),
        // No such verb.
        |peer, to, key| {
            let mut words = question(1, key, 0, 1);
            words[0] |= 0xff << 32;
            let own = peer.address().vpid.0;
            let outlet = &mut peer.peers.find(to).expect("alive");
            assert!(outlet.outlet().emit_words(own, 0, QUESTION_FLAGS, &words, false));
        },
    ];
    for breach in breaches {
        let [mut owner, mut peer] = endpoints([WayInPlace::Target; 2]);
        let region = in_place(&mut owner, 100, 0);
        let (to, key) = grant(&mut owner, &region, &mut peer);
        breach(&mut peer, to, key);
        let mut heard = Heard::default();
        poll(&mut owner, &mut heard);
        poll(&mut owner, &mut heard);
        assert_eq!(heard.downs, [DownReason::Misbehaved]);
    }
    // One that asks on and takes no answers: the owner keeps no more than it may be owed.
    let [mut owner, mut peer] = endpoints([WayInPlace::Target; 2]);
    let region = in_place(&mut owner, 100, 0);
    let (to, key) = grant(&mut owner, &region, &mut peer);
    let mut heard = Heard::default();
    let mut asked = 0;
    while heard.downs.is_empty() {
        asked += u32::from(ask(&mut peer, to, &question(1, key, 0, 1)));
        poll(&mut owner, &mut heard);
        assert!(asked < 100, "answers are owed without bounds");
    }
    assert_eq!(heard.downs, [DownReason::Misbehaved]);
}

#[test]
fn questions_reach_what_their_key_allows_this_peer_and_nothing_else() {
    let [mut owner, mut peer, mut other] = endpoints([WayInPlace::Target; 3]);
    let region = in_place(&mut owner, 4096, 0);
    let to = peer.connect_within(owner.address(), PATIENCE).expect("there");
    let at = other.connect_within(owner.address(), PATIENCE).expect("there");
    let friend = owner.connect_within(other.address(), PATIENCE).expect("there");
    let mut key_for = |range, audience, access| {
        owner.grant_within(range, audience, access, PATIENCE).expect("a grant")
    };
    let some = LocalRange::new(&region, 100, 50);
    let open = key_for(some, Audience::Partition, Access::WRITE);
    let reading = key_for(some, Audience::Partition, Access::READ);
    let private = key_for(some, Audience::Peer(friend), Access::WRITE);
    let void = key_for(some, Audience::Partition, Access::WRITE);
    owner.revoke_within(void, PATIENCE).expect("it is in force");
    // Straight into the ring, as a library of somebody else could.
    let mut outcome = |by: &mut ShmEndpoint, to: Peer, words: [u64; 8]| {
        let own = by.address().vpid.0;
        let peer = by.peers.find(to).expect("alive");
        let (places, start) = peer.pair.own_place(Place::new(0).expect("there are four"));
        places.write(start, &[7; 64], weft_memory::CopyMode::Plain);
        assert!(peer.outlet().emit_words(own, 0, QUESTION_FLAGS, &words, false));
        poll(&mut owner, &mut Heard::default());
        let peer = by.peers.find(to).expect("alive");
        let ring = peer.pair.incoming();
        let status = ring.peek(&peer.receive).expect("sane").expect("an answer");
        let answer = super::packet::decode(status, &ring.slot(peer.receive.messages));
        ring.advance(&mut peer.receive, true);
        match answer {
            Some(super::packet::Packet::Answer(Answer { outcome, .. })) => outcome,
            other => panic!("{other:?}"),
        }
    };
    for (key, offset, bytes, expected) in [
        (open, 50, 1, Outcome::OutOfBounds(50)),
        (open, 0, 51, Outcome::OutOfBounds(50)),
        (open, u64::MAX - 99, 8, Outcome::OutOfBounds(50)),
        (open, u64::MAX, 2, Outcome::OutOfBounds(50)),
        (reading, 0, 1, Outcome::Denied),
        (private, 0, 1, Outcome::InvalidKey),
        (void, 0, 1, Outcome::InvalidKey),
        (RemoteKey(open.0 ^ 1), 0, 1, Outcome::InvalidKey),
        (RemoteKey(open.0 ^ 1 << 48), 0, 1, Outcome::InvalidKey),
    ] {
        assert_eq!(outcome(&mut peer, to, question(1, key, offset, bytes)), expected, "{offset}");
    }
    assert_eq!(contents(&region), vec![0; 4096]);
    assert_eq!(outcome(&mut other, at, question(1, private, 0, 2)), Outcome::Done(0));
    assert_eq!(outcome(&mut peer, to, question(1, open, 48, 2)), Outcome::Done(0));
    let bytes = contents(&region);
    let written = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0).map(|(at, _)| at);
    assert_eq!(written.collect::<Vec<_>>(), [100, 101, 148, 149]);
}

#[test]
fn the_end_of_an_endpoint_is_that_of_its_keys_to_memory_in_place() {
    let [mut owner, mut writer] = endpoints([WayInPlace::Kernel; 2]);
    let region = in_place(&mut owner, 64, 0);
    let (to, key) = grant(&mut owner, &region, &mut writer);
    let _ = put(&mut writer, to, Target::new(key, 0), b"before").expect("allowed");
    let owner = Rc::new(RefCell::new(Some(owner)));
    let closer = Rc::clone(&owner);
    let seen = region.clone();
    once_at(Door::Behind, move || {
        // The writer is inside: the end waits for it as long as a revocation would.
        let owner = closer.borrow_mut().take();
        if let Some(mut owner) = owner {
            owner.wait_for_writers(Duration::ZERO);
            drop(owner);
        }
        assert_eq!(contents(&seen)[..6], *b"behind");
    });
    let cut = put(&mut writer, to, Target::new(key, 0), b"behind");
    assert_eq!(cut, Err(OperationError::InvalidKey));
    assert_eq!(put(&mut writer, to, Target::new(key, 0), b"x"), Err(OperationError::PeerDown));
    drop(owner);
}
