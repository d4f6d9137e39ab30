//! A reader that waits in a blocking call naps before it sleeps on the kernel's socket
//! (`weft_transport_shm::lane::nap`): while messages come soon, it is woken from naps, in a long
//! pause it sleeps, and the death of its peer ends a nap.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::ExitCode;
use std::time::Duration;

use weft_e2e::{Case, Node, Outcome, program, suite};

const LIMIT: Duration = Duration::from_secs(60);
/// Messages of the program, and the last one behind a pause.
const MESSAGES: u32 = 301;
/// The program looks some thousand times. On a crowded machine the reader has few chances.
const SEEN: u32 = 20;

fn main() -> ExitCode {
    suite::main(vec![
        Case::new("on_tcp_nobody_naps", || naps(false)),
        Case::new("a_reader_naps_before_it_sleeps", || naps(true)),
    ])
}

fn naps(under_weft: bool) -> Outcome {
    let node = Node::new();
    let binary = program::compiled("naps.c", &["-O1", "-pthread"], node.directory())?;
    let ended = node.start(node.program(under_weft, &binary)).wait(LIMIT).success();
    let numbers: Vec<u32> = ended.stdout.split(' ').filter_map(|word| word.parse().ok()).collect();
    let &[messages, naps, sleeps] = numbers.as_slice() else {
        panic!("three numbers are expected: {}", ended.report());
    };
    assert_eq!(messages, MESSAGES, "{}", ended.report());
    assert!(sleeps >= SEEN, "the pause is longer than a nap: {}", ended.report());
    if under_weft {
        assert_eq!(ended.statistics().fabric.connections, 2, "{}", ended.report());
        assert!(naps >= SEEN, "{}", ended.report());
    } else {
        assert_eq!(naps, 0, "{}", ended.report());
    }
    Ok(())
}
