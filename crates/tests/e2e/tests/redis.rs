//! redis-server with its own benchmark and a consistency check; both sides under weft, and of a
//! third of the cases one side.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::ExitCode;
use std::time::Duration;

use weft_e2e::{
    Case, Ended, Node, Outcome, Running, Skip, Under, is_one_sided, process, program, suite,
};

const LIMIT: Duration = Duration::from_secs(120);

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
        add("redis_benchmark_one_client", |under| benchmark(under, &["-c", "1", "-n", "5000"], 1));
        add("redis_benchmark_fifty_clients", |under| {
            benchmark(under, &["-c", "50", "-n", "20000", "-d", "300"], 50)
        });
        add("redis_benchmark_pipelines", |under| {
            benchmark(under, &["-c", "8", "-n", "50000", "-P", "32"], 8)
        });
        add("redis_benchmark_threads", |under| {
            benchmark(under, &["-c", "8", "-n", "10000", "--threads", "2"], 8)
        });
        add("redis_keeps_what_was_written", consistency);
    }
    suite::main(cases)
}

fn start(node: &Node, weft: bool) -> Result<(Running, String), Skip> {
    let server = program::find("redis-server")?;
    let port = process::free_port();
    let mut command = node.program(weft, server);
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .args(["--appendonly", "no", "--dir"])
        .arg(node.directory());
    let mut server = node.start(command);
    server.await_port(port);
    Ok((server, port.to_string()))
}

fn benchmark(under: Under, options: &[&str], clients: u64) -> Outcome {
    let benchmark = program::find("redis-benchmark")?;
    let node = Node::new();
    let (server, port) = start(&node, under.server())?;
    let mut client = node.program(under.client(), benchmark);
    client.args(["-p", &port, "-t", "get,set", "--csv"]).args(options);
    let client = node.start(client).wait(LIMIT).success();
    for test in ["\"SET\"", "\"GET\""] {
        assert!(client.stdout.contains(test), "{}", client.report());
    }
    check(under, &client, &server.stop(), clients, 5000 * 20);
    Ok(())
}

fn consistency(under: Under) -> Outcome {
    let python = program::python()?;
    let node = Node::new();
    let (server, port) = start(&node, under.server())?;
    let mut client = node.program(under.client(), python);
    client.arg(program::script("redis_check.py")).args([&port, "3000"]);
    let client = node.start(client).wait(LIMIT).success();
    assert!(client.stdout.contains("3000 keys are as written"), "{}", client.report());
    check(under, &client, &server.stop(), 1, 1_000_000);
    Ok(())
}

fn check(under: Under, client: &Ended, server: &Ended, connections: u64, bytes: u64) {
    match under {
        Under::Both => {
            client.statistics().assert_all_fabric(connections, bytes, bytes / 10);
            server.statistics().assert_all_fabric(connections, bytes / 10, bytes);
        }
        Under::Client => client.statistics().assert_all_tcp(connections),
        Under::Server => server.statistics().assert_all_tcp(connections),
    }
}
