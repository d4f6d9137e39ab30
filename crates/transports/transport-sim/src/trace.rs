//! The trace: a list of the last events and a digest of all events.
//!
//! Invariant: the digest depends only on the events, with their order, times and payloads. Two runs
//! with the same seed and the same calls have the same digest.

use std::collections::VecDeque;
use std::fmt;

use weft_fabric::EndpointAddress;

/// Kinds of trace entries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Kind {
    /// An endpoint was opened.
    Open = 1,
    /// An endpoint was closed or killed.
    Close = 2,
    /// A descriptor left its initiator.
    Depart = 3,
    /// A message, request, response or credit arrived.
    Arrive = 4,
    /// A packet was dropped: its target is dead or was reported down.
    Drop = 5,
    /// A packet waits at a cut.
    Hold = 6,
    /// A peer was reported down.
    Down = 7,
    /// Two nodes were cut.
    Cut = 8,
    /// A cut between two nodes was mended.
    Heal = 9,
    /// A program took an event.
    Take = 10,
    /// A packet that the network lost was sent again.
    SendAgain = 11,
}

/// One event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its time in virtual nanoseconds.
    pub time_ns: u64,
    /// Its kind.
    pub kind: Kind,
    /// The source.
    pub from: EndpointAddress,
    /// The destination.
    pub to: EndpointAddress,
    /// The kind and number of the packet or event. The code that writes it defines the format.
    pub number: u64,
    /// Payload bytes.
    pub length: u64,
    /// Digest of the payload.
    pub payload: u64,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { time_ns, kind, from, to, number, length, payload } = self;
        write!(f, "{time_ns:>12} {kind:?} {from} -> {to} #{number:x} {length} B {payload:016x}")
    }
}

/// The trace of one world.
#[derive(Debug)]
pub(crate) struct Trace {
    digest: u64,
    entries: VecDeque<Entry>,
    entries_max: usize,
}

impl Trace {
    pub fn new(entries_max: usize) -> Self {
        Self { digest: FNV_BASIS, entries: VecDeque::new(), entries_max }
    }

    pub fn push(&mut self, entry: Entry) {
        let Entry { time_ns, kind, from, to, number, length, payload } = entry;
        let mut digest = self.digest;
        for address in [from, to] {
            digest = fnv(digest, &address.node.0.to_le_bytes());
            digest = fnv(digest, &address.vpid.0.to_le_bytes());
        }
        for word in [time_ns, u64::from(kind as u8), number, length, payload] {
            digest = fnv(digest, &word.to_le_bytes());
        }
        self.digest = digest;
        if self.entries_max == 0 {
            return;
        }
        if self.entries.len() == self.entries_max {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    pub const fn digest(&self) -> u64 {
        self.digest
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.entries.iter().copied().collect()
    }
}

/// The digest of a payload.
pub(crate) fn digest_of(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(8);
    let mut digest = FNV_BASIS;
    for word in &mut words {
        let word = u64::from_le_bytes(word.try_into().expect("chunks of 8"));
        digest = (digest ^ word).wrapping_mul(FNV_PRIME).rotate_left(23);
    }
    fnv(digest, words.remainder())
}

/// FNV-1a, 64 bits.
fn fnv(mut digest: u64, bytes: &[u8]) -> u64 {
    for byte in bytes {
        digest = (digest ^ u64::from(*byte)).wrapping_mul(FNV_PRIME);
    }
    digest
}

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_sees_every_byte_and_the_order() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17];
        for place in 0..bytes.len() {
            let mut other = bytes;
            other[place] ^= 0x80;
            assert_ne!(digest_of(&bytes), digest_of(&other), "byte {place}");
        }
        let mut swapped = bytes;
        swapped.rotate_left(8);
        assert_ne!(digest_of(&bytes), digest_of(&swapped));
    }
}
