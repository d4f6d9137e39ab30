//! Packets from the device, on their way to other nodes.

use std::io;
use std::time::Duration;

use weft_fabric::{Endpoint, Group, NodeId, Region, SendError};

use super::Port;
use super::peer::{Packet, PeerPort, Stop, fragments};
use crate::arrival::split;
use crate::assembly::PACKET_BYTES_MAX;
use crate::frame::Frame;
use crate::packet::{HEAD_BYTES, Space};
use crate::segment::fabric_group;
use crate::switch::Departure;
use crate::way::Way;

impl<E: Endpoint> Port<E> {
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
    pub(super) fn depart_from_ring(&mut self, node: NodeId, packet: &mut [u8], now: Duration) {
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
                match all.is_empty() {
                    // It is for somebody, and nobody is there.
                    true => self.counters.unreachable += 1,
                    false => self.send_to_several(Group::BROADCAST, &all, packet, now),
                }
            }
        }
    }

    fn send_to(&mut self, node: NodeId, packet: &[u8], now: Duration) {
        let own = self.own_hello();
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let sent = if peer.queued() == 0 {
            peer.send(&mut self.endpoint, &mut self.calls, own, packet, self.limits, now)
        } else {
            Err(Stop::Full)
        };
        match sent {
            Ok(()) => {
                if packet.len() > self.limits.eager_bytes {
                    self.guess = (self.way == Way::Mapped).then_some(node);
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
        // The packet must not overtake those in the backlog of one of the nodes, nor the greeting,
        // without which a node takes nothing. A node that did not ask for it may get it, too, so
        // all must have room for it behind their long packets.
        let has_backlog =
            nodes.iter().any(|node| self.peers.get(node).is_some_and(PeerPort::has_backlog));
        let may_pass = self.peers.values().all(|peer| peer.may_pass(packet.len()));
        if packet.len() <= self.limits.eager_group_bytes && !has_backlog && may_pass {
            let sent = fragments(packet, &mut 0, |header, parts| {
                // The message reached no member although some node wants the group: the fabric's
                // membership is changing. Treat it as no room.
                match self.endpoint.send_multicast(group, header, parts)? {
                    0 => Err(SendError::WouldBlock),
                    _ => Ok(()),
                }
            });
            if sent.is_ok() {
                self.counters.multicast += 1;
                self.peers.values_mut().for_each(|peer| peer.passed(packet.len()));
                return;
            }
            // Some node has no room, so each node gets a copy of its own. Their assemblies discard
            // the fragments that did arrive.
        }
        for node in nodes {
            self.send_to(*node, packet, now);
        }
    }

    /// Sends the backlogs, as far as their peers have room.
    pub(super) fn flush(&mut self, now: Duration) {
        let own = self.own_hello();
        self.has_backlog = false;
        for peer in self.peers.values_mut() {
            if peer.flush(&mut self.endpoint, &mut self.calls, own, self.limits, now).is_err() {
                self.has_backlog = true;
            }
        }
    }
}
