//! Which way a direction goes, over TCP or over the lane, and the byte boundaries between the two.
//!
//! A direction begins on TCP and crosses as often as it likes: to the lane at a number of bytes
//! that went over TCP (data and wakeups), back to TCP at a number of messages that went over the
//! lane. The writer posts a boundary and goes on behind it at once; the reader crosses when it has
//! taken everything before, and says so. Boundaries of one kind share a word, so the writer goes to
//! the lane again only when the reader has come back from it.
//!
//! Bytes of TCP are counted beside the kernel's call that moves them. A process that dies between
//! the two leaves its relatives with a count that may be wrong: they notice, and such a direction
//! crosses no more. Counts and crossings lie in memory that the relatives can write, so any values
//! are taken: wrong ones give wrong boundaries, and no panic.

use weft_fabric::Lane;
use zerocopy::{FromBytes, IntoBytes};

use crate::state::{Count, State, Stored};

/// Control words.
pub(crate) mod word {
    /// Bits of [`super::presence`].
    pub const PRESENCE: usize = 0;
    /// Bytes that the end's receive buffer holds, 0 when its program did not fix that.
    pub const RECEIVE_BUFFER: usize = 1;
    /// `(messages sent + 1) << 2 | how`.
    pub const CLOSED: usize = 2;
    /// `crossings << 2 | leaving`: odd is the lane.
    pub const ROUTE: usize = 3;
    /// Bytes on TCP before the lane goes on.
    pub const TO_LANE: usize = 4;
    /// Messages on the lane before TCP goes on.
    pub const TO_TCP_MESSAGES: usize = 5;
    /// Bytes on TCP, the last of them wakeups, before its data go on.
    pub const TO_TCP_POSITION: usize = 6;
    /// Crossings of the other direction that this end, its reader, has made.
    pub const PASSED: usize = 7;
    /// Recall of this end as a reader: messages that it has read to their end.
    pub const RECALL_MESSAGES: usize = 8;
    /// Recall: bytes of the sink that it has read.
    pub const RECALL_BYTES: usize = 9;
    /// Recall: the rest of [`super::Recall`]; 0 while this end recalls nothing.
    pub const RECALL: usize = 10;
    /// 1 when this end, as a writer, sends recalled bytes again behind its next boundary to TCP.
    pub const RECALLED: usize = 11;
}

/// Where a reader stopped for good, so that what is behind is sent again over TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Recall {
    /// Messages it has read to their end.
    pub messages: u64,
    /// Bytes of the sink that it has read.
    pub bytes: u64,
    /// Bytes it has read of the next message.
    pub offset: usize,
    /// Bytes of the sink that are left of what was announced before.
    pub chunk_left: u64,
}

impl Recall {
    const WANTED: u64 = 1 << 63;
    const OFFSET_BITS: u32 = 8;

    pub fn post<L: Lane>(self, lane: &L) {
        lane.post(word::RECALL_MESSAGES, self.messages);
        lane.post(word::RECALL_BYTES, self.bytes);
        let rest = self.chunk_left << Self::OFFSET_BITS | self.offset as u64;
        lane.post(word::RECALL, rest | Self::WANTED);
    }

    /// Nothing is wanted any more.
    pub fn withdraw<L: Lane>(lane: &L) {
        lane.post(word::RECALL, 0);
    }

    /// The place behind which the peer wants all bytes sent again.
    pub fn of<L: Lane>(lane: &L) -> Option<Self> {
        let rest = lane.posted(word::RECALL);
        (rest & Self::WANTED != 0).then(|| Self {
            messages: lane.posted(word::RECALL_MESSAGES),
            bytes: lane.posted(word::RECALL_BYTES),
            offset: usize::try_from(rest & ((1 << Self::OFFSET_BITS) - 1)).unwrap_or(0),
            chunk_left: (rest & !Self::WANTED) >> Self::OFFSET_BITS,
        })
    }
}

/// Statements of an end about itself.
pub(crate) mod presence {
    /// It has the lane.
    pub const ATTACHED: u64 = 1;
    /// Its process ends; above these bits stands how many bytes it had taken from TCP.
    const ENDING: u64 = 2;
    const BITS: u32 = 2;

    pub const fn ending(taken: u64) -> u64 {
        taken << BITS | ENDING
    }

    /// Bytes that the peer's process had taken from TCP when it said that it ends.
    pub fn taken_at_end<L: weft_fabric::Lane>(lane: &L) -> Option<u64> {
        let said = lane.posted(super::word::PRESENCE);
        (said & ENDING != 0).then_some(said >> BITS)
    }
}

/// How long an end leaves the lane for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Leave {
    /// Until the reader has come back from it.
    ForNow,
    /// The other end leaves, too, and both give the lane back. They may agree on another later.
    GivingBack,
    /// The other end leaves, too.
    ForGood,
}

