//! iperf3, nc and sockperf; both sides under weft, and of a third of the cases one side.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::fs::File;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use weft_e2e::{Case, Node, Outcome, Under, is_one_sided, process, program, suite};

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let mut cases = Vec::new();
    for under in Under::ALL {
        let mut add = |name: &str, run: fn(Under) -> Outcome| {
            if under != Under::Both && !is_one_sided(name) {
                return;
            }
            let name = format!("{name}_under_weft_{under:?}").to_lowercase();
            cases.push(Case::new(name, move || run(under)));
        };
        add("iperf3_one_stream", |under| iperf3(under, &[], 1));
        add("iperf3_four_streams", |under| iperf3(under, &["-P", "4"], 4));
        add("iperf3_backwards", |under| iperf3(under, &["-R"], 1));
        add("iperf3_both_directions", |under| iperf3(under, &["--bidir"], 2));
        add("iperf3_odd_sizes", |under| iperf3(under, &["-l", "7777", "-N"], 1));
        add("iperf3_over_ipv6", |under| iperf3(under, &["-6"], 1));
        add("nc_from_client_to_server", |under| nc(under, true));
        add("nc_from_server_to_client", |under| nc(under, false));
        add("sockperf_ping_pong", |under| sockperf(under, "ping-pong"));
        add("sockperf_throughput", |under| sockperf(under, "throughput"));
        add("sockperf_under_load", |under| sockperf(under, "under-load"));
    }
    suite::main(cases)
}

/// One run with `streams` data connections and one control connection: of a second, or with options
/// of some bytes.
fn iperf3(under: Under, options: &[&str], streams: u64) -> Outcome {
    let iperf3 = program::find("iperf3")?;
    let node = Node::new();
    let port = process::free_port().to_string();
    let mut server = node.program(under.server(), &iperf3);
    server.args(["-s", "-1", "-p", &port]);
    let mut server = node.start(server);
    server.await_port(port.parse().expect("a number"));
    let host = if options.contains(&"-6") { "::1" } else { "127.0.0.1" };
    let mut client = node.program(under.client(), &iperf3);
    client.args(["-c", host, "-p", &port, "-J"]).args(options);
    client.args(if options.is_empty() { ["-t", "1"] } else { ["-n", "200M"] });
    let client = node.start(client).wait(LIMIT).success();
    let server = server.wait(LIMIT).success();
    let report: Value = serde_json::from_str(&client.stdout).expect("iperf3 prints JSON");
    assert!(report.get("error").is_none(), "{}", client.report());
    let bytes = |name: &str| report["end"][name]["bytes"].as_u64().unwrap_or(0);
    let (forward, backward) = match options.first() {
        Some(&"-R") => (0, bytes("sum_received")),
        Some(&"--bidir") => (bytes("sum_sent"), bytes("sum_received_bidir_reverse")),
        _ => (bytes("sum_sent"), 0),
    };
    assert!(forward + backward > 1_000_000, "{}", client.report());
    match under {
        Under::Both => {
            client.statistics().assert_all_fabric(streams + 1, forward, backward);
            // Only the sender counts bytes that are in transit when the time is over.
            server.statistics().assert_all_fabric(streams + 1, backward, forward / 2);
        }
        Under::Client => client.statistics().assert_all_tcp(streams + 1),
        Under::Server => server.statistics().assert_all_tcp(streams + 1),
    }
    Ok(())
}

/// Sends 20 MB from the standard input of one nc to the standard output of the other.
fn nc(under: Under, forward: bool) -> Outcome {
    const BYTES: usize = 20_000_000;
    let nc = program::find("nc")?;
    let node = Node::new();
    let content: Vec<u8> = (0..BYTES)
        .map(|place| b' ' + u8::try_from(place * place / 7 % 89).expect("small"))
        .collect();
    let file = node.directory().join("input");
    std::fs::write(&file, &content).expect("room on the disk");
    let port = process::free_port().to_string();
    let mut server = node.program(under.server(), &nc);
    // The sender ends with its input; the receiver does not read its own.
    server.args([if forward { "-d" } else { "-N" }, "-l", "127.0.0.1", &port]);
    let mut client = node.program(under.client(), &nc);
    client.args([if forward { "-N" } else { "-d" }, "127.0.0.1", &port]);
    let input = File::open(&file).expect("just written");
    if forward {
        client.stdin(input)
    } else {
        server.stdin(input)
    };
    let mut server = node.start(server);
    server.await_port(port.parse().expect("a number"));
    let client = node.start(client).wait(LIMIT).success();
    let server = server.wait(LIMIT).success();
    let (sender, receiver) = if forward { (&client, &server) } else { (&server, &client) };
    assert!(
        receiver.stdout.as_bytes() == content,
        "{} of {BYTES} bytes, or not the same\n{}",
        receiver.stdout.len(),
        sender.report()
    );
    let bytes = BYTES as u64;
    let (sent, received) = if forward { (bytes, 0) } else { (0, bytes) };
    match under {
        Under::Both => {
            client.statistics().assert_all_fabric(1, sent, received);
            server.statistics().assert_all_fabric(1, received, sent);
        }
        Under::Client => client.statistics().assert_all_tcp(1),
        Under::Server => server.statistics().assert_all_tcp(1),
    }
    Ok(())
}

fn sockperf(under: Under, test: &str) -> Outcome {
    let sockperf = program::find("sockperf")?;
    let node = Node::new();
    let port = process::free_port().to_string();
    let mut server = node.program(under.server(), &sockperf);
    server.args(["server", "--tcp", "-i", "127.0.0.1", "-p", &port]);
    let mut server = node.start(server);
    server.await_port(port.parse().expect("a number"));
    let mut client = node.program(under.client(), &sockperf);
    client.args([test, "--tcp", "-i", "127.0.0.1", "-p", &port, "-m", "64", "-t", "1"]);
    match test {
        // The default rate is lower than the rate of weft, and sockperf would stop.
        "ping-pong" => client.arg("--mps=3000000"),
        "under-load" => client.arg("--mps=10000"),
        _ => client.arg("--mps=max"),
    };
    let client = node.start(client).wait(LIMIT).success();
    let word = if test == "throughput" { "Message Rate" } else { "Latency is" };
    assert!(client.stdout.contains(word), "{}", client.report());
    assert!(!client.stdout.contains("dropped messages = 1"), "{}", client.report());
    process::await_closed(port.parse().expect("a number"));
    let server = server.stop();
    match under {
        Under::Both => {
            client.statistics().assert_all_fabric(1, 64 * 50, 0);
            server.statistics().assert_all_fabric(1, 0, 64 * 50);
        }
        Under::Client => client.statistics().assert_all_tcp(1),
        Under::Server => server.statistics().assert_all_tcp(1),
    }
    Ok(())
}
