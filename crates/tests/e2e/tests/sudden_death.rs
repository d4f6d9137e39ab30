//! kill -9 of a server, a client and the daemon at random moments.
//!
//! `WEFT_E2E_KILLS` sets the number of kills. The default is 20; the promise is for 200.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use weft_e2e::{Case, Node, Outcome, as_usual, process, program, setting, suite};

/// The promise: the other side detects the death within this time. It is asserted by the full run
/// on an otherwise idle machine. A few kills on a busy machine only show that no wait is endless.
const KNOWN_WITHIN_S: f64 = 0.1;
const KNOWN_ON_A_BUSY_MACHINE_S: f64 = 2.0;
const FULL_RUN: u64 = 200;

fn main() -> ExitCode {
    let kills = setting("WEFT_E2E_KILLS", 20);
    let limit = Duration::from_secs(60 + kills * 2);
    let cases = vec![
        Case::new("the_client_knows_of_a_killed_server", move || kill_end("server", kills)),
        Case::new("the_server_knows_of_a_killed_client", move || kill_end("client", kills)),
        Case::new("connections_go_on_when_the_daemon_is_killed", move || kill_daemon(kills)),
        Case::new("connections_move_when_the_daemon_was_late", late_daemon),
        Case::new("a_daemon_that_was_replaced_is_asked_at_once", new_daemon),
        Case::new("a_killed_command_takes_nothing_along", killed_command),
    ];
    suite::main(cases.into_iter().map(|case| case.within(limit)).collect())
}

fn kill_end(killed: &str, kills: u64) -> Outcome {
    let python = program::python()?;
    let node = Node::new();
    let before = shared_memory();
    let descriptors = daemon_descriptors(&node);
    let mut command = node.program(true, python);
    command.arg(program::script("sudden_death.py"));
    command.args([killed, &kills.to_string(), &setting("WEFT_E2E_SEED", 1).to_string()]);
    let limit = Duration::from_secs(50 + kills * 2);
    let ended = node.start(command).wait(limit).success();
    let report: Value = serde_json::from_str(&ended.stdout).expect("one JSON object");
    let statistics = ended.statistics();
    let moved = statistics.fabric.connections;
    println!("    {killed} killed {kills} times: {moved} had moved: {report}");
    let known_within = if kills < FULL_RUN { KNOWN_ON_A_BUSY_MACHINE_S } else { KNOWN_WITHIN_S };
    let modes = report["longest"].as_object().expect("modes");
    for (mode, seconds) in modes {
        let seconds = seconds.as_f64().expect("a number");
        assert!(seconds < known_within, "{mode} took {seconds} s to know: {report}");
    }
    assert!(report["seen"].get("hang").is_none(), "{report}");
    assert!(report["seen"].get("bytes").is_none(), "bytes that nobody sent: {report}");
    // This command counts both ends of each connection. Some victims die before they reach the
    // fabric.
    let early = kills / 10 * 2 + 2;
    assert!(
        moved + early * 2 >= kills * 2 && statistics.tcp.connections <= early * 2,
        "{statistics:?}"
    );
    for what in ["descriptors", "mappings"] {
        let count = report[what].as_u64().expect("a number");
        assert!(count < 30, "{count} {what} are left after {kills} deaths");
    }
    // The daemon detects the last deaths by itself.
    let status = node.await_status("empty", |status| {
        status["connections"].as_array().is_some_and(Vec::is_empty)
            && status["processes"].as_array().is_some_and(Vec::is_empty)
            && status["waiting"] == 0
    });
    assert_eq!(status["listeners"].as_array().map(Vec::len), Some(0), "{status}");
    assert!(daemon_descriptors(&node) <= descriptors, "the daemon keeps descriptors");
    assert_eq!(shared_memory(), before, "left in /dev/shm");
    nothing_but_the_daemon();
    Ok(())
}

