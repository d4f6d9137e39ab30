//! Every layout with every algorithm that it has: all hosts reach each other, by the tables and by
//! steps of packets, and no channels wait for each other in a circle.

use std::collections::BTreeSet;

use weft_routing::check::check;
use weft_routing::{Algorithm, Choice, Heading, Route, Routes, RoutingError};
use weft_topology::{Graph, Shape, Vertex};

fn graph(text: &str) -> Graph {
    text.parse::<Shape>().and_then(|shape| shape.graph(None)).expect("a graph")
}

fn routes(graph: &Graph, algorithm: Algorithm) -> Routes {
    Routes::compute(graph, algorithm).expect("routes")
}

/// Follows a packet step by step. At each step `pick` takes one of several choices.
fn follow(
    graph: &Graph,
    routes: &Routes,
    heading: &Heading,
    mut pick: impl FnMut(&[Choice]) -> usize,
) -> Option<u32> {
    let (mut at, mut arrived, mut hops) = (heading.from, None, 0);
    let mut choices = Vec::new();
    while at != heading.to {
        routes.next(at, arrived, heading, &mut choices);
        if choices.is_empty() {
            return None;
        }
        let choice = choices[pick(&choices)];
        assert!(choice.vc < routes.vcs(), "{choice:?}");
        let (next, port) = graph.far(at, choice.port).expect("the link is there");
        (at, arrived) = (next, Some((port, choice.vc)));
        hops += 1;
        assert!(hops <= 4 * graph.vertices(), "the packet {heading:?} never arrives");
    }
    Some(hops)
}

#[test]
fn all_layouts_are_sound_by_all_algorithms() {
    use Algorithm::{Adaptive, Auto, DimensionOrder, UpDown, Valiant};
    let grids = ["torus:5x4", "torus:4x4x4", "torus:2x2x2", "mesh:4x3x2", "hypercube:5", "torus:7"];
    let others = ["fattree:3x3", "fattree:2x4", "dragonfly:2", "dragonfly:4,1,2,3", "full:9"];
    for text in grids.iter().chain(&others) {
        let graph = graph(text);
        for algorithm in [Auto, DimensionOrder, Adaptive, Valiant, UpDown] {
            if algorithm == DimensionOrder && others.contains(text) {
                assert_eq!(Routes::compute(&graph, algorithm), Err(RoutingError::NoGrid));
                continue;
            }
            let routes = routes(&graph, algorithm);
            let report = check(&graph, &routes);
            assert!(report.is_sound(), "{text} {algorithm}: {report:?}");
            assert_eq!(report.is_extended, algorithm == Adaptive && grids.contains(text));
        }
    }
}

#[test]
fn deterministic_routes_of_regular_networks_are_as_short_as_any() {
    for text in [
        "torus:5x4",
        "torus:4x4x4",
        "mesh:4x3x2",
        "hypercube:5",
        "fattree:3x3",
        "dragonfly:2",
        "full:9",
    ] {
        let graph = graph(text);
        let routes = routes(&graph, Algorithm::Auto);
        for from in graph.hosts() {
            let shortest = graph.hops(from);
            for to in graph.hosts() {
                let hops = follow(&graph, &routes, &Heading::new(from, to), |choices| {
                    assert_eq!(choices.len(), 1, "{text}");
                    0
                });
                // A dragonfly goes over one link between groups, and some pairs have a way over two
                // that is shorter.
                let shortest = shortest[to as usize];
                assert!(hops == shortest || text.starts_with("dragonfly"), "{text} {from} {to}");
            }
        }
        let report = check(&graph, &routes);
        let hosts: Vec<Vertex> = graph.hosts().collect();
        let sum: u64 = (hosts.iter())
            .flat_map(|from| hosts.iter().map(move |to| Heading::new(*from, *to)))
            .map(|heading| u64::from(follow(&graph, &routes, &heading, |_| 0).expect("a way")))
            .sum();
        assert_eq!(report.hops, sum, "{text}");
    }
}

#[test]
fn adaptive_packets_arrive_whatever_choices_they_take() {
    for text in ["torus:5x4", "torus:4x4", "mesh:4x3x2", "fattree:2x3", "dragonfly:1"] {
        let graph = graph(text);
        let routes = routes(&graph, Algorithm::Adaptive);
        let mut turn = 0_usize;
        for (from, to) in graph.hosts().flat_map(|a| graph.hosts().map(move |b| (a, b))) {
            for _ in 0..4 {
                let hops = follow(&graph, &routes, &Heading::new(from, to), |choices| {
                    turn = turn.wrapping_mul(5).wrapping_add(3);
                    (turn >> 3) % choices.len()
                });
                assert!(hops.is_some(), "{text}: {from} to {to}");
            }
        }
    }
}

#[test]
fn valiant_visits_the_host_that_was_drawn() {
    let graph = graph("torus:4x4");
    let routes = routes(&graph, Algorithm::Valiant);
    assert_eq!(routes.vcs(), 8);
    let far = graph.hops(0);
    let heading = Heading { via: Some(10), ..Heading::new(0, 1) };
    let hops = follow(&graph, &routes, &heading, |_| 0);
    assert_eq!(hops, Some(far[10].expect("a way") + graph.hops(10)[1].expect("a way")));
    let vias: BTreeSet<_> = (0..160).filter_map(|random| routes.via(0, 1, random)).collect();
    assert_eq!(vias.len(), 14, "all but the ends");
    assert!(!vias.contains(&0) && !vias.contains(&1));
}

