//! Lanes, on which direct sockets stand. Each host opens one to each host that it sends to; the
//! bytes of messages follow each other in it, as those of writes to a connection do.
//!
//! # Invariant
//! An end that found no room, or no data, looks again only when it was rung.

use std::collections::{BTreeMap, VecDeque};

use weft_fabric::{
    Blocking, Carry, Endpoint, EndpointAddress, LaneFull, OperationError, ReceiveCursor,
    SendCursor, Standing, WaitFor, Wake,
};
use weft_lane::{Carrier, EndpointLane, LaneNumber, Layout, Settings, Told};
use weft_network::Message;
use weft_topology::Vertex;
use weft_transport_sim::SimEndpoint;

use super::{AT_ONCE, Contact, Ends, Program};

/// A lane of one connection: there are many.
const LAYOUT: Layout = Layout { slots: 64, sink_bytes: 16 << 10 };
/// Bytes of a message in a lane that go by the sink at once.
const PIECE_BYTES_MAX: u64 = 4_096;
/// Bytes in front of a piece: the number of the message, the bytes in the sink, and whether it is
/// the last piece.
const FRONT_BYTES: usize = 8 + 4 + 1;
/// Bytes of a piece that go with it, and not by the sink.
const EAGER_BYTES_MAX: u64 = 100;

/// A lane to a host, and the messages that go by it.
struct Outward {
    /// The number of the lane. It is `open` when its other end is there.
    number: LaneNumber,
    open: Option<EndpointLane<SimEndpoint>>,
    cursor: SendCursor,
    sleeps: bool,
    /// The messages that have not left, with the bytes that are left of each.
    unsent: VecDeque<(u64, u64)>,
}

struct Inward {
    lane: EndpointLane<SimEndpoint>,
    cursor: ReceiveCursor,
    sleeps: bool,
}

pub(super) struct Lanes {
    carrier: Carrier<SimEndpoint>,
    outward: BTreeMap<Vertex, Outward>,
    inward: BTreeMap<LaneNumber, Inward>,
    bytes: Vec<u8>,
}

impl Lanes {
    pub fn new(endpoint: SimEndpoint, hosts: usize) -> Self {
        // To each, from each, and from each that was restarted.
        let lanes_max = u32::try_from(4 * hosts).unwrap_or(u32::from(u16::MAX));
        let settings = Settings { layout: LAYOUT, lanes_max, ..Settings::default() };
        let bytes = vec![0; usize::try_from(PIECE_BYTES_MAX).unwrap_or(0)];
        let carrier = Carrier::new(endpoint, settings);
        Self { carrier, outward: BTreeMap::new(), inward: BTreeMap::new(), bytes }
    }

    fn told(&mut self, told: Told<SimEndpoint>, ends: &mut Ends) {
        match told {
            // An offer that cannot be accepted is refused, and the peer is told.
            Told::Offered(offer) => drop(self.carrier.accept(offer)),
            Told::Opened { lane, .. } => {
                let number = lane.number();
                let mine = self.outward.iter_mut().find(|(_, out)| out.number == number);
                if let Some((_, out)) = mine {
                    out.open = Some(lane);
                    out.send(&self.bytes);
                } else {
                    let inward = Inward { lane, cursor: ReceiveCursor::default(), sleeps: false };
                    self.inward.entry(number).insert_entry(inward).get_mut().take(ends);
                }
            }
            // It was made for the message with this number.
            Told::Refused { token, .. } => {
                let is_it =
                    |out: &Outward| out.unsent.front().is_some_and(|(tag, _)| *tag == token);
                let found = self.outward.iter().find(|(_, out)| is_it(out));
                if let Some(vertex) = found.map(|(vertex, _)| *vertex) {
                    self.outward.remove(&vertex);
                    ends.down.push(vertex);
                }
            }
            Told::Misbehaved { .. } => {}
            Told::Rung(number, WaitFor::Data) => {
                if let Some(inward) = self.inward.get_mut(&number) {
                    inward.lane.disarm(WaitFor::Data);
                    inward.sleeps = false;
                    inward.take(ends);
                }
            }
            Told::Rung(number, WaitFor::Room) => {
                let of_number = |out: &&mut Outward| out.number == number;
                if let Some(out) = self.outward.values_mut().find(of_number) {
                    out.wake(&self.bytes);
                }
            }
        }
    }

    /// Gives up lanes whose other end is gone.
    fn give_up(&mut self, ends: &mut Ends) {
        let is_over = |lane: &EndpointLane<SimEndpoint>| lane.standing() != Standing::Open;
        let lost = self.outward.extract_if(.., |_, out| out.open.as_ref().is_some_and(is_over));
        ends.down.extend(lost.map(|(vertex, _)| vertex));
        self.inward.retain(|_, inward| !is_over(&inward.lane));
    }
}

