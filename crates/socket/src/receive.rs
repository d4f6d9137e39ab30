//! The receiving direction of an end.
//!
//! Any bytes are a [`ReceiveSide`]: other processes can write the memory where it lies. So no call
//! takes for granted what another one left there. One that finds a state to which no order of calls
//! leads breaks the direction off, and reads give a reset.

use weft_fabric::{Lane, ReceiveCursor, WaitFor};
use zerocopy::{FromBytes, IntoBytes};

use crate::route::{Inward, Origin, PeerRoute, Recall, presence, word};
use crate::state::{ReceiveState, Stored};
use crate::stream::{ReadError, Reading, Side, closed, tag};

/// Where the reader stands.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
struct Position {
    cursor: ReceiveCursor,
    /// Bytes of the message at the head that were read.
    slot_offset: usize,
    /// Announced bytes of the sink that were not read.
    chunk_left: u64,
}

/// The receiving direction of an end. Any bytes are one; zeroed memory is the beginning.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
pub struct ReceiveSide {
    position: Position,
    route: Inward,
    tcp_bytes: u64,
    lane_bytes: u64,
    /// Given back since the peer was last considered for a wakeup.
    unrung_bytes: u64,
    unrung_messages: u64,
    state: Stored<ReceiveState>,
}

impl ReceiveSide {
    /// Where the next bytes come from. May turn from TCP to the lane or back at any time; call it
    /// again after reading from TCP ([`ReceiveSide::took_tcp`] does).
    #[inline]
    pub fn origin<L: Lane>(&mut self, lane: &L) -> Origin {
        if !self.route.on_lane() {
            return if self.is_broken() { Origin::Lane } else { self.route.on_tcp(lane) };
        }
        if self.is_at_return(lane) { Origin::Back } else { Origin::Lane }
    }

    /// Reads no more from the lane: what is there unread, or will be, is to come over TCP, when the
    /// peer follows this end there. Called before this end leaves for good. Until the peer has
    /// answered nothing is there to read; one that left before it knew does not answer, and the
    /// lane is read on.
    pub fn recall<L: Lane>(&mut self, lane: &L) {
        let has_left = self.route.on_lane() && self.route.has_boundary(lane);
        if self.state.get() != ReceiveState::Open || has_left {
            return;
        }
        let Position { cursor, slot_offset, chunk_left } = self.position;
        let (messages, bytes) = (cursor.messages, cursor.bytes);
        Recall { messages, bytes, offset: slot_offset, chunk_left }.post(lane);
        self.state.set(ReceiveState::Recalling);
    }

    /// The peer is gone, so that nobody answers who did not: the lane is read on.
    pub fn recall_is_void<L: Lane>(&mut self, lane: &L) {
        if self.has_recalled() && !self.route.has_boundary(lane) {
            self.state.set(ReceiveState::Open);
        }
    }

    /// For a reader on TCP that has not taken the bytes in front of the peer's last stay on the
    /// lane: whether all that the peer sent, and will send, lies on TCP without a wakeup in
    /// between, because the peer sent again what it had on the lane. `None` until the peer is back
    /// on TCP for good.
    pub fn is_all_on_tcp<L: Lane>(&self, lane: &L) -> Option<bool> {
        // Asked first: the boundaries of a peer that says so are posted.
        let peer = PeerRoute::of(lane);
        (peer.leaves_for_good() && peer.is_on_tcp()).then(|| {
            self.has_recalled()
                && lane.posted(word::RECALLED) != 0
                && self.route.is_round_trip(lane, peer)
        })
    }

    #[inline]
    fn has_recalled(&self) -> bool {
        self.state.get() == ReceiveState::Recalling
    }

    /// True when the bytes on the lane must not be read.
    #[inline]
    fn is_recalling<L: Lane>(&self, lane: &L) -> bool {
        self.has_recalled() && self.route.on_lane() && self.is_answered_or_may_be(lane)
    }

    #[cold]
    fn is_answered_or_may_be<L: Lane>(&self, lane: &L) -> bool {
        if self.route.has_boundary(lane) {
            return lane.posted(word::RECALLED) != 0;
        }
        // A peer that closed follows no more. A peer that only ended its sending direction does.
        matches!(Self::peer_closed(lane), None | Some(closed::WRITING))
    }

    /// Marks the direction as broken, after a peer broke the protocol: nothing can be read any
    /// more, and a recall has no answer.
    pub fn break_off(&mut self) -> ReadError {
        self.state.set(ReceiveState::Broken);
        ReadError::Reset
    }

