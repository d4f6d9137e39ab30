//! When a program forks while its connection is about to move to the fabric, the connection moves
//! before it has two holders. With two holders it could not move.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Node, Outcome, program, suite, three_ways};

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    suite::main(three_ways(forked))
}

fn forked(under_weft: bool, surroundings: fn(&mut Command)) -> Outcome {
    let node = Node::new();
    let mut command = node.program(under_weft, &program::python()?);
    surroundings(&mut command);
    command.arg(program::script("forked.py"));
    let ended = node.start(command).wait(LIMIT).success();
    assert_eq!(ended.stdout, "all of them\n", "{}", ended.report());
    if under_weft {
        // Of 200 times 1000 bytes each way. Bytes sent before the client looked for its answer went
        // over TCP.
        assert!(ended.statistics().fabric.sent >= 250_000, "{}", ended.report());
    }
    Ok(())
}
