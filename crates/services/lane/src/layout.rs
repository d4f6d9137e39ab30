//! The memory of one end, which its peer writes and it reads.
//!
//! ```text
//! 0      control words                                 (the peer posts them)
//! 96     messages that the peer took from this end     (the peer counts)
//! 104    bytes that the peer took from this end
//! 128    slots: a status word of 8 bytes, a payload of 120
//! …      sink
//! ```

use weft_fabric::Slot;

/// Bytes of a slot with its status word.
const SLOT_BYTES: u64 = 128;
/// Bytes of a status word.
pub(crate) const STATUS_BYTES: u64 = 8;
/// Bytes of payload in a slot.
pub(crate) const PAYLOAD_BYTES: usize = 120;
/// Number of control words.
pub(crate) const WORDS: usize = 12;
/// Offset of the count of messages taken.
pub(crate) const MESSAGES_TAKEN: u64 = 96;
/// Offset of the count of bytes taken.
pub(crate) const BYTES_TAKEN: u64 = 104;
const SLOTS_START: u64 = 128;
/// The memory of an end is a multiple of this.
const PAGE: u64 = 4096;

/// Sizes of a lane. Both directions have the same sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Slots of a mailbox, a power of two, 16 to 65,536.
    pub slots: u32,
    /// Bytes of a sink, a power of two, 4 KiB to 1 GiB.
    pub sink_bytes: u32,
}

impl Default for Layout {
    fn default() -> Self {
        Self { slots: 256, sink_bytes: 256 << 10 }
    }
}

impl Layout {
    /// Whether the sizes are within their bounds.
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.slots.is_power_of_two()
            && (16..=65_536).contains(&self.slots)
            && self.sink_bytes.is_power_of_two()
            && (4096..=1 << 30).contains(&self.sink_bytes)
    }

    /// Whether a lane of this layout fits where one of `other` does.
    #[must_use]
    pub const fn fits(self, other: Self) -> bool {
        self.slots <= other.slots && self.sink_bytes <= other.sink_bytes
    }

    /// Bytes of the memory of an end.
    #[must_use]
    pub fn bytes(self) -> u64 {
        (self.sink_start() + u64::from(self.sink_bytes)).next_multiple_of(PAGE)
    }

    /// Offset of a control word.
    pub(crate) const fn word(word: usize) -> u64 {
        word as u64 * 8
    }

    /// Offset of the status word of the slot of `message`. Its payload follows.
    pub(crate) fn slot(self, message: u64) -> u64 {
        SLOTS_START + (message & (u64::from(self.slots) - 1)) * SLOT_BYTES
    }

    /// The one or two ranges (offset in the memory, length) of `length` bytes at `position` of the
    /// sink. The second is empty unless the bytes wrap around its end.
    pub(crate) fn sink(self, position: u64, length: u64) -> [(u64, u64); 2] {
        let size = u64::from(self.sink_bytes);
        assert!(length <= size, "{length} bytes do not fit a sink of {size}");
        let at = position & (size - 1);
        let first = length.min(size - at);
        [(self.sink_start() + at, first), (self.sink_start(), length - first)]
    }

    /// Offset of the sink.
    pub(crate) fn sink_start(self) -> u64 {
        SLOTS_START + u64::from(self.slots) * SLOT_BYTES
    }
}

/// The status word of the slot of `message`: its number plus one in the low half, then the length
/// and the tag.
pub(crate) fn status(message: u64, slot: Slot) -> u64 {
    u64::from(low_half(message.wrapping_add(1)))
        | u64::from(slot.length) << 32
        | u64::from(slot.tag) << 40
}

/// The content of the slot of `message`, by its status word. `None` while the slot does not hold
/// that message. The length is the peer's and not checked.
pub(crate) fn slot_of(status: u64, message: u64) -> Option<Slot> {
    let [.., length, tag, _, _] = status.to_le_bytes();
    (low_half(status) == low_half(message.wrapping_add(1))).then_some(Slot { tag, length })
}

#[allow(clippy::cast_possible_truncation, reason = "the low half is what is wanted")]
const fn low_half(value: u64) -> u32 {
    value as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Layout = Layout { slots: 16, sink_bytes: 4096 };

    #[test]
    fn parts_of_the_memory_do_not_overlap_and_are_aligned() {
        assert!(Layout::word(WORDS - 1) + 8 <= MESSAGES_TAKEN);
        const { assert!(BYTES_TAKEN + 8 <= SLOTS_START, "the words end before the slots") };
        assert_eq!(SMALL.slot(15) + SLOT_BYTES, SMALL.sink_start());
        assert_eq!(SMALL.slot(16), SMALL.slot(0));
        assert_eq!(SMALL.bytes() % PAGE, 0);
        assert!(SMALL.sink_start() + 4096 <= SMALL.bytes());
        assert_eq!(SMALL.slot(u64::MAX), SMALL.slot(15), "any position is a place");
    }

    #[test]
    fn a_range_of_the_sink_wraps_around_its_end() {
        let start = SMALL.sink_start();
        assert_eq!(SMALL.sink(4090, 10), [(start + 4090, 6), (start, 4)]);
        assert_eq!(SMALL.sink(4096, 4096), [(start, 4096), (start, 0)]);
    }

    #[test]
    fn a_status_names_its_message_and_no_other() {
        let slot = Slot { tag: 7, length: 120 };
        let word = status(41, slot);
        assert_eq!(slot_of(word, 41), Some(slot));
        assert_eq!((slot_of(word, 40), slot_of(word, 42), slot_of(0, 41)), (None, None, None));
    }
}
