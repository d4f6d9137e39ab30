//! Rates are max-min fair, and the flow level agrees with the message level where both can run.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_topology::{Graph, GraphBuilder, Kind, Layout, LinkClass};

use super::*;
use crate::tests::{Minimal, mesh, message, run};
use crate::{LinkModel, Message, Network};

/// Bytes of payload in a nanosecond over a link of 100 Gbit/s.
const FULL: f64 = 12.5 * 496.0 / 512.0;

fn flows(graph: &Graph) -> FlowNetwork {
    FlowNetwork::new(graph, Minimal::of(graph, false), Settings::default()).expect("sound")
}

fn flow(from: u32, to: u32, bytes: u64, tag: u64) -> Flow {
    Flow { from, to, bytes, tag }
}

/// The ends of all flows, by tag.
fn ends(network: &mut FlowNetwork) -> Vec<Time> {
    let mut ends: Vec<FlowEnd> = std::iter::from_fn(|| network.run_out()).collect();
    assert_eq!(network.flows(), 0);
    ends.sort_by_key(|end| end.flow.tag);
    ends.iter().map(|end| end.at).collect()
}

/// Whether two times differ by so many of a thousand at most.
fn near(a: Time, b: Time, per_mille: u64) -> bool {
    a.abs_diff(b) * 1_000 <= a.max(b) * per_mille
}

#[test]
fn flows_share_a_link_and_take_over_what_is_given_back() {
    let mut network = flows(&mesh(2, 1));
    network.begin(flow(0, 1, 1_000_000, 0)).expect("a way");
    network.begin(flow(0, 1, 3_000_000, 1)).expect("a way");
    let ends = ends(&mut network);
    // 2 MB at half of the rate each, then 2 MB at the full one; the way takes 100 ns.
    let [short, long] = [2_000_000.0, 4_000_000.0].map(|bytes| whole(bytes / FULL * 1_000.0));
    assert!(ends[0].abs_diff(short + 100_000) <= 1_000, "{ends:?} {short}");
    assert!(ends[1].abs_diff(long + 100_000) <= 2_000, "{ends:?} {long}");
    // Once for both, and once for the second alone.
    assert_eq!(network.fills(), 3, "the last one finds no flow");
}

#[test]
fn a_flow_that_is_bounded_elsewhere_leaves_its_share_to_others() {
    // 0 -> 1 has a tenth of the capacity of 1 -> 2.
    let mut builder = GraphBuilder::new();
    builder.vertices(Kind::Host, 3, 2).expect("room");
    let slow = LinkClass { bandwidth: 10_000_000_000, ..LinkClass::default() };
    builder.link((0, 0), (1, 1), slow).expect("ports");
    builder.link((1, 0), (2, 1), LinkClass::default()).expect("ports");
    let graph = builder.build(Layout::Irregular).expect("a row");
    let mut network = flows(&graph);
    for (tag, from) in [(0, 0), (1, 1), (2, 1)] {
        network.begin(flow(from, 2, 10_000_000, tag)).expect("a way");
    }
    assert_eq!(network.run(1), None);
    let rates: Vec<f64> = network.flows.iter().map(|(_, flow)| flow.rate * 1_000.0).collect();
    let expected = [0.1 * FULL, 0.45 * FULL, 0.45 * FULL];
    for (rate, expected) in rates.iter().zip(expected) {
        assert!((rate - expected).abs() < 1e-9, "{rates:?}");
    }
}

#[test]
fn flows_without_a_way_are_refused() {
    let mut graph = mesh(3, 1);
    graph.set_cut(1, 0, true);
    let mut network = flows(&graph);
    assert_eq!(network.begin(flow(0, 2, 1, 0)), Err(FlowError::NoWay { from: 0, to: 2 }));
    assert_eq!(network.begin(flow(0, 3, 1, 0)), Err(FlowError::NotHost(3)));
    assert_eq!(network.begin(flow(0, 1, 0, 0)), Ok(()));
    assert_eq!(ends(&mut network), [100_000]);
}

