//! The network: its events, and what a driver asks of it.
//!
//! # Invariants
//! - Time never goes back, and passes only in [`Network::run`] and [`Network::run_out`].
//! - Every message that was accepted ends with exactly one [`Outcome`], unless it waits for a link
//!   that no packet can leave by: then [`Settings::patience`] ends it.
//! - The same seed and the same calls give the same run.

use std::collections::VecDeque;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use thiserror::Error;
use weft_routing::{Choice, Route};
use weft_topology::{Graph, Port, Vertex};

use crate::arena::{Arena, NONE, index};
use crate::host::Host;
use crate::links::{ChannelId, Counts, LinkId, Links};
use crate::packet::{Carried, Destination, Message, Outcome, Packet, Shared};
use crate::processors::Schedule;
use crate::queue::EventQueue;
use crate::settings::{Settings, SettingsError};
use crate::time::Time;
use crate::waiting::Waiting;

/// Something that happens at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A packet may leave the router at the end of its link.
    Ready(u32),
    /// A link is free.
    Free(LinkId),
    /// Room at the end of a virtual channel is known at its start.
    Credit { channel: ChannelId, bytes: u32 },
    /// The tail of a packet arrived at its host.
    Deliver(u32),
    /// The processor of its receiver has taken a message.
    Taken(u32),
    /// Packets that have waited too long are looked for.
    Patience,
}

/// A network of a graph in virtual time.
pub struct Network {
    pub(crate) settings: Settings,
    pub(crate) graph: Graph,
    pub(crate) route: Box<dyn Route + Send>,
    pub(crate) now: Time,
    pub(crate) events: EventQueue<Event>,
    pub(crate) links: Links,
    pub(crate) waiting: Waiting,
    pub(crate) packets: Arena<Packet>,
    pub(crate) shared: Arena<Shared>,
    pub(crate) messages: Arena<Carried>,
    pub(crate) hosts: Vec<Host>,
    /// The processors that the hosts share, if they do.
    pub(crate) processors: Option<Schedule>,
    pub(crate) outcomes: VecDeque<Outcome>,
    pub(crate) random: ChaCha8Rng,
    /// Vertices that crashed.
    pub(crate) is_down: Vec<bool>,
    pub(crate) looks_for_patience: bool,
    /// Memory of the choices for a packet, used again for the next.
    pub(crate) choices: Vec<Choice>,
    pub(crate) ways: Vec<ChannelId>,
}

/// Why there is no network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NetworkError {
    /// A parameter is of no use.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The graph has no hosts.
    #[error("the graph has no host; add one that sends and receives")]
    NoHosts,
    /// The virtual channels of all links are too many.
    #[error("{links} links with {each} virtual channels are too many; take a smaller graph")]
    Large {
        /// Links in one direction.
        links: u32,
        /// Virtual channels of each, of all classes.
        each: u32,
    },
    /// A route needs more virtual channels than the network was made with.
    #[error(
        "the route needs {needed} virtual channels, and the network has {there} of a class; \
             make the network with the route that needs most"
    )]
    Channels {
        /// Those of the route.
        needed: u8,
        /// Those of the network.
        there: u8,
    },
}

/// Why a message was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SendError {
    /// The vertex is no host.
    #[error("vertex {0} is no host; send between hosts")]
    NotHost(Vertex),
    /// Only members send to a group.
    #[error("host {from} is no member of group {group}; add it to the group of the routes first")]
    NotMember {
        /// The sender.
        from: Vertex,
        /// The group.
        group: u8,
    },
    /// The sender crashed.
    #[error("host {0} is down; restart it first")]
    Down(Vertex),
    /// There is no such class.
    #[error("there is no traffic class {0}; the settings have the number of classes")]
    Class(u8),
    /// Too many messages are on their way.
    #[error("{0} messages are on their way; wait for the end of one")]
    Full(u32),
}

impl Network {
    /// A network of `graph` at time 0, in which packets take `route`. Links that are cut in the
    /// graph are cut. Bandwidths and latencies that the graph states go before those of `settings`.
    ///
    /// # Errors
    /// [`NetworkError`].
    pub fn new(
        graph: Graph,
        route: Box<dyn Route + Send>,
        settings: Settings,
    ) -> Result<Self, NetworkError> {
        settings.check()?;
        if graph.hosts().next().is_none() {
            return Err(NetworkError::NoHosts);
        }
        let vcs = route.vcs().max(1);
        let each = u32::from(vcs) * u32::from(settings.classes);
        let links = graph.channels().saturating_add(graph.vertices().saturating_mul(2));
        if each > u32::from(u8::MAX) || links.checked_mul(each).is_none() {
            return Err(NetworkError::Large { links, each });
        }
        let links = Links::new(&graph, &settings, vcs)?;
        let hosts = links.hosts().iter().map(|_| Host::new()).collect();
        Ok(Self {
            processors: settings.processors.map(Schedule::new),
            now: 0,
            events: EventQueue::new(),
            waiting: Waiting::new(settings.arbitration),
            packets: Arena::new(),
            shared: Arena::new(),
            messages: Arena::new(),
            hosts,
            outcomes: VecDeque::new(),
            random: ChaCha8Rng::seed_from_u64(settings.seed),
            is_down: vec![false; index(graph.vertices())],
            looks_for_patience: false,
            choices: Vec::new(),
            ways: Vec::new(),
            links,
            route,
            settings,
            graph,
        })
    }

