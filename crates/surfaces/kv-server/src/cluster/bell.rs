//! A bell that wakes a thread which waits on descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// A bell.
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Wakes the thread, now or when it waits next.
    pub fn ring(&self) {
        // A full counter rings already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Ceases to ring.
    pub fn quiet(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }

    /// Waits until it rings or the time has passed, and quiets it.
    pub fn wait(&self, most: std::time::Duration) {
        let most = Timespec::try_from(most).ok();
        let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], most.as_ref());
        self.quiet();
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
