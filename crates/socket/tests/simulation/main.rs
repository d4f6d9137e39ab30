//! Simulates the two ends of a connection over a simulated lane and a modelled shadow socket. A
//! seed determines each run.
//!
//! Each run has two programs with two threads each. The threads read and write at random, get the
//! lane at random moments, and may close, abort or be killed at any moment. Between any two
//! operations on the lane the other threads may run. The bytes must arrive unchanged, an end only
//! behind all of them, and no thread may sleep for ever or spin.
//!
//! `WEFT_SEEDS=from..to` runs other seeds.

mod lane;
mod lanes;
mod plan;
mod reader;
mod socket;
mod tcp;
mod world;
mod writer;

use std::panic::{AssertUnwindSafe, catch_unwind};

use plan::{Faults, Plan};
use world::World;

fn run(seed: u64, faults: Faults) {
    World::new(Plan { faults, ..Plan::new(seed) }).run();
}

fn seeds() -> std::ops::Range<u64> {
    let wanted = std::env::var("WEFT_SEEDS").unwrap_or_else(|_| "0..4000".into());
    let (from, to) = wanted.split_once("..").expect("WEFT_SEEDS=from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn every_seed_delivers_all_bytes_in_order_and_wakes_everybody() {
    for seed in seeds() {
        if let Err(reason) = catch_unwind(AssertUnwindSafe(|| run(seed, Faults::default()))) {
            eprintln!("seed {seed} fails");
            std::panic::resume_unwind(reason);
        }
    }
}

/// The first seed from `from` on that finds a planted mistake.
fn found(faults: Faults, from: u64) -> Option<u64> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let fails_with =
        |seed: u64, faults| catch_unwind(AssertUnwindSafe(|| run(seed, faults))).is_err();
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
        (7351, Faults { close_before_wakeups: true, ..none }),
        (159, Faults { attach_without_arming: true, ..none }),
        (157, Faults { send_nothing_again: true, ..none }),
        (18, Faults { forget_too_early: true, ..none }),
    ];
    for (from, faults) in planted {
        let seed = found(faults, from);
        println!("{faults:?}: {seed:?}");
        assert!(seed.is_some(), "{faults:?} is not found");
    }
}
