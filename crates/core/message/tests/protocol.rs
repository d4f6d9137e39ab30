//! Messages over the simulator, one promise at a time.

use weft_fabric::{
    Blocking, Endpoint, EndpointOptions, Event as FabricEvent, Group, Issued, MessageHeader,
    NodeId, Operation, PATIENCE, Peer, Region, Source, Target, Transport, Value,
};
use weft_message::{
    Body, Event, MessageError, Messages, Options, PlaceError, Placement, SendError, Ticket,
    UnshareError,
};
use weft_transport_sim::{Settings, SimEndpoint, SimRegion, SimWorld};

const TAG: u8 = 77;

fn open(world: &SimWorld, node: u32) -> SimEndpoint {
    world.transport(NodeId(node), 1).open(&EndpointOptions::default()).expect("there is room")
}

/// The events of a side, as text, and the tickets of announced messages.
#[derive(Default)]
struct Seen {
    log: Vec<String>,
    tickets: Vec<Ticket>,
}

fn poll(messages: &mut Messages<SimEndpoint>, seen: &mut Seen) {
    let note = |event: Event<'_, SimRegion>| match event {
        Event::Message(message) => {
            let kind = if matches!(message.body, Body::Bytes(_)) { "short" } else { "long" };
            seen.log.push(format!("{kind} {}", String::from_utf8_lossy(message.head)));
        }
        Event::Announced { ticket, head, .. } => {
            seen.log.push(format!("announced {}", String::from_utf8_lossy(&head)));
            seen.tickets.push(ticket);
        }
        Event::Lost { error, .. } => seen.log.push(format!("lost: {error}")),
        Event::Completion { context, result: Ok(()) } => seen.log.push(format!("{context} done")),
        Event::Completion { context, result: Err(error) } => {
            seen.log.push(format!("{context}: {error}"));
        }
        Event::Room { .. } => seen.log.push("room".into()),
        Event::Misbehaved { offence, .. } => seen.log.push(format!("misbehaved: {offence}")),
        Event::Endpoint(FabricEvent::PeerDown { .. }) => seen.log.push("down".into()),
        Event::Endpoint(FabricEvent::Message(message)) => {
            seen.log.push(format!("other tag {}", message.header.tag));
        }
        Event::Endpoint(FabricEvent::Completion(completion)) => {
            seen.log.push(format!("other completion {}", completion.context));
        }
        Event::Endpoint(_) => {}
    };
    messages.poll(1000, note);
}

struct Pair {
    world: SimWorld,
    a: Messages<SimEndpoint>,
    b: Messages<SimEndpoint>,
    to_b: Peer,
    at_a: Seen,
    at_b: Seen,
}

impl Pair {
    fn new(options: &Options) -> Self {
        let world = SimWorld::new(Settings::seeded(3));
        let mut a = Messages::new(open(&world, 0), options.clone());
        let mut b = Messages::new(open(&world, 1), options.clone());
        let address = b.endpoint().address();
        let to_b = a.endpoint().connect_within(address, PATIENCE).expect("there");
        Self { world, a, b, to_b, at_a: Seen::default(), at_b: Seen::default() }
    }

    fn asking() -> Self {
        Self::new(&Options { placement: Placement::Ask, ..Options::default() })
    }

    fn send(&mut self, head: &str, length: usize, context: u64) -> Result<Issued, SendError> {
        self.a.send(self.to_b, head.as_bytes(), &[&vec![5; length]], context)
    }

    /// Lets everything that can happen happen.
    fn settle(&mut self) {
        for _ in 0..40 {
            self.world.advance(10_000);
            poll(&mut self.a, &mut self.at_a);
            poll(&mut self.b, &mut self.at_b);
        }
    }
}

#[test]
fn a_short_message_behind_a_long_one_arrives_behind_it() {
    let mut pair = Pair::new(&Options::default());
    assert_eq!(pair.send("1", 100_000, 1), Ok(Issued::Pending));
    assert_eq!(pair.send("2", 10, 2), Ok(Issued::Done(Value::Nothing)));
    assert_eq!(pair.send("3", 300, 3), Ok(Issued::Done(Value::Nothing)));
    assert_eq!(pair.send("4", 5_000, 4), Ok(Issued::Pending));
    assert_eq!(pair.send("5", 0, 5), Ok(Issued::Done(Value::Nothing)));
    pair.settle();
    assert_eq!(pair.at_b.log, ["long 1", "short 2", "short 3", "long 4", "short 5"]);
    pair.at_a.log.sort();
    assert_eq!(pair.at_a.log, ["1 done", "4 done"]);
}