#[test]
fn opposite_hosts_of_an_even_ring_send_half_of_their_packets_either_way() {
    for text in ["torus:8x8", "torus:12x4x4"] {
        let graph = graph(text);
        let routes = routes(&graph, Algorithm::DimensionOrder);
        let mut load = vec![0_u32; graph.channels() as usize];
        for (from, to) in graph.hosts().flat_map(|a| graph.hosts().map(move |b| (a, b))) {
            let (mut at, mut arrived) = (from, None);
            let mut choices = Vec::new();
            while at != to {
                routes.next(at, arrived, &Heading::new(from, to), &mut choices);
                load[graph.channel(at, choices[0].port).expect("a port") as usize] += 1;
                let (next, port) = graph.far(at, choices[0].port).expect("a link");
                (at, arrived) = (next, Some((port, choices[0].vc)));
            }
        }
        // Every channel of a dimension has the same load under uniform traffic.
        let sizes: BTreeSet<_> = load.into_iter().collect();
        assert!(sizes.len() <= 2, "{text}: {sizes:?}");
    }
}

#[test]
fn large_networks_are_sound_over_segments() {
    for (text, algorithm) in [
        ("torus:16x16x5", Algorithm::Auto),
        ("mesh:48x48", Algorithm::Auto),
        ("fattree:6x4", Algorithm::Auto),
        ("dragonfly:16,8,2,20", Algorithm::Valiant),
        ("torus:16x16x5", Algorithm::UpDown),
        ("torus:16x16x5", Algorithm::Adaptive),
    ] {
        let graph = graph(text);
        let routes = routes(&graph, algorithm);
        assert!(routes.tables().numbering().segments() > 1, "{text}");
        let report = check(&graph, &routes);
        assert!(report.is_sound(), "{text} {algorithm}: {report:?}");
    }
}

#[test]
fn blocks_that_are_not_in_order_take_channels_of_their_own() {
    // 11 x 11 x 11 x 11 = 14,641 hosts, of which no whole number of dimensions is a segment.
    let graph = graph("torus:11x11x11x11");
    let routes = routes(&graph, Algorithm::DimensionOrder);
    let hosts: Vec<Vertex> = graph.hosts().step_by(97).collect();
    for (from, to) in hosts.iter().flat_map(|a| hosts.iter().map(move |b| (*a, *b))) {
        assert!(follow(&graph, &routes, &Heading::new(from, to), |_| 0).is_some());
    }
    assert_eq!(weft_routing::dependency::Dependencies::of(&graph, &routes).cycle(), None);
}

#[test]
fn an_irregular_network_goes_up_and_down() {
    let mut seed = 1_u64;
    for round in 0..20 {
        let mut links = String::new();
        for vertex in 1..40 {
            for _ in 0..=round % 3 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                links.push_str(&format!("{}-{vertex},", (seed >> 33) % vertex));
            }
        }
        let graph = graph(&format!("links:{links}"));
        for algorithm in [Algorithm::Auto, Algorithm::Adaptive, Algorithm::Valiant] {
            let report = check(&graph, &routes(&graph, algorithm));
            assert!(report.is_sound(), "round {round} {algorithm}: {report:?}");
        }
    }
}

#[test]
fn weights_lead_packets_around_a_link() {
    let text = "hosts = [\"a\", \"b\", \"c\"]\nlinks = [{ ends = [\"a\", \"c\"] }, { ends = \
                [\"a\", \"b\"], weight = 5 }, { ends = [\"b\", \"c\"] }]";
    let graph = weft_topology::file::parse(text).expect("a graph").graph;
    let routes = routes(&graph, Algorithm::Auto);
    assert!(check(&graph, &routes).is_sound());
    let hops = |from, to| follow(&graph, &routes, &Heading::new(from, to), |_| 0);
    assert_eq!((hops(0, 2), hops(1, 2)), (Some(1), Some(1)));
    // The link between a and b costs more than two others, up and down.
    assert_eq!((hops(0, 1), hops(1, 0)), (Some(2), Some(2)));
}

#[test]
fn the_highest_weights_leave_all_pairs_routed() {
    let text = "hosts = [\"a\", \"b\", \"c\"]\nswitches = [\"s\"]\nlinks = [\n{ ends = [\"a\", \
                \"s\"], weight = 4294967295 }, { ends = [\"s\", \"b\"], weight = 4294967295 }, { \
                ends = [\"b\", \"c\"], weight = 4294967295 }]";
    let graph = weft_topology::file::parse(text).expect("a graph").graph;
    let report = check(&graph, &routes(&graph, Algorithm::UpDown));
    assert_eq!((report.routed, report.unrouted), (6, 0));
}

#[test]
fn groups_reach_their_members_and_no_other() {
    let graph = graph("torus:4x4x4");
    let mut routes = routes(&graph, Algorithm::Auto);
    let members = BTreeSet::from([3, 17, 42, 60]);
    assert!(routes.tables_mut().multicast_mut().set_members(&graph, 5, members.clone()));
    assert!(!routes.tables_mut().multicast_mut().set_members(&graph, 63, members.clone()));
    let multicast = routes.tables().multicast();
    for start in &members {
        let mut reached = Vec::new();
        let mut packets = vec![(*start, None)];
        while let Some((at, arrived)) = packets.pop() {
            reached.extend(multicast.is_member(5, at).then_some(at));
            let ends = multicast.forward(5, at, arrived).filter_map(|port| graph.far(at, port));
            packets.extend(ends.map(|(next, port)| (next, Some(port))));
        }
        reached.sort_unstable();
        assert_eq!(reached, Vec::from_iter(members.clone()));
    }
    assert!(check(&graph, &routes).is_sound());
    assert!(multicast.forward(6, 3, None).next().is_none(), "nobody is in group 6");
}
