//! A node's port: packets of its device in, messages and rings of the fabric out, and back.
//!
//! The port owns its endpoint and no thread, clock or device: its driver hands it packets as it
//! reads them, polls it, and writes what it delivers. A packet is the header of offloads and a
//! frame, as the kernel gives and takes them.
//!
//! # Promises
//! - What [`Port::depart`] took is sent, once and in order for each node, or its node is gone.
//!   When it must take no more, [`Port::may_depart`] says so.
//! - What another node says is checked before it is believed; what is wrong is counted and named
//!   by [`Port::complaint`], and nothing else happens.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use weft_fabric::{
    Endpoint, EndpointAddress, Event, Group, MessageHeader, NodeId, Region, SendError, Side, Window,
};
use zerocopy::IntoBytes;

use crate::arrival::{Arrival, is_for_group, split};
use crate::assembly::PACKET_BYTES_MAX;
use crate::counters::Counters;
use crate::frame::Frame;
use crate::message::{Advert, CLASS_TAKEN, Hello, Message, MessageError, tag};
use crate::packet::{Delivery, HEAD_BYTES, Space};
use crate::peer::{Limits, Packet, PeerPort, Stop, fragments};
use crate::query;
use crate::reach::Reach;
use crate::segment::{Seat, Segment, fabric_group};
use crate::switch::{Departure, SharedSwitch};

/// How often tables are gone through for what is over.
const AGE_EVERY: Duration = Duration::from_secs(1);

/// A row of bytes from the fabric, until it is looked at.
enum Input {
    Message { source: EndpointAddress, tag: u8, grouped: bool, bytes: [u8; 120], length: usize },
    Taken { source: EndpointAddress, taken: u64 },
    Down(EndpointAddress),
    Room,
}

/// Takes packets for the device.
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
    /// Some queue is not empty.
    waits: bool,
    age_at: Duration,
    announced: bool,
    inputs: Vec<Input>,
    /// A packet that is looked at, or the first bytes of one that lies in a ring.
    packet: Vec<u8>,
    /// To whom the last long packet went: the next one is read into the ring for that node.
    guess: Option<NodeId>,
    /// Rings are memory that the kernel can fill and empty.
    is_memory: bool,
    reach: Reach,
    counters: Counters,
    complaint: Option<String>,
}

impl<E: Endpoint> Port<E> {
    /// The port at `endpoint`, whose place in `segment` says whose it is, with the switch of its
    /// node.
    ///
    /// # Panics
    /// When no port of the segment can be there.
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
            waits: false,
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

    /// What it has done.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The switch of its node.
    pub const fn switch(&self) -> &SharedSwitch {
        &self.switch
    }

    /// The nodes that are there, each with the packets that wait for it, and whether it has a ring.
    pub fn peers(&self) -> impl Iterator<Item = (NodeId, u64, bool)> {
        self.peers
            .values()
            .map(|peer| (peer.node, peer.queued() as u64 + peer.in_ring(), peer.is_active()))
    }

    /// Its endpoint, to sleep on.
    pub const fn endpoint(&mut self) -> &mut E {
        &mut self.endpoint
    }

    /// What was wrong last, since this was last asked.
    pub fn complaint(&mut self) -> Option<String> {
        self.complaint.take()
    }

    /// False when the device must not be read: too much waits, or would.
    pub fn may_depart(&self, now: Duration) -> bool {
        let guessed = self.guess.and_then(|node| self.peers.get(&node));
        guessed.is_none_or(|peer| !peer.is_short_of_places(now))
            && (!self.waits || self.peers.values().all(|peer| !peer.is_full(now, self.limits)))
    }

