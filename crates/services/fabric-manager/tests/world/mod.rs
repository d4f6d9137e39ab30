//! The model of a fabric as the tests drive it.

use std::ops::{Deref, DerefMut};

use weft_fabric_manager::message::{Body, Order, Packet};
use weft_fabric_manager::model::Model;
use weft_fabric_manager::{Agent, Expected, Settings};
use weft_routing::Algorithm;
use weft_routing::dependency::Dependencies;
use weft_topology::{Graph, Shape, Vertex};

pub use weft_fabric_manager::model::{expected, guid};

pub struct World(Model);

pub fn graph(text: &str) -> Graph {
    text.parse::<Shape>().and_then(|shape| shape.graph(None)).expect("a graph")
}

pub fn settings(expected: Option<Expected>) -> Settings {
    Settings { algorithm: Algorithm::Auto, expected, sweep_ms: 2_000, settle_ms: 200 }
}

impl Deref for World {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.0
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Model {
        &mut self.0
    }
}

impl World {
    pub fn new(graph: Graph, settings: Settings, loss: u32, seed: u64) -> Self {
        Self(Model::new(graph, settings, loss, seed))
    }

    /// A node hears of a version that is higher than any to come.
    pub fn poison(&mut self, vertex: Vertex) {
        let order = Order::Clear { version: u64::MAX };
        let packet = Packet::new(Vec::new(), Body::Order { term: 0, sequence: 0, order });
        self.agents[vertex as usize].originate(packet);
    }

    /// Runs until the holder of the lease rules over the network as it is now.
    pub fn settle(&mut self) {
        let end = self.now + 60_000;
        // A manager that has not heard of the latest failure still rules the network of before.
        self.run(300);
        while !self.is_settled() {
            assert!(self.now < end, "not settled after a minute: {:?}", self.standing());
            self.step();
        }
    }

    /// The dependencies between channels by the tables that the agents have at this moment.
    pub fn has_circle(&self) -> bool {
        let vcs = 8;
        let mut dependencies = Dependencies::new(&self.graph, vcs);
        let numbers: Vec<u16> = self.agents.iter().filter_map(Agent::number).collect();
        for at in 0..self.graph.vertices() {
            for vc in [None].into_iter().chain((0..vcs).map(Some)) {
                for number in &numbers {
                    let Some(first) = self.agents[at as usize].next(vc, *number) else { continue };
                    let Some((next, port)) = self.graph.far(at, first.port) else { continue };
                    let then = self.agents[next as usize].next(Some(first.vc), *number);
                    if let Some(then) = then {
                        dependencies.add(next, (port, first.vc), (then.port, then.vc));
                    }
                }
            }
        }
        dependencies.cycle().is_some()
    }
}
