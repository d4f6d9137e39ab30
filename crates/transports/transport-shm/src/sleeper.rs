//! Which end executes the expensive fence when an end sleeps: the sleeper or its waker.
//!
//! An end that rarely sleeps executes the fence for both ends ([`fence::heavy`]), so the other end
//! publishes at full rate. But `membarrier` interrupts other processors and takes a lock of the
//! whole machine: some 10 us where many programs sleep and wake. An end that slept twice in a row
//! and found nothing without sleeping therefore asks the other end for full fences. A full fence
//! costs the other end some tens of nanoseconds, beside a wake-up that costs it microseconds. The
//! request ends as soon as the owner finds something without sleeping.
//!
//! ```text
//! sleeper: arm · fence · read state ─ agreed ──────────────────────────────┐
//!                             └─ else: ask · heavy fence · agree if asked ─┴ look · sleep
//! other:   publish · read state · fence if asked or agreed · read whether armed
//! ```
//!
//! # Invariants
//! - AGREED means: a heavy fence has ended since the state became ASKED. Every end that publishes
//!   after that fence sees the state. A request that was withdrawn and made again is a different
//!   one: each request has a number.
//! - The other end reads the state after it published. If it reads CHEAP, either it published
//!   before the heavy fence of this request, or it reads the armed word after that fence.
//! - Only the owner writes the word. A hostile peer that writes the word can only fail to wake the
//!   owner, which it can do anyway.

use std::sync::atomic::{AtomicU32, Ordering, fence as full_fence};

use weft_sync::fence;

/// The sleeper executes the fence for both ends.
const CHEAP: u32 = 0;
/// The kernel has no `membarrier`: both ends always execute a full fence.
const ALWAYS: u32 = 1;
/// As CHEAP, and the owner has slept since it last found something without sleeping.
const SLEPT: u32 = 2;
/// The owner asked the other end to execute full fences; the other end may not have seen it yet.
const ASKED: u32 = 3;
/// The other end executes full fences.
const AGREED: u32 = 4;
const STATES: u32 = 7;
/// One unit of the number of the request, which is kept above the state.
const NUMBER: u32 = STATES + 1;

/// The state word of one end, in memory that both ends map.
#[derive(Debug)]
#[repr(transparent)]
pub struct Sleeper(AtomicU32);

impl Sleeper {
    /// Called when a process opens its end of a lane. Other processes may have opened the same end
    /// already: their state and request number stay. Fresh memory is CHEAP.
    pub fn open(&self, has_heavy_fence: bool) {
        if !has_heavy_fence {
            self.0.store(ALWAYS, Ordering::Relaxed);
        }
    }

    /// Resets the word to its state in fresh memory. Neither end may be using the lane.
    pub fn renew(&self) {
        self.0.store(CHEAP, Ordering::Relaxed);
    }

    /// The fence of an end that published and may have to wake the owner of this word. True if it
    /// was a full one that the owner relies on: then the owner may nap, too ([`crate::lane::nap`]).
    #[inline]
    pub fn fence_of_other(&self, always: bool) -> bool {
        // The state must be read after the data was published.
        fence::light(always);
        let state = self.0.load(Ordering::Relaxed) & STATES;
        if matches!(state, CHEAP | SLEPT) {
            return false;
        }
        full_fence(Ordering::SeqCst);
        true
    }

    /// True if the other end executes a full fence whenever it publishes. Asked by the owner.
    #[must_use]
    pub fn has_fences_of_other(&self) -> bool {
        matches!(self.0.load(Ordering::Relaxed) & STATES, ALWAYS | AGREED)
    }

    /// The fence of the owner, which armed its word and is about to look once more and sleep. When
    /// the result is some, [`fence::heavy`] and then [`Sleeper::agree`] must follow; one heavy
    /// fence serves any number of words.
    #[must_use]
    pub fn fence_of_owner(&self) -> Option<Asking> {
        full_fence(Ordering::SeqCst);
        let word = self.0.load(Ordering::Relaxed);
        let next = match word & STATES {
            ALWAYS | AGREED => return None,
            CHEAP => word & !STATES | SLEPT,
            SLEPT => (word & !STATES).wrapping_add(NUMBER) | ASKED,
            // Another thread asked. Its heavy fence does not order this thread's accesses.
            _ => word,
        };
        // When another thread changed the word, only that thread's fence settles the request.
        let asked = next == word
            || self.0.compare_exchange(word, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        Some(Asking(asked.then_some(next)))
    }

    /// Settles the request. Called after the heavy fence.
    pub fn agree(&self, asking: Asking) {
        if let Asking(Some(word)) = asking
            && word & STATES == ASKED
        {
            let agreed = word & !STATES | AGREED;
            let _ = self.0.compare_exchange(word, agreed, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The owner found data or room without sleeping.
    #[inline]
    pub fn found_awake(&self) {
        let word = self.0.load(Ordering::Relaxed);
        if !matches!(word & STATES, CHEAP | ALWAYS) {
            let cheap = word & !STATES | CHEAP;
            let _ = self.0.compare_exchange(word, cheap, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// A request for full fences, settled by the next heavy fence.
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
    fn an_end_that_sleeps_often_needs_no_heavy_fence() {
        let sleeper = Sleeper(AtomicU32::new(CHEAP));
        assert!(sleep(&sleeper));
        sleeper.found_awake();
        assert_eq!(state(&sleeper), CHEAP);
        assert!(sleep(&sleeper) && sleep(&sleeper));
        assert_eq!(state(&sleeper), AGREED);
        assert!(!sleep(&sleeper));
        sleeper.open(true);
        assert_eq!(state(&sleeper), AGREED, "other processes of this end rely on the state");
        sleeper.found_awake();
        assert!(sleep(&sleeper));
    }

    #[test]
    fn a_withdrawn_request_is_not_agreed() {
        let sleeper = Sleeper(AtomicU32::new(SLEPT));
        let first = sleeper.fence_of_owner().expect("asked");
        assert_eq!(state(&sleeper), ASKED);
        sleeper.found_awake();
        assert!(sleep(&sleeper));
        let second = sleeper.fence_of_owner().expect("asked");
        sleeper.agree(first);
        assert_eq!(state(&sleeper), ASKED, "the first request was withdrawn");
        sleeper.agree(second);
        assert_eq!(state(&sleeper), AGREED);
    }

    #[test]
    fn without_a_heavy_fence_both_ends_always_execute_a_full_fence() {
        let sleeper = Sleeper(AtomicU32::new(SLEPT));
        sleeper.open(false);
        assert!(!sleep(&sleeper));
        sleeper.found_awake();
        assert_eq!(state(&sleeper), ALWAYS);
    }
}
