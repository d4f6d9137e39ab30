//! Bytes written to the kernel's socket of a fabric connection, past the library, reset the
//! connection. No thread spins.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Node, Outcome, program, suite, three_ways};

const LIMIT: Duration = Duration::from_secs(120);
const SAID: &str = "a connection is reset: its other end wrote bytes past weft";

fn main() -> ExitCode {
    // The case on plain TCP is left out: there is no library to write past.
    suite::main(three_ways(strays).split_off(1))
}

fn strays(under_weft: bool, surroundings: fn(&mut Command)) -> Outcome {
    let node = Node::new();
    let binary = program::compiled("strays.c", &["-O1"], node.directory())?;
    let mut command = node.program(under_weft, &binary);
    surroundings(&mut command);
    let ended = node.start(command).wait(LIMIT).success();
    assert!(ended.stdout.ends_with("60 connections were reset\n"), "{}", ended.report());
    assert_eq!(ended.stderr.matches(SAID).count(), 60, "{}", ended.report());
    Ok(())
}
