//! Nagle's algorithm and a cork never delay wakeups, while programs read back the options that they
//! set.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Node, Outcome, program, suite, three_ways};

const LIMIT: Duration = Duration::from_secs(60);
/// The values of TCP_NODELAY and TCP_CORK that the program reads back.
const TOLD: [&str; 5] = ["0 0", "1 0", "0 1", "1 0", "0 0"];

fn main() -> ExitCode {
    suite::main(three_ways(nagle_delay))
}

fn nagle_delay(under_weft: bool, surroundings: fn(&mut Command)) -> Outcome {
    let node = Node::new();
    let mut command = node.program(under_weft, &program::python()?);
    surroundings(&mut command);
    command.arg(program::script("nagle_delay.py"));
    let ended = node.start(command).wait(LIMIT).success();
    let mut expected = String::new();
    for told in TOLD {
        let kernel = if under_weft { "1 0" } else { told };
        expected += &format!("told {told}, kernel {kernel}\n");
    }
    expected += "told 0 0, kernel 0 0\nread b'y'\nall of them\n";
    assert_eq!(ended.stdout, expected, "{}", ended.report());
    Ok(())
}
