//! The route of a direction, TCP or the lane, and the byte boundaries between the two.
//!
//! A direction begins on TCP and may cross any number of times. It crosses to the lane behind a
//! number of bytes of TCP (data and wakeups), and back to TCP behind a number of messages of the
//! lane. The writer posts a boundary and goes on behind it at once. The reader crosses when it has
//! taken everything before the boundary, and says so. All boundaries of one kind share a control
//! word, so the writer goes to the lane again only when the reader has come back from it.
//!
//! An end counts bytes of TCP beside the system call that moves them. A process that dies between
//! the two leaves a count that may be wrong to the processes that share the end. They notice, and
//! the direction crosses no more. Those processes can also write the memory of counts and
//! crossings. So any values are valid: wrong ones give wrong boundaries, but no panic.

use weft_fabric::Carry;
use zerocopy::{FromBytes, IntoBytes};

use crate::record::Record;
use crate::state::{Count, State, Stored};

/// Numbers of the control words. Each end posts all of them to its peer.
pub(crate) mod word {
    /// Bits of [`super::presence`].
    pub const PRESENCE: usize = 0;
    /// Size of the end's receive buffer in bytes, 0 if the program did not set it.
    pub const RECEIVE_BUFFER: usize = 1;
    /// `(messages sent + 1) << 2 | how`, see [`crate::closed`]. 0 while the direction is open.
    pub const CLOSED: usize = 2;
    /// `crossings << 3 | recall << 2 | leaving`. The direction is on the lane while `crossings` is
    /// odd. The bit `recall` is for [`super::RECALL`].
    pub const ROUTE: usize = 3;
    /// Bytes on TCP before the direction goes on over the lane.
    pub const TO_LANE: usize = 4;
    /// Messages on the lane before the direction goes on over TCP.
    pub const TO_TCP_MESSAGES: usize = 5;
    /// Bytes on TCP, the last of them wakeups and copies, before data goes on there.
    pub const TO_TCP_POSITION: usize = 6;
    /// Crossings of the peer's direction that this end, as its reader, has made.
    pub const PASSED: usize = 7;
    /// A resend request of this end as a reader: [`super::ResendRequest::messages`].
    pub const RESEND_MESSAGES: usize = 8;
    /// The request: [`super::ResendRequest::bytes`].
    pub const RESEND_BYTES: usize = 9;
    /// The request: the other fields of [`super::ResendRequest`]. 0 while this end requests
    /// nothing.
    pub const RESEND_REQUEST: usize = 10;
    /// The bytes of the lane that this end, as a writer, sent again over TCP in front of its last
    /// boundary to TCP: see [`super::Copies`].
    pub const RESENT: usize = 11;
    /// Bytes of TCP that this end, as a reader, has taken on its way to the boundary to the lane.
    /// On one host alone: the writer then knows that this end is at work.
    pub const TAKEN: usize = 12;
    /// Not 0 while this end, as a reader that left for good, puts unread bytes of the lane on TCP
    /// in place of its peer: see [`crate::stand_in`]. On one host alone.
    pub const STANDS_IN: usize = 13;
    /// Across a network, where nobody requests a resend: see [`super::acquaintance`].
    pub const ACQUAINTANCE: usize = 8;
}

/// The place where a reader stopped for good. The peer sends the bytes behind it again over TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ResendRequest {
    /// Messages that the reader has read to their end.
    pub messages: u64,
    /// Bytes of the sink that the reader has read.
    pub bytes: u64,
    /// Bytes of the next message that the reader has read.
    pub offset: usize,
    /// Announced bytes of the sink that the reader has not read.
    pub chunk_left: u64,
}

impl ResendRequest {
    const WANTED: u64 = 1 << 63;
    const OFFSET_BITS: u32 = 8;

    pub fn post<L: Carry>(self, lane: &L) {
        lane.post(word::RESEND_MESSAGES, self.messages);
        lane.post(word::RESEND_BYTES, self.bytes);
        let rest = self.chunk_left << Self::OFFSET_BITS | self.offset as u64;
        lane.post(word::RESEND_REQUEST, rest | Self::WANTED);
    }

    /// Tells the peer that this end requests nothing.
    pub fn withdraw<L: Carry>(lane: &L) {
        lane.post(word::RESEND_REQUEST, 0);
    }

