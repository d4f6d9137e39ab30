//! The sending direction of an end.
//!
//! Any bytes are a valid [`SendSide`], since other processes can write its memory. So no call
//! relies on what another call left there. A call that finds a state to which no order of calls
//! leads breaks the direction off: writes then give a reset.

use weft_fabric::{Carry, Lane, SendCursor, WaitFor};
use zerocopy::{FromBytes, IntoBytes};

use crate::medium::peer_rings;
use crate::record::{self, Record};
use crate::route::{
    Copies, Leave, Outward, PeerRoute, ResendRequest, acquaintance, presence, word,
};
use crate::state::{SendState, Stored, UnreadByPeer};
use crate::stream::{CHUNK_BYTES_MAX, Limits, Side, WriteError, Written, closed, tag};

/// The sending direction of an end. Any bytes are valid. Zeroed memory is that of a new connection.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
pub struct SendSide {
    cursor: SendCursor,
    route: Outward,
    tcp_bytes: u64,
    lane_bytes: u64,
    /// Size of the send buffer in bytes, 0 if the program did not set it.
    send_buffer: u64,
    state: Stored<SendState>,
    unread: Stored<UnreadByPeer>,
    /// Bytes of the stream that were sent on lanes, whether or not they were sent again over TCP.
    stream: u64,
    returning: Returning,
}

/// The record of a direction that goes back to TCP across a network, and the bytes behind it.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
struct Returning {
    /// The first bytes that the peer may not have taken.
    place: Place,
    /// How many bytes the record and those behind it are. 0 while there is nothing to send.
    length: u64,
    /// How many of them TCP took.
    gone: u64,
    /// Not 0 if the direction does not come to the lane again.
    is_last: u64,
    /// Not 0 if the peer is not known to have followed to the lane. It then looks for the record
    /// among data, and must not see a part of it.
    is_alone: u64,
    /// The messages that this end has taken, as the record says.
    taken: u64,
}

/// Bytes of the lane that go over TCP, too.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Again {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// True if the peer requested them ([`crate::ReceiveSide::request_resend`]), and does not read
    /// them on the lane. Otherwise it does, and those that the kernel does not take at once need
    /// not go.
    pub is_requested: bool,
}

/// A place in what was sent on the lane.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
struct Place {
    messages: u64,
    bytes: u64,
    chunk_left: u64,
}

impl From<Place> for ResendRequest {
    fn from(place: Place) -> Self {
        let Place { messages, bytes, chunk_left } = place;
        Self { messages, bytes, offset: 0, chunk_left }
    }
}

impl SendSide {
    /// Tells the peer that this end has the lane. Call it once, before any thread of this end uses
    /// the lane.
    ///
    /// A thread of this end may sleep on TCP without knowing of the lane, so the word for data is
    /// armed for it. The fence pairs with the one of [`SendSide::shut`]: either this end sees that
    /// the peer ended its direction on TCP, or the peer sees that this end has the lane.
    pub fn attach<L: Lane>(lane: &L) {
        lane.arm(WaitFor::Data);
        lane.post(word::PRESENCE, presence::ATTACHED);
        lane.settle();
    }

    /// True if the peer has the lane, so that it will read data sent there. On one host the
    /// accepting end made the lane, and has it from the beginning. Across a network each end comes
    /// to its own end of the lane by itself, and says so.
    #[inline]
    pub fn peer_attached<L: Carry>(lane: &L, side: Side) -> bool {
        (side == Side::Connected && peer_rings(lane))
            || lane.posted(word::PRESENCE) & presence::ATTACHED != 0
    }

    /// True if nothing but wakeups of this direction can lie unread in the socket of a peer that is
    /// gone. A reset by the peer's kernel then means nothing. This is so if the peer followed to
    /// the lane and this direction is still there, or if the peer said that its process ends
    /// ([`crate::ReceiveSide::end_with_process`]) and had taken all data that went over TCP.
    pub fn only_wakeups_unread<L: Carry>(&self, lane: &L) -> bool {
        let took_all = |taken| taken >= self.route.data_end();
        self.route.is_followed(lane) || presence::taken_at_end(lane).is_some_and(took_all)
    }

