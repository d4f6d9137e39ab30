//! One run: random steps with faults, then everything is mended, and the checks.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_fabric::Endpoint;
use weft_transport_sim::{SimEndpoint, SimWorld};

use crate::endpoints::Endpoints;
use crate::ethernet::Ethernet;
use crate::lanes::Lanes;
use crate::messages::Letters;
use crate::plan::{Fault, Kind, Plan, one_of, random};
use crate::sessions::Dialogues;
use crate::sockets::Sockets;
use crate::stage::Stage;
use crate::transfers::Transfers;
use crate::workload::Workload;

/// The time after all was mended within which everything has to settle, in ns.
const SETTLES_WITHIN_NS: u64 = 100_000_000;
/// Programs take their events in this interval then.
const LOOK_EVERY_NS: u64 = 2_000;
/// Events of one poll at most.
const EVENTS: usize = 64;

/// A run without a violation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Summary {
    /// The seed.
    pub seed: u64,
    /// The digest of all events of the world.
    pub digest: u64,
    /// The virtual time of the run in ns.
    pub simulated_ns: u64,
    /// Messages that arrived and operations that ended.
    pub done: u64,
    /// Faults that began.
    pub faults: u32,
}

/// A promise of the fabric that a run broke.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The seed.
    pub seed: u64,
    /// The promise, and where it was broken.
    pub reason: String,
    /// The network, the workloads and the faults of the run.
    pub plan: String,
    /// The last events of the world.
    pub trace: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, reason, plan, trace } = self;
        writeln!(f, "seed {seed}: {reason}\n  {plan}")?;
        trace.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        write!(f, "again with: weft sim swarm --seed {seed}")
    }
}

impl std::error::Error for Violation {}

/// Runs a plan.
///
/// # Errors
/// [`Violation`], also when something panics.
pub fn run(plan: &Plan) -> Result<Summary, Violation> {
    run_over(plan, &|endpoint| endpoint)
}

/// As [`run`], over endpoints that `wrap` makes of those of the world. So a test can plant a fault.
///
/// # Errors
/// [`Violation`].
pub fn run_over<E: Endpoint>(
    plan: &Plan,
    wrap: &dyn Fn(SimEndpoint) -> E,
) -> Result<Summary, Violation> {
    let mut world = None;
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let mut stage = Stage::new(plan, wrap)?;
        world = Some(stage.world.clone());
        Run::new(plan, &mut stage)?.go()
    }));
    let reason = match ended {
        Ok(Ok(summary)) => return Ok(summary),
        Ok(Err(reason)) => reason,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            format!("a panic: {}", text.unwrap_or("without a text"))
        }
    };
    let network = plan.settings.network.as_ref();
    let routing = network.map(|network| network.routing);
    let told = format!(
        "{}, routing {routing:?}, {:?}, {:?} with {} programs each, {} steps, faults {:?}",
        plan.shape, plan.ruled, plan.kinds, plan.programs, plan.steps, plan.faults
    );
    let trace = world.map_or(Vec::new(), |world: SimWorld| world.trace());
    let trace = trace.iter().rev().take(20).rev().map(ToString::to_string).collect();
    Err(Violation { seed: plan.seed, reason, plan: told, trace })
}

struct Run<'r, 'a, E: Endpoint> {
    plan: &'r Plan,
    stage: &'r mut Stage<'a, E>,
    random: ChaCha8Rng,
    loads: Vec<Box<dyn Workload<E> + 'r>>,
}

