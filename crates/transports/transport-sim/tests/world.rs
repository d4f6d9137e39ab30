//! Properties of the simulator only: repeated runs, faults at chosen times, virtual time.

use std::time::Duration;

use weft_fabric::{
    Access, Audience, Blocking, Completion, ConnectError, Endpoint, EndpointOptions, Event, Issued,
    LocalRange, MessageHeader, NodeId, Notify, Operation, OperationError, PATIENCE, Peer, Region,
    RemoteKey, SendError, Source, Target, Transport, Value, Waited, Window,
};
use weft_transport_sim::{Kind, Link, Settings, SimEndpoint, SimWorld};

const EVEN: Link = Link { latency_ns: 1_000, jitter_ns: 0, bits_per_second: 8_000_000_000 };

fn even() -> Settings {
    Settings { link: EVEN, ..Settings::seeded(1) }
}

fn open(world: &SimWorld, node: u32) -> SimEndpoint {
    world.transport(NodeId(node), 1000).open(&EndpointOptions::default()).expect("a VPID is free")
}

fn two(settings: Settings) -> (SimWorld, SimEndpoint, SimEndpoint, Peer) {
    let world = SimWorld::new(settings);
    let (mut left, right) = (open(&world, 0), open(&world, 1));
    let peer = left.connect_within(right.address(), PATIENCE).expect("the target is open");
    (world, left, right, peer)
}

/// A region of an endpoint, and the key by which its partition uses it.
fn shared(owner: &mut SimEndpoint, bytes: u64) -> (<SimEndpoint as Endpoint>::Region, RemoteKey) {
    let region = owner.register(bytes).expect("memory is available");
    let whole = LocalRange::whole(&region);
    let key = owner.grant_within(whole, Audience::Partition, Access::all(), PATIENCE);
    (region, key.expect("a sound grant"))
}

fn shown(value: Value) -> String {
    match value {
        Value::Nothing => "0".into(),
        Value::Word(word) => word.to_string(),
        other => format!("{other:?}"),
    }
}

/// The events of an endpoint as text, in order.
fn poll(endpoint: &mut SimEndpoint) -> Vec<String> {
    let mut events = Vec::new();
    endpoint.poll(100_000, &mut |event| {
        events.push(match event {
            Event::Message(message) => format!("message {}", message.header.tag),
            Event::Notification(told) => format!("notification {}", told.immediate),
            Event::Completion(Completion { context, result }) => {
                format!("completion {context} {}", result.map_or_else(|e| e.to_string(), shown))
            }
            Event::PeerDown { .. } => "down".into(),
            Event::Room { .. } => "room".into(),
            Event::GroupRoom { group } => format!("room in group {}", group.number()),
        });
    });
    events
}

/// A run with messages, puts, a cut and a death.
fn busy_run(seed: u64) -> (u64, Vec<String>) {
    let settings = Settings { mailbox_depth: 8, ..Settings::seeded(seed) };
    let world = SimWorld::new(settings);
    let mut ends: Vec<SimEndpoint> = (0..6).map(|number| open(&world, number % 3)).collect();
    let target = ends[0].register(1 << 16).expect("memory is available");
    let key = ends[0]
        .grant_within(LocalRange::whole(&target), Audience::Partition, Access::all(), PATIENCE)
        .expect("a sound grant");
    let address = ends[0].address();
    let mut log = Vec::new();
    for round in 0..200u64 {
        for end in &mut ends[1..] {
            let Ok(peer) = end.connect_within(address, PATIENCE) else { continue };
            let tag = u8::try_from(round % 256).expect("small");
            let _ = end.send_short(peer, MessageHeader::tag(tag), &[&round.to_le_bytes()]);
            let notify = Notify::COMPLETER.immediate(round);
            let bytes = [tag; 700];
            let _ = end.put(
                peer,
                Source::Bytes(&bytes),
                Target::new(key, round),
                Operation::new(round).notify(notify),
            );
        }
        match round {
            50 => world.cut(NodeId(0), NodeId(1)),
            90 => world.heal(NodeId(0), NodeId(1)),
            120 => drop(world.kill(ends[2].address())),
            _ => {}
        }
        world.advance(700);
        ends.iter_mut().for_each(|end| log.extend(poll(end)));
    }
    world.run(100_000);
    ends.iter_mut().for_each(|end| log.extend(poll(end)));
    (world.digest(), log)
}

