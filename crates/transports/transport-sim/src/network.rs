//! The network of a graph under a world, in place of a private link for each pair of nodes.
//!
//! Each packet of the world is a message of `weft-network`. The sender keeps it until it has
//! arrived, and sends it again over the routes of then when the network lost it. The receiver hands
//! packets between two endpoints on in the order in which they were sent, since packets on several
//! routes, and those sent again, overtake others.
//!
//! # Invariants
//! - Every number that was given out in an [`Order`] arrives once, or is passed over once.
//! - A packet is handed on at most once, however often it was sent.
//! - The network is never ahead of the world.

use std::collections::BTreeMap;

use weft_fabric::NodeId;
use weft_network::{Counts, LinkModel, Message, Network, NetworkError, Outcome, SettingsError};
use weft_routing::{Algorithm, Route, Routes};
use weft_topology::{Graph, Port, Vertex};

use crate::progress::{Flight, Occasion};
use crate::trace::Kind;
use crate::world::{Id, SimWorld, WorldState};

/// Picoseconds of a nanosecond: the network counts the former, the world the latter.
const PICOSECONDS: u64 = 1_000;

/// The network of a world.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetworkSettings {
    /// Its nodes and links. Node `n` is the `n`th host.
    pub graph: Graph,
    /// How routes are computed.
    pub routing: Algorithm,
    /// The parameters of links, routers and hosts. Endpoints of class bulk use class 1 if there are
    /// two.
    pub network: weft_network::Settings,
    /// The time from sending a packet until its sender knows that it was lost and sends it again.
    pub resend_after_ns: u64,
    /// The time from a change of links until packets take routes that heed it.
    pub reroute_after_ns: u64,
}

impl NetworkSettings {
    /// A graph with the usual routes and the parameters of Extoll. A lost packet is sent again
    /// after 20 us, and new routes follow a change after 10 us.
    #[must_use]
    pub fn of(graph: Graph) -> Self {
        let network = weft_network::Settings { classes: 2, ..weft_network::Settings::default() };
        let routing = Algorithm::Auto;
        Self { graph, routing, network, resend_after_ns: 20_000, reroute_after_ns: 10_000 }
    }
}

/// A network under way.
pub(crate) struct Carrier {
    settings: NetworkSettings,
    network: Network,
    /// `None` once a driver gives routes.
    routes: Option<Routes>,
    hosts: Vec<Vertex>,
    /// Packets that have not arrived, by the tags of their messages.
    carried: BTreeMap<u64, Carried>,
    next_tag: u64,
    orders: BTreeMap<(Id, Id), Order>,
}

/// A packet that the sender keeps.
struct Carried {
    flight: Flight,
    place: Turn,
    message: Message,
    /// When it was first sent.
    sent_ns: u64,
}

/// The place of a packet in the order of those between two endpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Turn {
    ends: (Id, Id),
    number: u64,
}

/// The order of packets between two endpoints.
#[derive(Default)]
struct Order {
    given_out: u64,
    next: u64,
    /// Packets that overtook others. `None` for a number under which none comes.
    early: BTreeMap<u64, Option<Flight>>,
}

impl Carrier {
    /// # Panics
    /// When the settings are of no use.
    pub fn new(settings: NetworkSettings, seed: u64) -> Self {
        let graph = settings.graph.clone();
        let routes = Routes::compute(&graph, settings.routing).expect("the graph has such routes");
        let parameters = weft_network::Settings { seed, ..settings.network.clone() };
        let hosts = graph.hosts().collect();
        let network = Network::new(graph, Box::new(routes.clone()), parameters);
        Self {
            network: network.expect("the settings of the network are sound"),
            routes: Some(routes),
            hosts,
            carried: BTreeMap::new(),
            next_tag: 0,
            orders: BTreeMap::new(),
            settings,
        }
    }

    /// Whether a node is a host of the graph.
    pub fn has(&self, node: NodeId) -> bool {
        self.vertex(node).is_some()
    }

    fn vertex(&self, node: NodeId) -> Option<Vertex> {
        usize::try_from(node.0).ok().and_then(|place| self.hosts.get(place)).copied()
    }

    /// Packets that have not arrived, and those that wait for earlier ones.
    pub fn packets(&self) -> usize {
        let early = self.orders.values().map(|order| order.early.len());
        self.carried.len() + early.sum::<usize>()
    }