    /// True after [`ReceiveSide::break_off`], by whatever the peer wrote.
    #[inline]
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.state.get() == ReceiveState::Broken
    }

    /// Everything before a boundary to TCP was read.
    fn is_at_return<L: Lane>(&self, lane: &L) -> bool {
        if self.is_recalling(lane) {
            return self.route.has_boundary(lane);
        }
        !self.is_broken()
            && self.position.chunk_left == 0
            && self.route.is_at_return(lane, self.position.cursor.messages)
    }

    /// Goes on over TCP, when [`ReceiveSide::origin`] said so. All wakeups of before lie in front
    /// of the data there, so the caller forgets first which of them are stale.
    pub fn come_back<L: Lane>(&mut self, lane: &L) {
        if !self.on_lane() {
            self.break_off();
            return;
        }
        // Rung is done with. Before the peer learns that it may come again, and ring again.
        lane.rearm(WaitFor::Data);
        lane.rearm(WaitFor::Room);
        if self.is_recalling(lane) {
            self.position.slot_offset = 0;
            self.position.chunk_left = 0;
        } else if self.has_recalled() {
            // Before the peer may come to the lane again.
            Recall::withdraw(lane);
            self.state.set(ReceiveState::Open);
        }
        self.route.cross_to_tcp(lane);
    }

    /// True when the peer's direction is done with the lane, and all it sent there was read.
    pub fn is_given_back<L: Lane>(&mut self, lane: &L) -> bool {
        // Asked first: a peer that says so stays on TCP when it is there.
        let peer = PeerRoute::of(lane);
        peer.leaves_for_good()
            && peer.is_on_tcp()
            && !self.is_broken()
            && self.origin(lane) == Origin::Tcp { at_most: None }
    }

    /// Goes on over TCP without the lane, as [`crate::SendSide::begin_again`].
    pub fn begin_again(&mut self) {
        if self.on_lane() || self.is_broken() {
            self.break_off();
            return;
        }
        self.position = Position::default();
        self.unrung_bytes = 0;
        self.unrung_messages = 0;
        self.state.set(ReceiveState::Open);
        self.route.begin_again();
    }

    /// A call that takes bytes from TCP begins; [`ReceiveSide::took_tcp`] or
    /// [`ReceiveSide::took_wakeups`] ends it.
    pub fn begin_tcp(&mut self) {
        // A process that died in between may have taken bytes uncounted: no boundary can be found.
        if !self.route.begin_counting() {
            self.break_off();
        }
    }

    /// `bytes` lie on TCP while [`ReceiveSide::origin`] said so. Returns how many of them are data;
    /// the rest are wakeups that came behind a switch.
    pub fn data_of<L: Lane>(&self, lane: &L, bytes: usize) -> usize {
        self.route.data_of(lane, bytes)
    }

    /// `bytes` of data were taken from TCP.
    pub fn took_tcp(&mut self, bytes: usize) {
        if self.on_lane() && bytes > 0 {
            // After the switch only wakeups come from TCP.
            self.break_off();
        }
        self.route.count(bytes as u64);
        self.tcp_bytes = self.tcp_bytes.wrapping_add(bytes as u64);
    }

    /// Bytes that were taken from TCP since the connection began, as
    /// [`crate::SendSide::has_written`].
    pub fn has_taken(&mut self, bytes: u64) {
        if self.on_lane() {
            // The lane goes on behind what was counted.
            self.break_off();
            return;
        }
        self.route.set_taken(bytes);
    }

    /// Of `seen` bytes that lie on TCP, those that are wakeups. Look at TCP first, then ask.
    pub fn wakeups_of<L: Lane>(&self, lane: &L, seen: usize) -> usize {
        self.route.wakeups_of(lane, seen)
    }

    /// So many wakeups were taken from TCP.
    pub fn took_wakeups(&mut self, wakeups: usize) {
        self.route.count(wakeups as u64);
    }

    /// True when this direction is on the lane.
    #[must_use]
    pub const fn on_lane(&self) -> bool {
        self.route.on_lane()
    }

    /// Copies what has arrived on the lane, without taking it when `peek`.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn read<L: Lane>(
        &mut self,
        lane: &L,
        target: &mut [u8],
        peek: bool,
    ) -> Result<Reading, ReadError> {
        if self.is_broken() {
            return Err(ReadError::Reset);
        }
        if self.is_recalling(lane) {
            return Err(self.why_empty(lane));
        }
        let mut walk = Walk { position: self.position, skip: 0 };
        let mut filled = 0;
        while filled < target.len() {
            let more = self.step(lane, &mut walk, &mut target[filled..], peek);
            match more {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) if filled == 0 => return Err(error),
                Err(_) => break,
            }
        }
        if filled == 0 && !target.is_empty() {
            return Err(self.why_empty(lane));
        }
        if peek {
            return Ok(Reading { bytes: filled, room: false });
        }
        self.lane_bytes = self.lane_bytes.wrapping_add(filled as u64);
        Ok(Reading { bytes: filled, room: self.gave_room(lane) })
    }

    /// Copies from the chunk or message at the head; 0 when nothing is there.
    #[inline]
    fn step<L: Lane>(
        &mut self,
        lane: &L,
        walk: &mut Walk,
        target: &mut [u8],
        peek: bool,
    ) -> Result<usize, ReadError> {
        loop {
            match walk.position.chunk_left {
                0 => {}
                left if left > lane.sink_bytes() => return Err(self.break_off()),
                _ => return Ok(self.step_chunk(lane, walk, target, peek)),
            }
            let slot = match lane.peek(&walk.position.cursor) {
                Ok(Some(slot)) => slot,
                Ok(None) => return Ok(0),
                Err(_) => return Err(self.break_off()),
            };
            let length = usize::from(slot.length);
            match slot.tag {
                tag::VELO | tag::VELO_LAST if walk.position.slot_offset < length => {
                    let offset = walk.position.slot_offset;
                    let size = (length - offset).min(target.len());
                    lane.read(&walk.position.cursor, offset, &mut target[..size]);
                    walk.position.slot_offset += size;
                    if walk.position.slot_offset == length {
                        walk.position.slot_offset = 0;
                        self.pass(lane, walk, peek);
                    } else if !peek {
                        self.position = walk.position;
                    }
                    return Ok(size);
                }
                tag::RMA_INFO if length == 4 => {
                    let mut bytes = [0; 4];
                    lane.read(&walk.position.cursor, 0, &mut bytes);
                    let chunk = u64::from(u32::from_le_bytes(bytes));
                    if chunk == 0 || chunk > lane.sink_bytes() {
                        return Err(self.break_off());
                    }
                    walk.position.chunk_left = chunk;
                    self.pass(lane, walk, peek);
                }
                _ => return Err(self.break_off()),
            }
        }
    }

    fn step_chunk<L: Lane>(
        &mut self,
        lane: &L,
        walk: &mut Walk,
        target: &mut [u8],
        peek: bool,
    ) -> usize {
        let left = usize::try_from(walk.position.chunk_left).unwrap_or(usize::MAX);
        let size = left.min(target.len());
        lane.view(&walk.position.cursor, walk.skip, &mut target[..size]);
        walk.position.chunk_left -= size as u64;
        if peek {
            walk.skip += size as u64;
        } else {
            // The position moves before the room is given back: whoever dies in between has read
            // the bytes once, and the peer misses a credit that no one waits for any more.
            let mut cursor = walk.position.cursor;
            cursor.bytes = cursor.bytes.wrapping_add(size as u64);
            self.position = Position { cursor, ..walk.position };
            lane.release(&mut walk.position.cursor, size as u64);
            self.unrung_bytes = self.unrung_bytes.wrapping_add(size as u64);
        }
        size
    }

    /// Goes past the message at the head.
    fn pass<L: Lane>(&mut self, lane: &L, walk: &mut Walk, peek: bool) {
        if peek {
            walk.position.cursor.messages = walk.position.cursor.messages.wrapping_add(1);
            return;
        }
        lane.advance(&mut walk.position.cursor, false);
        self.position = walk.position;
        self.unrung_messages = self.unrung_messages.wrapping_add(1);
    }

    /// Whether the peer waits for room and is to be rung: when a good part came free, or when
    /// nothing is left to read, so that it can never wait for what will not come.
    fn gave_room<L: Lane>(&mut self, lane: &L) -> bool {
        let much = self.unrung_bytes >= lane.sink_bytes() / 4
            || self.unrung_messages >= lane.mailbox_depth() / 2;
        if !much && !self.is_drained(lane) {
            return false;
        }
        self.unrung_bytes = 0;
        self.unrung_messages = 0;
        lane.is_awaited(WaitFor::Room)
    }

    fn is_drained<L: Lane>(&self, lane: &L) -> bool {
        self.is_recalling(lane)
            || self.position.chunk_left == 0 && matches!(lane.peek(&self.position.cursor), Ok(None))
    }

    fn why_empty<L: Lane>(&self, lane: &L) -> ReadError {
        match self.ended(lane) {
            None if self.is_at_return(lane) => ReadError::Back,
            None => ReadError::Empty,
            Some(closed::RESET) => ReadError::Reset,
            Some(_) => ReadError::Ended,
        }
    }

    /// How the peer ended its direction, once everything before was read.
    #[inline]
    pub fn ended<L: Lane>(&self, lane: &L) -> Option<u64> {
        let value = lane.posted(word::CLOSED);
        // A message sent before the end is visible with it, so an end that counts more messages
        // than were read means: look again.
        let read_all =
            value != 0 && (value >> 2).saturating_sub(1) <= self.position.cursor.messages;
        // Looked at after the end: one that is behind a boundary to TCP is told there.
        let here = read_all
            && self.position.chunk_left == 0
            && !self.is_recalling(lane)
            && !self.is_at_return(lane);
        here.then_some(value & closed::MASK)
    }

    /// How the peer closed, whether or not everything was read.
    pub fn peer_closed<L: Lane>(lane: &L) -> Option<u64> {
        match lane.posted(word::CLOSED) {
            0 => None,
            value => Some(value & closed::MASK),
        }
    }

    /// The peer ended its direction while that was on TCP, so the kernel's socket tells that end
    /// and nothing more of the peer.
    pub fn ended_on_tcp<L: Lane>(lane: &L) -> bool {
        PeerRoute::ended_on_tcp(lane)
    }

    /// Tells the peer that this process ends, and how much of what lay on TCP was taken until now.
    /// Threads of it may still use both directions. The kernel is about to close the socket, with a
    /// reset if a wakeup lies there unread ([`crate::SendSide::rings_alone`]).
    pub fn end_with_process<L: Lane>(&self, lane: &L, side: Side) {
        let attached = if side == Side::Connected { presence::ATTACHED } else { 0 };
        lane.post(word::PRESENCE, attached | presence::ending(self.route.taken()));
    }

    /// True when a read would not be [`ReadError::Empty`].
    #[inline]
    pub fn readable<L: Lane>(&self, lane: &L) -> bool {
        self.is_broken()
            || !self.is_drained(lane)
            || self.ended(lane).is_some()
            || self.is_at_return(lane)
    }

    /// True while data lies unread.
    pub fn has_data<L: Lane>(&self, lane: &L) -> bool {
        !self.is_drained(lane)
    }

    /// How many messages arrived in all, one more after the peer's end: when this grows, there is
    /// an edge. `from` is what was answered before.
    pub fn arrived<L: Lane>(&self, lane: &L, from: u64) -> u64 {
        let taken = self.position.cursor.messages;
        // A mailbox holds no more, though a hostile peer could fill slots as fast as we look.
        let arrived_max = taken.wrapping_add(lane.mailbox_depth());
        let mut probe = self.position.cursor;
        probe.messages = from.clamp(taken, arrived_max.max(taken));
        while probe.messages < arrived_max && matches!(lane.peek(&probe), Ok(Some(_))) {
            probe.messages += 1;
        }
        // The end of a direction that is on TCP is told there.
        let ended = lane.posted(word::CLOSED) != 0
            && (self.route.on_lane() || !PeerRoute::of(lane).is_on_tcp());
        probe.messages.wrapping_add(u64::from(ended))
    }

    /// Bytes that can be read at once (FIONREAD), as far as what the peer wrote makes sense.
    pub fn available<L: Lane>(&self, lane: &L) -> u64 {
        if self.is_recalling(lane) {
            return 0;
        }
        let mut cursor = self.position.cursor;
        let mut messages = 0;
        let mut chunks = self.position.chunk_left;
        let mut offset = self.position.slot_offset as u64;
        for _ in 0..lane.mailbox_depth() {
            let Ok(Some(slot)) = lane.peek(&cursor) else { break };
            if slot.tag == tag::RMA_INFO {
                let mut bytes = [0; 4];
                lane.read(&cursor, 0, &mut bytes);
                chunks = chunks.saturating_add(u64::from(u32::from_le_bytes(bytes)));
            } else {
                messages += u64::from(slot.length).saturating_sub(offset);
            }
            offset = 0;
            cursor.messages = cursor.messages.wrapping_add(1);
        }
        messages + chunks.min(lane.sink_bytes())
    }

    /// Messages received over the lane.
    #[must_use]
    pub const fn messages(&self) -> u64 {
        self.position.cursor.messages
    }

    /// Bytes received: over TCP and over the lane.
    #[must_use]
    pub const fn totals(&self) -> (u64, u64) {
        (self.tcp_bytes, self.lane_bytes)
    }
}

/// A read in progress: the position it is at, and what a peek went past in the sink.
struct Walk {
    position: Position,
    skip: u64,
}