#[test]
fn a_dead_endpoint_connects_to_nobody() {
    let (world, mut left, right, _) = two(even());
    assert!(world.kill(left.address()));
    let to = right.address();
    assert_eq!(left.connect_within(to, PATIENCE), Err(ConnectError::NotFound(to)));
}

#[test]
fn a_notification_from_before_a_cut_may_be_taken_after_it() {
    let (world, mut left, mut right, peer) =
        two(Settings { cut_down_after_ns: Some(1_000_000), ..even() });
    let region = right.register(8).expect("memory");
    let key = right
        .grant_within(LocalRange::whole(&region), Audience::Partition, Access::WRITE, PATIENCE)
        .expect("a grant");
    let (source, target) = (Source::Bytes(b"8 bytes!"), Target::new(key, 0));
    let put = left.put(peer, source, target, Operation::new(1).notify(Notify::COMPLETER));
    assert_eq!(put, Ok(weft_fabric::Issued::Pending));
    // The put arrives after 1 us and some; its answer is still on the way.
    world.advance(1_500);
    world.cut(NodeId(0), NodeId(1));
    world.advance(2_000_000);
    world.heal(NodeId(0), NodeId(1));
    let told = poll(&mut right);
    assert!(told.contains(&"notification 0".to_owned()), "{told:?}");
    world.advance(2_000_000);
    let told = poll(&mut left);
    assert!(told.contains(&"down".to_owned()), "{told:?}");
}

#[test]
fn nodes_have_numbers_beyond_16_bits() {
    let world = SimWorld::new(Settings::seeded(1));
    let numbers = [0xfffe, 0xffff, 0x1_0000, NodeId::MAX.0];
    let mut ends: Vec<_> = numbers.iter().map(|number| open(&world, *number)).collect();
    let [first, others @ ..] = ends.as_mut_slice() else { panic!("there are four") };
    for other in others {
        let peer = first.connect_within(other.address(), PATIENCE).expect("it is there");
        first.send_short(peer, MessageHeader::tag(1), &[b"hello"]).expect("there is room");
        world.advance(2_000_000);
        let mut heard = Vec::new();
        other.poll(8, &mut |event| {
            if let Event::Message(message) = event {
                heard.push((message.source, message.payload.to_vec()));
            }
        });
        assert_eq!(heard, [(first.address(), b"hello".to_vec())], "{}", other.address());
    }
}

#[test]
fn the_same_seed_gives_exactly_the_same_run() {
    assert_eq!(busy_run(7), busy_run(7));
    assert_ne!(busy_run(7).0, busy_run(8).0);
}

#[test]
fn a_message_takes_latency_and_bandwidth() {
    let (world, mut left, mut right, peer) = two(even());
    // 84 bytes and a header of 16 at one byte per nanosecond, twice over one link.
    for tag in 0..2 {
        left.send_short(peer, MessageHeader::tag(tag), &[&[0; 84]]).unwrap();
    }
    world.advance(1_099);
    assert!(poll(&mut right).is_empty());
    world.advance(1);
    assert_eq!(poll(&mut right), ["message 0"]);
    world.advance(99);
    assert!(poll(&mut right).is_empty());
    world.advance(1);
    assert_eq!(poll(&mut right), ["message 1"]);
}

#[test]
fn jitter_never_reorders_one_pair() {
    let link = Link { latency_ns: 10, jitter_ns: 100_000, ..Link::default() };
    let (world, mut left, mut right, peer) = two(Settings { link, ..Settings::seeded(5) });
    for tag in 0..200 {
        left.send_short(peer, MessageHeader::tag(tag), &[]).unwrap();
    }
    assert!(world.run(10_000));
    let expected: Vec<String> = (0..200).map(|tag| format!("message {tag}")).collect();
    assert_eq!(poll(&mut right), expected);
}

