//! Measuring between any two nodes: `weft perf serve` on one, `weft perf TEST --to NODE` on the
//! other.
//!
//! The server offers a service. A caller opens a session with that of the node, and asks it to
//! measure a test with an endpoint; the server opens another for it.
//!
//! # Invariants
//! - A server measures with [`CALLS_MAX`] callers at a time, and says so to the next.
//! - Each call and each measurement that nobody continues ends.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use weft_fabric::{
    Endpoint, EndpointAddress, EndpointOptions, NodeId, OpenError, Partition, Transport, Vpid,
};
use weft_open::{AnyEndpoint, AnyTransport, Client, Opening, Service, ServicePlace, Wakes};

use super::initiator::Initiator;
use super::report::Report;
use super::{check_size, gather, lane, libfabric, message, region_bytes};
use crate::arguments::{MemoryKind, PerfArguments, PerfTest, TransportName};
use crate::configuration::Configuration;
use crate::output::show_line;
use crate::transports;

/// The protocol between callers and servers.
const PROTOCOL: &str = "weft-perf";
/// Its version.
const VERSIONS: RangeInclusive<u16> = 1..=1;
/// The code of an answer that says why not.
const REFUSED: u16 = 1;
/// Callers that are measured with at a time.
const CALLS_MAX: usize = 16;
/// How long a server may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long the news of a server that was just started may take to come here.
const NEWS_WITHIN: Duration = Duration::from_secs(2);
/// How soon a server is looked for again.
const AGAIN: Duration = Duration::from_millis(50);
/// How long the server sleeps at most.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// The name of this user's servers. Each node has its own names, and each user's servers serve that
/// user.
fn service() -> String {
    format!("{PROTOCOL}.{}", rustix::process::geteuid().as_raw())
}

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

/// A call: the test, and the endpoint that measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Call {
    test: PerfTest,
    size: u64,
    from: EndpointAddress,
}

const CALL_BYTES: usize = 15;