    /// The request that the peer has posted, if any.
    pub fn of<L: Carry>(lane: &L) -> Option<Self> {
        let rest = lane.posted(word::RESEND_REQUEST);
        (rest & Self::WANTED != 0).then(|| Self {
            messages: lane.posted(word::RESEND_MESSAGES),
            bytes: lane.posted(word::RESEND_BYTES),
            offset: usize::try_from(rest & ((1 << Self::OFFSET_BITS) - 1)).unwrap_or(0),
            chunk_left: (rest & !Self::WANTED) >> Self::OFFSET_BITS,
        })
    }
}

/// The copies of bytes of the lane that a writer sends over TCP when it goes back there. They lie
/// behind all wakeups. A reader takes those bytes from the lane, and skips the copies. One that is
/// to leave the connection to others takes none of the lane, and leaves the copies to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Copies {
    /// How many bytes the copies are.
    pub bytes: u64,
    /// True if they are all bytes that the reader had not taken when the writer left.
    pub are_all: bool,
}

impl Copies {
    pub fn post<L: Carry>(self, lane: &L) {
        lane.post(word::RESENT, self.bytes << 1 | u64::from(self.are_all));
    }

    /// Those of the peer. They count while it is behind a boundary to TCP.
    pub fn of<L: Carry>(lane: &L) -> Self {
        if !crate::medium::peer_rings(lane) {
            return Self::default();
        }
        let word = lane.posted(word::RESENT);
        Self { bytes: word >> 1, are_all: word & 1 != 0 }
    }
}

/// Bits of [`word::PRESENCE`].
pub(crate) mod presence {
    /// The end has the lane.
    pub const ATTACHED: u64 = 1;
    /// The process of the end is ending. The bits above hold the number of bytes that it had taken
    /// from TCP.
    const ENDING: u64 = 2;
    const BITS: u32 = 2;

    /// The bits by which an end of the given side says that it has the lane. On one host the
    /// accepting end made it, and says nothing.
    pub fn attached<L: weft_fabric::Carry>(lane: &L, side: crate::Side) -> u64 {
        let says_so = side == crate::Side::Connected || !crate::medium::peer_rings(lane);
        if says_so { ATTACHED } else { 0 }
    }

    pub const fn ending(taken: u64) -> u64 {
        taken << BITS | ENDING
    }

    /// The number of bytes that the peer's process had taken from TCP when it said that it was
    /// ending. `None` if it did not say so.
    pub fn taken_at_end<L: weft_fabric::Carry>(lane: &L) -> Option<u64> {
        let said = lane.posted(super::word::PRESENCE);
        (said & ENDING != 0).then_some(said >> BITS)
    }
}

/// Values of [`word::ACQUAINTANCE`], which two ends across a network post one after the other.
///
/// An end goes to the lane only when its peer says [`IS_MUTUAL`](acquaintance::IS_MUTUAL). So a
/// peer that did not say that yet, and is told an end by the kernel, has all bytes: nothing went
/// over the lane. And a peer that said it knows that an end in order would have written a record
/// ([`crate::record`]).
pub(crate) mod acquaintance {
    /// The end has seen that the other one has the lane.
    pub const KNOWS: u64 = 1;
    /// The end has seen that the other one knows that it has the lane.
    pub const IS_MUTUAL: u64 = 2;
}

/// The word and the bit of it by which the node daemon recalls a lane of shared memory, when no way
/// is left between the nodes of its ends. It sets the bit in the words of both ends. Either end
/// then leaves for good with its next write or wait, as it would after a peer that left.
///
/// An end that posts the word at that moment removes the bit from its own. So the daemon sets the
/// bits again from time to time, as long as the lane is there. The bit says nothing of the end
/// whose word it is in, which may come to the lane in the same moment: so whether a peer has left
/// is read off the other bits alone.
pub const RECALL: (usize, u64) = (word::ROUTE, 1 << 2);

/// How long an end leaves the lane.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Leave {
    /// Until the reader has come back from the lane.
    ForNow,
    /// The other end leaves, too, and both give the lane back. They may get another one later.
    GivingBack,
    /// The other end leaves, too, and the connection stays on TCP.
    ForGood,
}

/// How a direction leaves or left the lane; `None` while it stays. The peer's control word holds
/// the same numbers.
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

