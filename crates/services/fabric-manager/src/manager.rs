//! The manager: sweeps, numbers, computes, and changes the tables of all nodes.
//!
//! A *sweep* asks the own node who it is, and then whatever is behind each of its links, and so on,
//! until no link is left. If links or nodes differ from those of the version in use, a *change*
//! follows in four steps, each of which ends when all nodes have answered: numbers, entries, seal,
//! activation. Until the activation nothing is different for packets. If a node does not answer,
//! the manager sweeps again. An activation that was cut short, by this manager or one before it, is
//! brought to its end by the next sweep, since all nodes have what it needs.

use std::collections::BTreeMap;

use weft_routing::check::check;
use weft_routing::multicast::GROUPS_MAX;
use weft_routing::tables::{Entry, Layer, Side};
use weft_routing::{Algorithm, Routes, RoutingError};
use weft_topology::difference::Difference;
use weft_topology::{Graph, Port, Vertex};

use crate::message::{Answer, Body, ENTRIES_MAX, Identity, Link, Order, Packet, Row};
use crate::network::{Expected, Found, Network};
use crate::orders::{Orders, Task};

/// Nodes that a sweep takes in at most.
const NODES_MAX: usize = 1 << 17;
/// Times that a node may hold up changes before it is left out.
const BLAMES_MAX: u32 = 3;
/// Sweeps for which it is left out.
const LEFT_OUT_SWEEPS: u64 = 10;

/// Settings of a manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// How routes are computed: any but adaptive and Valiant, which need more than tables have.
    pub algorithm: Algorithm,
    /// The network that should be there, if it is known. Other nodes and links are not used.
    pub expected: Option<Expected>,
    /// Milliseconds between sweeps that no notice asked for.
    pub sweep_ms: u64,
    /// Milliseconds in which every packet leaves the network. No plane is filled again before.
    pub settle_ms: u64,
}

