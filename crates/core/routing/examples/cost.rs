//! The cost of routes against the size of a network: `cargo run --release -p weft-routing --example
//! cost`, with topologies as arguments or for tori of 64 to 65,536 hosts. Prints a row for each:
//! seconds of the processor to compute and to check, megabytes of tables and of all memory, and
//! pairs of hosts with a route.

use std::fs;

use weft_routing::check::check;
use weft_routing::{Algorithm, Routes};
use weft_topology::Shape;

/// The seconds that this thread has had a processor. Others on the machine do not count.
fn seconds() -> f64 {
    let told = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells it");
    let nanoseconds = told.split(' ').next().and_then(|first| first.parse::<f64>().ok());
    nanoseconds.expect("a number") / 1e9
}

/// The most memory that the process had so far, in megabytes.
fn memory_peak() -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
    kilobytes.map_or(0.0, |kilobytes: f64| kilobytes * 1_024.0 / 1e6)
}

fn main() {
    println!("| hosts | topology | compute s | check s | tables MB | memory MB | routes |");
    println!("|---|---|---|---|---|---|---|");
    let given: Vec<String> = std::env::args().skip(1).collect();
    let tori = ["4x4x4", "8x8x8", "16x16x16", "32x16x16", "32x32x16", "32x32x32", "32x32x64"];
    let usual = tori.map(|sizes| format!("torus:{sizes}")).to_vec();
    for text in if given.is_empty() { usual } else { given } {
        let shape: Shape = text.parse().expect("a shape");
        let graph = shape.graph(None).expect("a graph");
        let start = seconds();
        let routes = Routes::compute(&graph, Algorithm::Auto).expect("routes");
        let computed = seconds() - start;
        let start = seconds();
        let report = check(&graph, &routes);
        let checked = seconds() - start;
        assert!(report.is_sound(), "{report:?}");
        let megabytes = routes.tables().bytes() as f64 / 1e6;
        println!(
            "| {} | {text} | {computed:.3} | {checked:.3} | {megabytes:.1} | {:.0} | {} |",
            report.hosts,
            memory_peak(),
            report.routed
        );
    }
}
