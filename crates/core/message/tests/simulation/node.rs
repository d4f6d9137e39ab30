//! One node: its messages, its peers, its pending decisions.

use std::collections::{BTreeMap, BTreeSet};

use weft_fabric::{
    Blocking, Endpoint, EndpointAddress, EndpointOptions, Event as FabricEvent, Issued, NodeId,
    PATIENCE, Peer, Region, Transport, Vpid,
};
use weft_message::{Body, Event, MessageError, Messages, Options, SendError, Share, Ticket};
use weft_transport_sim::{SimEndpoint, SimRegion, SimWorld};

use crate::ledger::{Ledger, Life, Seen};

pub const SHARED_BYTES: usize = 16_384;
const PLACES: usize = 4;
const PLACE_BYTES: u64 = 24_000;

pub struct Node {
    pub life: Life,
    pub messages: Messages<SimEndpoint>,
    pub address: EndpointAddress,
    /// The lives that peers are, as far as this node connected to them.
    pub peers: BTreeMap<Peer, Life>,
    pub refused: BTreeSet<Peer>,
    pub asked: Vec<Ticket>,
    share: Share,
    shared: Vec<u8>,
    /// Memory for announced messages, and the ticket that uses it.
    places: Vec<(SimRegion, Option<Ticket>)>,
}

/// The body of message `id`, where it is not a range of a shared region.
pub fn body_of(id: u64, length: usize) -> Vec<u8> {
    let word = |i: u64| id.wrapping_mul(0x9e37_79b9).wrapping_add(i * 31).to_le_bytes()[1];
    (0..length as u64).map(word).collect()
}

impl Node {
    pub fn open(world: &SimWorld, life: Life, options: &Options) -> Self {
        let node = NodeId(u32::try_from(life.node).expect("few nodes"));
        let at = EndpointOptions { vpid: Vpid(1), ..EndpointOptions::default() };
        let endpoint = world.transport(node, 1).open(&at).expect("the address is free");
        let address = endpoint.address();
        let mut messages = Messages::new(endpoint, options.clone());
        let region = messages.endpoint().register(SHARED_BYTES as u64).expect("memory");
        let shared = body_of(life.number << 20 | life.node as u64, SHARED_BYTES);
        region.write(0, &shared).expect("inside");
        let share = messages.share(&region);
        let mut place = || messages.endpoint().register(PLACE_BYTES).expect("memory");
        let places = (0..PLACES).map(|_| (place(), None)).collect();
        let (peers, refused, asked) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        Self { life, messages, address, peers, refused, asked, share, shared, places }
    }

    /// The peer at `address`; `None` if it cannot be reached.
    pub fn connect(&mut self, address: EndpointAddress, life: Life) -> Option<Peer> {
        let known = self.peers.iter().find(|(_, other)| **other == life);
        if let Some((peer, _)) = known {
            return Some(*peer);
        }
        let peer = self.messages.endpoint().connect_within(address, PATIENCE).ok()?;
        self.peers.insert(peer, life);
        Some(peer)
    }