/// The place from which the next bytes of the receiving direction come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// TCP, at most this many bytes. Wakeups follow behind them.
    Tcp {
        /// `None` while the peer has not switched to the lane.
        at_most: Option<u64>,
    },
    /// TCP, behind this many wakeups.
    Wakeups(u64),
    /// The lane.
    Lane,
    /// TCP again. The caller must call [`crate::ReceiveSide::return_to_tcp`].
    Return,
}

/// The value of the peer's [`word::ROUTE`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerRoute(u64);

impl PeerRoute {
    pub fn of<L: Carry>(lane: &L) -> Self {
        Self(lane.posted(word::ROUTE))
    }

    pub const fn crossings(self) -> u64 {
        self.0 >> 3
    }

    pub const fn is_on_tcp(self) -> bool {
        self.crossings().is_multiple_of(2)
    }

    /// How the peer leaves or left the lane; `None` while it stays.
    pub fn leaving(self) -> Option<Leave> {
        State::of(self.0 & 3)
    }

    /// True if the peer ended its sending direction on TCP. It can then send no wakeups.
    pub fn ended_on_tcp<L: Carry>(lane: &L) -> bool {
        lane.posted(word::CLOSED) != 0 && Self::of(lane).is_on_tcp()
    }

    /// True if the peer does not come to this lane again.
    pub fn leaves_for_good(self) -> bool {
        self.leaving() >= Some(Leave::GivingBack)
    }

    /// True if the peer does not come to this lane again, or the daemon recalled the lane.
    #[inline]
    pub const fn calls_away(self) -> bool {
        // Two and more: a way of leaving for good, or the bit of the daemon above those.
        self.0 & 7 >= 2
    }

    /// True if the peer leaves to give the lane back.
    pub fn is_giving_back(self) -> bool {
        self.leaving() == Some(Leave::GivingBack)
    }

    /// True if the peer is on the lane and stays, or can still come there for the first time.
    pub fn can_ring(self) -> bool {
        self.leaving().is_none() && (!self.is_on_tcp() || self.crossings() == 0)
    }
}

/// The writer's state of the boundaries.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
pub(crate) struct Outward {
    crossings: u64,
    leaving: Stored<Option<Leave>>,
    /// Bytes that went over TCP, data and wakeups.
    position: u64,
    /// `position` at the last crossing to the lane.
    left_tcp_at: u64,
    count: Stored<Count>,
}

impl Outward {
    #[inline]
    pub const fn on_lane(&self) -> bool {
        self.crossings & 1 == 1
    }

    /// True if the direction does not come to this lane again.
    pub fn is_for_good(&self) -> bool {
        self.leaves(Leave::GivingBack)
    }

    /// True if the direction leaves or left the lane for at least as long as `how`.
    pub fn leaves(&self, how: Leave) -> bool {
        self.leaving.get() >= Some(how)
    }

