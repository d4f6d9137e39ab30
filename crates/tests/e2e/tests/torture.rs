//! Random calls from seeds, checked byte by byte. They run on plain TCP, which validates the
//! checks, and under weft: as users have it and on the fabric from the first call on.
//!
//! `WEFT_E2E_TORTURE_SEEDS=from..to` sets the seeds, `WEFT_E2E_TORTURE_KB` the sizes.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Node, Outcome, program, suite, three_ways};

const PAIRS: &str = "4";
/// The program itself detects a standstill.
const LIMIT: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    suite::main(three_ways(torture))
}

fn torture(under_weft: bool, surroundings: fn(&mut Command)) -> Outcome {
    let node = Node::new();
    let options = ["-O1", "-pthread"];
    let binary = program::compiled("torture.c", &options, node.directory())?;
    let kilobytes = std::env::var("WEFT_E2E_TORTURE_KB").unwrap_or_else(|_| "1500".into());
    let mut on_fabric = 0;
    for seed in seeds() {
        let mut command = node.program(under_weft, &binary);
        surroundings(&mut command);
        command.args([&seed.to_string(), &kilobytes, PAIRS]);
        let ended = node.start(command).wait(LIMIT).success();
        assert!(ended.stdout.contains("4 connections"), "{}", ended.report());
        if under_weft {
            on_fabric += ended.statistics().fabric.sent;
        }
    }
    assert!(!under_weft || on_fabric > 1_000_000, "only {on_fabric} bytes moved");
    Ok(())
}

fn seeds() -> std::ops::Range<u64> {
    let wanted = std::env::var("WEFT_E2E_TORTURE_SEEDS").unwrap_or_else(|_| "1..9".into());
    let (from, to) = wanted.split_once("..").expect("WEFT_E2E_TORTURE_SEEDS=from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}
