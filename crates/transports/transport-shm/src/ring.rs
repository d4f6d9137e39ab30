//! The mailbox: a ring of 128-byte slots with one sender and one receiver.
//!
//! ```text
//! byte 0           4        5     6       8                                        128
//!      ┌───────────┬────────┬─────┬───────┬────────────────────────────────────────┐
//!      │ message+1 │ length │ tag │ flags │ payload, up to 120 bytes               │
//!      └───────────┴────────┴─────┴───────┴────────────────────────────────────────┘
//!      └── status word, written last ─────┘
//! ```
//!
//! Source: EXTOLL-THESIS#3.2.2 (VELO). A slot is a status word of 8 bytes and up to 120 bytes of
//! payload. The sender writes the payload and then, with release order, the status word. The low
//! half of the status word is the number of the message plus one. The receiver recognises a filled
//! slot by this number, so no index is shared in the common case. The receiver gives slots back in
//! batches, by publishing how many it took. The sender reads that count only when it has used up
//! all slots that it knows to be free.
//!
//! # Invariants
//! - Each end keeps its own position in a private cursor. Only `taken` and the slots are shared.
//! - A sender that dies before it writes the status word has sent nothing.
//! - Values that the other end can write are checked when they are read. A length above 120 is an
//!   error. A count of taken messages beyond the sent ones is ignored. Neither is ever an index.
//!
//! The memory is behind [`RingMemory`], so that the same code runs over a segment and under loom.

use weft_fabric::{LaneClosed, LaneFull, ReceiveCursor, SendCursor, Slot};
use weft_sync::atomic::{AtomicU64, Ordering};

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 128;
/// Bytes of payload in a slot.
pub const PAYLOAD_BYTES: usize = 120;
/// Payload bytes that share a cache line with the status word.
pub const FIRST_LINE_PAYLOAD: usize = 56;

/// Status word, low to high bits: message number + 1 (32), length (8), tag (8), flags (16).
mod status {
    pub const LENGTH_SHIFT: u32 = 32;
    pub const TAG_SHIFT: u32 = 40;
    pub const FLAGS_SHIFT: u32 = 48;
}

/// How many slots ahead the sender prefetches. The receiver read those cache lines last.
const PREFETCH_SLOTS: u64 = 8;

/// The status of a filled slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// Bytes of payload.
    pub length: u8,
    /// The user tag.
    pub tag: u8,
    /// For the layer above: message type, group, kind of notification.
    pub flags: u16,
}

impl Status {
    fn encode(self, message: u64) -> u64 {
        u64::from(low_half(message.wrapping_add(1)))
            | u64::from(self.length) << status::LENGTH_SHIFT
            | u64::from(self.tag) << status::TAG_SHIFT
            | u64::from(self.flags) << status::FLAGS_SHIFT
    }

    /// The status of the slot of `message`; `None` while the slot does not hold that message.
    fn decode(word: u64, message: u64) -> Option<Self> {
        if low_half(word) != low_half(message.wrapping_add(1)) {
            return None;
        }
        let [.., a, b, c, d] = word.to_le_bytes();
        Some(Self { length: a, tag: b, flags: u16::from_le_bytes([c, d]) })
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the low half is what is wanted")]
const fn low_half(value: u64) -> u32 {
    value as u32
}

/// One slot of a ring.
pub trait SlotMemory {
    /// The status word.
    fn status(&self) -> &AtomicU64;
    /// Writes payload bytes from `offset` on.
    fn write_payload(&self, offset: usize, bytes: &[u8]);
    /// Reads payload bytes from `offset` on.
    fn read_payload(&self, offset: usize, target: &mut [u8]);
    /// Hints that the slot will be written soon. `long`: the payload exceeds the first cache line.
    #[inline]
    fn prefetch(&self, _long: bool) {}
}

/// The memory of a ring.
pub trait RingMemory {
    /// A slot.
    type Slot<'a>: SlotMemory
    where
        Self: 'a;

    /// Number of slots, a power of two.
    fn depth(&self) -> u64;
    /// The slot of message `number`. Slots are reused in turn.
    fn slot(&self, number: u64) -> Self::Slot<'_>;
    /// How many messages the receiver took; written by the receiver.
    fn taken(&self) -> &AtomicU64;
}

/// A ring over some memory.
#[derive(Clone, Copy, Debug)]
pub struct Ring<M> {
    memory: M,
}

impl<M: RingMemory> Ring<M> {
    /// The ring in `memory`, whose depth was checked when the memory was opened.
    #[inline]
    pub fn new(memory: M) -> Self {
        debug_assert!(memory.depth().is_power_of_two(), "the number of slots is a power of two");
        Self { memory }
    }

    /// How many slots there are.
    #[inline]
    pub fn depth(&self) -> u64 {
        self.memory.depth()
    }

    /// Number of free slots. Reads the shared count only when fewer than `wanted` are known.
    #[inline]
    pub fn free(&self, cursor: &mut SendCursor, wanted: u64) -> u64 {
        let known = self.known_free(cursor);
        if known >= wanted {
            return known;
        }
        let taken = self.memory.taken().load(Ordering::Acquire);
        // The count never goes back and never exceeds the sent messages, unless the peer is
        // hostile.
        let plausible = taken.wrapping_sub(cursor.messages_taken)
            <= cursor.messages.wrapping_sub(cursor.messages_taken);
        if plausible {
            cursor.messages_taken = taken;
        }
        self.known_free(cursor)
    }

    #[inline]
    fn known_free(&self, cursor: &SendCursor) -> u64 {
        let outstanding = cursor.messages.wrapping_sub(cursor.messages_taken);
        self.depth().saturating_sub(outstanding)
    }

    /// The slot of the next message to send, if it is free.
    #[inline]
    pub fn vacant(&self, cursor: &mut SendCursor) -> Option<M::Slot<'_>> {
        (self.free(cursor, 1) != 0).then(|| self.slot(cursor.messages))
    }

    /// The slot of the next message to send, if it is known to be free. Reads nothing shared.
    #[inline]
    pub fn known_vacant(&self, cursor: &SendCursor) -> Option<M::Slot<'_>> {
        let outstanding = cursor.messages.wrapping_sub(cursor.messages_taken);
        (outstanding < self.depth()).then(|| self.slot(cursor.messages))
    }

