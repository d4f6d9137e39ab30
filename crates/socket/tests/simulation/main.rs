//! Simulates the two ends of a connection over a lane and a modelled shadow socket. A seed
//! determines each run. The lanes are those of shared memory, or go over simulated endpoints on two
//! nodes.
//!
//! Each run has two programs with two threads each. The threads read and write at random, get the
//! lane at random moments, and may close, abort or be killed at any moment. Between any two
//! operations on the lane the other threads may run. The bytes must arrive unchanged, an end only
//! behind all of them, and no thread may sleep for ever or spin.
//!
//! Over a torus its links are cut and mended, too, one at a time.
//!
//! Over a network, links have 1 to 100 us of latency, they are cut and mended, and nodes die. A cut
//! that ends all lanes ends no connection: the bytes arrive unchanged all the same, over TCP. Where
//! a node dies, or a program is killed, the other end gets an error; no thread sleeps for ever.
//!
//! `WEFT_SEEDS=from..to` runs other seeds.

#[path = "../ends/mod.rs"]
mod ends;
mod lane;
mod lanes;
mod network;
mod plan;
mod reader;
mod socket;
mod tcp;
mod world;
mod writer;

use std::panic::{AssertUnwindSafe, catch_unwind};

use plan::{Apart, Faults, Plan};
use world::World;

fn run(seed: u64, apart: Apart, faults: Faults) {
    World::new(Plan { faults, ..Plan::new(seed, apart) }).run();
}

fn seeds(default: &str) -> std::ops::Range<u64> {
    let wanted = std::env::var("WEFT_SEEDS").unwrap_or_else(|_| default.into());
    let (from, to) = wanted.split_once("..").expect("WEFT_SEEDS=from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

fn run_all(seeds: std::ops::Range<u64>, apart: Apart) {
    for seed in seeds {
        if let Err(reason) = catch_unwind(AssertUnwindSafe(|| run(seed, apart, Faults::default())))
        {
            eprintln!("seed {seed} fails, {apart:?}");
            std::panic::resume_unwind(reason);
        }
    }
}

#[test]
fn every_seed_delivers_all_bytes_in_order_and_wakes_everybody() {
    run_all(seeds("0..4000"), Apart::OneHost);
}

#[test]
fn over_a_network_every_seed_delivers_all_bytes_although_lanes_are_lost() {
    run_all(seeds("0..400"), Apart::TwoNodes);
}

#[test]
fn over_a_torus_with_links_that_flap_every_seed_delivers_all_bytes_or_gives_an_error() {
    run_all(seeds("0..200"), Apart::Torus);
}

/// The first seed from `from` on that finds a planted mistake.
fn found(apart: Apart, faults: Faults, from: u64) -> Option<u64> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let fails_with =
        |seed: u64, faults| catch_unwind(AssertUnwindSafe(|| run(seed, apart, faults))).is_err();
    let fails = |seed: &u64| fails_with(*seed, faults) && !fails_with(*seed, Faults::default());
    let seed = (from..from + 4_000).find(fails);
    std::panic::set_hook(hook);
    seed
}

#[test]
fn mistakes_of_a_driver_are_found() {
    let none = Faults::default();
    // Each search begins with the seed that finds the mistake at present, so that it is short.
    let planted = [
        (22, Faults { forget_wakeups: true, ..none }),
        (0, Faults { wakeup_before_switch: true, ..none }),
        (1542, Faults { leave_silently: true, ..none }),
        (18, Faults { wakeups_uncounted: true, ..none }),
        (36_882, Faults { close_before_wakeups: true, ..none }),
        (247, Faults { attach_without_arming: true, ..none }),
        (215, Faults { send_nothing_again: true, ..none }),
        (161, Faults { forget_too_early: true, ..none }),
    ];
    all_are_found(Apart::OneHost, &planted);
}

#[test]
fn mistakes_over_a_network_are_found() {
    let none = Faults::default();
    let planted = [
        (43, Faults { forget_rings: true, ..none }),
        (47, Faults { rescue_nobody: true, ..none }),
        (0, Faults { take_record_for_data: true, ..none }),
        (249, Faults { believe_kernel: true, ..none }),
        (18, Faults { leave_lane_at_end: true, ..none }),
        (115, Faults { send_nothing_again: true, ..none }),
    ];
    all_are_found(Apart::TwoNodes, &planted);
}

fn all_are_found(apart: Apart, planted: &[(u64, Faults)]) {
    for (from, faults) in planted {
        let seed = found(apart, *faults, *from);
        println!("{faults:?}: {seed:?}");
        assert!(seed.is_some(), "{faults:?} is not found");
    }
}
