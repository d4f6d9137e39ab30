//! The two ends of a connection over a lane and a modelled kernel socket, without a swarm. A seed
//! determines each run. The lanes are those of shared memory, or go over simulated endpoints on two
//! nodes with a private link.
//!
//! Over a network, links have 1 to 100 us of latency, they are cut and mended, and nodes die. A cut
//! that ends all lanes ends no connection: the bytes arrive unchanged all the same, over TCP. Where
//! a node dies, or a program is killed, the other end gets an error; no thread sleeps for ever.
//!
//! Mistakes are planted in the drivers, to show that they are found.
//!
//! `WEFT_SEEDS=from..to` runs other seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};

use weft_swarm::sockets::{self, Apart, Mistakes, Plan};

fn run(seed: u64, apart: Apart, mistakes: Mistakes) {
    let mut plan = Plan::new(seed, apart);
    plan.mistakes = mistakes;
    sockets::run(plan);
}

fn seeds(default: &str) -> std::ops::Range<u64> {
    let wanted = std::env::var("WEFT_SEEDS").unwrap_or_else(|_| default.into());
    let (from, to) = wanted.split_once("..").expect("WEFT_SEEDS=from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

fn run_all(seeds: std::ops::Range<u64>, apart: Apart) {
    for seed in seeds {
        if let Err(reason) =
            catch_unwind(AssertUnwindSafe(|| run(seed, apart, Mistakes::default())))
        {
            eprintln!("seed {seed} fails, {apart:?}");
            std::panic::resume_unwind(reason);
        }
    }
}

#[test]
fn every_seed_delivers_all_bytes_in_order_and_wakes_everybody() {
    run_all(seeds("0..600"), Apart::OneHost);
}

#[test]
fn over_a_network_every_seed_delivers_all_bytes_although_lanes_are_lost() {
    run_all(seeds("0..150"), Apart::TwoNodes);
}

/// The first seed from `from` on that finds a planted mistake.
fn found(apart: Apart, mistakes: Mistakes, from: u64) -> Option<u64> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let fails_with = |seed: u64, mistakes| {
        catch_unwind(AssertUnwindSafe(|| run(seed, apart, mistakes))).is_err()
    };
    let fails = |seed: &u64| fails_with(*seed, mistakes) && !fails_with(*seed, Mistakes::default());
    let seed = (from..from + 4_000).find(fails);
    std::panic::set_hook(hook);
    seed
}

#[test]
fn mistakes_of_a_driver_are_found() {
    let none = Mistakes::default();
    // Each search begins with the seed that finds the mistake at present, so that it is short.
    let planted = [
        (22, Mistakes { forget_wakeups: true, ..none }),
        (0, Mistakes { wakeup_before_switch: true, ..none }),
        (2595, Mistakes { leave_silently: true, ..none }),
        (18, Mistakes { wakeups_uncounted: true, ..none }),
        (4876, Mistakes { close_before_wakeups: true, ..none }),
        (247, Mistakes { attach_without_arming: true, ..none }),
        (215, Mistakes { send_nothing_again: true, ..none }),
        (161, Mistakes { forget_too_early: true, ..none }),
    ];
    all_are_found(Apart::OneHost, &planted);
}

#[test]
fn mistakes_over_a_network_are_found() {
    let none = Mistakes::default();
    let planted = [
        (70, Mistakes { forget_rings: true, ..none }),
        (47, Mistakes { rescue_nobody: true, ..none }),
        (0, Mistakes { take_record_for_data: true, ..none }),
        (6998, Mistakes { believe_kernel: true, ..none }),
        (18, Mistakes { leave_lane_at_end: true, ..none }),
        (115, Mistakes { send_nothing_again: true, ..none }),
    ];
    all_are_found(Apart::TwoNodes, &planted);
}

fn all_are_found(apart: Apart, planted: &[(u64, Mistakes)]) {
    for (from, mistakes) in planted {
        let seed = found(apart, *mistakes, *from);
        println!("{mistakes:?}: {seed:?}");
        assert!(seed.is_some(), "{mistakes:?} is not found");
    }
}
