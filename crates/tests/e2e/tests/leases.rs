//! More connections than may be on the fabric at a time: connections lease each other their lanes,
//! whichever way their programs wait.
//!
//! `WEFT_E2E_LENDING_SEEDS=from..to` sets the seeds.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::ExitCode;
use std::time::Duration;

use weft_e2e::{Case, Node, Outcome, as_usual, program, suite};

const CONNECTIONS: &str = "20";
/// The program itself detects a standstill.
const LIMIT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    suite::main(vec![
        Case::new("plain_tcp", || leases(false)),
        Case::new("as_users_have_it", || leases(true)),
    ])
}

fn leases(under_weft: bool) -> Outcome {
    let node = Node::new();
    let options = ["-O1", "-pthread"];
    let binary = program::compiled("leases.c", &options, node.directory())?;
    // On a busy machine a single run may not lend any lane, so the sums are checked.
    let (mut lanes, mut connections, mut wanted, mut sent) = (0, 0, 0, 0);
    for seed in seeds() {
        let mut command = node.program(under_weft, &binary);
        as_usual(&mut command);
        // From one lane on, so that at times no lane is free.
        let most = 1 + seed % 4;
        command.env("WEFT_SOCKET_LANES_MAX", most.to_string()).env("WEFT_SOCKET_IDLE_MS", "0");
        command.args([&seed.to_string(), CONNECTIONS, "1000"]);
        let ended = node.start(command).wait(LIMIT).success();
        assert_eq!(ended.stdout, "5000 requests on 20 connections\n", "{}", ended.report());
        if under_weft {
            let fabric = ended.statistics().fabric;
            // Each of the two processes may have `most` lanes.
            lanes += 2 * most;
            wanted += 50_000;
            connections += fabric.connections;
            sent += fabric.sent;
        }
    }
    assert!(!under_weft || connections > lanes, "{connections} connections had {lanes} lanes");
    assert!(!under_weft || sent > wanted, "{sent} bytes moved");
    Ok(())
}

fn seeds() -> std::ops::Range<u64> {
    let wanted = std::env::var("WEFT_E2E_LENDING_SEEDS").unwrap_or_else(|_| "1..7".into());
    let (from, to) = wanted.split_once("..").expect("WEFT_E2E_LENDING_SEEDS=from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}