    /// The time of the next event, in nanoseconds, rounded up.
    pub fn next_time(&mut self) -> Option<u64> {
        self.network.next_time().map(|time| time.div_ceil(PICOSECONDS))
    }
}

impl SimWorld {
    /// Cuts the link at a port of a vertex of the network. Packets on it are lost, and sent again
    /// over other ways, if there are any. False if there is no such link, or no network.
    pub fn cut_link(&self, vertex: Vertex, port: Port) -> bool {
        self.lock().change_link(|network| network.cut(vertex, port))
    }

    /// Mends the link at a port of a vertex of the network. False if there is no such link, or no
    /// network.
    pub fn heal_link(&self, vertex: Vertex, port: Port) -> bool {
        self.lock().change_link(|network| network.heal(vertex, port))
    }

    /// Gives the link at a port of a vertex of the network other parameters, in both directions:
    /// a slow or a lossy one. False if there is no such link, or no network.
    ///
    /// # Errors
    /// [`SettingsError`] if the parameters are of no use.
    pub fn set_model(
        &self,
        vertex: Vertex,
        port: Port,
        model: LinkModel,
    ) -> Result<bool, SettingsError> {
        let mut state = self.lock();
        state.catch_up();
        let Some(carrier) = &mut state.carrier else { return Ok(false) };
        let Some((far, far_port)) = carrier.network.graph().wired(vertex, port) else {
            return Ok(false);
        };
        carrier.network.set_link(vertex, port, model)?;
        carrier.network.set_link(far, far_port, model)
    }

    /// Stops the router of a vertex of the network: the packets in it are lost, and none goes
    /// through it. The endpoints of a host stay as they are; [`SimWorld::kill_node`] ends them.
    /// False if there is no such vertex, it is down, or there is no network.
    pub fn crash_router(&self, vertex: Vertex) -> bool {
        self.lock().change_link(|network| network.crash(vertex))
    }

    /// Has packets take `route` from now on. The world computes no routes from then on: a manager
    /// gives them. False if there is no network.
    ///
    /// # Errors
    /// [`NetworkError::Channels`] if the route needs more virtual channels than the network has.
    pub fn set_route(&self, route: Box<dyn Route + Send>) -> Result<bool, NetworkError> {
        let mut state = self.lock();
        state.catch_up();
        let Some(carrier) = &mut state.carrier else { return Ok(false) };
        carrier.network.set_route(route)?;
        carrier.routes = None;
        Ok(true)
    }

    /// The traffic of the link out of a port of a vertex of the network. `None` if there is no such
    /// link, or no network.
    #[must_use]
    pub fn link_counts(&self, vertex: Vertex, port: Port) -> Option<Counts> {
        self.lock().carrier.as_ref()?.network.counts(vertex, port)
    }

    /// Starts a router that crashed. False if it is not down, or there is no network.
    pub fn restart_router(&self, vertex: Vertex) -> bool {
        self.lock().change_link(|network| network.restart(vertex))
    }
}

impl WorldState {
    fn change_link(&mut self, change: impl FnOnce(&mut Network) -> bool) -> bool {
        self.catch_up();
        let Some(carrier) = &mut self.carrier else { return false };
        let is_there = change(&mut carrier.network);
        let time = self.now.saturating_add(carrier.settings.reroute_after_ns);
        self.schedule(time, Occasion::Reroute);
        is_there
    }

    /// Packets take routes for the links of now. If there are none, they keep the old ones.
    pub(crate) fn reroute(&mut self) {
        let Some(carrier) = &mut self.carrier else { return };
        let Some(routes) = &carrier.routes else { return };
        let Ok(routes) = routes.recompute(&carrier.network.reachable()) else { return };
        if carrier.network.set_route(Box::new(routes.clone())).is_ok() {
            carrier.routes = Some(routes);
        }
    }

    /// The next place in the order of packets between two endpoints. `None` without a network.
    pub(crate) fn next_place(&mut self, ends: (Id, Id)) -> Option<Turn> {
        let order = self.carrier.as_mut()?.orders.entry(ends).or_default();
        order.given_out += 1;
        Some(Turn { ends, number: order.given_out - 1 })
    }