#[test]
fn a_program_meets_messages_in_order_and_says_where_they_go() {
    let mut pair = Pair::asking();
    let region = pair.b.endpoint().register(20_000).expect("memory");
    for (head, length) in [("1", 10_000), ("2", 5), ("3", 700)] {
        let _ = pair.send(head, length, 1).expect("room");
    }
    pair.settle();
    // It is not asked for the third before it has the second.
    assert_eq!(pair.at_b.log, ["announced 1"]);
    let ticket = pair.at_b.tickets[0];
    let outside = pair.b.accept_into(ticket, &region, 10_001);
    assert!(matches!(outside, Err(PlaceError::Range(_))));
    pair.b.accept_into(ticket, &region, 9_999).expect("it fits");
    assert_eq!(pair.b.accept_into(ticket, &region, 0), Err(PlaceError::UnknownTicket));
    pair.settle();
    let (mut before, mut inside, mut behind) = ([1], vec![0; 10_000], [1]);
    region.read(9_998, &mut before).expect("inside");
    region.read(9_999, &mut inside).expect("inside");
    region.read(19_999, &mut behind).expect("inside");
    assert_eq!((before, behind), ([0], [0]));
    assert!(inside.iter().all(|byte| *byte == 5));
    pair.b.refuse(pair.at_b.tickets[1]).expect("it was asked");
    pair.settle();
    assert_eq!(pair.at_b.log, ["announced 1", "long 1", "short 2", "announced 3"]);
    assert_eq!(pair.at_a.log, ["1 done", "1: the receiver refused the message"]);
}

#[test]
fn memory_goes_to_the_first_message_whichever_is_accepted_first() {
    let limits = Options { receive_bytes_max: 8192, regions_max: 1, ..Options::default() };
    let mut pair = Pair::new(&Options { placement: Placement::Ask, ..limits });
    let _ = pair.a.send(pair.to_b, b"1", &[&[1; 6000]], 1).expect("room");
    pair.settle();
    let share = {
        let region = pair.a.endpoint().register(6000).expect("memory");
        pair.a.share(&region)
    };
    let _ = pair.a.send_range(pair.to_b, b"2", (share, 0, 6000), 2).expect("room");
    pair.settle();
    // The second would be in the way of the first, and could not be handed out before it.
    pair.b.accept(pair.at_b.tickets[1]).expect("asked");
    pair.settle();
    pair.b.accept(pair.at_b.tickets[0]).expect("asked");
    pair.settle();
    assert_eq!(pair.at_b.log, ["announced 1", "announced 2", "long 1", "long 2"]);
}

#[test]
fn a_message_that_is_too_long_is_refused() {
    let limits = Options { receive_bytes_max: 10_000, ..Options::default() };
    let mut pair = Pair::new(&limits);
    let _ = pair.send("1", 10_001, 1).expect("room");
    let _ = pair.send("2", 10_000, 2).expect("room");
    pair.settle();
    assert_eq!(pair.at_b.log, ["long 2"]);
    pair.at_a.log.sort();
    assert_eq!(pair.at_a.log, ["1: the receiver refused the message", "2 done"]);
    let mut pair = Pair::new(&Options { bounce_bytes_max: 10_000, ..Options::default() });
    let too_long = SendError::TooLong { length: 10_001, maximum: 10_000 };
    assert_eq!(pair.send("1", 10_001, 1), Err(too_long));
    let head = SendError::HeadTooLong { length: 89, maximum: 88 };
    assert_eq!(pair.send(&"h".repeat(89), 1, 1), Err(head.clone()));
    assert_eq!(pair.send(&"h".repeat(89), 5_000, 1), Err(head));
}

#[test]
fn an_announced_message_is_cancelled_until_its_receiver_begins() {
    let mut pair = Pair::asking();
    let _ = pair.send("1", 5_000, 1).expect("room");
    let _ = pair.send("2", 5_000, 2).expect("room");
    let _ = pair.send("3", 1, 3).expect("room");
    pair.settle();
    assert!(pair.a.cancel(pair.to_b, 1));
    assert!(!pair.a.cancel(pair.to_b, 9));
    pair.settle();
    assert_eq!(pair.b.accept(pair.at_b.tickets[0]), Err(PlaceError::UnknownTicket));
    // The receiver begins while the cancellation is under way.
    assert!(pair.a.cancel(pair.to_b, 2));
    pair.b.accept(pair.at_b.tickets[1]).expect("asked");
    pair.settle();
    let lost = format!("lost: {}", MessageError::Cancelled);
    let at_b = ["announced 1", "announced 2", &lost, "long 2", "short 3"];
    assert_eq!(pair.at_b.log, at_b);
    assert_eq!(pair.at_a.log, ["1: the message was cancelled", "2 done"]);
    assert!(!pair.a.cancel(pair.to_b, 2), "it has ended");
}