#[test]
fn a_key_revoked_while_the_put_flies_stops_it() {
    let (world, mut left, mut right, peer) = two(even());
    let (region, key) = shared(&mut right, 64);
    let put = |left: &mut SimEndpoint| {
        let source = Source::Bytes(&[1; 8]);
        left.put(peer, source, Target::new(key, 0), Operation::new(9).notify(Notify::COMPLETER))
            .map(drop)
            .unwrap();
    };
    put(&mut left);
    world.advance(900);
    right.revoke_within(key, PATIENCE).unwrap();
    assert!(world.run(100));
    let error = OperationError::InvalidKey.to_string();
    assert_eq!(poll(&mut left), [format!("completion 9 {error}")]);
    assert_eq!((region.load(0), poll(&mut right).len()), (Ok(0), 0));
}

#[test]
fn a_region_is_read_when_its_bytes_leave_and_bytes_at_the_call() {
    let (world, mut left, mut right, peer) = two(even());
    let (target, key) = shared(&mut right, 64);
    let local = left.register(64).unwrap();
    // The link is busy for some time, so that the put has to wait.
    left.send_short(peer, MessageHeader::tag(0), &[&[0; 100]]).unwrap();
    let source = Source::Region(LocalRange { region: &local, offset: 0, length: 8 });
    left.put(peer, source, Target::new(key, 0), Operation::new(1)).map(drop).unwrap();
    let mut bytes = [1; 8];
    left.put(peer, Source::Bytes(&bytes), Target::new(key, 8), Operation::new(2))
        .map(drop)
        .unwrap();
    bytes.fill(3);
    local.store(0, 2).unwrap();
    world.advance(150);
    local.store(0, 4).unwrap();
    assert!(world.run(100));
    assert_eq!((target.load(0), target.load(8)), (Ok(2), Ok(0x0101_0101_0101_0101)));
    assert_eq!(bytes, [3; 8]);
}

