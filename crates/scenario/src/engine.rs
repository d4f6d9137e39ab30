//! The two levels of the simulator behind one face.

use weft_network::flow::{Flow, FlowNetwork};
use weft_network::time::Time;
use weft_network::{Counts, Message, Network, Outcome, SendError};
use weft_routing::Routes;
use weft_topology::Graph;

use crate::endpoints::Endpoints;
use crate::run::RunError;
use crate::scenario::{Change, Level, Scenario};

/// A network of either level.
pub(crate) enum Engine {
    Packets { network: Box<Network>, routes: Box<Routes> },
    Flows(Box<FlowNetwork>),
    Endpoints(Box<Endpoints>),
}

/// Whether a message is on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    OnItsWay,
    /// Its host is down, or no way leads to the other.
    Refused,
}

impl Engine {
    pub fn new(scenario: &Scenario) -> Result<Self, RunError> {
        if scenario.level == Level::Endpoints {
            return Ok(Self::Endpoints(Box::new(Endpoints::new(scenario)?)));
        }
        let routes = Routes::compute(&scenario.graph, scenario.routing)?;
        let (graph, settings) = (scenario.graph.clone(), scenario.settings.clone());
        Ok(match scenario.level {
            Level::Messages | Level::Endpoints => {
                let network = Network::new(graph, Box::new(routes.clone()), settings)?;
                Self::Packets { network: Box::new(network), routes: Box::new(routes) }
            }
            Level::Flows => {
                let network = FlowNetwork::new(&graph, Box::new(routes), settings)?;
                Self::Flows(Box::new(network))
            }
        })
    }

    pub fn now(&self) -> Time {
        match self {
            Self::Packets { network, .. } => network.now(),
            Self::Flows(network) => network.now(),
            Self::Endpoints(endpoints) => endpoints.now(),
        }
    }

    /// Lets time pass until a message ends, or until `until`.
    pub fn run(&mut self, until: Time) -> Option<Outcome> {
        match self {
            Self::Packets { network, .. } => network.run(until),
            Self::Flows(network) => network.run(until).map(|end| {
                let Flow { from, to, bytes, tag } = end.flow;
                let message = Message { from, to, bytes, class: 0, tag };
                Outcome::Delivered { message, sent_at: end.began_at, at: end.at, hops: 0 }
            }),
            Self::Endpoints(endpoints) => endpoints.run(until),
        }
    }

    pub fn send(&mut self, message: Message) -> Result<Sent, RunError> {
        match self {
            Self::Packets { network, .. } => match network.send(message) {
                Ok(()) => Ok(Sent::OnItsWay),
                Err(SendError::Down(_)) => Ok(Sent::Refused),
                Err(error) => Err(error.into()),
            },
            Self::Flows(network) => {
                let Message { from, to, bytes, tag, .. } = message;
                let begun = network.begin(Flow { from, to, bytes, tag });
                Ok(begun.map_or(Sent::Refused, |()| Sent::OnItsWay))
            }
            Self::Endpoints(endpoints) => {
                endpoints.send(message);
                Ok(Sent::OnItsWay)
            }
        }
    }

    /// Changes the network. True if routes have to be computed anew.
    pub fn change(&mut self, change: Change) -> Result<bool, RunError> {
        let network = match self {
            Self::Packets { network, .. } => network,
            Self::Flows(_) => return Ok(false),
            // Endpoints look for new routes by themselves.
            Self::Endpoints(endpoints) => {
                match change {
                    Change::Cut(end) => endpoints.cut(end),
                    Change::Heal(end) => endpoints.heal(end),
                    Change::Model(..) | Change::Crash(_) | Change::Restart(_) => {}
                }
                return Ok(false);
            }
        };
        Ok(match change {
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
        })
    }

    /// The traffic of the link out of each port, vertex by vertex. Only packets are counted.
    pub fn counts(&self, graph: &Graph) -> Vec<Counts> {
        let Self::Packets { network, .. } = self else { return Vec::new() };
        let counts = |vertex| {
            let ports = 0..graph.ports(vertex);
            ports.map(move |port| network.counts(vertex, port).unwrap_or_default())
        };
        (0..graph.vertices()).flat_map(counts).collect()
    }

    /// Whether a message that was lost can be sent again. Endpoints have done so by themselves.
    pub fn can_send_again(&self) -> bool {
        !matches!(self, Self::Endpoints(_))
    }

    /// Computes routes for the links that are up.
    pub fn reroute(&mut self) -> Result<(), RunError> {
        if let Self::Packets { network, routes } = self {
            **routes = routes.recompute(&network.reachable())?;
            network.set_route(routes.clone())?;
        }
        Ok(())
    }
}
