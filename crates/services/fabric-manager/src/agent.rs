//! The agent of a node: passes packets of the manager on, obeys orders, and tells of its links.
//!
//! # Invariants
//! - An order of a lower term than one before is refused.
//! - A link that came up carries no packets but the manager's until the next activation: tables of
//!   before it failed may go with no others any more.
//! - Tables have the sizes that the form of routing tables allows, whatever an order says.

use std::collections::BTreeMap;

use weft_routing::Choice;
use weft_routing::multicast::GROUPS_MAX;
use weft_routing::numbering::{HOSTS_OF_SEGMENT_MAX, SEGMENTS_MAX};
use weft_routing::tables::{Entry, Side};
use weft_topology::Port;

use crate::message::{Answer, Body, HOPS_MAX, Identity, Link, Order, Packet, Row};

/// Milliseconds between two tellings of a notice that was not heard.
const NOTICE_MS: u64 = 100;

/// A packet that an agent gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// It goes out at a port.
    Send(Port, Vec<u8>),
    /// It is for the manager of this node, if there is one.
    Deliver(Packet),
}

#[derive(Clone, Debug, Default)]
struct Rows {
    rows: BTreeMap<Row, Vec<u16>>,
}

impl Rows {
    /// Writes entries. False if they have no place in the table.
    fn write(&mut self, row: Row, first: u16, entries: &[u16], ports: usize) -> bool {
        let size = match row {
            Row::BaseGlobal | Row::PlaneGlobal => SEGMENTS_MAX as usize,
            Row::BaseLocal | Row::PlaneLocal => HOSTS_OF_SEGMENT_MAX as usize,
            Row::Group(group) if group < GROUPS_MAX => ports,
            Row::Group(_) => return false,
        };
        let (first, end) = (usize::from(first), usize::from(first) + entries.len());
        if end > size {
            return false;
        }
        let own = self.rows.entry(row).or_default();
        if own.len() < end {
            own.resize(end, Entry::NONE.bits());
        }
        own[first..end].copy_from_slice(entries);
        true
    }

    fn get(&self, row: Row, place: u16) -> Option<Choice> {
        let bits = self.rows.get(&row)?.get(usize::from(place))?;
        Entry::from_bits(*bits).choice()
    }
}

/// A version of the tables that is coming.
#[derive(Clone, Debug)]
struct Coming {
    version: u64,
    side: Side,
    base: Rows,
    /// The channels of the base layer, once the version is sealed.
    sealed: Option<u8>,
}

/// The agent of one node.
#[derive(Clone, Debug)]
pub struct Agent {
    guid: u64,
    is_switch: bool,
    links: Vec<Link>,
    term: u64,
    seen: u64,
    number: Option<u16>,
    segment: Option<u16>,
    base: Rows,
    base_vcs: u8,
    planes: [Rows; 2],
    active: Option<(u64, Side)>,
    coming: Option<Coming>,
    /// The way to the manager that gave the last order.
    manager: Option<Vec<Port>>,
    serial: u64,
    heard: u64,
    notice_at: u64,
}

const fn place(side: Side) -> usize {
    match side {
        Side::A => 0,
        Side::B => 1,
    }
}

impl Agent {
    /// The agent of a node that was made with the number `guid`, all of whose links are down.
    #[must_use]
    pub fn new(guid: u64, is_switch: bool, ports: Port) -> Self {
        Self {
            guid,
            is_switch,
            links: vec![Link::Down; usize::from(ports)],
            term: 0,
            seen: 0,
            number: None,
            segment: None,
            base: Rows::default(),
            base_vcs: 0,
            planes: [Rows::default(), Rows::default()],
            active: None,
            coming: None,
            manager: None,
            serial: 0,
            heard: 0,
            notice_at: 0,
        }
    }

    /// The same, with a number that it has from elsewhere. A manager keeps it.
    #[must_use]
    pub fn numbered(self, number: u16) -> Self {
        Self { number: Some(number), ..self }
    }

    /// The ports on the way to the manager that gave the last order, of this node and of those
    /// behind it; empty at its own node. `None` before an order.
    #[must_use]
    pub fn way_to_manager(&self) -> Option<&[Port]> {
        self.manager.as_deref()
    }