proptest! {
    /// Max-min fair: every flow has a link that is full, and on which none has more.
    #[test]
    fn every_flow_is_bounded_by_a_full_link_of_which_it_has_the_largest_share(
        pairs in prop::collection::vec((0_u32..12, 0_u32..12), 1..60),
    ) {
        let mut network = flows(&mesh(4, 3));
        for (from, to) in pairs {
            network.begin(flow(from, to, 1 << 30, 0)).expect("a way");
        }
        prop_assert_eq!(network.run(1), None);
        let on = |link: LinkId| {
            let of_link = network.flows.iter().filter(move |(_, flow)| flow.path.contains(&link));
            of_link.map(|(_, flow)| flow.rate)
        };
        for (_, flow) in network.flows.iter() {
            let bounds = |link: &LinkId| {
                let capacity = network.capacities[index(*link)];
                let (all, most) = (on(*link).sum::<f64>(), on(*link).fold(0.0, f64::max));
                assert!(all <= capacity * (1.0 + 1e-9), "{all} on a link of {capacity}");
                all >= capacity * (1.0 - 1e-9) && flow.rate >= most * (1.0 - 1e-9)
            };
            prop_assert!(flow.path.iter().any(bounds));
        }
    }
}

/// Runs the same transfers at both levels, and returns when each ended, by its place.
fn both(graph: &Graph, pairs: &[(u32, u32)], bytes: u64) -> (Vec<Time>, Vec<Time>) {
    let mut by_flows = flows(graph);
    let route = Minimal::of(graph, false);
    let mut by_packets = Network::new(graph.clone(), route, Settings::default()).expect("sound");
    for (tag, (from, to)) in (0..).zip(pairs) {
        by_flows.begin(flow(*from, *to, bytes, tag)).expect("a way");
        by_packets.send(Message { tag, ..message(*from, *to, bytes) }).expect("room");
    }
    let mut packets = run(&mut by_packets);
    packets.sort_unstable();
    (ends(&mut by_flows), packets.into_iter().filter_map(|(_, at)| at).collect())
}

#[test]
fn the_levels_agree_on_a_flow_alone() {
    let (flows, packets) = both(&mesh(6, 1), &[(0, 5)], 496_000);
    assert!(near(flows[0], packets[0], 2), "{flows:?} {packets:?}");
}

#[test]
fn the_levels_agree_on_an_incast() {
    // All eight hosts around the middle one send to it: the link to the host bounds them. Packets
    // of two rows share links on the way, by turns, so that single flows differ, and the end of all
    // does not.
    let pairs: Vec<(u32, u32)> = (0..9).filter(|from| *from != 4).map(|from| (from, 4)).collect();
    let (flows, packets) = both(&mesh(3, 3), &pairs, 248_000);
    let [by_flows, by_packets] = [flows, packets].map(|all| all.into_iter().max());
    let (by_flows, by_packets) = by_flows.zip(by_packets).expect("all end");
    assert!(near(by_flows, by_packets, 10), "{by_flows} {by_packets}");
}

#[test]
fn the_levels_agree_on_permutations() {
    // Each host sends to one other: flows meet at links of the mesh, and no two at a host.
    let graph = mesh(4, 4);
    for seed in 0..8 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut to: Vec<u32> = (0..16).collect();
        for place in (1..to.len()).rev() {
            to.swap(place, random.random_range(0..=place));
        }
        let pairs: Vec<(u32, u32)> = (0..).zip(to).collect();
        let (flows, packets) = both(&graph, &pairs, 496_000);
        let sum = |ends: &[Time]| ends.iter().sum::<Time>();
        assert!(near(sum(&flows), sum(&packets), 50), "seed {seed}: {flows:?} {packets:?}");
        let last = |ends: &[Time]| ends.iter().copied().max().unwrap_or(0);
        assert!(near(last(&flows), last(&packets), 50), "seed {seed}: {flows:?} {packets:?}");
    }
}

