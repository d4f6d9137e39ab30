//! The stage: the world of a run, the faults of its network, and which hosts had a way when.
//!
//! # Invariants
//! - Every fault that begins ends: by itself, or when all is mended.
//! - Hosts may be told that they do not reach each other only if they had no way to each other in
//!   the time before.

use std::collections::BTreeMap;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_fabric::{EndpointOptions, NodeId, Transport};
use weft_network::LinkModel;
use weft_topology::{Graph, Port, Vertex};
use weft_transport_sim::{SimEndpoint, SimWorld};

use crate::plan::{Fault, Plan, REROUTE_AFTER_NS_MAX, RESEND_AFTER_NS_MAX, one_of};

/// The end of a fault of the network.
#[derive(Clone, Copy, Debug)]
enum Mend {
    Heal(Vertex, Port),
    CutAgain { vertex: Vertex, port: Port, times: u32 },
    Model(Vertex, Port),
    Restart(Vertex),
}

/// The world of a run.
pub(crate) struct Stage<'a, E> {
    pub world: SimWorld,
    /// Makes the endpoint of a program. Tests plant faults in it.
    wrap: &'a dyn Fn(SimEndpoint) -> E,
    /// The network as it is now: cut links, and those of routers that stand still.
    graph: Graph,
    hosts: Vec<Vertex>,
    stopped: Vec<Vertex>,
    mends: BTreeMap<(u64, u32), Mend>,
    count: u32,
    usual: LinkModel,
    /// When two hosts last had no way to each other, in ns.
    parted: BTreeMap<(usize, usize), u64>,
    /// After a way is back, reports may still come for so long.
    grace_ns: u64,
    /// Faults that began.
    pub faults: u32,
}

