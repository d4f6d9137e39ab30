//! Cases: a transport's limits are at least Extoll's, and hold.

use weft_fabric::{
    Access, Capabilities, ConnectError, Endpoint, EndpointLimits, EndpointOptions, GrantError,
    Group, LocalRange, MessageHeader, Notify, OpenError, Operation, OperationError, Region,
    RegisterError, SendError, Source, Target, TrafficClass, Value,
};

use crate::{Bench, Rig, Seen, pattern};

/// Adds an endpoint with these limits, and returns its number.
fn limited<B: Bench>(rig: &mut Rig<B>, limits: EndpointLimits) -> usize {
    let options = EndpointOptions { limits, ..EndpointOptions::default() };
    let opened = rig.bench.open(&options).expect("every limit can be asked for");
    rig.add(opened)
}

/// No transport offers less than the Extoll NIC.
pub fn no_limit_is_below_extolls<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    let offered = rig.endpoint(0).capabilities();
    let least = Capabilities::extoll(offered.transport);
    assert!(offered.message_bytes_max >= least.message_bytes_max, "{offered:?}");
    assert!(offered.mtu_bytes >= least.mtu_bytes, "{offered:?}");
    assert!(offered.descriptor_bytes_max >= least.descriptor_bytes_max, "{offered:?}");
    assert!(offered.vpids >= least.vpids, "{offered:?}");
    assert!(offered.groups >= least.groups, "{offered:?}");
}

/// One endpoint can join every group at once. A message names the group by which it came.
pub fn an_endpoint_can_be_in_every_group<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let groups = rig.endpoint(0).capabilities().groups;
    let all: Vec<Group> = (0..groups).filter_map(Group::new).collect();
    assert_eq!(all.len(), usize::from(groups));
    for group in all.iter().filter(|group| **group != Group::BROADCAST) {
        assert_eq!(rig.join(1, *group), Ok(()));
    }
    for (tag, group) in (0..).zip(&all) {
        let header = MessageHeader::tag(tag);
        assert_eq!(rig.multicast(0, *group, header, &[b"to all"]), Ok(1));
    }
    rig.settle();
    let reached: Vec<_> = rig.take_messages(1).iter().map(|mail| mail.group).collect();
    assert_eq!(reached, all.into_iter().map(Some).collect::<Vec<_>>());
}

/// The transport splits an operation that is longer than a descriptor and no multiple of a packet.
pub fn more_than_a_descriptor_goes_in_one_call<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let limit = rig.endpoint(0).capabilities().descriptor_bytes_max;
    let length = limit + 4097;
    let (region, key) = rig.share(1, length, Access::READ | Access::WRITE);
    let bytes = pattern(11, usize::try_from(length).expect("some MiB"));
    let target = Target::new(key, 0);
    let put = rig.run(0, |endpoint, context| {
        endpoint.put(peer, Source::Bytes(&bytes), target, Operation::new(context))
    });
    assert!(put.is_ok(), "{put:?}");
    let mut found = vec![0; bytes.len()];
    region.read(0, &mut found).expect("inside");
    assert!(found == bytes, "the put changed the bytes");
    let into = rig.endpoint(0).register(length).expect("memory");
    let got = rig.run(0, |endpoint, context| {
        endpoint.get(peer, target, LocalRange::new(&into, 0, length), Operation::new(context))
    });
    assert!(got.is_ok(), "{got:?}");
    into.read(0, &mut found).expect("inside");
    assert!(found == bytes, "the get changed the bytes");
}

