//! Two sleepers of one connection, each in its own way: none takes the wakeup of the other.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Node, Outcome, program, suite, three_ways};

/// The program notices itself when it stands still.
const LIMIT: Duration = Duration::from_secs(160);
const PAIRS: usize = 240;

fn main() -> ExitCode {
    suite::main(three_ways(pairs))
}

fn pairs(under_weft: bool, prepare: fn(&mut Command)) -> Outcome {
    let node = Node::new();
    let binary = program::compiled("two_sleepers.c", &["-O1", "-pthread"], node.directory())?;
    let mut command = node.program(under_weft, &binary);
    prepare(&mut command);
    command.arg("25");
    let ended = node.start(command).wait(LIMIT).success();
    let right = ended.stdout.lines().filter(|line| line.ends_with(": right")).count();
    assert_eq!(right, PAIRS, "{}", ended.report());
    if under_weft {
        let fabric = ended.statistics().fabric;
        // Connections of one way that carry little may stay on TCP.
        assert!(fabric.connections > 0, "{}", ended.report());
    }
    Ok(())
}
