//! Measuring over the simulator: two nodes in one process, virtual time, the same every time.

use anyhow::ensure;
use weft_fabric::{Endpoint, EndpointOptions, NodeId, Transport};
use weft_transport_sim::{Settings, SimWorld};

use super::initiator::Initiator;
use super::report::Report;
use super::responder::{Progress, Responder};
use super::{Budget, FarEnd, Surroundings, check_size, gather, lane, message, region_bytes};
use crate::arguments::{MemoryKind, PerfArguments, PerfTest};

/// The simulator's seed: any will do, one gives the same figures everywhere.
const SEED: u64 = 1;
/// The user that both ends belong to.
const USER: u32 = 1000;
/// Virtual time of a run.
const RUN_NS: u64 = 20_000_000;
/// The simulator does some hundred thousand events a second of real time.
const ITERATIONS_MAX: u64 = 2_000;
/// Turns in which nothing is on its way and nobody has anything to do.
const STUCK_TURNS_MAX: u32 = 4;

const PLACEMENT: &str = "virtual time, two nodes";

/// The far end and the time between.
#[derive(Debug)]
struct Far<R> {
    world: SimWorld,
    responder: R,
    stuck: u32,
}

impl<R: FarEnd> Surroundings for Far<R> {
    fn now_ns(&self) -> u64 {
        self.world.now()
    }

    fn idle(&mut self) -> anyhow::Result<()> {
        let progress = self.responder.step()?;
        let moved = self.world.step() || progress == Progress::Busy;
        self.stuck = if moved { 0 } else { self.stuck + 1 };
        ensure!(self.stuck < STUCK_TURNS_MAX, "the simulated ends wait for each other for ever");
        Ok(())
    }

    fn budget(&self) -> Budget {
        Budget { run_ns: RUN_NS, iterations_max: ITERATIONS_MAX }
    }
}

/// Measures `arguments.test` between two simulated nodes.
pub fn measure(arguments: &PerfArguments, size: u64) -> anyhow::Result<Report> {
    let world = SimWorld::new(Settings::seeded(SEED));
    let near = world.transport(NodeId(0), USER);
    check_size(&near, arguments.test, size)?;
    ensure!(
        arguments.memory == MemoryKind::Fresh,
        "the simulator has memory of its own alone; leave --memory out"
    );
    let mut endpoint = near.open(&EndpointOptions::default())?;
    let region = endpoint.register(region_bytes(size))?;
    let mut far = world.transport(NodeId(1), USER).open(&EndpointOptions::default())?;
    let target = far.register(region_bytes(size))?;
    if arguments.test == PerfTest::Message {
        let responder = message::Responder::new(far, endpoint.address(), size)?;
        let far = Far { world, responder, stuck: 0 };
        let initiator = message::Initiator::new(endpoint, far, size)?;
        return gather(arguments, size, initiator, PLACEMENT);
    }
    if arguments.test == PerfTest::Lane {
        let door = lane::OverEndpoint::opening(far, endpoint.address())?;
        let far = Far { world, responder: lane::Responder::new(door, size), stuck: 0 };
        let initiator = lane::Initiator::new(lane::OverEndpoint::waiting(endpoint), far, size)?;
        return gather(arguments, size, initiator, PLACEMENT);
    }
    let responder = Responder::new(far, target, endpoint.address())?;
    let far = Far { world, responder, stuck: 0 };
    let initiator = Initiator::new(endpoint, region, far)?;
    gather(arguments, size, initiator, PLACEMENT)
}