/// A mailbox takes as many messages of one sender as were asked for. Between two depths the smaller
/// one counts, whichever end connects.
pub fn a_mailbox_is_as_deep_as_was_asked_for<B: Bench>() {
    let asked = 64;
    for small_connects in [true, false] {
        let mut rig = Rig::<B>::new(1);
        let limits = EndpointLimits { mailbox_depth: Some(asked), ..EndpointLimits::default() };
        let small = limited(&mut rig, limits);
        assert_eq!(rig.endpoint(small).capabilities().mailbox_depth, asked);
        assert!(rig.endpoint(0).capabilities().mailbox_depth > asked, "the default is more");
        let ends = if small_connects { [(small, 0), (0, small)] } else { [(0, small), (small, 0)] };
        for (from, to) in ends {
            let peer = rig.connect(from, to);
            for round in 0..3 {
                let mut sent = 0;
                let refused = loop {
                    let header = MessageHeader::tag(u8::try_from(sent % 200).expect("small"));
                    match rig.endpoint(from).send_short(peer, header, &[]) {
                        Ok(()) => sent += 1,
                        Err(error) => break error,
                    }
                };
                assert_eq!((sent, refused), (asked, SendError::WouldBlock), "round {round}");
                let mail = rig.messages(to, asked);
                let tags = mail.iter().map(|mail| usize::from(mail.header.tag));
                assert!(tags.eq(0..asked), "round {round}");
                rig.take_messages(to);
                rig.until("room", |rig| rig.seen(from).contains(&Seen::Room(peer)));
                rig.settle();
                rig.take(from);
            }
        }
    }
}

/// As many operations are pending, or wait to be polled, as were asked for.
pub fn as_many_operations_wait_as_were_asked_for<B: Bench>() {
    for asked in [1, 5] {
        operations_wait::<B>(asked);
    }
}

fn operations_wait<B: Bench>(asked: usize) {
    let mut rig = Rig::<B>::new(1);
    let limits = EndpointLimits { operations: Some(asked), ..EndpointLimits::default() };
    let number = limited(&mut rig, limits);
    assert_eq!(rig.endpoint(number).capabilities().operations_max, asked);
    let peer = rig.connect(number, 0);
    let (_region, key) = rig.share(0, 64, Access::WRITE);
    let resolved = rig.run(number, |endpoint, context| endpoint.resolve(peer, key, context));
    assert_eq!(resolved, Ok(Value::Nothing));
    for round in 0..3 {
        let mut started = 0;
        let refused = loop {
            let operation = Operation::new(rig.context()).notify(Notify::REQUESTER);
            let (source, target) = (Source::Bytes(b"x"), Target::new(key, 0));
            match rig.endpoint(number).put(peer, source, target, operation) {
                Ok(_) => started += 1,
                Err(error) => break error,
            }
        };
        assert_eq!((started, refused), (asked, OperationError::WouldBlock), "round {round}");
        rig.settle();
    }
}

/// As many peers live as were asked for, whichever end connects.
pub fn an_endpoint_has_as_many_peers_as_it_asked_for<B: Bench>() {
    let mut rig = Rig::<B>::new(4);
    let limits = EndpointLimits { peers: Some(2), ..EndpointLimits::default() };
    let number = limited(&mut rig, limits);
    assert_eq!(rig.endpoint(number).capabilities().peers_max, 2);
    let first = rig.connect(number, 0);
    rig.connect(1, number);
    let (own, third, fourth) = (rig.address(number), rig.address(2), rig.address(3));
    let full = Err(ConnectError::Exhausted { maximum: 2 });
    assert_eq!(rig.try_connect(number, third), full);
    assert_eq!(rig.try_connect(2, own), full);
    assert_eq!(rig.try_connect(number, own), full, "with itself");
    assert_eq!(rig.connect(number, 0), first, "a peer that is there needs no room");
    assert_eq!(rig.endpoint(number).disconnect(first), Ok(()));
    rig.until("the end of a pair", |rig| !rig.downs(0).is_empty());
    rig.connect(number, 2);
    assert_eq!(rig.try_connect(number, fourth), full);
}

