//! The flow level: bulk data as flows with rates, in place of packets.
//!
//! The rates are max-min fair: none can grow without making a smaller one, or one as small, shrink.
//! They are found by progressive filling (Bertsekas and Gallager, *Data Networks*, section 6.5.2):
//! the link that has the least for each of its flows bounds them; they are set aside with it, and
//! the next link is looked for among the rest. Rates change when flows begin or end, once for all
//! that do so at one time.
//!
//! The packets of the message level share a link by its arbitration, which is the same where flows
//! meet at one link. Where they meet at several, one after the other, arbitration by turns favours
//! those that come in last, and the levels differ.
//!
//! A flow whose path is cut stands still. With the next route it goes on over another path, with
//! the bytes that it has left; if there is none, it is lost.
//!
//! # Invariants
//! - Every flow has a rate when time passes, and no link moves more than it can.
//! - Ends are at whole nanoseconds, rounded up, so that flows of equal rates end together.
//! - The arithmetic is that of IEEE 754 alone, in an order that the calls give: the same on every
//!   machine.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use thiserror::Error;
use weft_routing::{Heading, Route};
use weft_topology::{Graph, Vertex};

use crate::arena::{Arena, index};
use crate::links::{LinkId, Links};
use crate::network::NetworkError;
use crate::settings::Settings;
use crate::time::{NANOSECOND, Time};

/// Bytes that go from one host to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// The host that sends.
    pub from: Vertex,
    /// The host that receives.
    pub to: Vertex,
    /// The bytes of payload.
    pub bytes: u64,
    /// The driver's own name for it.
    pub tag: u64,
}

/// How a flow ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Every byte arrived.
    Arrived,
    /// One of its hosts crashed, or no way was left. What had arrived does not count.
    Lost,
}

/// The end of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowEnd {
    /// The flow.
    pub flow: Flow,
    /// When it began.
    pub began_at: Time,
    /// When its last byte arrived, or it was lost.
    pub at: Time,
    /// How it ended.
    pub ending: Ending,
}

/// Why a flow cannot begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum FlowError {
    /// The vertex is no host.
    #[error("vertex {0} is no host; begin flows between hosts")]
    NotHost(Vertex),
    /// No way leads there.
    #[error("no way leads from host {from} to host {to}")]
    NoWay {
        /// The sender.
        from: Vertex,
        /// The receiver.
        to: Vertex,
    },
}

/// A flow under way.
#[derive(Debug)]
struct Active {
    flow: Flow,
    began_at: Time,
    /// Its links, from host to host.
    path: Vec<LinkId>,
    /// Bytes that have not left.
    left: f64,
    /// Bytes in a picosecond.
    rate: f64,
    ends_at: Time,
    /// From the time when its last byte leaves to its arrival.
    latency: Time,
    /// A link of its path is cut: it stands still until there is another way.
    stands_still: bool,
}

/// A network of flows in virtual time.
pub struct FlowNetwork {
    settings: Settings,
    graph: Graph,
    is_down: Vec<bool>,
    route: Box<dyn Route + Send>,
    links: Links,
    /// Bytes of payload in a picosecond, by link.
    capacities: Vec<f64>,
    flows: Arena<Active>,
    now: Time,
    /// Flows began or ended since the rates were computed.
    is_stale: bool,
    next_end: Option<Time>,
    /// Flows whose last byte has left, by the time when it arrives.
    arriving: BTreeMap<(Time, u64), FlowEnd>,
    sequence: u64,
    fills: u64,
}

/// The bytes that a link moves in a picosecond.
fn capacity(links: &Links, link: LinkId) -> f64 {
    links.model(links.get(link).model).pace.bytes_per_picosecond()
}

impl FlowNetwork {
    /// A network of `graph` without flows at time 0. Flows take the first choice of `route`.
    ///
    /// # Errors
    /// Those of [`crate::Network::new`].
    pub fn new(
        graph: &Graph,
        route: Box<dyn Route + Send>,
        settings: Settings,
    ) -> Result<Self, NetworkError> {
        settings.check()?;
        if graph.hosts().next().is_none() {
            return Err(NetworkError::NoHosts);
        }
        let links = Links::new(graph, &settings, 1)?;
        let payload = f64::from(settings.mtu_bytes) / f64::from(settings.packet_bytes());
        let capacities = (0..links.count()).map(|link| capacity(&links, link) * payload).collect();
        Ok(Self {
            settings,
            is_down: vec![false; index(graph.vertices())],
            graph: graph.clone(),
            route,
            links,
            capacities,
            flows: Arena::new(),
            now: 0,
            is_stale: false,
            next_end: None,
            arriving: BTreeMap::new(),
            sequence: 0,
            fills: 0,
        })
    }