#[test]
fn a_put_longer_than_a_descriptor_is_split_and_completes_once() {
    let settings = Settings { descriptor_bytes_max: 1_000, ..even() };
    let (world, mut left, mut right, peer) = two(settings);
    let (region, key) = shared(&mut right, 5_000);
    let bytes: Vec<u8> = (0..4_321u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let notify = Notify::COMPLETER.immediate(5);
    left.put(peer, Source::Bytes(&bytes), Target::new(key, 7), Operation::new(1).notify(notify))
        .map(drop)
        .unwrap();
    assert!(world.run(100));
    assert_eq!(poll(&mut left), ["completion 1 0"]);
    assert_eq!(poll(&mut right), ["notification 5"]);
    let mut found = vec![0; 4_321];
    region.read(7, &mut found).unwrap();
    assert_eq!(found, bytes);
    let departures = world.trace().iter().filter(|entry| entry.kind == Kind::Depart).count();
    assert_eq!(departures, 5);
}

#[test]
fn pending_operations_of_a_killed_peer_end_once_before_the_report() {
    let (world, mut left, mut right, peer) = two(even());
    let (_region, key) = shared(&mut right, 1 << 20);
    for context in 0..10 {
        let source = Source::Bytes(&[1; 1000]);
        left.put(peer, source, Target::new(key, 0), Operation::new(context)).map(drop).unwrap();
    }
    world.advance(5_500);
    assert!(world.kill(right.address()) && !world.kill(right.address()));
    assert!(world.run(1_000));
    let events = poll(&mut left);
    assert_eq!(events.len(), 11);
    assert_eq!(events[10], "down");
    for (context, event) in events[..10].iter().enumerate() {
        assert!(event.starts_with(&format!("completion {context} ")), "{event}");
    }
    assert!(events[..10].iter().any(|event| event.ends_with(" 0")), "some operations succeeded");
    assert!(events[..10].iter().any(|event| event.ends_with("down")), "some operations failed");
    assert_eq!(left.send_short(peer, MessageHeader::default(), &[]), Err(SendError::PeerDown));
    assert!(right.poll(10, &mut |_| {}) == 0);
}

#[test]
fn a_message_does_not_leave_behind_puts_that_died_with_its_endpoint() {
    // 5,000 bytes take the link for 5 us, and what follows waits for its turn.
    let (world, mut left, mut right, peer) = two(even());
    let (_region, key) = shared(&mut right, 1 << 20);
    left.send_short(peer, MessageHeader::tag(1), &[]).unwrap();
    for context in 0..2 {
        let source = Source::Bytes(&[1; 5_000]);
        left.put(peer, source, Target::new(key, 0), Operation::new(context)).map(drop).unwrap();
    }
    left.send_short(peer, MessageHeader::tag(2), &[]).unwrap();
    world.advance(2_000);
    assert!(world.kill(left.address()));
    assert!(world.run(1_000));
    assert_eq!(poll(&mut right), ["message 1", "down"], "a message overtook what was put before");
}

#[test]
fn killing_a_node_kills_its_endpoints() {
    let world = SimWorld::new(even());
    let mut left = open(&world, 0);
    let others = [open(&world, 1), open(&world, 1), open(&world, 2)];
    for other in &others {
        left.connect_within(other.address(), PATIENCE).unwrap();
    }
    assert_eq!(world.kill_node(NodeId(1)), 2);
    assert!(world.run(100));
    assert_eq!(poll(&mut left), ["down", "down"]);
}

#[test]
fn a_short_cut_only_delays() {
    let (world, mut left, mut right, peer) = two(even());
    world.cut(NodeId(0), NodeId(1));
    for tag in 0..5 {
        left.send_short(peer, MessageHeader::tag(tag), &[]).unwrap();
    }
    world.advance(1_000_000);
    assert!(poll(&mut right).is_empty());
    world.heal(NodeId(1), NodeId(0));
    assert!(world.run(100));
    assert_eq!(poll(&mut right), (0..5).map(|tag| format!("message {tag}")).collect::<Vec<_>>());
    assert!(poll(&mut left).is_empty());
}

#[test]
fn what_waited_at_a_cut_comes_before_what_was_sent_later() {
    let (world, mut left, mut right, peer) = two(even());
    let send = |left: &mut SimEndpoint, tag| {
        left.send_short(peer, MessageHeader::tag(tag), &[]).expect("there is room");
    };
    send(&mut left, 1);
    world.cut(NodeId(0), NodeId(1));
    // The second is still on its way when the cut is mended, at which the first waits.
    world.advance(800);
    send(&mut left, 2);
    world.advance(500);
    world.heal(NodeId(0), NodeId(1));
    world.advance(5_000);
    assert_eq!(poll(&mut right), ["message 1", "message 2"]);
}

#[test]
fn a_message_that_waited_at_a_cut_comes_before_the_end_of_its_sender() {
    let (world, mut left, mut right, peer) = two(even());
    world.cut(NodeId(0), NodeId(1));
    left.send_short(peer, MessageHeader::tag(1), &[]).expect("there is room");
    world.advance(5_000);
    assert!(world.kill(left.address()));
    world.advance(500);
    world.heal(NodeId(0), NodeId(1));
    assert!(world.run(100));
    assert_eq!(poll(&mut right), ["message 1", "down"]);
}

#[test]
fn a_long_cut_reports_both_sides_down_and_drops_packets() {
    let settings = Settings { cut_down_after_ns: Some(50_000), ..even() };
    let (world, mut left, mut right, peer) = two(settings);
    world.cut(NodeId(0), NodeId(1));
    left.send_short(peer, MessageHeader::tag(1), &[]).unwrap();
    left.fence(peer, 4).map(drop).unwrap();
    let began = world.now();
    let has_report = |end: &SimEndpoint, of| world.has_report_of(end.address(), NodeId(of));
    world.advance(49_999);
    assert!(poll(&mut left).is_empty());
    assert_eq!(world.parted_ns(NodeId(1), NodeId(0)), None);
    assert!(!has_report(&left, 1));
    world.advance(30_000);
    // The programs look later than they are told.
    assert_eq!(world.parted_ns(NodeId(1), NodeId(0)), Some(began + 50_000));
    assert!(has_report(&left, 1) && !has_report(&left, 0) && has_report(&right, 0));
    let error = OperationError::PeerDown.to_string();
    assert_eq!(poll(&mut left), [format!("completion 4 {error}"), "down".into()]);
    assert_eq!(poll(&mut right), ["down"]);
    assert!(!has_report(&left, 1) && !has_report(&right, 0));
    let address = right.address();
    assert_eq!(left.connect_within(address, PATIENCE), Err(ConnectError::NotFound(address)));
    world.heal(NodeId(0), NodeId(1));
    assert!(world.run(100));
    assert!(poll(&mut right).is_empty(), "nothing arrives after the report");
    let again = left.connect_within(address, PATIENCE).unwrap();
    assert_ne!(again, peer);
    left.send_short(again, MessageHeader::tag(2), &[]).unwrap();
    assert!(world.run(100));
    assert_eq!(poll(&mut right), ["message 2"]);
}

#[test]
fn a_paused_receiver_fills_its_mailbox_and_resuming_makes_room() {
    let (world, mut left, mut right, peer) = two(Settings { mailbox_depth: 3, ..even() });
    assert!(world.pause(right.address()));
    for tag in 0..3 {
        left.send_short(peer, MessageHeader::tag(tag), &[]).unwrap();
    }
    let refused = left.send_short(peer, MessageHeader::tag(3), &[]);
    assert_eq!(refused, Err(SendError::WouldBlock));
    world.advance(10_000_000);
    assert!(poll(&mut right).is_empty() && poll(&mut left).is_empty());
    assert!(world.resume(right.address()));
    assert_eq!(poll(&mut right), ["message 0", "message 1", "message 2"]);
    world.advance(10_000);
    assert_eq!(poll(&mut left), ["room"]);
    assert_eq!(left.send_short(peer, MessageHeader::tag(3), &[]), Ok(()));
}

#[test]
fn a_packet_that_waited_at_a_cut_is_not_overtaken_by_one_still_on_its_way() {
    let (world, mut left, mut right, peer) = two(even());
    left.send_short(peer, MessageHeader::tag(1), &[]).unwrap();
    world.advance(500);
    world.cut(left.address().node, right.address().node);
    world.advance(400);
    left.send_short(peer, MessageHeader::tag(2), &[]).unwrap();
    // The first has arrived at the cut by now, and the second is before it.
    world.advance(300);
    assert!(poll(&mut right).is_empty());
    world.heal(left.address().node, right.address().node);
    assert!(world.run(100));
    let mut tags = Vec::new();
    right.poll(8, &mut |event| {
        if let Event::Message(message) = event {
            tags.push(message.header.tag);
        }
    });
    assert_eq!(tags, [1, 2]);
}

#[test]
fn a_slow_receiver_takes_a_message_each_interval() {
    let (world, mut left, mut right, peer) = two(even());
    assert!(world.slow_down(right.address(), 5_000));
    for tag in 0..4 {
        left.send_short(peer, MessageHeader::tag(tag), &[]).unwrap();
    }
    let mut times = Vec::new();
    while times.len() < 4 {
        assert_eq!(right.wait(Some(Duration::from_secs(1))), Waited::Ready);
        assert_eq!(poll(&mut right).len(), 1);
        times.push(world.now());
    }
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] == 5_000), "{times:?}");
}

