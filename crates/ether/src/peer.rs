//! The state that a port keeps for one other node: packets waiting to be sent to it, and rings and
//! fragments received from it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use weft_fabric::{
    Access, Audience, Blocking, Endpoint, LocalRange, MessageHeader, NodeId, PATIENCE, Peer,
    RemoteKey, SendError,
};
use zerocopy::IntoBytes;

use crate::assembly::Assembly;
use crate::message::{Advert, CLASS_TAKEN, Hello, MessageError, Ring, tag};
use crate::ring::{self, ReceiveRing, SLOT_BYTES, SendRing};

/// Why a packet is not sent now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// The peer has no room.
    Full,
    /// The peer is gone.
    Gone,
}

impl From<SendError> for Stop {
    fn from(error: SendError) -> Self {
        if error == SendError::WouldBlock { Self::Full } else { Self::Gone }
    }
}

/// A peer that takes nothing for this long has stalled: its node was stopped, say.
pub const STALLS_AFTER: Duration = Duration::from_millis(20);

/// After this long no packet waits for a stalled peer any longer: packets beyond its backlog are
/// lost. So every wait has an end.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(5);

/// A packet in a peer's backlog. Several peers may share it.
pub(crate) type Packet = Arc<[u8]>;

pub(crate) struct PeerPort<E: Endpoint> {
    pub node: NodeId,
    pub handle: Peer,
    /// The greeting was sent.
    greeted: bool,
    /// Packets that wait. The first `sent` bytes of the first packet have left in messages.
    queue: VecDeque<Packet>,
    /// Since when the first of them waits. If none waits: when the last packet went into the ring.
    waits_since: Duration,
    sent: usize,
    send_ring: Option<SendRing<E::Region>>,
    /// The peer got the ring's description.
    ring_told: bool,
    receive_ring: Option<ReceiveRing<E::Window>>,
    /// Reassembly of unicast packets and of multicast packets from this peer.
    pub unicast: Assembly,
    pub multicast: Assembly,
}

/// Passes the fragments of `packet` from byte `sent` on to `send`, until it fails.
pub(crate) fn fragments(
    packet: &[u8],
    sent: &mut usize,
    message_bytes: usize,
    mut send: impl FnMut(MessageHeader, &[&[u8]]) -> Result<(), SendError>,
) -> Result<(), SendError> {
    let length = u32::try_from(packet.len()).unwrap_or(u32::MAX).to_le_bytes();
    while *sent < packet.len() {
        let is_first = *sent == 0;
        let room = message_bytes - if is_first { length.len() } else { 0 };
        let part = &packet[*sent..packet.len().min(*sent + room)];
        if is_first {
            send(MessageHeader::tag(tag::FIRST), &[&length, part])?;
        } else {
            send(MessageHeader::tag(tag::MORE), &[part])?;
        }
        *sent += part.len();
    }
    Ok(())
}

impl<E: Endpoint> PeerPort<E> {
    pub fn new(node: NodeId, handle: Peer) -> Self {
        Self {
            node,
            handle,
            greeted: false,
            queue: VecDeque::new(),
            waits_since: Duration::ZERO,
            sent: 0,
            send_ring: None,
            ring_told: false,
            receive_ring: None,
            unicast: Assembly::default(),
            multicast: Assembly::default(),
        }
    }

    /// Packets that wait to be sent.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Packets in the ring that the peer has not reported as taken.
    pub fn in_ring(&self) -> u64 {
        self.send_ring.as_ref().map_or(0, SendRing::waiting)
    }

    /// True once there is a ring, in either direction.
    pub const fn is_active(&self) -> bool {
        self.send_ring.is_some() || self.receive_ring.is_some()
    }

    /// True when the device must not be read, so that this peer's backlog does not grow. Packets
    /// for other peers wait meanwhile, so a stalled peer gets a longer backlog, and in the end is
    /// given up.
    pub fn is_full(&self, now: Duration, limits: Limits) -> bool {
        let waited = now.saturating_sub(self.waits_since);
        let room = if waited >= STALLS_AFTER { limits.backlog_stalled } else { limits.backlog };
        self.queue.len() >= room && waited < GIVEN_UP_AFTER
    }

    /// True while the ring is full, but the peer has not stalled. A packet read now could not go
    /// into the ring directly and would be copied twice more.
    pub fn is_short_of_slots(&self, now: Duration) -> bool {
        let waited = now.saturating_sub(self.waits_since);
        self.ring_told && waited < STALLS_AFTER && self.place().is_none()
    }

    /// Appends a packet to the backlog. `false` if the peer was given up and its backlog is full.
    pub fn push(&mut self, packet: Packet, now: Duration, limits: Limits) -> bool {
        let is_ring_full = self.send_ring.as_ref().is_some_and(|ring| ring.place().is_none());
        if self.queue.is_empty() && !is_ring_full {
            self.waits_since = now;
        }
        let waited = now.saturating_sub(self.waits_since);
        let has_room = waited < GIVEN_UP_AFTER || self.queue.len() < limits.backlog_stalled;
        if has_room {
            self.queue.push_back(packet);
        }
        has_room
    }

    /// Discards the backlog, except a packet of which a part has left. Returns the number
    /// discarded.
    pub fn forget_queue(&mut self) -> usize {
        let kept = usize::from(self.sent > 0).min(self.queue.len());
        let forgotten = self.queue.len() - kept;
        self.queue.truncate(kept);
        forgotten
    }

    /// Sends the backlog, as far as the peer has room.
    pub fn flush(
        &mut self,
        endpoint: &mut E,
        own: Hello,
        limits: Limits,
        now: Duration,
    ) -> Result<(), Stop> {
        self.greet(endpoint, own)?;
        while let Some(packet) = self.queue.front() {
            let packet = Arc::clone(packet);
            self.send(endpoint, own, &packet, limits, now)?;
            self.sent = 0;
            self.waits_since = now;
            self.queue.pop_front();
        }
        Ok(())
    }