    /// Sends a message with this head of at least 8 bytes, which begins with its number.
    pub fn send(
        &mut self,
        to: Peer,
        head_bytes: usize,
        (length, is_range): (usize, bool),
        ledger: &mut Ledger,
        seen: &mut Seen,
    ) {
        let id = ledger.next_id();
        let mut head = id.to_le_bytes().to_vec();
        head.resize(head_bytes, 9);
        let length = if is_range { length.clamp(1, SHARED_BYTES) } else { length };
        let (body, result) = if is_range {
            let offset = usize::from(id.to_le_bytes()[0]) * (SHARED_BYTES - length) / 256;
            let body = self.shared[offset..offset + length].to_vec();
            let range = (self.share, offset as u64, length as u64);
            (body, self.messages.send_range(to, &head, range, id))
        } else {
            let body = body_of(id, length);
            let (first, second) = body.split_at(length / 3);
            let one: &[&[u8]] = &[&body];
            let two: &[&[u8]] = &[first, second];
            let parts = if id.is_multiple_of(4) { two } else { one };
            let result = self.messages.send(to, &head, parts, id);
            (body, result)
        };
        match result {
            Ok(issued) => {
                let is_pending = issued == Issued::Pending;
                let total = head_bytes + length;
                seen.count(match (is_pending, is_range) {
                    (true, true) => "range",
                    (true, false) => "copied",
                    _ if total <= 112 => "short",
                    _ => "packets",
                });
                ledger.accepted(id, (self.life, to), self.peers[&to], body, is_pending);
            }
            Err(SendError::WouldBlock) => {
                seen.count("refused for lack of room");
                self.refused.insert(to);
            }
            Err(SendError::PeerDown | SendError::TooLong { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }

    /// Decides on one message that was announced.
    pub fn decide(&mut self, choice: usize) {
        if self.asked.is_empty() {
            return;
        }
        let ticket = self.asked.remove(choice % self.asked.len());
        let free = self.places.iter().position(|(_, ticket)| ticket.is_none());
        match (choice % 5, free) {
            (0, _) => self.messages.refuse(ticket).expect("it was asked"),
            (1..3, Some(place)) => {
                let offset = (choice % 1000) as u64;
                let (region, user) = &mut self.places[place];
                self.messages.accept_into(ticket, region, offset).expect("there is room");
                *user = Some(ticket);
            }
            _ => {
                if self.messages.accept(ticket).is_err() {
                    self.messages.refuse(ticket).expect("it is still asked");
                }
            }
        }
    }

    pub fn poll(&mut self, budget: usize, ledger: &mut Ledger, seen: &mut Seen) {
        let Self { life, messages, peers, refused, asked, places, .. } = self;
        let mut gone = Vec::new();
        messages.poll(budget, |event| match event {
            Event::Message(message) => {
                let id = message.head.first_chunk().copied().map(u64::from_le_bytes);
                let id = id.expect("a head begins with a number");
                let from = ledger.sent[&id].way.0.node;
                match message.body {
                    Body::Bytes(bytes) => {
                        seen.count("delivered short");
                        ledger.delivered(*life, from, id, bytes);
                    }
                    Body::Range { ticket, region, offset, length } => {
                        seen.count("delivered long");
                        let mut bytes = vec![0; usize::try_from(length).expect("short")];
                        region.read(offset, &mut bytes).expect("inside");
                        ledger.delivered(*life, from, id, &bytes);
                        free(places, ticket);
                    }
                }
            }
            Event::Announced { ticket, length, head, .. } => {
                seen.count("asked");
                let id = head.first_chunk().copied().map(u64::from_le_bytes).expect("a number");
                assert_eq!(ledger.sent[&id].body.len() as u64, length);
                asked.push(ticket);
            }
            Event::Lost { ticket, .. } => {
                seen.count("lost");
                asked.retain(|other| *other != ticket);
                free(places, ticket);
            }
            Event::Completion { context, result } => {
                seen.count(match &result {
                    Ok(()) => "done",
                    Err(MessageError::Cancelled) => "cancelled",
                    Err(MessageError::Refused) => "refused",
                    Err(MessageError::PeerDown) => "peer down",
                    Err(other) => panic!("message {context}: {other}"),
                });
                ledger.ended(context, result);
            }
            Event::Room { peer } => {
                seen.count("room");
                refused.remove(&peer);
            }
            Event::Misbehaved { offence, .. } => panic!("all are honest: {offence}"),
            Event::Endpoint(FabricEvent::PeerDown { peer, .. }) => {
                ledger.down((*life, peer));
                gone.push(peer);
            }
            Event::Endpoint(FabricEvent::Room { .. }) => {}
            Event::Endpoint(other) => panic!("{other:?}"),
        });
        for peer in gone {
            peers.remove(&peer);
            refused.remove(&peer);
        }
    }

    /// Checks that nothing is left when nothing is under way.
    pub fn assert_idle(&self) {
        let census = self.messages.census();
        assert_eq!((census.messages, census.operations), (0, 0), "{:?}", self.life);
        assert_eq!(census.receive_bytes, census.idle_receive_bytes, "{:?}", self.life);
        assert!(self.refused.is_empty(), "{:?} never heard of room", self.life);
        assert!(self.places.iter().all(|(_, user)| user.is_none()), "a place is still used");
        assert!(self.asked.is_empty(), "decisions are still open");
    }
}

fn free(places: &mut [(SimRegion, Option<Ticket>)], ticket: Ticket) {
    for (_, user) in places {
        if *user == Some(ticket) {
            *user = None;
        }
    }
}