    /// Moves this direction to the lane if the peer has the lane and will follow. True if the
    /// direction is there. Also true if the direction is broken, since [`SendSide::write`] reports
    /// that.
    #[inline]
    pub fn switch<L: Carry>(&mut self, lane: &L, side: Side) -> bool {
        self.route.on_lane()
            || !PeerRoute::ended_on_tcp(lane) && self.cross(lane, side)
            || self.state.get() == SendState::Broken
    }

    /// As [`SendSide::switch`], for data, also to a peer that ended its own direction on TCP. It
    /// takes bytes, but rings for no room: a writer that waits for room looks for it.
    #[inline]
    pub fn switch_for_data<L: Carry>(&mut self, lane: &L, side: Side) -> bool {
        self.switch(lane, side) || peer_rings(lane) && self.cross(lane, side)
    }

    fn cross<L: Carry>(&mut self, lane: &L, side: Side) -> bool {
        // A peer that left for good reads no lane.
        let may = self.state.get() == SendState::Open
            && !self.is_returning()
            && self.returning.is_last == 0
            && Self::peer_attached(lane, side)
            && !PeerRoute::of(lane).calls_away()
            && !lane.is_over()
            && self.route.may_cross(lane)
            // Until something has landed there, a lane over a network may refuse all, and a
            // program that does not wait would be told of a full buffer.
            && (peer_rings(lane)
                || lane.posted(word::ACQUAINTANCE) == acquaintance::IS_MUTUAL
                    && lane.has_landed());
        if may {
            self.route.go_to_lane(lane);
            self.unread.set(UnreadByPeer::OnLane);
        }
        may
    }

    /// True while this direction is on the lane.
    #[inline]
    #[must_use]
    pub const fn on_lane(&self) -> bool {
        self.route.on_lane()
    }

    /// True if the peer knows where this direction is: on TCP from the beginning, or on the lane.
    pub(crate) fn is_followed<L: Carry>(&self, lane: &L) -> bool {
        !self.on_lane() || self.route.is_followed(lane)
    }

    /// True if this direction went back to TCP for good.
    #[must_use]
    pub fn is_back_for_good(&self) -> bool {
        !self.on_lane() && !self.is_returning() && self.route.leaves(Leave::ForGood)
    }

    /// True if this direction needs the lane no more, so that another lane may follow. False after
    /// the end of the direction, of which another lane would not know.
    #[must_use]
    pub fn has_given_back(&self) -> bool {
        !self.on_lane()
            && !self.is_returning()
            && self.state.get() == SendState::Open
            && self.route.is_for_good()
            && !self.route.leaves(Leave::ForGood)
    }

    /// Goes on over TCP without the lane. Both ends must have given back both directions
    /// ([`SendSide::has_given_back`], [`crate::ReceiveSide::is_given_back`]). The counts of TCP
    /// stay, so that another lane can follow.
    pub fn forget_lane(&mut self) {
        if !self.has_given_back() {
            self.break_off();
            return;
        }
        self.cursor = SendCursor::default();
        self.unread.set(UnreadByPeer::OnLane);
        self.returning = Returning::default();
        self.route.forget_lane();
    }

    /// Begins a call that sends data or a wakeup over TCP. [`SendSide::wrote_tcp`] or
    /// [`SendSide::wrote_wakeups`] ends it.
    pub fn begin_tcp(&mut self) {
        self.route.begin_counting();
    }

    /// Counts `bytes` of data that went to TCP.
    pub fn wrote_tcp(&mut self, bytes: usize) {
        if self.on_lane() && bytes > 0 {
            // Nothing but wakeups goes to TCP beside the lane.
            self.break_off();
        }
        self.route.count(bytes as u64);
        self.tcp_bytes = self.tcp_bytes.wrapping_add(bytes as u64);
    }

    /// Sets the number of bytes that went to TCP since the connection began to the kernel's count.
    /// For use without a lane: the program may have used the kernel's socket past the library.
    pub fn set_tcp_written(&mut self, bytes: u64) {
        if self.on_lane() {
            // The boundary to the lane stands for the former count.
            self.break_off();
            return;
        }
        self.route.set_position(bytes);
    }

    /// The number of bytes that went to TCP since the connection began, wakeups among them.
    #[must_use]
    pub const fn tcp_written(&self) -> u64 {
        self.route.position()
    }

    /// Counts `wakeups` wakeups that went to TCP, 0 or 1.
    pub fn wrote_wakeups(&mut self, wakeups: u64) {
        self.route.count(wakeups);
    }

