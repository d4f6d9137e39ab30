//! A cluster of `weft kv` with several regions: each node takes writes. Programs of Redis use it as
//! a cluster of Redis; nodes are killed under load, and histories of all keys must be linearizable.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use serde_json::Value as Json;
use weft_e2e::kv::{LIMIT, Load, await_some, connect, pid_of, status_of, three_ports};
use weft_e2e::{Case, Node, Outcome, Running, program, suite};
use weft_resp::Value;

/// The lease of the clusters. On a busy machine a primary loses it at times: what promises that
/// nothing was done is no answer yet.
const LEASE_MS: u64 = 600;
/// Keys that are written by redis-cli.
const KEYS: usize = 60;

fn main() -> ExitCode {
    suite::main(vec![
        Case::new("each_node_takes_writes_and_nothing_answered_is_lost_by_a_kill", || kills(1)),
        Case::new("many_kills_of_nodes_with_several_regions_lose_nothing", || kills(15))
            .within(Duration::from_secs(1_200))
            .long("each kill takes some seconds"),
    ])
}

/// A cluster of three nodes.
struct Cluster<'n> {
    node: &'n Node,
    ports: [u16; 3],
}

impl<'n> Cluster<'n> {
    fn new(node: &'n Node) -> Self {
        let first = three_ports();
        Self { node, ports: [first, first + 1, first + 2] }
    }

    fn start(&self) -> Running {
        let mut command = self.node.weft(["kv", "up", "--nodes", "3", "--regions", "3"]);
        command.args(["--lease-ms", &LEASE_MS.to_string(), "--port", &self.ports[0].to_string()]);
        command.arg("--data").arg(self.node.directory().join("data"));
        let mut running = self.node.start(command);
        self.ports.iter().for_each(|port| running.await_port(*port));
        running
    }

    /// The ports of the primaries of all regions, when each has one and all nodes are in sync.
    fn await_whole(&self) -> Vec<u16> {
        let primary = |status: &Json, region: &Json| {
            let is_whole = region["in_sync"].as_array().map(Vec::len) == Some(2);
            // The primary knows first.
            (is_whole && region["primary"] == status["addr"]).then(|| region["id"].as_u64())?
        };
        await_some("all regions with all nodes in sync", || {
            let mut ports: Vec<(u64, u16)> = Vec::new();
            for port in self.ports {
                let status = status_of(port).ok()?;
                let regions = status["regions"].as_array()?.iter();
                ports.extend(regions.filter_map(|it| Some((primary(&status, it)?, port))));
            }
            ports.sort_unstable();
            (ports.len() == 3).then(|| ports.into_iter().map(|(_, port)| port).collect())
        })
    }

    /// Waits until each node is the primary of one region.
    fn await_balance(&self) -> Vec<u16> {
        await_some("each node with a region", || {
            let primaries = self.await_whole();
            let nodes: BTreeSet<u16> = primaries.iter().copied().collect();
            (nodes.len() == 3).then_some(primaries)
        })
    }

    /// Runs redis-cli, which follows redirections, with these lines, until it ends well.
    fn redis_cli(&self, program: &Path, port: u16, lines: &[String]) -> Vec<String> {
        await_some("answers to redis-cli", || {
            let answers = self.redis_cli_once(program, port, lines);
            answers.iter().all(|it| !it.contains("CLUSTERDOWN")).then_some(answers)
        })
    }

    fn redis_cli_once(&self, program: &Path, port: u16, lines: &[String]) -> Vec<String> {
        let script = self.node.directory().join("lines");
        std::fs::write(&script, lines.join("\n") + "\n").expect("a file");
        let mut command = self.node.plain("sh");
        command.arg("-c").arg(format!(
            "exec {} -c -p {port} < {}",
            program.display(),
            script.display()
        ));
        let told = self.node.start(command).wait(LIMIT).success().stdout;
        told.lines().filter(|line| !line.starts_with("->")).map(str::to_owned).collect()
    }
}

