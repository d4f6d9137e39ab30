//! A node's port: it carries packets between the node's device and the messages and rings of the
//! fabric.
//!
//! The port owns its endpoint, but no thread, clock or device: its driver hands it the packets that
//! it reads, polls it, and writes the packets that it delivers. A packet is an offload header and a
//! frame, as the kernel reads and writes them.
//!
//! # Promises
//! - A packet that [`Port::depart`] accepted is sent once, and in order for each node, unless its
//!   node goes away or takes nothing for too long. [`Port::may_depart`] says when the port accepts
//!   no more.
//! - Every message of another node is checked. A wrong one is counted and described by
//!   [`Port::complaint`], and has no other effect.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use weft_fabric::{Endpoint, Group, MessageHeader, NodeId, Peer};
use zerocopy::IntoBytes;

use self::arrive::{Input, input};
use self::calls::Calls;
use self::peer::PeerPort;
use crate::assembly::PACKET_BYTES_MAX;
use crate::buffers::Buffers;
use crate::counters::Counters;
use crate::mac::MacAddress;
use crate::message::{Hello, tag};
use crate::packet::Delivery;
use crate::query;
use crate::reach::Reach;
use crate::segment::{Seat, Segment};
use crate::switch::SharedSwitch;
use crate::way::Way;

mod arrive;
mod calls;
mod depart;
mod limits;
mod peer;

pub use self::limits::Limits;
pub use self::peer::STALLS_AFTER;

/// How often expired entries are removed from the tables.
const AGE_EVERY: Duration = Duration::from_secs(1);

