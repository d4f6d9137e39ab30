//! Fixed seeds of the swarm. `weft sim swarm` runs others.

use weft_swarm::{Kind, Plan, run};

/// Runs seeds, and returns how much was done and how many faults there were.
fn run_all(plan_of: impl Fn(u64) -> Plan) -> (u64, u32) {
    let seeds = std::env::var("WEFT_SEEDS").unwrap_or_else(|_| "0..60".into());
    let (from, to) = seeds.split_once("..").expect("WEFT_SEEDS=from..to");
    let (from, to): (u64, u64) = (from.parse().expect("a number"), to.parse().expect("a number"));
    let (mut done, mut faults, mut failed) = (0, 0, 0);
    for seed in from..to {
        match run(&plan_of(seed)) {
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
    println!("{done} messages, operations and files, {faults} faults");
    assert_eq!(failed, 0, "seeds failed; their violations are above");
    (done, faults)
}

/// Transfers alone: in a run with others they have a part of the steps.
#[test]
fn transfers_of_fixed_seeds_go_on_where_they_were_cut() {
    let (done, faults) = run_all(|seed| Plan { kinds: vec![Kind::Transfers], ..Plan::new(seed) });
    assert!(done > 300 && faults > 100, "the runs do something: {done}, {faults}");
}

/// Sessions alone, for the same reason.
#[test]
fn sessions_of_fixed_seeds_answer_and_end() {
    let (done, faults) = run_all(|seed| Plan { kinds: vec![Kind::Sessions], ..Plan::new(seed) });
    assert!(done > 1_000 && faults > 100, "the runs do something: {done}, {faults}");
}

#[test]
fn fixed_seeds_break_no_promise() {
    let (done, faults) = run_all(Plan::new);
    assert!(done > 1_000 && faults > 100, "the runs do something: {done}, {faults}");
}

/// Weft was wrong in 8957 (a port sent to all before it had greeted all), 1405 and 1767 (a lane
/// kept a count for a peer that had finished), the simulator in 21747 (a message left behind puts
/// that did not), and the model in 9314 (a woken thread fell asleep again) and 9219 (a program that
/// was killed in the middle of its close counted as one that had closed). In the others the
/// checks were wrong: they took the time at which a program heard of a cut for that of the report
/// (3645, and those from 23401 on), took a slow program that got few events for one that had taken
/// all, or blamed a late greeting on the network (1881).
#[test]
fn seeds_that_failed_once_break_no_promise() {
    const SEEDS: [u64; 18] = [
        919, 1405, 1767, 1881, 3645, 4235, 5285, 8833, 8957, 9219, 9314, 11_205, 18_183, 21_747,
        23_401, 25_638, 26_176, 27_713,
    ];
    for seed in SEEDS {
        let mut plan = Plan::new(seed);
        // There were none then, and each workload changes the steps of the others.
        plan.kinds.retain(|kind| !matches!(kind, Kind::Transfers | Kind::Sessions));
        assert_eq!(run(&plan).map(|summary| summary.seed), Ok(seed));
    }
}

/// A session ended behind a request for which its receiver had no memory.
#[test]
fn transfers_that_failed_once_break_no_promise() {
    for seed in [246, 468, 818] {
        let plan = Plan { kinds: vec![Kind::Transfers], ..Plan::new(seed) };
        assert_eq!(run(&plan).map(|summary| summary.seed), Ok(seed));
    }
}

#[test]
fn a_seed_gives_the_same_run_each_time() {
    for seed in 0..5 {
        assert_eq!(run(&Plan::new(seed)), run(&Plan::new(seed)), "seed {seed}");
    }
}
