//! Connections of about a megabyte, which use the lanes that earlier connections left. Every byte
//! is right and most bytes go over the fabric, in whichever way the server serves, and also when a
//! client, the server or the daemon is killed.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::ExitCode;
use std::time::Duration;

use weft_e2e::{Case, Ended, Node, Outcome, Running, Skip, as_usual, cases, program, suite};

const LIMIT: Duration = Duration::from_secs(120);
/// Connections of a client; a multiple of its number of threads.
const COUNT: u64 = 120;

fn main() -> ExitCode {
    let mut cases = suite::in_turns(cases![
        clients_are_killed_amid_a_transfer,
        servers_are_killed_amid_a_transfer,
        the_daemon_is_killed_and_started_again,
    ]);
    for (manner, threads, most) in [
        ("one", 1, true),
        ("threads", 4, true),
        ("workers", 3, false),
        ("forks", 2, false),
        ("execs", 1, false),
    ] {
        // Starting a Python for each connection is slow.
        let count = if manner == "execs" { COUNT / 3 } else { COUNT };
        let name = format!("served_by_{manner}");
        cases.push(Case::new(name, move || served_by(manner, threads, count, most)));
    }
    suite::main(cases)
}

fn script(node: &Node, words: &[&str]) -> Result<Running, Skip> {
    let mut command = node.program(true, program::python()?);
    command.arg(program::script("kept.py")).args(words);
    as_usual(&mut command);
    Ok(node.start(command))
}

fn server(node: &Node, manner: &str, port: &str) -> Result<Running, Skip> {
    let mut server = script(node, &["server", manner, port])?;
    server.await_output("ready");
    Ok(server)
}

fn free_port() -> String {
    weft_e2e::process::free_port().to_string()
}

/// Runs a client that makes `count` requests and checks every byte.
fn asks(node: &Node, port: &str, threads: u64, count: u64) -> Result<Ended, Skip> {
    let words = ["client", port, &count.to_string(), &threads.to_string()];
    let ended = script(node, &words)?.wait(LIMIT).success();
    assert_eq!(ended.stdout, "all bytes are right\n", "{}", ended.report());
    Ok(ended)
}

/// Starts a client that makes requests until it is killed, and waits until it has made twenty.
fn asks_on(node: &Node, port: &str, threads: &str) -> Result<Running, Skip> {
    let mut client = script(node, &["client", port, "0", threads, "--until-killed"])?;
    client.await_output("twenty");
    Ok(client)
}

fn served_by(manner: &str, threads: u64, count: u64, most: bool) -> Outcome {
    let (node, port) = (Node::new(), free_port());
    let mut server = server(&node, manner, &port)?;
    let statistics = asks(&node, &port, threads, count)?.statistics();
    let all = statistics.fabric.connections + statistics.tcp.connections;
    assert_eq!(all, count, "{statistics:?}");
    if most {
        assert!(statistics.fabric.connections > all / 2, "{statistics:?}");
    }
    assert!(!server.has_ended() && !server.stderr().contains("panicked"), "{}", server.stderr());
    Ok(())
}

fn clients_are_killed_amid_a_transfer() -> Outcome {
    let (node, port) = (Node::new(), free_port());
    let mut server = server(&node, "threads", &port)?;
    for kill in 0..8 {
        let client = asks_on(&node, &port, "3")?;
        std::thread::sleep(Duration::from_millis(kill * 7 % 40));
        drop(client);
    }
    asks(&node, &port, 2, COUNT)?;
    assert!(!server.has_ended() && !server.stderr().contains("panicked"), "{}", server.stderr());
    Ok(())
}

/// The processes that listen.
fn servers(status: &serde_json::Value) -> impl Iterator<Item = u64> {
    let all = status["listeners"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().filter_map(|one| one["pid"].as_u64())
}

fn servers_are_killed_amid_a_transfer() -> Outcome {
    let (node, port) = (Node::new(), free_port());
    let mut first = server(&node, "threads", &port)?;
    let mut client = asks_on(&node, &port, "3")?;
    let mut known = Vec::new();
    for kill in 0..6 {
        // Until the daemon has looked at the listening socket it holds that, too, and the next
        // server would find the address in use.
        let status = node.await_status("aware of the server", |status| {
            servers(status).any(|process| !known.contains(&process))
        });
        known.extend(servers(&status));
        std::thread::sleep(Duration::from_millis(kill * 11));
        drop(first);
        // A client that was waiting for the dead server would report that and end.
        assert!(!client.has_ended(), "{}{}", client.stdout(), client.stderr());
        first = server(&node, "threads", &port)?;
    }
    asks(&node, &port, 2, COUNT)?;
    assert!(!client.has_ended(), "{}{}", client.stdout(), client.stderr());
    Ok(())
}

fn the_daemon_is_killed_and_started_again() -> Outcome {
    let (mut node, port) = (Node::new(), free_port());
    let server = server(&node, "one", &port)?;
    let mut client = asks_on(&node, &port, "2")?;
    for _ in 0..3 {
        node.kill_daemon();
        std::thread::sleep(Duration::from_millis(100));
        node.start_daemon();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(!client.has_ended(), "{}{}", client.stdout(), client.stderr());
    asks(&node, &port, 1, COUNT)?;
    drop(server);
    Ok(())
}
