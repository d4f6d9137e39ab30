//! Routing tables in the form of the Extoll NIC (EXTOLL-THESIS#5.4.5.2).
//!
//! Each vertex has a *global table* with an entry for each of 64 segments, a *local table* with one
//! for each of the 1,024 hosts of its own segment, and a multicast table ([`crate::multicast`]). An
//! entry names a port and the virtual channel there. All ports of a vertex have the same tables.
//!
//! There are three *layers* of these tables, each on virtual channels of its own. The base layer
//! has the routes of a regular layout. The two *planes* have up*/down* routes and multicast trees,
//! by turns: one is active, and the other has the routes of before the last change, for the packets
//! that are under way on it. A base entry whose link is cut leads into the active plane. Where
//! there is no base layer, all packets start in the active plane. A packet stays in its plane to
//! its end.
//!
//! For adaptive routing, another table has the set of ports that bring a packet closer.
//!
//! # Invariants
//! - No entry leads from a plane to another layer. So if no layer has a circle of dependencies, the
//!   whole has none, also while base entries change from one plane to the other.

use serde::{Deserialize, Serialize};
use weft_topology::{Graph, Port, Vertex};

use crate::multicast::Multicast;
use crate::numbering::Numbering;
use crate::route::{Choice, Heading, Route};

/// Ports that an entry can name.
pub const PORTS_OF_ENTRY_MAX: u16 = 4_095;

/// One entry of a table: the port in the lower 12 bits, the virtual channel in the upper 4.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Entry(u16);

impl Entry {
    /// No way leads on, or the packet has arrived.
    pub const NONE: Self = Self(u16::MAX);

    /// The entry for a choice. [`Entry::NONE`] if its port or channel has too high a number.
    #[must_use]
    pub const fn of(choice: Choice) -> Self {
        if choice.port >= PORTS_OF_ENTRY_MAX || choice.vc > 15 {
            return Self::NONE;
        }
        Self((choice.vc as u16) << 12 | choice.port)
    }

    /// The choice that the entry names.
    #[must_use]
    pub fn choice(self) -> Option<Choice> {
        let port = self.0 & PORTS_OF_ENTRY_MAX;
        // Four bits are left.
        (port < PORTS_OF_ENTRY_MAX).then(|| Choice { port, vc: (self.0 >> 12).to_le_bytes()[0] })
    }

    /// The bits, as a NIC keeps them.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The entry with these bits.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }
}

impl From<Option<Choice>> for Entry {
    fn from(choice: Option<Choice>) -> Self {
        choice.map_or(Self::NONE, Self::of)
    }
}

/// The target of an entry: a segment as seen from outside, or a host of the own segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// A segment.
    Segment(u32),
    /// A place in the own segment.
    Place(u32),
}

/// The global and local tables of all vertices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layer<T> {
    segments: u32,
    width: u32,
    global: Vec<T>,
    local: Vec<T>,
}

impl<T: Copy> Layer<T> {
    /// Tables without an entry.
    pub(crate) fn new(vertices: Vertex, numbering: &Numbering, none: T) -> Self {
        let (segments, width) = (numbering.segments(), numbering.width());
        let vertices = vertices as usize;
        Self {
            segments,
            width,
            global: vec![none; vertices * segments as usize],
            local: vec![none; vertices * width as usize],
        }
    }

    /// The global table of a vertex.
    #[must_use]
    pub fn global(&self, vertex: Vertex) -> &[T] {
        let (vertex, segments) = (vertex as usize, self.segments as usize);
        &self.global[vertex * segments..(vertex + 1) * segments]
    }

    /// The local table of a vertex.
    #[must_use]
    pub fn local(&self, vertex: Vertex) -> &[T] {
        let (vertex, width) = (vertex as usize, self.width as usize);
        &self.local[vertex * width..(vertex + 1) * width]
    }

