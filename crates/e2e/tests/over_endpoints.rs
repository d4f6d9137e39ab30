//! Lanes over endpoints (`socket.lane_kind = endpoint`) in real programs: every byte is right, from
//! one epoll set and from threads, across forks, with an end that is stopped; and an end
//! that is killed is told to the other promptly.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use weft_e2e::{Case, Ended, Node, Outcome, Running, Skip, as_usual, cases, program, suite};

const LIMIT: Duration = Duration::from_secs(60);
/// Longer than any machine takes to tell of a death, and shorter than the wait of a hang.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let mut cases = cases![
        connections_of_threads_are_echoed_from_one_epoll_set,
        connections_leave_the_endpoint_for_a_fork_and_come_again,
        an_end_that_is_stopped_goes_on,
        an_end_that_is_killed_is_told_to_the_other,
        programs_end_while_their_threads_use_connections,
        one_end_without_the_option_stays_on_tcp,
        a_program_closes_what_it_does_not_know,
    ];
    for how in [&["clone"][..], &["number", "alone"], &["Fork", "handler"], &["clone", "stopped"]] {
        let name = format!("a_child_by_{}_uses_no_endpoint_of_its_parent", how.join("_"));
        cases.push(Case::new(name, move || cloned(how, 1_000, TALKS_MAX)));
    }
    cases.push(Case::new("a_child_with_the_memory_of_its_parent_takes_nothing_to_tcp", || {
        cloned(&["shares"], 10_000_000, u64::MAX)
    }));
    suite::main(cases)
}

/// Bytes that one program sends over the fabric before it makes a child, at most, with what its
/// handler let through.
const TALKS_MAX: u64 = 70_000_000;

/// `least` and `most` say how much went over the fabric.
fn cloned(words: &[&str], least: u64, most: u64) -> Outcome {
    let node = Node::new();
    let binary = program::compiled("cloned.c", &["-O1", "-pthread"], node.directory())?;
    let mut command = node.program(true, &binary);
    // The daemon of a busy machine may need longer than the talk before the child. One case wants
    // bytes on TCP first, and talks slowly.
    if words.contains(&"stopped") {
        as_usual(&mut command);
    }
    command.args(words).env("WEFT_SOCKET_LANE_KIND", "endpoint");
    let ended = node.start(command).wait(LIMIT).success();
    assert_eq!(ended.stdout, "all of them\n", "{}", ended.report());
    let sent = ended.statistics().fabric.sent;
    assert!((least..most).contains(&sent), "{sent}: {}", ended.report());
    Ok(())
}

/// How a side is started: with statistics, or so that [`Running::signal`] reaches the program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Counted,
    Bare,
}

fn side(node: &Node, start: Start, kind: &str, words: &[&str]) -> Result<Running, Skip> {
    let python = program::python()?;
    let mut command = match start {
        Start::Counted => node.program(true, python),
        Start::Bare => node.bare(python),
    };
    command.arg(program::script("over_endpoints.py")).args(words);
    as_usual(&mut command);
    command.env("WEFT_SOCKET_LANE_KIND", kind);
    Ok(node.start(command))
}

fn server(node: &Node, start: Start, port: &str, connections: &str) -> Result<Running, Skip> {
    let mut server = side(node, start, "endpoint", &["server", port, connections])?;
    server.await_output("ready");
    Ok(server)
}

fn free_port() -> String {
    weft_e2e::process::free_port().to_string()
}

/// Six clients, each with a thread; most bytes go over the fabric.
fn connections_of_threads_are_echoed_from_one_epoll_set() -> Outcome {
    let (node, port) = (Node::new(), free_port());
    let server = server(&node, Start::Counted, &port, "6")?;
    let client = side(&node, Start::Counted, "endpoint", &["echo", &port, "6"])?;
    let client = client.wait(LIMIT).success();
    assert_eq!(client.stdout, "6 right\n", "{}", client.report());
    let server = server.wait(LIMIT).success();
    assert_eq!(server.stdout, format!("ready\n{}", "end\n".repeat(6)), "{}", server.report());
    for ended in [&client, &server] {
        let told = ended.statistics();
        assert!(told.fabric.connections > 0, "{}", ended.report());
        assert!(told.fabric.sent > told.tcp.sent, "{}", ended.report());
    }
    Ok(())
}

fn connections_leave_the_endpoint_for_a_fork_and_come_again() -> Outcome {
    let (node, port) = (Node::new(), free_port());
    // One connection, so that no other thread is amid a message when it forks.
    let server = server(&node, Start::Counted, &port, "1")?;
    let client = side(&node, Start::Counted, "endpoint", &["forks", &port, "1"])?;
    let client = client.wait(LIMIT).success();
    assert_eq!(client.stdout, "1 right\n", "{}", client.report());
    assert_eq!(server.wait(LIMIT).success().stdout, "ready\nend\n");
    Ok(())
}

