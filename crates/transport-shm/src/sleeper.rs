//! Who pays for the fence of a sleeper: it, or the one who may have to wake it.
//!
//! An end that sleeps now and then pays for both ([`fence::heavy`]), and the other keeps its rate.
//! But `membarrier` interrupts other processors and takes a lock of the whole machine, some 10 us
//! where many programs sleep and wake. So an end that slept twice and found nothing in between
//! without sleeping asks the other for full fences, which cost that one some tens of nanoseconds
//! next to a wake-up that costs it microseconds. It no longer asks once it finds something awake.
//!
//! ```text
//! sleeper: arm · fence · read state ─ agreed ──────────────────────────────┐
//!                             └─ else: ask · heavy fence · agree if asked ─┴ look · sleep
//! other:   publish · read state · fence if asked or agreed · read whether armed
//! ```
//!
//! # Invariants
//! - Agreed means: since it was asked a heavy fence has ended, so whoever published after that and
//!   reads the state sees it. A state that was taken back meanwhile and asked for anew is another
//!   one: each time of asking has a number.
//! - The other reads the state after it published. One that reads it as cheap published before the
//!   heavy fence of this asking, or will read whether the word is armed after it.
//! - Only the owner writes the word. A hostile peer that writes it can only fail to wake its owner,
//!   which it could anyway.

use std::sync::atomic::{AtomicU32, Ordering, fence as full_fence};

use weft_sync::fence;

/// The sleeper pays.
const CHEAP: u32 = 0;
/// The kernel has no fence for all: both pay, always.
const ALWAYS: u32 = 1;
/// The same, and it has slept since it found something awake.
const SLEPT: u32 = 2;
/// The other is to pay, but may not know yet.
const ASKED: u32 = 3;
/// The other pays.
const AGREED: u32 = 4;
const STATES: u32 = 7;
/// Above the state: how often it was asked.
const NUMBER: u32 = STATES + 1;

/// A word of one end that says what the other has to do; in memory that both share.
#[derive(Debug)]
#[repr(transparent)]
pub struct Sleeper(AtomicU32);

impl Sleeper {
    /// When a process opens its end, which others may have open already: what they agreed on and
    /// the number of their asking stay. Fresh memory is cheap.
    pub fn open(&self, has_heavy_fence: bool) {
        if !has_heavy_fence {
            self.0.store(ALWAYS, Ordering::Relaxed);
        }
    }

    /// As in fresh memory, while neither end uses it.
    pub fn renew(&self) {
        self.0.store(CHEAP, Ordering::Relaxed);
    }

    /// The fence of an end that published and may have to wake the owner of this word.
    #[inline]
    pub fn fence_of_other(&self, always: bool) {
        // The state is read after what was published.
        fence::light(always);
        let state = self.0.load(Ordering::Relaxed) & STATES;
        if !matches!(state, CHEAP | SLEPT) {
            full_fence(Ordering::SeqCst);
        }
    }

    /// The fence of the owner, which armed and is about to look once more and sleep. Some when a
    /// heavy fence is to follow, one for any number of words, and [`Sleeper::agree`].
    #[must_use]
    pub fn fence_of_owner(&self) -> Option<Asking> {
        full_fence(Ordering::SeqCst);
        let word = self.0.load(Ordering::Relaxed);
        let next = match word & STATES {
            ALWAYS | AGREED => return None,
            CHEAP => word & !STATES | SLEPT,
            SLEPT => (word & !STATES).wrapping_add(NUMBER) | ASKED,
            // Another thread asks; its heavy fence is not this one's.
            _ => word,
        };
        // When another thread changed it, its heavy fence settles what; this one's is for itself.
        let asked = next == word
            || self.0.compare_exchange(word, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        Some(Asking(asked.then_some(next)))
    }

    /// After the heavy fence.
    pub fn agree(&self, asking: Asking) {
        if let Asking(Some(word)) = asking
            && word & STATES == ASKED
        {
            let agreed = word & !STATES | AGREED;
            let _ = self.0.compare_exchange(word, agreed, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The owner found something without having slept for it.
    #[inline]
    pub fn found_awake(&self) {
        let word = self.0.load(Ordering::Relaxed);
        if !matches!(word & STATES, CHEAP | ALWAYS) {
            let cheap = word & !STATES | CHEAP;
            let _ = self.0.compare_exchange(word, cheap, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// What a heavy fence settles.
#[derive(Clone, Copy, Debug)]
pub struct Asking(Option<u32>);

#[cfg(test)]
mod tests {
    use super::*;

    fn state(sleeper: &Sleeper) -> u32 {
        sleeper.0.load(Ordering::Relaxed) & STATES
    }

    fn sleep(sleeper: &Sleeper) -> bool {
        let asking = sleeper.fence_of_owner();
        if let Some(asking) = asking {
            sleeper.agree(asking);
        }
        asking.is_some()
    }

    #[test]
    fn who_sleeps_again_and_again_stops_paying() {
        let sleeper = Sleeper(AtomicU32::new(CHEAP));
        assert!(sleep(&sleeper));
        sleeper.found_awake();
        assert_eq!(state(&sleeper), CHEAP);
        assert!(sleep(&sleeper) && sleep(&sleeper));
        assert_eq!(state(&sleeper), AGREED);
        assert!(!sleep(&sleeper));
        sleeper.open(true);
        assert_eq!(state(&sleeper), AGREED, "others of this end rely on it");
        sleeper.found_awake();
        assert!(sleep(&sleeper));
    }

    #[test]
    fn what_was_taken_back_is_not_agreed() {
        let sleeper = Sleeper(AtomicU32::new(SLEPT));
        let first = sleeper.fence_of_owner().expect("asked");
        assert_eq!(state(&sleeper), ASKED);
        sleeper.found_awake();
        assert!(sleep(&sleeper));
        let second = sleeper.fence_of_owner().expect("asked");
        sleeper.agree(first);
        assert_eq!(state(&sleeper), ASKED, "the first asking was taken back");
        sleeper.agree(second);
        assert_eq!(state(&sleeper), AGREED);
    }

    #[test]
    fn without_a_heavy_fence_both_pay_for_ever() {
        let sleeper = Sleeper(AtomicU32::new(SLEPT));
        sleeper.open(false);
        assert!(!sleep(&sleeper));
        sleeper.found_awake();
        assert_eq!(state(&sleeper), ALWAYS);
    }
}