/// Receives packets for the device.
type Deliver<'a, E> = &'a mut dyn FnMut(Delivery<'_, <E as Endpoint>::Window>);

/// The port of one node, or of one queue of its device.
pub struct Port<E: Endpoint> {
    endpoint: E,
    segment: Segment,
    own: Seat,
    switch: SharedSwitch,
    limits: Limits,
    peers: BTreeMap<NodeId, PeerPort<E>>,
    /// Former lives of ports whose next life has greeted, until the report of their end comes.
    former: BTreeSet<Peer>,
    joined: u64,
    /// Some peer has a backlog.
    has_backlog: bool,
    age_at: Duration,
    announced: bool,
    inputs: Vec<Input>,
    /// The packet being handled, or its first bytes if the rest lies in a ring.
    packet: Vec<u8>,
    /// The destination of the last long packet. The next packet is read into the ring for that
    /// node.
    guess: Option<NodeId>,
    way: Way,
    calls: Calls<E::Region>,
    buffers: Buffers<E::Region>,
    /// The nodes with packets in their rings whose fetches have not begun, each once. They take
    /// turns.
    unfetched: VecDeque<NodeId>,
    reach: Reach,
    counters: Counters,
    complaint: Option<String>,
}

impl<E: Endpoint> Port<E> {
    /// The port at `endpoint`. The endpoint's address gives the node and queue that the port
    /// serves. `switch` is the one of that node.
    ///
    /// # Panics
    /// When `endpoint` has no address of a port of `segment`.
    #[must_use]
    pub fn new(
        endpoint: E,
        segment: Segment,
        switch: SharedSwitch,
        limits: Limits,
        now: Duration,
    ) -> Self {
        let own = segment.seat_at(endpoint.address()).expect("the endpoint is in the segment");
        let way = Way::over(endpoint.capabilities());
        Self {
            endpoint,
            segment,
            own,
            switch,
            limits,
            peers: BTreeMap::new(),
            former: BTreeSet::new(),
            joined: 1 << Group::BROADCAST.number(),
            has_backlog: false,
            age_at: now + AGE_EVERY,
            announced: false,
            inputs: Vec::new(),
            packet: vec![0; PACKET_BYTES_MAX],
            guess: None,
            way,
            calls: Calls::default(),
            buffers: Buffers::new(limits.fetches, limits.fetches_each),
            unfetched: VecDeque::new(),
            reach: Reach::ALL,
            counters: Counters::default(),
            complaint: None,
        }
    }

    /// The traffic so far.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The switch of its node.
    pub const fn switch(&self) -> &SharedSwitch {
        &self.switch
    }

    /// The nodes with a port: for each the packets that wait for it, and whether it has a ring.
    pub fn peers(&self) -> impl Iterator<Item = (NodeId, u64, bool)> {
        self.peers
            .values()
            .map(|peer| (peer.node, peer.queued() as u64 + peer.in_ring(), peer.is_active()))
    }

    /// The port's endpoint, for its driver to sleep on.
    pub const fn endpoint(&mut self) -> &mut E {
        &mut self.endpoint
    }

    /// The packets from other nodes that wait to be fetched, or for those before them.
    pub fn arriving(&self) -> usize {
        self.peers.values().map(PeerPort::arriving).sum()
    }

    /// Calls of the endpoint that have not ended, and buffers for packets: those in use, and all.
    pub fn in_use(&self) -> (usize, usize, usize) {
        (self.calls.pending(), self.buffers.in_use(), self.buffers.count())
    }

    /// Takes the description of the last wrong frame or message, if there was one since the last
    /// call.
    pub fn complaint(&mut self) -> Option<String> {
        self.complaint.take()
    }

    /// False when the device must not be read: too many packets wait for some peer, or the next one
    /// would.
    pub fn may_depart(&self, now: Duration) -> bool {
        let guessed = self.guess.and_then(|node| self.peers.get(&node));
        guessed.is_none_or(|peer| !peer.is_short_of_slots(now))
            && (!self.has_backlog
                || self.peers.values().all(|peer| !peer.is_full(now, self.limits)))
    }

    /// Restricts the port to the nodes in `reach`: links were cut or mended. Packets to other nodes
    /// that wait are lost, as on a cut link, and packets from them are no longer accepted.
    pub fn set_reach(&mut self, reach: Reach, now: Duration) {
        let mut has_gained = false;
        for (node, peer) in &mut self.peers {
            if !reach.has(*node) {
                self.counters.lost += peer.forget_queue() as u64;
            } else if !self.reach.has(*node) {
                has_gained = true;
            }
        }
        self.reach = reach;
        if has_gained {
            // The reports of hosts behind the regained nodes were missed meanwhile.
            self.switch.lock().appeared(now);
        }
    }

    /// Whether `node` has a port and is within reach.
    fn is_within(&self, node: NodeId) -> bool {
        self.reach.has(node) && self.peers.contains_key(&node)
    }

    /// Handles up to `budget` events of the fabric (EXTOLL-THESIS#5.4.6.2), passes packets for the
    /// device to `deliver`, and sends backlogs. Returns the number of events.
    pub fn poll(&mut self, budget: usize, now: Duration, deliver: Deliver<'_, E>) -> usize {
        if !self.announced {
            self.announce();
        }
        let mut inputs = std::mem::take(&mut self.inputs);
        let count = self.endpoint.poll(budget, &mut |event| inputs.extend(input(event)));
        for input in inputs.drain(..) {
            self.handle(input, now, deliver);
        }
        self.inputs = inputs;
        if !self.unfetched.is_empty() {
            self.fetch(now, deliver);
        }
        if self.has_backlog {
            self.flush(now);
        }
        count
    }

    fn own_hello(&self) -> Hello {
        Hello::new(self.own, self.segment.queues())
    }

    /// Greets all ports that are there. A port that comes later greets this one.
    fn announce(&mut self) {
        let hello = self.own_hello();
        let header = MessageHeader::tag(tag::HELLO);
        let sent = self.endpoint.send_multicast(Group::BROADCAST, header, &[hello.as_bytes()]);
        self.announced = sent.is_ok();
    }

    /// Does the work that depends on time: queries the hosts behind the device, removes expired
    /// entries, joins and leaves fabric groups. Call it about once a second.
    pub fn tick(&mut self, now: Duration, deliver: Deliver<'_, E>) {
        if self.switch.lock().asks(now)
            && let Some(own) = MacAddress::of_node(self.own.node)
        {
            for query in query::all(own) {
                self.counters.delivered(query.len());
                deliver(Delivery::Bytes(&query));
            }
        }
        if now >= self.age_at {
            self.age_at = now + AGE_EVERY;
            self.switch.lock().age(now);
        }
        self.join(now);
        for peer in self.peers.values_mut() {
            // A ring that could not be opened before was counted then.
            let _ = peer.open_ring(&mut self.endpoint, &mut self.calls);
        }
        // A node may have come, and another be mended, while it was out of reach. On one host every
        // port hears the greeting of a new one.
        if matches!(self.segment, Segment::Fabric { .. }) {
            self.announce();
        }
    }

    /// Joins and leaves fabric groups, so that they are those that the hosts here want.
    fn join(&mut self, now: Duration) {
        let wanted = self.switch.lock().joined(self.own.queue, now);
        let differ = wanted ^ self.joined;
        for number in (0..Group::BROADCAST.number()).filter(|number| differ >> number & 1 == 1) {
            let Some(group) = Group::new(number) else { continue };
            let join = wanted >> number & 1 == 1;
            // Fails while the broker is away. The next tick tries again.
            if self.calls.change_group(&mut self.endpoint, group, join) {
                self.joined ^= 1 << number;
            }
        }
    }
}

#[cfg(test)]
mod tests;