impl Call {
    fn emit(self) -> anyhow::Result<[u8; CALL_BYTES]> {
        let number = TESTS.iter().position(|test| *test == self.test);
        let number = u8::try_from(number.context("this test has no other end on a node")?)?;
        let mut bytes = [0; CALL_BYTES];
        bytes[0] = number;
        bytes[1..9].copy_from_slice(&self.size.to_le_bytes());
        bytes[9..13].copy_from_slice(&self.from.node.0.to_le_bytes());
        bytes[13..15].copy_from_slice(&self.from.vpid.0.to_le_bytes());
        Ok(bytes)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (test, rest) = bytes.split_first()?;
        let (size, rest) = rest.split_first_chunk()?;
        let (node, rest) = rest.split_first_chunk()?;
        let (vpid, rest) = rest.split_first_chunk()?;
        let node = NodeId(u32::from_le_bytes(*node));
        let call = Self {
            test: *TESTS.get(usize::from(*test))?,
            size: u64::from_le_bytes(*size),
            from: EndpointAddress::new(node, Vpid(u16::from_le_bytes(*vpid))),
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
    let place = ServicePlace::parse(&format!("@{node}"), &service())?;
    let opening = opening.finding(&place)?;
    let measured = match arguments.transport() {
        TransportName::Shm => measure_over(opening.near()?, &opening, arguments, size, node),
        TransportName::Ofi => measure_over(opening.far()?, &opening, arguments, size, node),
        TransportName::Auto => {
            measure_over(over_both(arguments, &opening)?, &opening, arguments, size, node)
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

fn measure_over<T>(
    transport: T,
    opening: &Opening,
    arguments: &PerfArguments,
    size: u64,
    node: NodeId,
) -> anyhow::Result<Report>
where
    T: Transport<Endpoint: Wakes>,
{
    check_size(&transport, arguments.test, size)?;
    let test = arguments.test;
    let caller = find(&transport, opening, arguments.transport(), node)?;
    let mut endpoint = transport.open(opening.endpoint_options())?;
    let from = endpoint.address();
    call(caller, Call { test, size, from }, node)?;
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

/// An endpoint in the partition of the server of a node.
fn find<T: Transport>(
    transport: &T,
    opening: &Opening,
    over: TransportName,
    node: NodeId,
) -> anyhow::Result<T::Endpoint> {
    let until = Instant::now() + NEWS_WITHIN;
    loop {
        match transport.open(opening.endpoint_options()) {
            Ok(endpoint) => return Ok(endpoint),
            Err(OpenError::NotOffered { .. }) if Instant::now() < until => {
                std::thread::sleep(AGAIN);
            }
            Err(OpenError::NotOffered { .. }) => bail!(
                "no `weft perf serve` of node {node} answers over {}; start one there, as the \
                 same user{}",
                over.name(),
                if over == TransportName::Shm { "" } else { " and with the same provider" }
            ),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Asks the server of a node to be the other end.
fn call<E: Endpoint + Wakes>(endpoint: E, call: Call, node: NodeId) -> anyhow::Result<()> {
    let mut server = Client::over(endpoint, PROTOCOL, &VERSIONS, Default::default())
        .with_context(|| format!("node {node}"))?;
    let answer = server
        .ask(&call.emit()?, &[], ANSWER_WITHIN)
        .with_context(|| format!("the server of node {node} does not measure"))?;
    let reason = String::from_utf8_lossy(&answer.body);
    ensure!(answer.code != REFUSED, "node {node}: {reason}");
    Ok(())
}

/// Is the other end for callers on any node, until the program is ended.
pub fn serve(arguments: &PerfArguments, configuration: &Configuration) -> anyhow::Result<()> {
    ensure!(arguments.to.is_none(), "--to is for the end that measures; leave it out");
    let opening = opening(arguments, configuration)?.offering(&service())?;
    let over = arguments.transport();
    match over {
        TransportName::Shm => serve_over(opening.near()?, &opening, over, |_| None),
        TransportName::Ofi => serve_over(opening.far()?, &opening, over, |_| None),
        TransportName::Auto => {
            let both = over_both(arguments, &opening)?;
            serve_over(both, &opening, over, AnyEndpoint::refusal_of_port)
        }
        TransportName::Sim => bail!("the simulator has no other nodes"),
    }
}

/// Serves over one transport. `why_alone` says why other nodes do not reach an endpoint, if it
/// knows.
fn serve_over<T>(
    transport: T,
    opening: &Opening,
    over: TransportName,
    why_alone: impl Fn(&T::Endpoint) -> Option<&str>,
) -> anyhow::Result<()>
where
    T: Transport<Endpoint: Wakes + Send> + Send + Sync + 'static,
{
    let endpoint = transport.open(opening.endpoint_options())?;
    let (address, partition) = (endpoint.address(), Partition::Numbered(endpoint.partition()));
    let mut service = Service::over(endpoint, PROTOCOL, &VERSIONS, Default::default())?;
    show_line!("serving node {} over {}, as endpoint {address}", address.node, over.name());
    let (transport, calls) = (Arc::new(transport), Arc::new(AtomicUsize::new(0)));
    let mut is_told = false;
    loop {
        let asked = service.next(Some(SLEEP_MAX));
        if let Some(reason) = why_alone(service.endpoint()).filter(|_| !is_told) {
            is_told = true;
            show_line!("other nodes do not reach this one: {reason}");
        }
        let Some(asked) = asked else { continue };
        let reason = match Call::parse(&asked.head) {
            Some(call) => begin(&transport, partition, &calls, call),
            None => "the call is not understood; use the same release on both".to_owned(),
        };
        let code = if reason.is_empty() { 0 } else { REFUSED };
        // A caller that is gone needs no answer.
        let _ = service.answer(&asked, code, b"", &[reason.as_bytes()]);
    }
}

/// Begins to be the other end for a caller. Returns why not; nothing if it began.
fn begin<T>(
    transport: &Arc<T>,
    partition: Partition,
    calls: &Arc<AtomicUsize>,
    call: Call,
) -> String
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
            .open(&EndpointOptions { partition, ..EndpointOptions::default() })
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
            let call = Call { test, size: 1 << 20, from };
            let bytes = call.emit().expect("a test with another end");
            assert_eq!(Call::parse(&bytes), Some(call));
            for length in 0..bytes.len() {
                assert_eq!(Call::parse(&bytes[..length]), None);
            }
        }
        let large = Call { test: PerfTest::Put, size: super::super::SIZE_MAX + 1, from };
        assert_eq!(Call::parse(&large.emit().expect("a test")), None, "too large");
        assert!(Call { test: PerfTest::Serve, ..large }.emit().is_err());
    }
}