    /// Sets the direction to TCP, as before there was a lane.
    pub fn forget_lane(&mut self) {
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

    /// Sets the number of bytes that went over TCP to the kernel's count. No thread may be between
    /// a system call and its count.
    pub fn set_position(&mut self, bytes: u64) {
        self.position = bytes;
    }

    /// True if a boundary can be posted, since all bytes of TCP are counted.
    fn is_certain(&self) -> bool {
        self.count.get() == Count::Exact
    }

    /// True if a boundary to the lane may be posted.
    pub fn may_cross<L: Carry>(&self, lane: &L) -> bool {
        // The reader has read the words of all former boundaries when it has crossed the last one.
        let free = self.crossings == 0 || lane.posted(word::PASSED) == self.crossings;
        !self.on_lane() && !self.is_for_good() && self.is_certain() && free
    }

    /// True if writer and reader are on the lane. The reader has then taken all bytes of TCP before
    /// the boundary.
    pub fn is_followed<L: Carry>(&self, lane: &L) -> bool {
        self.on_lane() && lane.posted(word::PASSED) == self.crossings
    }

    /// Bytes that went over TCP, data and wakeups.
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Bytes that went over TCP up to the last one of data.
    pub const fn data_end(&self) -> u64 {
        if self.on_lane() { self.left_tcp_at } else { self.position }
    }

    pub fn go_to_lane<L: Carry>(&mut self, lane: &L) {
        assert!(!self.on_lane(), "it is there");
        self.leaving.set(None);
        lane.post(word::TO_LANE, self.position);
        self.left_tcp_at = self.position;
        self.crossings = self.crossings.wrapping_add(1);
        self.post(lane);
    }

    /// Announces that the direction will leave the lane. False if it cannot, since a count is
    /// uncertain.
    pub fn begin_leaving<L: Carry>(&mut self, lane: &L, how: Leave) -> bool {
        if !self.is_certain() {
            return false;
        }
        self.leaving.set(self.leaving.get().max(Some(how)));
        self.post(lane);
        true
    }

    /// Crosses to TCP across a network, where a record on TCP says so. False if it cannot, since a
    /// count is uncertain.
    pub fn go_to_tcp_by_record(&mut self) -> bool {
        assert!(self.on_lane(), "it is there");
        let may = self.is_certain();
        self.crossings = self.crossings.wrapping_add(u64::from(may));
        may
    }

    /// Tells the peer in the lane, too, that the direction is on TCP, once the record is out.
    pub fn told_by_record<L: Carry>(&self, lane: &L) {
        self.post(lane);
    }

    /// Crossings so far, as a record has them.
    pub fn crossings(&self) -> u32 {
        u32::try_from(self.crossings & u64::from(u32::MAX)).expect("32 bits")
    }

    /// Crosses to TCP behind `messages` messages.
    pub fn go_to_tcp<L: Carry>(&mut self, lane: &L, messages: u64) {
        assert!(self.on_lane(), "it is there");
        lane.post(word::TO_TCP_MESSAGES, messages);
        lane.post(word::TO_TCP_POSITION, self.position);
        self.crossings = self.crossings.wrapping_add(1);
        self.post(lane);
    }

    fn post<L: Carry>(&self, lane: &L) {
        lane.post(word::ROUTE, self.crossings << 3 | self.leaving.get().number());
    }
}

/// The reader's state of the boundaries.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
pub(crate) struct Inward {
    crossings: u64,
    /// Bytes taken from TCP, data and wakeups.
    taken: u64,
    /// Bytes on TCP up to this position are no data: wakeups, and behind them bytes that the reader
    /// had taken from the lane before they were sent again.
    skip_to: u64,
    /// Those up to this position are wakeups.
    wakeups_to: u64,
    count: Stored<Count>,
    /// Not 0 since a record said that the direction does not come to the lane again.
    is_last: u64,
    /// Bytes up to this position are promised by a record: an end before it is none in order.
    promised_to: u64,
}

impl Inward {
    /// True if a record promised bytes that the reader has not taken.
    pub const fn is_owed(&self) -> bool {
        self.taken < self.promised_to
    }

    /// True if a record said that the direction stays on TCP.
    #[inline]
    pub const fn stays_on_tcp(&self) -> bool {
        self.is_last != 0
    }

    /// Crosses to TCP behind a record that was taken. `skip` bytes behind it are not for the
    /// reader. False if the crossing cannot be.
    pub fn cross_by_record<L: Carry>(&mut self, lane: &L, record: &Record, skip: u64) -> bool {
        let Record { crossings, again, is_last, .. } = *record;
        // The writer may have crossed to the lane and back, of which the reader did not hear.
        let on = u64::from(crossings).checked_sub(self.crossings);
        if !crossings.is_multiple_of(2) || on.is_none_or(|on| on > 2) {
            return false;
        }
        self.crossings = crossings.into();
        self.skip_to = self.taken.wrapping_add(skip);
        self.promised_to = self.taken.wrapping_add(again.into());
        self.is_last = u64::from(is_last);
        lane.post(word::PASSED, self.crossings);
        true
    }

    #[inline]
    pub const fn on_lane(&self) -> bool {
        self.crossings & 1 == 1
    }

    /// Bytes taken from TCP, data and wakeups.
    pub const fn taken(&self) -> u64 {
        self.taken
    }

    /// Sets the number of bytes taken from TCP to the kernel's count.
    pub fn set_taken(&mut self, bytes: u64) {
        self.taken = bytes;
    }

    /// False if a process died between taking and counting.
    pub fn begin_counting(&mut self) -> bool {
        self.count.begin_call();
        self.count.get() != Count::Uncertain
    }

    pub fn count(&mut self, bytes: u64) {
        self.count.end_call();
        self.taken = self.taken.wrapping_add(bytes);
    }

    /// Sets the direction to TCP, as before there was a lane.
    pub fn forget_lane(&mut self) {
        self.crossings = 0;
        self.skip_to = 0;
        self.wakeups_to = 0;
        self.promised_to = 0;
        self.is_last = 0;
    }