    /// The entry of a vertex for a target.
    #[must_use]
    pub fn get(&self, vertex: Vertex, target: Target) -> T {
        match target {
            Target::Segment(segment) => self.global(vertex)[segment as usize],
            Target::Place(place) => self.local(vertex)[place as usize],
        }
    }

    pub(crate) fn set(&mut self, vertex: Vertex, target: Target, entry: T) {
        match target {
            Target::Segment(segment) => {
                self.global[(vertex * self.segments + segment) as usize] = entry;
            }
            Target::Place(place) => {
                self.local[vertex as usize * self.width as usize + place as usize] = entry;
            }
        }
    }

    /// Fills the tables of all vertices: `segment` has the entries of the global table, `host`
    /// those of the local one.
    pub(crate) fn fill(
        &mut self,
        numbering: &Numbering,
        segment: impl Fn(Vertex, u32) -> T,
        host: impl Fn(Vertex, Vertex) -> T,
    ) {
        let (segments, width) = (self.segments as usize, self.width as usize);
        for (vertex, row) in (0..).zip(self.global.chunks_exact_mut(segments.max(1))) {
            let own = numbering.segment(vertex);
            for (other, entry) in (0..).zip(row) {
                if own != Some(other) {
                    *entry = segment(vertex, other);
                }
            }
        }
        for (vertex, row) in (0..).zip(self.local.chunks_exact_mut(width.max(1))) {
            let Some(own) = numbering.segment(vertex) else { continue };
            for (place, entry) in (0..).zip(row) {
                match numbering.host(own, place) {
                    Some(to) if to != vertex => *entry = host(vertex, to),
                    _ => {}
                }
            }
        }
    }

    /// Takes the entries of a vertex from `other` where `is_to_go` says so.
    pub(crate) fn replace(&mut self, vertex: Vertex, other: &Self, is_to_go: impl Fn(T) -> bool) {
        let (vertex, segments, width) =
            (vertex as usize, self.segments as usize, self.width as usize);
        let rows = [
            (&mut self.global, &other.global, vertex * segments..(vertex + 1) * segments),
            (&mut self.local, &other.local, vertex * width..(vertex + 1) * width),
        ];
        for (own, other, range) in rows {
            for (own, other) in own[range.clone()].iter_mut().zip(&other[range]) {
                if is_to_go(*own) {
                    *own = *other;
                }
            }
        }
    }

    /// The bytes that the tables take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        (self.global.len() + self.local.len()) * size_of::<T>()
    }
}

impl Layer<Entry> {
    /// Tables with these bits of global and local entries, by vertex. What a row lacks is no entry,
    /// and what it has too much is left out.
    pub(crate) fn loaded(
        vertices: Vertex,
        numbering: &Numbering,
        rows: &[(Vec<u16>, Vec<u16>)],
    ) -> Self {
        let mut layer = Self::new(vertices, numbering, Entry::NONE);
        let (segments, width) = (layer.segments as usize, layer.width as usize);
        for (vertex, (global, local)) in rows.iter().enumerate() {
            let own = &mut layer.global[vertex * segments..(vertex + 1) * segments];
            own.iter_mut().zip(global).for_each(|(own, bits)| *own = Entry::from_bits(*bits));
            let own = &mut layer.local[vertex * width..(vertex + 1) * width];
            own.iter_mut().zip(local).for_each(|(own, bits)| *own = Entry::from_bits(*bits));
        }
        layer
    }
}

/// Sets of ports for adaptive routing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Adaptive {
    /// Bit `p` of an entry: port `p` brings the packet closer.
    pub ports: Layer<u32>,
    /// The virtual channel of the adaptive hops.
    pub vc: u8,
    /// True when a packet that took an escape channel may take adaptive ones again.
    pub returns: bool,
}

/// Up*/down* routes and multicast trees, on a virtual channel of their own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plane {
    /// The routes; `None` where no packet comes into the plane.
    pub(crate) layer: Option<Layer<Entry>>,
    pub(crate) multicast: Multicast,
}