    /// Sends a packet over the network.
    pub(crate) fn carry(&mut self, flight: Flight, place: Turn, class: u8, bytes: u64) {
        self.catch_up();
        let nodes = [flight.from, flight.to].map(|id| self.endpoints[id].address.node);
        let Some(carrier) = &mut self.carrier else { return };
        let [from, to] = nodes.map(|node| carrier.vertex(node).expect("endpoints are on hosts"));
        let class = class.min(carrier.settings.network.classes - 1);
        let tag = carrier.next_tag;
        carrier.next_tag += 1;
        let message = Message { from, to: to.into(), bytes, class, tag };
        let sent_ns = self.now;
        carrier.carried.insert(tag, Carried { flight, place, message, sent_ns });
        if carrier.network.send(message).is_err() {
            self.send_again_later(tag);
        }
    }

    fn send_again_later(&mut self, tag: u64) {
        let Some(carrier) = &self.carrier else { return };
        let time = self.now.saturating_add(carrier.settings.resend_after_ns);
        self.schedule(time, Occasion::SendAgain { tag });
    }

    /// Sends a packet again that was lost. If it has been kept for too long, its two nodes report
    /// each other down in place of that, as after a cut.
    pub(crate) fn send_again(&mut self, tag: u64) {
        self.catch_up();
        let carrier = self.carrier.as_mut().expect("the network lost it");
        let carried = carrier.carried.get(&tag).expect("its sender keeps it");
        let Flight { from, to, epoch, .. } = carried.flight;
        let (place, message, sent_ns) = (carried.place, carried.message, carried.sent_ns);
        let limit = self.settings.cut_down_after_ns;
        let is_late = limit.is_some_and(|limit| self.now - sent_ns >= limit);
        if is_late && epoch == self.epoch(from, to) {
            let ways: Vec<_> = self.ways(from, to).collect();
            ways.into_iter().for_each(|way| self.part(way));
        }
        let is_over = epoch != self.epoch(from, to);
        let (source, target) = (self.endpoints[from].address, self.endpoints[to].address);
        let kind = if is_over { Kind::Drop } else { Kind::SendAgain };
        self.record(kind, source, target, tag, &[]);
        let carrier = self.carrier.as_mut().expect("the network lost it");
        if is_over {
            carrier.carried.remove(&tag);
            self.hand_on(place, None);
        } else if carrier.network.send(message).is_err() {
            self.send_again_later(tag);
        }
    }

    /// A packet has arrived, or none comes for its place: hands on what is in order.
    pub(crate) fn hand_on(&mut self, place: Turn, flight: Option<Flight>) {
        let Some(carrier) = &mut self.carrier else { return };
        let order = carrier.orders.entry(place.ends).or_default();
        order.early.insert(place.number, flight);
        let mut ready = Vec::new();
        while let Some(flight) = order.early.remove(&order.next) {
            order.next += 1;
            ready.extend(flight);
        }
        for flight in ready {
            self.schedule(self.now, Occasion::Arrive(flight));
        }
    }

    /// Lets the network go on to `limit`, or until a packet arrives or is lost. False if it has
    /// nothing to do until then.
    pub(crate) fn step_network(&mut self, limit: u64) -> bool {
        let Some(carrier) = &mut self.carrier else { return false };
        if carrier.next_time().is_none_or(|time| time > limit) {
            return false;
        }
        let until = limit.checked_mul(PICOSECONDS);
        let outcome = match until {
            Some(until) => carrier.network.run(until),
            None => carrier.network.run_out(),
        };
        self.now = self.now.max(carrier.network.now().div_ceil(PICOSECONDS));
        match outcome {
            Some(Outcome::Delivered { message, .. }) => {
                let carried = carrier.carried.remove(&message.tag).expect("its sender keeps it");
                self.hand_on(carried.place, Some(carried.flight));
            }
            Some(Outcome::Lost { message, .. }) => self.send_again_later(message.tag),
            None => {}
        }
        true
    }

    /// Brings the network to the time of the world, in which nothing is due.
    fn catch_up(&mut self) {
        while self.step_network(self.now) {}
        let now = self.now.saturating_mul(PICOSECONDS);
        if let Some(carrier) = &mut self.carrier {
            let outcome = carrier.network.run(now);
            assert!(outcome.is_none(), "the network had nothing to do until now");
        }
    }
}