/// A message to a group reaches no member if the sender may not have so many peers. A member that
/// may have no more peers is left out.
pub fn a_group_minds_the_limits_of_peers<B: Bench>() {
    let mut rig = Rig::<B>::new(3);
    let to_all = |rig: &mut Rig<B>, from: usize| {
        rig.multicast(from, Group::BROADCAST, MessageHeader::tag(1), &[b"to all"])
    };
    let limits = |peers| EndpointLimits { peers: Some(peers), ..EndpointLimits::default() };
    let small = limited(&mut rig, limits(2));
    assert_eq!(to_all(&mut rig, small), Err(SendError::Exhausted { maximum: 2 }));
    rig.settle();
    assert!((0..3).all(|number| rig.take_messages(number).is_empty()), "nobody gets it");
    drop(rig.remove(small));
    rig.settle();
    let least = limited(&mut rig, limits(1));
    let other = rig.connect(least, 2);
    assert_eq!(to_all(&mut rig, 0), Ok(2), "the last one is full");
    rig.settle();
    assert!(rig.take_messages(least).is_empty());
    assert_eq!(rig.endpoint(least).disconnect(other), Ok(()));
    // Another host hears of that later.
    rig.until("it has room", |rig| to_all(rig, 0) == Ok(3));
    rig.settle();
    assert_eq!(rig.take_messages(least).len(), 1);
}

/// As many keys are in force as were asked for.
pub fn an_endpoint_has_as_many_keys_as_it_asked_for<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    let limits = EndpointLimits { keys: Some(3), ..EndpointLimits::default() };
    let number = limited(&mut rig, limits);
    assert_eq!(rig.endpoint(number).capabilities().keys_max, 3);
    let region = rig.endpoint(number).register(64).expect("memory is available");
    let keys: Vec<_> = (0..3).map(|_| rig.grant(number, &region, Access::READ)).collect();
    assert!(keys.iter().all(Result::is_ok), "{keys:?}");
    let full = Err(GrantError::Exhausted { maximum: 3 });
    assert_eq!(rig.grant(number, &region, Access::READ), full);
    let key = keys[1].clone().expect("granted");
    assert!(rig.revoke(number, key).is_ok());
    assert!(rig.grant(number, &region, Access::READ).is_ok());
    assert_eq!(rig.grant(number, &region, Access::READ), full);
}

/// As many regions are registered as were asked for.
pub fn an_endpoint_has_as_many_regions_as_it_asked_for<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    let limits = EndpointLimits { regions: Some(3), ..EndpointLimits::default() };
    let number = limited(&mut rig, limits);
    assert_eq!(rig.endpoint(number).capabilities().regions_max, 3);
    let register = |rig: &mut Rig<B>| rig.endpoint(number).register(64);
    let mut regions: Vec<_> =
        (0..3).map(|_| register(&mut rig).expect("memory is available")).collect();
    let full = RegisterError::Exhausted { maximum: 3 };
    assert_eq!(register(&mut rig).err(), Some(full.clone()));
    drop(regions.pop());
    regions.push(register(&mut rig).expect("a place is free"));
    assert_eq!(register(&mut rig).err(), Some(full));
}

/// A limit above what the transport can do becomes what it can do, and 0 becomes the least.
pub fn limits_end_where_the_transport_does<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    let of = |asked| EndpointLimits {
        mailbox_depth: asked,
        operations: asked,
        peers: asked,
        keys: asked,
        regions: asked,
    };
    let values = |capabilities: &Capabilities| {
        let Capabilities { mailbox_depth, operations_max, peers_max, .. } = *capabilities;
        [mailbox_depth, operations_max, peers_max, capabilities.keys_max, capabilities.regions_max]
    };
    let default = values(rig.endpoint(0).capabilities());
    let numbers = [None, Some(0), Some(usize::MAX)].map(|asked| limited(&mut rig, of(asked)));
    let [same, least, most] = numbers.map(|number| values(rig.endpoint(number).capabilities()));
    assert_eq!(same, default);
    for place in 0..default.len() {
        assert!(least[place] >= 1 && least[place] <= default[place], "{place}: {least:?}");
        assert!(most[place] >= default[place] && most[place] < usize::MAX, "{place}: {most:?}");
    }
    let peer = rig.connect(numbers[2], 0);
    rig.send(numbers[2], peer, MessageHeader::tag(1), &[b"works"]);
    assert_eq!(rig.messages(0, 1)[0].payload, b"works");
}

