//! The state that a port keeps for one other node: packets waiting to be sent to it, and rings and
//! fragments received from it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use weft_fabric::{
    Endpoint, MessageHeader, NodeId, OperationError, Peer, RemoteKey, SendError, Window,
};
use zerocopy::IntoBytes;

use super::Limits;
use super::calls::Calls;
use crate::assembly::Assembly;
use crate::inbox::Inbox;
use crate::message::{Advert, BYTES_MAX, CLASS_TAKEN, Hello, MessageError, Ring, tag};
use crate::ring::{ReceiveRing, SendRing};
use crate::way::Way;

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

/// One life of the port of another node.
pub(crate) struct PeerPort<E: Endpoint> {
    pub node: NodeId,
    /// It names this life of the port.
    pub handle: Peer,
    way: Way,
    /// The greeting was sent.
    greeted: bool,
    /// Packets that wait. The first `sent` bytes of the first packet have left in messages.
    queue: VecDeque<Packet>,
    /// Since when the first of them waits. If none waits: when the last packet went into the ring.
    waits_since: Duration,
    sent: usize,
    outgoing: Outgoing<E::Region>,
    pub incoming: Incoming<E>,
    /// Reassembly of unicast packets and of multicast packets from this peer.
    pub unicast: Assembly,
    pub multicast: Assembly,
}

/// The ring for packets to the peer.
#[derive(Debug)]
enum Outgoing<R> {
    /// No long packet went to the peer.
    None,
    /// Its key is being granted.
    Granting,
    /// It is made.
    Ring(SendRing<R>, Stage),
}

/// The peer's knowledge of the ring for packets to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It gets the description next.
    Granted,
    /// It was told, and opens the ring.
    Told,
    /// It takes packets out of the ring.
    Open,
}

impl<R> Outgoing<R> {
    /// The ring, once the peer takes packets out of it.
    const fn open(&self) -> Option<&SendRing<R>> {
        if let Self::Ring(ring, Stage::Open) = self { Some(ring) } else { None }
    }

    /// As [`Outgoing::open`].
    const fn open_mut(&mut self) -> Option<&mut SendRing<R>> {
        if let Self::Ring(ring, Stage::Open) = self { Some(ring) } else { None }
    }
}

/// The ring with packets from the peer.
#[derive(Debug)]
pub(crate) enum Incoming<E: Endpoint> {
    /// The peer described none.
    None,
    /// It is being opened.
    Opening {
        ring: ReceiveRing,
        /// A call is under way. Otherwise the last one failed.
        is_asked: bool,
    },
    /// Packets are handed out where they lie.
    Mapped { ring: ReceiveRing, window: E::Window },
    /// Packets are fetched, and wait here for those before them.
    Fetched { ring: ReceiveRing, inbox: Inbox<E::Region> },
}

