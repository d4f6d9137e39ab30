//! Byte-exact stress: writes and reads of random sizes with random delays in both directions at
//! once.
//!
//! `WEFT_E2E_STRESS_MB` sets how many megabytes each case moves, both directions together. The
//! default is 200; the promise is for 10000.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::ExitCode;
use std::time::Duration;

use weft_e2e::{Case, Ended, Node, Outcome, program, setting, suite};

const MANNERS: [&str; 5] = ["blocking", "poll", "select", "epoll", "epoll-edge"];

fn main() -> ExitCode {
    let megabytes = setting("WEFT_E2E_STRESS_MB", 200);
    let limit = Duration::from_secs(60 + megabytes / 10);
    let mut cases = Vec::new();
    for (place, manner) in MANNERS.into_iter().enumerate() {
        // Each manner of waiting runs against itself and one other.
        for client in [manner, MANNERS[(place + 1) % MANNERS.len()]] {
            let name = format!("stress_{manner}_with_{client}").replace('-', "_");
            let run = move || stress(manner, client, megabytes, limit);
            cases.push(Case::new(name, run).within(limit + Duration::from_secs(10)));
        }
    }
    suite::main(cases)
}

fn stress(server: &str, client: &str, megabytes: u64, limit: Duration) -> Outcome {
    let python = program::python()?;
    let node = Node::new();
    let each = megabytes * 1_000_000 / 2;
    let seed = setting("WEFT_E2E_SEED", 1).to_string();
    let start = |role: &str, manner: &str, port: Option<&str>| {
        let mut command = node.program(true, &python);
        command.arg(program::script("stress.py"));
        command.args([role, manner, &each.to_string(), &seed]).args(port);
        node.start(command)
    };
    let mut server = start("server", server, None);
    server.await_output("\n");
    let port = server.stdout().trim().to_owned();
    let client = start("client", client, Some(&port)).wait(limit).success();
    let server = server.wait(Duration::from_secs(20)).success();
    let [sent_by_server, got_by_server] = hashes(&server);
    let [sent_by_client, got_by_client] = hashes(&client);
    assert_eq!(sent_by_server, got_by_client, "from server to client");
    assert_eq!(sent_by_client, got_by_server, "from client to server");
    for ended in [&server, &client] {
        let statistics = ended.statistics();
        // Bytes go over TCP until both ends have the lane. The scheduler decides how many those
        // are: on a crowded machine it was nine tenths of them.
        assert!(
            statistics.fabric.connections == 1
                && statistics.tcp.connections == 0
                && statistics.fabric.sent > each / 50
                && statistics.fabric.received > each / 50,
            "not over the fabric: {statistics:?}"
        );
    }
    Ok(())
}

/// The hashes that a side printed: of the bytes it sent, and of those it received.
fn hashes(ended: &Ended) -> [String; 2] {
    let line = ended.stdout.lines().last().unwrap_or_default();
    let words: Vec<&str> = line.split(' ').collect();
    let ["sent", sent, "received", received] = words.as_slice() else {
        panic!("no hashes: {}", ended.report())
    };
    [(*sent).to_owned(), (*received).to_owned()]
}