    /// The time of the last event that happened, or up to which the network was run.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// The graph, with the links that are cut by now.
    #[must_use]
    pub const fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The graph in which also the links of nodes that are down are cut.
    #[must_use]
    pub fn reachable(&self) -> Graph {
        let mut graph = self.graph.clone();
        let down = (0..).zip(&self.is_down).filter(|(_, is_down)| **is_down);
        down.for_each(|(vertex, _)| graph.set_isolated(vertex, true));
        graph
    }

    /// The parameters.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The time of the next event; `None` when the network is idle.
    pub fn next_time(&mut self) -> Option<Time> {
        if self.outcomes.is_empty() { self.events.next_time() } else { Some(self.now) }
    }

    /// Messages on their way.
    #[must_use]
    pub const fn messages(&self) -> u32 {
        self.messages.len()
    }

    /// Packets on their way.
    #[must_use]
    pub const fn packets(&self) -> u32 {
        self.packets.len()
    }

    /// Accepts a message now. It waits at its sender behind those of its class.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&mut self, message: Message) -> Result<(), SendError> {
        let Message { from, to, class, .. } = message;
        let host = self.links.host(from).ok_or(SendError::NotHost(from))?;
        match to {
            Destination::Host(to) => drop(self.links.host(to).ok_or(SendError::NotHost(to))?),
            Destination::Group(group) if !self.route.is_member(group, from) => {
                return Err(SendError::NotMember { from, group });
            }
            Destination::Group(_) => {}
        }
        if self.is_down[index(from)] {
            return Err(SendError::Down(from));
        }
        if class >= self.settings.classes {
            return Err(SendError::Class(class));
        }
        if self.messages.len() >= self.settings.messages_max {
            return Err(SendError::Full(self.settings.messages_max));
        }
        let number = self.messages.insert(Carried::new(message, self.now));
        self.hosts[index(host)].append(&mut self.messages, class, number);
        self.inject(host);
        Ok(())
    }

    /// Lets time pass until a message ends, or until `until` if none does. Then [`Network::now`] is
    /// the time of the outcome, or `until`.
    pub fn run(&mut self, until: Time) -> Option<Outcome> {
        let outcome = self.happen_until(until);
        if outcome.is_none() {
            self.now = self.now.max(until);
        }
        outcome
    }

    /// Lets time pass until a message ends, or nothing more happens.
    pub fn run_out(&mut self) -> Option<Outcome> {
        self.happen_until(Time::MAX)
    }

    fn happen_until(&mut self, until: Time) -> Option<Outcome> {
        loop {
            if let Some(outcome) = self.outcomes.pop_front() {
                return Some(outcome);
            }
            let (time, event) = self.events.pop(until)?;
            assert!(time >= self.now, "time went back");
            self.now = time;
            self.happen(event);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Ready(packet) => self.ready(packet),
            Event::Free(link) => {
                self.links.get_mut(link).is_watched = false;
                self.serve(link);
            }
            Event::Credit { channel, bytes } => {
                let list = self.links.channel_mut(channel);
                list.credits += bytes;
                let waits = list.first != NONE;
                let link = self.links.link_of(channel);
                match self.links.injecting_host(link) {
                    Some(host) => self.inject(host),
                    None if waits => self.arbitrate(link),
                    None => {}
                }
            }
            Event::Deliver(packet) => self.deliver(packet),
            Event::Taken(message) => self.taken(message),
            Event::Patience => self.look_for_patience(),
        }
    }

    /// Gives a link, which may be free, the next packet.
    pub(crate) fn serve(&mut self, link: LinkId) {
        match self.links.injecting_host(link) {
            Some(host) => self.inject(host),
            None if self.links.get(link).waiting > 0 => self.arbitrate(link),
            None => {}
        }
    }

    /// The credits of all virtual channels between routers and from hosts, as the settings gave
    /// them less what is in use.
    #[cfg(test)]
    pub(crate) fn credits(&self) -> u64 {
        let links = 0..self.links.count();
        let bounded = links.filter(|link| !self.links.is_ejection(*link));
        let each = |link: LinkId| {
            let vcs = 0..self.settings.classes * self.links.per_class();
            vcs.map(move |vc| self.links.channel(self.links.channel_of(link, vc)).credits)
        };
        bounded.flat_map(each).map(u64::from).sum()
    }

    /// The traffic of the link that leads out of a port. `None` if there is no such port.
    #[must_use]
    pub fn counts(&self, vertex: Vertex, port: Port) -> Option<Counts> {
        let link = self.graph.channel(vertex, port)?;
        Some(self.links.counts(link))
    }

    /// The traffic from a host into its router, and back. `None` if the vertex is no host.
    #[must_use]
    pub fn host_counts(&self, vertex: Vertex) -> Option<(Counts, Counts)> {
        let host = self.links.host(vertex)?;
        let of = |link| self.links.counts(link);
        Some((of(self.links.injection(host)), of(self.links.ejection(host))))
    }
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network")
            .field("now", &self.now)
            .field("messages", &self.messages.len())
            .field("packets", &self.packets.len())
            .finish_non_exhaustive()
    }
}
