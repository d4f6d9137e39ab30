//! Cases: disconnecting, connecting again, keys for a range or for one peer, resolving.

use weft_fabric::{
    Access, Audience, DownReason, Endpoint, EndpointOptions, GrantError, LocalRange, MessageHeader,
    Operation, OperationError, Peer, Region, SendError, Source, Target, Value,
};

use crate::{Bench, Rig};

/// Both ends are told of a disconnect, with its reason, and the handles of both are dead.
pub fn a_disconnected_peer_is_down_at_both_ends<B: Bench>() {
    let mut rig = Rig::<B>::new(3);
    let (there, back) = (rig.connect(0, 1), rig.connect(1, 0));
    let other = rig.connect(0, 2);
    assert_eq!(rig.endpoint(0).disconnect(there), Ok(()));
    rig.until("both reports", |rig| !rig.downs(0).is_empty() && !rig.downs(1).is_empty());
    for (number, peer) in [(0, there), (1, back)] {
        let downs = rig.downs(number).to_vec();
        assert_eq!(downs.len(), 1);
        assert_eq!((downs[0].peer, downs[0].reason), (peer, DownReason::Disconnected));
        let header = MessageHeader::tag(1);
        let sent = rig.endpoint(number).send_short(peer, header, &[]);
        assert_eq!(sent, Err(SendError::PeerDown));
    }
    assert_eq!(rig.endpoint(0).disconnect(there), Err(OperationError::PeerDown));
    rig.send(0, other, MessageHeader::tag(2), &[b"still here"]);
    assert_eq!(rig.messages(2, 1)[0].payload, b"still here");
}

/// Messages from before a disconnect arrive before its report.
pub fn last_words_arrive_before_a_disconnect<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    for number in 0..20 {
        rig.send(0, peer, MessageHeader::tag(number), &[]);
    }
    assert_eq!(rig.endpoint(0).disconnect(peer), Ok(()));
    rig.until("the report", |rig| !rig.downs(1).is_empty());
    let tags: Vec<u8> = rig.take_messages(1).iter().map(|mail| mail.header.tag).collect();
    assert_eq!(tags, (0..20).collect::<Vec<u8>>());
}

/// Operations that are pending on a peer end with a disconnect, before its report.
pub fn what_is_pending_ends_with_a_disconnect<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (_region, key) = rig.share(1, 1 << 20, Access::WRITE);
    let bytes = vec![1; 1 << 20];
    let mut started = Vec::new();
    for _ in 0..8 {
        let context = rig.context();
        let (source, target) = (Source::Bytes(&bytes[..]), Target::new(key, 0));
        let put = rig.endpoint(0).put(peer, source, target, Operation::new(context));
        started.push((context, put));
    }
    assert_eq!(rig.endpoint(0).disconnect(peer), Ok(()));
    rig.until("the report", |rig| !rig.downs(0).is_empty());
    for (context, put) in started {
        if put == Ok(weft_fabric::Issued::Pending) {
            let end = rig.take_completion(0, context).expect("it ended before the report");
            assert!(matches!(end, Ok(_) | Err(OperationError::PeerDown)), "{end:?}");
        } else {
            assert!(put.is_ok(), "{put:?}");
        }
    }
}

/// Either end may connect again, at once. It gets a new handle, and nothing of the old pair comes
/// through the new one.
pub fn a_pair_can_be_made_again<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let mut handles = vec![rig.connect(0, 1)];
    let (region, key) = rig.share(1, 64, Access::WRITE);
    for round in 0..10_u8 {
        let old = handles[handles.len() - 1];
        rig.send(0, old, MessageHeader::tag(100 + round), &[]);
        assert_eq!(rig.endpoint(0).disconnect(old), Ok(()));
        let new = rig.connect(0, 1);
        assert!(!handles.contains(&new), "{new:?} was used before");
        handles.push(new);
        rig.send(0, new, MessageHeader::tag(round), &[]);
        let mut heard = Vec::new();
        rig.until("a message by the new pair", |rig| {
            heard.extend(rig.take_messages(1));
            heard.iter().any(|mail| mail.header.tag == round)
        });
        let of = |tag: u8| heard.iter().find(|mail| mail.header.tag == tag).map(|mail| mail.peer);
        assert_ne!(of(100 + round), of(round), "the old pair has another handle");
        let answer = of(round).expect("it came");
        rig.send(1, answer, MessageHeader::tag(round), &[]);
        assert_eq!(rig.messages(0, 1)[0].peer, new);
        let target = Target::new(key, 0);
        let put = rig.run(0, |endpoint, context| {
            endpoint.put(new, Source::Bytes(&[round; 8]), target, Operation::new(context))
        });
        assert_eq!((put, region.load(0)), (Ok(Value::Nothing), Ok(u64::from_le_bytes([round; 8]))));
    }
    rig.settle();
    assert_eq!((rig.downs(0).len(), rig.downs(1).len()), (10, 10));
}

/// A handle that was never given out cannot be disconnected.
pub fn an_unknown_peer_cannot_be_disconnected<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    let nobody = Peer(u32::MAX);
    assert_eq!(rig.endpoint(0).disconnect(nobody), Err(OperationError::UnknownPeer));
}

