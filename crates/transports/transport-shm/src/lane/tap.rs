//! A look at a lane from beside it, for captures: what both ends sent, copied while it is there.
//!
//! The two ends do not know of it: it maps the lane for reading alone and writes nothing. So it may
//! be too late. Slots have numbers, by which it sees that. Of bytes in the sink it takes those
//! whose place the sender cannot have come to again.
//!
//! # Invariants
//! - Every value is copied once, and none of it is trusted: lengths are cut, places are reduced.
//! - What is handed out was sent so, or is told to be lost.

use std::os::fd::BorrowedFd;

use weft_memory::Segment;

use super::{BLOCK_BYTES, BLOCK_START, Block, HEADER_BYTES, LaneError, LaneLayout, MAGIC, VERSION};
use crate::ring::{PAYLOAD_BYTES, SLOT_BYTES};

/// A message of the lane.
#[derive(Clone, Debug)]
pub struct TappedMessage {
    /// Its tag.
    pub tag: u8,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// A direction as far as it was seen.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    /// The next message, and where the sink's bytes begin that it may announce.
    next: Option<(u64, u64)>,
    /// The known bounds of that while it is not certain.
    bounds: Option<Bounds>,
}

/// The messages up to `number` announced from `low` to `high` bytes in all.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    number: u64,
    low: u64,
    high: u64,
}

/// The result of a look at a direction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// Nothing new.
    Nothing,
    /// These bytes of the stream.
    Bytes(Vec<u8>),
    /// Something that was overwritten before it was seen: the direction is found again later.
    Lost,
}

/// A lane that is looked at.
#[derive(Debug)]
pub struct Tap {
    segment: Segment,
    layout: LaneLayout,
    seen: [Seen; 2],
}

