//! Fixed seeds of the swarm. `weft sim swarm` runs others.

use weft_swarm::{Plan, run};

#[test]
fn fixed_seeds_break_no_promise() {
    let seeds = std::env::var("WEFT_SEEDS").unwrap_or_else(|_| "0..60".into());
    let (from, to) = seeds.split_once("..").expect("WEFT_SEEDS=from..to");
    let (from, to): (u64, u64) = (from.parse().expect("a number"), to.parse().expect("a number"));
    let (mut done, mut faults, mut failed) = (0, 0, 0);
    for seed in from..to {
        match run(&Plan::new(seed)) {
            Ok(summary) => {
                done += summary.done;
                faults += summary.faults;
            }
            Err(violation) => {
                failed += 1;
                println!("{violation}");
            }
        }
    }
    println!("{done} messages and operations, {faults} faults");
    assert_eq!(failed, 0, "seeds failed; their violations are above");
    assert!(done > 1_000 && faults > 100, "the runs do something: {done}, {faults}");
}

#[test]
fn a_seed_gives_the_same_run_each_time() {
    for seed in 0..5 {
        assert_eq!(run(&Plan::new(seed)), run(&Plan::new(seed)), "seed {seed}");
    }
}
