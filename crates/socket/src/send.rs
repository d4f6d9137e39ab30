//! The sending direction of an end.
//!
//! Any bytes are a [`SendSide`]: other processes can write the memory where it lies. So no call
//! takes for granted what another one left there. One that finds a state to which no order of calls
//! leads breaks the direction off, and writes give a reset.

use weft_fabric::{Lane, SendCursor, WaitFor};
use zerocopy::{FromBytes, IntoBytes};

use crate::route::{Leave, Outward, PeerRoute, Recall, presence, word};
use crate::state::{SendState, Stored, UnreadByPeer};
use crate::stream::{CHUNK_BYTES_MAX, Limits, Side, WriteError, Written, closed, tag};

/// The sending direction of an end. Any bytes are one; zeroed memory is the beginning.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
pub struct SendSide {
    cursor: SendCursor,
    route: Outward,
    tcp_bytes: u64,
    lane_bytes: u64,
    /// Bytes that the send buffer holds, 0 when the program did not fix that.
    send_buffer: u64,
    state: Stored<SendState>,
    unread: Stored<UnreadByPeer>,
}

impl SendSide {
    /// Tells the peer that this end has the lane. Once, before anything else.
    ///
    /// Before any thread of this end uses the lane. One that sleeps on TCP knows nothing of it, so
    /// the word for data is armed for whoever that may be. With the fence of the sleepers: either
    /// this end sees that the other ended on TCP, or the other sees this one
    /// ([`SendSide::shut`]).
    pub fn attach<L: Lane>(lane: &L) {
        lane.arm(WaitFor::Data);
        lane.post(word::PRESENCE, presence::ATTACHED);
        lane.settle();
    }

    /// True when the peer has the lane, so that data sent there will be read.
    #[inline]
    pub fn peer_attached<L: Lane>(lane: &L, side: Side) -> bool {
        side == Side::Connected || lane.posted(word::PRESENCE) & presence::ATTACHED != 0
    }

    /// Whether nothing but wakeups of this direction can lie unread in the socket of a peer that is
    /// gone: a reset by its kernel then means nothing. True when the peer crossed to the lane where
    /// this direction is, or said that it ends ([`crate::ReceiveSide::end_with_process`]) and had
    /// taken all data that went over TCP.
    pub fn rings_alone<L: Lane>(&self, lane: &L) -> bool {
        let took_all = |taken| taken >= self.route.data_end();
        self.route.is_followed(lane) || presence::taken_at_end(lane).is_some_and(took_all)
    }

    /// Moves this direction to the lane if the peer has it and follows; true when it is there. Also
    /// true when it broke: [`SendSide::write`] tells that.
    #[inline]
    pub fn switch<L: Lane>(&mut self, lane: &L, side: Side) -> bool {
        self.route.on_lane() || self.cross(lane, side) || self.state.get() == SendState::Broken
    }

    fn cross<L: Lane>(&mut self, lane: &L, side: Side) -> bool {
        // A peer that ended on TCP sends no wakeups, and one that left for good reads no lane.
        let may = self.state.get() == SendState::Open
            && Self::peer_attached(lane, side)
            && !PeerRoute::ended_on_tcp(lane)
            && !PeerRoute::of(lane).leaves_for_good()
            && self.route.may_cross(lane);
        if may {
            self.route.go_to_lane(lane);
        }
        may
    }

    /// True while this direction is on the lane.
    #[inline]
    #[must_use]
    pub const fn on_lane(&self) -> bool {
        self.route.on_lane()
    }

    /// True when this direction was sent back to TCP for good.
    #[must_use]
    pub fn is_back_for_good(&self) -> bool {
        !self.on_lane() && self.route.leaves(Leave::ForGood)
    }

    /// True when this direction is done with the lane, and another one may come: not after its end,
    /// which another lane would not know of.
    #[must_use]
    pub fn has_given_back(&self) -> bool {
        !self.on_lane()
            && self.state.get() == SendState::Open
            && self.route.is_for_good()
            && !self.route.leaves(Leave::ForGood)
    }