/// The state of a manager, for people and tests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It has no lease.
    Idle,
    /// It looks for nodes.
    Sweeping,
    /// It gives numbers and tables.
    Changing,
    /// Every node that it found uses this version.
    Ruling {
        /// The version.
        version: u64,
    },
    /// There are no routes for the network that it found. It looks again from time to time.
    Stuck {
        /// The reason.
        reason: String,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Step {
    Numbers,
    Entries,
    Seal,
    Activate,
}

/// A node that takes part in a change.
#[derive(Clone, Debug)]
struct Member {
    vertex: Vertex,
    guid: u64,
    /// The way to it.
    route: Vec<Port>,
    /// Its tables are not those of the version in use.
    is_stale: bool,
}

/// A change to a new version.
#[derive(Clone, Debug)]
struct Change {
    version: u64,
    side: Side,
    routes: Box<Routes>,
    graph: Box<Graph>,
    nodes: Vec<Member>,
    step: Step,
}

#[derive(Clone, Debug)]
enum Activity {
    Idle,
    Sweeping(Found),
    /// An activation of this version was cut short, and is brought to its end.
    Completing,
    Changing(Change),
    /// The next sweep is at this time.
    Ruling(u64),
    Stuck(u64, String),
}

/// The aim of an order.
#[derive(Clone, Debug)]
enum Tag {
    /// The node behind a port of a node, or the own node.
    Behind(Option<(u64, Port)>),
    /// This node of a change.
    Node(u64),
}

/// The version in use.
#[derive(Clone, Debug)]
struct Version {
    number: u64,
    side: Side,
    /// `None` if another manager made it.
    made: Option<(Box<Routes>, Box<Graph>)>,
}

/// A manager.
#[derive(Clone, Debug)]
pub struct Manager {
    settings: Settings,
    term: u64,
    /// The highest term by which a node refused an order.
    superseded: u64,
    until: u64,
    state: Activity,
    orders: Orders<Tag>,
    network: Network,
    version: Option<Version>,
    /// The highest version that any node heard of.
    seen: u64,
    settled_at: u64,
    has_notice: bool,
    differences: Vec<Difference>,
    /// How often a node did not do its part, and until when it is left out.
    blamed: BTreeMap<u64, (u32, u64)>,
}

impl Manager {
    /// A manager without a lease.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            network: Network::new(settings.expected.clone()),
            settings,
            term: 0,
            superseded: 0,
            until: 0,
            state: Activity::Idle,
            orders: Orders::new(0),
            version: None,
            seen: 0,
            settled_at: 0,
            has_notice: false,
            differences: Vec::new(),
            blamed: BTreeMap::new(),
        }
    }

    /// The manager has the lease of `term` until the time `until`, in milliseconds. The holder of a
    /// lease calls this again before it ends. A lower term than before is left out.
    pub fn lead(&mut self, term: u64, until: u64) {
        if term < self.term {
            return;
        }
        if term > self.term || matches!(self.state, Activity::Idle) {
            self.term = term;
            self.sweep();
        }
        self.until = until;
    }

    /// Gives the lease up: no order follows.
    pub fn step_down(&mut self) {
        self.state = Activity::Idle;
        self.orders = Orders::new(self.orders.sequence());
        // Another manager may change the tables from here on.
        self.version = None;
    }

    /// The highest term of another manager by which a node refused an order; 0 if none did.
    #[must_use]
    pub fn superseded(&self) -> u64 {
        self.superseded
    }

    /// The state.
    #[must_use]
    pub fn standing(&self) -> Standing {
        match (&self.state, &self.version) {
            (Activity::Idle, _) => Standing::Idle,
            (Activity::Ruling(_), Some(version)) => Standing::Ruling { version: version.number },
            (Activity::Stuck(_, reason), _) => Standing::Stuck { reason: reason.clone() },
            (Activity::Sweeping(_) | Activity::Ruling(_), _) => Standing::Sweeping,
            (Activity::Changing(_) | Activity::Completing, _) => Standing::Changing,
        }
    }

    /// Missing, extra and miswired links of the last sweep, against the expected network.
    #[must_use]
    pub fn differences(&self) -> &[Difference] {
        &self.differences
    }

    /// The routes and the network of the version in use; `None` until this manager made one.
    #[must_use]
    pub fn routes(&self) -> Option<(&Routes, &Graph)> {
        let (routes, graph) = self.version.as_ref()?.made.as_ref()?;
        Some((routes, graph))
    }

    /// The vertex of the network for a node.
    #[must_use]
    pub fn vertex(&self, guid: u64) -> Option<Vertex> {
        self.network.vertex(guid)
    }

    /// The nodes that have a vertex.
    pub fn nodes(&self) -> impl Iterator<Item = (Vertex, u64)> {
        self.network.nodes()
    }

    fn sweep(&mut self) {
        self.has_notice = false;
        self.orders = Orders::new(self.orders.sequence());
        self.orders.give(Task {
            tag: Tag::Behind(None),
            route: Vec::new(),
            order: Order::Identify,
        });
        self.state = Activity::Sweeping(Found::default());
    }

    /// A packet came for the manager. Gives packets for its node to pass on.
    pub fn receive(&mut self, packet: &Packet, now: u64) -> Vec<Packet> {
        if matches!(self.state, Activity::Idle) {
            return Vec::new();
        }
        match &packet.body {
            Body::Notice { serial } => {
                self.has_notice = true;
                vec![packet.reply(Body::Heard { serial: *serial })]
            }
            Body::Answer { sequence, answer } => {
                if let Answer::Superseded(term) = answer
                    && *term > self.term
                {
                    self.superseded = self.superseded.max(*term);
                    self.step_down();
                    return Vec::new();
                }
                let Some(task) = self.orders.answered(*sequence) else { return Vec::new() };
                match (answer, task.tag) {
                    (Answer::Identity(identity), Tag::Behind(from)) => {
                        self.found(identity, from, task.route);
                    }
                    (Answer::Done, Tag::Node(_)) => {}
                    // A node that refuses has lost its state, or heard of a later version.
                    (_, Tag::Node(guid)) => {
                        self.blame(guid, now);
                        self.sweep();
                    }
                    (_, Tag::Behind(_)) => {}
                }
                self.tick(now)
            }
            Body::Order { .. } | Body::Heard { .. } => Vec::new(),
        }
    }

    /// Time passes. Gives packets for the manager's node to pass on.
    pub fn tick(&mut self, now: u64) -> Vec<Packet> {
        if matches!(self.state, Activity::Idle) {
            return Vec::new();
        }
        if now >= self.until {
            self.step_down();
            return Vec::new();
        }
        let mut failed = Vec::new();
        let packets = self.orders.tick(now, self.term, &mut failed);
        // During a sweep, there is nothing behind a port that does not answer.
        let mut is_lost = false;
        for task in failed {
            if let Tag::Node(guid) = task.tag {
                self.blame(guid, now);
                is_lost = true;
            }
        }
        let is_due = match &self.state {
            Activity::Ruling(at) | Activity::Stuck(at, _) => self.has_notice || now >= *at,
            _ => false,
        };
        if is_lost || is_due {
            self.sweep();
        } else if self.orders.is_over() {
            self.proceed(now);
        }
        packets
    }

    /// A node did not do its part of a change. One that does so again and again is left out for
    /// some time, so that it does not hold up the others.
    fn blame(&mut self, guid: u64, now: u64) {
        let (times, until) = self.blamed.entry(guid).or_default();
        *times += 1;
        if *times >= BLAMES_MAX {
            (*times, *until) = (0, now + LEFT_OUT_SWEEPS * self.settings.sweep_ms);
        }
    }

    /// A node answered in a sweep.
    fn found(&mut self, identity: &Identity, from: Option<(u64, Port)>, route: Vec<Port>) {
        let Activity::Sweeping(found) = &mut self.state else { return };
        if let Some((from, arrived)) = from.zip(identity.arrived) {
            let to = (identity.guid, arrived);
            found.links.insert((from.min(to), from.max(to)));
        }
        // No node can use up the numbers of versions.
        self.seen = self.seen.max(identity.seen.min(u64::MAX / 2));
        if found.nodes.contains_key(&identity.guid) || found.nodes.len() >= NODES_MAX {
            return;
        }
        found.nodes.insert(identity.guid, (identity.clone(), route.clone()));
        for (port, link) in (0..).zip(&identity.ports) {
            if *link != Link::Down && Some(port) != identity.arrived {
                let mut route = route.clone();
                route.push(port);
                let tag = Tag::Behind(Some((identity.guid, port)));
                self.orders.give(Task { tag, route, order: Order::Identify });
            }
        }
    }

    /// All orders of a state were answered: the next state.
    fn proceed(&mut self, now: u64) {
        match std::mem::replace(&mut self.state, Activity::Ruling(now)) {
            Activity::Sweeping(found) => self.swept(found, now),
            Activity::Completing => {
                self.settled_at = now + self.settings.settle_ms;
                self.sweep();
            }
            Activity::Changing(change) => self.step(change, now),
            other => self.state = other,
        }
    }

    /// Decides about a sweep: bring an activation to its end, change, or rule.
    fn swept(&mut self, mut found: Found, now: u64) {
        self.blamed.retain(|_, (times, until)| *times > 0 || now < *until);
        let is_left_out = |guid: &u64| self.blamed.get(guid).is_some_and(|own| now < own.1);
        found.nodes.retain(|guid, _| !is_left_out(guid));
        found.links.retain(|(a, b)| !is_left_out(&a.0) && !is_left_out(&b.0));
        let active = found.nodes.values().filter_map(|(identity, _)| identity.active);
        let latest = active.max_by_key(|(version, _)| *version);
        if let Some((version, side)) = latest {
            let is_short = |identity: &Identity| {
                identity.sealed == Some(version) && identity.active != Some((version, side))
            };
            let short: Vec<_> =
                found.nodes.values().filter(|(identity, _)| is_short(identity)).collect();
            if !short.is_empty() {
                for (identity, route) in short {
                    let order = Order::Activate { version };
                    let tag = Tag::Node(identity.guid);
                    self.orders.give(Task { tag, route: route.clone(), order });
                }
                self.state = Activity::Completing;
                return;
            }
            if self.version.as_ref().is_none_or(|own| own.number != version) {
                self.version = Some(Version { number: version, side, made: None });
                // The manager of that version may have activated it just now.
                self.settled_at = self.settled_at.max(now + self.settings.settle_ms);
            }
        }
        self.network.forget_moved(&found);
        self.network.take(&found);
        let graph = self.network.graph(&found);
        self.differences = self.network.differences(&found).unwrap_or_default();
        let graph = match graph {
            Ok(graph) => graph,
            Err(error) => return self.stuck(error.to_string(), now),
        };
        let is_current = |identity: &Identity| {
            identity.active == self.version.as_ref().map(|own| (own.number, own.side))
                && self.number_of(identity.guid) == identity.number
                // Links that came up wait for an activation, also where all is as it was before.
                && !identity.ports.contains(&Link::Held)
        };
        let is_same = self
            .version
            .as_ref()
            .is_some_and(|version| version.made.as_ref().is_some_and(|(_, own)| **own == graph));
        let used = || found.nodes.values().filter(|(own, _)| self.vertex(own.guid).is_some());
        if is_same && used().all(|(identity, _)| is_current(identity)) {
            self.state = Activity::Ruling(now + self.settings.sweep_ms);
            return;
        }
        if now < self.settled_at {
            // Packets of the version before may still be on the plane that comes next.
            self.state = Activity::Ruling(self.settled_at);
            return;
        }
        let nodes = used()
            .filter_map(|(identity, route)| {
                let is_stale =
                    self.version.as_ref().map(|own| (own.number, own.side)) != identity.active;
                let (guid, route) = (identity.guid, route.clone());
                Some(Member { vertex: self.vertex(guid)?, guid, route, is_stale })
            })
            .collect();
        if let Err(error) = self.change(graph, nodes) {
            self.stuck(error, now);
        }
    }

    fn stuck(&mut self, reason: String, now: u64) {
        self.state = Activity::Stuck(now + self.settings.sweep_ms, reason);
    }

    /// The number that a node has in the version in use.
    fn number_of(&self, guid: u64) -> Option<u16> {
        let (routes, _) = self.routes()?;
        routes.tables().numbering().number(self.vertex(guid)?)
    }

    /// Computes a new version and begins to change to it.
    fn change(&mut self, graph: Graph, nodes: Vec<Member>) -> Result<(), String> {
        if matches!(self.settings.algorithm, Algorithm::Adaptive | Algorithm::Valiant) {
            return Err("a manager gives tables for auto, dor and updown; choose one".to_owned());
        }
        let side = self.version.as_ref().map_or(Side::A, |version| version.side.other());
        let again = match self.routes() {
            Some((old, _)) => old.recompute(&graph),
            None => Err(RoutingError::OtherNetwork),
        };
        let routes = match again {
            Err(RoutingError::OtherNetwork) => {
                Routes::compute_on(&graph, self.settings.algorithm, side)
            }
            other => other,
        };
        let routes = routes.map_err(|error| error.to_string())?;
        let report = check(&graph, &routes);
        if !report.is_sound_in_parts() {
            return Err(format!(
                "the routes that were computed are unsound, and none are loaded: {} pairs of \
                 hosts, circle: {:?}",
                report.unrouted, report.cycle
            ));
        }
        self.seen += 1;
        let change = Change {
            version: self.seen,
            side,
            routes: Box::new(routes),
            graph: Box::new(graph),
            nodes,
            step: Step::Numbers,
        };
        self.give_step(&change);
        self.state = Activity::Changing(change);
        Ok(())
    }

    /// All nodes have answered a step of a change.
    fn step(&mut self, mut change: Change, now: u64) {
        change.step = match change.step {
            Step::Numbers => Step::Entries,
            Step::Entries => Step::Seal,
            Step::Seal => Step::Activate,
            Step::Activate => {
                let made = Some((change.routes, change.graph));
                let (number, side) = (change.version, change.side);
                self.version = Some(Version { number, side, made });
                self.settled_at = now + self.settings.settle_ms;
                self.state = Activity::Ruling(now + self.settings.sweep_ms);
                return;
            }
        };
        self.give_step(&change);
        self.state = Activity::Changing(change);
    }

    fn give_step(&mut self, change: &Change) {
        for member in &change.nodes {
            for order in orders_of(change, member.vertex, member.is_stale) {
                let tag = Tag::Node(member.guid);
                self.orders.give(Task { tag, route: member.route.clone(), order });
            }
        }
    }
}

