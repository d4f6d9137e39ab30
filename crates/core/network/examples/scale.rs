//! The measures of scale of the simulator, with time and memory:
//!
//! ```console
//! $ cargo run --release -p weft-network --example scale -- messages torus:32x32x64 1000000 8
//! $ cargo run --release -p weft-network --example scale -- broadcast torus:32x32x64 496
//! $ cargo run --release -p weft-network --example scale -- flows torus:16x16x16 1000000
//! $ cargo run --release -p weft-network --example scale -- table
//! ```
//!
//! `messages SHAPE N LOAD` sends N messages of uniform traffic, each a packet, at a load in percent
//! of a link. `broadcast SHAPE BYTES` sends a message to all hosts, by group 63. `flows SHAPE
//! BYTES` is an all-to-all of so many bytes from each host to each other one: in round `r` host `h`
//! sends to host `h + r`. A round begins when the last has ended. `flows SHAPE BYTES ROUNDS` has so
//! many rounds alone.
//!
//! `table` prints time and memory against the size of a torus, a row for each: seconds of the
//! processor with routes and all, and the most memory, of a process for each cell.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it measures the time that the simulator takes")]

use std::process::Command;
use std::time::Instant;

use weft_network::flow::{Flow, FlowNetwork};
use weft_network::traffic::{OpenLoop, Pattern, Traffic};
use weft_network::{Destination, Message, Network, Outcome, Settings};
use weft_routing::multicast::BROADCAST;
use weft_routing::{Algorithm, Routes};
use weft_topology::{Graph, Shape};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["messages", shape, count, load] => messages(shape, count.parse()?, load.parse()?)?,
        ["broadcast", shape, bytes] => broadcast(shape, bytes.parse()?)?,
        ["flows", shape, bytes] => flows(shape, bytes.parse()?, usize::MAX)?,
        ["flows", shape, bytes, rounds] => flows(shape, bytes.parse()?, rounds.parse()?)?,
        ["table"] => return table(),
        _ => {
            return Err(
                "give `messages SHAPE N LOAD`, `broadcast SHAPE BYTES`, `flows SHAPE BYTES` \
                        or `table`"
                    .into(),
            );
        }
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let memory = line.and_then(|line| line.trim().strip_suffix(" kB")).ok_or("no memory")?;
    // The processor's time: others on the machine do not count.
    let told = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds: f64 = told.split(' ').next().ok_or("no time")?.parse()?;
    let megabytes = memory.parse::<f64>()? * 1_024.0 / 1e6;
    println!("in all {:.2} s of the processor, {megabytes:.0} MB", nanoseconds / 1e9);
    Ok(())
}

/// Time and memory against the size of a torus.
fn table() -> Result<(), Failure> {
    println!("| hosts | torus | 100,000 messages | a broadcast | 16 flows of each host |");
    println!("|---|---|---|---|---|");
    for sizes in ["4x4x4", "8x8x8", "16x16x16", "32x16x16", "32x32x16", "32x32x32", "32x32x64"] {
        let shape = format!("torus:{sizes}");
        let hosts: u32 = sizes.split('x').map(|size| size.parse::<u32>().unwrap_or(0)).product();
        let messages = cost(&["messages", &shape, "100000", "8"])?;
        let broadcast = cost(&["broadcast", &shape, "496"])?;
        let flows = cost(&["flows", &shape, "1000000", "16"])?;
        println!("| {hosts} | {sizes} | {messages} | {broadcast} | {flows} |");
    }
    Ok(())
}

/// The cost that a process of its own tells.
fn cost(arguments: &[&str]) -> Result<String, Failure> {
    let ended = Command::new(std::env::current_exe()?).args(arguments).output()?;
    let told = String::from_utf8(ended.stdout)?;
    let cost = told.lines().find_map(|line| line.strip_prefix("in all "));
    let (time, memory) = cost
        .and_then(|cost| cost.split_once(" s of the processor, "))
        .ok_or(format!("{arguments:?} failed: {}", String::from_utf8_lossy(&ended.stderr)))?;
    Ok(format!("{time} s, {memory}"))
}

/// The graph and its routes.
fn routed(shape: &str) -> Result<(Graph, Routes), Failure> {
    let begun = Instant::now();
    let graph = shape.parse::<Shape>()?.graph(None)?;
    let routes = Routes::compute(&graph, Algorithm::Auto)?;
    println!("{shape}: {} hosts, routes after {:.1?}", graph.hosts().count(), begun.elapsed());
    Ok((graph, routes))
}

fn broadcast(shape: &str, bytes: u64) -> Result<(), Failure> {
    let (graph, routes) = routed(shape)?;
    let begun = Instant::now();
    let from = graph.hosts().next().ok_or("no host")?;
    let mut network = Network::new(graph, Box::new(routes), Settings::default())?;
    let to = Destination::Group(BROADCAST);
    network.send(Message { from, to, bytes, class: 0, tag: 0 })?;
    let Some(Outcome::Delivered { at, hops, .. }) = network.run_out() else {
        return Err("the broadcast was lost".into());
    };
    println!("all have it after {} ns, over {hops} links at most", at / 1_000);
    println!("simulated in {:.1?}", begun.elapsed());
    Ok(())
}

fn messages(shape: &str, count: usize, load: u64) -> Result<(), Failure> {
    let (graph, routes) = routed(shape)?;
    let begun = Instant::now();
    let settings = Settings::default();
    let traffic = Traffic::new(&graph, Pattern::Uniform)?;
    let mut network = Network::new(graph, Box::new(routes), settings.clone())?;
    let payload = u64::from(settings.mtu_bytes);
    let full = settings.link.bits_per_second / 8 * payload / u64::from(settings.packet_bytes());
    let (mut arrived, mut latency, mut links) = (0_u64, 0, 0);
    let mut take = |outcome| {
        if let Outcome::Delivered { sent_at, at, hops, .. } = outcome {
            arrived += 1;
            latency += at - sent_at;
            links += u64::from(hops);
        }
    };
    for (time, message) in OpenLoop::new(traffic, payload, 0, full * load / 100, 1).take(count) {
        while let Some(outcome) = network.run(time) {
            take(outcome);
        }
        network.send(message)?;
    }
    while let Some(outcome) = network.run_out() {
        take(outcome);
    }
    let mean = latency / arrived.max(1) / 1_000;
    let hops = links / arrived.max(1);
    println!("{arrived} arrived over {hops} links on the average, mean latency {mean} ns");
    println!("simulated in {:.1?}", begun.elapsed());
    Ok(())
}

fn flows(shape: &str, bytes: u64, rounds: usize) -> Result<(), Failure> {
    let (graph, routes) = routed(shape)?;
    let begun = Instant::now();
    let hosts: Vec<u32> = graph.hosts().collect();
    let mut network = FlowNetwork::new(&graph, Box::new(routes), Settings::default())?;
    let mut ended = 0_u64;
    for round in (1..hosts.len()).take(rounds) {
        for (place, from) in hosts.iter().enumerate() {
            let to = hosts[(place + round) % hosts.len()];
            network.begin(Flow { from: *from, to, bytes, tag: 0 })?;
        }
        while network.run_out().is_some() {
            ended += 1;
        }
    }
    let virtual_us = network.now() / 1_000_000;
    println!("{ended} flows ended after {virtual_us} us of virtual time");
    println!("rates were computed {} times, in {:.1?}", network.fills(), begun.elapsed());
    Ok(())
}