#[test]
fn a_cancellation_that_crosses_the_answer_harms_nobody() {
    let mut pair = Pair::new(&Options::default());
    for context in 0..500 {
        let _ = pair.send("x", 2_000, context).expect("room");
        // The answer is under way: the receiver polled, and the sender did not.
        for _ in 0..3 {
            pair.world.advance(4_000);
            poll(&mut pair.b, &mut pair.at_b);
        }
        assert!(pair.a.cancel(pair.to_b, context));
        pair.settle();
        assert_eq!(pair.at_a.log.pop(), Some(format!("{context} done")));
        assert_eq!(pair.at_b.log.pop().as_deref(), Some("long x"));
    }
    assert!(pair.at_a.log.is_empty() && pair.at_b.log.is_empty());
}

#[test]
fn a_queued_message_is_cancelled_before_anything_of_it_is_sent() {
    let settings = Settings { mailbox_depth: 2, ..Settings::seeded(3) };
    let mut pair = Pair::new(&Options::default());
    pair.world = SimWorld::new(settings);
    pair.a = Messages::new(open(&pair.world, 0), Options::default());
    pair.b = Messages::new(open(&pair.world, 1), Options::default());
    let address = pair.b.endpoint().address();
    pair.to_b = pair.a.endpoint().connect_within(address, PATIENCE).expect("there");
    // The greeting and the first part fill the mailbox.
    assert_eq!(pair.send("1", 200, 1), Ok(Issued::Pending));
    assert_eq!(pair.send("2", 200, 2), Ok(Issued::Pending));
    assert_eq!(pair.send("3", 1, 3), Ok(Issued::Pending));
    assert!(pair.a.cancel(pair.to_b, 1), "it is under way and ends as it would have");
    assert!(pair.a.cancel(pair.to_b, 2));
    pair.settle();
    assert_eq!(pair.at_b.log, ["short 1", "short 3"]);
    assert_eq!(pair.at_a.log, ["2: the message was cancelled", "1 done", "3 done"]);
}

#[test]
fn a_sender_without_credit_is_refused_and_hears_of_room() {
    let options = Options { window: 40, ..Options::default() };
    let mut pair = Pair::new(&options);
    let _ = pair.send("x", 1, 0).expect("room");
    pair.settle();
    pair.world.pause(pair.b.endpoint().address());
    let mut accepted = 0;
    while pair.send("x", 1, 0).is_ok() {
        accepted += 1;
    }
    // The credits at first, but for the one of the first message. Those that came with it, and the
    // rest of the window, are not worth a packet of their own.
    assert_eq!(accepted, 31);
    pair.settle();
    assert!(pair.at_a.log.is_empty());
    pair.world.resume(pair.b.endpoint().address());
    pair.settle();
    assert_eq!(pair.at_a.log, ["room"]);
    assert_eq!(pair.at_b.log.len(), 32);
}

#[test]
fn a_shared_range_goes_without_a_copy() {
    let mut pair = Pair::new(&Options::default());
    let region = pair.a.endpoint().register(10_000).expect("memory");
    let share = pair.a.share(&region);
    let outside = pair.a.send_range(pair.to_b, b"1", (share, 5_001, 5_000), 1);
    assert!(matches!(outside, Err(SendError::Range(_))));
    let _ = pair.a.send_range(pair.to_b, b"1", (share, 5_000, 5_000), 1).expect("inside");
    let in_use = Err(UnshareError::InUse { messages: 1 });
    assert_eq!(pair.a.unshare(share), in_use);
    let _ = pair.a.send_range(pair.to_b, b"2", (share, 5_000, 100), 2).expect("inside");
    pair.settle();
    assert_eq!(pair.at_b.log, ["long 1", "short 2"]);
    let census = pair.a.census();
    assert_eq!((census.copy_bytes, census.shares, census.keys), (0, 1, 1));
    pair.a.unshare(share).expect("its messages have ended");
    pair.settle();
    assert_eq!((pair.a.census().shares, pair.a.census().keys), (0, 0));
    let gone = pair.a.send_range(pair.to_b, b"3", (share, 0, 5_000), 3);
    assert_eq!(gone, Err(SendError::UnknownShare));
}