impl Outward {
    /// Sends as long as there is room, and sleeps then.
    fn send(&mut self, bytes: &[u8]) {
        while !self.sleeps && self.open.is_some() && !self.unsent.is_empty() {
            if self.try_send(bytes) {
                continue;
            }
            let Some(lane) = &self.open else { return };
            lane.arm(WaitFor::Room);
            lane.settle();
            self.sleeps = !self.try_send(bytes);
            if let Some(lane) = self.open.as_ref().filter(|_| !self.sleeps) {
                lane.disarm(WaitFor::Room);
            }
        }
    }

    fn wake(&mut self, bytes: &[u8]) {
        if let Some(lane) = &self.open {
            lane.disarm(WaitFor::Room);
        }
        self.sleeps = false;
        self.send(bytes);
    }

    /// Sends the next piece. False if there is no room.
    fn try_send(&mut self, bytes: &[u8]) -> bool {
        let (Some(lane), Some((tag, left))) = (&self.open, self.unsent.front_mut()) else {
            return true;
        };
        let piece = (*left).min(PIECE_BYTES_MAX);
        let is_last = piece == *left;
        let (eager, put) = if piece <= EAGER_BYTES_MAX { (piece, 0) } else { (0, piece) };
        let has_room = lane.slots_free(&mut self.cursor, 1) >= 1
            && lane.sink_free(&mut self.cursor, put) >= put;
        if !has_room {
            return false;
        }
        let before = self.cursor.bytes;
        let part = |length: u64| &bytes[..usize::try_from(length).unwrap_or(0)];
        if put > 0 {
            lane.put(&mut self.cursor, part(put));
        }
        let in_sink = u32::try_from(put).unwrap_or(0).to_le_bytes();
        let front = [&tag.to_le_bytes()[..], &in_sink, &[u8::from(is_last)]].concat();
        if lane.send(&mut self.cursor, 1, &[&front, part(eager)]) == Err(LaneFull) {
            self.cursor.bytes = before;
            return false;
        }
        *left -= piece;
        if is_last {
            self.unsent.pop_front();
        }
        true
    }
}

impl Inward {
    /// Takes what is there, and sleeps then.
    fn take(&mut self, ends: &mut Ends) {
        while !self.sleeps {
            if self.try_take(ends) {
                continue;
            }
            self.lane.arm(WaitFor::Data);
            self.lane.settle();
            self.sleeps = !self.try_take(ends);
            if !self.sleeps {
                self.lane.disarm(WaitFor::Data);
            }
        }
    }

    /// Takes the next piece. False if there is none.
    fn try_take(&mut self, ends: &mut Ends) -> bool {
        if !matches!(self.lane.peek(&self.cursor), Ok(Some(_))) {
            return false;
        }
        let mut front = [0; FRONT_BYTES];
        self.lane.read(&self.cursor, 0, &mut front);
        let (tag, rest) = front.split_first_chunk().expect("a front has 8 bytes and more");
        let in_sink = rest.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let is_last = rest.last() == Some(&1);
        self.lane.release(&mut self.cursor, in_sink.into());
        self.lane.advance(&mut self.cursor, false);
        if is_last {
            ends.arrived.push(u64::from_le_bytes(*tag));
        }
        true
    }
}

impl Program for Lanes {
    fn address(&mut self) -> EndpointAddress {
        self.carrier.with_endpoint(|endpoint| endpoint.address())
    }

    fn begin(&mut self, message: &Message, to: Contact, _: u64) -> Result<(), OperationError> {
        let vertex = message.to.host().ok_or(OperationError::PeerDown)?;
        if !self.outward.contains_key(&vertex) {
            let connect = |endpoint: &mut SimEndpoint| endpoint.connect_within(to.address, AT_ONCE);
            let peer = self.carrier.with_endpoint(connect);
            let peer = peer.map_err(|_| OperationError::PeerDown)?;
            let number = self.carrier.open(peer, message.tag);
            let out = Outward {
                number: number.map_err(|_| OperationError::PeerDown)?,
                open: None,
                cursor: SendCursor::default(),
                sleeps: false,
                unsent: VecDeque::new(),
            };
            self.outward.insert(vertex, out);
        }
        let Some(out) = self.outward.get_mut(&vertex) else {
            return Err(OperationError::PeerDown);
        };
        out.unsent.push_back((message.tag, message.bytes));
        out.send(&self.bytes);
        Ok(())
    }

    fn poll(&mut self, _: u64) -> Ends {
        let mut ends = Ends::default();
        self.carrier.poll();
        while let Some(told) = self.carrier.told() {
            self.told(told, &mut ends);
        }
        self.give_up(&mut ends);
        ends
    }
}
