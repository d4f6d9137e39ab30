//! Threads that `pthread_cancel` ends in a call on a connection behave as on plain TCP.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Node, Outcome, program, suite, three_ways};

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    suite::main(three_ways(cancelled))
}

fn cancelled(under_weft: bool, surroundings: fn(&mut Command)) -> Outcome {
    let node = Node::new();
    let options = ["-O1", "-pthread"];
    let binary = program::compiled("cancelled.c", &options, node.directory())?;
    let mut command = node.program(under_weft, &binary);
    surroundings(&mut command);
    let ended = node.start(command).wait(LIMIT).success();
    assert!(ended.stdout.ends_with("all of them\n"), "{}", ended.report());
    if under_weft {
        let moved = ended.statistics().fabric.sent;
        assert!(moved > 1000, "only {moved} bytes moved: {}", ended.report());
    }
    Ok(())
}