    /// From now on only the nodes in `reach` get packets, or have theirs taken: links were cut, or
    /// mended. What was sent before and not taken yet is lost, as it is on a link.
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
            // What hosts reported meanwhile did not come.
            self.switch.lock().appeared(now);
        }
    }

    /// Whether `node` is there, and can be reached.
    fn is_within(&self, node: NodeId) -> bool {
        self.reach.has(node) && self.peers.contains_key(&node)
    }

    /// Takes a packet of the device, which `read` puts where it is told, and returns the length of.
    ///
    /// # Errors
    /// Those of `read`; there is no packet then.
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

    /// `packet` was read before it was known where it goes: its first bytes are there, what follows
    /// lies in the next place of the ring for `node`.
    fn depart_from_ring(&mut self, node: NodeId, packet: &mut [u8], now: Duration) {
        let (head, rest) = packet.split_at_mut(HEAD_BYTES);
        // It was there when the packet was read.
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let Some((ring, place)) = peer.place() else { return };
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
            return;
        }
        // It was guessed wrong, or there is no room for the message.
        let place = peer.place().map(|(ring, place)| (ring.region(), place + HEAD_BYTES as u64));
        if place.is_some_and(|(region, at)| region.read(at, rest).is_ok()) {
            self.depart(packet, now);
        }
    }

    /// Takes a packet of the device.
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
            Err(wrong) => {
                self.counters.refused_here += 1;
                self.complaint = Some(format!("a frame of this node's device is refused: {wrong}"));
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
                let there = nodes.into_iter().filter(|node| self.is_within(*node));
                let there: Vec<NodeId> = there.collect();
                self.send_to_several(group, &there, packet, now);
            }
            Departure::All => {
                let all: Vec<NodeId> =
                    self.peers.keys().copied().filter(|node| self.is_within(*node)).collect();
                self.send_to_several(Group::BROADCAST, &all, packet, now);
            }
        }
    }

    fn send_to(&mut self, node: NodeId, packet: &[u8], now: Duration) {
        let own = self.hello_of_own();
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
            // What was sent of it goes on from there.
            Err(Stop::Full) => {
                if !peer.push(Packet::from(packet), now, self.limits) {
                    self.counters.lost += 1;
                }
                self.waits = true;
            }
            Err(Stop::Gone) => self.counters.lost += 1,
        }
    }

    fn send_to_several(&mut self, group: Group, nodes: &[NodeId], packet: &[u8], now: Duration) {
        if nodes.is_empty() {
            self.counters.filtered += 1;
            return;
        }
        // What waits for one of them must not be overtaken.
        let waits = nodes.iter().any(|node| self.peers.get(node).is_some_and(|p| p.queued() > 0));
        if packet.len() <= self.limits.eager_group_bytes && !waits {
            let message_bytes = self.endpoint.capabilities().message_bytes_max;
            let sent = fragments(packet, &mut 0, message_bytes, |header, parts| {
                // Nobody, though somebody wants it: who is in the group is not known at the moment.
                match self.endpoint.send_multicast(group, header, parts)? {
                    0 => Err(SendError::WouldBlock),
                    _ => Ok(()),
                }
            });
            if sent.is_ok() {
                self.counters.multicast += 1;
                return;
            }
            // Somebody has no room: each gets it alone, and gives up what it has of it.
        }
        for node in nodes {
            self.send_to(*node, packet, now);
        }
    }

    /// Looks at up to `budget` events of the fabric (003 section 5.4.6.2), hands packets for the
    /// device to `deliver`, and sends what waits. Returns how many events there were.
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
        if self.waits {
            self.flush(now);
        }
        count
    }

    fn hello_of_own(&self) -> Hello {
        Hello::new(self.own, self.segment.queues())
    }

    /// Tells all that are there; whoever comes later tells this one.
    fn announce(&mut self) {
        let hello = self.hello_of_own();
        let header = MessageHeader::tag(tag::HELLO);
        let told = self.endpoint.send_multicast(Group::BROADCAST, header, &[hello.as_bytes()]);
        self.announced = told.is_ok();
    }

    fn handle(&mut self, input: Input, now: Duration, deliver: Deliver<'_, E>) {
        match input {
            Input::Message { source, tag, grouped, bytes, length } => {
                let heard = Message::parse(tag, &bytes[..length])
                    .and_then(|message| self.message(source, message, grouped, now, deliver));
                if let Err(wrong) = heard {
                    self.complain(source, &wrong);
                }
            }
            Input::Taken { source, taken } => {
                let node = self.node_at(source);
                if let Some(peer) = node.and_then(|node| self.peers.get_mut(&node))
                    && let Err(wrong) = peer.taken(taken)
                {
                    self.complain(source, &wrong);
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

    fn complain(&mut self, source: EndpointAddress, wrong: &dyn std::fmt::Display) {
        self.counters.refused_from_fabric += 1;
        self.complaint = Some(format!("the port at {source} sent {wrong}"));
    }

    fn message(
        &mut self,
        source: EndpointAddress,
        message: Message<'_>,
        grouped: bool,
        now: Duration,
        deliver: Deliver<'_, E>,
    ) -> Result<(), MessageError> {
        if let Message::Hello(named, queues) = message {
            return self.greeted_by(source, named, queues, now);
        }
        let node = match self.segment.seat_at(source) {
            Some(Seat { node, queue }) if queue == self.own.queue => node,
            // What is said to a group reaches the ports of all queues.
            Some(_) if grouped => return Ok(()),
            _ => return Err(MessageError::NoPort),
        };
        // Whoever speaks without a greeting began before this port did; its greeting comes.
        let Some(peer) = self.peers.get_mut(&node) else { return Ok(()) };
        let arrival = Arrival {
            switch: &self.switch,
            counters: &mut self.counters,
            complaint: &mut self.complaint,
            node,
            is_within: self.reach.has(node),
            now,
        };
        let assembly = if grouped { &mut peer.grouped } else { &mut peer.alone };
        match message {
            Message::Hello(..) => {}
            Message::First(length, bytes) => {
                if let Some(packet) = assembly.first(length, bytes)? {
                    arrival.of(packet, Delivery::Bytes(packet), deliver);
                }
            }
            // A group's packet may have begun before this port was in the group.
            Message::More(bytes) => match assembly.more(bytes) {
                Ok(Some(packet)) => arrival.of(packet, Delivery::Bytes(packet), deliver),
                Err(wrong) if !grouped => return Err(wrong),
                Ok(None) | Err(_) => {}
            },
            Message::Ring(described) => peer.ring(&mut self.endpoint, &described)?,
            Message::Advert(advert) => {
                let taken = take(peer, &advert, &mut self.packet, self.is_memory)?;
                let looked = match &taken {
                    Delivery::Bytes(packet) => *packet,
                    Delivery::Ring { head, .. } => *head,
                };
                arrival.of(looked, taken, deliver);
                peer.tell_taken(&mut self.endpoint);
            }
        }
        Ok(())
    }

    /// The node whose port at `address` is of the same queue as this one.
    fn node_at(&self, address: EndpointAddress) -> Option<NodeId> {
        let seat = self.segment.seat_at(address).filter(|seat| seat.queue == self.own.queue);
        seat.map(|seat| seat.node)
    }

    /// A port at `source` says which it is.
    fn greeted_by(
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
            self.meet(source, named.node, now);
        }
        Ok(())
    }

    /// A port is there: it is told of this one, and gets what hosts here want said again.
    fn meet(&mut self, source: EndpointAddress, node: NodeId, now: Duration) {
        if self.peers.contains_key(&node) {
            return;
        }
        // One that is gone already is no mistake.
        let Ok(handle) = self.endpoint.connect(source) else { return };
        let own = self.hello_of_own();
        let mut peer = PeerPort::new(node, handle);
        if peer.flush(&mut self.endpoint, own, self.limits, now).is_err() {
            self.waits = true;
        }
        self.peers.insert(node, peer);
        self.switch.lock().appeared(now);
    }

    fn down(&mut self, address: EndpointAddress) {
        let Some(node) = self.node_at(address) else { return };
        if let Some(peer) = self.peers.remove(&node) {
            self.counters.lost += peer.queued() as u64;
            if let Some(key) = peer.key() {
                // Nobody is left to use it.
                let _ = self.endpoint.revoke(key);
            }
            self.switch.lock().lost(node);
        }
    }

    fn flush(&mut self, now: Duration) {
        let own = self.hello_of_own();
        self.waits = false;
        for peer in self.peers.values_mut() {
            if peer.flush(&mut self.endpoint, own, self.limits, now).is_err() {
                self.waits = true;
            }
        }
    }

    /// Does what is due by the clock: asks the hosts behind the device what they want, forgets what
    /// is over, joins and leaves groups of the fabric. To be called about once a second.
    pub fn tick(&mut self, now: Duration, deliver: Deliver<'_, E>) {
        if self.switch.lock().asks(now) {
            for query in query::all(self.own.node) {
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

    /// Is in the groups of the fabric that its hosts want.
    fn join(&mut self, now: Duration) {
        let wanted = self.switch.lock().joined(self.own.queue, now);
        let differ = wanted ^ self.joined;
        for number in (0..Group::BROADCAST.number()).filter(|number| differ >> number & 1 == 1) {
            let Some(group) = Group::new(number) else { continue };
            let changed = if wanted >> number & 1 == 1 {
                self.endpoint.join(group)
            } else {
                self.endpoint.leave(group)
            };
            // Where the broker is away the next tick tries again.
            if changed.is_ok() {
                self.joined ^= 1 << number;
            }
        }
    }
}

/// Takes an advertised packet. Its first bytes are copied to `packet`, where nobody else writes;
/// what follows stays in the ring where that need not be looked at.
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

/// Keeps what an event says.
fn input(event: Event<'_>) -> Option<Input> {
    match event {
        Event::Message(message) => {
            let mut bytes = [0; 120];
            let length = message.payload.len();
            bytes.get_mut(..length)?.copy_from_slice(message.payload);
            let grouped = message.group.is_some();
            let (source, tag) = (message.source, message.header.tag);
            Some(Input::Message { source, tag, grouped, bytes, length })
        }
        Event::Notification(told) if told.side == Side::Completer && told.class == CLASS_TAKEN => {
            Some(Input::Taken { source: told.peer, taken: told.immediate })
        }
        Event::PeerDown { address } => Some(Input::Down(address)),
        Event::Room { .. } => Some(Input::Room),
        Event::Notification(_) | Event::Completion(_) => None,
    }
}
