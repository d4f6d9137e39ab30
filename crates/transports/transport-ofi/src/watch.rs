//! A set of descriptors to sleep on, which has that of the NIC only while somebody sleeps.
//!
//! The kernel tells each set of each packet that comes, which takes a tenth of the packet's time.
//! A program that polls has no use for that.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

/// The set.
pub(crate) struct Watch {
    set: OwnedFd,
    has_card: AtomicBool,
}

impl Watch {
    /// A set that is readable when `waker` is, and when the NIC is as long as it has that.
    pub fn new(waker: &OwnedFd) -> Result<Self, Errno> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&set, waker, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Self { set, has_card: AtomicBool::new(false) })
    }

    /// Adds the NIC. False if the system has no room for it: it does not end a sleep then.
    /// The caller has the lock of the NIC.
    pub fn add(&self, card: BorrowedFd<'_>) -> bool {
        if !self.has_card.load(Ordering::Relaxed) {
            let added = epoll::add(&self.set, card, EventData::new_u64(1), EventFlags::IN);
            self.has_card.store(added.is_ok(), Ordering::Relaxed);
        }
        self.has_card.load(Ordering::Relaxed)
    }

    /// Whether it has the NIC.
    pub fn has_card(&self) -> bool {
        self.has_card.load(Ordering::Relaxed)
    }

    /// Takes the NIC out. The caller has the lock of the NIC.
    pub fn remove(&self, card: BorrowedFd<'_>) {
        if self.has_card.swap(false, Ordering::Relaxed) {
            // It was added.
            let _ = epoll::delete(&self.set, card);
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}
