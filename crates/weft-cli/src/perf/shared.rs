//! Measuring over shared memory: two processes, each on a core of its own.
//!
//! The second process is this program again, told the address of the first. It ends when it is
//! told to, and the kernel ends it with the first: the daemon that would tell may end, too.

use std::os::unix::process::parent_id;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::CpuSet;
use weft_fabric::{
    Endpoint, EndpointAddress, EndpointOptions, HostMemory, NodeId, Transport, Vpid,
};
use weft_memory::{CopyMode, Memory};
use weft_options::Options;
use weft_options::runtime_path::ControlSocket;
use weft_sync::{AdaptiveWait, Step, contention};
use weft_transport_shm::lane::{LaneLayout, ShmLane};

use super::initiator::Initiator;
use super::report::Report;
use super::responder::{Progress, Responder};
use super::{
    Budget, FarEnd, Surroundings, check_size, gather, ground, lane, message, region_bytes,
};
use crate::arguments::{LaneKind, PerfArguments, PerfTest, TransportName};
use crate::configuration::{Configuration, hand_on};
use crate::transports;

/// Real time of a run.
const RUN_NS: u64 = 200_000_000;
/// Iterations of a run at most.
const ITERATIONS_MAX: u64 = 50_000_000;
/// Turns without an event, some 2 us, after which an end gives its core to others.
const TURNS_BEFORE_YIELD: u32 = 256;
/// Yields after which the initiator looks whether the other process is still there.
const YIELDS_PER_LOOK: u32 = 1 << 14;

/// Which end of the pair this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Initiator,
    Responder,
}

/// Measures `arguments.test` between this process and another.
pub fn measure(
    arguments: &PerfArguments,
    size: u64,
    configuration: &Configuration,
) -> anyhow::Result<Report> {
    let socket = configuration.control_socket(None)?;
    if (arguments.test, arguments.lane_kind()) == (PerfTest::Lane, LaneKind::Memory) {
        return measure_lane_in_memory(arguments, size, &socket, &configuration.options);
    }
    let options = &configuration.options;
    let opening = transports::starting(arguments.provider.as_deref(), options)?;
    match arguments.transport() {
        TransportName::Auto => measure_over(opening.any()?, arguments, size, &socket, options),
        _ => measure_over(opening.near()?, arguments, size, &socket, options),
    }
}

fn measure_over<T>(
    transport: T,
    arguments: &PerfArguments,
    size: u64,
    socket: &ControlSocket,
    options: &Options,
) -> anyhow::Result<Report>
where
    T: Transport<Endpoint: HostMemory<Memory = Memory>>,
{
    check_size(&transport, arguments.test, size)?;
    let mut endpoint = transport.open(&EndpointOptions::default())?;
    let region = ground::register(&mut endpoint, arguments, region_bytes(size))?;
    // Pinned after the other process was started, which inherits the cores that are allowed.
    let address = endpoint.address().to_string();
    let far = Far::start(arguments, size, &address, Stdio::null(), socket, options)?;
    let placement = place(arguments)?;
    if arguments.test == PerfTest::Lane {
        let initiator = lane::Initiator::new(lane::OverEndpoint::waiting(endpoint), far, size)?;
        return gather(arguments, size, initiator, &placement);
    }
    if arguments.test == PerfTest::Message {
        let initiator = message::Initiator::new(endpoint, far, size)?;
        return gather(arguments, size, initiator, &placement);
    }
    let initiator = Initiator::new(endpoint, region, far)?;
    gather(arguments, size, initiator, &placement)
}

/// Measures a lane in memory, which needs no daemon: the other process has it as standard input.
fn measure_lane_in_memory(
    arguments: &PerfArguments,
    size: u64,
    socket: &ControlSocket,
    options: &Options,
) -> anyhow::Result<Report> {
    let slots = u32::try_from(options.shm_ring_slots()).context("shm.ring_slots is too large")?;
    let sink_bytes = u32::try_from(options.socket_sink_bytes())?;
    let (lane, memory) = ShmLane::create(LaneLayout { slots, sink_bytes }, CopyMode::Plain)?;
    let respond = std::process::id().to_string();
    let far = Far::start(arguments, size, &respond, memory.into(), socket, options)?;
    let placement = place(arguments)?;
    let initiator = lane::Initiator::new(lane::InMemory::made(lane), far, size)?;
    gather(arguments, size, initiator, &placement)
}

/// Pins the initiator if that is wanted, and says how the ends are placed.
fn place(arguments: &PerfArguments) -> anyhow::Result<String> {
    let placement = if arguments.unpinned { None } else { pin(End::Initiator)? };
    Ok(placement.unwrap_or_else(|| "two processes, not pinned".to_owned()))
}

