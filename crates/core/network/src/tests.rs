//! Small networks, looked at from inside: every message ends once, and no credit is lost.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_routing::multicast::BROADCAST;
use weft_routing::{Algorithm, Choice, Heading, Route, Routes};
use weft_topology::{Graph, GraphBuilder, Kind, Layout, LinkClass, Port, Shape, Vertex};

use crate::arena::index;
use crate::time::{MICROSECOND, NANOSECOND, Time};
use crate::{
    Arbitration, Destination, HostModel, LinkModel, LostBecause, Message, MessageTime, Network,
    NetworkError, Outcome, Processors, SendError, Settings,
};

/// A mesh of `width` x `height` hosts.
pub(crate) fn mesh(width: u32, height: u32) -> Graph {
    let mut builder = GraphBuilder::new();
    builder.vertices(Kind::Host, width * height, 4).expect("room");
    for vertex in 0..width * height {
        if vertex % width + 1 < width {
            builder.link((vertex, 0), (vertex + 1, 1), LinkClass::default()).expect("ports");
        }
        if vertex / width + 1 < height {
            builder.link((vertex, 2), (vertex + width, 3), LinkClass::default()).expect("ports");
        }
    }
    builder.build(Layout::Irregular).expect("a mesh")
}

/// The shortest ways by a table of distances. By the lowest port, it is dimension order on a mesh,
/// which has no deadlock; that is also the escape of the adaptive kind.
pub(crate) struct Minimal {
    graph: Graph,
    far: Vec<Vec<Option<u32>>>,
    is_adaptive: bool,
}

impl Minimal {
    pub(crate) fn of(graph: &Graph, is_adaptive: bool) -> Box<Self> {
        let far = (0..graph.vertices()).map(|vertex| graph.hops(vertex)).collect();
        Box::new(Self { graph: graph.clone(), far, is_adaptive })
    }
}

impl Route for Minimal {
    fn vcs(&self) -> u8 {
        2
    }

    fn next(
        &self,
        at: Vertex,
        _: Option<(Port, u8)>,
        heading: &Heading,
        choices: &mut Vec<Choice>,
    ) {
        let far = &self.far[index(heading.to)];
        choices.clear();
        let near = self.graph.neighbours(at).filter(|(_, (vertex, _))| {
            far[index(*vertex)].zip(far[index(at)]).is_some_and(|(there, here)| there < here)
        });
        choices.extend(near.map(|(port, _)| Choice { port, vc: 0 }));
        if let Some(first) = choices.first().copied() {
            if !self.is_adaptive {
                choices.clear();
            }
            choices.push(Choice { vc: 1, ..first });
        }
    }
}

fn network(graph: Graph, settings: Settings) -> Network {
    let route = Minimal::of(&graph, false);
    Network::new(graph, route, settings).expect("sound settings")
}

pub(crate) fn message(from: Vertex, to: Vertex, bytes: u64) -> Message {
    Message { from, to: to.into(), bytes, class: 0, tag: 0 }
}

/// Runs until nothing happens, and tells when each message arrived, by tag.
pub(crate) fn run(network: &mut Network) -> Vec<(u64, Option<Time>)> {
    let mut ends = Vec::new();
    while let Some(outcome) = network.run_out() {
        ends.push((
            outcome.message().tag,
            match outcome {
                Outcome::Delivered { at, .. } => Some(at),
                Outcome::Lost { .. } => None,
            },
        ));
    }
    ends
}

/// All credits back, and nothing kept.
fn assert_idle(network: &mut Network, before: u64) {
    assert_eq!((network.run_out(), network.next_time()), (None, None));
    assert_eq!((network.messages(), network.packets()), (0, 0));
    assert_eq!(network.credits(), before);
}

#[test]
fn a_packet_takes_the_sum_of_its_hops_when_nothing_else_is_there() {
    let settings = Settings {
        host: HostModel {
            injection: LinkModel { latency: 100, ..LinkModel::HUNDRED_GIGABITS },
            ejection: LinkModel { latency: 7, ..LinkModel::HUNDRED_GIGABITS },
            message_time: 3,
        },
        ..Settings::default()
    };
    let mut network = network(mesh(9, 1), settings);
    let before = network.credits();
    for (to, bytes) in (0..9).flat_map(|to| [(to, 0), (to, 1), (to, 120), (to, 496)]) {
        let begin = network.now();
        network.send(message(0, to, bytes)).expect("room");
        let hops = u64::from(to);
        // Routers 40 ns, links 20 ns, a byte 80 ps; the header has 16 bytes.
        let expected = 3 + 100 + (hops + 1) * 40_000 + hops * 20_000 + (bytes + 16) * 80 + 7;
        assert_eq!(run(&mut network), [(0, Some(begin + expected))], "{hops} hops, {bytes} bytes");
    }
    assert_idle(&mut network, before);
}