/// An endpoint says as which class it is treated. A transport that tells no classes apart treats
/// all as latency.
pub fn a_class_is_told_as_it_is_treated<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    assert_eq!(rig.endpoint(0).capabilities().class, TrafficClass::Latency);
    let options = EndpointOptions { class: TrafficClass::Bulk, ..EndpointOptions::default() };
    let opened = rig.bench.open(&options).expect("every class can be asked for");
    let got = opened.capabilities();
    let expected = if got.classes > 1 { TrafficClass::Bulk } else { TrafficClass::Latency };
    assert_eq!(got.class, expected);
    assert!(got.classes >= 1);
    let number = rig.add(opened);
    let peer = rig.connect(number, 0);
    rig.send(number, peer, MessageHeader::tag(1), &[b"bulk"]);
    assert_eq!(rig.messages(0, 1)[0].payload, b"bulk");
}

/// A rail that the transport does not have is refused by its name, and the error names those that
/// it has.
pub fn an_unknown_rail_is_refused<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    let Capabilities { transport, rails: known, .. } = rig.endpoint(0).capabilities().clone();
    let rail = "no such rail".to_owned();
    let refused = rig.bench.open(&on_rail(&rail)).err().expect("there is no such rail");
    let text = refused.to_string();
    assert!(!known.is_empty() && known.iter().all(|name| text.contains(name)), "{text}");
    assert_eq!(refused, OpenError::UnknownRail { transport, rail, known });
}

/// Every rail can be asked for, and endpoints on different ones reach each other. An endpoint that
/// asks for none is on the first.
pub fn each_rail_can_be_asked_for<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    let Capabilities { rails, rail, .. } = rig.endpoint(0).capabilities().clone();
    assert_eq!(rails.first(), Some(&rail));
    for rail in rails {
        let opened = rig.bench.open_apart(&on_rail(&rail)).expect("the transport named it");
        assert_eq!(opened.capabilities().rail, rail);
        let number = rig.add(opened);
        exchange(&mut rig, 0, number);
    }
}

/// An endpoint goes on when another rail is cut, and its messages and operations take none but its
/// own. A message that needs the rail waits until it is mended.
pub fn a_rail_that_is_cut_disturbs_no_other<B: Bench>() {
    let mut rig = Rig::<B>::new(0);
    let options = EndpointOptions::default();
    let first = rig.bench.open(&options).expect("a fresh fabric has room for endpoints");
    let rails = first.capabilities().rails.clone();
    rig.add(first);
    let [first, others @ ..] = rails.as_slice() else { panic!("there is a rail") };
    let far = rig.bench.open_apart(&options).expect("there is room");
    let far = rig.add(far);
    let pairs: Vec<_> = others
        .iter()
        .map(|rail| {
            let near = rig.bench.open(&on_rail(rail)).expect("the transport named it");
            let away = rig.bench.open_apart(&on_rail(rail)).expect("the transport named it");
            let numbers = (rig.add(near), rig.add(away));
            exchange(&mut rig, numbers.0, numbers.1);
            numbers
        })
        .collect();
    let cut = rig.connect(0, far);
    if !rig.bench.set_rail(first, false) {
        return;
    }
    rig.send(0, cut, MessageHeader::tag(9), &[b"waits"]);
    for (near, away) in pairs {
        exchange(&mut rig, near, away);
        exchange(&mut rig, away, near);
    }
    assert!(rig.take_messages(far).is_empty(), "the rail is cut");
    assert!(rig.bench.set_rail(first, true));
    assert_eq!(rig.messages(far, 1)[0].payload, b"waits");
}

fn on_rail(rail: &str) -> EndpointOptions {
    EndpointOptions { rail: Some(rail.to_owned()), ..EndpointOptions::default() }
}

/// A message and a put from one endpoint to another.
fn exchange<B: Bench>(rig: &mut Rig<B>, from: usize, to: usize) {
    let peer = rig.connect(from, to);
    rig.send(from, peer, MessageHeader::tag(1), &[b"hello"]);
    assert_eq!(rig.messages(to, 1)[0].payload, b"hello");
    let (region, key) = rig.share(to, 64, Access::WRITE);
    let put = rig.run(from, |endpoint, context| {
        let (source, target) = (Source::Bytes(&[7; 8]), Target::new(key, 0));
        endpoint.put(peer, source, target, Operation::new(context))
    });
    assert_eq!((put, region.load(0)), (Ok(Value::Nothing), Ok(u64::from_le_bytes([7; 8]))));
}
