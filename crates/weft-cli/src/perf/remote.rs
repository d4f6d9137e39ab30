//! Measuring between any two nodes: `weft perf serve` on one, `weft perf TEST --to NODE` on the
//! other.
//!
//! The server is a member of a multicast group. A caller asks the group, naming the node, the test
//! and the endpoint with which it measures; the server of that node opens an endpoint for it.
//!
//! # Invariants
//! - A server measures with [`CALLS_MAX`] callers at a time, and says so to the next.
//! - Each call and each measurement that nobody continues ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use weft_fabric::{
    Blocking, Endpoint, EndpointAddress, EndpointOptions, Event, Group, MessageHeader, NodeId,
    PATIENCE, SendError, Transport, Vpid,
};
use weft_open::{AnyEndpoint, AnyTransport, Opening};

use super::initiator::Initiator;
use super::report::Report;
use super::{check_size, gather, lane, libfabric, message, region_bytes};
use crate::arguments::{MemoryKind, PerfArguments, PerfTest, TransportName};
use crate::configuration::Configuration;
use crate::output::show_line;
use crate::transports;

/// The group of the servers.
const GROUP: u8 = 62;
/// Tag of a call.
const CALL: u8 = 64;
/// Tag of the answer: nothing, or why not.
const ANSWER: u8 = 65;
/// Callers that are measured with at a time.
const CALLS_MAX: usize = 16;
/// How long a server may take to answer a call that has left.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long a call may take to leave: both ends may have to load a library.
const LEAVE_WITHIN: Duration = Duration::from_secs(15);
/// How soon a call is repeated that nobody answered.
const AGAIN: Duration = Duration::from_millis(200);
/// How long the server sleeps at most.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// The tests that a server takes part in, by the numbers that calls name.
const TESTS: [PerfTest; 7] = [
    PerfTest::Latency,
    PerfTest::Rate,
    PerfTest::Put,
    PerfTest::Get,
    PerfTest::Atomic,
    PerfTest::Message,
    PerfTest::Lane,
];

/// A call: the node of the server that is wanted, the test, and the endpoint that measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Call {
    to: NodeId,
    test: PerfTest,
    size: u64,
    from: EndpointAddress,
    /// A random number, by which the server knows a call that is repeated: a later caller may have
    /// the same endpoint.
    number: u64,
}

const CALL_BYTES: usize = 27;

impl Call {
    fn emit(self) -> anyhow::Result<[u8; CALL_BYTES]> {
        let number = TESTS.iter().position(|test| *test == self.test);
        let number = u8::try_from(number.context("this test has no other end on a node")?)?;
        let mut bytes = [0; CALL_BYTES];
        bytes[0] = number;
        bytes[1..9].copy_from_slice(&self.size.to_le_bytes());
        bytes[9..13].copy_from_slice(&self.to.0.to_le_bytes());
        bytes[13..17].copy_from_slice(&self.from.node.0.to_le_bytes());
        bytes[17..19].copy_from_slice(&self.from.vpid.0.to_le_bytes());
        bytes[19..27].copy_from_slice(&self.number.to_le_bytes());
        Ok(bytes)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (test, rest) = bytes.split_first()?;
        let (size, rest) = rest.split_first_chunk()?;
        let (to, rest) = rest.split_first_chunk()?;
        let (node, rest) = rest.split_first_chunk()?;
        let (vpid, rest) = rest.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let node = NodeId(u32::from_le_bytes(*node));
        let call = Self {
            to: NodeId(u32::from_le_bytes(*to)),
            test: *TESTS.get(usize::from(*test))?,
            size: u64::from_le_bytes(*size),
            from: EndpointAddress::new(node, Vpid(u16::from_le_bytes(*vpid))),
            number: u64::from_le_bytes(*number),
        };
        (rest.is_empty() && (1..=super::SIZE_MAX).contains(&call.size)).then_some(call)
    }
}

/// How endpoints are opened.
fn opening(arguments: &PerfArguments, configuration: &Configuration) -> anyhow::Result<Opening> {
    transports::starting(arguments.provider.as_deref(), &configuration.options)
}

/// The transport of endpoints that reach this node and others. Another node that is to be reached
/// needs libfabric, and where there is none nobody answers.
fn over_both(arguments: &PerfArguments, opening: &Opening) -> anyhow::Result<AnyTransport> {
    let transport = opening.any()?;
    let is_own = |to| {
        let status = opening.daemon().and_then(|daemon| daemon.status());
        to == status.ok().and_then(|status| status.number()).unwrap_or(NodeId::LOCAL.0)
    };
    if arguments.to.is_some_and(|to| !is_own(to)) {
        opening.check_far()?;
    }
    Ok(transport)
}

