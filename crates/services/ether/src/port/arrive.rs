//! Arrivals from other nodes: greetings, packets for the device, rings and their reports.

use std::time::Duration;

use weft_fabric::{
    Completion, Endpoint, EndpointAddress, Event, NodeId, OperationError, Peer, Region, Side,
    Value, Window,
};

use super::calls::{Call, Fetch, For};
use super::peer::{Incoming, PeerPort};
use super::{Deliver, Port};
use crate::arrival::{Arrival, is_for_group};
use crate::inbox::Ready;
use crate::message::{BYTES_MAX, CLASS_TAKEN, Message, MessageError};
use crate::packet::{Delivery, HEAD_BYTES};
use crate::ring::PacketSpan;
use crate::segment::Seat;

/// An event of the endpoint, kept until it is handled.
pub(super) enum Input {
    Message {
        from: Source,
        tag: u8,
        multicast: bool,
        bytes: [u8; BYTES_MAX],
        length: usize,
    },
    /// A message of more bytes than any port sends.
    TooLong {
        from: Source,
        error: MessageError,
    },
    Taken {
        from: Source,
        taken: u64,
    },
    Ended(Completion),
    Down(Source),
    Room,
}

/// The sender of a message: one life of the endpoint at an address.
#[derive(Clone, Copy)]
pub(super) struct Source {
    peer: Peer,
    address: EndpointAddress,
}

