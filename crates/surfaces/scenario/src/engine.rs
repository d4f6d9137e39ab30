//! The levels of the simulator behind one face.

use std::collections::VecDeque;

use weft_fabric_manager::Rule;
use weft_network::flow::{Ending, Flow, FlowNetwork};
use weft_network::time::Time;
use weft_network::{Counts, LostBecause, Message, Network, Outcome, SendError};
use weft_routing::{Route, Routes};
use weft_topology::{Graph, Vertex};

use crate::endpoints::Endpoints;
use crate::run::RunError;
use crate::scenario::{Change, Level, Scenario};

/// A network of one of the levels.
enum Fabric {
    Packets(Box<Network>),
    Flows { network: Box<FlowNetwork>, lost: VecDeque<Outcome> },
    Endpoints(Box<Endpoints>),
}

/// A network, and where its routes come from.
pub(crate) struct Engine {
    fabric: Fabric,
    /// The routes that follow faults by themselves. Those of endpoints do so in their world.
    routes: Option<Box<Routes>>,
    /// The managers that give routes.
    rule: Option<Box<Rule>>,
    stopped: Vec<Vertex>,
}

/// Whether a message is on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    OnItsWay,
    /// Its host is down.
    Refused,
}

impl Engine {
    pub fn new(scenario: &Scenario) -> Result<Self, RunError> {
        let routes = Routes::compute(&scenario.graph, scenario.routing)?;
        let (graph, settings) = (scenario.graph.clone(), scenario.settings.clone());
        let route = Box::new(routes.clone());
        let fabric = match scenario.level {
            Level::Messages => Fabric::Packets(Box::new(Network::new(graph, route, settings)?)),
            Level::Flows => {
                let network = Box::new(FlowNetwork::new(&graph, route, settings)?);
                Fabric::Flows { network, lost: VecDeque::new() }
            }
            Level::Endpoints => Fabric::Endpoints(Box::new(Endpoints::new(scenario)?)),
        };
        let routes = (scenario.level != Level::Endpoints && scenario.manager.is_none())
            .then(|| Box::new(routes));
        let rule = scenario.manager.map(|manager| {
            let (tick, rules) = (manager.tick, &manager.rules);
            Rule::new(&scenario.graph, scenario.routing, rules, tick, scenario.seed())
        });
        let rule = rule.transpose().map_err(RunError::Manager)?.map(Box::new);
        let mut engine = Self { fabric, routes, rule, stopped: Vec::new() };
        engine.load_tables()?;
        Ok(engine)
    }

    pub fn now(&self) -> Time {
        match &self.fabric {
            Fabric::Packets(network) => network.now(),
            Fabric::Flows { network, .. } => network.now(),
            Fabric::Endpoints(endpoints) => endpoints.now(),
        }
    }

    /// The time at which managers act next, if there are any.
    pub fn next_tick(&self) -> Option<Time> {
        self.rule.as_ref().map(|rule| rule.next_tick())
    }

    /// Lets the managers act.
    pub fn tick(&mut self) -> Result<(), RunError> {
        if self.rule.as_mut().is_some_and(|rule| rule.tick()) {
            self.load_tables()?;
        }
        Ok(())
    }

    /// Lets time pass until a message ends, or until `until`.
    pub fn run(&mut self, until: Time) -> Option<Outcome> {
        match &mut self.fabric {
            Fabric::Packets(network) => network.run(until),
            Fabric::Flows { network, lost } => lost.pop_front().or_else(|| {
                let end = network.run(until)?;
                let Flow { from, to, bytes, tag } = end.flow;
                let message = Message { from, to: to.into(), bytes, class: 0, tag };
                let (sent_at, at) = (end.began_at, end.at);
                Some(match end.ending {
                    Ending::Arrived => Outcome::Delivered { message, sent_at, at, hops: 0 },
                    Ending::Lost => {
                        Outcome::Lost { message, sent_at, at, because: LostBecause::NoWay }
                    }
                })
            }),
            Fabric::Endpoints(endpoints) => endpoints.run(until),
        }
    }

    pub fn send(&mut self, message: Message) -> Result<Sent, RunError> {
        match &mut self.fabric {
            Fabric::Packets(network) => match network.send(message) {
                Ok(()) => Ok(Sent::OnItsWay),
                Err(SendError::Down(_)) => Ok(Sent::Refused),
                Err(error) => Err(error.into()),
            },
            Fabric::Flows { network, lost } => {
                let Message { from, to, bytes, tag, .. } = message;
                if network.is_down(from) {
                    return Ok(Sent::Refused);
                }
                // Without a way it is lost at once, and its host sends it again some time.
                let to = to.host().expect("a scenario sends between hosts");
                if network.begin(Flow { from, to, bytes, tag }).is_err() {
                    let (at, because) = (network.now(), LostBecause::NoWay);
                    lost.push_back(Outcome::Lost { message, sent_at: at, at, because });
                }
                Ok(Sent::OnItsWay)
            }
            Fabric::Endpoints(endpoints) => Ok(endpoints.send(message)),
        }
    }

