//! Many lanes over one endpoint: their making and their end, little room, cuts, and peers that
//! break the protocol.

mod fabrics;

use std::collections::BTreeMap;

use weft_fabric::{
    Blocking, Carry, Endpoint, LaneFull, MessageHeader, NodeId, PATIENCE, Peer, ReceiveCursor,
    SendCursor, Standing, WaitFor, Wake,
};
use weft_lane::{Carrier, EndpointLane, Layout, Refusal, Settings, Told};
use weft_transport_sim::{Link, SimEndpoint, SimWorld};

use fabrics::{Fabric, Pair, Sim, lane};

const SMALL: Layout = Layout { slots: 16, sink_bytes: 4096 };

type End = EndpointLane<SimEndpoint>;

/// Two carriers on two nodes of a world with these settings.
fn carriers(
    settings: weft_transport_sim::Settings,
    lanes_max: u32,
) -> (Sim, [Carrier<SimEndpoint>; 2]) {
    let fabric = Sim(SimWorld::new(settings));
    let carriers = [0, 1].map(|node| {
        Carrier::new(
            fabric.open(node),
            Settings { layout: SMALL, lanes_max, ..Settings::default() },
        )
    });
    (fabric, carriers)
}

fn connect(carriers: &[Carrier<SimEndpoint>; 2]) -> Peer {
    let address = carriers[1].with_endpoint(|endpoint| endpoint.address());
    carriers[0]
        .with_endpoint(|endpoint| endpoint.connect_within(address, PATIENCE))
        .expect("the peer is there")
}

/// Lets all happen that is under way.
fn settle(fabric: &Sim, carriers: &[Carrier<SimEndpoint>]) {
    let mut idle = 0;
    while idle < 3 {
        idle = if fabric.step() { 0 } else { idle + 1 };
        carriers.iter().for_each(Carrier::poll);
    }
}

fn told(carrier: &Carrier<SimEndpoint>) -> Vec<Told<SimEndpoint>> {
    std::iter::from_fn(|| carrier.told()).collect()
}

/// Makes `count` lanes, all of them under way at the same time.
fn lanes(fabric: &Sim, carriers: &[Carrier<SimEndpoint>; 2], count: u64) -> Vec<[End; 2]> {
    let peer = connect(carriers);
    for token in 0..count {
        carriers[0].open(peer, token).expect("room");
    }
    let mut ends = [BTreeMap::new(), BTreeMap::new()];
    for _ in 0..1_000_000 {
        fabric.step();
        for (carrier, ends) in carriers.iter().zip(&mut ends) {
            carrier.poll();
            for told in told(carrier) {
                match told {
                    Told::Offered(offer) => drop(carrier.accept(offer).expect("room")),
                    Told::Opened { token, lane } => drop(ends.insert(token, lane)),
                    other => panic!("{other:?}"),
                }
            }
        }
        if ends.iter().all(|ends| ends.len() as u64 == count) {
            let [left, right] = ends;
            let pairs = left.into_values().zip(right.into_values());
            return pairs.map(|(left, right)| [left, right]).collect();
        }
    }
    panic!("no lanes: {carriers:?}")
}

#[test]
fn a_thousand_lanes_between_two_nodes_carry_at_the_same_time() {
    let (fabric, carriers) = carriers(weft_transport_sim::Settings::seeded(1), 1000);
    let lanes = lanes(&fabric, &carriers, 1000);
    let mut cursors = vec![(SendCursor::default(), ReceiveCursor::default()); lanes.len()];
    for round in 0..3u64 {
        for (number, ([left, _], (send, _))) in lanes.iter().zip(&mut cursors).enumerate() {
            let bytes = (round << 32 | number as u64).to_le_bytes();
            while left.send(send, 1, &[&bytes]) == Err(LaneFull) {
                assert!(fabric.step(), "room comes");
                carriers.iter().for_each(Carrier::poll);
            }
        }
        settle(&fabric, &carriers);
        for (number, ([_, right], (_, receive))) in lanes.iter().zip(&mut cursors).enumerate() {
            let slot = right.peek(receive).expect("no end is hostile").expect("it has arrived");
            let mut bytes = [0; 8];
            assert_eq!(slot.length, 8);
            right.read(receive, 0, &mut bytes);
            assert_eq!(u64::from_le_bytes(bytes), round << 32 | number as u64);
            right.advance(receive, true);
        }
        settle(&fabric, &carriers);
    }
    let peer = connect(&carriers);
    assert!(carriers[0].open(peer, 0).is_err(), "no more than allowed");
}