/// A server that a client floods over its endpoint, both in mid-stream. The `bare` one of them is
/// to be signalled.
fn flooded(node: &Node, bare: &str, seconds: &str) -> Result<[Running; 2], Skip> {
    let start = |name: &str| if name == bare { Start::Bare } else { Start::Counted };
    let port = free_port();
    let server = server(node, start("server"), &port, "1")?;
    let mut client = side(node, start("client"), "endpoint", &["flood", &port, seconds])?;
    client.await_output("connected");
    node.await_status("on the fabric", |status| {
        status["connections"].as_array().is_some_and(|all| !all.is_empty())
    });
    thread::sleep(Duration::from_millis(300));
    Ok([server, client])
}

/// The side that counts moved to the fabric.
fn assert_on_fabric(counted: &Ended) {
    let told = counted.statistics();
    assert!(told.fabric.sent > 0, "{}", counted.report());
}

fn an_end_that_is_stopped_goes_on() -> Outcome {
    for (at, bare) in ["server", "client"].into_iter().enumerate() {
        let node = Node::new();
        let ends = flooded(&node, bare, "2")?;
        ends[at].signal(Signal::STOP);
        thread::sleep(Duration::from_millis(400));
        ends[at].signal(Signal::CONT);
        let [server, client] = ends.map(|end| end.wait(LIMIT).success());
        assert_eq!(client.stdout, "connected\nsame\n", "{}", client.report());
        assert_eq!(server.stdout, "ready\nend\n", "{}", server.report());
        assert_on_fabric([&client, &server][at]);
    }
    Ok(())
}

fn an_end_that_is_killed_is_told_to_the_other() -> Outcome {
    for (at, bare) in ["server", "client"].into_iter().enumerate() {
        let node = Node::new();
        let mut ends = flooded(&node, bare, "60")?.into_iter();
        let (server, client) = (ends.next().expect("two"), ends.next().expect("two"));
        let (killed, other) = if at == 0 { (server, client) } else { (client, server) };
        killed.signal(Signal::KILL);
        let since = Instant::now();
        let other = other.wait(LIMIT).success();
        assert!(since.elapsed() < TOLD_WITHIN, "{}", other.report());
        // The last bytes may not have left its NIC, so there is no end of file.
        let how = other.stdout.lines().last().unwrap_or_default();
        assert!(["ConnectionResetError", "BrokenPipeError"].contains(&how), "{}", other.report());
        assert_on_fabric(&other);
    }
    Ok(())
}

/// Ends by exit, exec and the end of `main`, amid reads, writes and moves to a lane, are ends of
/// file.
fn programs_end_while_their_threads_use_connections() -> Outcome {
    let node = Node::new();
    let binary = program::compiled("exiting.c", &["-O1", "-pthread"], node.directory())?;
    let mut command = node.program(true, &binary);
    as_usual(&mut command);
    command.env("WEFT_SOCKET_LANE_KIND", "endpoint");
    let ended = node.start(command).wait(LIMIT).success();
    assert!(ended.stdout.ends_with("60 clients ended\n"), "{}", ended.report());
    assert_on_fabric(&ended);
    Ok(())
}

/// The descriptors of the endpoint stay open. A program that wants their numbers gets them, and
/// then goes on over TCP.
fn a_program_closes_what_it_does_not_know() -> Outcome {
    let (node, port) = (Node::new(), free_port());
    let server = server(&node, Start::Counted, &port, "1")?;
    let client = side(&node, Start::Counted, "endpoint", &["closes", &port, "1"])?;
    let client = client.wait(LIMIT).success();
    assert_eq!(client.stdout, "right\n", "{}", client.report());
    assert_on_fabric(&client);
    assert_eq!(server.wait(LIMIT).success().stdout, "ready\nend\n");
    Ok(())
}

fn one_end_without_the_option_stays_on_tcp() -> Outcome {
    let (node, port) = (Node::new(), free_port());
    let server = server(&node, Start::Counted, &port, "1")?;
    let client = side(&node, Start::Counted, "memory", &["echo", &port, "1"])?;
    let client = client.wait(LIMIT).success();
    assert_eq!(client.stdout, "1 right\n", "{}", client.report());
    client.statistics().assert_all_tcp(1);
    server.wait(LIMIT).success().statistics().assert_all_tcp(1);
    Ok(())
}
