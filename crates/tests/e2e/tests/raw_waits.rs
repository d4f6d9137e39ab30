//! Programs that wait by system calls of their own, and read by calls of the C library.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Node, Outcome, program, suite, three_ways};

/// The program notices itself when it stands still.
const LIMIT: Duration = Duration::from_secs(160);
const WAYS: usize = 7;

fn main() -> ExitCode {
    // Where connections move at their first call, each would wait for the end that does not.
    let mut cases = three_ways(waits);
    cases.truncate(2);
    suite::main(cases)
}

fn waits(under_weft: bool, prepare: fn(&mut Command)) -> Outcome {
    let node = Node::new();
    let binary = program::compiled("raw_waits.c", &["-O1"], node.directory())?;
    let mut command = node.program(under_weft, &binary);
    prepare(&mut command);
    command.arg("300");
    let ended = node.start(command).wait(LIMIT).success();
    let right = ended.stdout.lines().filter(|line| line.ends_with(": right")).count();
    assert_eq!(right, WAYS, "{}", ended.report());
    Ok(())
}
