//! The stage: the world of a run, the state of its network, and the clocks of its hosts.
//!
//! # Invariant
//! Time passes in [`Stage::advance`], and in calls of the fabric that wait, alone. Managers follow
//! in the next [`Stage::advance`].

use std::collections::BTreeMap;
use std::time::Duration;

use rand::RngExt;
use weft_fabric::{EndpointOptions, NodeId, Transport};
use weft_fabric_manager::Rule;
use weft_network::LinkModel;
use weft_topology::{Graph, Vertex};
use weft_transport_sim::{Settings, SimEndpoint, SimWorld};

use crate::clocks::Clocks;
use crate::faults::Mend;
use crate::plan::{CONTROL_NS_MAX, Fault, Plan, REROUTE_AFTER_NS_MAX, RESEND_AFTER_NS_MAX, random};
use crate::ways::Ways;

/// The largest difference between clocks of hosts at first, in ns.
const CLOCKS_APART_NS: u64 = 1_000_000_000;

/// The world of a run.
pub(crate) struct Stage<'a, E> {
    pub world: SimWorld,
    /// Makes the endpoint of a program. Tests plant faults in it.
    wrap: &'a dyn Fn(SimEndpoint) -> E,
    pub(crate) settings: Settings,
    /// The network as it is now, with the links that are cut.
    pub(crate) graph: Graph,
    pub(crate) hosts: Vec<Vertex>,
    /// Routers that stand still.
    pub(crate) stopped: Vec<Vertex>,
    pub(crate) mends: BTreeMap<(u64, u32), Mend>,
    pub(crate) count: u32,
    /// The links of a network when nothing ails them.
    pub(crate) usual: LinkModel,
    ways: Ways,
    clocks: Clocks,
    rule: Option<Rule>,
    /// Faults that began.
    pub faults: u32,
}

/// The virtual time of a millisecond of managers and agents, in ns: the runs are short.
const TICK_NS: u64 = 1_000;

/// Has the packets of the world take the tables of now.
fn load(world: &SimWorld, rule: &Rule) {
    let set = world.set_route(Box::new(rule.route()));
    assert_eq!(set, Ok(true), "tables use the channels of the network");
}

/// The node of a host.
pub(crate) fn node(host: usize) -> NodeId {
    NodeId(u32::try_from(host).expect("a plan has few hosts"))
}

