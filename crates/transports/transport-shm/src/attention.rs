//! The attention word: one end of a ring tells the other whether it needs a wake-up.
//!
//! ```text
//! sleeper: arm · heavy fence · look once more · sleep    other: publish · light fence · claim
//! ```
//!
//! The heavy fence guarantees one of two things: the other end sees the armed word, or the sleeper
//! sees the published data. No wake-up is lost. While the owner is awake, the other end pays one
//! load of a word that is in its cache.
//!
//! # Invariants
//! - The owner of a word arms and disarms it. The other end only changes armed to rung, once.
//! - The other end may be hostile and write any value. An unknown value means that no wake-up is
//!   needed. The owner keeps a private copy of whether it armed the word.

use weft_sync::atomic::{AtomicU32, Ordering};
use weft_sync::fence;

/// The owner polls the ring.
const WATCHING: u32 = 0;
/// The owner does not poll: the other end claims the word and rings the owner's wakeup.
const ARMED: u32 = 1;
/// The other end claimed the word and rings.
const RUNG: u32 = 2;

/// Arms the caller's own word. The word takes effect only after [`fence::heavy`]; the caller must
/// then look at the ring once more.
#[inline]
pub fn arm(word: &AtomicU32) {
    word.store(ARMED, Ordering::Relaxed);
}

/// Disarms the caller's own word.
#[inline]
pub fn watch(word: &AtomicU32) {
    word.store(WATCHING, Ordering::Relaxed);
}

/// Called after publishing. True when the owner of `word` does not poll, and the caller must ring
/// the owner's wakeup. `full` is as for [`fence::light`].
#[inline]
pub fn claim(word: &AtomicU32, full: bool) -> bool {
    fence::light(full);
    word.load(Ordering::Relaxed) == ARMED && claim_armed(word)
}

#[cold]
fn claim_armed(word: &AtomicU32) -> bool {
    word.compare_exchange(ARMED, RUNG, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}
