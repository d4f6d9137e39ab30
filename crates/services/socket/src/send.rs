//! The sending direction of an end.
//!
//! Any bytes are a valid [`SendSide`], since other processes can write its memory. So no call
//! relies on what another call left there. A call that finds a state to which no order of calls
//! leads breaks the direction off: writes then give a reset.

use weft_fabric::{Carry, Lane, SendCursor, WaitFor};
use zerocopy::{FromBytes, IntoBytes};

use crate::medium::peer_rings;
use crate::route::{Leave, Outward, PeerRoute, acquaintance, presence, word};
use crate::state::{SendState, Stored, UnreadByPeer};
use crate::stream::{Side, WriteError};

mod again;
mod ending;
mod write;

pub use again::Again;
use again::Returning;

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

    #[cold]
    #[inline(never)]
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

    /// Call it after a read that made room. True if the caller must ring.
    pub fn rings_for_room<L: Lane>(&mut self, lane: &L, side: Side) -> bool {
        // A broken direction may be on TCP, where the peer would take a wakeup for data.
        self.switch(lane, side) && self.on_lane() && lane.must_ring(WaitFor::Room)
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