    /// True if the peer can send wakeups, so that a wait for room on the lane ends. Across a
    /// network it ends by the arrival of the room.
    pub fn peer_can_ring<L: Carry>(lane: &L) -> bool {
        !peer_rings(lane) || PeerRoute::of(lane).can_ring() && !PeerRoute::ended_on_tcp(lane)
    }

    /// True if the peer left the lane for good and wants this end to do the same.
    #[inline]
    pub fn peer_left<L: Carry>(lane: &L) -> bool {
        PeerRoute::of(lane).leaves_for_good()
    }

    /// True if the peer left the lane for good, or the daemon recalled it: see
    /// [`SendSide::leave_to_follow`].
    #[inline]
    pub fn is_called_away<L: Carry>(lane: &L) -> bool {
        PeerRoute::of(lane).calls_away()
    }

    /// The way in which the peer left the lane, or in which the daemon recalled it, if this end has
    /// not followed yet. The peer waits for this end to follow, even if this direction was never on
    /// the lane.
    #[inline]
    pub fn leave_to_follow<L: Carry>(&self, lane: &L) -> Option<Leave> {
        let peer = PeerRoute::of(lane);
        (peer.calls_away() && !self.route.is_for_good()).then(|| match peer.is_giving_back() {
            true => Leave::GivingBack,
            false => Leave::ForGood,
        })
    }

    /// True if the program set buffer sizes that hold less than the sink. A write must then stop
    /// where it would stop on TCP.
    pub fn has_small_buffers<L: Carry>(&self, lane: &L) -> bool {
        self.capacity(lane) < lane.sink_bytes()
    }

    /// Announces that this end will leave the lane. From then on the peer does not begin to wait
    /// for its wakeups. `None` if the end cannot leave. `Some(true)` if the peer waits already: the
    /// caller must ring it before [`SendSide::return_to_tcp`].
    ///
    /// Across a network [`SendSide::begin_return`] takes its place.
    pub fn leave<L: Lane>(&mut self, lane: &L, side: Side, how: Leave) -> Option<bool> {
        // This end can ring only while its direction is on the lane.
        self.switch(lane, side);
        if self.state.get() == SendState::Broken || !self.route.begin_leaving(lane, how) {
            return None;
        }
        lane.settle();
        // One wakeup ends both waits. The peer would count a second claimed word as a
        // second wakeup.
        Some(self.on_lane() && (lane.must_ring(WaitFor::Room) || lane.must_ring(WaitFor::Data)))
    }

    /// Begins to go back to TCP across a network. `how` says for how long, and `None` that this
    /// direction alone goes back, for good. True if the direction is on TCP, or was there:
    /// [`SendSide::next_of_return`] then gives what must go over TCP before anything else. False if
    /// it cannot go.
    ///
    /// The peer is told by a record on TCP, since the lane may be lost. All bytes follow that it is
    /// not known to have taken.
    ///
    /// `taken` is what [`crate::ReceiveSide::taken`] told, or 0.
    pub fn begin_return<L: Carry>(
        &mut self,
        lane: &L,
        side: Side,
        how: Option<Leave>,
        taken: u64,
    ) -> bool {
        let is_broken = self.state.get() == SendState::Broken;
        let is_last = how != Some(Leave::ForNow);
        if is_broken || how.is_some_and(|how| !self.route.begin_leaving(lane, how)) {
            return false;
        }
        if self.on_lane() {
            // A peer that the lane does not tell of takes no more of it: so the place stays.
            let Some((place, again)) = self.first_unread(lane) else { return false };
            let is_alone = u64::from(!self.route.is_followed(lane));
            if !self.route.go_to_tcp_by_record() {
                return false;
            }
            self.unread.set(UnreadByPeer::SentAgain);
            let length = record::BYTES as u64 + again;
            let is_last = 0;
            self.returning = Returning { place, length, gone: 0, is_last, is_alone, taken: 0 };
        } else if is_last && Self::peer_attached(lane, side) {
            self.tell_last();
        }
        // A peer that gets the lane later sees there that this end left it.
        // A record that went out said that the direction may come again: another one follows.
        if is_last && self.is_returning() && self.returning.gone == 0 {
            self.returning.is_last = 1;
        }
        if self.returning.gone == 0 {
            self.returning.taken = taken;
        }
        true
    }