#[test]
fn other_tags_and_operations_of_the_endpoint_pass() {
    let mut pair = Pair::new(&Options::default());
    let region = pair.b.endpoint().register(100).expect("memory");
    let key = pair
        .b
        .endpoint()
        .grant_within(
            weft_fabric::LocalRange::whole(&region),
            weft_fabric::Audience::Partition,
            weft_fabric::Access::READ | weft_fabric::Access::WRITE,
            PATIENCE,
        )
        .expect("a grant");
    let _ = pair.send("1", 5_000, 7).expect("room");
    pair.a.endpoint().send_short(pair.to_b, MessageHeader::tag(9), &[b"x"]).expect("room");
    let target = Target::new(key, 0);
    let put = Operation::new(7);
    let _ = pair.a.endpoint().put(pair.to_b, Source::Bytes(b"y"), target, put).expect("room");
    pair.settle();
    assert_eq!(pair.at_b.log, ["other tag 9", "long 1"]);
    pair.at_a.log.sort();
    assert_eq!(pair.at_a.log, ["7 done", "other completion 7"]);
}

/// Sends raw packets to `b`, and returns what it saw of the sender.
fn misbehave(packets: &[&[u8]]) -> Vec<String> {
    let mut pair = Pair::new(&Options::default());
    let _ = pair.send("before", 50_000, 1).expect("room");
    let mut hostile = open(&pair.world, 2);
    let address = pair.b.endpoint().address();
    let victim = hostile.connect_within(address, PATIENCE).expect("there");
    for packet in packets {
        hostile.send_short(victim, MessageHeader::tag(TAG), &[packet]).expect("room");
    }
    pair.settle();
    let _ = pair.send("after", 5_000, 2).expect("room");
    pair.settle();
    // Nobody else is disturbed.
    assert_eq!(pair.at_a.log, ["1 done", "2 done"]);
    let mut downs = 0;
    hostile.poll(1000, &mut |event| {
        downs += usize::from(matches!(event, FabricEvent::PeerDown { .. }));
    });
    let ours = |line: &String| !line.starts_with("long");
    let log: Vec<String> = pair.at_b.log.into_iter().filter(ours).collect();
    let is_told = log.iter().any(|line| line.starts_with("misbehaved"));
    assert_eq!(downs, usize::from(is_told), "it hears that it was given up");
    log
}

#[test]
fn a_peer_that_breaks_the_protocol_is_given_up() {
    let whole = |number: u8| [1, 0, 0, 0, number, 0, 0, 0];
    let (first, third) = (whole(0), whole(2));
    let out_of_turn = "misbehaved: it sent message 2 in place of 1";
    assert_eq!(misbehave(&[&first, &third, &first]), ["short ", out_of_turn, "down"]);
    let (part, short_part) = ([[2, 0, 0, 0, 0, 0, 150, 0]; 15].concat(), [9; 50]);
    let short_part = [&part[..8], &short_part].concat();
    let wrong_part = "misbehaved: it sent a part that does not fit the parts before";
    assert_eq!(misbehave(&[&short_part]), [wrong_part, "down"]);
    assert_eq!(misbehave(&[&part[..120], &whole(0)]), [wrong_part, "down"]);
    let unasked = "misbehaved: it answered message 3, which was not asked";
    assert_eq!(misbehave(&[&[5, 0, 0, 0, 3, 0, 0, 0]]), [unasked, "down"]);
    let nothing = "misbehaved: it cancelled message 0, which it did not announce";
    assert_eq!(misbehave(&[&first, &[7, 0, 0, 0, 0, 0, 0, 0]]), ["short ", nothing, "down"]);
    let answer = "misbehaved: it sent an answer with a body";
    assert_eq!(misbehave(&[&[5, 0, 0, 0, 0, 0, 0, 0, 0]]), [answer, "down"]);
    assert_eq!(misbehave(&[&first, &whole(1)]), ["short ", "short "]);
}

#[test]
fn a_packet_to_a_group_is_an_offence() {
    let mut pair = Pair::new(&Options::default());
    let mut hostile = open(&pair.world, 2);
    let packet = [1, 0, 0, 0, 0, 0, 0, 0];
    let told = hostile.send_multicast(Group::BROADCAST, MessageHeader::tag(TAG), &[&packet]);
    assert_eq!(told, Ok(2));
    pair.settle();
    assert_eq!(pair.at_b.log, ["misbehaved: it sent a packet to a group", "down"]);
}