#[test]
fn hosts_that_share_a_processor_wait_for_it() {
    let with = |count| {
        let time = MessageTime { send: 1_000_000, receive: 3_000_000 };
        let processors = Processors { count, within: time, across: time };
        let settings = Settings { processors: Some(processors), ..Settings::default() };
        let mut network = network(mesh(4, 1), settings);
        let before = network.credits();
        // Both need a processor to send, and both receivers one to take what came.
        network.send(Message { tag: 1, ..message(0, 1, 0) }).expect("room");
        network.send(Message { tag: 2, ..message(2, 3, 0) }).expect("room");
        let ends: Vec<_> =
            run(&mut network).into_iter().map(|(_, at)| at.expect("none is lost")).collect();
        assert_idle(&mut network, before);
        (ends[0], ends[1])
    };
    // Two routers, a link, and 16 bytes of header.
    let way = 2 * 40_000 + 20_000 + 16 * 80;
    let alone = 1_000_000 + way + 3_000_000;
    assert_eq!(with(4), (alone, alone));
    // One processor: both send first, then one message is taken after the other.
    assert_eq!(with(1), (5_000_000, 8_000_000));
    // Hosts 0 and 2 share one, and hosts 1 and 3 the other.
    assert_eq!(with(2), (alone, alone + 3_000_000));
}

#[test]
fn a_message_between_two_processors_has_times_of_its_own() {
    let within = MessageTime { send: 1_000_000, receive: 3_000_000 };
    let across = MessageTime { send: 20_000_000, receive: 50_000_000 };
    let processors = Processors { count: 2, within, across };
    let settings = Settings { processors: Some(processors), ..Settings::default() };
    let ends_at = |to: Vertex| {
        let mut network = network(mesh(4, 1), settings.clone());
        network.send(message(0, to, 0)).expect("room");
        run(&mut network)[0].1.expect("it is not lost")
    };
    let way = |hops: Time| (hops + 1) * 40_000 + hops * 20_000 + 16 * 80;
    // Hosts 0 and 2 share a processor, and hosts 1 and 3 the other one.
    assert_eq!(ends_at(2), 1_000_000 + way(2) + 3_000_000);
    assert_eq!(ends_at(1), 20_000_000 + way(1) + 50_000_000);
    assert_eq!(ends_at(3), 20_000_000 + way(3) + 50_000_000);
}

#[test]
fn a_slow_link_sets_the_pace_of_what_is_behind_it_and_before_it() {
    let settings = Settings::default();
    let slow = LinkModel { bits_per_second: 10_000_000_000, ..settings.link };
    for at in 0..3 {
        let mut network = network(mesh(4, 1), Settings::default());
        assert_eq!(network.set_link(at, 0, slow), Ok(true));
        network.send(message(0, 3, 496)).expect("room");
        // Once the time of 512 bytes at 10 Gbit/s, wherever the slow link is.
        assert_eq!(run(&mut network), [(0, Some(4 * 40_000 + 3 * 20_000 + 512 * 800))]);
    }
}

#[test]
fn many_packets_of_a_message_follow_each_other_without_a_gap() {
    let mut network = network(mesh(5, 1), Settings::default());
    network.send(message(0, 4, 496 * 1_000)).expect("room");
    let expected = 5 * 40_000 + 4 * 20_000 + 1_000 * 40_960;
    assert_eq!(run(&mut network), [(0, Some(expected))]);
    assert_eq!(network.counts(0, 0).map(|counts| counts.packets), Some(1_000));
    assert_eq!(network.counts(0, 1).map(|counts| counts.bytes), Some(0));
    let (out, back) = network.host_counts(0).expect("a host");
    assert_eq!((out.bytes, back.bytes), (512_000, 0));
}