    /// Goes on over TCP without the lane, which both directions of both ends are done with
    /// ([`SendSide::has_given_back`], [`crate::ReceiveSide::is_given_back`]). What was counted of
    /// TCP stays, so that another lane can follow.
    pub fn begin_again(&mut self) {
        if !self.has_given_back() {
            self.break_off();
            return;
        }
        self.cursor = SendCursor::default();
        self.unread.set(UnreadByPeer::OnLane);
        self.route.begin_again();
    }

    /// A call that sends data or a wakeup over TCP begins; [`SendSide::wrote_tcp`] or
    /// [`SendSide::rang`] ends it.
    pub fn begin_tcp(&mut self) {
        self.route.begin_counting();
    }

    /// Bytes of data went to TCP.
    pub fn wrote_tcp(&mut self, bytes: usize) {
        if self.on_lane() && bytes > 0 {
            // Nothing but wakeups goes to TCP beside the lane.
            self.break_off();
        }
        self.route.count(bytes as u64);
        self.tcp_bytes = self.tcp_bytes.wrapping_add(bytes as u64);
    }

    /// Bytes that went to TCP since the connection began, as the kernel counts them while there is
    /// no lane: the program may have used the kernel's socket by itself.
    pub fn has_written(&mut self, bytes: u64) {
        if self.on_lane() {
            // The lane goes on behind what was counted.
            self.break_off();
            return;
        }
        self.route.set_position(bytes);
    }

    /// So many wakeups went to TCP, 0 or 1.
    pub fn rang(&mut self, wakeups: u64) {
        self.route.count(wakeups);
    }

    /// True when the peer's wakeups can come, so that waiting for room on the lane has an end.
    pub fn is_answered<L: Lane>(lane: &L) -> bool {
        PeerRoute::of(lane).can_ring() && !PeerRoute::ended_on_tcp(lane)
    }

    /// True when the peer left the lane for good, and wants this end to do the same.
    #[inline]
    pub fn is_called<L: Lane>(lane: &L) -> bool {
        PeerRoute::of(lane).leaves_for_good()
    }

    /// How the peer left the lane, when this end did not follow yet, whether or not its direction
    /// was ever there: the peer waits for the answer.
    #[inline]
    pub fn called_back<L: Lane>(&self, lane: &L) -> Option<Leave> {
        let peer = PeerRoute::of(lane);
        (peer.leaves_for_good() && !self.route.is_for_good()).then(|| match peer.is_giving_back() {
            true => Leave::GivingBack,
            false => Leave::ForGood,
        })
    }

    /// True when the program fixed the sizes of its buffers below what the sink holds: a write is
    /// to stop there, as on TCP.
    pub fn is_limited<L: Lane>(&self, lane: &L) -> bool {
        self.capacity(lane) < lane.sink_bytes()
    }

    /// Announces that this end will leave the lane, from when on nobody begins to wait for its
    /// wakeups. `None` when it cannot; else whether the caller must ring those who wait already,
    /// before [`SendSide::go_back`].
    pub fn leave<L: Lane>(&mut self, lane: &L, side: Side, how: Leave) -> Option<bool> {
        // Wakeups ring from the lane alone.
        self.switch(lane, side);
        if self.state.get() == SendState::Broken || !self.route.begin_leaving(lane, how) {
            return None;
        }
        lane.settle();
        // One wakeup wakes for both; a second word claimed would be counted as a second one.
        Some(self.on_lane() && (lane.must_ring(WaitFor::Room) || lane.must_ring(WaitFor::Data)))
    }

    /// Goes on over TCP, after [`SendSide::leave`]. Returns what the caller has to send there again
    /// before anything else: a peer that stops reading the lane may want what it did not read
    /// ([`crate::ReceiveSide::recall`]).
    #[must_use]
    pub fn go_back<L: Lane>(&mut self, lane: &L) -> Vec<u8> {
        if !self.on_lane() {
            return Vec::new();
        }
        let recall = Recall::of(lane).filter(|_| self.route.is_for_good());
        let unread = recall.and_then(|recall| Some((recall, self.behind(lane, recall)?)));
        let Some((recall, bytes)) = unread else {
            self.route.go_to_tcp(lane, self.cursor.messages);
            return Vec::new();
        };
        self.unread.set(UnreadByPeer::SentAgain);
        lane.post(word::RECALLED, 1);
        self.route.go_to_tcp(lane, recall.messages);
        bytes
    }

