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

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use weft_fabric::{
    Blocking, Endpoint, EndpointAddress, Event, Group, MessageHeader, NodeId, PATIENCE, Region,
    SendError, Side, Window,
};
use zerocopy::IntoBytes;

use crate::arrival::{Arrival, is_for_group, split};
use crate::assembly::PACKET_BYTES_MAX;
use crate::counters::Counters;
use crate::frame::Frame;
use crate::mac::MacAddress;
use crate::message::{Advert, CLASS_TAKEN, Hello, Message, MessageError, tag};
use crate::packet::{Delivery, HEAD_BYTES, Space};
use crate::peer::{Limits, Packet, PeerPort, Stop, fragments};
use crate::query;
use crate::reach::Reach;
use crate::segment::{Seat, Segment, fabric_group};
use crate::switch::{Departure, SharedSwitch};

/// How often expired entries are removed from the tables.
const AGE_EVERY: Duration = Duration::from_secs(1);

/// An event of the endpoint, kept until it is handled.
enum Input {
    Message { source: EndpointAddress, tag: u8, multicast: bool, bytes: [u8; 120], length: usize },
    Taken { source: EndpointAddress, taken: u64 },
    Down(EndpointAddress),
    Room,
}

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
    /// The kernel can read and write the memory of rings.
    is_memory: bool,
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
        let is_memory = endpoint.capabilities().window_is_memory;
        Self {
            endpoint,
            segment,
            own,
            switch,
            limits,
            peers: BTreeMap::new(),
            joined: 1 << Group::BROADCAST.number(),
            has_backlog: false,
            age_at: now + AGE_EVERY,
            announced: false,
            inputs: Vec::new(),
            packet: vec![0; PACKET_BYTES_MAX],
            guess: None,
            is_memory,
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

    /// Accepts a packet from the device. `read` reads it into the given space and returns its
    /// length.
    ///
    /// # Errors
    /// Those of `read`; no packet was read then.
    pub fn depart_by(
        &mut self,
        now: Duration,
        read: impl FnOnce(Space<'_, E::Region>) -> io::Result<usize>,
    ) -> io::Result<()> {
        let guess = self.guess.and_then(|node| Some((node, self.peers.get(&node)?.place()?)));
        let (node, length) = match guess {
            Some((node, (ring, place))) => {
                let space = Space::Ring {
                    head: &mut self.packet[..HEAD_BYTES],
                    region: ring.region(),
                    offset: place + HEAD_BYTES as u64,
                    length: (PACKET_BYTES_MAX - HEAD_BYTES) as u64,
                };
                (Some(node), read(space)?)
            }
            None => (None, read(Space::Bytes(&mut self.packet))?),
        };
        let mut packet = std::mem::take(&mut self.packet);
        match node {
            Some(node) if length > HEAD_BYTES => {
                self.depart_from_ring(node, &mut packet[..length], now);
            }
            _ => self.depart(&packet[..length], now),
        }
        self.packet = packet;
        Ok(())
    }

    /// Accepts a packet that was read before its destination was known. Its first bytes are in
    /// `packet`, the rest lies in the next slot of the ring for `node`.
    fn depart_from_ring(&mut self, node: NodeId, packet: &mut [u8], now: Duration) {
        if self.send_from_ring(node, packet, now).is_none() {
            self.counters.departed(packet.len(), false);
            self.counters.lost += 1;
        }
    }

    /// As [`Port::depart_from_ring`]. `None` if the slot is gone, and the packet with it.
    fn send_from_ring(&mut self, node: NodeId, packet: &mut [u8], now: Duration) -> Option<()> {
        let (head, rest) = packet.split_at_mut(HEAD_BYTES);
        let peer = self.peers.get_mut(&node)?;
        let (ring, place) = peer.place()?;
        let frame = split(head).map(|(_, frame)| frame).ok();
        let is_tcp = frame.is_some_and(|frame| frame.is_tcp());
        let goes_there = frame.is_some_and(|frame| {
            self.reach.has(node)
                && !frame.destination().is_group()
                && self.switch.lock().departs(&frame, now) == Ok(Departure::Node(node))
        });
        let advert = match goes_there && ring.region().write(place, head).is_ok() {
            true => ring.advert(head.len() + rest.len()),
            false => None,
        };
        if let Some(advert) = advert
            && peer.advertise(&mut self.endpoint, &advert, now).is_ok()
        {
            self.counters.departed(packet.len(), is_tcp);
            return Some(());
        }
        // The packet is for another node, or there is no room for the advert: copy it out of the
        // ring.
        let (ring, place) = peer.place()?;
        ring.region().read(place + HEAD_BYTES as u64, rest).ok()?;
        self.depart(packet, now);
        Some(())
    }

    /// Accepts a packet from the device.
    pub fn depart(&mut self, packet: &[u8], now: Duration) {
        let frame = split(packet).map(|(_, frame)| frame);
        let is_tcp = frame.as_ref().is_ok_and(Frame::is_tcp);
        self.counters.departed(packet.len(), is_tcp);
        let departure = frame.and_then(|frame| {
            let departs = self.switch.lock().departs(&frame, now);
            Ok((departs.map_err(|error| error.to_string())?, frame))
        });
        let (departure, frame) = match departure {
            Ok(departure) => departure,
            Err(error) => {
                self.counters.refused_here += 1;
                self.complaint =
                    Some(format!("a frame from this node's device was refused: {error}"));
                return;
            }
        };
        match departure {
            Departure::Nobody => self.counters.filtered += 1,
            Departure::Node(node) => match self.is_within(node) {
                true => self.send_to(node, packet, now),
                false => self.counters.unreachable += 1,
            },
            Departure::Some(nodes) => {
                let group = fabric_group(frame.destination(), frame.vlan(), self.own.queue);
                let reachable = nodes.into_iter().filter(|node| self.is_within(*node));
                let reachable: Vec<NodeId> = reachable.collect();
                self.send_to_several(group, &reachable, packet, now);
            }
            Departure::All => {
                let all: Vec<NodeId> =
                    self.peers.keys().copied().filter(|node| self.is_within(*node)).collect();
                self.send_to_several(Group::BROADCAST, &all, packet, now);
            }
        }
    }

    fn send_to(&mut self, node: NodeId, packet: &[u8], now: Duration) {
        let own = self.own_hello();
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let sent = if peer.queued() == 0 {
            peer.send(&mut self.endpoint, own, packet, self.limits, now)
        } else {
            Err(Stop::Full)
        };
        match sent {
            Ok(()) => {
                if packet.len() > self.limits.eager_bytes {
                    self.guess = self.is_memory.then_some(node);
                }
            }
            // The bytes already sent are not sent again: the backlog continues behind them.
            Err(Stop::Full) => {
                if !peer.push(Packet::from(packet), now, self.limits) {
                    self.counters.lost += 1;
                }
                self.has_backlog = true;
            }
            Err(Stop::Gone) => self.counters.lost += 1,
        }
    }

    fn send_to_several(&mut self, group: Group, nodes: &[NodeId], packet: &[u8], now: Duration) {
        if nodes.is_empty() {
            self.counters.filtered += 1;
            return;
        }
        // The packet must not overtake those in the backlog of one of the nodes.
        let has_backlog =
            nodes.iter().any(|node| self.peers.get(node).is_some_and(|p| p.queued() > 0));
        if packet.len() <= self.limits.eager_group_bytes && !has_backlog {
            let message_bytes = self.endpoint.capabilities().message_bytes_max;
            let sent = fragments(packet, &mut 0, message_bytes, |header, parts| {
                // The message reached no member although some node wants the group: the fabric's
                // membership is changing. Treat it as no room.
                match self.endpoint.send_multicast(group, header, parts)? {
                    0 => Err(SendError::WouldBlock),
                    _ => Ok(()),
                }
            });
            if sent.is_ok() {
                self.counters.multicast += 1;
                return;
            }
            // Some node has no room, so each node gets a copy of its own. Their assemblies discard
            // the fragments that did arrive.
        }
        for node in nodes {
            self.send_to(*node, packet, now);
        }
    }

    /// Handles up to `budget` events of the fabric (003 section 5.4.6.2), passes packets for the
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

    fn handle(&mut self, input: Input, now: Duration, deliver: Deliver<'_, E>) {
        match input {
            Input::Message { source, tag, multicast, bytes, length } => {
                let result = Message::parse(tag, &bytes[..length])
                    .and_then(|message| self.message(source, message, multicast, now, deliver));
                if let Err(error) = result {
                    self.complain(source, &error);
                }
            }
            Input::Taken { source, taken } => {
                let node = self.node_at(source);
                if let Some(peer) = node.and_then(|node| self.peers.get_mut(&node))
                    && let Err(error) = peer.taken(taken)
                {
                    self.complain(source, &error);
                }
            }
            Input::Down(address) => self.down(address),
            Input::Room => {
                for peer in self.peers.values_mut() {
                    peer.tell_taken(&mut self.endpoint);
                }
            }
        }
    }

    fn complain(&mut self, source: EndpointAddress, error: &dyn std::fmt::Display) {
        self.counters.refused_from_fabric += 1;
        self.complaint = Some(format!("the port at {source} sent {error}"));
    }

    fn message(
        &mut self,
        source: EndpointAddress,
        message: Message<'_>,
        multicast: bool,
        now: Duration,
        deliver: Deliver<'_, E>,
    ) -> Result<(), MessageError> {
        if let Message::Hello(named, queues) = message {
            return self.greeted(source, named, queues, now);
        }
        let node = match self.segment.seat_at(source) {
            Some(Seat { node, queue }) if queue == self.own.queue => node,
            // A multicast message reaches the ports of all queues.
            Some(_) if multicast => return Ok(()),
            _ => return Err(MessageError::NoPort),
        };
        // A port that was there before this one may send a message before its greeting.
        let Some(peer) = self.peers.get_mut(&node) else { return Ok(()) };
        let arrival = Arrival {
            switch: &self.switch,
            counters: &mut self.counters,
            complaint: &mut self.complaint,
            node,
            is_within: self.reach.has(node),
            now,
        };
        let assembly = if multicast { &mut peer.multicast } else { &mut peer.unicast };
        match message {
            Message::Hello(..) => {}
            Message::First(length, bytes) => {
                if let Some(packet) = assembly.first(length, bytes)? {
                    arrival.admit(packet, Delivery::Bytes(packet), deliver);
                }
            }
            // The multicast packet may have begun before this port joined the group.
            Message::More(bytes) => match assembly.more(bytes) {
                Ok(Some(packet)) => arrival.admit(packet, Delivery::Bytes(packet), deliver),
                Err(error) if !multicast => return Err(error),
                Ok(None) | Err(_) => {}
            },
            Message::Ring(described) => peer.ring(&mut self.endpoint, &described)?,
            Message::Advert(advert) => {
                let taken = take(peer, &advert, &mut self.packet, self.is_memory)?;
                let head = match &taken {
                    Delivery::Bytes(packet) => *packet,
                    Delivery::Ring { head, .. } => *head,
                };
                arrival.admit(head, taken, deliver);
                peer.tell_taken(&mut self.endpoint);
            }
        }
        Ok(())
    }

    /// The node at `address`, if its port serves the same queue as this one.
    fn node_at(&self, address: EndpointAddress) -> Option<NodeId> {
        let seat = self.segment.seat_at(address).filter(|seat| seat.queue == self.own.queue);
        seat.map(|seat| seat.node)
    }

    /// Handles the greeting of the port at `source`.
    fn greeted(
        &mut self,
        source: EndpointAddress,
        named: Seat,
        queues: u8,
        now: Duration,
    ) -> Result<(), MessageError> {
        if queues != self.segment.queues() {
            return Err(MessageError::Queues(queues, self.segment.queues()));
        }
        if self.segment.seat_at(source) != Some(named) || named == self.own {
            return Err(MessageError::Node(named.node.0));
        }
        if named.queue == self.own.queue {
            self.add_peer(source, named.node, now);
        }
        Ok(())
    }

    /// Adds a peer and greets it. The hosts here are queried again, so that it hears their reports.
    fn add_peer(&mut self, source: EndpointAddress, node: NodeId, now: Duration) {
        if self.peers.contains_key(&node) {
            return;
        }
        // The peer may be gone already.
        let Ok(handle) = self.endpoint.connect_within(source, PATIENCE) else { return };
        let own = self.own_hello();
        let mut peer = PeerPort::new(node, handle);
        if peer.flush(&mut self.endpoint, own, self.limits, now).is_err() {
            self.has_backlog = true;
        }
        self.peers.insert(node, peer);
        self.switch.lock().appeared(now);
    }

    fn down(&mut self, address: EndpointAddress) {
        let Some(node) = self.node_at(address) else { return };
        if let Some(peer) = self.peers.remove(&node) {
            self.counters.lost += peer.queued() as u64;
            if let Some(key) = peer.key() {
                // Fails only if the key is gone already.
                let _ = self.endpoint.revoke_within(key, PATIENCE);
            }
            self.switch.lock().lost(node);
        }
    }

    fn flush(&mut self, now: Duration) {
        let own = self.own_hello();
        self.has_backlog = false;
        for peer in self.peers.values_mut() {
            if peer.flush(&mut self.endpoint, own, self.limits, now).is_err() {
                self.has_backlog = true;
            }
        }
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
    }

    /// Joins and leaves fabric groups, so that they are those that the hosts here want.
    fn join(&mut self, now: Duration) {
        let wanted = self.switch.lock().joined(self.own.queue, now);
        let differ = wanted ^ self.joined;
        for number in (0..Group::BROADCAST.number()).filter(|number| differ >> number & 1 == 1) {
            let Some(group) = Group::new(number) else { continue };
            let changed = if wanted >> number & 1 == 1 {
                self.endpoint.join_within(group, PATIENCE)
            } else {
                self.endpoint.leave_within(group, PATIENCE)
            };
            // Fails while the broker is away. The next tick tries again.
            if changed.is_ok() {
                self.joined ^= 1 << number;
            }
        }
    }
}

/// Takes an advertised packet. Its first bytes are copied to `packet`, where no other process
/// writes. The rest stays in the ring if it need not be inspected.
fn take<'a, E: Endpoint>(
    peer: &'a mut PeerPort<E>,
    advert: &Advert,
    packet: &'a mut [u8],
    is_memory: bool,
) -> Result<Delivery<'a, E::Window>, MessageError> {
    let (window, place, length) = peer.take(advert)?;
    let head_bytes = length.min(HEAD_BYTES);
    let gone = |_| MessageError::Gone;
    window.load(place, &mut packet[..head_bytes]).map_err(gone)?;
    let offset = place + head_bytes as u64;
    if is_memory && length > head_bytes && !is_for_group(&packet[..head_bytes]) {
        let (head, length) = (&packet[..head_bytes], (length - head_bytes) as u64);
        return Ok(Delivery::Ring { head, window, offset, length });
    }
    window.load(offset, &mut packet[head_bytes..length]).map_err(gone)?;
    Ok(Delivery::Bytes(&packet[..length]))
}

/// Copies an event of the endpoint. `None` for events that a port ignores.
fn input(event: Event<'_>) -> Option<Input> {
    match event {
        Event::Message(message) => {
            let mut bytes = [0; 120];
            let length = message.payload.len();
            bytes.get_mut(..length)?.copy_from_slice(message.payload);
            let multicast = message.group.is_some();
            let (source, tag) = (message.source, message.header.tag);
            Some(Input::Message { source, tag, multicast, bytes, length })
        }
        Event::Notification(notification)
            if notification.side == Side::Completer && notification.class == CLASS_TAKEN =>
        {
            Some(Input::Taken { source: notification.source, taken: notification.immediate })
        }
        Event::PeerDown { address, .. } => Some(Input::Down(address)),
        Event::Room { .. } => Some(Input::Room),
        Event::Notification(_) | Event::Completion(_) => None,
    }
}

#[cfg(test)]
#[path = "port_tests.rs"]
mod tests;
