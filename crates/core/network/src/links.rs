//! The state of links and of their virtual channels.
//!
//! Every port of the graph has a link that leads out of it, numbered as `Graph::channel` does. Each
//! host has two more, one into its router and one out of it. So a packet only ever goes from link
//! to link.
//!
//! # Invariants
//! - The credits of a virtual channel and the bytes of the packets that are on it, in the buffer at
//!   its end, or in a credit on its way back, are together its buffer.

use std::collections::BTreeMap;

use weft_topology::{Graph, Port, Vertex};

use crate::arena::{NONE, index};
use crate::settings::{LinkModel, Settings, SettingsError};
use crate::time::{Pace, Time};

/// The number of a link, in one direction.
pub(crate) type LinkId = u32;

/// The number of a virtual channel: those of a link follow each other.
pub(crate) type ChannelId = u32;

/// A link in one direction. Many are in memory at once: it has 48 bytes.
#[derive(Debug)]
pub(crate) struct Link {
    pub free_at: Time,
    pub bytes: u64,
    pub packets: u32,
    /// The router at its end, and the port there. Links out of hosts arrive at port
    /// [`FROM_HOST`].
    pub to: Vertex,
    pub to_port: Port,
    /// Its parameters, by their place in the table.
    pub model: ModelId,
    /// Packets that wait for it. A packet counts once for each of its choices.
    pub waiting: u32,
    /// The input port from which it took a packet last.
    pub last_input: Port,
    /// The virtual channel that it served last, of all classes.
    pub last_vc: u8,
    pub is_up: bool,
    /// An event will tell when it is free.
    pub is_watched: bool,
}

/// The place of the parameters of a link.
pub(crate) type ModelId = u16;

/// The parameters of a link, as its use needs them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Model {
    pub pace: Pace,
    pub latency: Time,
    pub damaged_per_million: u32,
}

/// The port by which packets of the own host arrive at a router.
pub(crate) const FROM_HOST: Port = Port::MAX;

/// The traffic of a link in one direction since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Packets that it moved.
    pub packets: u64,
    /// Bytes that it moved, with headers.
    pub bytes: u64,
    /// Packets that it sent once more, because they arrived damaged.
    pub resent: u64,
    /// Packets that were on it when it was cut.
    pub lost: u64,
}

/// A virtual channel: the credits at its start, and the packets that wait for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Channel {
    pub credits: u32,
    /// The first and the last of the packets that wait, as places in the table of `waiting`.
    pub first: u32,
    pub last: u32,
}

/// The faults that a link saw.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Harm {
    pub resent: u64,
    pub lost: u64,
}

/// All links.
#[derive(Debug)]
pub(crate) struct Links {
    links: Vec<Link>,
    models: Vec<Model>,
    /// Packets that were sent once more, and those that were lost, by link.
    harms: BTreeMap<LinkId, Harm>,
    channels: Vec<Channel>,
    /// The virtual channels of a link, of all classes.
    per_link: u32,
    /// The virtual channels of a class.
    per_class: u8,
    /// The first link of each vertex.
    first: Vec<LinkId>,
    /// The number of links between routers.
    between: u32,
    /// The place of each vertex among the hosts, or `NONE`.
    host_of: Vec<u32>,
    /// The vertex of each host.
    hosts: Vec<Vertex>,
}

impl Links {
    pub fn new(graph: &Graph, settings: &Settings, vcs: u8) -> Result<Self, SettingsError> {
        let hosts: Vec<Vertex> = graph.hosts().collect();
        let mut host_of = vec![NONE; index(graph.vertices())];
        for (number, vertex) in (0..).zip(&hosts) {
            host_of[index(*vertex)] = number;
        }
        let per_link = u32::from(vcs) * u32::from(settings.classes);
        let mut links = Self {
            links: Vec::with_capacity(index(graph.channels()) + 2 * hosts.len()),
            models: Vec::new(),
            harms: BTreeMap::new(),
            channels: Vec::new(),
            per_link,
            per_class: vcs,
            first: Vec::with_capacity(index(graph.vertices())),
            between: graph.channels(),
            host_of,
            hosts,
        };
        for vertex in 0..graph.vertices() {
            links.first.push(links.count());
            for port in 0..graph.ports(vertex) {
                links.add_between(graph, settings, (vertex, port))?;
            }
        }
        for vertex in links.hosts.clone() {
            links.add(Some((vertex, FROM_HOST)), settings.host.injection, settings.buffer_bytes)?;
        }
        for vertex in links.hosts.clone() {
            // A host takes all that arrives: the pace of its link alone bounds it.
            links.add(Some((vertex, FROM_HOST)), settings.host.ejection, u32::MAX)?;
        }
        Ok(links)
    }

    fn add_between(
        &mut self,
        graph: &Graph,
        settings: &Settings,
        (vertex, port): (Vertex, Port),
    ) -> Result<(), SettingsError> {
        let class = graph.class(vertex, port);
        let mut model = settings.link;
        if class.bandwidth != 0 {
            model.bits_per_second = class.bandwidth;
        }
        if class.latency != 0 {
            model.latency = class.latency.saturating_mul(crate::time::NANOSECOND);
        }
        self.add(graph.wired(vertex, port), model, settings.buffer_bytes)?;
        if graph.is_cut(vertex, port) {
            let link = self.count() - 1;
            self.get_mut(link).is_up = false;
        }
        Ok(())
    }

