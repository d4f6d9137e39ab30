//! `weft perf`: latency, message rate, put, get and atomic of a transport, between two ends.
//!
//! The logic ([`initiator`], [`responder`]) is generic over `weft_fabric::Transport` and knows
//! neither processes nor clocks: a [`Surroundings`] tells it the time and lets the other end
//! proceed. Over shm the other end is a second process on another core; over sim it is stepped in
//! virtual time. Each measurement is checked: messages are counted at the far end, atomics add up.

mod cacheline;
mod ground;
mod initiator;
mod lane;
mod libfabric;
mod message;
mod near;
mod remote;
mod report;
mod responder;
mod shared;
mod simulated;

use std::process::ExitCode;

use anyhow::ensure;
use weft_fabric::{NodeId, Transport};
use weft_sync::AdaptiveWait;

use crate::arguments::{LaneKind, MemoryKind, MemoryWay, PerfArguments, PerfTest, TransportName};
use crate::configuration::Configuration;
use crate::output::{show, show_line};
use initiator::{Plan, Sample};
use near::Near;
use report::Report;
use responder::Progress;

/// Region that both ends register at least, bytes.
const REGION_BYTES_MIN: u64 = 4096;
/// Largest size of a put or get, bytes: 1 GiB.
const SIZE_MAX: u64 = 1 << 30;

/// The time, and the other end, as far as the initiator needs them.
trait Surroundings {
    /// Nanoseconds since some moment.
    fn now_ns(&self) -> u64;

    /// Nothing happened here: lets the other end, or time, move on.
    ///
    /// # Errors
    /// When nothing can ever happen again.
    fn idle(&mut self) -> anyhow::Result<()>;

    /// Something happened here.
    fn busy(&mut self) {}

    /// How long one run is to take, and how many iterations it may have.
    fn budget(&self) -> Budget;
}

/// The far end of a measurement.
trait FarEnd {
    /// Takes what came in and answers it.
    ///
    /// # Errors
    /// When the transport failed.
    fn step(&mut self) -> anyhow::Result<Progress>;
}

/// Iterations of the first of the short runs that tell how many a run needs.
const CALIBRATION_ITERATIONS: u64 = 64;

/// Finds how many iterations fill a run.
fn calibrate(near: &mut impl Near, test: PerfTest, size: u64) -> anyhow::Result<Plan> {
    let budget = near.surroundings().budget();
    let mut iterations = CALIBRATION_ITERATIONS.min(budget.iterations_max);
    loop {
        let start = near.surroundings().now_ns();
        near.run(test, Plan { size, iterations })?;
        let cost = (near.surroundings().now_ns() - start).max(1);
        // Long enough that the beginning and the end of a run no longer count.
        if cost >= budget.run_ns / 8 || iterations >= budget.iterations_max {
            let wanted = u128::from(budget.run_ns) * u128::from(iterations) / u128::from(cost);
            let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
            return Ok(Plan { size, iterations: wanted.clamp(16, budget.iterations_max) });
        }
        iterations = (iterations * 4).min(budget.iterations_max);
    }
}

/// Bounds of one run.
#[derive(Clone, Copy, Debug)]
struct Budget {
    /// The time that a run is to take, nanoseconds of [`Surroundings::now_ns`].
    run_ns: u64,
    /// Iterations of a run at most.
    iterations_max: u64,
}