impl<'a, E> Stage<'a, E> {
    pub fn new(plan: &Plan, wrap: &'a dyn Fn(SimEndpoint) -> E) -> Self {
        let graph = plan.graph();
        let settings = &plan.settings;
        let network = settings.network.as_ref().expect("every plan has a network");
        let patience = network.network.patience / weft_network::time::NANOSECOND;
        let down = settings.cut_down_after_ns.expect("every plan has a limit");
        Self {
            world: SimWorld::new(settings.clone()),
            wrap,
            hosts: graph.hosts().collect(),
            graph,
            stopped: Vec::new(),
            mends: BTreeMap::new(),
            count: 0,
            usual: network.network.link,
            parted: BTreeMap::new(),
            grace_ns: down + patience + RESEND_AFTER_NS_MAX + REROUTE_AFTER_NS_MAX,
            faults: 0,
        }
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Opens an endpoint of a user on a host.
    pub fn open(&self, host: usize, user: u32) -> Result<E, String> {
        let node = NodeId(u32::try_from(host).expect("a plan has few hosts"));
        let endpoint = self.world.transport(node, user).open(&EndpointOptions::default());
        let endpoint = endpoint.map_err(|error| format!("no endpoint on host {host}: {error}"))?;
        Ok((self.wrap)(endpoint))
    }

    /// Begins a fault of the network. False if it is none of the network.
    pub fn break_something(&mut self, fault: Fault, random: &mut ChaCha8Rng) -> bool {
        let links: Vec<_> = self.graph.links().map(|((vertex, port), ..)| (vertex, port)).collect();
        let (vertex, port) = one_of(random, &links);
        let end = self.world.now() + random.random_range(1_000..3_000_000);
        match fault {
            Fault::Cut => {
                self.cut(vertex, port);
                self.later(end, Mend::Heal(vertex, port));
            }
            Fault::Flap => {
                let times = random.random_range(2..6);
                self.later(self.world.now(), Mend::CutAgain { vertex, port, times });
            }
            Fault::Isolate => {
                let host = one_of(random, &self.hosts);
                for port in 0..self.graph.ports(host) {
                    self.cut(host, port);
                    self.later(end, Mend::Heal(host, port));
                }
            }
            Fault::Slow => {
                let model =
                    LinkModel { bits_per_second: self.usual.bits_per_second / 100, ..self.usual };
                self.set_model(vertex, port, model);
                self.later(end, Mend::Model(vertex, port));
            }
            Fault::Lossy => {
                let damaged_per_million = random.random_range(1_000..500_000);
                self.set_model(vertex, port, LinkModel { damaged_per_million, ..self.usual });
                self.later(end, Mend::Model(vertex, port));
            }
            Fault::Router => {
                let vertex = random.random_range(0..self.graph.vertices());
                if self.world.crash_router(vertex) {
                    self.stopped.push(vertex);
                    self.note_parted();
                    self.later(end, Mend::Restart(vertex));
                }
            }
            Fault::Program | Fault::Sluggish => return false,
        }
        self.faults += 1;
        true
    }

    fn later(&mut self, time: u64, mend: Mend) {
        self.count += 1;
        self.mends.insert((time, self.count), mend);
    }

    /// Ends the faults whose time has come.
    pub fn mend_due(&mut self) {
        while let Some(entry) = self.mends.first_entry() {
            if entry.key().0 > self.world.now() {
                return;
            }
            let mend = entry.remove();
            self.mend(mend);
        }
    }

    /// Ends all faults of the network.
    pub fn mend_all(&mut self) {
        while let Some((_, mend)) = self.mends.pop_first() {
            let mend = match mend {
                Mend::CutAgain { vertex, port, .. } => Mend::Heal(vertex, port),
                other => other,
            };
            self.mend(mend);
        }
    }

    fn mend(&mut self, mend: Mend) {
        self.note_parted();
        match mend {
            Mend::Heal(vertex, port) => {
                self.graph.set_cut(vertex, port, false);
                self.world.heal_link(vertex, port);
            }
            Mend::CutAgain { vertex, port, times } => {
                let now = self.world.now();
                if self.graph.is_cut(vertex, port) {
                    self.mend(Mend::Heal(vertex, port));
                    if times > 0 {
                        let times = times - 1;
                        self.later(now + 20_000, Mend::CutAgain { vertex, port, times });
                    }
                } else {
                    self.cut(vertex, port);
                    self.later(now + 10_000, Mend::CutAgain { vertex, port, times });
                }
            }
            Mend::Model(vertex, port) => self.set_model(vertex, port, self.usual),
            Mend::Restart(vertex) => {
                self.stopped.retain(|stopped| *stopped != vertex);
                self.world.restart_router(vertex);
            }
        }
    }

    fn cut(&mut self, vertex: Vertex, port: Port) {
        self.graph.set_cut(vertex, port, true);
        self.world.cut_link(vertex, port);
        self.note_parted();
    }

    fn set_model(&self, vertex: Vertex, port: Port, model: LinkModel) {
        let set = self.world.set_model(vertex, port, model);
        set.expect("the parameters of links are in their ranges");
    }

    /// Notes which hosts have no way to each other now.
    fn note_parted(&mut self) {
        let mut graph = self.graph.clone();
        self.stopped.iter().for_each(|vertex| graph.set_isolated(*vertex, true));
        let now = self.world.now();
        for (a, vertex) in self.hosts.iter().enumerate() {
            let hops = graph.hops(*vertex);
            for (b, other) in self.hosts.iter().enumerate().skip(a + 1) {
                let place = usize::try_from(*other).expect("a plan has few vertices");
                if hops[place].is_none() {
                    self.parted.insert((a, b), now);
                }
            }
        }
    }

    /// Checks a report that two hosts do not reach each other.
    pub fn check_unreachable(&mut self, a: usize, b: usize) -> Result<(), String> {
        self.note_parted();
        let now = self.world.now();
        let parted = self.parted.get(&(a.min(b), a.max(b)));
        if parted.is_some_and(|parted| now - parted <= self.grace_ns) {
            return Ok(());
        }
        Err(format!(
            "host {a} was told that it does not reach host {b}, and there was a way all the time"
        ))
    }
}