    /// True while a record, or bytes behind it, have to go over TCP.
    #[inline]
    #[must_use]
    pub const fn is_returning(&self) -> bool {
        self.returning.length != 0
    }

    /// True if the record must wait until the peer's kernel has all that went over TCP before it.
    /// The peer then sees the record as a whole or not at all.
    #[must_use]
    pub const fn must_be_alone(&self) -> bool {
        self.returning.is_alone != 0 && self.returning.gone == 0
    }

    /// The record goes out beside other bytes.
    pub fn need_not_be_alone(&mut self) {
        self.returning.is_alone = 0;
    }

    /// The bytes that must go over TCP next. `None` if the lane does not
    /// have them.
    pub fn next_of_return<L: Carry>(&self, lane: &L) -> Option<Vec<u8>> {
        let Returning { place, length, gone, is_last, taken, .. } = self.returning;
        let again = self.behind(lane, place.into())?;
        let mut bytes = Record {
            lane: lane.token(),
            sent: self.stream,
            messages: self.cursor.messages,
            bytes: self.cursor.bytes,
            again: u32::try_from(again.len()).ok()?,
            crossings: self.route.crossings(),
            is_last: is_last != 0,
            taken,
        }
        .encode()
        .to_vec();
        bytes.extend(again);
        (bytes.len() as u64 == length && gone <= length).then(|| {
            bytes.drain(..usize::try_from(gone).unwrap_or(usize::MAX));
            bytes
        })
    }

    /// TCP took `bytes` of [`SendSide::next_of_return`].
    pub fn sent_of_return<L: Carry>(&mut self, lane: &L, bytes: usize) {
        self.returning.gone = self.returning.gone.saturating_add(bytes as u64);
        if self.returning.gone < self.returning.length {
            return;
        }
        let is_last = self.returning.is_last;
        self.returning = Returning { is_last, ..Returning::default() };
        self.route.told_by_record(lane);
        if self.route.is_for_good() {
            self.tell_last();
        }
    }

    /// A peer that got the lane after this end had left it for good is told so by a record.
    #[inline]
    pub fn tell_late_peer<L: Carry>(&mut self, lane: &L, side: Side) {
        if self.returning.is_last == 0
            && self.route.is_for_good()
            && !self.on_lane()
            && !peer_rings(lane)
            && Self::peer_attached(lane, side)
        {
            self.tell_last();
        }
    }

    /// A record without bytes behind it follows, which says that this is for good, unless one did.
    fn tell_last(&mut self) {
        if self.returning.is_last != 0 || self.is_returning() {
            return;
        }
        let (messages, bytes) = (self.cursor.messages, self.cursor.bytes);
        let place = Place { messages, bytes, chunk_left: 0 };
        let length = record::BYTES as u64;
        let (gone, is_last, is_alone) = (0, 1, 1);
        self.returning = Returning { place, length, gone, is_last, is_alone, taken: 0 };
    }

    /// The first bytes on the lane that the peer is not known to have taken, and how many there
    /// are. `None` if the lane does not have them any more.
    fn first_unread<L: Carry>(&mut self, lane: &L) -> Option<(Place, u64)> {
        lane.slots_free(&mut self.cursor, u64::MAX);
        lane.sink_free(&mut self.cursor, u64::MAX);
        let SendCursor { messages: sent, messages_taken, bytes: put, bytes_taken } = self.cursor;
        // Slots come back in batches.
        let messages_taken = lane.messages_read().unwrap_or(messages_taken);
        if sent.wrapping_sub(messages_taken) > lane.mailbox_depth()
            || put.wrapping_sub(bytes_taken) > lane.sink_bytes()
        {
            return None;
        }
        let chunk_of = |message: u64| {
            let mut payload = [0; 120];
            let slot = lane.look_back(message, &mut payload)?;
            let is_chunk = slot.tag == tag::RMA_INFO && slot.length == 4;
            let [a, b, c, d, ..] = payload;
            Some(if is_chunk { u64::from(u32::from_le_bytes([a, b, c, d])) } else { 0 })
        };
        let behind = (messages_taken..sent)
            .try_fold(0, |sum: u64, message| sum.checked_add(chunk_of(message)?))?;
        // Where the bytes of the sink begin that the messages from the first one on announce.
        let start = put.checked_sub(behind)?;
        let mut place = Place { messages: messages_taken, bytes: start, chunk_left: 0 };
        if bytes_taken < start {
            // All before the message before that one was taken. Of its own bytes, some may not be.
            let last = if messages_taken == 0 { 0 } else { chunk_of(messages_taken - 1)? };
            place.bytes = bytes_taken.max(start.checked_sub(last)?);
            place.chunk_left = start - place.bytes;
        }
        // The bytes may be known to be taken before the messages that announce them.
        let mut ahead = bytes_taken.saturating_sub(start);
        while ahead > 0 && place.messages < sent {
            let chunk = chunk_of(place.messages)?;
            place.messages += 1;
            let taken = chunk.min(ahead);
            ahead -= taken;
            place.bytes += taken;
            if taken < chunk {
                place.chunk_left = chunk - taken;
            }
        }
        let again = self.behind(lane, place.into())?.len() as u64;
        (again <= self.stream).then_some((place, again))
    }