    /// True if the writer has posted a boundary that the reader has not crossed.
    pub fn has_boundary<L: Carry>(&self, lane: &L) -> bool {
        PeerRoute::of(lane).crossings() > self.crossings
    }

    /// True if the `messages` messages read so far are all that lie before a boundary to TCP.
    pub fn is_at_return<L: Carry>(&self, lane: &L, messages: u64) -> bool {
        // Across a network a record tells it.
        crate::medium::peer_rings(lane)
            && self.on_lane()
            && self.has_boundary(lane)
            && lane.posted(word::TO_TCP_MESSAGES) <= messages
    }

    /// True if the writer went to the lane and came back with copies of all that it sent there and
    /// without a wakeup on TCP in between, and the reader has crossed neither boundary.
    pub fn is_round_trip<L: Carry>(&self, lane: &L, peer: PeerRoute) -> bool {
        let copies = Copies::of(lane);
        !self.on_lane()
            && peer.crossings() == self.crossings.wrapping_add(2)
            && self.skip_to <= self.taken
            && copies.are_all
            && lane.posted(word::TO_LANE).wrapping_add(copies.bytes)
                == lane.posted(word::TO_TCP_POSITION)
    }

    /// Crosses to TCP. From then on the writer may come to the lane again. The last `unread` bytes
    /// of the `copies` are data for the reader.
    pub fn cross_to_tcp<L: Carry>(&mut self, lane: &L, copies: u64, unread: u64) {
        assert!(self.on_lane(), "it is there");
        let end = lane.posted(word::TO_TCP_POSITION);
        self.skip_to = end.saturating_sub(unread);
        self.wakeups_to = end.saturating_sub(copies);
        self.crossings = self.crossings.wrapping_add(1);
        lane.post(word::PASSED, self.crossings);
    }

    /// The place of the next bytes while the reader is on TCP. Crosses to the lane if the reader
    /// has taken all bytes before the boundary.
    pub fn on_tcp<L: Carry>(&mut self, lane: &L) -> Origin {
        if self.taken < self.skip_to {
            return Origin::Wakeups(self.skip_to - self.taken);
        }
        if self.stays_on_tcp() || !self.has_boundary(lane) {
            return Origin::Tcp { at_most: None };
        }
        match lane.posted(word::TO_LANE).saturating_sub(self.taken) {
            0 => {
                self.crossings = self.crossings.wrapping_add(1);
                lane.post(word::PASSED, self.crossings);
                Origin::Lane
            }
            left => {
                if crate::medium::peer_rings(lane) {
                    lane.post(word::TAKEN, self.taken);
                }
                Origin::Tcp { at_most: Some(left) }
            }
        }
    }

    /// How many of `seen` unread bytes on TCP are data, while the reader is on TCP.
    pub fn data_of<L: Carry>(&self, lane: &L, seen: usize) -> usize {
        if self.stays_on_tcp() || !self.has_boundary(lane) {
            return seen;
        }
        let left = lane.posted(word::TO_LANE).saturating_sub(self.taken);
        seen.min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// How many of `seen` unread bytes on TCP are wakeups.
    pub fn wakeups_of<L: Carry>(&self, lane: &L, seen: usize) -> usize {
        let end = match self.on_lane() {
            true if !self.has_boundary(lane) => return seen,
            true => lane.posted(word::TO_TCP_POSITION).saturating_sub(Copies::of(lane).bytes),
            false => self.wakeups_to.min(self.skip_to),
        };
        seen.min(self.left_to(end))
    }

    /// True if the copies of the last `unread` bytes before the boundary to TCP were not taken.
    pub fn has_copies<L: Carry>(&self, lane: &L, unread: u64) -> bool {
        lane.posted(word::TO_TCP_POSITION).saturating_sub(self.taken) >= unread
    }

    /// How many bytes on TCP come next that are copies of what the reader took from the lane.
    pub fn copies(&self) -> usize {
        let is_next = !self.on_lane() && self.taken >= self.wakeups_to;
        if is_next { self.left_to(self.skip_to) } else { 0 }
    }

    fn left_to(&self, end: u64) -> usize {
        usize::try_from(end.saturating_sub(self.taken)).unwrap_or(usize::MAX)
    }
}
