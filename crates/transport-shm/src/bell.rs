//! The words of an endpoint's doorbell: who rang, and whether the endpoint sleeps.
//!
//! ```text
//! ringer:  set bit · set summary · full fence · read state · wake
//! sleeper: set state · full fence · read summary · sleep on state
//! ```
//!
//! Ringing happens only after the attention word of a ring was claimed ([`crate::attention`]), so
//! none of this is on the path of a message between two ends that are awake.
//!
//! # Invariants
//! - All peers can write all of these words. A bit says no more than "look there"; a lost bit or
//!   state delays the owner until its next look at everything, which [`crate::ShmEndpoint`] takes
//!   several times a second while it sleeps, and never blocks it.

use weft_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use weft_sync::fence;

/// VPIDs there can be: one bit each.
pub const VPIDS: u16 = 256;

/// Some peer rang; its bit is set.
const PEERS: u32 = 1;
/// The broker sent something.
const BROKER: u32 = 2;

/// The owner looks at its words by itself.
const AWAKE: u32 = 0;
/// The owner sleeps on the state word.
pub const ON_WORD: u32 = 1;
/// The owner sleeps on its descriptor.
pub const ON_DESCRIPTOR: u32 = 2;

/// How the owner of a bell sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleeper {
    /// Not at all.
    Awake,
    /// On the state word: wake it there.
    OnWord,
    /// On its descriptor: write to its bell socket.
    OnDescriptor,
}

/// The shared words. All zero is a fresh bell.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct BellWords {
    summary: AtomicU32,
    reserved: AtomicU32,
    bits: [AtomicU64; 4],
    pad: [AtomicU64; 11],
    state: AtomicU32,
    state_pad: [AtomicU32; 15],
}

/// What was found when the bell was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rung {
    /// One bit for each VPID that rang.
    pub peers: [u64; 4],
    /// The broker rang.
    pub broker: bool,
}

impl BellWords {
    /// A fresh bell outside shared memory, for models.
    #[must_use]
    pub fn new() -> Self {
        Self {
            summary: AtomicU32::new(0),
            reserved: AtomicU32::new(0),
            bits: std::array::from_fn(|_| AtomicU64::new(0)),
            pad: std::array::from_fn(|_| AtomicU64::new(0)),
            state: AtomicU32::new(AWAKE),
            state_pad: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    /// Rings for a peer. The caller must wake the sleeper that comes back.
    #[must_use]
    pub fn ring(&self, vpid: u16) -> Sleeper {
        let (word, bit) = (usize::from(vpid / 64) % 4, vpid % 64);
        self.bits[word].fetch_or(1 << bit, Ordering::SeqCst);
        self.summary.fetch_or(PEERS, Ordering::SeqCst);
        self.claim_sleeper()
    }

    /// Rings for the broker. The caller must wake the sleeper that comes back.
    #[must_use]
    pub fn ring_broker(&self) -> Sleeper {
        self.summary.fetch_or(BROKER, Ordering::SeqCst);
        self.claim_sleeper()
    }

    fn claim_sleeper(&self) -> Sleeper {
        // Between the summary above and the state below; its other half is in `prepare`.
        fence::light(true);
        if self.state.load(Ordering::SeqCst) == AWAKE {
            return Sleeper::Awake;
        }
        match self.state.swap(AWAKE, Ordering::SeqCst) {
            ON_WORD => Sleeper::OnWord,
            ON_DESCRIPTOR => Sleeper::OnDescriptor,
            // Claimed by another, or written by a hostile peer.
            _ => Sleeper::Awake,
        }
    }

    /// True when somebody rang since [`BellWords::take`].
    #[inline]
    #[must_use]
    pub fn is_rung(&self) -> bool {
        self.summary.load(Ordering::Acquire) != 0
    }

    /// Takes what was rung.
    pub fn take(&self) -> Rung {
        let summary = self.summary.swap(0, Ordering::SeqCst);
        let mut rung = Rung { broker: summary & BROKER != 0, ..Rung::default() };
        if summary & PEERS != 0 {
            // Bits after the summary: who sets a bit in between sets the summary again.
            for (taken, word) in rung.peers.iter_mut().zip(&self.bits) {
                *taken = word.swap(0, Ordering::SeqCst);
            }
        }
        rung
    }

    /// Announces that the owner goes to sleep; false when somebody rang already, and the owner
    /// must look first.
    #[must_use]
    pub fn prepare(&self, state: u32) -> bool {
        self.state.store(state, Ordering::SeqCst);
        fence::light(true);
        if self.summary.load(Ordering::SeqCst) == 0 {
            return true;
        }
        self.rise();
        false
    }

    /// The owner is awake.
    pub fn rise(&self) {
        self.state.store(AWAKE, Ordering::Relaxed);
    }

    /// The word to sleep on while it holds [`ON_WORD`].
    #[must_use]
    pub const fn state(&self) -> &AtomicU32 {
        &self.state
    }
}

impl Default for BellWords {
    fn default() -> Self {
        Self::new()
    }
}