    /// Whether the link at a port is up or held.
    #[must_use]
    pub fn has_link(&self, port: Port) -> bool {
        self.links.get(usize::from(port)).is_some_and(|link| *link != Link::Down)
    }

    /// The link at a port failed or came up.
    pub fn link(&mut self, port: Port, is_up: bool) {
        if let Some(link) = self.links.get_mut(usize::from(port))
            && (*link == Link::Down) == is_up
        {
            *link = if is_up { Link::Held } else { Link::Down };
            self.serial += 1;
            self.notice_at = 0;
        }
    }

    /// The number of the node, if a manager gave one.
    #[must_use]
    pub fn number(&self) -> Option<u16> {
        self.number
    }

    /// The version of the tables in use.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        self.active.map(|(version, _)| version)
    }

    /// The highest term of an order.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term
    }

    /// The way on for a packet to the node `to` that came on the channel `vc`, or starts here.
    /// `None` if there is none, or it has arrived.
    #[must_use]
    pub fn next(&self, vc: Option<u8>, to: u16) -> Option<Choice> {
        let (_, side) = self.active?;
        if self.number == Some(to) {
            return None;
        }
        let (segment, local) = (to / 1_024, to % 1_024);
        let is_own = self.segment == Some(segment);
        // The tables of the layer of the channel, as `weft_routing::tables::Tables::stage`.
        let plane = match vc.and_then(|vc| vc.checked_sub(self.base_vcs)) {
            Some(0) => Some(Side::A),
            Some(1) => Some(Side::B),
            _ if self.base.rows.is_empty() => Some(side),
            _ => None,
        };
        let (rows, global_row, local_row) = match plane {
            None => (&self.base, Row::BaseGlobal, Row::BaseLocal),
            Some(side) => (&self.planes[place(side)], Row::PlaneGlobal, Row::PlaneLocal),
        };
        let (row, entry) = if is_own { (local_row, local) } else { (global_row, segment) };
        let choice = rows.get(row, entry)?;
        (self.links.get(usize::from(choice.port)) == Some(&Link::Up)).then_some(choice)
    }

    /// The ports at which a packet of a multicast group on the plane `side` is sent on. It came at
    /// the port `arrived`, or starts here.
    pub fn forward(
        &self,
        side: Side,
        group: u8,
        arrived: Option<Port>,
    ) -> impl Iterator<Item = Port> + '_ {
        let ports = self.planes[place(side)].rows.get(&Row::Group(group));
        let ports = ports.into_iter().flatten().copied();
        ports.filter(move |port| {
            Some(*port) != arrived && self.links.get(usize::from(*port)) == Some(&Link::Up)
        })
    }

    /// The entries of a row, as bits: of a plane, or of the base layer without one.
    #[must_use]
    pub fn entries(&self, plane: Option<Side>, row: Row) -> &[u16] {
        let rows = plane.map_or(&self.base, |side| &self.planes[place(side)]);
        rows.rows.get(&row).map_or(&[], Vec::as_slice)
    }

    /// The virtual channels of the base layer.
    #[must_use]
    pub fn base_vcs(&self) -> u8 {
        self.base_vcs
    }

    /// The plane in use.
    #[must_use]
    pub fn side(&self) -> Option<Side> {
        self.active.map(|(_, side)| side)
    }

    /// A packet came at a port. One that cannot be parsed or passed on is dropped.
    pub fn receive(&mut self, port: Port, bytes: &[u8]) -> Vec<Output> {
        let Some(mut packet) = Packet::parse(bytes) else { return Vec::new() };
        if packet.back.len() >= HOPS_MAX || usize::from(port) >= self.links.len() {
            return Vec::new();
        }
        packet.back.push(port);
        self.pass(packet)
    }

    /// A packet of the manager of this node starts.
    pub fn originate(&mut self, packet: Packet) -> Vec<Output> {
        self.pass(packet)
    }

    /// Tells the manager again of links that changed. `now` is in milliseconds.
    pub fn tick(&mut self, now: u64) -> Vec<Output> {
        if self.serial == self.heard || now < self.notice_at {
            return Vec::new();
        }
        let Some(route) = self.manager.clone() else { return Vec::new() };
        self.notice_at = now + NOTICE_MS;
        self.pass(Packet::new(route, Body::Notice { serial: self.serial }))
    }

    fn pass(&mut self, mut packet: Packet) -> Vec<Output> {
        if !packet.route.is_empty() {
            let port = packet.route.remove(0);
            return if self.has_link(port) {
                vec![Output::Send(port, packet.encode())]
            } else {
                Vec::new()
            };
        }
        match &packet.body {
            Body::Order { term, sequence, order } => {
                let arrived = packet.back.last().copied();
                let answer = self.obey(*term, order, arrived);
                if self.term == *term {
                    self.manager = Some(packet.back.iter().rev().copied().collect());
                }
                let body = Body::Answer { sequence: *sequence, answer };
                let reply = packet.reply(body);
                self.pass(reply)
            }
            Body::Heard { serial } => {
                self.heard = self.heard.max((*serial).min(self.serial));
                Vec::new()
            }
            Body::Answer { .. } | Body::Notice { .. } => vec![Output::Deliver(packet)],
        }
    }

    fn obey(&mut self, term: u64, order: &Order, arrived: Option<Port>) -> Answer {
        if term < self.term {
            return Answer::Superseded(self.term);
        }
        self.term = term;
        let is_done = match order {
            Order::Identify => return Answer::Identity(self.identity(arrived)),
            Order::Place { number, segment } => {
                (self.number, self.segment) = (*number, *segment);
                true
            }
            Order::Clear { version } => {
                self.clear(*version);
                true
            }
            Order::Load { version, side, row, first, entries } => {
                self.load(*version, *side, *row, *first, entries)
            }
            Order::Seal { version, base_vcs } => match &mut self.coming {
                Some(coming) if coming.version == *version => {
                    coming.sealed = Some(*base_vcs);
                    true
                }
                _ => self.version() == Some(*version),
            },
            Order::Activate { version } => self.activate(*version),
        };
        if is_done { Answer::Done } else { Answer::Refused }
    }

    fn identity(&self, arrived: Option<Port>) -> Identity {
        let sealed = self.coming.as_ref().filter(|coming| coming.sealed.is_some());
        Identity {
            guid: self.guid,
            is_switch: self.is_switch,
            ports: self.links.clone(),
            arrived,
            number: self.number,
            active: self.active,
            sealed: sealed.map(|coming| coming.version),
            seen: self.seen,
        }
    }

    fn clear(&mut self, version: u64) {
        if version > self.seen {
            self.seen = version;
            self.base = Rows::default();
            self.planes = [Rows::default(), Rows::default()];
            self.active = None;
            self.coming = None;
        }
    }

    fn load(&mut self, version: u64, side: Side, row: Row, first: u16, entries: &[u16]) -> bool {
        let is_known = self.coming.as_ref().is_some_and(|coming| coming.version == version);
        let is_in_use = self.active.is_some_and(|(own, used)| own >= version || used == side);
        if is_in_use || (!is_known && version < self.seen) {
            return false;
        }
        if !is_known {
            self.seen = version;
            self.planes[place(side)] = Rows::default();
            self.coming = Some(Coming { version, side, base: Rows::default(), sealed: None });
        }
        let ports = self.links.len();
        match &mut self.coming {
            Some(coming) if coming.side == side => match row {
                Row::BaseGlobal | Row::BaseLocal => coming.base.write(row, first, entries, ports),
                _ => self.planes[place(side)].write(row, first, entries, ports),
            },
            _ => false,
        }
    }

    fn activate(&mut self, version: u64) -> bool {
        let is_whole = |coming: &Coming| coming.version == version && coming.sealed.is_some();
        if !self.coming.as_ref().is_some_and(is_whole) {
            return self.version() == Some(version);
        }
        if let Some(Coming { version, side, base, sealed }) = self.coming.take() {
            self.base = base;
            self.base_vcs = sealed.unwrap_or(0);
            self.active = Some((version, side));
        }
        for link in self.links.iter_mut().filter(|link| **link == Link::Held) {
            *link = Link::Up;
        }
        true
    }
}