impl<'a, E> Stage<'a, E> {
    /// The stage of a plan, before any program begins.
    ///
    /// # Errors
    /// Text, if no manager comes to rule.
    pub fn new(plan: &Plan, wrap: &'a dyn Fn(SimEndpoint) -> E) -> Result<Self, String> {
        let graph = plan.graph();
        let settings = plan.settings.clone();
        let network = settings.network.as_ref();
        let patience = network.map_or(0, |network| network.network.patience);
        let patience = patience / weft_network::time::NANOSECOND;
        let down = settings.cut_down_after_ns.expect("every plan has a limit");
        let hosts: Vec<Vertex> = graph.hosts().collect();
        let grace_ns =
            down + patience + RESEND_AFTER_NS_MAX + REROUTE_AFTER_NS_MAX + CONTROL_NS_MAX;
        let random = &mut random(plan.seed, 2);
        let apart = if plan.faults.contains(&Fault::Skew) { CLOCKS_APART_NS } else { 1 };
        let clocks = Clocks::new(hosts.iter().map(|_| random.random_range(0..apart)));
        let rule = match (&plan.ruled, network) {
            (Some(ruled), Some(network)) => {
                Some(Rule::new(&graph, network.routing, ruled, TICK_NS, plan.seed)?)
            }
            _ => None,
        };
        let model = weft_network::Settings::default().link;
        let usual = network.map_or(model, |network| network.network.link);
        let world = SimWorld::new(settings.clone());
        if let Some(rule) = &rule {
            load(&world, rule);
        }
        Ok(Self {
            world,
            wrap,
            settings,
            ways: Ways::new(hosts.len(), grace_ns),
            hosts,
            graph,
            stopped: Vec::new(),
            mends: BTreeMap::new(),
            count: 0,
            usual,
            clocks,
            rule,
            faults: 0,
        })
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Opens an endpoint of a user on a host.
    pub fn open(&self, host: usize, user: u32) -> Result<E, String> {
        self.open_with(host, user, &EndpointOptions::default())
    }

    /// As [`Stage::open`], with options.
    pub fn open_with(
        &self,
        host: usize,
        user: u32,
        options: &EndpointOptions,
    ) -> Result<E, String> {
        let endpoint = self.world.transport(node(host), user).open(options);
        let endpoint = endpoint.map_err(|error| format!("no endpoint on host {host}: {error}"))?;
        Ok((self.wrap)(endpoint))
    }

    /// The time by the clock of a host.
    pub fn clock(&self, host: usize) -> Duration {
        self.clocks.time(host, self.world.now())
    }

    /// Lets time pass.
    pub fn advance(&mut self, duration_ns: u64) {
        let end = self.world.now() + duration_ns;
        while let Some(rule) = &mut self.rule
            && rule.next_tick() <= end
        {
            self.world.advance(rule.next_tick().saturating_sub(self.world.now()));
            if rule.tick() {
                load(&self.world, rule);
                self.look_at_ways();
            }
        }
        self.world.advance(end.saturating_sub(self.world.now()));
    }

    /// Links were cut or mended, or routers stopped or started.
    pub(crate) fn links_changed(&mut self) {
        let reachable = self.reachable();
        if let Some(rule) = &mut self.rule {
            rule.set_links(&reachable, &self.stopped);
            load(&self.world, rule);
        }
        self.look_at_ways();
    }

    /// The network without the links of routers that stand still.
    fn reachable(&self) -> Graph {
        let mut graph = self.graph.clone();
        self.stopped.iter().for_each(|vertex| graph.set_isolated(*vertex, true));
        graph
    }

    fn look_at_ways(&mut self) {
        let (graph, hosts, now) = (self.reachable(), &self.hosts, self.world.now());
        let is_network = self.settings.network.is_some();
        let hops: Vec<_> = hosts.iter().map(|host| graph.hops(*host)).collect();
        let rule = self.rule.as_ref();
        self.ways.look(now, |a, b| {
            let place = usize::try_from(hosts[b]).expect("a plan has few vertices");
            // Over private links there is no way around a cut.
            let is_near = hops[a][place].is_some_and(|hops| is_network || hops == 1);
            is_near && rule.is_none_or(|rule| rule.leads(hosts[a], hosts[b]))
        });
    }

    pub(crate) fn crash_manager(&mut self) {
        if let Some(rule) = &mut self.rule {
            rule.crash_manager();
        }
    }

    pub(crate) fn set_clock_rate(&mut self, host: usize, rate_per_mille: u64) {
        self.clocks.set_rate(host, rate_per_mille, self.world.now());
        if let Some(rule) = &mut self.rule {
            rule.set_rate(self.hosts[host], rate_per_mille);
        }
    }

    /// Checks the last report that two hosts do not reach each other. The time of the report
    /// counts: the program took it later, behind the events before it, and by then there may have
    /// been a way for long.
    ///
    /// # Errors
    /// Text, if there was a way, or the fabric told no such thing.
    pub fn check_unreachable(&self, a: usize, b: usize) -> Result<(), String> {
        let Some(told_ns) = self.world.parted_ns(node(a), node(b)) else {
            return Err(format!("host {a} lost host {b}, and the fabric told of no cut"));
        };
        self.ways.check_unreachable(a, b, told_ns)
    }

    /// Checks that the network, which is whole again, leads between all hosts.
    ///
    /// # Errors
    /// Text, if a manager does not lead.
    pub fn check(&self) -> Result<(), String> {
        self.rule.as_ref().map_or(Ok(()), Rule::check)
    }
}
