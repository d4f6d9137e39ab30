//! The receiving direction of an end.
//!
//! Any bytes are a valid [`ReceiveSide`], since other processes can write its memory. So no call
//! relies on what another call left there. A call that finds a state to which no order of calls
//! leads breaks the direction off: reads then give a reset.

use std::sync::atomic::{Ordering, compiler_fence};

use weft_fabric::{Carry, Lane, ReceiveCursor, WaitFor};
use zerocopy::{FromBytes, IntoBytes};

use crate::medium::peer_rings;
use crate::record::Record;
use crate::route::{Copies, Inward, Origin, PeerRoute, ResendRequest, presence, word};
use crate::state::{ReceiveState, Stored};
use crate::stream::{ReadError, Reading, Side, closed, tag};

/// The place in the lane up to which this end has read.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
struct Position {
    cursor: ReceiveCursor,
    /// Bytes that were read of the message at the head.
    slot_offset: usize,
    /// Announced bytes of the sink that were not read.
    chunk_left: u64,
}

/// The receiving direction of an end. Any bytes are valid. Zeroed memory is that of a new
/// connection.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
pub struct ReceiveSide {
    /// The place and a former one: a move writes the one that is not in force, and then `moves`. So
    /// a process that dies at any instruction leaves a place for those that share the connection.
    positions: [Position; 2],
    /// How often the place moved. The lowest bit says which of the two is in force.
    moves: u64,
    route: Inward,
    tcp_bytes: u64,
    lane_bytes: u64,
    /// Room returned since a read last considered a wakeup for the peer.
    unrung_bytes: u64,
    unrung_messages: u64,
    /// Not 0 since something was taken, until a read finds nothing and nobody waits for the room.
    owes_room: u64,
    state: Stored<ReceiveState>,
    /// Bytes of the stream that came on lanes, whether or not this end read them there.
    stream: u64,
}

impl ReceiveSide {
    fn in_force(&self) -> usize {
        usize::from(!self.moves.is_multiple_of(2))
    }

    #[inline]
    fn position(&self) -> Position {
        self.positions[self.in_force()]
    }

    /// Moves the place, in one step for those that share the memory.
    #[inline]
    fn move_to(&mut self, position: Position) {
        self.owes_room = 1;
        self.positions[1 - self.in_force()] = position;
        // Only the order of the instructions matters: a process that died wrote all before it died.
        compiler_fence(Ordering::SeqCst);
        self.moves = self.moves.wrapping_add(1);
        compiler_fence(Ordering::SeqCst);
    }

    /// The place from which the next bytes come. Each call may cross to the lane, and after each
    /// read from TCP the place may be another.
    #[inline(always)]
    pub fn origin<L: Carry>(&mut self, lane: &L) -> Origin {
        if !self.route.on_lane() {
            return if self.is_broken() { Origin::Lane } else { self.route.on_tcp(lane) };
        }
        if self.is_at_return(lane) { Origin::Return } else { Origin::Lane }
    }

    /// Stops reading the lane, and asks the peer to send all bytes that are unread there over TCP.
    /// Call it before this end leaves for good. Until the peer has answered, there are no bytes to
    /// read. A peer that left before it saw the request has sent copies of them, or those that its
    /// kernel took: if not all, this end reads on from the lane.
    pub fn request_resend<L: Carry>(&mut self, lane: &L) {
        if !peer_rings(lane) {
            // The peer sends them again by itself when it leaves.
            return;
        }
        let has_left = self.route.on_lane() && self.route.has_boundary(lane);
        let may = !has_left
            || Copies::of(lane).are_all && self.route.has_copies(lane, self.rest(lane).bytes);
        if self.state.get() != ReceiveState::Open || !may {
            return;
        }
        // A peer that has left gets the request with the crossing to TCP, which follows: it may
        // come to the lane again before it sees that this end left for good.
        if !has_left {
            self.post_request(lane);
        }
        self.state.set(ReceiveState::AwaitingResend);
    }

    fn post_request<L: Carry>(&self, lane: &L) {
        let Position { cursor, slot_offset, chunk_left } = self.position();
        let (messages, bytes) = (cursor.messages, cursor.bytes);
        ResendRequest { messages, bytes, offset: slot_offset, chunk_left }.post(lane);
    }

    /// Ends a request that the peer did not answer before it died. This end reads on from the lane.
    pub fn end_resend_request<L: Carry>(&mut self, lane: &L) {
        if self.has_asked() && !self.route.has_boundary(lane) {
            self.state.set(ReceiveState::Open);
        }
    }

