//! Simulates nodes that send each other messages over a network that delays, is cut, and dies. A
//! seed determines each run.
//!
//! Each run has three nodes. They send messages of any length, cancel some, refuse some, stop
//! taking events, are killed and come back; links are slow or cut. Messages must arrive unchanged
//! and in order, each pending one must end once, everybody who was refused must hear of room, and
//! nothing may be left behind.
//!
//! `WEFT_SEEDS=from..to` runs other seeds.

mod ledger;
mod node;
mod plan;
mod run;

use std::panic::{AssertUnwindSafe, catch_unwind};

fn seeds() -> std::ops::Range<u64> {
    let wanted = std::env::var("WEFT_SEEDS").unwrap_or_else(|_| "0..300".into());
    let (from, to) = wanted.split_once("..").expect("WEFT_SEEDS=from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn every_seed_delivers_in_order_and_leaves_nothing_behind() {
    let mut seen = ledger::Seen::default();
    for seed in seeds() {
        match catch_unwind(AssertUnwindSafe(|| run::run(seed))) {
            Ok(more) => seen.add(&more),
            Err(reason) => {
                eprintln!("seed {seed} fails");
                std::panic::resume_unwind(reason);
            }
        }
    }
    // A simulation in which something never happens proves nothing about it.
    println!("{seen:?}");
    if seeds().count() >= 300 {
        seen.assert_all();
    }
}

#[test]
fn a_seed_gives_the_same_run_again() {
    assert_eq!(run::run(5), run::run(5));
}