    /// The bytes on the lane that the peer is not known to have taken, after [`SendSide::leave`].
    /// The caller sends them over TCP, counts them ([`SendSide::wrote_tcp`] would take them for
    /// data: [`SendSide::wrote_copies`]), and calls [`SendSide::return_to_tcp`].
    #[must_use]
    pub fn to_send_again<L: Carry>(&mut self, lane: &L) -> Again {
        if !self.on_lane() {
            return Again::default();
        }
        let request = ResendRequest::of(lane).filter(|_| self.route.is_for_good());
        if let Some(bytes) = request.and_then(|request| self.behind(lane, request)) {
            return Again { bytes, is_requested: true };
        }
        let unread = self.first_unread(lane);
        let bytes = unread.and_then(|(place, _)| self.behind(lane, place.into()));
        Again { bytes: bytes.unwrap_or_default(), is_requested: false }
    }

    /// Counts `bytes` of copies that went to TCP beside the lane.
    pub fn wrote_copies(&mut self, bytes: usize) {
        self.route.count(bytes as u64);
        self.tcp_bytes = self.tcp_bytes.wrapping_add(bytes as u64);
    }

    /// Goes on over TCP, behind `sent` bytes of `again`.
    pub fn return_to_tcp<L: Carry>(&mut self, lane: &L, again: &Again, sent: usize) {
        if !self.on_lane() {
            return;
        }
        let are_all = sent == again.bytes.len();
        // Without a byte on its way the peer needs no copy, and none is missing.
        if are_all && (sent > 0 || again.is_requested || !self.unread_by_peer(lane)) {
            self.unread.set(UnreadByPeer::SentAgain);
        }
        let are_all = self.unread.get() == UnreadByPeer::SentAgain;
        Copies { bytes: sent as u64, are_all }.post(lane);
        self.route.go_to_tcp(lane, self.cursor.messages);
    }

    /// How many bytes [`SendSide::to_send_again`] would give for an end that leaves for good.
    pub fn bytes_to_resend<L: Carry>(&self, lane: &L) -> usize {
        let request = ResendRequest::of(lane).filter(|_| self.on_lane());
        request.and_then(|request| self.behind(lane, request)).map_or(0, |bytes| bytes.len())
    }

    /// The bytes sent behind the place that the request names. `None` if that place makes no sense,
    /// or the lane cannot read the bytes back.
    fn behind<L: Carry>(&self, lane: &L, request: ResendRequest) -> Option<Vec<u8>> {
        let messages = self.cursor.messages.checked_sub(request.messages)?;
        let mut bytes_left = self.cursor.bytes.checked_sub(request.bytes)?;
        if messages > lane.mailbox_depth() || bytes_left > lane.sink_bytes() {
            return None;
        }
        let mut found = Vec::new();
        let mut position = request.bytes;
        let mut put = |found: &mut Vec<u8>, length: u64| {
            bytes_left = bytes_left.checked_sub(length)?;
            let start = found.len();
            found.resize(start + usize::try_from(length).ok()?, 0);
            let is_there = lane.view_back(position, &mut found[start..]);
            position = position.wrapping_add(length);
            is_there.then_some(())
        };
        if request.chunk_left > 0 {
            put(&mut found, request.chunk_left)?;
        }
        let mut offset = request.offset;
        for message in request.messages..self.cursor.messages {
            let mut payload = [0; 120];
            let slot = lane.look_back(message, &mut payload)?;
            let payload = payload.get(offset..usize::from(slot.length))?;
            offset = 0;
            match slot.tag {
                tag::RMA_INFO => {
                    put(&mut found, u64::from(u32::from_le_bytes(payload.try_into().ok()?)))?
                }
                _ => found.extend_from_slice(payload),
            }
        }
        (bytes_left == 0).then_some(found)
    }