#[test]
fn a_wait_lets_time_pass_only_until_its_event() {
    let (world, mut left, mut right, peer) = two(even());
    assert_eq!(right.wait(Some(Duration::from_nanos(500))), Waited::TimedOut);
    assert_eq!(world.now(), 500);
    left.send_short(peer, MessageHeader::tag(1), &[]).unwrap();
    assert_eq!(right.wait(Some(Duration::from_secs(1))), Waited::Ready);
    assert_eq!(world.now(), 500 + 1_016);
    poll(&mut right);
    assert!(world.run(100));
    assert_eq!(right.wait(None), Waited::TimedOut, "nothing can come any more");
}

#[test]
fn a_window_access_takes_time_and_ends_with_the_peer() {
    let (world, mut left, mut right, peer) = two(even());
    let (region, key) = shared(&mut right, 64);
    let window = left.window(peer, key).unwrap();
    window.store(8, &7u64.to_le_bytes()).unwrap();
    assert!(world.now() >= 2_000, "there and back");
    assert_eq!(region.load(8), Ok(7));
    world.kill(right.address());
    assert_eq!(window.load(8, &mut [0; 8]), Err(OperationError::PeerDown));
    drop(left);
    assert_eq!(window.store(8, &[0; 8]), Err(OperationError::PeerDown));
}

