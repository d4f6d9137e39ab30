//! A cluster of `weft kv`: nodes that are killed, stopped and asked to hand over under load.
//! Clients note what they saw, and the histories of all keys must be linearizable.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use serde_json::Value as Json;
use weft_e2e::etcd::Etcd;
use weft_e2e::host::{Host, key};
use weft_e2e::kv::{LIMIT, Load, await_some, connect, get, pid_of, status_of, three_ports};
use weft_e2e::namespace::Namespace;
use weft_e2e::redis::{Client, Random};
use weft_e2e::suite::Skip;
use weft_e2e::{Case, Node, Outcome, Running, process, program, suite};
use weft_resp::Value;

/// The lease of the clusters.
const LEASE_MS: u64 = 1_000;

fn main() -> ExitCode {
    suite::main(vec![
        Case::new("nothing_answered_is_lost_when_the_primary_is_killed", || kills(1)),
        Case::new("many_kills_of_primaries_lose_nothing", || kills(40))
            .within(Duration::from_secs(1_200))
            .long("each kill takes some seconds"),
        Case::new("handovers_all_the_time_lose_nothing", storm)
            .within(Duration::from_secs(7_200))
            .long("WEFT_KV_STORM_SECONDS says how long, 300 by default"),
        Case::new("nodes_of_several_hosts_replicate_over_libfabric", hosts),
        Case::new("nodes_at_etcd_hand_over_and_a_stopped_primary_serves_no_more", at_etcd),
    ])
}

fn text(value: &str) -> Value {
    Value::Bulk(value.as_bytes().to_vec())
}

/// The node that says that it is the primary, and its status.
fn primary(ports: &[u16]) -> (u16, Json) {
    await_some("a primary", || {
        ports.iter().find_map(|&port| {
            let status = status_of(port).ok()?;
            (status["role"] == "primary").then_some((port, status))
        })
    })
}

/// Waits until so many backups are in sync. Returns the primary.
fn await_in_sync(ports: &[u16], backups: usize) -> u16 {
    await_some("all in sync", || {
        let (port, status) = primary(ports);
        let in_sync = status["regions"][0]["in_sync"].as_array().map(Vec::len);
        (in_sync == Some(backups)).then_some(port)
    })
}

/// `weft kv up`, the primary killed again and again.
fn kills(rounds: usize) -> Outcome {
    let node = Node::new();
    let first = three_ports();
    let ports = [first, first + 1, first + 2];
    let up = || {
        let mut command = node.weft(["kv", "up", "--nodes", "3", "--lease-ms"]);
        command.args([&LEASE_MS.to_string(), "--port", &first.to_string(), "--data"]);
        command.arg(node.directory().join("data"));
        node.start(command)
    };
    let mut cluster = up();
    ports.iter().for_each(|port| cluster.await_port(*port));
    let port = await_in_sync(&ports, 2);
    speaks(port, &ports);
    let load = Load::start(&ports);
    for round in 0..rounds {
        load.await_writes(100);
        let port = await_in_sync(&ports, 2);
        load.gap();
        kill_process(pid_of(port), Signal::KILL).expect("it runs");
        let others: Vec<u16> = ports.into_iter().filter(|it| *it != port).collect();
        let (next, _) = primary(&others);
        load.await_writes(100);
        let gap = load.gap();
        println!("round {round}: {port} killed, {next} leads, {gap:?} without an answer");
        assert!(gap < Duration::from_millis(LEASE_MS) + Duration::from_secs(10), "{gap:?}");
        await_in_sync(&ports, 2);
        let back = status_of(port).expect("it is there again");
        assert_eq!(back["role"], "replica");
        assert!(back["replication"]["catch_up_bytes"].as_u64() > Some(0), "{back}");
    }
    let count = load.check(&ports);
    println!("{count} operations are linearizable");
    // All is there again after all were killed, and after all were ended.
    ports.into_iter().for_each(|port| kill_process(pid_of(port), Signal::KILL).expect("it runs"));
    cluster.signal(Signal::TERM);
    let _ = cluster.wait(LIMIT);
    for _ in 0..2 {
        let cluster = up();
        assert_eq!(get(&ports, "last"), text("word"));
        cluster.signal(Signal::TERM);
        assert_eq!(cluster.wait(LIMIT).code(), 0);
    }
    for number in 0..3 {
        let mut command = node.weft(["kv", "admin", "check", "--data"]);
        command.arg(node.directory().join(format!("data/node-{number}")));
        let _ = node.start(command).wait(LIMIT).success();
    }
    Ok(())
}

