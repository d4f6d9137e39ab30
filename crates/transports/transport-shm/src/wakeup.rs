//! The words of an endpoint's doorbell: which peers rang, and whether the endpoint sleeps.
//!
//! ```text
//! ringer:  set bit · set its word's bit · set summary · full fence · read state · wake
//! sleeper: set state · full fence · read summary · sleep on state
//! ```
//!
//! A peer rings only after it claimed the attention word of a ring ([`crate::attention`]). A
//! message between two ends that are awake does not touch these words.
//!
//! # Invariants
//! - Every peer can write all of these words. A bit only says which ring to look at. A bit or a
//!   state that a hostile peer clears delays the owner, and never blocks it: a sleeping
//!   [`crate::ShmEndpoint`] looks at all rings several times a second.

use weft_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use weft_sync::fence;
pub use weft_wire::endpoint_control::VPIDS_MAX;

const WORDS: usize = VPIDS_MAX as usize / 64;

/// Some peer rang and set its bit.
const PEERS: u32 = 1;
/// The broker sent a message.
const BROKER: u32 = 2;

/// The owner polls its words.
const AWAKE: u32 = 0;
/// The owner sleeps on the state word.
pub const ON_WORD: u32 = 1;
/// The owner sleeps on its descriptor.
pub const ON_DESCRIPTOR: u32 = 2;

/// How the owner of a wakeup sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleeper {
    /// The owner does not sleep.
    Awake,
    /// The owner sleeps on the state word: wake it by futex.
    OnWord,
    /// The owner sleeps on its descriptor: wake it by a byte on its wakeup socket.
    OnDescriptor,
}

/// The shared words. A fresh wakeup is all zeros.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct WakeupWords {
    summary: AtomicU32,
    reserved: AtomicU32,
    /// One bit for each word of `bits` in which a bit was set.
    filled: AtomicU64,
    pad: [AtomicU64; 6],
    bits: [AtomicU64; WORDS],
    state: AtomicU32,
    state_pad: [AtomicU32; 15],
}

/// The result of [`WakeupWords::take`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rung {
    /// One bit for each VPID whose peer rang.
    pub peers: [u64; WORDS],
    /// The broker rang.
    pub broker: bool,
}

impl Default for Rung {
    fn default() -> Self {
        Self { peers: [0; WORDS], broker: false }
    }
}

impl WakeupWords {
    /// A fresh wakeup outside shared memory, for models.
    #[must_use]
    pub fn new() -> Self {
        Self {
            summary: AtomicU32::new(0),
            reserved: AtomicU32::new(0),
            filled: AtomicU64::new(0),
            bits: std::array::from_fn(|_| AtomicU64::new(0)),
            pad: std::array::from_fn(|_| AtomicU64::new(0)),
            state: AtomicU32::new(AWAKE),
            state_pad: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    /// Rings for a peer. The caller must wake the returned sleeper.
    #[must_use]
    pub fn ring(&self, vpid: u16) -> Sleeper {
        let (word, bit) = (usize::from(vpid / 64) % WORDS, vpid % 64);
        self.bits[word].fetch_or(1 << bit, Ordering::SeqCst);
        self.filled.fetch_or(1 << word, Ordering::SeqCst);
        self.summary.fetch_or(PEERS, Ordering::SeqCst);
        self.claim_sleeper()
    }

    /// Rings for the broker. The caller must wake the returned sleeper.
    #[must_use]
    pub fn ring_broker(&self) -> Sleeper {
        self.summary.fetch_or(BROKER, Ordering::SeqCst);
        self.claim_sleeper()
    }

    fn claim_sleeper(&self) -> Sleeper {
        // Orders the summary store above before the state load below; `prepare` has the matching
        // fence.
        fence::light(true);
        if self.state.load(Ordering::SeqCst) == AWAKE {
            return Sleeper::Awake;
        }
        match self.state.swap(AWAKE, Ordering::SeqCst) {
            ON_WORD => Sleeper::OnWord,
            ON_DESCRIPTOR => Sleeper::OnDescriptor,
            // Another peer claimed the sleeper, or a hostile peer wrote the word.
            _ => Sleeper::Awake,
        }
    }

    /// True when a peer or the broker rang since the last [`WakeupWords::take`].
    #[inline]
    #[must_use]
    pub fn is_rung(&self) -> bool {
        self.summary.load(Ordering::Acquire) != 0
    }

    /// Takes and clears all bits.
    pub fn take(&self) -> Rung {
        let summary = self.summary.swap(0, Ordering::SeqCst);
        let mut rung = Rung { broker: summary & BROKER != 0, ..Rung::default() };
        if summary & PEERS != 0 {
            // The bits are read after the summary: a peer that sets a bit in between sets the
            // summary again.
            let mut filled = self.filled.swap(0, Ordering::SeqCst);
            while filled != 0 {
                let word = filled.trailing_zeros() as usize;
                filled &= filled - 1;
                rung.peers[word] = self.bits[word].swap(0, Ordering::SeqCst);
            }
        }
        rung
    }

    /// Announces that the owner goes to sleep. False when a peer or the broker rang already; the
    /// owner must then look at the wakeup first.
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

    /// Announces that the owner is awake.
    pub fn rise(&self) {
        self.state.store(AWAKE, Ordering::Relaxed);
    }

    /// The futex word. The owner sleeps on it while it holds [`ON_WORD`].
    #[must_use]
    pub const fn state(&self) -> &AtomicU32 {
        &self.state
    }
}

impl Default for WakeupWords {
    fn default() -> Self {
        Self::new()
    }
}