impl<E: Endpoint> Port<E> {
    pub(super) fn handle(&mut self, input: Input, now: Duration, deliver: Deliver<'_, E>) {
        match input {
            Input::Message { from, tag, multicast, bytes, length } => {
                let result = Message::parse(tag, &bytes[..length])
                    .and_then(|message| self.message(from, message, multicast, now, deliver));
                if let Err(error) = result {
                    self.complain(from.address, &error);
                }
            }
            Input::TooLong { from, error } => self.complain(from.address, &error),
            Input::Taken { from, taken } => {
                let node = self.node_at(from.address);
                if let Some(peer) = node.and_then(|node| self.living((node, from.peer)))
                    && let Err(error) = peer.taken(taken)
                {
                    self.complain(from.address, &error);
                }
            }
            Input::Ended(Completion { context, result }) => {
                if let Some(call) = self.calls.end(context) {
                    self.ended(context, call, result, now, deliver);
                }
            }
            Input::Down(from) => {
                self.former.remove(&from.peer);
                if let Some(node) = self.node_at(from.address)
                    && self.living((node, from.peer)).is_some()
                {
                    self.lose(node);
                }
            }
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

    /// The port of a node, if its life is the one that is meant.
    fn living(&mut self, (node, handle): For) -> Option<&mut PeerPort<E>> {
        self.peers.get_mut(&node).filter(|peer| peer.handle == handle)
    }

    fn message(
        &mut self,
        from: Source,
        message: Message<'_>,
        multicast: bool,
        now: Duration,
        deliver: Deliver<'_, E>,
    ) -> Result<(), MessageError> {
        if let Message::Hello(named, queues) = message {
            return self.greeted(from, named, queues, now);
        }
        let node = match self.segment.seat_at(from.address) {
            Some(Seat { node, queue }) if queue == self.own.queue => node,
            // A multicast message reaches the ports of all queues.
            Some(_) if multicast => return Ok(()),
            _ => return Err(MessageError::NoPort),
        };
        // A port that was there before this one may send a message before its greeting, and what a
        // former life of a port sent may come late.
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.handle == from.peer) else {
            return Ok(());
        };
        let arrival = Arrival {
            switch: &self.switch,
            counters: &mut self.counters,
            complaint: &mut self.complaint,
            node,
            is_within: self.reach.has(node),
            now,
        };
        let assembly = if multicast { &mut peer.multicast } else { &mut peer.unicast };
        let packet = match message {
            Message::Hello(..) => None,
            Message::First(length, bytes) => assembly.first(length, bytes)?,
            // The multicast packet may have begun before this port joined the group.
            Message::More(bytes) => match assembly.more(bytes) {
                Err(error) if !multicast => return Err(error),
                more => more.unwrap_or(None),
            },
            Message::Ring(described) => {
                peer.ring(&described)?;
                peer.open_ring(&mut self.endpoint, &mut self.calls)?;
                None
            }
            Message::Advert(advert) => match &mut peer.incoming {
                Incoming::Mapped { ring, window } => {
                    let place = ring.next(&advert)?;
                    ring.took();
                    let (head, packet) = take(window, place, &mut self.packet)?;
                    arrival.admit(head, packet, deliver);
                    peer.tell_taken(&mut self.endpoint);
                    return Ok(());
                }
                Incoming::Fetched { ring, inbox } => {
                    if inbox.advertised(ring.next(&advert)?) {
                        self.unfetched.push_back(node);
                    }
                    None
                }
                Incoming::None | Incoming::Opening { .. } => {
                    let (number, length) = (advert.number.get(), advert.length.get());
                    return Err(MessageError::Advert { number, due: 0, length });
                }
            },
        };
        match (packet, &mut peer.incoming) {
            (None, _) => {}
            (Some(packet), Incoming::Fetched { inbox, .. }) if !inbox.is_empty() => {
                inbox.push(packet)?;
            }
            (Some(packet), _) => arrival.admit(packet, Delivery::Bytes(packet), deliver),
        }
        Ok(())
    }

    /// Begins fetches, as many as there are buffers for. The nodes take turns.
    pub(super) fn fetch(&mut self, now: Duration, deliver: Deliver<'_, E>) {
        let mut without_room = 0;
        while without_room < self.unfetched.len()
            && let Some(node) = self.unfetched.pop_front()
        {
            match self.fetch_one(node) {
                Some(true) => without_room = 0,
                Some(false) => without_room += 1,
                None => continue,
            }
            self.hand_out(node, now, deliver);
            if let Some(peer) = self.peers.get(&node)
                && let Incoming::Fetched { inbox, .. } = &peer.incoming
                && inbox.next().is_some()
            {
                self.unfetched.push_back(node);
            }
        }
    }

    /// Begins to fetch the next packet of a node. False without room for it; `None` if there is no
    /// such packet.
    fn fetch_one(&mut self, node: NodeId) -> Option<bool> {
        let peer = self.peers.get_mut(&node)?;
        let Incoming::Fetched { ring, inbox } = &mut peer.incoming else { return None };
        let place = inbox.next()?;
        let make = || self.endpoint.register(u64::from(crate::ring::SLOT_BYTES)).ok();
        let Some(buffer) = self.buffers.take(peer.handle, make) else { return Some(false) };
        let of = (node, peer.handle);
        match self.calls.fetch(&mut self.endpoint, of, ring.key(), place, buffer) {
            Fetch::Began(call) => inbox.began(call),
            Fetch::Done(buffer) => inbox.done(Some(buffer)),
            Fetch::Full(buffer) => {
                self.buffers.give_back(peer.handle, buffer);
                return Some(false);
            }
            Fetch::Failed(buffer, error) => {
                inbox.done(None);
                self.buffers.give_back(peer.handle, buffer);
                self.fetch_failed(of, &error);
            }
        }
        Some(true)
    }

    /// Counts a packet that could not be fetched.
    fn fetch_failed(&mut self, (node, _): For, error: &OperationError) {
        if *error == OperationError::PeerDown {
            self.counters.lost += 1;
        } else {
            self.complain_of(node, &MessageError::Gone);
        }
    }

    fn complain_of(&mut self, node: NodeId, error: &MessageError) {
        self.counters.refused_from_fabric += 1;
        self.complaint = Some(format!("node {} sent {error}", node.0));
    }

    /// Hands out the packets of a node whose turn it is.
    fn hand_out(&mut self, node: NodeId, now: Duration, deliver: Deliver<'_, E>) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let Incoming::Fetched { ring, inbox } = &mut peer.incoming else { return };
        while let Some(ready) = inbox.pop() {
            let packet: &[u8] = match &ready {
                Ready::Short(packet) => packet,
                Ready::Lost => {
                    ring.took();
                    continue;
                }
                Ready::Long(buffer, length) => {
                    ring.took();
                    let packet = &mut self.packet[..*length];
                    buffer.read(0, packet).expect("a buffer holds any packet");
                    packet
                }
            };
            let arrival = Arrival {
                switch: &self.switch,
                counters: &mut self.counters,
                complaint: &mut self.complaint,
                node,
                is_within: self.reach.has(node),
                now,
            };
            arrival.admit(packet, Delivery::Bytes(packet), deliver);
            if let Ready::Long(buffer, _) = ready {
                self.buffers.give_back(peer.handle, buffer);
            }
        }
        peer.tell_taken(&mut self.endpoint);
    }

    /// A call of the endpoint has ended.
    fn ended(
        &mut self,
        number: u64,
        call: Call<E::Region>,
        result: Result<Value, OperationError>,
        now: Duration,
        deliver: Deliver<'_, E>,
    ) {
        match call {
            Call::Grant(of, region) => {
                let key = result.ok().and_then(Value::key);
                let slots = self.limits.slots;
                match (self.living(of), key) {
                    (Some(peer), key) => peer.granted(key.map(|key| (region, key)), slots),
                    (None, Some(key)) => self.calls.revoke(&mut self.endpoint, key),
                    (None, None) => {}
                }
            }
            Call::Resolve(of) => {
                let Some(peer) = self.peers.get_mut(&of.0).filter(|peer| peer.handle == of.1)
                else {
                    return;
                };
                if let Err(error) = peer.resolved(&mut self.endpoint, result.map(drop)) {
                    self.complain_of(of.0, &error);
                }
            }
            Call::Fetch(of, buffer) => {
                let is_fetched = result.is_ok();
                if let Err(error) = result {
                    self.fetch_failed(of, &error);
                }
                let inbox = self.living(of).and_then(|peer| match &mut peer.incoming {
                    Incoming::Fetched { inbox, .. } => Some(inbox),
                    _ => None,
                });
                match inbox {
                    Some(inbox) if is_fetched => inbox.ended(number, Some(buffer)),
                    inbox => {
                        if let Some(inbox) = inbox {
                            inbox.ended(number, None);
                        }
                        self.buffers.give_back(of.1, buffer);
                    }
                }
                self.hand_out(of.0, now, deliver);
            }
            Call::Group(group) => {
                if result.is_ok() {
                    self.joined ^= 1 << group.number();
                }
            }
            Call::Revoke => {}
        }
    }

    /// The node at `address`, if its port serves the same queue as this one.
    fn node_at(&self, address: EndpointAddress) -> Option<NodeId> {
        let seat = self.segment.seat_at(address).filter(|seat| seat.queue == self.own.queue);
        seat.map(|seat| seat.node)
    }

    /// Handles the greeting of a port.
    fn greeted(
        &mut self,
        from: Source,
        named: Seat,
        queues: u8,
        now: Duration,
    ) -> Result<(), MessageError> {
        if queues != self.segment.queues() {
            return Err(MessageError::Queues(queues, self.segment.queues()));
        }
        if self.segment.seat_at(from.address) != Some(named) || named == self.own {
            return Err(MessageError::Node(named.node.0));
        }
        if named.queue == self.own.queue {
            self.add_peer(from.peer, named.node, now);
        }
        Ok(())
    }

    /// Adds a peer and greets it. The hosts here are queried again, so that it hears their reports.
    fn add_peer(&mut self, handle: Peer, node: NodeId, now: Duration) {
        match self.peers.get(&node) {
            _ if self.former.contains(&handle) => return,
            Some(peer) if peer.handle == handle => return,
            Some(peer) => {
                let former = peer.handle;
                self.lose(node);
                self.former.insert(former);
                // Usually the report of its end comes later. If it was this greeting that came late
                // and the other life goes on, it has to forget this port, too: then the two meet
                // again.
                let _ = self.endpoint.disconnect(former);
            }
            None => {}
        }
        let own = self.own_hello();
        let mut peer = PeerPort::new(node, handle, self.way);
        if peer.flush(&mut self.endpoint, &mut self.calls, own, self.limits, now).is_err() {
            self.has_backlog = true;
        }
        self.peers.insert(node, peer);
        self.switch.lock().appeared(now);
    }

    /// Forgets a port whose life has ended.
    fn lose(&mut self, node: NodeId) {
        let Some(peer) = self.peers.remove(&node) else { return };
        self.counters.lost += (peer.queued() + peer.arriving()) as u64;
        if let Some(key) = peer.key() {
            self.calls.revoke(&mut self.endpoint, key);
        }
        if let Incoming::Fetched { inbox, .. } = peer.incoming {
            for buffer in inbox.into_buffers() {
                self.buffers.give_back(peer.handle, buffer);
            }
        }
        self.unfetched.retain(|other| *other != node);
        self.switch.lock().lost(node);
    }
}

/// Takes a packet out of a ring that is memory here. Returns its first bytes, which are copied to
/// `packet`, where no other process writes, and the packet: the rest stays in the ring if it need
/// not be inspected.
fn take<'a, W: Window>(
    window: &'a W,
    place: PacketSpan,
    packet: &'a mut [u8],
) -> Result<(&'a [u8], Delivery<'a, W>), MessageError> {
    let PacketSpan { offset, length } = place;
    let head_bytes = length.min(HEAD_BYTES);
    let gone = |_| MessageError::Gone;
    window.load(offset, &mut packet[..head_bytes]).map_err(gone)?;
    let offset = offset + head_bytes as u64;
    if length > head_bytes && !is_for_group(&packet[..head_bytes]) {
        let (head, length) = (&packet[..head_bytes], (length - head_bytes) as u64);
        return Ok((head, Delivery::Ring { head, window, offset, length }));
    }
    window.load(offset, &mut packet[head_bytes..length]).map_err(gone)?;
    Ok((&packet[..length], Delivery::Bytes(&packet[..length])))
}

/// Copies an event of the endpoint. `None` for events that a port ignores.
pub(super) fn input(event: Event<'_>) -> Option<Input> {
    match event {
        Event::Message(message) => {
            let mut bytes = [0; BYTES_MAX];
            let (tag, length) = (message.header.tag, message.payload.len());
            let multicast = message.group.is_some();
            let from = Source { peer: message.peer, address: message.source };
            let Some(place) = bytes.get_mut(..length) else {
                let error = MessageError::Length { tag, bytes: length };
                return Some(Input::TooLong { from, error });
            };
            place.copy_from_slice(message.payload);
            Some(Input::Message { from, tag, multicast, bytes, length })
        }
        Event::Notification(notification)
            if notification.side == Side::Completer && notification.class == CLASS_TAKEN =>
        {
            let from = Source { peer: notification.peer, address: notification.source };
            Some(Input::Taken { from, taken: notification.immediate })
        }
        Event::Completion(completion) => Some(Input::Ended(completion)),
        Event::PeerDown { peer, address, .. } => Some(Input::Down(Source { peer, address })),
        Event::Room { .. } | Event::GroupRoom { .. } => Some(Input::Room),
        Event::Notification(_) => None,
    }
}