/// The layer in which a packet is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stage {
    /// The base layer.
    Base,
    /// The first or the second plane.
    Plane(Side),
}

/// One of the two planes.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub enum Side {
    /// The first.
    #[default]
    A,
    /// The second.
    B,
}

impl Side {
    /// The other plane.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// The tables of all vertices of a network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tables {
    pub(crate) numbering: Numbering,
    /// The routes of the layout, on the channels below `base_vcs`; `None` where it has none.
    pub(crate) base: Option<Layer<Entry>>,
    pub(crate) base_vcs: u8,
    /// The plane into which packets come.
    pub(crate) side: Side,
    pub(crate) active: Plane,
    /// The plane of before the last change, or of the next one.
    pub(crate) spare: Option<Plane>,
    pub(crate) adaptive: Option<Adaptive>,
}

impl Tables {
    /// The numbers of the hosts.
    #[must_use]
    pub fn numbering(&self) -> &Numbering {
        &self.numbering
    }

    /// The base layer; `None` where all packets take up*/down* routes.
    #[must_use]
    pub fn base(&self) -> Option<&Layer<Entry>> {
        self.base.as_ref()
    }

    /// The active plane's side.
    #[must_use]
    pub fn side(&self) -> Side {
        self.side
    }

    /// The routes of a plane; `None` where it has none.
    #[must_use]
    pub fn plane(&self, side: Side) -> Option<&Layer<Entry>> {
        self.plane_of(side).and_then(|plane| plane.layer.as_ref())
    }

    fn plane_of(&self, side: Side) -> Option<&Plane> {
        if side == self.side { Some(&self.active) } else { self.spare.as_ref() }
    }

    /// The ports for adaptive routing, if it is in use.
    #[must_use]
    pub fn adaptive(&self) -> Option<&Adaptive> {
        self.adaptive.as_ref()
    }

    /// The multicast groups of the active plane.
    #[must_use]
    pub fn multicast(&self) -> &Multicast {
        &self.active.multicast
    }

    /// The multicast groups of a plane, by which a packet on its channel is sent on.
    #[must_use]
    pub fn multicast_of(&self, side: Side) -> Option<&Multicast> {
        self.plane_of(side).map(|plane| &plane.multicast)
    }

    /// The multicast groups of the active plane, to change their members.
    pub fn multicast_mut(&mut self) -> &mut Multicast {
        &mut self.active.multicast
    }

    /// The virtual channel of a plane, for unicast and multicast.
    #[must_use]
    pub fn vc_of(&self, side: Side) -> u8 {
        self.base_vcs + u8::from(side == Side::B)
    }

    /// The plane of `next` comes in beside the active one. No entry leads into it yet. With that,
    /// a vertex that has not changed to `next` can send on what comes from one that has.
    #[must_use]
    pub fn prepared(&self, next: &Self) -> Self {
        let spare = (next.side != self.side).then(|| next.active.clone());
        Self { spare: spare.or_else(|| self.spare.clone()), ..self.clone() }
    }

    /// Forgets the plane of before the last change, when no packet is left on it.
    pub fn settle(&mut self) {
        self.spare = None;
    }

    /// The target under which the tables of `at` have the way to the host `to`.
    #[must_use]
    pub fn target(&self, at: Vertex, to: Vertex) -> Option<Target> {
        let (segment, place) = self.numbering.place(to)?;
        let is_own = self.numbering.segment(at) == Some(segment);
        Some(if is_own { Target::Place(place) } else { Target::Segment(segment) })
    }

    /// The layer of a packet that starts, or that came on an adaptive channel.
    #[must_use]
    pub fn start(&self) -> Stage {
        if self.base.is_some() { Stage::Base } else { Stage::Plane(self.side) }
    }