    /// Call it for a reader on TCP that has not taken the bytes before the peer's last stay on the
    /// lane. `Some(true)` if all that the peer sent, and will send, lies on TCP without a wakeup in
    /// between, because the peer sent again what it had on the lane. `None` until the peer is back
    /// on TCP for good, or with copies of all.
    pub fn is_all_on_tcp<L: Carry>(&self, lane: &L) -> Option<bool> {
        // This look comes first: a peer that is back has posted its boundaries before. It comes to
        // the lane again only when this end has crossed them.
        let peer = PeerRoute::of(lane);
        let is_all = peer.is_on_tcp() && self.route.is_round_trip(lane, peer);
        (peer.leaves_for_good() && peer.is_on_tcp() || is_all).then(|| self.has_asked() && is_all)
    }

    /// True if this end asked the peer to send all over TCP, and reads no more on the lane.
    #[inline]
    pub(crate) fn has_asked(&self) -> bool {
        self.state.get() == ReceiveState::AwaitingResend
    }

    /// True while the bytes on the lane must not be read.
    #[inline]
    fn awaits_resend<L: Carry>(&self, lane: &L) -> bool {
        self.has_asked() && self.route.on_lane() && self.may_be_resent(lane)
    }

    #[cold]
    fn may_be_resent<L: Carry>(&self, lane: &L) -> bool {
        if self.route.has_boundary(lane) {
            return Copies::of(lane).are_all;
        }
        // A peer that closed does not follow. A peer that only ended its sending direction does.
        matches!(Self::peer_closed(lane), None | Some(closed::WRITING))
    }