impl<'r, 'a, E: Endpoint + 'r> Run<'r, 'a, E> {
    fn new(plan: &'r Plan, stage: &'r mut Stage<'a, E>) -> Result<Self, String> {
        let mut random = random(plan.seed, 1);
        let mut loads: Vec<Box<dyn Workload<E> + 'r>> = Vec::new();
        for kind in &plan.kinds {
            loads.push(match kind {
                Kind::Endpoints => Box::new(Endpoints::new(plan, stage, &mut random)?),
                Kind::Lanes => Box::new(Lanes::new(plan, stage, &mut random)?),
                Kind::Messages => Box::new(Letters::new(plan, stage, &mut random)?),
                Kind::Sockets => Box::new(Sockets::new(plan, stage, &mut random)?),
                Kind::Ethernet => Box::new(Ethernet::new(plan, stage, &mut random)?),
                Kind::Transfers => Box::new(Transfers::new(plan, stage, &mut random)?),
                Kind::Sessions => Box::new(Dialogues::new(plan, stage, &mut random)?),
            });
        }
        Ok(Self { plan, stage, random, loads })
    }

    fn world(&self) -> &SimWorld {
        &self.stage.world
    }

    fn go(mut self) -> Result<Summary, String> {
        (0..self.plan.steps).try_for_each(|_| self.step())?;
        self.stage.mend_all();
        self.settle()?;
        self.stage.check()?;
        let stage = &*self.stage;
        self.loads.iter_mut().try_for_each(|load| load.check(stage))?;
        self.check_leaks()?;
        let done = self.loads.iter().map(|load| load.done()).sum();
        self.loads.clear();
        self.stage.world.advance(SETTLES_WITHIN_NS);
        let left = weft_transport_sim::Census::default();
        let census = self.world().census();
        if census != left {
            return Err(format!("all programs have ended, and something is left: {census:?}"));
        }
        Ok(Summary {
            seed: self.plan.seed,
            digest: self.world().digest(),
            simulated_ns: self.world().now(),
            done,
            faults: self.stage.faults,
        })
    }

    /// One random step.
    fn step(&mut self) -> Result<(), String> {
        let Self { plan, stage, random, loads } = self;
        let load = random.random_range(0..loads.len());
        loads[load].act(stage, random)?;
        if !plan.faults.is_empty() && random.random_ratio(1, plan.fault_every) {
            let fault = one_of(random, &plan.faults);
            let program = random.random_range(0..plan.programs);
            if !stage.break_something(fault, random) {
                if fault == Fault::Program {
                    stage.faults += 1;
                    loads[load].kill(stage, program)?;
                } else if let Some(address) = loads[load].address(program) {
                    stage.burden(fault, address, random);
                }
            }
        }
        stage.mend_due();
        stage.advance(random.random_range(0..plan.step_ns));
        let (program, budget) = (random.random_range(0..plan.programs), random.random_range(0..16));
        let load = random.random_range(0..loads.len());
        loads[load].poll(stage, Some(program), budget)
    }

    /// Lets everything that was accepted come to its end.
    fn settle(&mut self) -> Result<(), String> {
        let end = self.world().now() + SETTLES_WITHIN_NS;
        while self.world().now() < end {
            for load in &mut self.loads {
                load.poll(self.stage, None, EVENTS)?;
            }
            let census = self.world().census();
            let is_quiet = (census.packets, census.operations) == (0, 0)
                && (census.events, census.controls) == (0, 0);
            if is_quiet
                && self.loads.iter().all(|load| load.is_settled())
                && self.stage.check().is_ok()
            {
                return Ok(());
            }
            self.stage.advance(LOOK_EVERY_NS);
        }
        Ok(())
    }

    /// Compares what the world holds with what the programs know of.
    fn check_leaks(&self) -> Result<(), String> {
        let census = self.world().census();
        let keys: Option<usize> = self.loads.iter().map(|load| load.keys()).sum();
        let keys = keys.unwrap_or(census.keys);
        let bytes: Option<u64> = self.loads.iter().map(|load| load.region_bytes()).sum();
        let bytes = bytes.unwrap_or(census.region_bytes);
        if (census.keys, census.region_bytes) != (keys, bytes) {
            return Err(format!(
                "the programs have {keys} keys and {bytes} bytes of regions, and the world has \
                 {census:?}"
            ));
        }
        if (census.operations, census.packets, census.controls) != (0, 0, 0) {
            return Err(format!("nothing is under way, and the world has {census:?}"));
        }
        Ok(())
    }
}