    /// Sends one message gathered from `parts`.
    ///
    /// # Errors
    /// [`LaneFull`].
    ///
    /// # Panics
    /// When all parts together exceed [`PAYLOAD_BYTES`].
    #[inline]
    pub fn send(
        &self,
        cursor: &mut SendCursor,
        tag: u8,
        flags: u16,
        parts: &[&[u8]],
    ) -> Result<(), LaneFull> {
        let slot = self.vacant(cursor).ok_or(LaneFull)?;
        let mut length = 0;
        for part in parts {
            slot.write_payload(length, part);
            length += part.len();
        }
        assert!(length <= PAYLOAD_BYTES, "a message of {length} bytes does not fit a slot");
        let length = u8::try_from(length).expect("at most 120");
        self.publish(cursor, &slot, Status { length, tag, flags });
        Ok(())
    }

    /// Sends one message of whole words. This is faster than gathering bytes.
    ///
    /// # Errors
    /// [`LaneFull`].
    #[inline]
    pub fn send_words<const N: usize>(
        &self,
        cursor: &mut SendCursor,
        tag: u8,
        flags: u16,
        words: &[u64; N],
    ) -> Result<(), LaneFull> {
        const { assert!(N * 8 <= PAYLOAD_BYTES, "a slot has 120 bytes") };
        let slot = self.vacant(cursor).ok_or(LaneFull)?;
        for (place, word) in words.iter().enumerate() {
            slot.write_payload(place * 8, &word.to_le_bytes());
        }
        let length = const { (N * 8) as u64 };
        let length = u8::try_from(length).unwrap_or(0);
        self.publish(cursor, &slot, Status { length, tag, flags });
        Ok(())
    }

    /// The slot of a message.
    #[inline]
    pub fn slot(&self, message: u64) -> M::Slot<'_> {
        self.memory.slot(message)
    }

    /// Hands over the slot that [`Ring::vacant`] returned, whose payload has been written.
    #[inline]
    pub fn publish(&self, cursor: &mut SendCursor, slot: &M::Slot<'_>, status: Status) {
        slot.status().store(status.encode(cursor.messages), Ordering::Release);
        let ahead = self.slot(cursor.messages.wrapping_add(PREFETCH_SLOTS));
        ahead.prefetch(usize::from(status.length) > FIRST_LINE_PAYLOAD);
        cursor.messages = cursor.messages.wrapping_add(1);
    }

    /// The status of the next message to receive, if its slot is filled.
    ///
    /// # Errors
    /// [`LaneClosed`] when the length exceeds [`PAYLOAD_BYTES`].
    #[inline]
    pub fn peek(&self, cursor: &ReceiveCursor) -> Result<Option<Status>, LaneClosed> {
        let word = self.slot(cursor.messages).status().load(Ordering::Acquire);
        match Status::decode(word, cursor.messages) {
            Some(status) if usize::from(status.length) > PAYLOAD_BYTES => Err(LaneClosed),
            other => Ok(other),
        }
    }

    /// Copies payload bytes of the next message.
    #[inline]
    pub fn read(&self, cursor: &ReceiveCursor, offset: usize, target: &mut [u8]) {
        self.slot(cursor.messages).read_payload(offset, target);
    }

    /// Takes the next message. Gives slots back when `flush` is set or a quarter of the ring was
    /// taken.
    #[inline]
    pub fn advance(&self, cursor: &mut ReceiveCursor, flush: bool) {
        cursor.messages = cursor.messages.wrapping_add(1);
        let held = cursor.messages.wrapping_sub(cursor.messages_returned);
        if flush || held >= self.depth() / 4 {
            self.give_back(cursor);
        }
    }

    /// Gives all taken slots back to the sender.
    pub fn give_back(&self, cursor: &mut ReceiveCursor) {
        if cursor.messages_returned != cursor.messages {
            cursor.messages_returned = cursor.messages;
            self.memory.taken().store(cursor.messages, Ordering::Release);
        }
    }
}

impl From<Status> for Slot {
    fn from(status: Status) -> Self {
        Self { tag: status.tag, length: status.length }
    }
}