    /// Changes the network. True if routes have to be computed anew, some time after.
    pub fn change(&mut self, change: Change) -> Result<bool, RunError> {
        let has_changed = match &mut self.fabric {
            Fabric::Packets(network) => match change {
                Change::Cut((vertex, port)) => network.cut(vertex, port),
                Change::Heal((vertex, port)) => network.heal(vertex, port),
                Change::Model((vertex, port), model) => {
                    network.set_link(vertex, port, model)?;
                    if let Some((vertex, port)) = network.graph().wired(vertex, port) {
                        network.set_link(vertex, port, model)?;
                    }
                    false
                }
                Change::Crash(vertex) => network.crash(vertex),
                Change::Restart(vertex) => network.restart(vertex),
                _ => false,
            },
            Fabric::Flows { network, .. } => match change {
                Change::Cut((vertex, port)) => network.cut(vertex, port),
                Change::Heal((vertex, port)) => network.heal(vertex, port),
                Change::Model((vertex, port), model) => {
                    network.set_link(vertex, port, model)?;
                    if let Some((vertex, port)) = network.reachable().wired(vertex, port) {
                        network.set_link(vertex, port, model)?;
                    }
                    false
                }
                Change::Crash(vertex) => network.crash(vertex),
                Change::Restart(vertex) => network.restart(vertex),
                _ => false,
            },
            Fabric::Endpoints(endpoints) => endpoints.change(change)?,
        };
        match change {
            Change::Crash(vertex) => self.stopped.push(vertex),
            Change::Restart(vertex) => self.stopped.retain(|stopped| *stopped != vertex),
            _ => {}
        }
        self.tell_rule(change, has_changed)?;
        Ok(has_changed && self.routes.is_some())
    }

    /// Tells the managers of a change.
    fn tell_rule(&mut self, change: Change, has_changed: bool) -> Result<(), RunError> {
        let reachable = has_changed.then(|| self.reachable());
        let Some(rule) = &mut self.rule else { return Ok(()) };
        match change {
            Change::CrashManager => drop(rule.crash_manager()),
            Change::Clock(vertex, rate_per_mille) => rule.set_rate(vertex, rate_per_mille),
            _ => {}
        }
        if let Some(reachable) = reachable {
            rule.set_links(&reachable, &self.stopped);
            self.load_tables()?;
        }
        Ok(())
    }

    /// The traffic of the link out of each port, vertex by vertex. Flows are not counted.
    pub fn counts(&self, graph: &Graph) -> Vec<Counts> {
        let count = |vertex, port| match &self.fabric {
            Fabric::Packets(network) => network.counts(vertex, port).unwrap_or_default(),
            Fabric::Endpoints(endpoints) => endpoints.counts(vertex, port),
            Fabric::Flows { .. } => Counts::default(),
        };
        if matches!(self.fabric, Fabric::Flows { .. }) {
            return Vec::new();
        }
        let vertices = 0..graph.vertices();
        vertices
            .flat_map(|vertex| (0..graph.ports(vertex)).map(move |port| count(vertex, port)))
            .collect()
    }

    /// Whether a message that was lost can be sent again. Endpoints have done so by themselves.
    pub fn can_send_again(&self) -> bool {
        !matches!(self.fabric, Fabric::Endpoints(_))
    }

    /// Computes routes for the links that are up.
    pub fn reroute(&mut self) -> Result<(), RunError> {
        let reachable = self.reachable();
        let Some(routes) = &mut self.routes else { return Ok(()) };
        **routes = routes.recompute(&reachable)?;
        let route = routes.clone();
        self.set_route(route)
    }

    /// Has messages take the tables of the agents as they are now.
    fn load_tables(&mut self) -> Result<(), RunError> {
        match &self.rule {
            Some(rule) => self.set_route(Box::new(rule.route())),
            None => Ok(()),
        }
    }

    fn set_route(&mut self, route: Box<dyn Route + Send>) -> Result<(), RunError> {
        match &mut self.fabric {
            Fabric::Packets(network) => network.set_route(route)?,
            Fabric::Flows { network, .. } => network.set_route(route),
            Fabric::Endpoints(endpoints) => endpoints.set_route(route)?,
        }
        Ok(())
    }

    /// The graph without links that are cut or lead to nodes that are down.
    pub fn reachable(&self) -> Graph {
        match &self.fabric {
            Fabric::Packets(network) => network.reachable(),
            Fabric::Flows { network, .. } => network.reachable(),
            Fabric::Endpoints(endpoints) => endpoints.reachable(&self.stopped),
        }
    }
}