/// Measures `arguments.test` to the server of a node.
pub fn measure(
    arguments: &PerfArguments,
    size: u64,
    node: NodeId,
    configuration: &Configuration,
) -> anyhow::Result<Report> {
    ensure!(
        arguments.memory == MemoryKind::Fresh,
        "between nodes there is fresh memory alone; leave --memory out"
    );
    let opening = opening(arguments, configuration)?;
    let measured = match arguments.transport() {
        TransportName::Shm => measure_over(opening.near()?, arguments, size, node, |_| None),
        TransportName::Ofi => measure_over(opening.far()?, arguments, size, node, |_| None),
        TransportName::Auto => {
            let both = over_both(arguments, &opening)?;
            measure_over(both, arguments, size, node, AnyEndpoint::refusal_of_port)
        }
        TransportName::Sim => bail!("the simulator has no other nodes; leave --to out"),
    };
    // The state of the path says more than the lack of an answer.
    measured.map_err(|error| match why_not_up(&opening, node) {
        Some(reason) => error.context(reason),
        None => error,
    })
}

/// Why a node is not up, as the daemon knows it.
fn why_not_up(opening: &Opening, node: NodeId) -> Option<String> {
    let status = opening.daemon().ok()?.status().ok()?;
    let (state, reason) = status.why_not_up(node.0)?;
    Some(format!("node {node} is {state}: {reason}"))
}

fn measure_over<T: Transport>(
    transport: T,
    arguments: &PerfArguments,
    size: u64,
    node: NodeId,
    why_alone: impl Fn(&T::Endpoint) -> Option<&str>,
) -> anyhow::Result<Report> {
    check_size(&transport, arguments.test, size)?;
    let mut endpoint = transport.open(&EndpointOptions::default())?;
    let from = endpoint.address();
    let test = arguments.test;
    let mut number = [0; 8];
    rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())?;
    let number = u64::from_ne_bytes(number);
    let wanted = Call { to: node, test, size, from, number };
    call(&transport, arguments.transport(), wanted, why_alone)?;
    let far = libfabric::Far::new(None);
    let placement = format!("from node {} to node {node}", from.node);
    match test {
        PerfTest::Message => {
            let initiator = message::Initiator::new(endpoint, far, size)?;
            gather(arguments, size, initiator, &placement)
        }
        PerfTest::Lane => {
            let door = lane::OverEndpoint::waiting(endpoint);
            gather(arguments, size, lane::Initiator::new(door, far, size)?, &placement)
        }
        _ => {
            let region = endpoint.register(region_bytes(size))?;
            gather(arguments, size, Initiator::new(endpoint, region, far)?, &placement)
        }
    }
}