#[test]
fn a_hundred_thousand_operations_are_pending_and_not_one_more() {
    const MANY: usize = 100_000;
    let settings = Settings { operations_max: MANY, trace_entries_max: 16, ..even() };
    let (world, mut left, mut right, peer) = two(settings);
    let (region, key) = shared(&mut right, 64);
    let add = weft_fabric::Atomic::fetch_add(1);
    for context in 0..MANY as u64 {
        let issued = left.atomic(peer, Target::new(key, 0), add, Operation::new(context));
        assert_eq!(issued, Ok(Issued::Pending));
    }
    let one_more = left.atomic(peer, Target::new(key, 0), add, Operation::new(0));
    assert_eq!(one_more, Err(OperationError::WouldBlock));
    // Some are given up while they wait for the link.
    let mut given_up = 0;
    for context in (1..MANY as u64).step_by(1000) {
        left.cancel(peer, context).unwrap();
        given_up += 1;
    }
    while world.step() {}
    let mut ended = vec![false; MANY];
    let mut cancelled = 0;
    while ended.iter().any(|ended| !ended) {
        let handed = left.poll(1000, &mut |event| {
            if let Event::Completion(Completion { context, result }) = event {
                let place = usize::try_from(context).unwrap();
                assert!(!std::mem::replace(&mut ended[place], true), "{context} ended twice");
                cancelled += u64::from(result == Err(OperationError::Cancelled));
            }
        });
        assert!(handed > 0, "some never ended");
    }
    assert_eq!((cancelled, region.load(0)), (given_up, Ok(MANY as u64 - given_up)));
}

#[test]
fn control_calls_and_their_ends_are_bounded() {
    let settings = Settings { control_ns: 1_000, ..even() };
    let world = SimWorld::new(settings);
    let (mut left, right) = (open(&world, 0), open(&world, 1));
    let to = right.address();
    let fill = |left: &mut SimEndpoint| {
        let mut started = 0;
        while left.connect(to, started).is_ok() {
            started += 1;
            assert!(started < 1_000_000, "there is no limit");
        }
        started
    };
    let most = fill(&mut left);
    assert!(most > 1_000);
    let refused = left.connect(to, 0);
    let Err(ConnectError::Broker { reason }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("poll first"), "{reason}");
    assert!(left.join(weft_fabric::Group::new(1).unwrap(), 0).is_err());
    // Their ends count until they are polled.
    world.advance(2_000);
    assert!(left.connect(to, 0).is_err());
    assert_eq!(poll(&mut left).len() as u64, most);
    assert_eq!(fill(&mut left), most);
    // One that is given up is over, and so is one whose end was taken.
    assert_eq!(left.finish(0, Duration::ZERO), None);
    assert_eq!(left.connect(to, 1 << 32), Ok(Issued::Pending));
    assert!(left.connect(to, 0).is_err());
    assert!(matches!(left.finish(1 << 32, Duration::from_secs(1)), Some(Ok(_))));
    assert_eq!(left.connect(to, 0), Ok(Issued::Pending));
    assert!(left.connect(to, 0).is_err());
}