/// `weft perf`.
pub fn perf(arguments: &PerfArguments, configuration: &Configuration) -> anyhow::Result<ExitCode> {
    let arguments = &arguments.over_the_usual(&configuration.options);
    let size = arguments.size.unwrap_or(8);
    ensure!(
        (1..=SIZE_MAX).contains(&size),
        "--size {size} is not valid; allowed is 1 to {SIZE_MAX} bytes"
    );
    ensure!(
        !matches!(arguments.test, PerfTest::Atomic) || size == 8,
        "atomics have 8 bytes; leave --size out"
    );
    if let Some(address) = &arguments.respond {
        shared::respond(arguments, size, address, configuration)?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.test == PerfTest::Serve {
        remote::serve(arguments, configuration)?;
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(
        matches!(arguments.test, PerfTest::Put | PerfTest::Get)
            || arguments.memory == MemoryKind::Fresh,
        "--memory is for put and get; leave it out for `weft perf {}`",
        arguments.test.name()
    );
    ensure!(
        arguments.memory == MemoryKind::Existing || arguments.way == MemoryWay::Adopt,
        "--way {} is for memory that exists already; add `--memory existing`",
        arguments.way.name()
    );
    ensure!(
        arguments.test == PerfTest::Lane || arguments.over.is_none(),
        "--over is for lane; leave it out for `weft perf {}`",
        arguments.test.name()
    );
    ensure!(
        matches!(arguments.transport(), TransportName::Shm | TransportName::Auto)
            && arguments.to.is_none()
            || arguments.test != PerfTest::Lane
            || arguments.lane_kind() == LaneKind::Endpoint,
        "only ends of this host share memory; use --over endpoint"
    );
    ensure!(
        matches!(arguments.transport(), TransportName::Ofi | TransportName::Auto)
            || arguments.provider.is_none(),
        "--provider is for libfabric; add `--transport ofi`"
    );
    let report = match (arguments.test, arguments.transport()) {
        (PerfTest::Cacheline, _) => cacheline::measure(arguments)?,
        _ if let Some(node) = arguments.to => {
            remote::measure(arguments, size, NodeId(node), configuration)?
        }
        (_, TransportName::Sim) => simulated::measure(arguments, size)?,
        (_, TransportName::Ofi) => libfabric::measure(arguments, size, &configuration.options)?,
        (_, TransportName::Shm | TransportName::Auto) => {
            shared::measure(arguments, size, configuration)?
        }
    };
    if arguments.json {
        show_line!("{}", serde_json::to_string(&report.json())?);
    } else {
        show!("{}", report.text());
    }
    Ok(ExitCode::SUCCESS)
}

/// Turns without an event after which an end gives its core to others.
const TURNS_BEFORE_YIELD: u32 = 64;

/// How an end polls where both may be on one core.
fn polling() -> AdaptiveWait {
    AdaptiveWait::new(TURNS_BEFORE_YIELD, 0)
}

/// Bytes that the ends register for a test of `size`: the data and the word of a signal.
fn region_bytes(size: u64) -> u64 {
    (signal_offset(size) + 8).max(REGION_BYTES_MIN)
}

/// The word of a signal is right behind the data.
fn signal_offset(size: u64) -> u64 {
    size.next_multiple_of(8)
}

/// Checks a size against what the transport can send as one message.
fn check_size<T: Transport>(transport: &T, test: PerfTest, size: u64) -> anyhow::Result<()> {
    let maximum = transport.capabilities().message_bytes_max;
    let is_message = matches!(test, PerfTest::Latency | PerfTest::Rate);
    ensure!(
        !is_message || usize::try_from(size).is_ok_and(|size| size <= maximum),
        "a message of transport {} has at most {maximum} bytes; use `weft perf message` for {size}",
        transport.capabilities().transport
    );
    Ok(())
}

/// Runs the test as often as asked for and gathers the samples.
fn gather(
    arguments: &PerfArguments,
    size: u64,
    mut initiator: impl Near,
    placement: &str,
) -> anyhow::Result<Report> {
    ensure!((1..=1_000).contains(&arguments.runs), "--runs is to be from 1 to 1000");
    let plan = match arguments.iterations {
        Some(iterations) => {
            ensure!(iterations > 0, "--iterations is to be at least 1");
            Plan { size, iterations }
        }
        None => calibrate(&mut initiator, arguments.test, size)?,
    };
    // The first run warms caches, branch predictors and mappings; it does not count.
    let warm_up = Plan { iterations: (plan.iterations / 4).max(1), ..plan };
    initiator.run(arguments.test, warm_up)?;
    let mut samples = Vec::<Sample>::new();
    for _ in 0..arguments.runs {
        samples.push(initiator.run(arguments.test, plan)?);
    }
    initiator.stop()?;
    let report = Report::new(arguments.test, arguments.transport(), plan, placement, samples);
    Ok(match arguments.test {
        PerfTest::Lane => report.of_lane(arguments.lane_kind()),
        _ => report,
    })
}

#[cfg(test)]
mod tests;