#[test]
fn a_buffer_shorter_than_the_way_of_a_credit_bounds_the_speed_of_a_link() {
    // One packet at a time: its tail has left the next router 40 ns after it arrived there, and the
    // credit is 20 ns on its way back.
    let settings = Settings { buffer_bytes: 512, ..Settings::default() };
    let mut network = network(mesh(2, 1), settings);
    let before = network.credits();
    network.send(message(0, 1, 496 * 100)).expect("room");
    let round = 40_960 + 20_000 + 40_000 + 20_000;
    let expected = 40_000 + 99 * round + 20_000 + 40_000 + 40_960;
    assert_eq!(run(&mut network), [(0, Some(expected))]);
    assert_idle(&mut network, before);
}

#[test]
fn a_class_goes_before_the_next() {
    let settings = Settings { classes: 2, ..Settings::default() };
    let mut network = network(mesh(3, 1), settings);
    let send = |network: &mut Network, class, tag, bytes| {
        network.send(Message { class, tag, ..message(0, 2, bytes) }).expect("room");
    };
    send(&mut network, 1, 1, 496_000);
    assert_eq!(network.run(10 * MICROSECOND), None);
    send(&mut network, 0, 2, 8);
    let ends = run(&mut network);
    assert_eq!(ends.iter().map(|end| end.0).collect::<Vec<_>>(), [2, 1]);
    // On each of its links it waits for one packet of the other class at most.
    let alone = 3 * 40_000 + 2 * 20_000 + 24 * 80;
    let late = ends[0].1.expect("delivered") - 10 * MICROSECOND - alone;
    assert!(late <= 4 * 40_960, "{late} ps late");
    let refused = network.send(Message { class: 2, ..message(0, 1, 1) });
    assert_eq!(refused, Err(SendError::Class(2)));
}

#[test]
fn a_class_passes_the_next_also_where_that_waits_in_a_router() {
    // Bulk of hosts 0 and 1 to host 2 meets at the link out of router 1, and waits there.
    let settings = Settings { classes: 2, ..Settings::default() };
    let mut network = network(mesh(3, 1), settings);
    for from in [0, 1] {
        network.send(Message { class: 1, tag: 1, ..message(from, 2, 496_000) }).expect("room");
    }
    assert_eq!(network.run(10 * MICROSECOND), None);
    network.send(Message { tag: 2, ..message(1, 2, 8) }).expect("room");
    let first = network.run_out().expect("it arrives");
    assert_eq!(first.message().tag, 2);
    // It waits for a packet of the other class at its host, in its router and behind it, at most.
    let alone = 2 * 40_000 + 20_000 + 24 * 80;
    let late = network.now() - 10 * MICROSECOND - alone;
    assert!(late <= 3 * 40_960, "{late} ps late");
}

#[test]
fn inputs_take_turns_and_age_lets_the_oldest_go_first() {
    // Hosts 0 and 1 of a row of three send to host 2, whose link they share. Host 0 was first.
    let ends = |arbitration| {
        let mut network = network(mesh(3, 1), Settings { arbitration, ..Settings::default() });
        network.send(Message { tag: 0, ..message(0, 2, 49_600) }).expect("room");
        assert_eq!(network.run(1), None);
        network.send(Message { tag: 1, ..message(1, 2, 49_600) }).expect("room");
        let ends = run(&mut network);
        let of = |tag| ends.iter().find(|end| end.0 == tag).and_then(|end| end.1).expect("arrived");
        (of(0), of(1))
    };
    let (first, second) = ends(Arbitration::RoundRobin);
    assert!(first.abs_diff(second) < 200_000, "{first} and {second} share the link");
    let (first, second) = ends(Arbitration::Age);
    assert!(second - first > 100 * 40_960 - 2 * 40_960 - 200_000, "{first} before {second}");
}

#[test]
fn a_cut_loses_what_is_on_the_link_and_nothing_else() {
    let graph = mesh(3, 1);
    let mut network = network(graph, Settings::default());
    let before = network.credits();
    network.send(Message { tag: 1, ..message(0, 1, 4_960) }).expect("room");
    network.send(Message { tag: 2, ..message(2, 1, 4_960) }).expect("room");
    assert_eq!(network.run(200 * NANOSECOND), None);
    assert!(network.cut(1, 1), "the link between 0 and 1");
    assert!(!network.cut(0, 1), "there is no link");
    let mut ends = run(&mut network);
    ends.sort_unstable();
    assert!(matches!(ends[..], [(1, None), (2, Some(_))]), "{ends:?}");
    let lost = network.counts(0, 0).map(|counts| counts.lost);
    assert!(lost.is_some_and(|lost| (1..=2).contains(&lost)), "{lost:?}");
    assert_idle(&mut network, before);
    // Without a way the next message is lost, too; behind the repair it is not.
    network.send(message(0, 1, 8)).expect("room");
    let lost = network.run_out();
    assert!(matches!(lost, Some(Outcome::Lost { because: LostBecause::NoWay, .. })), "{lost:?}");
    assert!(network.heal(0, 0));
    network.send(message(0, 1, 8)).expect("room");
    assert!(matches!(network.run_out(), Some(Outcome::Delivered { hops: 1, .. })));
    assert_idle(&mut network, before);
}

