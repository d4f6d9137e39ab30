//! The doorbell segment: the memory of an endpoint that all its peers may write.
//!
//! ```text
//! 0      wakeup words (see `wakeup`)
//! 4096   lock table: LOCKS words of 32 bits
//! ```
//!
//! # Invariants
//! - The owner trusts no word of this segment: bits only say where to look, lock values are data.
//! - Ringing never blocks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use weft_fabric::LockRequest;
use weft_memory::{Segment, SegmentError, View};
use weft_sync::futex;

use crate::sys;
use crate::wakeup::{Sleeper, WakeupWords};

/// Locks that an endpoint has.
pub const LOCKS: u32 = 4096;
const LOCKS_START: usize = 4096;
/// Bytes of the segment.
pub const BYTES: usize = LOCKS_START + LOCKS as usize * 4;

/// A mapped doorbell segment, and the end of the wakeup socket that peers write to.
#[derive(Debug)]
pub struct Doorbell {
    words: View<WakeupWords>,
    wakeup: OwnedFd,
}

impl Doorbell {
    /// Makes a fresh segment. The descriptor is for peers.
    ///
    /// # Errors
    /// [`SegmentError`].
    pub fn create(wakeup: OwnedFd) -> Result<(Self, OwnedFd), SegmentError> {
        let (segment, file) = Segment::create("weft-doorbell", BYTES)?;
        Ok((Self::with_segment(segment, wakeup), file))
    }

    /// Maps the doorbell of a peer.
    ///
    /// # Errors
    /// [`SegmentError`] when the memory is not of the right kind and size.
    pub fn open(file: BorrowedFd<'_>, wakeup: OwnedFd) -> Result<Self, SegmentError> {
        Ok(Self::with_segment(Segment::open(file, BYTES, true)?, wakeup))
    }

    fn with_segment(segment: Segment, wakeup: OwnedFd) -> Self {
        // SAFETY: WakeupWords consists of atomics, for which every bit pattern is valid.
        Self { words: unsafe { View::new(&Arc::new(segment), 0) }, wakeup }
    }

    /// The wakeup words.
    #[inline]
    #[must_use]
    pub fn words(&self) -> &WakeupWords {
        &self.words
    }

    /// The end of the wakeup socket that peers write to.
    #[must_use]
    pub fn wakeup(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    /// Tells the owner to look at the ring of `vpid`, and wakes the owner if it sleeps.
    #[cold]
    pub fn ring(&self, vpid: u16) {
        self.wake(self.words().ring(vpid));
    }

    /// Tells the owner that the broker sent a message, and wakes the owner if it sleeps.
    pub fn ring_broker(&self) {
        self.wake(self.words().ring_broker());
    }

    fn wake(&self, sleeper: Sleeper) {
        match sleeper {
            Sleeper::Awake => {}
            Sleeper::OnWord => futex::wake(self.words().state(), 1),
            Sleeper::OnDescriptor => sys::ring(self.wakeup.as_fd()),
        }
    }

    //= EXTOLL-THESIS#3.2.1
    //# The lock command is a fetch-compare-and-add on a lock of the target.
    /// Fetch-compare-and-add: returns the former value and whether the addition was done.
    ///
    /// # Panics
    /// When the lock number is not below the number of locks.
    pub fn lock(&self, request: LockRequest) -> (u32, bool) {
        assert!(request.number < LOCKS, "the caller checks the number of the lock");
        let word = self.lock_word(request.number as usize);
        let mut old = word.load(Ordering::Relaxed);
        // Bounded: a hostile owner that keeps changing the word would hold the caller here for
        // ever.
        for _ in 0..LOCK_TRIES_MAX {
            let Some(new) = request.apply(old.cast_signed()) else {
                // A failed comparison must acquire too, to see the writes before the lock changed.
                std::sync::atomic::fence(Ordering::Acquire);
                return (old, false);
            };
            let new = new.cast_unsigned();
            match word.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return (old, true),
                Err(current) => old = current,
            }
        }
        (old, false)
    }

    /// Writes any word of the segment, as a hostile peer could.
    #[cfg(any(test, feature = "test-doors"))]
    pub fn scribble(&self, offset: usize, value: u32) {
        self.words.segment().word32(offset % (BYTES / 4) * 4).store(value, Ordering::Relaxed);
    }

    fn lock_word(&self, number: usize) -> &AtomicU32 {
        self.words.segment().word32(LOCKS_START + number * 4)
    }
}

/// Attempts of one lock operation. Contention by 255 honest peers needs far fewer.
const LOCK_TRIES_MAX: u32 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wakeup;

    fn doorbell() -> (Doorbell, OwnedFd, OwnedFd) {
        let (ring, woken) = sys::wakeup_socket().expect("sockets");
        let (doorbell, file) = Doorbell::create(ring).expect("memory");
        (doorbell, file, woken)
    }

    #[test]
    fn every_peer_has_its_bit_and_the_broker_its_own() {
        let (doorbell, _file, _woken) = doorbell();
        assert!(!doorbell.words().is_rung());
        for vpid in [0, 63, 64, 255, 4095] {
            doorbell.ring(vpid);
        }
        doorbell.ring_broker();
        let rung = doorbell.words().take();
        assert_eq!(rung.peers[..4], [1 | 1 << 63, 1, 0, 1 << 63]);
        assert_eq!(rung.peers[63], 1 << 63);
        assert!(rung.broker && !doorbell.words().is_rung());
        assert_eq!(doorbell.words().take(), wakeup::Rung::default());
    }

    #[test]
    fn a_wakeup_socket_is_written_only_while_its_owner_sleeps_on_it() {
        let (doorbell, file, woken) = doorbell();
        let other = Doorbell::open(file.as_fd(), doorbell.wakeup.try_clone().expect("descriptor"));
        let other = other.expect("memory");
        other.ring(1);
        assert!(sys::drain(woken.as_fd()));
        assert!(!doorbell.words().prepare(wakeup::ON_DESCRIPTOR), "a peer rang before");
        doorbell.words().take();
        assert!(doorbell.words().prepare(wakeup::ON_DESCRIPTOR));
        other.ring(1);
        let mut byte = [0; 2];
        assert_eq!(rustix::io::read(&woken, &mut byte), Ok(1));
    }

    #[test]
    fn a_full_wakeup_does_not_block_and_a_broken_wakeup_is_reported() {
        let (ring, woken) = sys::wakeup_socket().expect("sockets");
        rustix::fs::fcntl_setfl(&ring, rustix::fs::OFlags::empty()).expect("a socket");
        for _ in 0..100_000 {
            sys::ring(ring.as_fd());
        }
        assert!(sys::drain(woken.as_fd()));
        rustix::net::shutdown(&ring, rustix::net::Shutdown::Write).expect("a socket");
        assert!(!sys::drain(woken.as_fd()));
        sys::ring(ring.as_fd());
    }

    #[test]
    fn a_lock_is_taken_once() {
        let (doorbell, _file, _woken) = doorbell();
        let take = LockRequest { number: 4095, compare: 0, add: 1 };
        assert_eq!(doorbell.lock(take), (0, true));
        assert_eq!(doorbell.lock(take), (1, false));
        let give = LockRequest { number: 4095, compare: i32::MAX, add: -1 };
        assert_eq!(doorbell.lock(give), (1, true));
    }
}
