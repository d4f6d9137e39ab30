//! Measuring over libfabric: two endpoints of this process, each with a thread, over one provider.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use weft_broker::local::LocalBroker;
use weft_broker::{Limits, no_bells};
use weft_fabric::{Endpoint, EndpointAddress, EndpointOptions, NodeId, Transport};
use weft_options::{Options, ServicePolicy};
use weft_sync::{AdaptiveWait, Step, contention};

use super::initiator::Initiator;
use super::report::Report;
use super::responder::{Progress, Responder};
use super::{
    Budget, FarEnd, Surroundings, check_size, gather, lane, message, polling, region_bytes,
};
use crate::arguments::{MemoryKind, PerfArguments, PerfTest};
use crate::transports;

/// Real time of a run.
const RUN_NS: u64 = 200_000_000;
/// Iterations of a run at most.
const ITERATIONS_MAX: u64 = 10_000_000;
/// How long an end waits for one of which nothing is heard.
const SILENT_FOR: Duration = Duration::from_secs(10);

/// The other end, and the clock.
#[derive(Debug)]
pub struct Far {
    /// Its thread, if it is in this process.
    thread: Option<JoinHandle<anyhow::Result<()>>>,
    start: Instant,
    /// When something was heard of it, unless that was since the last idle turn: the clock would be
    /// measured, too.
    heard: Instant,
    is_heard: bool,
    adaptive_wait: AdaptiveWait,
}

impl Far {
    /// The other end, which has this thread, or is on another node.
    pub fn new(thread: Option<JoinHandle<anyhow::Result<()>>>) -> Self {
        let now = Instant::now();
        Self { thread, start: now, heard: now, is_heard: false, adaptive_wait: polling() }
    }
}

impl Surroundings for Far {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn idle(&mut self) -> anyhow::Result<()> {
        if self.adaptive_wait.step() == Step::Spin {
            return Ok(());
        }
        contention::yield_core();
        if let Some(thread) = self.thread.take_if(|thread| thread.is_finished()) {
            thread.join().map_err(|_| anyhow!("the other end panicked"))??;
            bail!("the other end ended");
        }
        if std::mem::take(&mut self.is_heard) {
            self.heard = Instant::now();
        }
        let heard = self.heard.elapsed();
        ensure!(heard < SILENT_FOR, "nothing was heard of the other end for {SILENT_FOR:?}");
        Ok(())
    }

    fn busy(&mut self) {
        self.adaptive_wait.restart();
        self.is_heard = true;
    }

    fn budget(&self) -> Budget {
        Budget { run_ns: RUN_NS, iterations_max: ITERATIONS_MAX }
    }
}

/// Measures `arguments.test` over a provider of the installed libfabric.
pub fn measure(arguments: &PerfArguments, size: u64, options: &Options) -> anyhow::Result<Report> {
    ensure!(
        arguments.memory == MemoryKind::Fresh,
        "over libfabric there is fresh memory alone; leave --memory out"
    );
    let directory =
        LocalBroker::new(NodeId::LOCAL, Limits::default(), ServicePolicy::default(), no_bells);
    let opening = transports::opening(arguments.provider.as_deref(), options);
    let opening = opening.by(Arc::new(directory));
    let placement = format!("two threads, provider {}", opening.check_far()?);
    let transport = opening.far()?;
    check_size(&transport, arguments.test, size)?;
    let mut endpoint = transport.open(&EndpointOptions::default())?;
    let address = endpoint.address();
    let test = arguments.test;
    let thread = std::thread::Builder::new().name("weft-perf-far".into());
    let thread = thread.spawn(move || {
        let far = transport.open(&EndpointOptions::default())?;
        respond(far, test, size, address)
    });
    let thread = Some(thread.context("the other end cannot be started")?);
    let far = Far::new(thread);
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

/// Is the other end, for the initiator at `to`.
///
/// # Errors
/// When the transport failed, or the initiator is not heard of any more.
pub fn respond<E: Endpoint>(
    mut endpoint: E,
    test: PerfTest,
    size: u64,
    to: EndpointAddress,
) -> anyhow::Result<()> {
    match test {
        PerfTest::Message => answer(message::Responder::new(endpoint, to, size)?),
        PerfTest::Lane => {
            let door = lane::OverEndpoint::opening(endpoint, to)?;
            answer(lane::Responder::new(door, size))
        }
        _ => {
            let region = endpoint.register(region_bytes(size))?;
            answer(Responder::new(endpoint, region, to)?)
        }
    }
}

/// Answers until it is over. Puts and gets pass this end by, so that nothing may be heard of a peer
/// that lives for as long as its runs take; its end is reported.
fn answer(mut responder: impl FarEnd) -> anyhow::Result<()> {
    let mut adaptive_wait = polling();
    let (start, mut has_met) = (Instant::now(), false);
    loop {
        match responder.step()? {
            Progress::Over => return Ok(()),
            Progress::Busy => {
                adaptive_wait.restart();
                has_met = true;
            }
            // Looks at the clock would be measured, too.
            Progress::Idle if adaptive_wait.step() == Step::Spin => {}
            Progress::Idle => {
                contention::yield_core();
                let is_late = !has_met && start.elapsed() > SILENT_FOR;
                ensure!(!is_late, "nothing was heard for {SILENT_FOR:?}");
            }
        }
    }
}
