//! A soak test of ports on a simulated network. A seed determines each run.
//!
//! Several nodes send each other packets of all sizes, while links are slow, uneven, cut and
//! mended, nodes die and come back, and receivers look seldom. All that arrives is whole, and in
//! the order in which its sender gave it. No call of a port lets time pass, and no memory grows
//! beyond its bound. In the end all faults are over: then nothing waits any more, and every node
//! reaches every other. Without deaths and long cuts nothing is lost.
//!
//! The same runs over a torus, whose links are cut and mended one at a time.
//!
//! `WEFT_SEEDS=from..to` runs other seeds.

mod network;
mod plan;
mod traffic;

use std::panic::{AssertUnwindSafe, catch_unwind};

use network::Network;
use plan::Plan;

fn seeds(default: &str) -> std::ops::Range<u64> {
    let wanted = std::env::var("WEFT_SEEDS").unwrap_or_else(|_| default.into());
    let (from, to) = wanted.split_once("..").expect("WEFT_SEEDS=from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn every_seed_delivers_in_order_and_comes_to_rest() {
    soak(seeds("0..100"), Plan::new);
}

#[test]
fn over_a_torus_whose_links_flap_every_seed_delivers_in_order_and_comes_to_rest() {
    soak(seeds("0..25"), Plan::in_torus);
}

fn soak(seeds: std::ops::Range<u64>, plan: impl Fn(u64) -> Plan) {
    let (mut delivered, mut lost) = (0, 0);
    for seed in seeds {
        let run = || Network::new(plan(seed)).run();
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(counts) => {
                delivered += counts.delivered;
                lost += counts.sent - counts.delivered;
            }
            Err(reason) => {
                eprintln!("seed {seed} fails: {:?}", plan(seed));
                std::panic::resume_unwind(reason);
            }
        }
    }
    println!("{delivered} packets were delivered, and {lost} were lost to faults");
    assert!(delivered > lost, "most of it is to arrive");
}