/// `weft kv up`, whose primaries are killed, stopped and asked to hand over many times a minute,
/// while many writes are under way.
fn storm() -> Outcome {
    let seconds = weft_e2e::setting("WEFT_KV_STORM_SECONDS", 300);
    let node = Node::new();
    let first = three_ports();
    let ports = [first, first + 1, first + 2];
    let mut command = node.weft(["kv", "up", "--nodes", "3", "--lease-ms"]);
    command.args([&LEASE_MS.to_string(), "--port", &first.to_string(), "--data"]);
    command.arg(node.directory().join("data"));
    let cluster = node.start(command);
    let mut random = Random(u64::from(std::process::id()));
    let (begun, mut handovers, mut operations, mut rounds) = (Instant::now(), 0, 0, 0);
    while begun.elapsed() < Duration::from_secs(seconds) {
        await_in_sync(&ports, 2);
        let load = Load::of(&ports, 16, &format!("round{rounds}-"));
        for _ in 0..10 {
            thread::sleep(Duration::from_millis(100 + random.below(900) as u64));
            let Some((port, _)) = ports.iter().find_map(|&port| {
                let status = status_of(port).ok()?;
                (status["role"] == "primary").then_some((port, status))
            }) else {
                continue;
            };
            handovers += 1;
            match random.below(8) {
                0 => kill_process(pid_of(port), Signal::KILL).expect("it runs"),
                1 | 2 => {
                    let pid = pid_of(port);
                    kill_process(pid, Signal::STOP).expect("it runs");
                    thread::sleep(Duration::from_millis(200 + random.below(1_800) as u64));
                    kill_process(pid, Signal::CONT).expect("it runs");
                }
                3 => drop(connect(port).and_then(|mut it| it.ask("FAILOVER TIMEOUT 20"))),
                _ => drop(connect(port).and_then(|mut it| it.ask("FAILOVER"))),
            }
        }
        await_in_sync(&ports, 2);
        operations += load.check(&ports);
        rounds += 1;
        let epoch = primary(&ports).1["epoch"].as_u64();
        println!(
            "{rounds} rounds in {:?}: {handovers} handovers were asked for, epoch {epoch:?}, \
             {operations} operations are linearizable",
            begun.elapsed()
        );
    }
    cluster.signal(Signal::TERM);
    assert_eq!(cluster.wait(LIMIT).code(), 0);
    Ok(())
}

/// The commands that tell of a cluster.
fn speaks(port: u16, ports: &[u16]) {
    let mut client = connect(port).expect("it listens");
    assert_eq!(client.ask("SET last word").expect("an answer"), Value::Simple("OK".to_owned()));
    assert_eq!(client.ask("WAIT 2 1000").expect("an answer"), Value::Integer(2));
    let Value::Array(shards) = client.ask("CLUSTER SLOTS").expect("an answer") else {
        panic!("no slots");
    };
    let Value::Array(slots) = &shards[0] else { panic!("{shards:?}") };
    assert_eq!(slots.len(), 5, "a primary and two replicas: {slots:?}");
    let other = ports.iter().find(|it| **it != port).expect("there are three");
    let mut replica = connect(*other).expect("it listens");
    let moved = replica.ask("GET last").expect("an answer");
    let wanted = Value::Error(format!("MOVED 6562 127.0.0.1:{port}"));
    assert_eq!(moved, wanted);
    // After READONLY it reads, as soon as it has heard what is acknowledged.
    assert_eq!(replica.ask("READONLY").expect("an answer"), Value::Simple("OK".to_owned()));
    let read = await_some("a read at a replica", || {
        let answer = replica.ask("GET last").expect("an answer");
        (answer != wanted).then_some(answer)
    });
    assert_eq!(read, text("word"));
    assert_eq!(client.ask("SET last other").expect("an answer"), Value::Simple("OK".to_owned()));
    await_some("the next value at a replica", || {
        let answer = replica.ask("GET last").expect("an answer");
        assert!([text("word"), text("other")].contains(&answer), "{answer:?}");
        (answer == text("other")).then_some(())
    });
    assert_eq!(client.ask("SET last word").expect("an answer"), Value::Simple("OK".to_owned()));
    assert_eq!(replica.ask("SET last no").expect("an answer"), wanted);
    let Value::Array(role) = replica.ask("ROLE").expect("an answer") else { panic!("no role") };
    assert_eq!(role[0], text("slave"));
    let nodes = client.ask("CLUSTER NODES").expect("an answer");
    let Value::Bulk(nodes) = nodes else { panic!("{nodes:?}") };
    let nodes = String::from_utf8(nodes).expect("text");
    assert_eq!(nodes.lines().filter(|line| line.contains("slave")).count(), 2, "{nodes}");
    assert!(nodes.lines().any(|line| line.ends_with("0-16383")), "{nodes}");
}