#[test]
fn places_of_closed_lanes_are_used_again_and_hold_nothing_of_the_former() {
    let (fabric, carriers) = carriers(weft_transport_sim::Settings::seeded(1), 2);
    for round in 0..50 {
        let [left, right] = lane(&fabric, &carriers, round);
        let (mut send, receive) = (SendCursor::default(), ReceiveCursor::default());
        assert_eq!(right.peek(&receive), Ok(None), "of a former lane");
        assert_eq!((right.posted(3), left.messages_read()), (0, Some(0)));
        assert_eq!(left.slots_free(&mut send, 16), 16);
        left.post(3, 9);
        left.send(&mut send, 1, &[b"x"]).expect("room");
        drop(left);
        settle(&fabric, &carriers);
        assert_eq!(right.standing(), Standing::Closed);
        assert_eq!((right.posted(3), right.peek(&receive).map(|s| s.is_some())), (9, Ok(true)));
        drop(right);
        settle(&fabric, &carriers);
        carriers.iter().for_each(|carrier| drop(told(carrier)));
    }
}

#[test]
fn a_lane_that_is_not_wanted_is_refused_and_costs_nothing() {
    let (fabric, carriers) = carriers(weft_transport_sim::Settings::seeded(1), 1);
    let peer = connect(&carriers);
    for token in 0..20 {
        carriers[0].open(peer, token).expect("the former place is free");
        settle(&fabric, &carriers);
        let [Told::Offered(offer)] = told(&carriers[1])[..] else { panic!("no offer") };
        assert_eq!(offer.token, token);
        carriers[1].refuse(offer);
        settle(&fabric, &carriers);
        let answer = told(&carriers[0]);
        let [Told::Refused { token: of, why: Refusal::Unwanted }] = answer[..] else {
            panic!("{answer:?}")
        };
        assert_eq!(of, token);
    }
}

#[test]
fn a_larger_layout_is_refused() {
    let (fabric, [left, _]) = carriers(weft_transport_sim::Settings::seeded(1), 1);
    let layout = Layout { slots: 16, sink_bytes: 8192 };
    let large =
        Carrier::new(fabric.open(1), Settings { layout, lanes_max: 1, ..Settings::default() });
    let carriers = [large, left];
    let peer = connect(&carriers);
    carriers[0].open(peer, 1).expect("room");
    settle(&fabric, &carriers);
    let answer = told(&carriers[0]);
    assert!(matches!(answer[..], [Told::Refused { why: Refusal::TooLarge, .. }]), "{answer:?}");
    assert!(told(&carriers[1]).is_empty());
}

/// Writes and reads a lane until `total` messages, each with bytes of the sink, went through.
fn stream(fabric: &Sim, carriers: &[Carrier<SimEndpoint>; 2], [left, right]: &[End; 2]) {
    let (mut send, mut receive) = (SendCursor::default(), ReceiveCursor::default());
    let total = 300u64;
    let bytes = |number: u64| vec![u8::try_from(number % 251).expect("small"); 100];
    let mut idle = 0;
    for _ in 0..100_000 {
        if receive.messages == total {
            break;
        }
        if send.messages < total && left.sink_free(&mut send, 100) >= 100 {
            let (before, piece) = (send.bytes, bytes(send.messages));
            left.put(&mut send, &piece);
            match left.send(&mut send, 1, &[b"x"]) {
                Ok(()) => left.post(2, send.messages),
                Err(LaneFull) => send.bytes = before,
            }
        }
        if right.peek(&receive).expect("no end is hostile").is_some() {
            let mut target = vec![0; 100];
            right.view(&receive, 0, &mut target);
            assert!(target == bytes(receive.messages), "message {}", receive.messages);
            right.release(&mut receive, 100);
            right.advance(&mut receive, false);
        }
        idle = if fabric.step() { 0 } else { idle + 1 };
        carriers.iter().for_each(Carrier::poll);
        assert!(idle < 100, "nothing moves after {}", receive.messages);
    }
    assert_eq!(receive.messages, total, "it goes on and on, and moves nothing");
    settle(fabric, carriers);
    assert!(!carriers[0].has_backlog() && !carriers[1].has_backlog());
    assert_eq!(left.messages_read(), Some(total), "the last count is the one that stays");
    assert_eq!(left.sink_free(&mut send, 4096), 4096);
    assert!(
        left.has_landed() || {
            settle(fabric, carriers);
            left.has_landed()
        }
    );
}

#[test]
fn an_endpoint_with_room_for_one_operation_carries_all_in_order() {
    for (operations_max, notification_depth, ordered) in
        [(1, 1, true), (1, 1, false), (2, 64, false), (64, 1, false)]
    {
        let settings = weft_transport_sim::Settings {
            operations_max,
            notification_depth,
            ordered,
            link: Link { jitter_ns: 20_000, ..Link::default() },
            ..weft_transport_sim::Settings::seeded(9)
        };
        let (fabric, carriers) = carriers(settings, 2);
        let ends = lane(&fabric, &carriers, 1);
        stream(&fabric, &carriers, &ends);
    }
}

