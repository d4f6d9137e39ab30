//! The counters of an endpoint that its broker may read, however the endpoint reaches its peers.
//!
//! ```text
//! 0     registers: Register::COUNT words of 64 bits
//! 120   three words of the transport
//! 144   the times of messages, puts and gets: histograms, in the order of Timed
//! ```
//!
//! The endpoint alone writes them. They are read one by one, so that those of one instant may
//! differ by an operation that is under way.

use std::os::fd::BorrowedFd;

use weft_fabric::{Register, Timed};
use weft_metrics::{Snapshot, WORDS};

/// Where the times begin, in bytes.
pub const TIMES_AT: usize = (Register::COUNT + 3) * 8;
/// The bytes of all.
pub const BYTES: usize = TIMES_AT + Timed::ALL.len() * WORDS * 8;

/// The counters of an endpoint at one time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counts {
    /// The registers, in the order of their numbers.
    pub values: [u64; Register::COUNT],
    /// The times, in the order of [`Timed::ALL`].
    pub times: [Snapshot; Timed::ALL.len()],
}

impl Counts {
    /// The counters in `file`, copied once; `None` if it is too short.
    #[must_use]
    pub fn read(file: BorrowedFd<'_>) -> Option<Self> {
        let mut bytes = [0; BYTES];
        let read = rustix::io::pread(file, &mut bytes, 0).ok()?;
        let (chunks, _) = bytes.as_chunks::<8>();
        let mut words = [0; BYTES / 8];
        for (word, bytes) in words.iter_mut().zip(chunks) {
            *word = u64::from_ne_bytes(*bytes);
        }
        let mut values = [0; Register::COUNT];
        values.copy_from_slice(&words[..Register::COUNT]);
        let (times, _) = words[TIMES_AT / 8..].as_chunks::<WORDS>();
        let times = std::array::from_fn(|place| Snapshot::of_words(&times[place]));
        (read == BYTES).then_some(Self { values, times })
    }

    /// Adds those of another part of the endpoint.
    pub fn add(&mut self, more: &Self) {
        for (sum, more) in self.values.iter_mut().zip(more.values) {
            *sum = sum.saturating_add(more);
        }
        for (sum, more) in self.times.iter_mut().zip(&more.times) {
            sum.add(more);
        }
    }
}