    /// The bytes sent behind the place that the peer names; `None` when that place makes no sense,
    /// or the lane cannot tell.
    fn behind<L: Lane>(&self, lane: &L, recall: Recall) -> Option<Vec<u8>> {
        let messages = self.cursor.messages.checked_sub(recall.messages)?;
        let mut bytes_left = self.cursor.bytes.checked_sub(recall.bytes)?;
        if messages > lane.mailbox_depth() || bytes_left > lane.sink_bytes() {
            return None;
        }
        let mut found = Vec::new();
        let mut position = recall.bytes;
        let mut put = |found: &mut Vec<u8>, length: u64| {
            bytes_left = bytes_left.checked_sub(length)?;
            let start = found.len();
            found.resize(start + usize::try_from(length).ok()?, 0);
            let is_there = lane.view_back(position, &mut found[start..]);
            position = position.wrapping_add(length);
            is_there.then_some(())
        };
        if recall.chunk_left > 0 {
            put(&mut found, recall.chunk_left)?;
        }
        let mut offset = recall.offset;
        for message in recall.messages..self.cursor.messages {
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

    /// After a read that made room: true when the caller must ring.
    pub fn rings_for_room<L: Lane>(&mut self, lane: &L, side: Side) -> bool {
        // One that broke on TCP is not there, and its wakeup would be taken for data.
        self.switch(lane, side) && self.on_lane() && lane.must_ring(WaitFor::Room)
    }

    /// The program fixed the sizes of its kernel buffers to so many bytes, 0 where it did not.
    ///
    /// As on TCP, what is on its way is then at most what the sender's and the receiver's buffer
    /// hold together; a size that nobody fixed grows beyond the sink.
    pub fn fix_buffers<L: Lane>(&mut self, lane: &L, send: u64, receive: u64) {
        self.send_buffer = send;
        lane.post(word::RECEIVE_BUFFER, receive);
    }

    /// Bytes of the peer's sink that may be used.
    #[inline]
    fn capacity<L: Lane>(&self, lane: &L) -> u64 {
        let sink = lane.sink_bytes();
        if self.send_buffer == 0 {
            return sink;
        }
        match lane.posted(word::RECEIVE_BUFFER) {
            0 => sink,
            held => self.send_buffer.saturating_add(held).min(sink),
        }
    }

    /// Free bytes of that, at least `wanted` if that many are free.
    #[inline]
    fn sink_free<L: Lane>(&mut self, lane: &L, wanted: u64) -> u64 {
        let beyond = lane.sink_bytes() - self.capacity(lane);
        lane.sink_free(&mut self.cursor, wanted + beyond).saturating_sub(beyond)
    }

    /// Writes as much of `parts` as there is room for.
    ///
    /// # Errors
    /// [`WriteError`]; nothing was written then.
    pub fn write<L: Lane>(
        &mut self,
        lane: &L,
        parts: &[&[u8]],
        limits: Limits,
    ) -> Result<Written, WriteError> {
        match self.state.get() {
            SendState::Open if self.on_lane() => {}
            SendState::Shut => return Err(WriteError::Closed),
            // The direction moves to the lane before it is written to.
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
        lane.account(self.lane_bytes);
        Ok(Written { bytes, ring: lane.must_ring(WaitFor::Data) })
    }

    #[inline]
    fn send_one<L: Lane>(&mut self, lane: &L, parts: &[&[u8]], total: usize) -> usize {
        match lane.send(&mut self.cursor, tag::VELO_LAST, parts) {
            Ok(()) => total,
            Err(_) => 0,
        }
    }

    /// Eager: a run of messages, the last one marked.
    fn send_many<L: Lane>(&mut self, lane: &L, parts: &[&[u8]], total: usize) -> usize {
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

    /// Rendezvous put: pieces into the sink, each announced.
    fn put_all<L: Lane>(
        &mut self,
        lane: &L,
        parts: &[&[u8]],
        total: usize,
        limits: Limits,
    ) -> usize {
        // Small leftovers of room would make small pieces of everything that follows.
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
                    // The lane died under us: what nobody learns of was not put.
                    self.cursor.bytes = bytes_before;
                    return written;
                }
                written += size;
                rest = behind;
            }
        }
        written
    }

    /// True when a write of any size would move something.
    pub fn writable<L: Lane>(&mut self, lane: &L) -> bool {
        let sink = self.capacity(lane) / 4;
        let slots = lane.mailbox_depth().min(4);
        self.is_shut()
            || (lane.slots_free(&mut self.cursor, slots) >= slots
                && self.sink_free(lane, sink) >= sink)
            || lane.posted(word::CLOSED) & closed::MASK != closed::WRITING
    }

    /// Ends this direction (see [`closed`]) and returns whether the caller must ring. A direction
    /// that is still on TCP ends by the kernel's own shutdown or close, which wakes as a wakeup
    /// does. One that broke ends with a reset.
    pub fn close<L: Lane>(&mut self, lane: &L, how: u64) -> bool {
        assert!(how <= closed::RESET, "{how} is not a way to close");
        let how = match self.state.get() {
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
        // A half close is nothing to a writer that waits for room; and a word claimed beyond the
        // one wakeup that is rung would be counted as a second wakeup.
        data | (how != closed::WRITING && lane.must_ring(WaitFor::Room))
    }

    fn post_end<L: Lane>(&self, lane: &L, how: u64) {
        lane.post(word::CLOSED, self.cursor.messages.wrapping_add(1) << 2 | how);
    }

    /// Ends this direction and leaves the other alone. On the lane that is `Some`, with whether the
    /// caller must ring; `None` asks for the kernel's own half close.
    ///
    /// A peer that attaches later, or right now, learns that no wakeups will come and stays on TCP.
    pub fn shut<L: Lane>(&mut self, lane: &L, side: Side) -> Option<bool> {
        if self.switch(lane, side) {
            return Some(self.close(lane, closed::WRITING));
        }
        self.post_end(lane, closed::WRITING);
        lane.settle();
        // Attached meanwhile: it may have moved already, and needs wakeups from here.
        let rings = self.switch(lane, side).then(|| self.close(lane, closed::WRITING));
        self.state.set(SendState::Shut);
        rings
    }

    /// True when nothing more is sent: after [`SendSide::close`], or since the direction broke.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.state.get() != SendState::Open
    }

    /// Marks the direction as broken: nothing can be written any more.
    #[cold]
    fn break_off(&mut self) -> WriteError {
        self.state.set(SendState::Broken);
        WriteError::Reset
    }

    /// True while the peer has not taken everything sent on the lane.
    pub fn unread_by_peer<L: Lane>(&mut self, lane: &L) -> bool {
        if self.unread.get() == UnreadByPeer::SentAgain {
            return false;
        }
        lane.slots_free(&mut self.cursor, u64::MAX);
        lane.sink_free(&mut self.cursor, u64::MAX);
        // Bytes of the sink come back at once.
        if self.cursor.bytes != self.cursor.bytes_taken {
            return true;
        }
        match lane.messages_read() {
            Some(read) => read != self.cursor.messages,
            // Slots come back in batches; whatever is beyond one batch was certainly not read.
            None => {
                let slots = self.cursor.messages.wrapping_sub(self.cursor.messages_taken);
                slots > lane.mailbox_depth() / 4
            }
        }
    }

    /// Grows whenever the peer takes something from the lane, as far as it says so.
    pub fn taken_by_peer<L: Lane>(&mut self, lane: &L) -> u64 {
        lane.slots_free(&mut self.cursor, u64::MAX);
        lane.sink_free(&mut self.cursor, u64::MAX);
        let messages = lane.messages_read().unwrap_or(self.cursor.messages_taken);
        messages.wrapping_add(self.cursor.bytes_taken)
    }

    /// Messages sent over the lane.
    #[must_use]
    pub const fn messages(&self) -> u64 {
        self.cursor.messages
    }

    /// Bytes sent: over TCP and over the lane.
    #[must_use]
    pub const fn totals(&self) -> (u64, u64) {
        (self.tcp_bytes, self.lane_bytes)
    }
}
