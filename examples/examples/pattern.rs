//! Processes that exchange messages by a pattern, through the daemon's broker: one of them for each
//! call. `bench/lab/compare.py` runs it in the nodes of a lab.
//!
//! ```text
//! pattern SOCKET DIRECTORY RANK COUNT PATTERN MESSAGES [DEPTH]
//! ```
//!
//! The processes find each other by files in the directory. Each sends `MESSAGES` messages of 64
//! bytes to each of its targets, in turn, over mailboxes of `DEPTH` slots. Each prints the
//! nanoseconds from the moment at which all are ready to that at which all have what was for them,
//! and how often another process had its processor meanwhile.
#![allow(clippy::disallowed_methods, reason = "a program owns its clock")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_fabric::{
    Blocking, Endpoint, EndpointAddress, EndpointLimits, EndpointOptions, Event, MessageHeader,
    NodeId, PATIENCE, Peer, SendError, Transport, Vpid,
};
use weft_transport_shm::broker::remote::RemoteBroker;
use weft_transport_shm::{Parameters, ShmEndpoint, ShmTransport};

/// Bytes of a message.
const BYTES: usize = 64;
/// Tags: a message of the pattern, the word that one is ready or has all, and the answer of rank 0.
const DATA: u8 = 1;
const HERE: u8 = 2;
const GO: u8 = 3;
/// Turns without an event after which a process gives its processor to others.
const TURNS_BEFORE_YIELD: u32 = 64;
const CALL: &str = "call it as: pattern SOCKET DIRECTORY RANK COUNT PATTERN MESSAGES [DEPTH]";
/// How long the processes wait for each other at most.
const WITHIN: Duration = Duration::from_secs(60);

struct Party {
    endpoint: ShmEndpoint,
    peers: Vec<Option<Peer>>,
    data: u64,
    here: usize,
    go: usize,
    idle: u32,
    until: Instant,
}

impl Party {
    fn poll(&mut self) -> Result<(), String> {
        let Self { endpoint, data, here, go, .. } = self;
        let events = endpoint.poll(64, &mut |event| match event {
            Event::Message(message) if message.header.tag == DATA => *data += 1,
            Event::Message(message) if message.header.tag == HERE => *here += 1,
            Event::Message(message) if message.header.tag == GO => *go += 1,
            // One that has ended had all that was for it.
            _ => {}
        });
        self.idle = if events == 0 { self.idle + 1 } else { 0 };
        if self.idle >= TURNS_BEFORE_YIELD {
            self.idle = 0;
            std::thread::yield_now();
            if Instant::now() > self.until {
                return Err("the others do not answer; see whether all were started".to_owned());
            }
        }
        Ok(())
    }

