//! Programs that end while their threads use connections behave as on plain TCP.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Node, Outcome, program, suite, three_ways};

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    suite::main(three_ways(exiting))
}

fn exiting(under_weft: bool, surroundings: fn(&mut Command)) -> Outcome {
    let node = Node::new();
    let binary = program::compiled("exiting.c", &["-O1", "-pthread"], node.directory())?;
    let mut command = node.program(under_weft, &binary);
    surroundings(&mut command);
    let ended = node.start(command).wait(LIMIT).success();
    assert!(ended.stdout.ends_with("60 clients ended\n"), "{}", ended.report());
    if under_weft {
        let moved = ended.statistics().fabric.sent;
        assert!(moved > 100_000, "only {moved} bytes moved: {}", ended.report());
    }
    Ok(())
}