    /// Call it after a read that made room. True if the caller must ring.
    pub fn rings_for_room<L: Lane>(&mut self, lane: &L, side: Side) -> bool {
        // A broken direction may be on TCP, where the peer would take a wakeup for data.
        self.switch(lane, side) && self.on_lane() && lane.must_ring(WaitFor::Room)
    }

    /// Notes the sizes in bytes that the program set for its kernel buffers, 0 for one that it did
    /// not set.
    ///
    /// As on TCP, the bytes on their way are then at most what the sender's and the receiver's
    /// buffer hold together. A buffer without a set size can grow beyond the sink.
    pub fn fix_buffers<L: Carry>(&mut self, lane: &L, send: u64, receive: u64) {
        self.send_buffer = send;
        lane.post(word::RECEIVE_BUFFER, receive);
    }

    /// Number of bytes of the peer's sink that may be used.
    #[inline]
    fn capacity<L: Carry>(&self, lane: &L) -> u64 {
        let sink = lane.sink_bytes();
        if self.send_buffer == 0 {
            return sink;
        }
        match lane.posted(word::RECEIVE_BUFFER) {
            0 => sink,
            held => self.send_buffer.saturating_add(held).min(sink),
        }
    }

    /// Number of free bytes of the capacity, at least `wanted` if that many are free.
    #[inline]
    fn sink_free<L: Carry>(&mut self, lane: &L, wanted: u64) -> u64 {
        let beyond = lane.sink_bytes() - self.capacity(lane);
        lane.sink_free(&mut self.cursor, wanted + beyond).saturating_sub(beyond)
    }

    /// Writes as many bytes of `parts` as there is room for.
    ///
    /// # Errors
    /// [`WriteError`], if no byte was written.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "a call costs a short write 5 % of its instructions")]
    pub fn write<L: Lane>(
        &mut self,
        lane: &L,
        parts: &[&[u8]],
        limits: Limits,
    ) -> Result<Written, WriteError> {
        match self.state.get() {
            SendState::Open if self.on_lane() => {}
            SendState::Shut => return Err(WriteError::Closed),
            // An open direction is not on the lane. The caller had to move it there first.
            SendState::Open | SendState::Broken => return Err(self.break_off()),
        }
        match lane.posted(word::CLOSED) {
            0 => {}
            value => match value & closed::MASK {
                closed::WRITING => {}
                closed::RESET => return Err(WriteError::Reset),
                _ => return Err(WriteError::Closed),
            },
        }
        if lane.is_over() {
            return Err(self.why_over(lane));
        }
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let bytes = match parts {
            _ if total == 0 => return Ok(Written { bytes: 0, ring: false }),
            _ if total <= L::MESSAGE_BYTES => self.send_one(lane, parts, total),
            _ if total <= limits.eager_bytes => self.send_many(lane, parts, total),
            _ => self.put_all(lane, parts, total, limits),
        };
        if bytes == 0 {
            return Err(WriteError::Full);
        }
        self.lane_bytes = self.lane_bytes.wrapping_add(bytes as u64);
        self.stream = self.stream.wrapping_add(bytes as u64);
        lane.account(self.lane_bytes);
        Ok(Written { bytes, ring: lane.must_ring(WaitFor::Data) })
    }

    /// The error of a write to a lane that is over without a goodbye. A peer whose process ended by
    /// itself, and had read all, is one that closed.
    #[cold]
    fn why_over<L: Carry>(&mut self, lane: &L) -> WriteError {
        let ended = presence::taken_at_end(lane).is_some() && !self.unread_by_peer(lane);
        if ended { WriteError::Closed } else { WriteError::Reset }
    }

    #[inline]
    fn send_one<L: Carry>(&mut self, lane: &L, parts: &[&[u8]], total: usize) -> usize {
        match lane.send(&mut self.cursor, tag::VELO_LAST, parts) {
            Ok(()) => total,
            Err(_) => 0,
        }
    }