/// `weft kv serve` at etcd: FAILOVER, a primary that is stopped for longer than its lease, and one
/// that is ended.
fn at_etcd() -> Outcome {
    let etcd = Etcd::start(1, "http", Vec::new())?;
    let place = etcd.urls().replace("http://", "etcd://");
    let node = Node::new();
    let ports = [process::free_port(), process::free_port(), process::free_port()];
    let serve = |place_of_data: usize, replicas: &str| {
        let port = ports[place_of_data].to_string();
        let mut command = node.weft(["kv", "serve", "--coord", &place, "--cluster", "shop"]);
        command.args(["--replicas", replicas, "--lease-ms", &LEASE_MS.to_string()]);
        command.args(["--port", &port, "--data"]);
        command.arg(node.directory().join(format!("data-{place_of_data}")));
        node.start(command)
    };
    let mut nodes: Vec<Option<Running>> = (0..3).map(|it| Some(serve(it, "3"))).collect();
    let port = await_in_sync(&ports, 2);
    let load = Load::start(&ports);
    load.await_writes(50);
    let asks = |line: &str| connect(port).and_then(|mut it| it.ask(line)).expect("an answer");
    let heir = *ports.iter().find(|it| **it != port).expect("there are three");
    for (line, why) in [
        ("FAILOVER ABORT", "No failover in progress."),
        ("FAILOVER TO 127.0.0.1 1", "FAILOVER target HOST and PORT is not a replica."),
        ("FAILOVER TIMEOUT 0", "FAILOVER timeout must be greater than 0"),
    ] {
        assert_eq!(asks(line), Value::Error(format!("ERR {why}")));
    }
    let asked = asks(&format!("FAILOVER TO 127.0.0.1 {heir} TIMEOUT 20000"));
    assert_eq!(asked, Value::Simple("OK".to_owned()));
    let port = await_some("another primary", || Some(primary(&ports).0).filter(|it| *it != port));
    assert_eq!(port, heir, "the node that was named");
    load.await_writes(50);
    await_in_sync(&ports, 2);
    // Stopped for longer than its lease, and then it goes on.
    let pid = pid_of(port);
    kill_process(pid, Signal::STOP).expect("it runs");
    let others: Vec<u16> = ports.into_iter().filter(|it| *it != port).collect();
    let (next, _) = primary(&others);
    kill_process(pid, Signal::CONT).expect("it runs");
    load.await_writes(50);
    await_some("the old primary in sync", || {
        let status = status_of(port).ok()?;
        let in_sync = await_in_sync(&ports, 2);
        (status["role"] == "replica" && in_sync != port).then_some(())
    });
    // One that is ended hands over; the load goes on, and it comes back.
    let place_of_next = ports.iter().position(|it| *it == next).expect("one of them");
    let ended = nodes[place_of_next].take().expect("it runs");
    ended.signal(Signal::TERM);
    assert_eq!(ended.wait(LIMIT).code(), 0);
    load.await_writes(50);
    nodes[place_of_next] = Some(serve(place_of_next, "3"));
    await_in_sync(&ports, 2);
    let count = load.check(&ports);
    println!("{count} operations are linearizable");
    // Impossible starts are refused.
    let ended = nodes[place_of_next].take().expect("it runs");
    ended.signal(Signal::KILL);
    let _ = ended.wait(LIMIT);
    let refused = serve(place_of_next, "2").wait(LIMIT);
    assert_eq!(refused.code(), 1, "{}", refused.report());
    assert!(refused.report().contains("has 3 replicas"), "{}", refused.report());
    let mut command = node.weft(["kv", "serve", "--port", "0", "--data"]);
    command.arg(node.directory().join(format!("data-{place_of_next}")));
    let refused = node.start(command).wait(LIMIT);
    assert!(refused.report().contains("belongs to the cluster shop"), "{}", refused.report());
    Ok(())
}