    /// The time of the last end, or up to which the network was run.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Flows that have not ended.
    #[must_use]
    pub fn flows(&self) -> usize {
        index(self.flows.len()) + self.arriving.len()
    }

    /// How often rates were computed.
    #[must_use]
    pub const fn fills(&self) -> u64 {
        self.fills
    }

    /// Begins a flow now.
    ///
    /// # Errors
    /// [`FlowError`].
    pub fn begin(&mut self, flow: Flow) -> Result<(), FlowError> {
        let (path, latency) = self.path(flow)?;
        // A fraction is lost for flows of more than 2^53 bytes alone.
        #[expect(clippy::cast_precision_loss, reason = "no flow of this world is that long")]
        let left = flow.bytes as f64;
        let began_at = self.now;
        let active = Active {
            flow,
            began_at,
            path,
            left,
            rate: 0.0,
            ends_at: Time::MAX,
            latency,
            stands_still: false,
        };
        self.flows.insert(active);
        self.is_stale = true;
        Ok(())
    }

    /// The links of a flow, and how long a byte is on the way.
    fn path(&self, Flow { from, to, .. }: Flow) -> Result<(Vec<LinkId>, Time), FlowError> {
        let host = |vertex| self.links.host(vertex).ok_or(FlowError::NotHost(vertex));
        let (start, end) = (self.links.injection(host(from)?), self.links.ejection(host(to)?));
        let via = self.route.via(from, to, from.wrapping_mul(0x9e37_79b9).into());
        let heading = Heading { from, to, via };
        let (mut at, mut arrived, mut choices) = (from, None, Vec::new());
        let mut path = vec![start];
        // A route that goes in a circle has no way: no way is longer than all links.
        while at != to && path.len() <= index(self.links.count()) {
            self.route.next(at, arrived, &heading, &mut choices);
            let Some(choice) = choices.first() else { break };
            if u32::from(choice.port) >= self.links.ports(at) {
                break;
            }
            let link = self.links.out_of(at, choice.port);
            let state = self.links.get(link);
            if !state.is_up {
                break;
            }
            path.push(link);
            (at, arrived) = (state.to, Some((state.to_port, choice.vc)));
        }
        if at != to {
            return Err(FlowError::NoWay { from, to });
        }
        path.push(end);
        let model = |link: &LinkId| self.links.model(self.links.get(*link).model);
        let on_links: Time = path.iter().map(|link| model(link).latency).sum();
        let routers = u64::try_from(path.len() - 1).unwrap_or(0) * self.settings.router_delay;
        Ok((path, on_links + routers + self.settings.host.message_time))
    }

    /// Lets time pass until a flow ends, or until `until` if none does.
    pub fn run(&mut self, until: Time) -> Option<FlowEnd> {
        let end = self.end_until(until);
        if end.is_none() {
            if self.is_stale {
                self.fill();
            }
            self.pass(self.now.max(until));
        }
        end
    }

    /// Lets time pass until a flow ends, or none is left.
    pub fn run_out(&mut self) -> Option<FlowEnd> {
        self.end_until(Time::MAX)
    }

    fn end_until(&mut self, until: Time) -> Option<FlowEnd> {
        loop {
            if self.is_stale {
                self.fill();
            }
            let arrives = self.arriving.first_key_value().map(|((time, _), _)| *time);
            let next = [arrives, self.next_end].into_iter().flatten().min()?;
            if next > until {
                return None;
            }
            self.pass(next);
            if arrives == Some(next) {
                return self.arriving.pop_first().map(|(_, end)| end);
            }
            self.end_flows();
        }
    }

    /// Lets bytes leave up to `time`, at the rates of now.
    fn pass(&mut self, time: Time) {
        if time > self.now {
            #[expect(clippy::cast_precision_loss, reason = "spans are far below 2^53 ps")]
            let span = (time - self.now) as f64;
            self.flows.iter_mut().for_each(|flow| flow.left -= flow.rate * span);
            self.now = time;
        }
    }

    /// Ends the flows whose last byte leaves now.
    fn end_flows(&mut self) {
        let now = self.now;
        let ended = self.flows.iter().filter(|(_, flow)| flow.ends_at <= now);
        let ended: Vec<u32> = ended.map(|(number, _)| number).collect();
        for number in ended {
            let Some(active) = self.flows.remove(number) else { continue };
            self.put_end(&active, now.saturating_add(active.latency), Ending::Arrived);
        }
        self.is_stale = true;
    }

    fn put_end(&mut self, active: &Active, at: Time, ending: Ending) {
        let Active { flow, began_at, .. } = *active;
        self.sequence += 1;
        self.arriving.insert((at, self.sequence), FlowEnd { flow, began_at, at, ending });
    }

