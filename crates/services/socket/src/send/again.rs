//! The bytes that a direction sends again over TCP when it goes back there: those of the lane that
//! the peer has not taken, and across a network the record before them.

use weft_fabric::{Carry, SendCursor};
use zerocopy::{FromBytes, IntoBytes};

use super::SendSide;
use crate::medium::peer_rings;
use crate::record::{self, Record};
use crate::route::{Copies, Leave, ResendRequest};
use crate::state::{SendState, UnreadByPeer};
use crate::stream::{Side, tag};

/// The record of a direction that goes back to TCP across a network, and the bytes behind it.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
pub(super) struct Returning {
    /// The first bytes that the peer may not have taken.
    place: Place,
    /// How many bytes the record and those behind it are. 0 while there is nothing to send.
    pub(super) length: u64,
    /// How many of them TCP took.
    gone: u64,
    /// Not 0 if the direction does not come to the lane again.
    pub(super) is_last: u64,
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
}
