//! Naps: short sleeps of a thread on a word of the lane.
//!
//! A wakeup through the kernel's socket is a segment of TCP, and the sleeper has to take it out
//! again. On a machine that has no processor to spare, where both ends sleep at each message, that
//! is dearer than the message over TCP would have been. A nap is ended by one call of futex(2), and
//! leaves nothing behind.
//!
//! ```text
//! napper: word = 1 · full fence · look once more · sleep on the word
//! other:  publish · full fence · if word is 1: word = 0 · wake
//! ```
//!
//! # Invariants
//! - An end naps only while its peer executes full fences for it ([`crate::sleeper`]). So a peer
//!   looks for naps in that case alone, and a message to an end that is awake costs nothing more.
//! - A nap notices neither the peer's death nor what happens to other descriptors, so it is short
//!   and no wakeup of a nap has to be relied on. A peer of an older release wakes nobody, a hostile
//!   one whom it likes, and the second of two threads that nap on one word may not be woken: each
//!   sleeps to the end of its nap, and no longer.

use std::sync::atomic::{AtomicU32, Ordering, fence as full_fence};
use std::time::Duration;

use weft_fabric::WaitFor;
use weft_memory::View;
use weft_sync::futex::{self, Slept};

use super::{Block, ShmLane};

const AWAKE: u32 = 0;
const NAPS: u32 = 1;

/// A thread's nap, from the moment at which the peer may see it until it is dropped. It holds the
/// memory of the lane and no lock.
#[derive(Debug)]
pub struct Nap {
    words: View<Block>,
    what: WaitFor,
}

impl Nap {
    fn word(&self) -> &AtomicU32 {
        self.words.nap(self.what)
    }

    /// Sleeps until the peer ends the nap, at most `limit`.
    #[must_use]
    pub fn sleep(&self, limit: Duration) -> Slept {
        futex::wait(self.word(), NAPS, Some(limit))
    }
}

impl Drop for Nap {
    fn drop(&mut self) {
        self.word().store(AWAKE, Ordering::Relaxed);
    }
}

impl Block {
    const fn nap(&self, what: WaitFor) -> &AtomicU32 {
        match what {
            WaitFor::Data => &self.data_nap,
            WaitFor::Room => &self.room_nap,
        }
    }
}

impl ShmLane {
    /// Begins a nap of a thread that waits for `what`; it must look once more before it sleeps.
    /// `None` while the peer would not see it: the thread sleeps in the other way.
    #[must_use]
    pub fn begin_nap(&self, what: WaitFor) -> Option<Nap> {
        if !self.own_sleeper(what).has_fences_of_other() {
            return None;
        }
        let words = match what {
            WaitFor::Data => &self.receives.words,
            WaitFor::Room => &self.sends.words,
        };
        let nap = Nap { words: words.clone(), what };
        nap.word().store(NAPS, Ordering::Relaxed);
        full_fence(Ordering::SeqCst);
        Some(nap)
    }

    fn peer_nap(&self, what: WaitFor) -> &AtomicU32 {
        match what {
            WaitFor::Data => self.outgoing().nap(what),
            WaitFor::Room => self.incoming().nap(what),
        }
    }

    /// True if the peer naps until there is `what`. A full fence comes first.
    #[inline]
    pub(super) fn peer_naps(&self, what: WaitFor) -> bool {
        self.peer_nap(what).load(Ordering::Relaxed) == NAPS
    }

    /// Ends the peer's nap. A full fence comes first.
    #[cold]
    pub(super) fn end_nap_of_peer(&self, what: WaitFor) {
        let word = self.peer_nap(what);
        if word.swap(AWAKE, Ordering::Relaxed) == NAPS {
            futex::wake(word, i32::MAX.cast_unsigned());
        }
    }
}
