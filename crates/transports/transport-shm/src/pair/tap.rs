//! A look at a pair from beside it, for captures: the messages of both directions.
//!
//! The two ends do not know of it, so it may be too late. Slots keep their messages, with the low
//! half of their numbers, until they are used again. A sender fills slots in their order: while the
//! slot before a message still has the message before it, nobody has begun to overwrite that one.
//!
//! # Invariants
//! - Every value is copied once, and none of it is trusted: lengths are cut, places are reduced.
//! - What is handed out was sent so; what was overwritten before it was seen is counted.

use std::io;

use super::{HEADER_BYTES, MAGIC, VERSION, WORDS_BYTES, WORDS_START, bytes, slots_are_valid};
use crate::ring::{PAYLOAD_BYTES, SLOT_BYTES};

/// Slots that are copied at a time.
const CHUNK: usize = 64;

/// A message or a notification, as it lay in its slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tapped {
    /// Its number in its direction, from 0.
    pub number: u64,
    /// Its tag.
    pub tag: u8,
    /// The flags of its slot ([`crate::pair::tap::Content`]).
    pub flags: u16,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// The content of a slot, by its flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// A message of a type.
    Message(u8),
    /// A message of a type to a group.
    Multicast(u8, u8),
    /// A notification of a side about a command.
    Notification(u8, u8),
    /// Nothing that this release sends.
    Unknown,
}

impl Tapped {
    /// What it is.
    #[must_use]
    pub const fn content(&self) -> Content {
        let [low, high] = self.flags.to_le_bytes();
        let kind = low & 0b11;
        match low >> 2 & 0b11 {
            0 => Content::Message(kind),
            1 => Content::Multicast(kind, low >> 4 | (high & 0b11) << 4),
            2 => Content::Notification(low >> 4 & 0b11, low >> 6 | (high & 1) << 2),
            _ => Content::Unknown,
        }
    }
}

/// A pair that is looked at. `R` copies bytes of its memory from an offset on.
#[derive(Debug)]
pub struct PairTap<R> {
    read: R,
    slots: usize,
    depth: u64,
    /// The VPIDs of the end that made the pair, which sends in direction 0, and of the other one.
    ends: [u16; 2],
    next: [u64; 2],
    /// Messages that were overwritten before they were seen.
    pub lost: u64,
}

impl<R: FnMut(usize, &mut [u8]) -> io::Result<()>> PairTap<R> {
    /// Looks at the pair in memory of `length` bytes, from the messages on that its receivers have
    /// not taken.
    ///
    /// # Errors
    /// Those of `read`; `InvalidData` when the memory is not that of a pair that has two ends.
    pub fn open(length: usize, mut read: R) -> io::Result<Self> {
        let mut header = [0; 28];
        read(0, &mut header)?;
        let half = |at: usize| {
            u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let (slots, depth) = (half(12), half(24));
        let vpid = |label: u32| label.checked_sub(1).and_then(|vpid| u16::try_from(vpid).ok());
        let is_pair = header[..8] == MAGIC.to_ne_bytes()
            && half(8) == VERSION
            && slots_are_valid(slots)
            && slots_are_valid(depth)
            && depth <= slots
            && bytes(slots) == length;
        let (true, Some(maker), Some(peer)) = (is_pair, vpid(half(16)), vpid(half(20))) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no pair"));
        };
        let mut tap = Self {
            read,
            slots: slots as usize,
            depth: depth.into(),
            ends: [maker, peer],
            next: [0; 2],
            lost: 0,
        };
        tap.next = [tap.taken(0)?, tap.taken(1)?];
        Ok(tap)
    }

    /// The VPIDs of the sender and of the receiver of a direction.
    #[must_use]
    pub const fn ends(&self, direction: usize) -> (u16, u16) {
        let [maker, peer] = self.ends;
        if direction == 0 { (maker, peer) } else { (peer, maker) }
    }

    /// The next messages of a direction; none if nothing is new.
    ///
    /// # Errors
    /// Those of `read`, for example because the process has ended.
    pub fn look(&mut self, direction: usize) -> io::Result<Vec<Tapped>> {
        let first = self.next[direction];
        let place = first % self.depth;
        let count = (CHUNK as u64).min(self.depth - place).min(self.depth / 2);
        let mut slots = vec![[0; SLOT_BYTES]; usize::try_from(count).unwrap_or(CHUNK)];
        let at = self.slot_at(direction, first);
        (self.read)(at, slots.as_flattened_mut())?;
        let numbers = (0..).map(|more| first.wrapping_add(more));
        let found: Vec<_> =
            numbers.zip(&slots).map_while(|(number, slot)| message(number, slot)).collect();
        let number_of_first = number_in(&slots[0]);
        // Behind the copy: nothing of it was overwritten before.
        let former = first.wrapping_sub(1);
        let mut before = [0; 8];
        let at = self.slot_at(direction, former);
        (self.read)(at, &mut before)?;
        let there = u32::from_ne_bytes([before[0], before[1], before[2], before[3]]);
        let is_ahead = |there: u32, wanted: u64| {
            let ahead = there.wrapping_sub(low(wanted.wrapping_add(1)));
            there != 0 && ahead != 0 && ahead < u32::MAX / 2
        };
        if is_ahead(there, former) || is_ahead(number_of_first, first) {
            self.catch_up(direction)?;
            return Ok(Vec::new());
        }
        self.next[direction] = first.wrapping_add(found.len() as u64);
        Ok(found)
    }