/// Three hosts, each with a network and a daemon of its own. The network of the primary is cut, and
/// healed.
fn hosts() -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("network namespaces need root".to_owned()));
    }
    program::find("ip")?;
    let (_switch, networks) = Namespace::switched(4);
    let etcd = Etcd::inside(vec![(networks[3].again(), "10.9.0.4".to_owned())])?;
    let place = etcd.urls().replace("http://", "etcd://");
    let keeper = Node::without_daemon();
    let key = key(&keeper, "key");
    let mut hosts = Vec::new();
    for (number, name) in (1..=3).zip(["a", "b", "c"]) {
        let address = format!("10.9.0.{number}:7700");
        let seeds: &[&str] = if number == 1 { &[] } else { &["10.9.0.1:7700"] };
        let mut host = Host::inside(networks[number - 1].again(), &address, name, &key, seeds);
        host.start();
        hosts.push(host);
    }
    for name in ["a", "b", "c"] {
        let state = if name == "a" { "self" } else { "up" };
        hosts[0].await_state(name, state);
    }
    let serve = |number: usize| {
        let host = &hosts[number - 1];
        let mut command = host.node.weft(["kv", "serve", "--coord", &place, "--cluster", "far"]);
        command.args(["--lease-ms", &LEASE_MS.to_string(), "--port", "7000"]);
        command.args(["--bind", &format!("10.9.0.{number}"), "--data"]);
        command.arg(host.node.directory().join("data"));
        networks[number - 1].inside(|| host.node.start(command))
    };
    let nodes: Vec<Running> = (1..=3).map(serve).collect();
    let ask = |number: usize, line: &str| {
        let last = u8::try_from(number).expect("few");
        let address = std::net::SocketAddr::from(([10, 9, 0, last], 7000));
        // The names of hosts are those of the network.
        networks[number - 1].inside(|| {
            let mut client = Client::at(address)?;
            client.set_patience(Duration::from_secs(5))?;
            client.ask(line)
        })
    };
    let status = |number: usize| match ask(number, "WEFT STATUS") {
        Ok(Value::Bulk(bytes)) => serde_json::from_slice::<Json>(&bytes).ok(),
        _ => None,
    };
    let lead = |others: &[usize], backups: usize| {
        await_some("a primary", || {
            others.iter().copied().find(|&number| {
                status(number).is_some_and(|it| {
                    let in_sync = it["regions"][0]["in_sync"].as_array().map(Vec::len);
                    it["role"] == "primary" && in_sync == Some(backups)
                })
            })
        })
    };
    let first = lead(&[1, 2, 3], 2);
    let value = "v".repeat(300_000);
    assert_eq!(ask(first, &format!("SET a {value}")).expect("ok"), Value::Simple("OK".to_owned()));
    let sent = status(first).expect("a status")["replication"]["sent_bytes"].as_u64();
    assert!(sent > Some(600_000), "{sent:?} bytes were sent to two backups");
    // The primary is cut off from all, etcd as well.
    networks[first - 1].ip("link set cable down");
    let others: Vec<usize> = (1..=3).filter(|it| *it != first).collect();
    let next = lead(&others, 1);
    assert_eq!(ask(next, "GET a").expect("an answer"), text(&value));
    assert_eq!(ask(next, "SET a b").expect("an answer"), Value::Simple("OK".to_owned()));
    // The old one neither reads nor writes.
    for line in ["GET a", "SET a c"] {
        let answer = ask(first, line).expect("an answer");
        assert!(
            matches!(&answer, Value::Error(text) if text.starts_with("CLUSTERDOWN")),
            "{answer:?}"
        );
    }
    let begun = Instant::now();
    networks[first - 1].ip("link set cable up");
    assert_eq!(lead(&others, 2), next);
    println!("in sync {:?} after the cut was healed", begun.elapsed());
    assert_eq!(status(first).expect("a status")["role"], "replica");
    for node in nodes {
        node.signal(Signal::TERM);
        assert_eq!(node.wait(LIMIT).code(), 0);
    }
    Ok(())
}
