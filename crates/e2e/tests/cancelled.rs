//! Threads that `pthread_cancel` ends while they are in a call on a connection: as on plain TCP.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Case, Node, Outcome, as_usual, program, suite};

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    suite::main(vec![
        Case::new("plain_tcp", || cancelled(false, |_| {})),
        Case::new("as_users_have_it", || cancelled(true, as_usual)),
        Case::new("on_the_fabric_from_the_first_call", || cancelled(true, |_| {})),
    ])
}

fn cancelled(under_weft: bool, surroundings: impl Fn(&mut Command)) -> Outcome {
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