#[test]
fn packets_that_wait_for_a_link_that_is_cut_take_another_way() {
    let graph = mesh(2, 2);
    let route = Minimal::of(&graph, true);
    let settings = Settings { buffer_bytes: 512, ..Settings::default() };
    let mut network = Network::new(graph, route, settings).expect("sound settings");
    for tag in 0..20 {
        network.send(Message { tag, ..message(0, 3, 496) }).expect("room");
    }
    assert_eq!(network.run(90 * NANOSECOND), None);
    assert!(network.cut(0, 0));
    let ends = run(&mut network);
    let lost = ends.iter().filter(|end| end.1.is_none()).count();
    assert!((1..=2).contains(&lost), "those on the link alone: {ends:?}");
    assert_eq!(ends.len(), 20);
}

#[test]
fn a_node_that_crashes_loses_its_messages_and_serves_again_when_it_restarts() {
    let mut network = network(mesh(3, 1), Settings::default());
    let before = network.credits();
    for (tag, from, to) in [(0, 1, 0), (1, 0, 2), (2, 0, 1), (3, 2, 2)] {
        network.send(Message { tag, ..message(from, to, 49_600) }).expect("room");
    }
    assert_eq!(network.run(500 * NANOSECOND), None);
    assert!(network.crash(1) && !network.crash(1) && !network.crash(9));
    assert_eq!(network.send(message(1, 0, 1)), Err(SendError::Down(1)));
    let mut ends = run(&mut network);
    ends.sort_unstable();
    assert!(matches!(ends[..], [(0, None), (1, None), (2, None), (3, Some(_))]), "{ends:?}");
    assert_idle(&mut network, before);
    assert!(network.restart(1) && !network.restart(1));
    for (from, to) in [(0, 2), (1, 0)] {
        network.send(message(from, to, 49_600)).expect("room");
        assert!(matches!(network.run_out(), Some(Outcome::Delivered { .. })));
    }
    assert_idle(&mut network, before);
}

#[test]
fn a_lossy_link_sends_again_and_loses_nothing() {
    let link = LinkModel { damaged_per_million: 200_000, ..Settings::default().link };
    let mut network = network(mesh(2, 1), Settings { link, ..Settings::default() });
    network.send(message(0, 1, 496 * 1_000)).expect("room");
    let [(0, Some(at))] = run(&mut network)[..] else { panic!("one message arrives") };
    let counts = network.counts(0, 0).expect("a link");
    assert_eq!((counts.packets, counts.lost), (1_000, 0));
    assert!((200..300).contains(&counts.resent), "a fifth of what is sent: {counts:?}");
    // Each damaged packet costs its own time and the way of the news, there and back.
    let base = 2 * 40_000 + 20_000 + 1_000 * 40_960;
    assert_eq!(at, base + counts.resent * (40_960 + 2 * 20_000));
}

#[test]
fn a_packet_that_cannot_move_is_lost_in_the_end() {
    // Two packets that wait for each other: a ring without virtual channels.
    struct Clockwise;
    impl Route for Clockwise {
        fn vcs(&self) -> u8 {
            1
        }
        fn next(&self, _: Vertex, _: Option<(Port, u8)>, _: &Heading, ways: &mut Vec<Choice>) {
            ways.clear();
            ways.push(Choice { port: 0, vc: 0 });
        }
    }
    let mut builder = GraphBuilder::new();
    builder.vertices(Kind::Host, 4, 2).expect("room");
    for vertex in 0..4 {
        let next = (vertex + 1) % 4;
        builder.link((vertex, 0), (next, 1), LinkClass::default()).expect("ports");
    }
    let graph = builder.build(Layout::Irregular).expect("a ring");
    let settings = Settings { buffer_bytes: 512, ..Settings::default() };
    let mut network = Network::new(graph, Box::new(Clockwise), settings).expect("settings");
    let before = network.credits();
    for from in 0..4 {
        for tag in 0..10 {
            network.send(Message { tag, ..message(from, (from + 2) % 4, 496) }).expect("room");
        }
    }
    let mut lost = 0;
    while let Some(outcome) = network.run_out() {
        if let Outcome::Lost { because: LostBecause::Patience, at, .. } = outcome {
            assert!(at >= network.settings().patience);
            lost += 1;
        }
    }
    assert!(lost >= 1, "the ring has a deadlock, and patience ends it");
    assert_idle(&mut network, before);
}

