//! Managers and agents as a simulator drives them: in its own time, with the faults of its network.
//!
//! # Invariant
//! A route that is given out has the tables of the agents at that time, also in the middle of a
//! change.

use weft_routing::{Algorithm, Route, Routes};
use weft_topology::{Graph, Vertex};

use crate::Settings;
use crate::model::{AgentRoute, Model, expected};

/// Milliseconds within which a manager rules at first.
const SETTLES_WITHIN_MS: u64 = 60_000;

/// How a network is ruled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RuleSettings {
    /// The manager knows which network should be there.
    pub is_expected: bool,
    /// Of a thousand packets of managers and agents, so many are lost.
    pub loss_per_mille: u32,
    /// Another manager takes the place of one that has died, when its lease has run out.
    pub is_followed: bool,
}

/// A network under managers.
pub struct Rule {
    model: Model,
    vcs: u8,
    tick: u64,
    ticks_at: u64,
}

impl Rule {
    /// A network that a manager rules already. A millisecond of managers passes in `tick` of the
    /// simulator's time.
    ///
    /// # Errors
    /// Text, if the graph has no such routes or hosts, or no manager comes to rule.
    pub fn new(
        graph: &Graph,
        algorithm: Algorithm,
        rules: &RuleSettings,
        tick: u64,
        seed: u64,
    ) -> Result<Self, String> {
        let routes = Routes::compute(graph, algorithm).map_err(|error| error.to_string())?;
        let settings = Settings {
            algorithm,
            expected: rules.is_expected.then(|| expected(graph)),
            sweep_ms: 2_000,
            settle_ms: 200,
        };
        let mut model = Model::new(graph.clone(), settings, rules.loss_per_mille, seed);
        let first = graph.hosts().next();
        model.elect(first.ok_or("the graph has no host on which a manager could run")?);
        if rules.is_followed {
            model.follow();
        }
        while !model.is_settled() {
            if model.now > SETTLES_WITHIN_MS {
                return Err(format!("no manager comes to rule: {:?}", model.standing()));
            }
            model.step();
        }
        Ok(Self { model, vcs: routes.vcs(), tick, ticks_at: tick })
    }

    /// The time of the next tick, in the simulator's time, which begins at 0.
    #[must_use]
    pub fn next_tick(&self) -> u64 {
        self.ticks_at
    }

    /// Lets a millisecond of the managers pass. True if tables changed.
    pub fn tick(&mut self) -> bool {
        self.ticks_at = self.ticks_at.saturating_add(self.tick);
        self.model.step();
        self.model.take_changed()
    }

    /// The routes by the tables of now.
    #[must_use]
    pub fn route(&self) -> AgentRoute {
        self.model.route(self.vcs)
    }

    /// The links are as in this graph from now on, and these nodes have crashed.
    pub fn set_links(&mut self, graph: &Graph, stopped: &[Vertex]) {
        for vertex in stopped {
            if !self.model.dead.contains(vertex) {
                self.model.crash(*vertex);
            }
        }
        for vertex in self.model.dead.clone() {
            if !stopped.contains(&vertex) {
                self.model.restart(vertex);
            }
        }
        self.model.set_links(graph);
    }

    /// The manager that rules dies. False if it had died before.
    pub fn crash_manager(&mut self) -> bool {
        self.model.crash_manager()
    }

    /// The clock of a node goes so far in a thousand milliseconds from now on.
    pub fn set_rate(&mut self, vertex: Vertex, rate_per_mille: u64) {
        self.model.set_rate(vertex, rate_per_mille);
    }

    /// Whether tables lead from one host to another, and back.
    #[must_use]
    pub fn leads(&self, a: Vertex, b: Vertex) -> bool {
        self.model.leads(a, b) && self.model.leads(b, a)
    }

    /// Checks that a manager rules, and that tables lead from every host to every other.
    ///
    /// # Errors
    /// Text, with the first pair without a way.
    pub fn check(&self) -> Result<(), String> {
        if self.model.is_settled() && self.model.part().len() == self.model.graph.hosts().count() {
            return Ok(());
        }
        let (term, holder) = self.model.lease;
        Err(format!(
            "the network is whole, and the manager of term {term} on vertex {holder:?} does not \
             lead {:?}; it is {:?}",
            self.model.unrouted().first(),
            self.model.standing()
        ))
    }
}