    fn send(&mut self, to: usize, tag: u8, payload: &[u8]) -> Result<(), String> {
        let peer = self.peers[to].ok_or("no message to oneself")?;
        loop {
            match self.endpoint.send_short(peer, MessageHeader::tag(tag), &[payload]) {
                Ok(()) => return Ok(()),
                Err(SendError::WouldBlock) => self.poll()?,
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Waits until all are here.
    fn meet(&mut self, rank: usize) -> Result<(), String> {
        if rank == 0 {
            while self.here + 1 < self.peers.len() {
                self.poll()?;
            }
            self.here = 0;
            return (1..self.peers.len()).try_for_each(|other| self.send(other, GO, &[]));
        }
        self.send(0, HERE, &[])?;
        while self.go == 0 {
            self.poll()?;
        }
        self.go = 0;
        Ok(())
    }
}

/// The targets of a rank.
fn targets(pattern: &str, rank: usize, count: usize) -> Option<Vec<usize>> {
    let others = (1..count).map(|step| (rank + step) % count).collect();
    match (pattern, rank) {
        ("all-to-all", _) | ("broadcast", 0) => Some(others),
        ("incast", 1..) => Some(vec![0]),
        ("broadcast", _) | ("incast", 0) => Some(Vec::new()),
        // One message at a time, back and forth between ranks 0 and 1.
        ("ping-pong", 0) => Some(vec![1]),
        ("ping-pong", 1) => Some(vec![0]),
        _ => None,
    }
}

/// How often this process left its processor to others, freely or not.
fn switches() -> Result<u64, String> {
    let text = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let counts = text.lines().filter_map(|line| line.split_once("voluntary_ctxt_switches:"));
    counts.map(|(_, count)| count.trim().parse::<u64>().map_err(|error| error.to_string())).sum()
}

/// Writes the own address down, and waits for those of the others.
fn addresses(
    directory: &Path,
    rank: usize,
    count: usize,
    own: EndpointAddress,
) -> Result<Vec<EndpointAddress>, String> {
    let text = |error: std::io::Error| format!("{}: {error}", directory.display());
    let (new, there) = (directory.join(format!("{rank}.new")), directory.join(rank.to_string()));
    std::fs::write(&new, format!("{} {}", own.node.0, own.vpid.0)).map_err(text)?;
    std::fs::rename(&new, &there).map_err(text)?;
    let start = Instant::now();
    (0..count)
        .map(|other| {
            loop {
                if let Ok(text) = std::fs::read_to_string(directory.join(other.to_string())) {
                    let (node, vpid) = text.split_once(' ').ok_or("a file that is none of ours")?;
                    let parsed = node.parse().ok().zip(vpid.parse().ok());
                    let (node, vpid) = parsed.ok_or("a file that is none of ours")?;
                    break Ok(EndpointAddress::new(NodeId(node), Vpid(vpid)));
                }
                if start.elapsed() > WITHIN {
                    break Err(format!("rank {other} did not come"));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        })
        .collect()
}

fn run(arguments: &[String]) -> Result<(), String> {
    let [socket, directory, rank, count, pattern, messages, depth @ ..] = arguments else {
        return Err(CALL.to_owned());
    };
    let number = |text: &String| text.parse::<usize>().map_err(|error| format!("{text}: {error}"));
    let (rank, count, messages) = (number(rank)?, number(count)?, number(messages)?);
    let sends_to = targets(pattern, rank, count)
        .ok_or("the patterns are all-to-all, broadcast, incast and ping-pong (of two)")?;
    let gets = (0..count)
        .filter_map(|other| targets(pattern, other, count))
        .filter(|targets| targets.contains(&rank))
        .count();
    let broker = RemoteBroker::new(&PathBuf::from(socket), "pattern");
    let transport = ShmTransport::new(Arc::new(broker), Parameters::default());
    let mailbox_depth = match depth {
        [] => None,
        [depth] => Some(number(depth)?),
        _ => return Err(CALL.to_owned()),
    };
    let limits = EndpointLimits { mailbox_depth, ..EndpointLimits::default() };
    let options = EndpointOptions { limits, ..EndpointOptions::default() };
    let mut endpoint = transport.open(&options).map_err(|error| error.to_string())?;
    let own = endpoint.address();
    let all = addresses(Path::new(directory), rank, count, own)?;
    let peers = all.iter().map(|address| match *address == own {
        true => Ok(None),
        false => endpoint.connect_within(*address, PATIENCE).map(Some),
    });
    let peers = peers.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    let (data, here, go, idle, until) = (0, 0, 0, 0, Instant::now() + WITHIN);
    let mut party = Party { endpoint, peers, data, here, go, idle, until };
    let expected = (messages * gets) as u64;
    // Once to warm up, and then for the time.
    for is_timed in [false, true] {
        // Others may send before this one has heard that all are ready: nothing is counted anew.
        let before = if is_timed { expected } else { 0 };
        let switches_before = switches()?;
        party.meet(rank)?;
        let start = Instant::now();
        for message in 0..messages {
            if pattern == "ping-pong" && rank == 1 {
                while party.data <= before + message as u64 {
                    party.poll()?;
                }
            }
            for to in &sends_to {
                party.send(*to, DATA, &[7; BYTES])?;
            }
            if pattern == "ping-pong" && rank == 0 {
                while party.data <= before + message as u64 {
                    party.poll()?;
                }
            }
        }
        while party.data < before + expected {
            party.poll()?;
        }
        party.meet(rank)?;
        if is_timed {
            println!("{} {}", start.elapsed().as_nanos(), switches()? - switches_before);
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("pattern: {reason}");
            ExitCode::FAILURE
        }
    }
}