/// A network with the tables of a shape, which have groups.
fn routed(shape: &str, settings: Settings) -> Network {
    let graph = shape.parse::<Shape>().expect("a shape").graph(None).expect("a graph");
    let routes = Routes::compute(&graph, Algorithm::Auto).expect("routes");
    Network::new(graph, Box::new(routes), settings).expect("sound settings")
}

fn to_all(from: Vertex, bytes: u64, tag: u64) -> Message {
    Message { from, to: Destination::Group(BROADCAST), bytes, class: 0, tag }
}

fn packets_in(network: &Network) -> Vec<u64> {
    let hosts: Vec<Vertex> = network.graph().hosts().collect();
    hosts.iter().map(|host| network.host_counts(*host).expect("a host").1.packets).collect()
}

#[test]
fn a_broadcast_crosses_each_link_of_the_tree_once_and_reaches_all_but_its_sender() {
    let mut network = routed("torus:4x4x4", Settings::default());
    let before = network.credits();
    network.send(to_all(5, 496 * 10, 7)).expect("a member");
    let Some(Outcome::Delivered { message, at, hops, .. }) = network.run_out() else {
        panic!("it arrives")
    };
    assert_eq!(message.tag, 7);
    // The last packet is ten packets behind the begin of the first, and takes the sum of its hops.
    let hops = u64::from(hops);
    assert!((3..=64).contains(&hops), "{hops} hops");
    assert_eq!(at, 10 * 40_960 + (hops + 1) * 40_000 + hops * 20_000);
    let ports = |vertex| (0..network.graph().ports(vertex)).map(move |port| (vertex, port));
    let counts = (0..64).flat_map(ports).filter_map(|(vertex, port)| network.counts(vertex, port));
    let crossed: Vec<u64> = counts.map(|counts| counts.packets).filter(|n| *n > 0).collect();
    assert_eq!(crossed, [10; 63], "a tree of 64 vertices has 63 links");
    let expected: Vec<u64> = (0..64).map(|host| if host == 5 { 0 } else { 10 }).collect();
    assert_eq!(packets_in(&network), expected);
    assert_idle(&mut network, before);
}

#[test]
fn many_broadcasts_with_small_buffers_all_arrive() {
    // Copies for the branches share the room of their packet, and hold it until the last has left.
    let mut network = routed("torus:4x4", Settings { buffer_bytes: 512, ..Settings::default() });
    let before = network.credits();
    for tag in 0..16 {
        network.send(to_all(u32::try_from(tag).expect("small"), 1_500, tag)).expect("a member");
        network.send(message(0, 9, 3_000)).expect("room");
    }
    let ends = run(&mut network);
    assert_eq!(ends.len(), 32);
    assert!(ends.iter().all(|end| end.1.is_some()), "{ends:?}");
    // Four packets of each of 15 others, and those to host 9.
    let received = packets_in(&network);
    assert_eq!((received[0], received[9]), (60, 60 + 16 * 7));
    assert_idle(&mut network, before);
}

#[test]
fn only_the_members_of_a_group_get_its_messages_and_may_send_them() {
    let graph = "torus:4x4".parse::<Shape>().expect("a shape").graph(None).expect("a graph");
    let mut routes = Routes::compute(&graph, Algorithm::Auto).expect("routes");
    assert!(routes.tables_mut().multicast_mut().set_members(&graph, 3, [1, 6, 11].into()));
    let mut network =
        Network::new(graph, Box::new(routes), Settings::default()).expect("sound settings");
    let before = network.credits();
    let to_group = |from| Message { to: Destination::Group(3), ..message(from, 0, 8) };
    network.send(to_group(6)).expect("a member");
    assert!(matches!(network.run_out(), Some(Outcome::Delivered { .. })));
    let received = packets_in(&network);
    let expected = (0..16).map(|host| u64::from([1, 11].contains(&host)));
    assert_eq!(received, expected.collect::<Vec<_>>());
    let refused = network.send(to_group(2));
    assert_eq!(refused, Err(SendError::NotMember { from: 2, group: 3 }));
    assert_idle(&mut network, before);
}