impl Tap {
    /// Looks at the lane behind a descriptor, which may be one for reading alone.
    ///
    /// # Errors
    /// [`LaneError`] when the memory is not that of a lane.
    pub fn open(file: BorrowedFd<'_>) -> Result<Self, LaneError> {
        let length = usize::try_from(Segment::sealed_length(file)?);
        let length = length.map_err(|_| LaneError::InvalidLayout)?;
        if length < HEADER_BYTES {
            return Err(LaneError::InvalidLayout);
        }
        let segment = Segment::open(file, length, false)?;
        let mut header = [0; 20];
        segment.read(0, &mut header);
        let half = |at: usize| {
            u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let layout = LaneLayout { slots: half(12), sink_bytes: half(16) };
        let ours = header[..8] == MAGIC.to_ne_bytes() && half(8) == VERSION;
        if !ours || !layout.is_valid() || layout.bytes() != length {
            return Err(LaneError::InvalidLayout);
        }
        Ok(Self { segment, layout, seen: [Seen::default(); 2] })
    }

    /// Bytes of the stream that a side has sent in all.
    #[must_use]
    pub fn sent(&self, direction: usize) -> u64 {
        self.word(direction, std::mem::offset_of!(Block, stream_bytes))
    }

    /// Whether the direction is followed: the next byte that is found is the one behind the last.
    #[must_use]
    pub fn is_followed(&self, direction: usize) -> bool {
        self.seen[direction].next.is_some()
    }

    /// Begins to follow a direction where its receiver is. False while it is not certain where in
    /// the sink that is: call it again soon. `announces` gives the bytes in the sink that a message
    /// announces.
    ///
    /// The receiver tells how many messages and how many bytes of the sink it took, but not how
    /// much is left of what the last message announced. So the sum of all that was announced lies
    /// between two bounds, which come together while it reads.
    pub fn follow(
        &mut self,
        direction: usize,
        announces: impl Fn(&TappedMessage) -> Option<u64>,
    ) -> bool {
        let read = |tap: &Self| tap.word(direction, std::mem::offset_of!(Block, messages_read));
        let number = read(self);
        let taken = self.word(direction, std::mem::offset_of!(Block, sink_taken));
        if read(self) != number {
            return false;
        }
        let announced = |number| {
            let message = self.message(direction, number)?;
            Some(announces(&message).unwrap_or(0))
        };
        let last = match number.checked_sub(1) {
            None => 0,
            Some(last) => announced(last).unwrap_or(self.layout.sink_bytes.into()),
        };
        let mut bounds = Bounds { number, low: taken, high: taken.saturating_add(last) };
        if let Some(former) = self.seen[direction].bounds
            && number.wrapping_sub(former.number) <= u64::from(self.layout.slots)
            && let Some(since) = (former.number..number)
                .try_fold(0_u64, |sum, number| sum.checked_add(announced(number)?))
        {
            bounds.low = bounds.low.max(former.low.saturating_add(since));
            bounds.high = bounds.high.min(former.high.saturating_add(since));
        }
        let seen = &mut self.seen[direction];
        // Bounds that cross are of words that were changed meanwhile, or are nonsense.
        seen.bounds = (bounds.low < bounds.high).then_some(bounds);
        if bounds.low == bounds.high {
            seen.next = Some((number, bounds.low));
        }
        bounds.low == bounds.high
    }

    /// Bytes of the stream in a direction that is followed which were sent and not looked at yet.
    #[must_use]
    pub fn unread(
        &self,
        direction: usize,
        announces: impl Fn(&TappedMessage) -> Option<u64>,
    ) -> u64 {
        let Some((first, _)) = self.seen[direction].next else { return 0 };
        let numbers = (0..u64::from(self.layout.slots)).map(|more| first.wrapping_add(more));
        let messages = numbers.map_while(|number| self.message(direction, number));
        messages.fold(0, |all: u64, message| {
            all.saturating_add(announces(&message).unwrap_or(message.payload.len() as u64))
        })
    }

    /// The next bytes of a direction that is followed.
    pub fn look(
        &mut self,
        direction: usize,
        announces: impl Fn(&TappedMessage) -> Option<u64>,
    ) -> Found {
        let Some((first, mut sink)) = self.seen[direction].next else { return Found::Nothing };
        let mut number = first;
        let mut pieces = Vec::new();
        while number.wrapping_sub(first) < u64::from(self.layout.slots)
            && let Some(message) = self.message(direction, number)
        {
            number = number.wrapping_add(1);
            match announces(&message) {
                Some(length) if length > u64::from(self.layout.sink_bytes) => {
                    return self.lose(direction);
                }
                Some(length) => {
                    pieces.push((Some(sink), self.copy(direction, sink, length)));
                    sink = sink.wrapping_add(length);
                }
                None => pieces.push((None, message.payload)),
            }
        }
        if number == first {
            // A slot with a later number was overwritten.
            return match self.is_overwritten(direction, first) {
                true => self.lose(direction),
                false => Found::Nothing,
            };
        }
        // The sender may have come further meanwhile, by what it announced since, and by a piece.
        let mut end = sink;
        let mut later = number;
        while later.wrapping_sub(number) < u64::from(self.layout.slots)
            && let Some(message) = self.message(direction, later)
        {
            end = end.wrapping_add(announces(&message).unwrap_or(0));
            later = later.wrapping_add(1);
        }
        let sink_bytes = u64::from(self.layout.sink_bytes);
        let reach = end.wrapping_sub(pieces.iter().find_map(|(at, _)| *at).unwrap_or(end));
        if reach > sink_bytes - sink_bytes / 4 || self.is_overwritten(direction, number) {
            return self.lose(direction);
        }
        self.seen[direction].next = Some((number, sink));
        Found::Bytes(pieces.into_iter().flat_map(|(_, bytes)| bytes).collect())
    }

    fn lose(&mut self, direction: usize) -> Found {
        self.seen[direction] = Seen::default();
        Found::Lost
    }

    fn word(&self, direction: usize, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        self.segment.read(BLOCK_START + direction * BLOCK_BYTES + offset, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    fn slot(&self, direction: usize, number: u64) -> [u8; SLOT_BYTES] {
        let place = usize::try_from(number % u64::from(self.layout.slots)).unwrap_or(0);
        let mut bytes = [0; SLOT_BYTES];
        let start = self.layout.slots_start(direction) + place * SLOT_BYTES;
        self.segment.read(start, &mut bytes);
        bytes
    }

    /// The low half of the number in a slot: that of the message plus one.
    fn number(slot: &[u8; SLOT_BYTES]) -> u32 {
        u32::from_ne_bytes([slot[0], slot[1], slot[2], slot[3]])
    }

    fn low(number: u64) -> u32 {
        let [a, b, c, d, ..] = number.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// The message with a number, if its slot has it before and after it was copied.
    fn message(&self, direction: usize, number: u64) -> Option<TappedMessage> {
        let wanted = Self::low(number.wrapping_add(1));
        let slot = self.slot(direction, number);
        let length = usize::from(slot[4]).min(PAYLOAD_BYTES);
        let is_whole =
            Self::number(&slot) == wanted && Self::number(&self.slot(direction, number)) == wanted;
        is_whole.then(|| TappedMessage { tag: slot[5], payload: slot[8..8 + length].to_vec() })
    }

    /// Whether the slot of a message has a later one by now.
    fn is_overwritten(&self, direction: usize, number: u64) -> bool {
        let there = Self::number(&self.slot(direction, number));
        let ahead = there.wrapping_sub(Self::low(number.wrapping_add(1)));
        ahead != 0 && ahead < u32::MAX / 2 && there != 0
    }

    fn copy(&self, direction: usize, place: u64, length: u64) -> Vec<u8> {
        let sink_bytes = u64::from(self.layout.sink_bytes);
        let first = place % sink_bytes;
        let head = length.min(sink_bytes - first);
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(0);
        let mut bytes = vec![0; size(length)];
        let (before, behind) = bytes.split_at_mut(size(head));
        let start = self.layout.sink_start(direction);
        self.segment.read(start + size(first), before);
        if !behind.is_empty() {
            self.segment.read(start, behind);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::ShmLane;
    use super::*;
    use std::os::fd::AsFd;
    use weft_fabric::{Carry, ReceiveCursor, SendCursor};
    use weft_memory::CopyMode;

    const LAYOUT: LaneLayout = LaneLayout { slots: 16, sink_bytes: 4096 };

    /// Tag 3 announces, as that of direct sockets does.
    fn announces(message: &TappedMessage) -> Option<u64> {
        let length = || Some(u64::from(u32::from_le_bytes(message.payload[..].try_into().ok()?)));
        (message.tag == 3).then(length).flatten()
    }

    fn bytes(text: &[u8]) -> Found {
        Found::Bytes(text.to_vec())
    }

    #[test]
    fn messages_and_bytes_of_the_sink_are_seen_as_they_were_sent() {
        let (one, file) = ShmLane::create(LAYOUT, CopyMode::Plain).expect("memory");
        let two = ShmLane::open(file.as_fd(), 1, CopyMode::Plain).expect("its other end");
        let shown = Segment::reopen_read_only(file.as_fd()).expect("for reading");
        let mut tap = Tap::open(shown.as_fd()).expect("a lane");
        assert!(tap.follow(0, announces) && tap.follow(1, announces));
        assert_eq!(tap.look(0, announces), Found::Nothing);
        let (mut sent, mut read) = (SendCursor::default(), ReceiveCursor::default());
        for round in 0..40_u8 {
            one.send(&mut sent, 2, &[b"eager", &[round]]).expect("room");
            one.put(&mut sent, &[round; 700]);
            one.send(&mut sent, 3, &[&700_u32.to_le_bytes()]).expect("room");
            let mut wanted = [b"eager", &[round][..]].concat();
            wanted.extend([round; 700]);
            assert_eq!(tap.look(0, announces), bytes(&wanted));
            two.advance(&mut read, true);
            two.advance(&mut read, true);
            two.release(&mut read, 700);
        }
        assert_eq!(tap.look(1, announces), Found::Nothing);
    }

    #[test]
    fn a_tap_that_is_late_says_so_and_finds_the_place_again() {
        let (one, file) = ShmLane::create(LAYOUT, CopyMode::Plain).expect("memory");
        let two = ShmLane::open(file.as_fd(), 1, CopyMode::Plain).expect("its other end");
        let mut tap = Tap::open(file.as_fd()).expect("a lane");
        assert!(tap.follow(0, announces));
        let (mut sent, mut read) = (SendCursor::default(), ReceiveCursor::default());
        let turn = |sent: &mut SendCursor, read: &mut ReceiveCursor| {
            one.put(sent, &[7; 1000]);
            one.send(sent, 3, &[&1000_u32.to_le_bytes()]).expect("room");
            two.advance(read, true);
            two.release(read, 1000);
        };
        (0..20).for_each(|_| turn(&mut sent, &mut read));
        assert_eq!(tap.look(0, announces), Found::Lost, "slots were used again");
        assert!(!tap.is_followed(0) && !tap.follow(0, announces), "its receiver may not be done");
        one.put(&mut sent, &[7; 1000]);
        one.send(&mut sent, 3, &[&1000_u32.to_le_bytes()]).expect("room");
        two.advance(&mut read, true);
        assert!(tap.follow(0, announces), "it read all before this message");
        two.release(&mut read, 1000);
        turn(&mut sent, &mut read);
        assert_eq!(tap.look(0, announces), bytes(&[7; 1000]));
        (0..5).for_each(|_| turn(&mut sent, &mut read));
        assert_eq!(tap.look(0, announces), Found::Lost, "the sink was used again");
    }

    #[test]
    fn memory_that_is_no_lane_is_refused_and_scribbles_harm_nothing() {
        let (_, other) = Segment::create("weft-test", 8192).expect("memory");
        assert!(Tap::open(other.as_fd()).is_err());
        let (_one, file) = ShmLane::create(LAYOUT, CopyMode::Plain).expect("memory");
        let mut tap = Tap::open(file.as_fd()).expect("a lane");
        let all = Segment::open(file.as_fd(), LAYOUT.bytes(), true).expect("memory");
        for byte in [0xff_u8, 0x01, 0x80] {
            all.write(512, &vec![byte; LAYOUT.bytes() - 512], CopyMode::Plain);
            for direction in 0..2 {
                let _ = tap.follow(direction, announces);
                let _ = tap.look(direction, announces);
            }
        }
    }
}