#[test]
fn a_key_is_revoked_also_when_there_is_no_room_for_calls() {
    let settings = Settings { control_ns: 1_000, ..even() };
    let world = SimWorld::new(settings);
    let (mut left, right) = (open(&world, 0), open(&world, 1));
    let region = left.register(64).unwrap();
    let whole = LocalRange::whole(&region);
    let key = left.grant_within(whole, Audience::Partition, Access::READ, PATIENCE).unwrap();
    while left.connect(right.address(), 0).is_ok() {}
    assert_eq!(left.revoke(key, 1), Ok(Issued::Pending));
}

/// A receiver that does not look holds no more than its mailbox, however often its peer connects
/// again.
#[test]
fn a_pair_that_is_made_again_gives_no_more_room() {
    for (queue, depth) in [("messages", 3), ("notifications", 5)] {
        let settings = Settings { mailbox_depth: 3, notification_depth: 5, ..even() };
        let (world, mut left, mut right, mut peer) = two(settings);
        let address = right.address();
        let fill = |left: &mut SimEndpoint, peer| {
            let send = |left: &mut SimEndpoint| match queue {
                "messages" => left.send_short(peer, MessageHeader::tag(1), &[]).is_ok(),
                _ => left.put_notification(peer, 1, 2).is_ok(),
            };
            (0..100).take_while(|_| send(left)).count()
        };
        let mut sent = fill(&mut left, peer);
        assert_eq!(sent, depth, "{queue}");
        for _ in 0..3 {
            world.advance(10_000);
            left.disconnect(peer).unwrap();
            world.advance(10_000);
            peer = left.connect_within(address, PATIENCE).unwrap();
            assert_eq!(fill(&mut left, peer), 0, "{queue}");
        }
        poll(&mut left);
        let mut taken = 0;
        while sent < 3 * depth {
            // Each that is taken makes room for another, which its sender is told.
            right.poll(1, &mut |event| {
                taken += usize::from(matches!(event, Event::Message(_) | Event::Notification(_)));
            });
            world.advance(10_000);
            assert_eq!(poll(&mut left).len(), usize::from(taken > sent - depth), "{queue}");
            sent += fill(&mut left, peer);
            assert!(sent <= taken + depth, "{queue}: {sent} with {taken} taken");
        }
        world.advance(10_000);
        taken += poll(&mut right).iter().filter(|event| !event.contains("down")).count();
        assert_eq!(taken, sent, "{queue}: each arrives once");
    }
}

#[test]
fn cuts_at_any_time_keep_the_order_and_lose_nothing_before_a_death() {
    for seed in 0..200 {
        let link = Link { latency_ns: 1_000, jitter_ns: 3_000, ..EVEN };
        let settings = Settings { link, ordered: seed % 2 == 0, ..Settings::seeded(seed) };
        let (world, mut left, mut right, peer) = two(settings);
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut sent = 0_u8;
        let mut is_cut = false;
        while sent < 100 {
            match random(4) {
                0 if is_cut => world.heal(NodeId(0), NodeId(1)),
                0 => world.cut(NodeId(0), NodeId(1)),
                _ => {
                    left.send_short(peer, MessageHeader::tag(sent), &[]).expect("there is room");
                    sent += 1;
                }
            }
            is_cut = world.trace().iter().rev().find_map(|entry| match entry.kind {
                Kind::Cut => Some(true),
                Kind::Heal => Some(false),
                _ => None,
            }) == Some(true);
            world.advance(random(2_000));
        }
        assert!(world.kill(left.address()));
        world.advance(random(20_000));
        world.heal(NodeId(0), NodeId(1));
        assert!(world.run(1_000));
        let mut expected: Vec<String> = (0..100).map(|tag| format!("message {tag}")).collect();
        expected.push("down".into());
        assert_eq!(poll(&mut right), expected, "seed {seed}");
    }
}