#[test]
fn a_broadcast_over_a_link_that_is_cut_is_lost_once_and_leaves_nothing() {
    let mut network = routed("torus:4x4", Settings::default());
    let before = network.credits();
    network.send(to_all(0, 496 * 50, 1)).expect("a member");
    assert_eq!(network.run(MICROSECOND), None);
    assert!(network.crash(6));
    let ends: Vec<Outcome> = std::iter::from_fn(|| network.run_out()).collect();
    assert!(matches!(ends[..], [Outcome::Lost { .. }]), "{ends:?}");
    assert_idle(&mut network, before);
}

#[test]
fn what_is_of_no_use_is_refused() {
    let mut network = network(mesh(2, 1), Settings { messages_max: 1, ..Settings::default() });
    assert_eq!(network.send(message(0, 2, 1)), Err(SendError::NotHost(2)));
    assert_eq!(network.send(message(7, 0, 1)), Err(SendError::NotHost(7)));
    network.send(message(0, 1, 1)).expect("room");
    assert_eq!(network.send(message(0, 1, 1)), Err(SendError::Full(1)));
    let empty = GraphBuilder::new().build(Layout::Irregular).expect("a graph of nothing");
    let route = Minimal::of(&empty, false);
    let none = Network::new(empty, route, Settings::default()).map(|_| ());
    assert_eq!(none, Err(NetworkError::NoHosts));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 48 }))]

    /// Traffic, cuts, crashes, slow and lossy links at random: every message that was accepted ends
    /// once, all credits come back, and the same seed gives the same run.
    #[test]
    fn every_message_ends_once_and_no_credit_is_lost(seed: u64, is_adaptive: bool) {
        let once = soak(seed, is_adaptive);
        prop_assert_eq!(once, soak(seed, is_adaptive));
    }
}

fn soak(seed: u64, is_adaptive: bool) -> Vec<(u64, Option<Time>)> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let graph = mesh(3, 3);
    let route = Minimal::of(&graph, is_adaptive);
    let settings = Settings {
        seed,
        classes: 2,
        buffer_bytes: random.random_range(512..3_000),
        arbitration: [Arbitration::RoundRobin, Arbitration::Age][random.random_range(0..2)],
        patience: 20 * MICROSECOND,
        ..Settings::default()
    };
    let link = settings.link;
    let mut network = Network::new(graph, route, settings).expect("sound settings");
    let before = network.credits();
    let (mut accepted, mut ends) = (0_u64, Vec::new());
    for _ in 0..400 {
        let [a, b] = [0, 0].map(|_| random.random_range(0..9));
        let port = random.random_range(0..4);
        match random.random_range(0..40) {
            0 => drop(network.cut(a, port)),
            1..=2 => drop(network.heal(a, port)),
            3 => drop(network.crash(a)),
            4..=5 => drop(network.restart(a)),
            6 => {
                let bits_per_second = random.random_range(1..100) * 1_000_000_000;
                let damaged_per_million = random.random_range(0..100_000);
                let model = LinkModel { bits_per_second, damaged_per_million, ..link };
                network.set_link(a, port, model).expect("sound");
            }
            _ => {
                let bytes = random.random_range(0..3_000);
                let class = random.random_range(0..2);
                let sent = network.send(Message { class, tag: accepted, ..message(a, b, bytes) });
                accepted += u64::from(sent.is_ok());
            }
        }
        let until = network.now() + random.random_range(0..300_000);
        while let Some(outcome) = network.run(until) {
            ends.push((outcome.message().tag, matches!(outcome, Outcome::Delivered { .. })));
        }
    }
    let mut all: Vec<(u64, Option<Time>)> = Vec::new();
    while let Some(outcome) = network.run_out() {
        ends.push((outcome.message().tag, matches!(outcome, Outcome::Delivered { .. })));
        all.push((outcome.message().tag, Some(network.now())));
    }
    let mut tags: Vec<u64> = ends.iter().map(|end| end.0).collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..accepted).collect::<Vec<_>>());
    assert!(ends.iter().any(|end| end.1), "something arrives");
    assert_eq!((network.messages(), network.packets(), network.credits()), (0, 0, before));
    all
}
