//! The cost of routes against the size of a network: `cargo run --release -p weft-routing --example
//! cost`, with topologies as arguments or for tori of 64 to 65,536 hosts. Prints a row for each:
//! seconds to compute and to check, megabytes of tables, pairs of hosts with a route.
#![allow(clippy::disallowed_methods)] // It measures.

use std::time::Instant;

use weft_routing::check::check;
use weft_routing::{Algorithm, Routes};
use weft_topology::Shape;

fn main() {
    println!("| hosts | topology | compute s | check s | tables MB | routes |");
    println!("|---|---|---|---|---|---|");
    let given: Vec<String> = std::env::args().skip(1).collect();
    let tori = ["4x4x4", "8x8x8", "16x16x16", "32x16x16", "32x32x16", "32x32x32", "32x32x64"];
    let usual = tori.map(|sizes| format!("torus:{sizes}")).to_vec();
    for text in if given.is_empty() { usual } else { given } {
        let shape: Shape = text.parse().expect("a shape");
        let graph = shape.graph(None).expect("a graph");
        let start = Instant::now();
        let routes = Routes::compute(&graph, Algorithm::Auto).expect("routes");
        let computed = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let report = check(&graph, &routes);
        let checked = start.elapsed().as_secs_f64();
        assert!(report.is_sound(), "{report:?}");
        let megabytes = routes.tables().bytes() as f64 / 1e6;
        println!(
            "| {} | {text} | {computed:.3} | {checked:.3} | {megabytes:.1} | {} |",
            report.hosts, report.routed
        );
    }
}