/// Two ways from host 0 to host 3: over 1 and over 2.
fn square() -> Graph {
    let mut builder = GraphBuilder::new();
    builder.vertices(Kind::Host, 4, 2).expect("room");
    for (a, b) in [((0, 0), (1, 0)), ((1, 1), (3, 0)), ((0, 1), (2, 0)), ((2, 1), (3, 1))] {
        builder.link(a, b, LinkClass::default()).expect("ports");
    }
    builder.build(Layout::Irregular).expect("a square")
}

#[test]
fn a_flow_on_a_cut_link_stands_still_and_goes_on_over_another_way() {
    let graph = square();
    let mut network = flows(&graph);
    network.begin(flow(0, 3, 6_000_000, 0)).expect("a way");
    let whole_time = whole(6_000_000.0 / FULL * 1_000.0);
    assert_eq!(network.run(whole_time / 2), None);
    let first = network.path(flow(0, 3, 0, 0)).expect("a way").0[1];
    let port = (0..2).find(|port| network.links.out_of(0, *port) == first).expect("a port");
    assert!(network.cut(0, port));
    assert_eq!(network.run(whole_time), None, "it stands still for half of its time");
    let reachable = network.reachable();
    network.set_route(Minimal::of(&reachable, false));
    let end = network.run_out().expect("it ends");
    assert_eq!(end.ending, Ending::Arrived);
    // Two links and three routers, and half of the time for nothing.
    let wanted = whole_time + whole_time / 2 + 160_000;
    assert!(end.at.abs_diff(wanted) <= 2_000, "{} {wanted}", end.at);
}

#[test]
fn a_flow_without_a_way_or_with_a_host_that_crashed_is_lost() {
    let graph = square();
    let mut network = flows(&graph);
    for (tag, to) in [(0, 3), (1, 1), (2, 2)] {
        network.begin(flow(0, to, 1_000_000, tag)).expect("a way");
    }
    assert_eq!(network.run(1_000_000), None);
    assert!(network.crash(3) && !network.crash(3));
    let end = network.run(1_000_000).expect("its receiver is down");
    assert_eq!((end.flow.tag, end.ending, end.at), (0, Ending::Lost, 1_000_000));
    assert!(network.cut(0, 0), "the link to 1, which has no other way by now");
    let reachable = network.reachable();
    network.set_route(Minimal::of(&reachable, false));
    let end = network.run(1_000_000).expect("no way is left");
    assert_eq!((end.flow.tag, end.ending), (1, Ending::Lost));
    assert!(network.begin(flow(0, 1, 1, 3)).is_err());
    assert!(network.heal(0, 0) && network.restart(3) && !network.restart(3));
    network.set_route(Minimal::of(&graph, false));
    network.begin(flow(0, 1, 1, 4)).expect("it is mended");
    let ends: Vec<_> = std::iter::from_fn(|| network.run_out()).collect();
    assert_eq!(ends.iter().map(|end| end.flow.tag).collect::<Vec<_>>(), [4, 2]);
}

#[test]
fn a_slow_link_slows_its_flows_from_then_on() {
    let mut network = flows(&mesh(2, 1));
    network.begin(flow(0, 1, 2_000_000, 0)).expect("a way");
    let time = |bytes: f64, rate: f64| whole(bytes / (FULL * rate) * 1_000.0);
    assert_eq!(network.run(time(1_000_000.0, 1.0)), None);
    let port = (0..4).find(|port| network.graph.wired(0, *port).is_some()).expect("a link");
    let usual = Settings::default().link;
    let slow = LinkModel { bits_per_second: usual.bits_per_second / 10, ..usual };
    assert_eq!(network.set_link(0, port, slow), Ok(true));
    let end = network.run_out().expect("it ends").at;
    let wanted = time(1_000_000.0, 1.0) + time(1_000_000.0, 0.1) + 100_000;
    assert!(end.abs_diff(wanted) <= 2_000, "{end} {wanted}");
}
