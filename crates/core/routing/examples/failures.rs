//! Fails every link of `torus:8x8x8` on its own, then 100 pairs of links, and checks the routes
//! that follow: `cargo run --release -p weft-routing --example failures [TOPOLOGY [ALGORITHM]]`.
//!
//! Prints how many failures left all hosts connected. Ends with an error at the first one after
//! which a host does not reach another of its part, or where routes, or the change to them, could
//! deadlock.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_routing::check::check;
use weft_routing::dependency::Dependencies;
use weft_routing::{Algorithm, Routes};
use weft_topology::{End, Graph, Shape};

/// The seed of the pairs.
const SEED: u64 = 24;

#[derive(Default)]
struct Tally {
    failures: u32,
    connected: u32,
    parted: u32,
    hops_max: u32,
}

fn fail(graph: &mut Graph, whole: &Routes, links: &[End], tally: &mut Tally) {
    for (vertex, port) in links {
        graph.set_cut(*vertex, *port, true);
    }
    let routes = whole.recompute(graph).expect("routes");
    let report = check(graph, &routes);
    assert!(report.is_sound() || report.parts.len() > 1, "{links:?}: {report:?}");
    assert!(report.is_sound_in_parts(), "{links:?}: {report:?}");
    tally.failures += 1;
    tally.connected += u32::from(report.is_sound());
    tally.parted += u32::from(report.parts.len() > 1);
    tally.hops_max = tally.hops_max.max(report.hops_max);
    let change = Dependencies::of_change(graph, whole, &routes);
    assert_eq!(change.cycle(), None, "{links:?}");
    for (vertex, port) in links {
        graph.set_cut(*vertex, *port, false);
    }
    let again = routes.recompute(graph).expect("routes");
    assert_eq!(again.tables().base(), whole.tables().base(), "{links:?}: not as before");
}

fn print(name: &str, tally: &Tally) {
    let Tally { failures, connected, parted, hops_max } = tally;
    println!(
        "{name}: {failures} failures, {connected} connected, {parted} parted, at most {hops_max} \
         hops, no deadlock before, while or after tables change"
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let shape = arguments.next().unwrap_or_else(|| "torus:8x8x8".to_owned());
    let algorithm = arguments.next().unwrap_or_else(|| "auto".to_owned());
    let shape: Shape = shape.parse().expect("a shape");
    let algorithm: Algorithm = algorithm.parse().expect("an algorithm");
    let mut graph = shape.graph(None).expect("a graph");
    let whole = Routes::compute(&graph, algorithm).expect("routes");
    let links: Vec<End> = graph.links().map(|(end, _, _)| end).collect();
    let mut single = Tally::default();
    for link in &links {
        fail(&mut graph, &whole, &[*link], &mut single);
    }
    print("one link", &single);
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let mut double = Tally::default();
    for _ in 0..100 {
        let pair = [0, 1].map(|_| links[random.random_range(0..links.len())]);
        fail(&mut graph, &whole, &pair, &mut double);
    }
    print("two links", &double);
}