/// Asks the server of a node to be the other end.
fn call<T: Transport>(
    transport: &T,
    over: TransportName,
    wanted: Call,
    why_alone: impl Fn(&T::Endpoint) -> Option<&str>,
) -> anyhow::Result<()> {
    let bytes = wanted.emit()?;
    let group = Group::new(GROUP).context("the group is there")?;
    let mut endpoint = transport.open(&EndpointOptions::default())?;
    let mut until = Instant::now() + LEAVE_WITHIN;
    let mut has_left = false;
    let mut again = Instant::now();
    while Instant::now() < until {
        if again <= Instant::now() {
            let sent = endpoint.send_multicast(group, MessageHeader::tag(CALL), &[&bytes]);
            if sent.is_ok() && !std::mem::replace(&mut has_left, true) {
                until = Instant::now() + ANSWER_WITHIN;
            }
            match sent {
                Ok(0) | Err(SendError::WouldBlock) => again = Instant::now() + AGAIN / 10,
                Ok(_) => again = Instant::now() + AGAIN,
                Err(error) => return Err(error.into()),
            }
        }
        let mut answer = None;
        endpoint.poll(16, &mut |event| {
            if let Event::Message(message) = event
                && message.header.tag == ANSWER
            {
                answer = Some(String::from_utf8_lossy(message.payload).into_owned());
            }
        });
        if let Some(reason) = why_alone(&endpoint).filter(|_| wanted.to != endpoint.address().node)
        {
            bail!("node {} is not reached: {reason}", wanted.to);
        }
        match answer {
            Some(reason) if reason.is_empty() => return Ok(()),
            Some(reason) => bail!("node {}: {reason}", wanted.to),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    bail!(
        "no `weft perf serve` of node {} answers over {}; start one there, as the same user{}",
        wanted.to,
        over.name(),
        if over == TransportName::Shm { "" } else { " and with the same provider" }
    )
}

/// Is the other end for callers on any node, until the program is ended.
pub fn serve(arguments: &PerfArguments, configuration: &Configuration) -> anyhow::Result<()> {
    ensure!(arguments.to.is_none(), "--to is for the end that measures; leave it out");
    let (over, opening) = (arguments.transport(), opening(arguments, configuration)?);
    match over {
        TransportName::Shm => serve_over(opening.near()?, over, |_| None),
        TransportName::Ofi => serve_over(opening.far()?, over, |_| None),
        TransportName::Auto => {
            let both = over_both(arguments, &opening)?;
            serve_over(both, over, AnyEndpoint::refusal_of_port)
        }
        TransportName::Sim => bail!("the simulator has no other nodes"),
    }
}

/// Serves over one transport. `why_alone` says why other nodes do not reach an endpoint, if it
/// knows.
fn serve_over<T>(
    transport: T,
    over: TransportName,
    why_alone: impl Fn(&T::Endpoint) -> Option<&str>,
) -> anyhow::Result<()>
where
    T: Transport + Send + Sync + 'static,
    T::Endpoint: Send,
{
    let mut endpoint = transport.open(&EndpointOptions::default())?;
    let group = Group::new(GROUP).context("the group is there")?;
    endpoint.join_within(group, PATIENCE)?;
    let address = endpoint.address();
    show_line!("serving node {} over {}, as endpoint {address}", address.node, over.name());
    let (transport, calls) = (Arc::new(transport), Arc::new(AtomicUsize::new(0)));
    let (mut seen, mut is_told) = (Vec::new(), false);
    loop {
        endpoint.wait(Some(SLEEP_MAX));
        let mut heard = Vec::new();
        endpoint.poll(64, &mut |event| {
            if let Event::Message(message) = event
                && message.header.tag == CALL
            {
                heard.extend(Call::parse(message.payload).map(|call| (message.peer, call)));
            }
        });
        if let Some(reason) = why_alone(&endpoint).filter(|_| !is_told) {
            is_told = true;
            show_line!("other nodes do not reach this one: {reason}");
        }
        for (caller, call) in heard {
            // A call is repeated until its answer arrives.
            let is_new = !seen.contains(&call);
            if call.to != address.node {
                continue;
            }
            let reason = if is_new { begin(&transport, &calls, call) } else { String::new() };
            if is_new && reason.is_empty() {
                seen.truncate(CALLS_MAX);
                seen.insert(0, call);
            }
            // A caller that is gone needs no answer; another repeats its call.
            let header = MessageHeader::tag(ANSWER);
            let _ = endpoint.send_short(caller, header, &[reason.as_bytes()]);
        }
    }
}

/// Begins to be the other end for a caller. Returns why not; nothing if it began.
fn begin<T>(transport: &Arc<T>, calls: &Arc<AtomicUsize>, call: Call) -> String
where
    T: Transport + Send + Sync + 'static,
    T::Endpoint: Send,
{
    if calls.load(Ordering::Relaxed) >= CALLS_MAX {
        return format!("{CALLS_MAX} measurements run there; try again later");
    }
    calls.fetch_add(1, Ordering::Relaxed);
    let (transport, own) = (Arc::clone(transport), Arc::clone(calls));
    let thread = std::thread::Builder::new().name("weft-perf-far".into());
    let started = thread.spawn(move || {
        let ended = transport
            .open(&EndpointOptions::default())
            .map_err(anyhow::Error::from)
            .and_then(|far| libfabric::respond(far, call.test, call.size, call.from));
        own.fetch_sub(1, Ordering::Relaxed);
        let test = call.test.name();
        match ended {
            Ok(()) => show_line!("measured {test} of {} bytes with {}", call.size, call.from),
            Err(error) => show_line!("{test} of {} bytes with {}: {error:#}", call.size, call.from),
        }
    });
    match started {
        Ok(_) => String::new(),
        Err(error) => {
            calls.fetch_sub(1, Ordering::Relaxed);
            format!("no thread: {error}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_as_it_was_written_and_no_other_bytes_are() {
        let from = EndpointAddress::new(NodeId(70_000), Vpid(300));
        for test in TESTS {
            let call = Call { to: NodeId(9), test, size: 1 << 20, from, number: 77 };
            let bytes = call.emit().expect("a test with another end");
            assert_eq!(Call::parse(&bytes), Some(call));
            for length in 0..bytes.len() {
                assert_eq!(Call::parse(&bytes[..length]), None);
            }
        }
        let large = Call {
            to: NodeId(9),
            test: PerfTest::Put,
            size: super::super::SIZE_MAX + 1,
            from,
            number: 0,
        };
        assert_eq!(Call::parse(&large.emit().expect("a test")), None, "too large");
        assert!(Call { test: PerfTest::Serve, ..large }.emit().is_err());
    }
}