/// How a direction leaves the lane, or left it; `None` while it stays. In a peer's word, too.
impl State for Option<Leave> {
    #[inline]
    fn of(number: u64) -> Self {
        match number {
            0 => None,
            1 => Some(Leave::ForNow),
            2 => Some(Leave::GivingBack),
            _ => Some(Leave::ForGood),
        }
    }

    #[inline]
    fn number(self) -> u64 {
        self.map_or(0, |how| 1 + how as u64)
    }
}

/// Where the next bytes of the receiving direction come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// From TCP, at most so many: behind them come wakeups.
    Tcp {
        /// `None` while the peer has not switched.
        at_most: Option<u64>,
    },
    /// From TCP, behind so many wakeups.
    Wakeups(u64),
    /// From the lane.
    Lane,
    /// From TCP again: [`crate::ReceiveSide::come_back`] is due.
    Back,
}

/// The peer's statement about its sending direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerRoute(u64);

impl PeerRoute {
    pub fn of<L: Lane>(lane: &L) -> Self {
        Self(lane.posted(word::ROUTE))
    }

    pub const fn crossings(self) -> u64 {
        self.0 >> 2
    }

    pub const fn is_on_tcp(self) -> bool {
        self.crossings().is_multiple_of(2)
    }

    /// How it leaves, or left; `None` while it stays.
    fn leaving(self) -> Option<Leave> {
        State::of(self.0 & 3)
    }

    /// It ended its direction on TCP, so that it can send no wakeups.
    pub fn ended_on_tcp<L: Lane>(lane: &L) -> bool {
        lane.posted(word::CLOSED) != 0 && Self::of(lane).is_on_tcp()
    }

    /// It does not come to this lane again.
    pub fn leaves_for_good(self) -> bool {
        self.leaving() >= Some(Leave::GivingBack)
    }

    /// It leaves to give the lane back.
    pub fn is_giving_back(self) -> bool {
        self.leaving() == Some(Leave::GivingBack)
    }

    /// It is on the lane and stays, or can come there for the first time.
    pub fn can_ring(self) -> bool {
        self.leaving().is_none() && (!self.is_on_tcp() || self.crossings() == 0)
    }
}

/// The writer's side of the boundaries.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
pub(crate) struct Outward {
    crossings: u64,
    leaving: Stored<Option<Leave>>,
    /// Bytes that went over TCP, data and wakeups.
    position: u64,
    /// The same when it last went to the lane.
    left_tcp_at: u64,
    count: Stored<Count>,
}

impl Outward {
    #[inline]
    pub const fn on_lane(&self) -> bool {
        self.crossings & 1 == 1
    }

    /// It does not come to this lane again.
    pub fn is_for_good(&self) -> bool {
        self.leaves(Leave::GivingBack)
    }

    /// It left, or is about to, in a way that lasts at least as long.
    pub fn leaves(&self, how: Leave) -> bool {
        self.leaving.get() >= Some(how)
    }

    /// On TCP, as before there was a lane.
    pub fn begin_again(&mut self) {
        self.crossings = 0;
        self.leaving.set(None);
    }

    pub fn begin_counting(&mut self) {
        self.count.begin_call();
    }

    pub fn count(&mut self, bytes: u64) {
        self.count.end_call();
        self.position = self.position.wrapping_add(bytes);
    }

    /// As the kernel counted, where nobody is between its call and its count.
    pub fn set_position(&mut self, bytes: u64) {
        self.position = bytes;
    }

    /// True when a boundary can be posted: behind bytes that are all counted.
    fn is_certain(&self) -> bool {
        self.count.get() == Count::Exact
    }

    /// True when a boundary to the lane may be posted.
    pub fn may_cross<L: Lane>(&self, lane: &L) -> bool {
        // The words of the boundary before last are free when the reader has passed the last.
        let free = self.crossings == 0 || lane.posted(word::PASSED) == self.crossings;
        !self.on_lane() && !self.is_for_good() && self.is_certain() && free
    }

    /// True when it is on the lane and so is the reader, which has taken all that went over TCP.
    pub fn is_followed<L: Lane>(&self, lane: &L) -> bool {
        self.on_lane() && lane.posted(word::PASSED) == self.crossings
    }

    /// Bytes that went over TCP up to the last of data.
    pub const fn data_end(&self) -> u64 {
        if self.on_lane() { self.left_tcp_at } else { self.position }
    }

    pub fn go_to_lane<L: Lane>(&mut self, lane: &L) {
        assert!(!self.on_lane(), "it is there");
        self.leaving.set(None);
        lane.post(word::TO_LANE, self.position);
        self.left_tcp_at = self.position;
        self.crossings = self.crossings.wrapping_add(1);
        self.post(lane);
    }