#[test]
fn a_cut_that_is_mended_in_time_changes_nothing() {
    let (fabric, carriers) = carriers(weft_transport_sim::Settings::seeded(2), 2);
    let [left, right] = lane(&fabric, &carriers, 1);
    let (mut send, receive) = (SendCursor::default(), ReceiveCursor::default());
    fabric.0.cut(NodeId(0), NodeId(1));
    right.arm(WaitFor::Data);
    left.send(&mut send, 1, &[b"x"]).expect("room");
    fabric.0.advance(1_000_000);
    carriers.iter().for_each(Carrier::poll);
    assert_eq!((right.peek(&receive), left.has_landed()), (Ok(None), false));
    fabric.0.heal(NodeId(0), NodeId(1));
    settle(&fabric, &carriers);
    assert!(right.peek(&receive).expect("no end is hostile").is_some());
    assert!(right.disarm(WaitFor::Data), "it was rung");
    assert!(left.has_landed());
}

#[test]
fn a_cut_that_lasts_ends_the_lanes_of_both_nodes() {
    let (fabric, carriers) = carriers(weft_transport_sim::Settings::seeded(2), 4);
    let ends = lanes(&fabric, &carriers, 3);
    let mut send = SendCursor::default();
    ends[0][0].send(&mut send, 1, &[b"before"]).expect("room");
    settle(&fabric, &carriers);
    ends.iter().flatten().for_each(|end| end.arm(WaitFor::Room));
    fabric.0.cut(NodeId(0), NodeId(1));
    ends[0][0].send(&mut send, 1, &[b"lost"]).expect("room");
    settle(&fabric, &carriers);
    for end in ends.iter().flatten() {
        assert_eq!(end.standing(), Standing::Lost);
        assert!(end.disarm(WaitFor::Room), "who waits is woken");
    }
    let mut receive = ReceiveCursor::default();
    let mut bytes = [0; 6];
    ends[0][1].read(&receive, 0, &mut bytes);
    assert_eq!(&bytes, b"before");
    ends[0][1].advance(&mut receive, true);
    assert_eq!(ends[0][1].peek(&receive), Ok(None));
    let mut payload = [0; 120];
    let slot = ends[0][0].look_back(1, &mut payload).expect("it was never taken");
    assert_eq!(&payload[..usize::from(slot.length)], b"lost");
}