#[test]
fn a_peer_that_is_down_ends_everything_once() {
    let mut pair = Pair::asking();
    for context in 1..=3 {
        let _ = pair.send("x", 5_000, context).expect("room");
    }
    pair.settle();
    pair.b.accept(pair.at_b.tickets[0]).expect("asked");
    pair.world.kill(pair.b.endpoint().address());
    pair.settle();
    let ends = |context: u64| format!("{context}: the peer is down");
    assert_eq!(pair.at_a.log, [ends(1), ends(2), ends(3), "down".into()]);
    let census = pair.a.census();
    assert_eq!((census.peers, census.keys, census.shares, census.copy_bytes), (0, 0, 0, 0));
    assert_eq!(pair.send("x", 5_000, 4), Err(SendError::PeerDown));
    assert_eq!(pair.send("x", 5, 5), Err(SendError::PeerDown));
    assert_eq!(pair.a.census(), census, "a dead handle leaves nothing behind");
    let unknown = pair.a.send(Peer(99), b"", &[b"x"], 6);
    assert_eq!(unknown, Err(SendError::UnknownPeer));
}

#[test]
fn ten_thousand_messages_with_kills_and_cancels_leave_nothing_behind() {
    let limits = Settings { regions_max: 40, keys_max: 40, ..Settings::seeded(4) };
    let world = SimWorld::new(limits);
    let options = Options { regions_max: 20, ..Options::default() };
    let mut a = Messages::new(open(&world, 0), options.clone());
    let region = a.endpoint().register(50_000).expect("memory");
    let share = a.share(&region);
    let (mut sent, mut ended, mut received, mut seen) = (0, 0, 0, Seen::default());
    for life in 0..200 {
        let mut b = Messages::new(open(&world, 1), options.clone());
        let address = b.endpoint().address();
        let to_b = a.endpoint().connect_within(address, PATIENCE).expect("there");
        let mut accepted = 0;
        for number in 0..100u64 {
            let length: u16 = [10, 300, 5_000, 40_000][usize::from(number.to_le_bytes()[0] % 4)];
            let result = if number % 3 == 0 {
                a.send_range(to_b, b"r", (share, 0, u64::from(length)), number)
            } else {
                a.send(to_b, b"b", &[&vec![1; usize::from(length)]], number)
            };
            accepted += usize::from(result.is_ok());
            sent += usize::from(result.is_ok());
            ended += usize::from(matches!(result, Ok(Issued::Done(_))));
            if number % 7 == 0 {
                a.cancel(to_b, number.saturating_sub(number % 5));
            }
            world.advance(if life % 2 == 0 { 3_000 } else { 200 });
            poll(&mut a, &mut seen);
            let mut at_b = Seen::default();
            poll(&mut b, &mut at_b);
            received += at_b.log.len();
        }
        assert!(accepted > 20, "life {life}");
        world.kill(address);
        world.advance(100_000);
        poll(&mut a, &mut seen);
        let census = a.census();
        assert_eq!((census.peers, census.operations, census.messages), (0, 0, 0), "life {life}");
        assert_eq!((census.shares, census.keys, census.copy_bytes), (1, 0, 0), "life {life}");
    }
    let ends = seen.log.iter().filter(|line| *line != "room" && *line != "down").count();
    assert_eq!(sent, ended + ends, "each message ends once");
    assert!(sent >= 10_000 && received > 0, "{sent} sent, {received} events");
    assert!(seen.log.iter().any(|line| line.ends_with("cancelled")));
    // A key that was not revoked would stay in the endpoint's table, and leave no room for others.
    let failed = seen.log.iter().find(|line| line.contains("the memory of the message"));
    assert_eq!(failed, None);
}

#[test]
fn a_message_that_ended_well_is_handed_out_although_an_earlier_one_never_comes() {
    let mut pair = Pair::asking();
    assert_eq!(pair.send("first", 5_000, 1), Ok(Issued::Pending));
    assert_eq!(pair.send("second", 5_000, 2), Ok(Issued::Pending));
    pair.settle();
    let second = pair.at_b.tickets[1];
    let region = pair.b.endpoint().register(5_000).expect("there is memory");
    pair.b.accept_into(second, &region, 0).expect("it waits for a decision");
    pair.settle();
    assert_eq!(pair.at_a.log, ["2 done"]);
    pair.a.endpoint().disconnect(pair.to_b).expect("a peer");
    pair.settle();
    assert_eq!(pair.at_a.log[1..], ["1: the peer is down", "down"]);
    let log = &pair.at_b.log;
    assert_eq!(log[2..], ["long second", "lost: the peer is down", "down"], "{log:?}");
}
