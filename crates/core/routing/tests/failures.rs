//! Links and vertices fail and come back: routes lead around them, and nothing deadlocks.

use proptest::prelude::*;
use weft_routing::check::check;
use weft_routing::dependency::Dependencies;
use weft_routing::{Algorithm, Route, Routes};
use weft_topology::{End, Graph, Shape};

fn graph(text: &str) -> Graph {
    text.parse::<Shape>().and_then(|shape| shape.graph(None)).expect("a graph")
}

fn links(graph: &Graph) -> Vec<End> {
    graph.links().map(|(end, _, _)| end).collect()
}

#[test]
fn any_link_may_fail_and_tables_change_without_a_pause() {
    // `--example failures` does the same for all 1,536 links of torus:8x8x8.
    for (text, algorithm, step) in [
        ("torus:4x4x4", Algorithm::Auto, 1),
        ("torus:8x8x8", Algorithm::Auto, 211),
        ("torus:5x4", Algorithm::Adaptive, 1),
        ("mesh:4x4", Algorithm::Valiant, 1),
        ("hypercube:4", Algorithm::UpDown, 1),
        ("fattree:3x2", Algorithm::Auto, 1),
        ("dragonfly:2", Algorithm::Auto, 3),
        ("full:6", Algorithm::Auto, 1),
    ] {
        let mut graph = graph(text);
        let whole = Routes::compute(&graph, algorithm).expect("routes");
        for (vertex, port) in links(&graph).into_iter().step_by(step) {
            graph.set_cut(vertex, port, true);
            let routes = whole.recompute(&graph).expect("routes");
            let report = check(&graph, &routes);
            // The link of a host of a tree or dragonfly is its only one.
            let is_last = report.parts.len() > 1;
            let told = format!("{text} {algorithm}, {vertex}:{port}: {report:?}");
            assert!(if is_last { report.is_sound_in_parts() } else { report.is_sound() }, "{told}");
            assert!(!is_last || graph.ports(report.parts[1][0]) == 1, "{told}");
            let change = Dependencies::of_change(&graph, &whole, &routes);
            assert_eq!(change.cycle(), None, "{told}");
            graph.set_cut(vertex, port, false);
            let again = routes.recompute(&graph).expect("routes");
            assert_eq!(again.tables().base(), whole.tables().base(), "{told}");
        }
    }
}

#[test]
fn a_vertex_that_fails_is_a_part_of_its_own() {
    let mut graph = graph("torus:4x4x4");
    let whole = Routes::compute(&graph, Algorithm::Auto).expect("routes");
    for vertex in (0..64).step_by(9) {
        graph.set_isolated(vertex, true);
        let report = check(&graph, &whole.recompute(&graph).expect("routes"));
        assert_eq!(report.parts.iter().map(Vec::len).collect::<Vec<_>>(), [63, 1]);
        assert!(report.is_sound_in_parts(), "{vertex}: {report:?}");
        assert_eq!(report.unrouted, 126);
        graph.set_isolated(vertex, false);
    }
}

#[test]
fn a_large_network_leads_around_a_failure_over_its_tree() {
    let mut graph = graph("torus:16x16x5");
    let whole = Routes::compute(&graph, Algorithm::Auto).expect("routes");
    for (vertex, port) in [(0, 0), (77, 2), (1_279, 5)] {
        graph.set_cut(vertex, port, true);
        let routes = whole.recompute(&graph).expect("routes");
        let report = check(&graph, &routes);
        assert!(report.is_sound(), "{vertex}:{port}: {report:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn any_failures_leave_the_parts_routed_and_free_of_deadlock(
        shape in 0_usize..5,
        algorithm in 0_usize..4,
        failed in prop::collection::vec(any::<u32>(), 1..25),
    ) {
        let shape = ["torus:5x4", "mesh:3x3x3", "fattree:2x3", "dragonfly:1", "torus:3x3x3"][shape];
        use Algorithm::{Adaptive, Auto, UpDown, Valiant};
        let algorithm = [Auto, UpDown, Valiant, Adaptive][algorithm];
        let mut graph = graph(shape);
        let all = links(&graph);
        let mut routes = Routes::compute(&graph, algorithm).expect("routes");
        for number in failed {
            let (vertex, port) = all[number as usize % all.len()];
            let is_cut = graph.is_cut(vertex, port);
            graph.set_cut(vertex, port, !is_cut);
            let next = routes.recompute(&graph).expect("routes");
            let change = Dependencies::of_change(&graph, &routes, &next).cycle();
            prop_assert_eq!(change, None, "{} {}", shape, algorithm);
            routes = next;
            let report = check(&graph, &routes);
            prop_assert!(report.is_sound_in_parts(), "{} {}: {:?}", shape, algorithm, report);
        }
    }
}

#[test]
fn valiant_makes_no_detour_by_a_host_that_is_cut_off() {
    let mut graph = graph("full:4");
    let routes = Routes::compute(&graph, Algorithm::Valiant).expect("it has such routes");
    let detours = |routes: &Routes| -> Vec<_> { (0..4).map(|n| routes.via(0, 1, n)).collect() };
    assert_eq!(detours(&routes), [None, None, Some(2), Some(3)]);
    graph.set_isolated(3, true);
    let routes = routes.recompute(&graph).expect("the others have ways");
    assert_eq!(detours(&routes), [None, None, Some(2), None]);
}