    /// The unread bytes of the lane, which stay there, for an end that requested them over TCP or
    /// whose peer is gone.
    pub(crate) fn look_at_rest<L: Lane>(&mut self, lane: &L) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(self.rest(lane).bytes).ok()?];
        (self.read_rest(lane, &mut bytes, true) == bytes.len()).then_some(bytes)
    }

    /// Takes `count` bytes of [`ReceiveSide::look_at_rest`], which lie on TCP. The request names
    /// the place behind them.
    pub(crate) fn pass_rest<L: Lane>(&mut self, lane: &L, count: usize) {
        if self.read_rest(lane, &mut vec![0; count], false) == count {
            self.post_request(lane);
        } else {
            self.break_off();
        }
    }

    /// Takes all that is unread on the lane, which lies on TCP, from a peer that is gone.
    pub(crate) fn drop_rest<L: Lane>(&mut self, lane: &L) {
        let rest = usize::try_from(self.rest(lane).bytes).unwrap_or(usize::MAX);
        if self.read_rest(lane, &mut vec![0; rest], false) != rest {
            self.break_off();
        }
    }

    /// Reads what the peer was asked to send again. Returns how many bytes that is.
    fn read_rest<L: Lane>(&mut self, lane: &L, target: &mut [u8], peek: bool) -> usize {
        let former = self.state.get();
        if target.is_empty() || former == ReceiveState::Broken {
            return 0;
        }
        self.state.set(ReceiveState::Open);
        let read = self.read(lane, target, peek).map_or(0, |reading| reading.bytes);
        if self.state.get() == ReceiveState::Open {
            self.state.set(former);
        }
        read
    }

    /// Marks the direction as broken, after the peer broke the protocol. All later reads fail, and
    /// a resend request gets no answer.
    pub fn break_off(&mut self) -> ReadError {
        self.state.set(ReceiveState::Broken);
        ReadError::Reset
    }

    /// True after [`ReceiveSide::break_off`], and if the memory holds an unknown state.
    #[inline]
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.state.get() == ReceiveState::Broken
    }

    /// True if everything before a boundary to TCP was read.
    #[inline(always)]
    fn is_at_return<L: Carry>(&self, lane: &L) -> bool {
        if self.awaits_resend(lane) {
            return self.route.has_boundary(lane);
        }
        !self.is_broken()
            && self.position().chunk_left == 0
            && self.route.is_at_return(lane, self.position().cursor.messages)
    }

    /// Crosses to TCP. Call it after [`ReceiveSide::origin`] returned [`Origin::Return`]. All
    /// earlier wakeups lie in front of the data on TCP, so the caller first forgets which of them
    /// are stale.
    pub fn return_to_tcp<L: Lane>(&mut self, lane: &L) {
        if !self.on_lane() {
            self.break_off();
            return;
        }
        // From here on the wakeups of rung words are counted by their position on TCP. The words
        // change before the peer learns that it may come to the lane again, and ring again.
        if peer_rings(lane) {
            lane.rearm(WaitFor::Data);
            lane.rearm(WaitFor::Room);
        }
        let (copies, mut unread) = (Copies::of(lane).bytes, 0);
        if self.awaits_resend(lane) {
            let rest = self.rest(lane);
            unread = rest.bytes;
            if unread > copies {
                self.break_off();
                return;
            }
            self.move_to(Position { cursor: rest.end, slot_offset: 0, chunk_left: 0 });
            self.post_request(lane);
        } else if self.has_asked() {
            // The peer must not find the request when it comes to the lane again.
            ResendRequest::withdraw(lane);
            self.state.set(ReceiveState::Open);
        }
        self.route.cross_to_tcp(lane, copies, unread);
    }

    /// Crosses to TCP across a network, where the peer's record says so. All that the peer sent on
    /// the lane and this end has not read there follows on TCP, behind bytes that it has read. The
    /// direction breaks if the record makes no sense.
    pub(crate) fn return_by_record<L: Lane>(&mut self, lane: &L, record: &Record) {
        let read = self.stream;
        let again = u64::from(record.again);
        let skip = read.wrapping_add(again).wrapping_sub(record.sent);
        let cursor = self.position().cursor;
        let makes_sense = skip <= again
            && record.messages.wrapping_sub(cursor.messages) <= lane.mailbox_depth()
            && record.bytes.wrapping_sub(cursor.bytes) <= lane.sink_bytes()
            && self.route.cross_by_record(lane, record, skip);
        if !makes_sense {
            self.break_off();
            return;
        }
        self.stream = record.sent;
        // The room of what was not read there comes free, too, as far as the lane lives.
        let mut cursor = ReceiveCursor { messages: record.messages, bytes: record.bytes, ..cursor };
        self.move_to(Position { cursor, slot_offset: 0, chunk_left: 0 });
        lane.release(&mut cursor, 0);
        self.positions[self.in_force()].cursor.messages_returned = cursor.messages_returned;
    }

    /// True if a record of the peer said that its direction stays on TCP.
    #[inline]
    #[must_use]
    pub const fn stays_on_tcp(&self) -> bool {
        self.route.stays_on_tcp()
    }

    /// For a record at the end: one more than the messages that this end has taken. 0 if bytes of
    /// the last one are unread.
    #[must_use]
    pub fn taken(&self) -> u64 {
        let Position { cursor, slot_offset, chunk_left } = self.position();
        let is_whole = slot_offset == 0 && chunk_left == 0;
        if is_whole { cursor.messages.wrapping_add(1) } else { 0 }
    }

    /// True if the peer's record promised bytes that did not come yet.
    pub(crate) const fn is_owed_bytes(&self) -> bool {
        self.route.is_owed()
    }

    /// True if a record of the peer may lie among data on TCP: the reader does not know where the
    /// peer left TCP, if it did.
    pub(crate) fn may_meet_record<L: Carry>(&self, lane: &L) -> bool {
        !peer_rings(lane)
            && !self.on_lane()
            && !self.stays_on_tcp()
            && !self.route.has_boundary(lane)
    }

    /// True if the peer's direction needs the lane no more, and all that it sent there was read.
    pub fn is_given_back<L: Carry>(&mut self, lane: &L) -> bool {
        // This look comes first: a peer that leaves for good and is on TCP stays there.
        let peer = PeerRoute::of(lane);
        let was_told = match peer_rings(lane) {
            true => peer.leaves_for_good() && peer.is_on_tcp(),
            false => self.stays_on_tcp() && peer.leaves_for_good(),
        };
        was_told && !self.is_broken() && self.origin(lane) == Origin::Tcp { at_most: None }
    }

    /// Goes on over TCP without the lane, as [`crate::SendSide::forget_lane`] does.
    pub fn forget_lane(&mut self) {
        if self.on_lane() || self.is_broken() {
            self.break_off();
            return;
        }
        self.move_to(Position::default());
        self.unrung_bytes = 0;
        self.unrung_messages = 0;
        self.state.set(ReceiveState::Open);
        self.route.forget_lane();
    }

    /// Begins a call that takes bytes from TCP. [`ReceiveSide::took_tcp`] or
    /// [`ReceiveSide::took_wakeups`] ends it.
    pub fn begin_tcp(&mut self) {
        // A process died in such a call. It may have taken bytes uncounted, so no boundary can be
        // found.
        if !self.route.begin_counting() {
            self.break_off();
        }
    }

    /// How many of `bytes` unread bytes on TCP are data. The others are wakeups behind a boundary.
    /// Call it while [`ReceiveSide::origin`] returns [`Origin::Tcp`].
    pub fn data_of<L: Carry>(&self, lane: &L, bytes: usize) -> usize {
        self.route.data_of(lane, bytes)
    }

    /// Counts `bytes` of data that were taken from TCP.
    pub fn took_tcp(&mut self, bytes: usize) {
        if self.on_lane() && bytes > 0 {
            // After the switch only wakeups come from TCP.
            self.break_off();
        }
        self.route.count(bytes as u64);
        self.tcp_bytes = self.tcp_bytes.wrapping_add(bytes as u64);
    }

    /// The number of bytes taken from TCP since the connection began, wakeups among them.
    #[must_use]
    pub const fn tcp_taken(&self) -> u64 {
        self.route.taken()
    }

    /// Sets the number of bytes taken from TCP since the connection began, as
    /// [`crate::SendSide::set_tcp_written`] does.
    pub fn set_tcp_taken(&mut self, bytes: u64) {
        if self.on_lane() {
            // The boundary to the lane stands for the former count.
            self.break_off();
            return;
        }
        self.route.set_taken(bytes);
    }

    /// How many of `seen` unread bytes on TCP are wakeups. Look at TCP first, then call it.
    pub fn wakeups_of<L: Carry>(&self, lane: &L, seen: usize) -> usize {
        self.route.wakeups_of(lane, seen)
    }

    /// How many bytes come next on TCP that this end has taken from the lane.
    pub(crate) fn copies(&self) -> usize {
        self.route.copies()
    }

    /// True if copies of bytes of the lane may lie on TCP behind the wakeups, and this end does not
    /// know where they begin.
    pub(crate) fn may_meet_copies<L: Carry>(&self, lane: &L) -> bool {
        self.on_lane() && PeerRoute::of(lane).leaving().is_some() && !self.route.has_boundary(lane)
    }

    /// Counts `wakeups` wakeups that were taken from TCP, or copies.
    pub fn took_wakeups(&mut self, wakeups: usize) {
        self.route.count(wakeups as u64);
    }

    /// True while this direction is on the lane.
    #[must_use]
    pub const fn on_lane(&self) -> bool {
        self.route.on_lane()
    }

    /// Copies bytes that have arrived on the lane. With `peek` they stay there.
    ///
    /// # Errors
    /// [`ReadError`], if no byte was copied.
    pub fn read<L: Lane>(
        &mut self,
        lane: &L,
        target: &mut [u8],
        peek: bool,
    ) -> Result<Reading, ReadError> {
        if self.is_broken() {
            return Err(ReadError::Reset);
        }
        if self.awaits_resend(lane) {
            return Err(self.why_empty(lane));
        }
        let mut walk = Walk { position: self.position(), skip: 0 };
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
        self.stream = self.stream.wrapping_add(filled as u64);
        Ok(Reading { bytes: filled, room: self.must_ring_for_room(lane) })
    }

    /// Copies bytes of the chunk or message at the head. 0 if there is none.
    #[inline]
    fn step<L: Carry>(
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
                        self.move_to(walk.position);
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

    fn step_chunk<L: Carry>(
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
            // The position moves before the room is returned. A process that dies in between has
            // read the bytes once, and the next release returns their room, too.
            let mut cursor = walk.position.cursor;
            cursor.bytes = cursor.bytes.wrapping_add(size as u64);
            self.move_to(Position { cursor, ..walk.position });
            lane.release(&mut walk.position.cursor, size as u64);
            self.unrung_bytes = self.unrung_bytes.wrapping_add(size as u64);
        }
        size
    }

    /// Moves the position behind the message at the head.
    fn pass<L: Carry>(&mut self, lane: &L, walk: &mut Walk, peek: bool) {
        if peek {
            walk.position.cursor.messages = walk.position.cursor.messages.wrapping_add(1);
            return;
        }
        // As in `step_chunk`: the peer may fill the slot again as soon as it is returned.
        let mut after = walk.position;
        after.cursor.messages = after.cursor.messages.wrapping_add(1);
        self.move_to(after);
        lane.advance(&mut walk.position.cursor, false);
        // The peer was told; a process that dies before it notes this tells the peer again.
        let returned = walk.position.cursor.messages_returned;
        self.positions[self.in_force()].cursor.messages_returned = returned;
        self.unrung_messages = self.unrung_messages.wrapping_add(1);
    }

    /// True if the peer waits for room and should be rung: a good part of the room came free, or
    /// nothing is left to read. Without the second case the peer could wait for ever.
    fn must_ring_for_room<L: Lane>(&mut self, lane: &L) -> bool {
        let much = self.unrung_bytes >= lane.sink_bytes() / 4
            || self.unrung_messages >= lane.mailbox_depth() / 2;
        if !much && !self.is_drained(lane) {
            return false;
        }
        self.unrung_bytes = 0;
        self.unrung_messages = 0;
        lane.is_awaited(WaitFor::Room)
    }

    /// Call it for a read that found nothing. A reader that died may have taken bytes without
    /// returning their room, or without ringing the peer that waits for it; then both would wait.
    /// Returns the room. True if the peer should be rung.
    #[inline]
    pub fn settle_room<L: Lane>(&mut self, lane: &L) -> bool {
        self.owes_room != 0 && self.settle_debt(lane)
    }

    fn settle_debt<L: Lane>(&mut self, lane: &L) -> bool {
        if self.on_lane() && !self.is_broken() && !self.awaits_resend(lane) {
            lane.release(&mut self.position().cursor, 0);
        }
        let is_awaited = lane.is_awaited(WaitFor::Room);
        // A process that dies before it has rung leaves the debt.
        self.owes_room = u64::from(is_awaited);
        is_awaited
    }

    fn is_drained<L: Carry>(&self, lane: &L) -> bool {
        self.awaits_resend(lane) || !self.has_unread(lane)
    }

    /// True while unread bytes lie on the lane, even if the peer was asked to send them again.
    pub fn has_unread<L: Carry>(&self, lane: &L) -> bool {
        self.position().chunk_left != 0 || !matches!(lane.peek(&self.position().cursor), Ok(None))
    }

    fn why_empty<L: Carry>(&self, lane: &L) -> ReadError {
        match self.ended(lane) {
            None if self.is_at_return(lane) => ReadError::Return,
            None => ReadError::Empty,
            Some(closed::RESET) => ReadError::Reset,
            Some(_) => ReadError::Ended,
        }
    }

    /// The way in which the peer ended its direction, once all bytes before the end were read.
    #[inline]
    pub fn ended<L: Carry>(&self, lane: &L) -> Option<u64> {
        let value = lane.posted(word::CLOSED);
        // A message sent before the end is visible with it. If the end counts more messages than
        // were read, the caller looks again.
        let read_all =
            value != 0 && (value >> 2).saturating_sub(1) <= self.position().cursor.messages;
        // These looks come after the look at the end. An end behind a boundary to TCP is told on
        // TCP.
        let here = read_all
            && self.position().chunk_left == 0
            && !self.awaits_resend(lane)
            && !self.is_at_return(lane);
        here.then_some(value & closed::MASK)
    }

    /// The way in which the peer closed, whether or not all bytes were read.
    pub fn peer_closed<L: Carry>(lane: &L) -> Option<u64> {
        match lane.posted(word::CLOSED) {
            0 => None,
            value => Some(value & closed::MASK),
        }
    }

    /// True if all that the peer did to the lane before its kernel ended the connection is visible.
    /// Call it when the kernel has told of that end. Across a network the kernel's word may come
    /// first. Then the peer's own word follows, or the lane ends.
    #[inline]
    pub fn end_is_visible<L: Carry>(lane: &L) -> bool {
        peer_rings(lane) || lane.is_over() || Self::peer_closed(lane).is_some()
    }

    /// True if the peer ended its direction on TCP. The kernel's socket then tells that end, and
    /// nothing more about the peer.
    pub fn ended_on_tcp<L: Carry>(lane: &L) -> bool {
        PeerRoute::ended_on_tcp(lane)
    }

    /// Tells the peer that this process ends, and how many bytes of TCP it has taken. Its threads
    /// may still use both directions. The kernel is about to close the socket, and resets the
    /// connection if a wakeup lies there unread ([`crate::SendSide::only_wakeups_unread`]).
    pub fn end_with_process<L: Carry>(&self, lane: &L, side: Side) {
        let ending = presence::ending(self.route.taken());
        lane.post(word::PRESENCE, presence::attached(lane, side) | ending);
    }

    /// True if the peer said that it has the lane. Across a network both ends say so.
    pub(crate) fn peer_has_lane<L: Carry>(lane: &L) -> bool {
        lane.posted(word::PRESENCE) & presence::ATTACHED != 0
    }

    /// True if the peer's process said that it ends ([`ReceiveSide::end_with_process`]). What it
    /// sent before is visible. When the lane is over, that is an end of the connection as a goodbye
    /// is.
    pub fn peer_ends_with_process<L: Carry>(lane: &L) -> bool {
        presence::taken_at_end(lane).is_some()
    }

    /// True if a read would not return [`ReadError::Empty`].
    #[inline]
    pub fn readable<L: Carry>(&self, lane: &L) -> bool {
        self.is_broken()
            || !self.is_drained(lane)
            || self.ended(lane).is_some()
            || self.is_at_return(lane)
    }

    /// How many bytes on TCP lie before the data that follow those of the lane, if the peer went
    /// back to TCP and this end has not read the lane to its end. All that the peer sent on the
    /// lane before is visible. Across a network nobody knows before the record is there.
    pub fn behind_lane<L: Carry>(&self, lane: &L) -> Option<u64> {
        let is_there = peer_rings(lane)
            && self.on_lane()
            && self.route.has_boundary(lane)
            && !self.is_broken()
            && !self.awaits_resend(lane);
        is_there.then(|| lane.posted(word::TO_TCP_POSITION).saturating_sub(self.route.taken()))
    }

    /// How many copies of bytes of the lane come next on TCP, while this end is on the lane.
    pub(crate) fn copies_behind<L: Carry>(&self, lane: &L) -> usize {
        let behind = if self.wakeups_of(lane, 1) > 0 { None } else { self.behind_lane(lane) };
        behind.map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// True while unread bytes lie on the lane and may be read there.
    pub fn has_data<L: Carry>(&self, lane: &L) -> bool {
        !self.is_drained(lane)
    }

    /// Number of messages that arrived so far, plus 1 after the peer's end. A higher number than
    /// before is an edge for epoll. `from` is the result of a former call.
    pub fn arrived<L: Carry>(&self, lane: &L, from: u64) -> u64 {
        let taken = self.position().cursor.messages;
        // A mailbox holds no more. Without this bound a hostile peer could fill slots as fast as
        // the loop counts them.
        let arrived_max = taken.wrapping_add(lane.mailbox_depth());
        let mut probe = self.position().cursor;
        probe.messages = from.clamp(taken, arrived_max.max(taken));
        while probe.messages < arrived_max && matches!(lane.peek(&probe), Ok(Some(_))) {
            probe.messages += 1;
        }
        // The end of a direction on TCP is told there.
        let ended = lane.posted(word::CLOSED) != 0
            && (self.route.on_lane() || !PeerRoute::of(lane).is_on_tcp());
        probe.messages.wrapping_add(u64::from(ended))
    }

    /// Number of bytes that can be read at once (FIONREAD), if the peer's messages make sense.
    pub fn available<L: Carry>(&self, lane: &L) -> u64 {
        if self.awaits_resend(lane) { 0 } else { self.rest(lane).bytes }
    }

    /// The unread bytes on the lane, if the peer's messages make sense.
    fn rest<L: Carry>(&self, lane: &L) -> Rest {
        let mut cursor = self.position().cursor;
        let mut messages = 0;
        let mut chunks = self.position().chunk_left;
        let mut offset = self.position().slot_offset as u64;
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
        let chunks = chunks.min(lane.sink_bytes());
        cursor.bytes = cursor.bytes.wrapping_add(chunks);
        Rest { bytes: messages + chunks, end: cursor }
    }

    /// Number of messages received over the lane.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.position().cursor.messages
    }

    /// Number of bytes taken from TCP that are no data, as [`crate::SendSide::wakeups`].
    #[must_use]
    pub const fn wakeups(&self) -> u64 {
        self.route.taken().saturating_sub(self.tcp_bytes)
    }

    /// Number of bytes received over TCP and over the lane.
    #[must_use]
    pub const fn totals(&self) -> (u64, u64) {
        (self.tcp_bytes, self.lane_bytes)
    }
}

/// The unread bytes on the lane: their number, and the place behind them.
struct Rest {
    bytes: u64,
    end: ReceiveCursor,
}

/// A read in progress: its position, and how many bytes of the sink a peek has passed.
struct Walk {
    position: Position,
    skip: u64,
}