#[test]
fn a_peer_that_sends_nonsense_is_disconnected_and_the_others_stay() {
    let (fabric, carriers) = carriers(weft_transport_sim::Settings::seeded(2), 4);
    let [left, right] = lane(&fabric, &carriers, 1);
    for (header, bytes) in [
        (MessageHeader::tag(b'L'), &b"\x09nonsense"[..]),
        (MessageHeader::tag(b'L'), &[2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
        (MessageHeader::tag(1), b"of another protocol"),
    ] {
        let mut hostile = fabric.open(2);
        let address = carriers[1].with_endpoint(|endpoint| endpoint.address());
        let peer = hostile.connect_within(address, PATIENCE).expect("it is there");
        // An answer to a lane of somebody else is ignored, and the lane is named as closed.
        hostile.send_short(peer, header, &[bytes]).expect("room");
        settle(&fabric, &carriers);
        let mut answers = 0;
        hostile.poll(64, &mut |_| answers += 1);
        assert!(answers >= 1, "it is told that it is down, or that there is no such lane");
    }
    let news = told(&carriers[1]);
    let blamed = news.iter().filter(|told| matches!(told, Told::Misbehaved { .. })).count();
    assert_eq!(blamed, 2, "{news:?}");
    stream(&fabric, &carriers, &[left, right]);
}

#[test]
fn nobody_rings_a_lane_but_its_peer() {
    let (fabric, carriers) = carriers(weft_transport_sim::Settings::seeded(2), 4);
    let [left, right] = lane(&fabric, &carriers, 1);
    let mut stranger = fabric.open(2);
    let address = carriers[1].with_endpoint(|endpoint| endpoint.address());
    let peer = stranger.connect_within(address, PATIENCE).expect("it is there");
    right.arm(WaitFor::Data);
    right.arm(WaitFor::Room);
    for number in [0, 1, 1 << 16, u64::MAX] {
        stranger.put_notification(peer, 3, number).expect("room");
    }
    settle(&fabric, &carriers);
    assert!(!right.disarm(WaitFor::Data) && !right.disarm(WaitFor::Room));
    right.arm(WaitFor::Room);
    left.post(0, 1);
    settle(&fabric, &carriers);
    assert!(right.disarm(WaitFor::Room));
}

#[test]
fn more_control_words_than_are_kept_end_the_lane() {
    let settings = weft_transport_sim::Settings {
        operations_max: 1,
        ..weft_transport_sim::Settings::seeded(2)
    };
    let (fabric, carriers) = carriers(settings, 2);
    let [left, right] = lane(&fabric, &carriers, 1);
    for value in 0..weft_lane::POSTS_MAX as u64 + 2 {
        left.post(0, value);
    }
    assert_eq!(left.standing(), Standing::Lost);
    drop(left);
    settle(&fabric, &carriers);
    assert_eq!(right.standing(), Standing::Lost, "the peer is told that something is missing");
}

#[test]
fn a_lane_that_its_peer_closes_is_not_lost_where_the_peer_has_little_room() {
    for (mailbox_depth, operations_max) in [(1, 64), (64, 1), (1, 1)] {
        let settings = weft_transport_sim::Settings {
            mailbox_depth,
            operations_max,
            ..weft_transport_sim::Settings::seeded(5)
        };
        let (fabric, carriers) = carriers(settings, 4);
        let ends = lanes(&fabric, &carriers, 3);
        let (mut froms, mut tos): (Vec<End>, Vec<End>) = ends.into_iter().map(Into::into).unzip();
        // The peer closes all at once: its messages wait for room, and so do its fences.
        tos.iter().for_each(|to| to.post(3, 1));
        tos.clear();
        for step in 0..2_000 {
            // Fewer words than a lane keeps: more of them would end it.
            if step % 8 == 0 && step < 8 * weft_lane::POSTS_MAX {
                froms.iter().for_each(|from| from.post(3, 9));
            }
            fabric.step();
            carriers.iter().for_each(Carrier::poll);
            if froms.iter().all(|from| from.is_over()) {
                break;
            }
        }
        let standings: Vec<Standing> = froms.iter().map(|from| from.standing()).collect();
        assert_eq!(standings, [Standing::Closed; 3], "{mailbox_depth}, {operations_max}");
        froms.clear();
        settle(&fabric, &carriers);
    }
}

#[test]
fn the_reader_of_a_finished_lane_keeps_nothing_for_its_peer() {
    let (fabric, carriers) = carriers(weft_transport_sim::Settings::seeded(3), 4);
    let lanes = lanes(&fabric, &carriers, 1);
    let [left, right] = &lanes[0];
    let mut send = SendCursor::default();
    left.send(&mut send, 1, &[b"last words"]).expect("room");
    left.finish();
    settle(&fabric, &carriers);
    assert_eq!(right.standing(), Standing::Closed);

    let [first, second] = [0, 1].map(|at| carriers[at].with_endpoint(|end| end.address()));
    assert!(fabric.0.starve(second), "the endpoint takes no operation");
    let mut receive = ReceiveCursor::default();
    right.peek(&receive).expect("no end is hostile").expect("it has arrived");
    right.advance(&mut receive, false);
    // Counts that wait to be told are told after some polls.
    (0..100).for_each(|_| carriers[1].poll());
    fabric.0.kill(first);
    settle(&fabric, &carriers);
    assert!(!carriers[1].has_backlog(), "nobody is there who could make room");
}

#[test]
fn a_dropped_end_sends_what_it_has_before_the_peer_is_told() {
    let settings = weft_transport_sim::Settings {
        operations_max: 1,
        ..weft_transport_sim::Settings::seeded(2)
    };
    let (fabric, carriers) = carriers(settings, 2);
    let [left, right] = lane(&fabric, &carriers, 1);
    for value in 1..=20 {
        left.post(0, value);
    }
    let refused = left.send(&mut SendCursor::default(), 1, &[b"before the words"]);
    assert_eq!(refused, Err(LaneFull));
    drop(left);
    assert!(carriers[0].has_backlog());
    settle(&fabric, &carriers);
    assert_eq!((right.posted(0), right.standing()), (20, Standing::Closed));
    assert!(!carriers[0].has_backlog());
}

#[test]
fn lanes_over_shared_memory_end_with_a_process_that_vanishes() {
    use fabrics::Shm;
    let (fabric, carriers) =
        Pair::<Shm>::carriers(Settings { layout: SMALL, lanes_max: 2, ..Settings::default() });
    let [left, right] = lane(&fabric, &carriers, 1);
    let mut send = SendCursor::default();
    left.send(&mut send, 1, &[b"last words"]).expect("room");
    assert!(left.has_landed(), "in shared memory at once");
    fabric.kill(&carriers[0]);
    carriers[1].poll();
    assert_eq!(right.standing(), Standing::Lost);
    assert!(right.peek(&ReceiveCursor::default()).expect("no end is hostile").is_some());
}