    /// Announces that the lane will be left; false when that cannot be.
    pub fn begin_leaving<L: Lane>(&mut self, lane: &L, how: Leave) -> bool {
        if !self.is_certain() {
            return false;
        }
        self.leaving.set(self.leaving.get().max(Some(how)));
        self.post(lane);
        true
    }

    /// Goes back to TCP behind `messages` messages.
    pub fn go_to_tcp<L: Lane>(&mut self, lane: &L, messages: u64) {
        assert!(self.on_lane(), "it is there");
        lane.post(word::TO_TCP_MESSAGES, messages);
        lane.post(word::TO_TCP_POSITION, self.position);
        self.crossings = self.crossings.wrapping_add(1);
        self.post(lane);
    }

    fn post<L: Lane>(&self, lane: &L) {
        lane.post(word::ROUTE, self.crossings << 2 | self.leaving.get().number());
    }
}

/// The reader's side of the boundaries.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
pub(crate) struct Inward {
    crossings: u64,
    /// Bytes taken from TCP, data and wakeups.
    taken: u64,
    /// Up to here all that is left on TCP are wakeups.
    skip_to: u64,
    count: Stored<Count>,
}

impl Inward {
    #[inline]
    pub const fn on_lane(&self) -> bool {
        self.crossings & 1 == 1
    }

    /// Bytes taken from TCP, data and wakeups.
    pub const fn taken(&self) -> u64 {
        self.taken
    }

    /// As the kernel counted.
    pub fn set_taken(&mut self, bytes: u64) {
        self.taken = bytes;
    }

    /// False when a process died between taking and counting.
    pub fn begin_counting(&mut self) -> bool {
        self.count.begin_call();
        self.count.get() != Count::Uncertain
    }

    pub fn count(&mut self, bytes: u64) {
        self.count.end_call();
        self.taken = self.taken.wrapping_add(bytes);
    }

    /// On TCP, as before there was a lane.
    pub fn begin_again(&mut self) {
        self.crossings = 0;
        self.skip_to = 0;
    }

    /// True when the writer has posted a boundary that this side did not cross.
    pub fn has_boundary<L: Lane>(&self, lane: &L) -> bool {
        PeerRoute::of(lane).crossings() > self.crossings
    }

    /// True when what was read, `messages` in all, is everything before a boundary to TCP.
    pub fn is_at_return<L: Lane>(&self, lane: &L, messages: u64) -> bool {
        self.on_lane() && self.has_boundary(lane) && lane.posted(word::TO_TCP_MESSAGES) <= messages
    }

    /// True when the writer went to the lane and came back, without a wakeup, and this side did
    /// neither yet.
    pub fn is_round_trip<L: Lane>(&self, lane: &L, peer: PeerRoute) -> bool {
        !self.on_lane()
            && peer.crossings() == self.crossings.wrapping_add(2)
            && self.skip_to <= self.taken
            && lane.posted(word::TO_LANE) == lane.posted(word::TO_TCP_POSITION)
    }

    /// Goes to TCP; the writer may then come to the lane again.
    pub fn cross_to_tcp<L: Lane>(&mut self, lane: &L) {
        assert!(self.on_lane(), "it is there");
        self.skip_to = lane.posted(word::TO_TCP_POSITION);
        self.crossings = self.crossings.wrapping_add(1);
        lane.post(word::PASSED, self.crossings);
    }

    /// Where the next bytes come from while this side is on TCP; crosses to the lane when all
    /// before it was taken.
    pub fn on_tcp<L: Lane>(&mut self, lane: &L) -> Origin {
        if self.taken < self.skip_to {
            return Origin::Wakeups(self.skip_to - self.taken);
        }
        if !self.has_boundary(lane) {
            return Origin::Tcp { at_most: None };
        }
        match lane.posted(word::TO_LANE).saturating_sub(self.taken) {
            0 => {
                self.crossings = self.crossings.wrapping_add(1);
                lane.post(word::PASSED, self.crossings);
                Origin::Lane
            }
            left => Origin::Tcp { at_most: Some(left) },
        }
    }

    /// Of `seen` bytes that lie on TCP, those that are data while this side is there.
    pub fn data_of<L: Lane>(&self, lane: &L, seen: usize) -> usize {
        if !self.has_boundary(lane) {
            return seen;
        }
        let left = lane.posted(word::TO_LANE).saturating_sub(self.taken);
        seen.min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// Of `seen` bytes that lie on TCP, those that are wakeups.
    pub fn wakeups_of<L: Lane>(&self, lane: &L, seen: usize) -> usize {
        let end = match self.on_lane() {
            true if !self.has_boundary(lane) => return seen,
            true => lane.posted(word::TO_TCP_POSITION),
            false => self.skip_to,
        };
        seen.min(usize::try_from(end.saturating_sub(self.taken)).unwrap_or(usize::MAX))
    }
}