    /// The layer of a packet that came on `vc`.
    #[must_use]
    pub fn stage(&self, vc: u8) -> Stage {
        match vc.checked_sub(self.base_vcs) {
            Some(0) => Stage::Plane(Side::A),
            Some(1) => Stage::Plane(Side::B),
            _ => self.start(),
        }
    }

    /// The tables of a layer, if there are any.
    #[must_use]
    pub fn layer(&self, stage: Stage) -> Option<&Layer<Entry>> {
        match stage {
            Stage::Base => self.base.as_ref(),
            Stage::Plane(side) => self.plane(side),
        }
    }

    /// The entry of a vertex in a layer.
    pub(crate) fn entry(&self, stage: Stage, at: Vertex, target: Target) -> Entry {
        self.layer(stage).map_or(Entry::NONE, |layer| layer.get(at, target))
    }

    /// The bytes that all tables take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let layers = [Stage::Base, Stage::Plane(Side::A), Stage::Plane(Side::B)];
        let layers = layers.iter().filter_map(|stage| self.layer(*stage)).map(Layer::bytes);
        let adaptive = self.adaptive.as_ref().map_or(0, |adaptive| adaptive.ports.bytes());
        layers.sum::<usize>() + adaptive + self.active.multicast.bytes()
    }
}

impl Route for Tables {
    fn vcs(&self) -> u8 {
        self.base_vcs + 2 + u8::from(self.adaptive.is_some())
    }

    fn next(
        &self,
        at: Vertex,
        arrived: Option<(Port, u8)>,
        heading: &Heading,
        choices: &mut Vec<Choice>,
    ) {
        choices.clear();
        if at == heading.to {
            return;
        }
        let Some(target) = self.target(at, heading.to) else { return };
        let came = arrived.map(|(_, vc)| vc);
        let stage = came.map_or(self.start(), |vc| self.stage(vc));
        let Some(escape) = self.entry(stage, at, target).choice() else { return };
        if let Some(adaptive) = &self.adaptive
            && came.is_none_or(|vc| vc == adaptive.vc || adaptive.returns && stage == Stage::Base)
        {
            let set = adaptive.ports.get(at, target);
            let ports = (0..32_u16).filter(|port| set >> port & 1 == 1);
            choices.extend(ports.map(|port| Choice { port, vc: adaptive.vc }));
        }
        choices.push(escape);
    }

    fn forward(
        &self,
        group: u8,
        at: Vertex,
        arrived: Option<(Port, u8)>,
        copies: &mut Vec<Choice>,
    ) {
        copies.clear();
        let side = match arrived.map(|(_, vc)| self.stage(vc)) {
            Some(Stage::Plane(side)) => side,
            _ => self.side,
        };
        let Some(multicast) = self.multicast_of(side) else { return };
        let vc = self.vc_of(side);
        let ports = multicast.forward(group, at, arrived.map(|(port, _)| port));
        copies.extend(ports.map(|port| Choice { port, vc }));
    }

    fn is_member(&self, group: u8, vertex: Vertex) -> bool {
        self.multicast().is_member(group, vertex)
    }
}

/// The ports of a vertex whose link is not cut, as a set. Ports from 32 on have no place in it.
pub(crate) fn live_ports(graph: &Graph, vertex: Vertex) -> u32 {
    let ports = graph.neighbours(vertex).map(|(port, _)| port).filter(|port| *port < 32);
    ports.fold(0, |set, port| set | 1 << port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_keeps_port_and_channel() {
        for choice in [Choice { port: 0, vc: 0 }, Choice { port: 4_094, vc: 15 }] {
            assert_eq!(Entry::of(choice).choice(), Some(choice));
            assert_eq!(Entry::from_bits(Entry::of(choice).bits()), Entry::of(choice));
        }
        for choice in [Choice { port: 4_095, vc: 0 }, Choice { port: 0, vc: 16 }] {
            assert_eq!(Entry::of(choice), Entry::NONE);
        }
        assert_eq!(Entry::from(None).choice(), None);
    }
}
