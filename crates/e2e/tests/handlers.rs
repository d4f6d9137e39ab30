//! Signal handlers that write on the connection that their thread waits for.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Node, Outcome, program, suite, three_ways};

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    suite::main(three_ways(handlers))
}

fn handlers(under_weft: bool, surroundings: fn(&mut Command)) -> Outcome {
    let node = Node::new();
    let binary = program::compiled("handlers.c", &["-O1"], node.directory())?;
    let mut command = node.program(under_weft, &binary);
    surroundings(&mut command);
    let ended = node.start(command).wait(LIMIT).success();
    assert!(ended.stdout.ends_with("all 400 answered\n"), "{}", ended.report());
    if under_weft {
        let moved = ended.statistics().fabric.sent;
        assert!(moved > 500, "only {moved} bytes moved: {}", ended.report());
    }
    Ok(())
}
