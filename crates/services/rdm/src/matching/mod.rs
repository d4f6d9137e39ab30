//! Tag matching, without I/O: receives that wait for messages, and messages that wait for receives.
//!
//! A message has an [`Envelope`], a receive a [`Selector`]. They match when the sources are equal
//! or the receive is for any, and when the tags are equal but for the bits that
//! the receive ignores.
//!
//! | queue | holds | is asked with | answers with |
//! |---|---|---|---|
//! | [`Posted`] | receives | an envelope | the receive that was posted first |
//! | [`Unexpected`] | messages | a selector | the message that arrived first |
//!
//! Source: fi_tagged(3); EXTOLL-THESIS#3.3.2, which names the two queues.
//!
//! # Invariants
//! - The answer is that of a search from the oldest to the newest, whatever the index holds.
//! - The first [`SHORT`] things are searched in order, which costs less than hashing: most messages
//!   are for the oldest receives.
//! - The first search that goes beyond them makes an index by source and tag for each of the first
//!   [`MASKS_MAX`] values of `ignore` that it meets. Receives with others are searched in order.
//! - Each place of the index that names a thing that is gone is dropped when it is met, and all are
//!   when they are more than the others: memory is in proportion to what waits.

mod index;
mod list;
mod posted;
mod unexpected;

pub use list::Spot;
pub use posted::Posted;
pub use unexpected::Unexpected;

/// The sender of a message, by a number of the caller's choice. The highest one is taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Source(pub u32);

impl Source {
    /// In the index: a receive from any source.
    const ANY: Self = Self(u32::MAX);
}

/// The source and the tag of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// The sender.
    pub source: Source,
    /// The tag. Messages without one have 0.
    pub tag: u64,
}

/// The messages that a receive is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Selector {
    /// The sender; `None` stands for any.
    pub source: Option<Source>,
    /// The tag.
    pub tag: u64,
    /// The bits of the tag that do not count.
    pub ignore: u64,
}

impl Selector {
    /// The selector of every message.
    pub const ALL: Self = Self { source: None, tag: 0, ignore: u64::MAX };

    /// True for a message with this envelope.
    #[inline]
    #[must_use]
    pub fn matches(&self, envelope: Envelope) -> bool {
        (envelope.tag ^ self.tag) & !self.ignore == 0
            && self.source.is_none_or(|source| source == envelope.source)
    }
}

/// Things at the beginning of a queue that are searched in order.
pub const SHORT: usize = 16;
/// Values of `ignore` for which a queue has an index.
pub const MASKS_MAX: usize = 4;

#[cfg(test)]
mod tests;
