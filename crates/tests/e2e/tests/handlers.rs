//! Signal handlers that write on the connection for which their thread waits.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use weft_e2e::{Case, Ended, Node, Outcome, as_usual, program, suite, three_ways};

const LIMIT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let mut cases = three_ways(handlers);
    cases.extend(three_ways(interrupted).into_iter().map(|case| case.of("amid_its_calls")));
    cases.extend(three_ways(moved).into_iter().map(|case| case.of("moved_in_a_handler")));
    cases.push(Case::new("with_a_slow_daemon", with_a_slow_daemon));
    suite::main(cases)
}

fn handlers(under_weft: bool, surroundings: fn(&mut Command)) -> Outcome {
    let node = Node::new();
    let mut command = node.program(under_weft, compiled(&node)?);
    surroundings(&mut command);
    check(&node.start(command).wait(LIMIT).success(), under_weft);
    Ok(())
}

/// Handlers write during the writes and reads of their thread, and leave them by `siglongjmp`.
fn interrupted(under_weft: bool, surroundings: fn(&mut Command)) -> Outcome {
    let node = Node::new();
    let binary = program::compiled("interrupted.c", &["-O1"], node.directory())?;
    let mut command = node.program(under_weft, binary);
    surroundings(&mut command);
    let ended = node.start(command).wait(LIMIT).success();
    assert!(ended.stdout.ends_with("150000 words came back\n"), "{}", ended.report());
    if under_weft {
        let moved = ended.statistics().fabric.sent;
        assert!(moved > 1_000_000, "only {moved} bytes moved: {}", ended.report());
    }
    Ok(())
}

/// A connection of an epoll set comes to its lane in a handler that interrupts a call of the set.
fn moved(under_weft: bool, surroundings: fn(&mut Command)) -> Outcome {
    let node = Node::new();
    let binary = program::compiled("moved_in_a_handler.c", &["-O1", "-pthread"], node.directory())?;
    let mut command = node.program(under_weft, binary);
    surroundings(&mut command);
    command.arg("40");
    let ended = node.start(command).wait(LIMIT).success();
    assert_eq!(ended.stdout, "40 rounds\n", "{}", ended.report());
    if under_weft {
        let connections = ended.statistics().fabric.connections;
        assert!(connections > 2, "only {connections} moved: {}", ended.report());
    }
    Ok(())
}

/// Signals arrive while the program waits for the daemon; the wait must continue.
fn with_a_slow_daemon() -> Outcome {
    /// Less than the time after which a program goes on without the daemon's answer.
    const STOPPED: Duration = Duration::from_millis(8);
    /// Enough to answer programs that start or listen. The daemon is stopped again when the
    /// connection asks.
    const RUNNING: Duration = Duration::from_millis(2);
    let node = Node::new();
    let mut command = node.program(true, compiled(&node)?);
    as_usual(&mut command);
    let mut running = node.start(command);
    while !running.has_ended() {
        for (signal, pause) in [(Signal::STOP, STOPPED), (Signal::CONT, RUNNING)] {
            node.signal_daemon(signal);
            thread::sleep(pause);
        }
    }
    check(&running.wait(LIMIT).success(), true);
    Ok(())
}

fn compiled(node: &Node) -> Result<std::path::PathBuf, weft_e2e::Skip> {
    program::compiled("handlers.c", &["-O1"], node.directory())
}

fn check(ended: &Ended, under_weft: bool) {
    assert!(ended.stdout.ends_with("all 400 answered\n"), "{}", ended.report());
    if under_weft {
        let moved = ended.statistics().fabric.sent;
        assert!(moved > 300, "only {moved} bytes moved: {}", ended.report());
    }
}