/// The orders of a step for one node.
fn orders_of(change: &Change, vertex: Vertex, is_stale: bool) -> Vec<Order> {
    let version = change.version;
    let tables = change.routes.tables();
    match change.step {
        Step::Numbers => {
            let number = tables.numbering().number(vertex);
            let segment = tables.numbering().segment(vertex);
            let segment = segment.and_then(|segment| u16::try_from(segment).ok());
            let clear = is_stale.then_some(Order::Clear { version });
            clear.into_iter().chain([Order::Place { number, segment }]).collect()
        }
        Step::Entries => {
            let mut orders = Vec::new();
            let side = change.side;
            let mut load = |row: Row, entries: Vec<u16>| {
                for (piece, entries) in (0..).zip(entries.chunks(ENTRIES_MAX)) {
                    let first = piece * ENTRIES_STEP;
                    let entries = entries.to_vec();
                    orders.push(Order::Load { version, side, row, first, entries });
                }
            };
            let layers = [
                (tables.base(), Row::BaseGlobal, Row::BaseLocal),
                (tables.plane(side), Row::PlaneGlobal, Row::PlaneLocal),
            ];
            for (layer, global, local) in layers {
                let Some(layer): Option<&Layer<Entry>> = layer else { continue };
                let bits = |row: &[Entry]| row.iter().map(|entry| entry.bits()).collect();
                load(global, bits(layer.global(vertex)));
                load(local, bits(layer.local(vertex)));
            }
            for group in 0..GROUPS_MAX {
                load(Row::Group(group), tables.multicast().forward(group, vertex, None).collect());
            }
            orders
        }
        Step::Seal => vec![Order::Seal { version, base_vcs: tables.vc_of(Side::A) }],
        Step::Activate => vec![Order::Activate { version }],
    }
}

/// [`ENTRIES_MAX`] as the number of an entry.
const ENTRIES_STEP: u16 = 256;
