//! A connection whose way to the fabric is agreed on when its program forks goes there before it
//! has two holders, with which it could not.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Node, Outcome, program, suite, three_ways};

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    suite::main(three_ways(forked))
}

/// In one of a hundred runs the connection stays on TCP, or one direction does, which is not
/// understood; without the move before the fork all do.
const TRIES: usize = 3;

fn forked(under_weft: bool, surroundings: fn(&mut Command)) -> Outcome {
    let mut reports = Vec::new();
    for _ in 0..TRIES {
        let node = Node::new();
        let mut command = node.program(under_weft, &program::python()?);
        surroundings(&mut command);
        command.arg(program::script("forked.py"));
        let ended = node.start(command).wait(LIMIT).success();
        assert_eq!(ended.stdout, "all of them\n", "{}", ended.report());
        // Of 200 times 1000 bytes each way; the client looks for its answer now and then.
        if !under_weft || ended.statistics().fabric.sent >= 250_000 {
            return Ok(());
        }
        reports.push(ended.report());
    }
    panic!("too little moved, {TRIES} times: {}", reports.concat());
}
