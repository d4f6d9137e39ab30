//! Messages for a thread that waits on descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

/// Messages for one thread, with a descriptor that can be read when the first of them comes.
#[derive(Debug)]
pub struct Mailbox<M> {
    messages: Mutex<Vec<M>>,
    wake: OwnedFd,
}

impl<M> Mailbox<M> {
    /// An empty one.
    ///
    /// # Errors
    /// Those of eventfd(2).
    pub fn new() -> std::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { messages: Mutex::default(), wake })
    }

    /// Sends a message.
    pub fn send(&self, message: M) {
        let is_first = {
            let mut messages = self.messages.lock();
            messages.push(message);
            messages.len() == 1
        };
        if is_first {
            // A full counter is a wake-up as well.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// All messages, for a thread that its descriptor woke, or that was awake.
    pub fn take(&self, was_woken: bool) -> Vec<M> {
        if !was_woken && self.messages.lock().is_empty() {
            return Vec::new();
        }
        // Before the messages are taken: what comes behind them wakes again.
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
        std::mem::take(&mut *self.messages.lock())
    }
}

impl<M> AsFd for Mailbox<M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