    fn add(
        &mut self,
        to: Option<(Vertex, Port)>,
        model: LinkModel,
        buffer_bytes: u32,
    ) -> Result<(), SettingsError> {
        let (to, to_port) = to.unwrap_or((NONE, 0));
        let model = self.model_of(model)?;
        self.links.push(Link {
            free_at: 0,
            bytes: 0,
            packets: 0,
            to,
            to_port,
            model,
            waiting: 0,
            last_input: 0,
            last_vc: 0,
            is_up: to != NONE,
            is_watched: false,
        });
        let channel = Channel { credits: buffer_bytes, first: NONE, last: NONE };
        self.channels.extend((0..self.per_link).map(|_| channel));
        Ok(())
    }

    /// The place of parameters, of which a graph and its faults have few different ones.
    fn model_of(&mut self, model: LinkModel) -> Result<ModelId, SettingsError> {
        let model = Model {
            pace: Pace::of(model.bits_per_second),
            latency: model.latency,
            damaged_per_million: model.damaged_per_million,
        };
        let known = self.models.iter().rposition(|known| *known == model);
        let place = known.unwrap_or(self.models.len());
        let number = ModelId::try_from(place).map_err(|_| SettingsError::Models)?;
        if known.is_none() {
            self.models.push(model);
        }
        Ok(number)
    }

    /// Gives a link other parameters.
    pub fn set_model(&mut self, link: LinkId, model: LinkModel) -> Result<(), SettingsError> {
        let model = self.model_of(model)?;
        self.get_mut(link).model = model;
        Ok(())
    }

    /// The parameters of a place.
    pub fn model(&self, model: ModelId) -> Model {
        self.models[usize::from(model)]
    }

    /// The faults that a link saw.
    pub fn harm_mut(&mut self, link: LinkId) -> &mut Harm {
        self.harms.entry(link).or_default()
    }

    /// The traffic of a link.
    pub fn counts(&self, link: LinkId) -> Counts {
        let state = self.get(link);
        let harm = self.harms.get(&link).copied().unwrap_or_default();
        Counts {
            packets: state.packets.into(),
            bytes: state.bytes,
            resent: harm.resent,
            lost: harm.lost,
        }
    }

    /// The number of ports of a router.
    pub fn ports(&self, vertex: Vertex) -> u32 {
        let end = self.first.get(index(vertex) + 1).copied().unwrap_or(self.between);
        end - self.first[index(vertex)]
    }

    /// The number of links.
    pub fn count(&self) -> u32 {
        u32::try_from(self.links.len()).unwrap_or(NONE)
    }

    pub fn get(&self, link: LinkId) -> &Link {
        &self.links[index(link)]
    }

    pub fn get_mut(&mut self, link: LinkId) -> &mut Link {
        &mut self.links[index(link)]
    }

    /// The link out of a port of a router.
    pub fn out_of(&self, vertex: Vertex, port: Port) -> LinkId {
        self.first[index(vertex)] + u32::from(port)
    }

    pub fn channel(&self, channel: ChannelId) -> &Channel {
        &self.channels[index(channel)]
    }

    pub fn channel_mut(&mut self, channel: ChannelId) -> &mut Channel {
        &mut self.channels[index(channel)]
    }

    /// A virtual channel of a link by its number there.
    pub const fn channel_of(&self, link: LinkId, vc: u8) -> ChannelId {
        link * self.per_link + vc as u32
    }

    /// The link of a virtual channel.
    pub const fn link_of(&self, channel: ChannelId) -> LinkId {
        channel / self.per_link
    }

    /// The number, among those of a link, of virtual channel `vc` of a class.
    pub const fn vc_of(&self, class: u8, vc: u8) -> u8 {
        class * self.per_class + vc
    }

    /// The virtual channels of a class.
    pub const fn per_class(&self) -> u8 {
        self.per_class
    }

    /// The virtual channel within its class.
    pub const fn within_class(&self, vc: u8) -> u8 {
        vc % self.per_class
    }

    pub fn hosts(&self) -> &[Vertex] {
        &self.hosts
    }

    /// The place of a vertex among the hosts.
    pub fn host(&self, vertex: Vertex) -> Option<u32> {
        self.host_of.get(index(vertex)).copied().filter(|host| *host != NONE)
    }

    /// The link from a host into its router.
    pub const fn injection(&self, host: u32) -> LinkId {
        self.between + host
    }

    /// The link from the router to its host.
    pub fn ejection(&self, host: u32) -> LinkId {
        self.injection(host) + u32::try_from(self.hosts.len()).unwrap_or(NONE)
    }

    /// The host whose link into the network this is.
    pub fn injecting_host(&self, link: LinkId) -> Option<u32> {
        let host = link.checked_sub(self.between)?;
        (index(host) < self.hosts.len()).then_some(host)
    }

    /// True for links to hosts, which take all that comes.
    pub fn is_ejection(&self, link: LinkId) -> bool {
        link.checked_sub(self.between).is_some_and(|host| index(host) >= self.hosts.len())
    }
}