    /// Goes on where there is room before the sender comes round again.
    fn catch_up(&mut self, direction: usize) -> io::Result<()> {
        let taken = self.taken(direction)?;
        // What a receiver took may be overwritten; a hostile count leads nowhere but astray.
        let next = taken.max(self.next[direction].wrapping_add(1));
        self.lost = self.lost.saturating_add(next - self.next[direction]);
        self.next[direction] = next;
        Ok(())
    }

    fn taken(&mut self, direction: usize) -> io::Result<u64> {
        let mut word = [0; 8];
        (self.read)(WORDS_START + direction * WORDS_BYTES, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    fn slot_at(&self, direction: usize, number: u64) -> usize {
        let place = usize::try_from(number % self.depth).unwrap_or(0);
        HEADER_BYTES + (direction * self.slots + place) * SLOT_BYTES
    }
}

fn low(number: u64) -> u32 {
    let [a, b, c, d, ..] = number.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

fn number_in(slot: &[u8; SLOT_BYTES]) -> u32 {
    u32::from_ne_bytes([slot[0], slot[1], slot[2], slot[3]])
}

/// The message with a number, if the slot has it.
fn message(number: u64, slot: &[u8; SLOT_BYTES]) -> Option<Tapped> {
    let status = u64::from_ne_bytes(slot[..8].try_into().ok()?);
    let [_, _, _, _, length, tag, flags @ ..] = status.to_le_bytes();
    let length = usize::from(length).min(PAYLOAD_BYTES);
    (low(status) == low(number.wrapping_add(1))).then(|| Tapped {
        number,
        tag,
        flags: u16::from_le_bytes(flags),
        payload: slot[8..8 + length].to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::PairMemory;
    use super::*;
    use weft_fabric::{ReceiveCursor, SendCursor};
    use weft_memory::CopyMode;

    #[test]
    fn messages_are_seen_as_they_were_sent_and_lost_ones_are_counted() {
        let (memory, _file) = PairMemory::create(16).expect("memory");
        let segment = std::sync::Arc::clone(&memory.segment);
        let read = |at: usize, into: &mut [u8]| {
            segment.read(at, into);
            Ok(())
        };
        assert!(PairTap::open(bytes(16), read).is_err(), "it has no label yet");
        memory.label(7, 9);
        let pair = memory.end(16).expect("slots");
        let mut tap = PairTap::open(bytes(16), read).expect("a pair");
        assert_eq!((tap.ends(0), tap.ends(1)), ((7, 9), (9, 7)));
        let (mut send, mut receive) = (SendCursor::default(), ReceiveCursor::default());
        for round in 0..100_u8 {
            pair.outgoing().send(&mut send, round, 2, &[b"hello"]).expect("room");
            let seen = tap.look(0).expect("readable");
            assert_eq!(seen.len(), 1, "{round}");
            assert_eq!((seen[0].number, seen[0].tag), (round.into(), round));
            assert_eq!(
                (seen[0].content(), &seen[0].payload[..]),
                (Content::Message(2), &b"hello"[..])
            );
            // The receiver of direction 0 is the other end: its count is written by hand.
            let taken = u64::from(round) + 1;
            segment.write(WORDS_START, &taken.to_ne_bytes(), CopyMode::Plain);
        }
        assert_eq!((tap.look(0).expect("readable"), tap.lost), (Vec::new(), 0));
        for more in 0..40_u64 {
            pair.outgoing().send(&mut send, 1, 0, &[]).expect("room");
            segment.write(WORDS_START, &(101 + more).to_ne_bytes(), CopyMode::Plain);
        }
        let mut seen = 0;
        for _ in 0..100 {
            seen += tap.look(0).expect("readable").len() as u64;
        }
        assert_eq!((seen + tap.lost, seen), (40, 0), "all were taken, so any may be overwritten");
        pair.outgoing().send(&mut send, 5, 0, &[b"x"]).expect("room");
        assert_eq!(tap.look(0).expect("readable").len(), 1, "it goes on");
        let _ = &mut receive;
        segment.write(512, &vec![0xff; bytes(16) - 512], CopyMode::Plain);
        for _ in 0..10 {
            let _ = (tap.look(0), tap.look(1));
        }
    }

    #[test]
    fn notifications_and_groups_are_told_apart() {
        let tapped = |flags| Tapped { number: 0, tag: 0, flags, payload: Vec::new() };
        let notification = crate::completion::notification_flags(
            weft_fabric::Side::Completer,
            weft_fabric::Command::Atomic,
        );
        assert_eq!(tapped(notification).content(), Content::Notification(2, 4));
        let header = weft_fabric::MessageHeader { tag: 1, kind: 3 };
        let group = weft_fabric::Group::new(37).expect("a group");
        let multicast = crate::completion::multicast_flags(header, group);
        assert_eq!(tapped(multicast).content(), Content::Multicast(3, 37));
        assert_eq!(tapped(0b1100).content(), Content::Unknown);
    }
}
