//! A connection in a world of its own, without a swarm: on one host, or between two nodes with a
//! private link.
//!
//! # Invariant
//! Time passes only when no thread can go on, so that every sleeper is woken by an event.

use weft_fabric::{EndpointOptions, NodeId, Transport};
use weft_transport_sim::{Link, Settings, SimEndpoint, SimWorld};

use super::connection::{Connection, Runnable};
use super::events::CUT_DOWN_AFTER_NS;
use super::opening::{self, Lanes, Opened, Opening};
use super::plan::Plan;

const USER: u32 = 1_000;

/// Runs a connection until both programs have closed.
///
/// # Panics
/// When a byte is lost, doubled, changed or out of order, an end is told too early or a reset
/// without a reason, a thread spins, or all threads sleep for ever.
pub fn run(plan: Plan) {
    let sim = SimWorld::new(settings(&plan));
    let lanes = if plan.network.is_some() {
        over(&plan, &sim)
    } else {
        opening::memory(&plan).expect("the system has memory for lanes")
    };
    Connection::new(plan, &sim, lanes).run();
}

/// The settings of the simulated fabric.
fn settings(plan: &Plan) -> Settings {
    let Some(network) = plan.network else { return Settings::seeded(plan.seed) };
    let (latency_ns, jitter_ns) = (network.latency_ns, network.jitter_ns);
    Settings {
        link: Link { latency_ns, jitter_ns, bits_per_second: network.bits_per_second },
        ordered: network.ordered,
        operations_max: network.operations_max,
        notification_depth: network.notification_depth,
        detection_ns: 100_000,
        cut_down_after_ns: Some(CUT_DOWN_AFTER_NS),
        ..Settings::seeded(plan.seed)
    }
}

/// Lanes between nodes 0 and 1.
fn over(plan: &Plan, sim: &SimWorld) -> Lanes<SimEndpoint> {
    let endpoints = [0, 1].map(|node| {
        let endpoint = sim.transport(NodeId(node), USER).open(&EndpointOptions::default());
        endpoint.expect("a new world has room")
    });
    let mut opening = Opening::begin(plan, endpoints).expect("the peer is there");
    loop {
        assert!(sim.step(), "no lane comes");
        opening = match opening.poll().expect("nobody misbehaves") {
            Opened::NotYet(opening) => opening,
            Opened::All(ends) => return Lanes::Network(ends),
            Opened::Refused(why) => panic!("a lane is refused: {why:?}"),
        };
    }
}

impl Connection<SimEndpoint> {
    fn run(&self) {
        while let Some(Runnable { now, soon }) = self.look_around() {
            if !soon.is_empty() && self.chance(32) {
                self.step(soon[0]);
            } else if !now.is_empty() && !self.chance(8) {
                self.step(now[self.pick(now.len())]);
            } else if let Some(time) = self.next_arrival() {
                self.sim.advance(time - self.sim.now());
            } else if let Some(thread) = now.first().or(soon.first()) {
                self.step(*thread);
            } else if self.has_sleepers() {
                panic!("deadlock: {}", self.describe());
            }
        }
        self.judge();
    }
}
