//! The doorbell segment: the memory of an endpoint that all its peers may write: the
//! wakeup words (see `wakeup`).
//!
//! # Invariants
//! - The owner trusts no word of this segment: bits only say where to look.
//! - Ringing never blocks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use weft_memory::{Segment, SegmentError, View};
use weft_sync::futex;

use crate::sys;
use crate::wakeup::{Sleeper, WakeupWords};

/// Bytes of the segment.
pub const BYTES: usize = 4096;
const _: () = assert!(size_of::<WakeupWords>() <= BYTES);

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

    /// Writes any word of the segment, as a hostile peer could.
    #[cfg(any(test, feature = "test-doors"))]
    pub fn scribble(&self, offset: usize, value: u32) {
        self.words
            .segment()
            .word32(offset % (BYTES / 4) * 4)
            .store(value, std::sync::atomic::Ordering::Relaxed);
    }
}

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
}