/// A key of a range reaches that range alone, and its offsets count from the range's start.
pub fn a_key_of_a_range_reaches_that_range_alone<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let region = rig.endpoint(1).register(10_000).expect("memory is available");
    let range = LocalRange::new(&region, 1000, 64);
    let key = rig.grant_range(1, range, Audience::Partition, Access::all()).expect("a grant");
    let put = |rig: &mut Rig<B>, offset, length: usize| {
        let bytes = vec![7; length];
        rig.run(0, |endpoint, context| {
            let target = Target::new(key, offset);
            endpoint.put(peer, Source::Bytes(&bytes), target, Operation::new(context))
        })
    };
    assert_eq!(put(&mut rig, 0, 64), Ok(Value::Nothing));
    for (offset, length) in [(64, 1), (63, 2), (0, 65), (u64::MAX - 999, 8)] {
        let bytes = u64::try_from(length).expect("small");
        let refused = OperationError::OutOfBounds { offset, length: bytes, region: 64 };
        assert_eq!(put(&mut rig, offset, length), Err(refused));
    }
    let mut all = vec![0; 10_000];
    region.read(0, &mut all).expect("inside");
    let written = all.iter().enumerate().filter(|(_, byte)| **byte != 0).map(|(place, _)| place);
    assert_eq!(written.collect::<Vec<_>>(), (1000..1064).collect::<Vec<_>>());
    let add = weft_fabric::Atomic::fetch_add(1);
    let added = rig.run(0, |endpoint, context| {
        endpoint.atomic(peer, Target::new(key, 8), add, Operation::new(context))
    });
    assert_eq!(added, Ok(Value::Word(u64::from_le_bytes([7; 8]))));
    assert_eq!(region.load(1008), Ok(u64::from_le_bytes([7; 8]) + 1));
    if let Some(window) = rig.window(0, peer, key) {
        assert_eq!(weft_fabric::Window::length(&window), 64);
    }
    // A range may start anywhere, but a word must be aligned in the memory.
    let odd = LocalRange::new(&region, 1001, 64);
    let odd = rig.grant_range(1, odd, Audience::Partition, Access::all()).expect("a grant");
    for (offset, expected) in [
        (0, Err(OperationError::Misaligned { offset: 0, alignment: 8 })),
        (7, Ok(Value::Word(u64::from_le_bytes([7; 8]) + 1))),
    ] {
        let read = rig.run(0, |endpoint, context| {
            endpoint.atomic(peer, Target::new(odd, offset), add, Operation::new(context))
        });
        assert_eq!(read, expected);
    }
    let outside = LocalRange::new(&region, 9_999, 2);
    let refused = rig.grant_range(1, outside, Audience::Partition, Access::READ);
    assert!(matches!(refused, Err(GrantError::Local(_))), "{refused:?}");
}

/// A key of one peer serves that peer and nobody else.
pub fn a_key_of_one_peer_serves_nobody_else<B: Bench>() {
    let mut rig = Rig::<B>::new(3);
    let (first, second) = (rig.connect(0, 2), rig.connect(1, 2));
    let friend = rig.connect(2, 0);
    let region = rig.endpoint(2).register(64).expect("memory is available");
    let whole = LocalRange::whole(&region);
    let key = rig.grant_range(2, whole, Audience::Peer(friend), Access::all()).expect("a grant");
    let mut put = |number, peer, byte: u8| {
        rig.run(number, |endpoint, context| {
            let target = Target::new(key, 0);
            endpoint.put(peer, Source::Bytes(&[byte; 8]), target, Operation::new(context))
        })
    };
    assert_eq!(put(1, second, 2), Err(OperationError::InvalidKey));
    assert_eq!(put(0, first, 1), Ok(Value::Nothing));
    assert_eq!(put(1, second, 3), Err(OperationError::InvalidKey));
    assert_eq!(region.load(0), Ok(u64::from_le_bytes([1; 8])));
}

/// A key of one peer does not serve the endpoint that has the peer's address next.
pub fn a_key_of_one_peer_does_not_serve_its_successor<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    let first = rig.bench.open(&EndpointOptions::default()).expect("room");
    let number = rig.add(first);
    let vpid = rig.address(number).vpid;
    let peer = rig.connect(0, number);
    let region = rig.endpoint(0).register(64).expect("memory is available");
    let whole = LocalRange::whole(&region);
    let key = rig.grant_range(0, whole, Audience::Peer(peer), Access::all()).expect("a grant");
    let former = rig.remove(number);
    drop(former);
    rig.until("the end of the first", |rig| !rig.downs(0).is_empty());
    let late = rig.grant_range(0, whole, Audience::Peer(peer), Access::all());
    assert_eq!(late, Err(GrantError::Peer));
    let options = EndpointOptions { vpid, ..EndpointOptions::default() };
    let next = rig.bench.open(&options).expect("the address is free");
    let next = rig.add(next);
    let to = rig.connect(next, 0);
    let put = rig.run(next, |endpoint, context| {
        let target = Target::new(key, 0);
        endpoint.put(to, Source::Bytes(&[1; 8]), target, Operation::new(context))
    });
    assert_eq!((put, region.load(0)), (Err(OperationError::InvalidKey), Ok(0)));
}

/// A resolved key serves at once; a key that is not valid is found out.
pub fn a_key_can_be_resolved_before_its_use<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (_region, key) = rig.share(1, 64, Access::WRITE);
    for _ in 0..2 {
        let resolved = rig.run(0, |endpoint, context| endpoint.resolve(peer, key, context));
        assert_eq!(resolved, Ok(Value::Nothing));
    }
    let context = rig.context();
    let put = rig.endpoint(0).put(
        peer,
        Source::Bytes(b"x"),
        Target::new(key, 0),
        Operation::new(context),
    );
    assert_ne!(put, Err(OperationError::WouldBlock));
    assert_eq!(rig.finish(0, context, put), Ok(Value::Nothing));
    let unknown = rig.run(0, |endpoint, context| endpoint.resolve(Peer(u32::MAX), key, context));
    assert_eq!(unknown, Err(OperationError::UnknownPeer));
}
