//! When a program forks while its connection is about to move to the fabric, the connection moves
//! before it has two holders. With two holders it could not move. A child that the C library did
//! not make by fork is a process of its own, too.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Case, Node, Outcome, as_usual, program, suite, three_ways};

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let mut cases = three_ways(forked);
    for how in ["clone", "number", "Fork"] {
        cases.push(Case::new(format!("cloned_by_{how}"), move || cloned(&[how])));
    }
    // The library counts the child as one that holds the connection.
    for how in ["number", "Fork"] {
        let name = format!("the_parent_of_one_cloned_by_{how}_closes");
        cases.push(Case::new(name, move || cloned(&[how, "alone"])));
    }
    cases.push(Case::new("killed_children_leave_their_places", killed_children).within(4 * LIMIT));
    suite::main(cases)
}

/// 36,000 connections, of which each end has a place, where a process has 65,536 places.
fn killed_children() -> Outcome {
    let node = Node::new();
    let program = program::compiled("orphans.c", &[], node.directory())?;
    let mut command = node.program(true, program);
    command.arg("72");
    as_usual(&mut command);
    let ended = node.start(command).wait(4 * LIMIT).success();
    assert_eq!(ended.stdout, "still here\n", "{}", ended.report());
    assert!(!ended.stderr.contains("a limit was reached"), "{}", ended.report());
    Ok(())
}

/// Parent and child share the locks of the connection.
fn cloned(words: &[&str]) -> Outcome {
    let node = Node::new();
    let program = program::compiled("cloned.c", &["-pthread"], node.directory())?;
    for under_weft in [false, true] {
        let mut command = node.program(under_weft, &program);
        command.args(words);
        let ended = node.start(command).wait(LIMIT).success();
        assert_eq!(ended.stdout, "all of them\n", "{}", ended.report());
        if under_weft {
            assert!(ended.statistics().fabric.sent > 1_000_000, "{}", ended.report());
        }
    }
    Ok(())
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