    /// Sends an eager write as several messages and marks the last one.
    fn send_many<L: Carry>(&mut self, lane: &L, parts: &[&[u8]], total: usize) -> usize {
        let mut sent = 0;
        for part in parts {
            for piece in part.chunks(L::MESSAGE_BYTES) {
                let last = sent + piece.len() == total;
                let tag = if last { tag::VELO_LAST } else { tag::VELO };
                if lane.send(&mut self.cursor, tag, &[piece]).is_err() {
                    return sent;
                }
                sent += piece.len();
            }
        }
        sent
    }

    /// Puts pieces into the sink and announces each.
    fn put_all<L: Carry>(
        &mut self,
        lane: &L,
        parts: &[&[u8]],
        total: usize,
        limits: Limits,
    ) -> usize {
        // Without this bound, a little free room would cut all later writes into small pieces.
        let wanted = (self.capacity(lane) / 4).min(total as u64);
        if self.sink_free(lane, wanted) < wanted {
            return 0;
        }
        let mut written = 0;
        for part in parts {
            let mut rest = *part;
            while !rest.is_empty() {
                let size = rest.len().min(limits.chunk_bytes.clamp(1, CHUNK_BYTES_MAX));
                let free = self.sink_free(lane, size as u64);
                let size = size.min(usize::try_from(free).unwrap_or(usize::MAX));
                if size == 0 || lane.slots_free(&mut self.cursor, 1) == 0 {
                    return written;
                }
                let (piece, behind) = rest.split_at(size);
                let bytes_before = self.cursor.bytes;
                lane.put(&mut self.cursor, piece);
                let length = u32::try_from(size).expect("a chunk is at most 1 MiB");
                let announcement = length.to_le_bytes();
                if lane.send(&mut self.cursor, tag::RMA_INFO, &[&announcement]).is_err() {
                    // The lane died. The peer never learns of this piece, so it does not count as
                    // put.
                    self.cursor.bytes = bytes_before;
                    return written;
                }
                written += size;
                rest = behind;
            }
        }
        written
    }

    /// True if a write of any size would move at least one byte, or fail at once.
    pub fn writable<L: Carry>(&mut self, lane: &L) -> bool {
        let sink = self.capacity(lane) / 4;
        let slots = lane.mailbox_depth().min(4);
        self.is_shut()
            || lane.is_over()
            || (lane.slots_free(&mut self.cursor, slots) >= slots
                && self.sink_free(lane, sink) >= sink)
            || lane.posted(word::CLOSED) & closed::MASK != closed::WRITING
    }

    /// Ends this direction in a way of [`closed`]. A broken direction ends with a reset. True if
    /// the caller must ring. A direction on TCP needs no wakeup: the kernel's own shutdown or close
    /// wakes the peer.
    pub fn close<L: Lane>(&mut self, lane: &L, how: u64) -> bool {
        assert!(how <= closed::RESET, "{how} is not a way to close");
        let how = match self.state.get() {
            SendState::Shut if how == closed::RESET => closed::RESET_AFTER_END,
            SendState::Open | SendState::Shut => {
                self.state.set(SendState::Shut);
                how
            }
            SendState::Broken => closed::RESET,
        };
        self.post_end(lane, how);
        if !self.on_lane() {
            return false;
        }
        let data = lane.must_ring(WaitFor::Data);
        // A half close makes no room, so a writer that waits for room need not know of it. The peer
        // would count a second claimed word as a second wakeup.
        data | (how != closed::WRITING && lane.must_ring(WaitFor::Room))
    }

    /// Ends this direction across a network, where the kernel tells the end, behind all bytes. The
    /// caller first takes the direction back to TCP.
    pub fn close_on_tcp(&mut self) {
        if self.state.get() == SendState::Open {
            self.state.set(SendState::Shut);
        }
    }

    fn post_end<L: Carry>(&self, lane: &L, how: u64) {
        lane.post(word::CLOSED, self.cursor.messages.wrapping_add(1) << 2 | how);
    }