fn kills(rounds: usize) -> Outcome {
    let (cli, benchmark) = (program::find("redis-cli")?, program::find("redis-benchmark")?);
    let node = Node::new();
    let cluster = Cluster::new(&node);
    let running = cluster.start();
    let primaries = cluster.await_balance();
    speaks(&cluster, &primaries);
    let told = await_some("redis-benchmark to end well", || {
        let mut command = node.plain(&benchmark);
        command.args(["--cluster", "-p", &cluster.ports[1].to_string(), "-t", "set,get"]);
        command.args(["-n", "3000", "-c", "6", "-r", "1000", "-q"]);
        let ended = node.start(command).wait(LIMIT);
        let is_well = ended.code() == 0;
        assert!(is_well || ended.report().contains("CLUSTERDOWN"), "{}", ended.report());
        is_well.then_some(ended.stdout)
    });
    assert!(told.contains("Cluster has 3 master nodes"), "{told}");
    for test in ["SET: ", "GET: "] {
        assert!(told.contains(test) && told.contains("requests per second"), "{told}");
    }
    let sets: Vec<String> = (0..KEYS).map(|key| format!("SET word{key} value{key}")).collect();
    let answers = cluster.redis_cli(&cli, cluster.ports[0], &sets);
    assert_eq!(answers, vec!["OK"; KEYS]);
    let load = Load::of(&cluster.ports, 5, "shared");
    for round in 0..rounds {
        load.await_writes(100);
        let primaries = cluster.await_whole();
        load.gap();
        let region = round % 3;
        let killed = primaries[region];
        kill_process(pid_of(killed), Signal::KILL).expect("it runs");
        let next = await_some("another primary", || {
            cluster.ports.into_iter().find(|&port| {
                let leads = |status: Json| status["regions"][region]["primary"] == status["addr"];
                port != killed && status_of(port).is_ok_and(leads)
            })
        });
        load.await_writes(100);
        println!(
            "{killed} killed, {next} leads region {region}, {:?} without an answer",
            load.gap()
        );
        if round == 0 {
            // All that redis-cli wrote is there without the node.
            let gets: Vec<String> = (0..KEYS).map(|key| format!("GET word{key}")).collect();
            let values: Vec<String> = (0..KEYS).map(|key| format!("\"value{key}\"")).collect();
            let plain: Vec<String> = values.iter().map(|it| it.replace('"', "")).collect();
            let answers = cluster.redis_cli(&cli, next, &gets);
            assert!(answers == values || answers == plain, "{answers:?}");
        }
        // It is started again, and gets its region back.
        cluster.await_balance();
    }
    let count = load.check(&cluster.ports);
    println!("{count} operations are linearizable");
    running.signal(Signal::TERM);
    assert_eq!(running.wait(LIMIT).code(), 0);
    for number in 0..3 {
        let mut command = node.weft(["kv", "admin", "check", "--data"]);
        command.arg(node.directory().join(format!("data/node-{number}")));
        let told = node.start(command).wait(LIMIT).success().stdout;
        assert!(told.contains("region 2: clean up to batch"), "{told}");
    }
    Ok(())
}

/// The answer of a node that serves its region.
fn ask(port: u16, line: &str) -> Value {
    await_some("an answer", || {
        let answer = connect(port).expect("it listens").ask(line).expect("an answer");
        let is_down = matches!(&answer, Value::Error(text) if text.starts_with("CLUSTERDOWN"));
        (!is_down).then_some(answer)
    })
}

/// The commands that tell of a cluster, and those about all keys.
fn speaks(cluster: &Cluster<'_>, primaries: &[u16]) {
    let ok = || Value::Simple("OK".to_owned());
    // The slots of these keys are 935, 9189 and 13252.
    let keys = ["key3", "key1", "key0"];
    for (port, key) in primaries.iter().zip(keys) {
        let ask = |line: &str| ask(*port, line);
        assert_eq!(ask(&format!("SET {key} v")), ok());
        await_some("all nodes with all writes", || {
            (ask("WAIT 2 1000") == Value::Integer(2)).then_some(())
        });
        // Commands about all keys are about those of the node.
        assert_eq!(ask("DBSIZE"), Value::Integer(1));
        let Value::Array(slots) = ask("CLUSTER SLOTS") else { panic!("no slots") };
        let nodes: Vec<usize> = slots.iter().map(|it| size_of(it) - 2).collect();
        assert_eq!(nodes, [1, 1, 1], "a node is a master or a replica: {slots:?}");
        let Value::Array(shards) = ask("CLUSTER SHARDS") else { panic!("no shards") };
        assert_eq!(shards.len(), 3);
        let crossed = ask("MSET key3 1 key1 1");
        assert!(matches!(&crossed, Value::Error(text) if text.starts_with("CROSSSLOT")));
        let (other, slot, at) = if key == "key3" { ("key1", 9_189, 1) } else { ("key3", 935, 0) };
        let moved = Value::Error(format!("MOVED {slot} 127.0.0.1:{}", primaries[at]));
        assert_eq!(ask(&format!("GET {other}")), moved);
    }
    assert_eq!(ask(primaries[0], "FLUSHALL"), ok());
    assert_eq!(ask(primaries[0], "DBSIZE"), Value::Integer(0));
    assert_eq!(ask(primaries[1], "DBSIZE"), Value::Integer(1), "of another node");
    let status = status_of(cluster.ports[2]).expect("a status");
    let ranges: Vec<&Json> = (0..3).map(|region| &status["regions"][region]["slots"]).collect();
    let wanted = serde_json::json!([[0, 5_460], [5_461, 10_921], [10_922, 16_383]]);
    assert_eq!(serde_json::json!(ranges), wanted);
    // A node that leads another region reads this one for clients that want it.
    let mut replica = connect(primaries[1]).expect("it listens");
    assert_eq!(replica.ask("READONLY").expect("an answer"), ok());
    assert_eq!(ask(primaries[2], "SET key0 fresh"), ok());
    await_some("a read at a replica", || {
        let fresh = Value::Bulk(b"fresh".to_vec());
        (replica.ask("GET key0").expect("an answer") == fresh).then_some(())
    });
}

fn size_of(value: &Value) -> usize {
    match value {
        Value::Array(parts) => parts.len(),
        _ => 0,
    }
}