/// Existing connections keep working and new ones work. When a new daemon runs, new connections are
/// on the fabric again.
fn kill_daemon(kills: u64) -> Outcome {
    let python = program::python()?;
    let mut node = Node::new();
    let before = shared_memory();
    let mut server = node.bare(&python);
    server.arg(program::script("steady.py")).arg("server");
    let mut server = node.start(server);
    server.await_output("\n");
    let port = server.stdout().trim().to_owned();
    let stop = node.directory().join("stop");
    let mut client = node.program(true, &python);
    client.arg(program::script("steady.py")).args(["client", &port]).arg(&stop);
    let mut client = node.start(client);
    client.await_output("going");
    let mut random = setting("WEFT_E2E_SEED", 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for _ in 0..kills {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        thread::sleep(Duration::from_micros(random % 60_000));
        node.kill_daemon();
        thread::sleep(Duration::from_micros((random >> 20) % 60_000));
        assert!(!client.has_ended() && !server.has_ended(), "{}", client.stderr());
        node.start_daemon();
    }
    // Programs look for a daemon at most once a second.
    node.await_status("on the fabric again", |status| {
        status["connections"].as_array().is_some_and(|all| !all.is_empty())
    });
    std::fs::write(&stop, "").expect("the test's directory");
    let client = client.wait(Duration::from_secs(20)).success();
    let report = client.stdout.lines().last().unwrap_or_default().to_owned();
    println!("    daemon killed {kills} times: {report}");
    let report: Value = serde_json::from_str(&report).expect("one JSON object");
    let longest = report["longest"].as_f64().expect("a number");
    assert!(longest < 1.0, "a connection took {longest} s while the daemon died");
    assert!(client.statistics().fabric.connections > 0, "{}", client.report());
    drop(server);
    node.await_status("empty", |status| {
        status["connections"].as_array().is_some_and(Vec::is_empty) && status["waiting"] == 0
    });
    assert_eq!(shared_memory(), before, "left in /dev/shm");
    nothing_but_the_daemon();
    Ok(())
}

/// The first connection behind a restart of the daemon is on the fabric, too, of a program that did
/// nothing meanwhile.
fn new_daemon() -> Outcome {
    let mut node = Node::new();
    let mut command = node.program(true, program::python()?);
    as_usual(&mut command);
    command.arg(program::script("new_daemon.py")).arg(node.directory());
    let client = node.start(command);
    let start = Instant::now();
    while !node.directory().join("first").exists() {
        assert!(start.elapsed() < Duration::from_secs(20), "the first connection");
        thread::sleep(Duration::from_millis(5));
    }
    node.kill_daemon();
    node.start_daemon();
    std::fs::write(node.directory().join("second"), "").expect("the test's directory");
    let ended = client.wait(Duration::from_secs(20)).success();
    let statistics = ended.statistics();
    assert_eq!(statistics.fabric.connections, 4, "{}", ended.report());
    assert_eq!(statistics.tcp.connections, 0, "{}", ended.report());
    Ok(())
}

/// A daemon that does not answer in time is not gone: what is asked before and then is answered
/// when it goes on.
fn late_daemon() -> Outcome {
    let node = Node::new();
    let mut command = node.program(true, program::python()?);
    as_usual(&mut command);
    command.arg(program::script("late_daemon.py")).arg(node.directory());
    let mut client = node.start(command);
    let file = |name| node.directory().join(name);
    let tell = |name| std::fs::write(file(name), "").expect("the test's directory");
    let mut wait_for = |name| {
        let start = Instant::now();
        while !file(name).exists() {
            assert!(!client.has_ended(), "{}", client.stderr());
            assert!(start.elapsed() < Duration::from_secs(30), "no {name}: {}", client.stderr());
            thread::sleep(Duration::from_millis(5));
        }
    };
    wait_for("first");
    node.await_status("asked", |status| status["waiting"] == 1);
    node.signal_daemon(Signal::STOP);
    tell("second");
    wait_for("third");
    node.signal_daemon(Signal::CONT);
    tell("go");
    node.await_status("on the fabric", |status| {
        status["connections"].as_array().is_some_and(|all| all.len() == 2)
    });
    tell("stop");
    let client = client.wait(Duration::from_secs(30)).success();
    let statistics = client.statistics();
    assert_eq!(statistics.fabric.connections, 4, "{}", client.report());
    assert_eq!(statistics.tcp.connections, 0, "{}", client.report());
    Ok(())
}

/// `weft run` without `--stats` becomes the program: a kill hits the program, and no other process
/// exists.
fn killed_command() -> Outcome {
    let python = program::python()?;
    let node = Node::new();
    let mut server = node.bare(&python);
    server.arg(program::script("steady.py")).arg("server");
    let mut server = node.start(server);
    server.await_output("\n");
    let running = process::descendants();
    assert_eq!(running.len(), 2, "the daemon and the server: {running:?}");
    server.signal(Signal::KILL);
    assert_eq!(server.wait(Duration::from_secs(5)).code(), 128 + 9);
    nothing_but_the_daemon();
    Ok(())
}

fn nothing_but_the_daemon() {
    let left: Vec<_> = process::descendants();
    let daemons = left.iter().filter(|(_, line)| line.contains(" daemon")).count();
    assert!(left.len() == daemons && daemons <= 1, "left behind: {left:?}");
}

fn shared_memory() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let name = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    entries.map(name).filter(|name| name.contains("weft")).collect()
}

/// The fewest descriptors that the daemon has at some moment of the next 0.2 s: it may not have
/// closed those of the last question for its status yet.
fn daemon_descriptors(node: &Node) -> usize {
    let pid = node.status()["pid"].as_u64().expect("a process");
    let counts = (0..20).map(|_| {
        thread::sleep(Duration::from_millis(10));
        std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
    });
    counts.min().unwrap_or(0)
}