/// Passes the fragments of `packet` from byte `sent` on to `send`, until it fails.
pub(crate) fn fragments(
    packet: &[u8],
    sent: &mut usize,
    mut send: impl FnMut(MessageHeader, &[&[u8]]) -> Result<(), SendError>,
) -> Result<(), SendError> {
    let length = u32::try_from(packet.len()).unwrap_or(u32::MAX).to_le_bytes();
    while *sent < packet.len() {
        let is_first = *sent == 0;
        let room = BYTES_MAX - if is_first { length.len() } else { 0 };
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
    pub fn new(node: NodeId, handle: Peer, way: Way) -> Self {
        Self {
            node,
            handle,
            way,
            greeted: false,
            queue: VecDeque::new(),
            waits_since: Duration::ZERO,
            sent: 0,
            outgoing: Outgoing::None,
            incoming: Incoming::None,
            unicast: Assembly::default(),
            multicast: Assembly::default(),
        }
    }

    /// Packets that wait to be sent.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// True while the greeting or a packet waits for room at the peer.
    pub fn has_backlog(&self) -> bool {
        !self.greeted || !self.queue.is_empty()
    }

    /// Packets in the ring that the peer has not reported as taken.
    pub fn in_ring(&self) -> u64 {
        self.outgoing.open().map_or(0, SendRing::waiting)
    }

    /// Packets from the peer that wait for those before them.
    pub fn arriving(&self) -> usize {
        if let Incoming::Fetched { inbox, .. } = &self.incoming { inbox.len() } else { 0 }
    }

    /// True once there is a ring, in either direction.
    pub const fn is_active(&self) -> bool {
        !matches!((&self.outgoing, &self.incoming), (Outgoing::None, Incoming::None))
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
        self.outgoing.open().is_some() && waited < STALLS_AFTER && self.place().is_none()
    }

    /// Appends a packet to the backlog. `false` if the peer was given up and its backlog is full.
    pub fn push(&mut self, packet: Packet, now: Duration, limits: Limits) -> bool {
        let is_ring_full = self.outgoing.open().is_some_and(|ring| ring.place().is_none());
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
        calls: &mut Calls<E::Region>,
        own: Hello,
        limits: Limits,
        now: Duration,
    ) -> Result<(), Stop> {
        self.greet(endpoint, own)?;
        while let Some(packet) = self.queue.front() {
            let packet = Arc::clone(packet);
            self.send(endpoint, calls, own, &packet, limits, now)?;
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

    /// Whether a packet of up to the eager length may go in messages: a receiver that fetches keeps
    /// only so much behind the packets in the ring.
    pub fn may_pass(&self, length: usize) -> bool {
        self.outgoing.open().is_none_or(|ring| ring.may_pass(length))
    }

    /// A packet of `length` bytes went to the peer in messages.
    pub fn passed(&mut self, length: usize) {
        if let Some(ring) = self.outgoing.open_mut() {
            ring.passed(length);
        }
    }

    /// Sends one packet, or as much of it as the peer has room for. Packets up to
    /// `limits.eager_bytes` go in messages.
    pub fn send(
        &mut self,
        endpoint: &mut E,
        calls: &mut Calls<E::Region>,
        own: Hello,
        packet: &[u8],
        limits: Limits,
        now: Duration,
    ) -> Result<(), Stop> {
        self.greet(endpoint, own)?;
        let length = packet.len();
        // A packet of which a part has left goes on as it began.
        if length <= limits.eager_bytes && (self.sent > 0 || self.may_pass(length)) {
            let handle = self.handle;
            fragments(packet, &mut self.sent, |header, parts| {
                endpoint.send_short(handle, header, parts)
            })?;
            self.sent = 0;
            self.passed(length);
            return Ok(());
        }
        if matches!(self.outgoing, Outgoing::None) {
            self.make_ring(endpoint, calls, limits.slots);
        }
        self.tell_ring(endpoint)?;
        let ring = self.outgoing.open().ok_or(Stop::Full)?;
        let advert = ring.put(packet).ok_or(Stop::Full)?;
        self.advertise(endpoint, &advert, now)
    }

    /// Begins to make a ring. Without memory, or if the grant fails, the next packet tries again.
    fn make_ring(&mut self, endpoint: &mut E, calls: &mut Calls<E::Region>, slots: u32) {
        match calls.grant_ring(endpoint, (self.node, self.handle), slots) {
            Some(granted) => self.granted(granted.ok(), slots),
            None => self.outgoing = Outgoing::Granting,
        }
    }

    /// The ring's memory was granted, or not.
    pub fn granted(&mut self, granted: Option<(E::Region, RemoteKey)>, slots: u32) {
        self.outgoing = match granted {
            Some((region, key)) => {
                Outgoing::Ring(SendRing::new(region, key, slots, self.way), Stage::Granted)
            }
            None => Outgoing::None,
        };
    }

    /// Describes the ring to the peer, if that is due.
    fn tell_ring(&mut self, endpoint: &mut E) -> Result<(), Stop> {
        if let Outgoing::Ring(ring, stage @ Stage::Granted) = &mut self.outgoing {
            let header = MessageHeader::tag(tag::RING);
            endpoint.send_short(self.handle, header, &[ring.described().as_bytes()])?;
            *stage = Stage::Told;
        }
        Ok(())
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
        if let Some(ring) = self.outgoing.open_mut() {
            ring.advertised();
        }
        self.waits_since = now;
        Ok(())
    }

    /// The ring and the offset of its next slot. `None` if a packet that comes now would have to
    /// wait.
    pub fn place(&self) -> Option<(&SendRing<E::Region>, u64)> {
        let ring = self.outgoing.open().filter(|_| self.queue.is_empty())?;
        Some((ring, ring.place()?))
    }

    /// The peer described its ring, which is to be opened.
    pub fn ring(&mut self, described: &Ring) -> Result<(), MessageError> {
        if !matches!(self.incoming, Incoming::None) {
            return Err(MessageError::SecondRing);
        }
        let ring = ReceiveRing::new(described)?;
        self.incoming = Incoming::Opening { ring, is_asked: false };
        Ok(())
    }

    /// Begins to open the peer's ring, unless that is under way.
    ///
    /// # Errors
    /// [`MessageError::Ring`]: it cannot be opened. Another call tries again.
    pub fn open_ring(
        &mut self,
        endpoint: &mut E,
        calls: &mut Calls<E::Region>,
    ) -> Result<(), MessageError> {
        let Incoming::Opening { ring, is_asked: is_asked @ false } = &mut self.incoming else {
            return Ok(());
        };
        *is_asked = true;
        match calls.resolve(endpoint, (self.node, self.handle), ring.key()) {
            Some(resolved) => self.resolved(endpoint, resolved),
            None => Ok(()),
        }
    }

    /// The key of the peer's ring can be used now, or not.
    ///
    /// # Errors
    /// As [`PeerPort::open_ring`].
    pub fn resolved(
        &mut self,
        endpoint: &mut E,
        resolved: Result<(), OperationError>,
    ) -> Result<(), MessageError> {
        let Incoming::Opening { ring, is_asked } = &mut self.incoming else { return Ok(()) };
        *is_asked = false;
        let ring = *ring;
        let opened = resolved.and_then(|()| match self.way {
            Way::Fetched => Ok(Some(Incoming::Fetched { ring, inbox: Inbox::default() })),
            Way::Mapped => endpoint.window(self.handle, ring.key()).map(|window| {
                let is_whole = window.length() >= ring.bytes();
                is_whole.then_some(Incoming::Mapped { ring, window })
            }),
        });
        match opened {
            Ok(Some(opened)) => self.incoming = opened,
            // The report of its end follows.
            Err(OperationError::PeerDown) => return Ok(()),
            Ok(None) | Err(_) => return Err(ring.refused()),
        }
        self.tell_taken(endpoint);
        Ok(())
    }

    /// Tells the peer how many packets were taken, when that is due.
    pub fn tell_taken(&mut self, endpoint: &mut E) {
        if let Incoming::Mapped { ring, .. } | Incoming::Fetched { ring, .. } = &mut self.incoming
            && let Some(taken) = ring.owes()
        {
            // Without room the next call tells it. If the peer is gone, the endpoint reports that.
            if endpoint.put_notification(self.handle, CLASS_TAKEN, taken).is_ok() {
                ring.told(taken);
            }
        }
    }

    /// The peer says how many packets it has taken in all. The first time, it has opened the ring.
    pub fn taken(&mut self, taken: u64) -> Result<(), MessageError> {
        match &mut self.outgoing {
            Outgoing::Ring(ring, Stage::Open) => ring.taken(taken),
            Outgoing::Ring(_, stage @ Stage::Told) if taken == 0 => {
                *stage = Stage::Open;
                Ok(())
            }
            _ => Err(MessageError::Taken { taken, written: 0 }),
        }
    }

    /// The key of the ring's memory, to be revoked when the peer is gone.
    pub fn key(&self) -> Option<RemoteKey> {
        let Outgoing::Ring(ring, _) = &self.outgoing else { return None };
        Some(RemoteKey(ring.described().key.get()))
    }
}