    /// Sends the greeting. The peer needs it before any other message.
    fn greet(&mut self, endpoint: &mut E, own: Hello) -> Result<(), Stop> {
        if !self.greeted {
            let header = MessageHeader::tag(tag::HELLO);
            endpoint.send_short(self.handle, header, &[own.as_bytes()])?;
            self.greeted = true;
        }
        Ok(())
    }

    /// Sends one packet, or as much of it as the peer has room for. Packets up to
    /// `limits.eager_bytes` go in messages.
    pub fn send(
        &mut self,
        endpoint: &mut E,
        own: Hello,
        packet: &[u8],
        limits: Limits,
        now: Duration,
    ) -> Result<(), Stop> {
        self.greet(endpoint, own)?;
        if packet.len() <= limits.eager_bytes {
            let message_bytes = endpoint.capabilities().message_bytes_max;
            let handle = self.handle;
            fragments(packet, &mut self.sent, message_bytes, |header, parts| {
                endpoint.send_short(handle, header, parts)
            })?;
            self.sent = 0;
            return Ok(());
        }
        if self.send_ring.is_none() {
            self.send_ring = Some(make_ring(endpoint, limits.slots).ok_or(Stop::Full)?);
        }
        let Some(ring) = &mut self.send_ring else { return Err(Stop::Full) };
        if !self.ring_told {
            let described = ring.described();
            let header = MessageHeader::tag(tag::RING);
            endpoint.send_short(self.handle, header, &[described.as_bytes()])?;
            self.ring_told = true;
        }
        let advert = ring.put(packet).ok_or(Stop::Full)?;
        self.advertise(endpoint, &advert, now)
    }

    /// Tells the peer about a packet in the next slot of the ring.
    pub fn advertise(
        &mut self,
        endpoint: &mut E,
        advert: &Advert,
        now: Duration,
    ) -> Result<(), Stop> {
        let header = MessageHeader::tag(tag::ADVERT);
        endpoint.send_short(self.handle, header, &[advert.as_bytes()])?;
        if let Some(ring) = &mut self.send_ring {
            ring.advertised();
        }
        self.waits_since = now;
        Ok(())
    }

    /// The ring and the offset of its next slot. `None` if a packet that comes now would have to
    /// wait.
    pub fn place(&self) -> Option<(&SendRing<E::Region>, u64)> {
        let ring = self.send_ring.as_ref().filter(|_| self.ring_told && self.queue.is_empty())?;
        Some((ring, ring.place()?))
    }

    /// The peer described its ring.
    pub fn ring(&mut self, endpoint: &mut E, described: &Ring) -> Result<(), MessageError> {
        let key = ring::check(described)?;
        let (slots, slot_bytes) = (described.slots.get(), described.slot_bytes.get());
        let window = endpoint
            .window(self.handle, key)
            .map_err(|_| MessageError::Ring { slots, slot_bytes })?;
        self.receive_ring = Some(ReceiveRing::new(window, described)?);
        Ok(())
    }

    /// Takes an advertised packet: the peer's memory, the packet's offset in it, and its length.
    pub fn take(&mut self, advert: &Advert) -> Result<(&E::Window, u64, usize), MessageError> {
        let (number, length) = (advert.number.get(), advert.length.get());
        let ring =
            self.receive_ring.as_mut().ok_or(MessageError::Advert { number, due: 0, length })?;
        let (place, length) = ring.take(advert)?;
        Ok((ring.window(), place, length))
    }

    /// Tells the peer how many packets were taken, when that is due.
    pub fn tell_taken(&mut self, endpoint: &mut E) {
        if let Some(ring) = &mut self.receive_ring
            && let Some(taken) = ring.owes()
        {
            // Without room the next call tells it. If the peer is gone, the endpoint reports that.
            if endpoint.put_notification(self.handle, CLASS_TAKEN, taken).is_ok() {
                ring.told(taken);
            }
        }
    }

    /// The peer says how many packets it has taken in all.
    pub fn taken(&mut self, taken: u64) -> Result<(), MessageError> {
        match &mut self.send_ring {
            Some(ring) => ring.taken(taken),
            None => Err(MessageError::Taken { taken, written: 0 }),
        }
    }

    /// The key of the ring's memory, to be revoked when the peer is gone.
    pub fn key(&self) -> Option<RemoteKey> {
        self.send_ring.as_ref().map(|ring| RemoteKey(ring.described().key.get()))
    }
}

/// Limits of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Packets up to this length, with their 12 bytes of offload header, go in messages, longer
    /// ones through the ring (003 section 5.4.6.2: 120 to 480).
    pub eager_bytes: usize,
    /// The same for packets to several nodes at once.
    pub eager_group_bytes: usize,
    /// Slots of the ring for one peer (004 section 2.1).
    pub slots: u32,
    /// Packets that may wait for one peer before the device is no longer read.
    pub backlog: usize,
    /// The same for a peer that has taken none for [`STALLS_AFTER`].
    pub backlog_stalled: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            eager_bytes: 480,
            eager_group_bytes: 2_048,
            slots: 32,
            backlog: 32,
            backlog_stalled: 1_024,
        }
    }
}

fn make_ring<E: Endpoint>(endpoint: &mut E, slots: u32) -> Option<SendRing<E::Region>> {
    let region = endpoint.register(u64::from(slots) * u64::from(SLOT_BYTES)).ok()?;
    let key = endpoint
        .grant_within(LocalRange::whole(&region), Audience::Partition, Access::READ, PATIENCE)
        .ok()?;
    Some(SendRing::new(region, key, slots))
}
