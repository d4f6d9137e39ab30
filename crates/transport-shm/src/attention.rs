//! The attention word: how one end of a ring tells the other whether it must be rung.
//!
//! ```text
//! sleeper: arm · heavy fence · look once more · sleep    other: publish · light fence · claim
//! ```
//!
//! The heavy fence makes one of two things true: the other end sees the armed word, or the sleeper
//! sees what was published. So an end that is awake costs the other one load of a word that is
//! in its cache, and nobody sleeps through a message.
//!
//! # Invariants
//! - The owner of a word arms and disarms it; the other end only turns armed into rung, once.
//! - The other end may be hostile and write anything: unknown values ask for nothing, and the
//!   owner keeps in a field of its own whether it armed the word.

use weft_sync::atomic::{AtomicU32, Ordering};
use weft_sync::fence;

/// The owner looks by itself.
const WATCHING: u32 = 0;
/// The owner is not looking: claim the word and ring its bell.
const ARMED: u32 = 1;
/// Somebody claimed it.
const RUNG: u32 = 2;

/// Arms the own word. In force only after [`fence::heavy`], and the owner must look once more.
#[inline]
pub fn arm(word: &AtomicU32) {
    word.store(ARMED, Ordering::Relaxed);
}

/// Back to watching.
#[inline]
pub fn watch(word: &AtomicU32) {
    word.store(WATCHING, Ordering::Relaxed);
}

/// After publishing: true when the owner of `word` does not look and the caller must ring its
/// bell. `full` as for [`fence::light`].
#[inline]
pub fn claim(word: &AtomicU32, full: bool) -> bool {
    fence::light(full);
    word.load(Ordering::Relaxed) == ARMED && claim_armed(word)
}

#[cold]
fn claim_armed(word: &AtomicU32) -> bool {
    word.compare_exchange(ARMED, RUNG, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}
