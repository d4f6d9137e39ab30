//! A server whose waiting thread hands connections to another one, which arms them again.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Node, Outcome, program, suite, three_ways};

/// The program notices itself when it stands still.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    suite::main(three_ways(rearming))
}

fn rearming(under_weft: bool, prepare: fn(&mut Command)) -> Outcome {
    let node = Node::new();
    let binary = program::compiled("rearm.c", &["-O1", "-pthread"], node.directory())?;
    let mut command = node.program(under_weft, &binary);
    prepare(&mut command);
    command.args(["1", "15000"]);
    let ended = node.start(command).wait(LIMIT).success();
    assert_eq!(ended.stdout, "15000 requests\n", "{}", ended.report());
    if under_weft {
        let fabric = ended.statistics().fabric;
        assert_eq!(fabric.connections, 2, "{}", ended.report());
    }
    Ok(())
}