    /// Computes the rates of all flows by progressive filling.
    fn fill(&mut self) {
        self.is_stale = false;
        self.fills += 1;
        self.next_end = None;
        for flow in self.flows.iter_mut().filter(|flow| flow.stands_still) {
            (flow.rate, flow.ends_at) = (0.0, Time::MAX);
        }
        for (number, rate) in Filling::new(&self.flows, &self.capacities).rates() {
            let flow = self.flows.at_mut(number);
            flow.rate = rate;
            let span = (flow.left.max(0.0) / rate).ceil();
            flow.ends_at = self.now.saturating_add(whole(span)).next_multiple_of(NANOSECOND);
            self.next_end = Some(self.next_end.map_or(flow.ends_at, |at| at.min(flow.ends_at)));
        }
    }
}

/// A span that was computed, in picoseconds.
fn whole(span: f64) -> Time {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    let span = span as Time;
    // Room for the latency and for the next whole nanosecond.
    span.min(Time::MAX / 4)
}

/// The links that flows use, with what they have left for flows without a rate.
struct Filling<'a> {
    flows: &'a Arena<Active>,
    /// The links in use, their capacity left, and the number of their flows without a rate.
    links: Vec<(f64, u32)>,
    /// The place in `links` of each link, or `NONE`.
    places: Vec<u32>,
    /// The flows of each link in use, one after the other, and where those of a link begin.
    members: Vec<u32>,
    begins: Vec<usize>,
    is_set: Vec<bool>,
    /// The share of each link, the least first. One that has grown since is put in again.
    shares: BinaryHeap<Reverse<Share>>,
}

/// The capacity of a link for each of its flows.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Share {
    each: f64,
    place: u32,
}

impl Eq for Share {}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Share {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.each.total_cmp(&other.each).then(self.place.cmp(&other.place))
    }
}

impl<'a> Filling<'a> {
    fn new(flows: &'a Arena<Active>, capacities: &[f64]) -> Self {
        let mut places = vec![crate::arena::NONE; capacities.len()];
        let mut links: Vec<(f64, u32)> = Vec::new();
        let moving = || flows.iter().filter(|(_, flow)| !flow.stands_still);
        for (_, flow) in moving() {
            for link in &flow.path {
                let place = &mut places[index(*link)];
                if *place == crate::arena::NONE {
                    *place = u32::try_from(links.len()).unwrap_or(crate::arena::NONE);
                    links.push((capacities[index(*link)], 0));
                }
                links[index(*place)].1 += 1;
            }
        }
        let mut begins = Vec::with_capacity(links.len() + 1);
        let mut begin = 0;
        for (_, count) in &links {
            begins.push(begin);
            begin += index(*count);
        }
        begins.push(begin);
        let mut members = vec![0; begin];
        let mut ends = begins.clone();
        for (number, flow) in moving() {
            for link in &flow.path {
                let end = &mut ends[index(places[index(*link)])];
                members[*end] = number;
                *end += 1;
            }
        }
        let share = |(place, (left, count)): (u32, &(f64, u32))| {
            Reverse(Share { each: left / f64::from(*count), place })
        };
        let shares = (0..).zip(&links).map(share).collect();
        let is_set = vec![false; flows.places()];
        Self { flows, links, places, members, begins, is_set, shares }
    }

    /// The rate of each flow.
    fn rates(mut self) -> Vec<(u32, f64)> {
        let mut rates = Vec::new();
        while let Some(Reverse(share)) = self.shares.pop() {
            let place = index(share.place);
            let (left, count) = self.links[place];
            if count == 0 {
                continue;
            }
            // A share grows when flows that were bounded elsewhere leave some of theirs.
            let each = left.max(0.0) / f64::from(count);
            if each > share.each {
                self.shares.push(Reverse(Share { each, ..share }));
                continue;
            }
            for member in self.begins[place]..self.begins[place + 1] {
                let number = self.members[member];
                if std::mem::replace(&mut self.is_set[index(number)], true) {
                    continue;
                }
                for link in &self.flows.at(number).path {
                    let (left, count) = &mut self.links[index(self.places[index(*link)])];
                    *left -= each;
                    *count -= 1;
                }
                rates.push((number, each));
            }
        }
        rates
    }
}

impl std::fmt::Debug for FlowNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlowNetwork")
            .field("now", &self.now)
            .field("flows", &self.flows())
            .finish_non_exhaustive()
    }
}

#[path = "flow_fault.rs"]
mod fault;
#[cfg(test)]
#[path = "flow_tests.rs"]
mod tests;