/// Is the other end, for the initiator at `address`.
pub fn respond(
    arguments: &PerfArguments,
    size: u64,
    address: &str,
    configuration: &Configuration,
) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if !arguments.unpinned {
        pin(End::Responder)?;
    }
    if (arguments.test, arguments.lane_kind()) == (PerfTest::Lane, LaneKind::Memory) {
        let parent: u32 =
            address.parse().context("the initiator of a lane in memory is a process")?;
        ensure!(parent_id() == parent, "the initiator is gone");
        let door = lane::InMemory::given(std::io::stdin())?;
        return answer(lane::Responder::new(door, size));
    }
    let address = parse(address)?;
    // The initiator has found the daemon.
    let opening = transports::opening(arguments.provider.as_deref(), &configuration.options);
    match arguments.transport() {
        TransportName::Auto => respond_over(opening.any()?, arguments, size, address),
        _ => respond_over(opening.near()?, arguments, size, address),
    }
}

fn respond_over<T>(
    transport: T,
    arguments: &PerfArguments,
    size: u64,
    address: EndpointAddress,
) -> anyhow::Result<()>
where
    T: Transport<Endpoint: HostMemory<Memory = Memory>>,
{
    let mut endpoint = transport.open(&EndpointOptions::default())?;
    if arguments.test == PerfTest::Message {
        return answer(message::Responder::new(endpoint, address, size)?);
    }
    if arguments.test == PerfTest::Lane {
        let door = lane::OverEndpoint::opening(endpoint, address)?;
        return answer(lane::Responder::new(door, size));
    }
    let region = ground::register(&mut endpoint, arguments, region_bytes(size))?;
    answer(Responder::new(endpoint, region, address)?)
}

/// Answers until it is over.
fn answer(mut responder: impl FarEnd) -> anyhow::Result<()> {
    let mut adaptive_wait = polling();
    loop {
        match responder.step()? {
            Progress::Over => return Ok(()),
            Progress::Busy => adaptive_wait.restart(),
            Progress::Idle => {
                if adaptive_wait.step() != Step::Spin {
                    contention::yield_core();
                }
            }
        }
    }
}

/// Both ends poll: they never sleep.
fn polling() -> AdaptiveWait {
    AdaptiveWait::new(TURNS_BEFORE_YIELD, 0)
}

fn parse(address: &str) -> anyhow::Result<EndpointAddress> {
    let (node, vpid) = address.split_once(':').context("an address is NODE:VPID")?;
    Ok(EndpointAddress::new(NodeId(node.parse()?), Vpid(vpid.parse()?)))
}

/// Pins this process: the initiator to the first core it may use, the responder to the last.
/// `None` when there is only one.
fn pin(end: End) -> anyhow::Result<Option<String>> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    let first = cores.next().context("the system allows no core")?;
    let Some(last) = cores.next_back() else { return Ok(None) };
    let mut wanted = CpuSet::new();
    wanted.set(if end == End::Initiator { first } else { last });
    rustix::thread::sched_setaffinity(None, &wanted)?;
    Ok(Some(format!("two processes, pinned to cores {first} and {last}")))
}

/// The other process, and the clock.
#[derive(Debug)]
struct Far {
    child: Child,
    start: Instant,
    adaptive_wait: AdaptiveWait,
    yields: u32,
}

impl Far {
    fn start(
        arguments: &PerfArguments,
        size: u64,
        respond: &str,
        input: Stdio,
        socket: &ControlSocket,
        options: &Options,
    ) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("this program's own file is unknown")?;
        let mut command = Command::new(program);
        command
            .args(["perf", arguments.test.name(), "--transport", arguments.transport().name()])
            .args(["--size", &size.to_string(), "--respond", respond])
            .args(["--memory", arguments.memory.name(), "--way", arguments.way.name()])
            .args(arguments.over.iter().flat_map(|over| ["--over", over.name()]))
            .env("WEFT_SOCKET", &socket.path)
            .stdin(input)
            .stdout(Stdio::null());
        hand_on(options, &mut command);
        if arguments.unpinned {
            command.arg("--unpinned");
        }
        let child = command.spawn().context("the other end cannot be started")?;
        Ok(Self { child, start: Instant::now(), adaptive_wait: polling(), yields: 0 })
    }
}

impl Surroundings for Far {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    #[inline]
    fn idle(&mut self) -> anyhow::Result<()> {
        if self.adaptive_wait.step() == Step::Spin {
            return Ok(());
        }
        contention::yield_core();
        self.yields += 1;
        if self.yields >= YIELDS_PER_LOOK {
            self.yields = 0;
            if let Some(status) = self.child.try_wait()? {
                bail!("the other end ended with {status}");
            }
        }
        Ok(())
    }

    #[inline]
    fn busy(&mut self) {
        self.adaptive_wait.restart();
    }

    fn budget(&self) -> Budget {
        Budget { run_ns: RUN_NS, iterations_max: ITERATIONS_MAX }
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // It ends by itself when it was told to; after a failure here nobody told it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