    /// Ends this direction and leaves the other one alone. `Some` if the direction ended on the
    /// lane, with true if the caller must ring. `None` if the caller must do the kernel's own half
    /// close.
    ///
    /// A peer that attaches later, or right now, learns that no wakeups will come, and stays on
    /// TCP.
    pub fn shut<L: Lane>(&mut self, lane: &L, side: Side) -> Option<bool> {
        if self.switch(lane, side) {
            return Some(self.close(lane, closed::WRITING));
        }
        self.post_end(lane, closed::WRITING);
        lane.settle();
        // The peer may have attached meanwhile. It may be on the lane already, and needs wakeups.
        let rings = self.switch(lane, side).then(|| self.close(lane, closed::WRITING));
        self.state.set(SendState::Shut);
        rings
    }

    /// Ends this direction on TCP, where the caller does the kernel's half close. For use without a
    /// lane: [`SendSide::tell_former_end`] tells one that follows.
    pub fn shut_without_lane(&mut self) {
        if self.on_lane() {
            self.break_off();
        }
        self.close_on_tcp();
    }

    /// Tells a new lane that this direction has ended on TCP, if that is so. Call it before the
    /// peer knows that this end has the lane: the peer then knows that no wakeups will come.
    pub fn tell_former_end<L: Carry>(&self, lane: &L) {
        if self.state.get() == SendState::Shut {
            self.post_end(lane, closed::WRITING);
        }
    }

    /// True if nothing more is sent: after [`SendSide::close`], or since the direction broke.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.state.get() != SendState::Open
    }

    /// Marks the direction as broken. All later writes fail.
    #[cold]
    fn break_off(&mut self) -> WriteError {
        self.state.set(SendState::Broken);
        WriteError::Reset
    }

    /// The peer said at its end that it has taken as many messages, and all bytes of them: see
    /// [`crate::ReceiveSide::taken`].
    pub(crate) fn was_taken(&mut self, told: u64) {
        if told == self.cursor.messages.wrapping_add(1) {
            self.unread.set(UnreadByPeer::SentAgain);
        }
    }

    /// True while the peer has not taken everything sent on the lane, as far as the lane can tell.
    /// Without [`Carry::messages_read`], the last messages, up to one batch, count as taken.
    pub fn unread_by_peer<L: Carry>(&mut self, lane: &L) -> bool {
        if self.unread.get() == UnreadByPeer::SentAgain {
            return false;
        }
        lane.slots_free(&mut self.cursor, u64::MAX);
        lane.sink_free(&mut self.cursor, u64::MAX);
        // The peer returns room of the sink at once.
        if self.cursor.bytes != self.cursor.bytes_taken {
            return true;
        }
        match lane.messages_read() {
            Some(read) => read != self.cursor.messages,
            // The peer returns slots in batches. More slots than one batch were certainly not read.
            None => {
                let slots = self.cursor.messages.wrapping_sub(self.cursor.messages_taken);
                slots > lane.mailbox_depth() / 4
            }
        }
    }

    /// A number that grows whenever the peer is seen to take something from the lane, or on one
    /// host from what lies on TCP before the lane.
    pub fn taken_by_peer<L: Carry>(&mut self, lane: &L) -> u64 {
        lane.slots_free(&mut self.cursor, u64::MAX);
        lane.sink_free(&mut self.cursor, u64::MAX);
        let messages = lane.messages_read().unwrap_or(self.cursor.messages_taken);
        let on_tcp = if peer_rings(lane) { lane.posted(word::TAKEN) } else { 0 };
        messages.wrapping_add(self.cursor.bytes_taken).wrapping_add(on_tcp)
    }

    /// Number of messages sent over the lane.
    #[must_use]
    pub const fn messages(&self) -> u64 {
        self.cursor.messages
    }

    /// Number of bytes that went over TCP and are no data, if the program used the kernel's socket
    /// by the library alone.
    #[must_use]
    pub const fn wakeups(&self) -> u64 {
        self.route.position().saturating_sub(self.tcp_bytes)
    }

    /// How many of `unacknowledged` bytes at the end of TCP are data.
    #[must_use]
    pub const fn data_of(&self, unacknowledged: u64) -> u64 {
        unacknowledged.saturating_sub(self.route.position().saturating_sub(self.route.data_end()))
    }

    /// Number of bytes sent over TCP and over the lane.
    #[must_use]
    pub const fn totals(&self) -> (u64, u64) {
        (self.tcp_bytes, self.lane_bytes)
    }
}
