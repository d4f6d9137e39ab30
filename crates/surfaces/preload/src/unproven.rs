//! Connections whose program may wait by system calls of its own.
//!
//! A read that may block looks like a wait, but a program may have waited before it, by a `poll`
//! of its own instructions, which the library does not see. Such a wait needs a byte in the
//! kernel's socket for what comes on a lane. So until a wait was seen, the program counts as one
//! that sleeps whenever it is outside of the library: the lane stays armed, as for an epoll set,
//! and a read that takes the last bytes takes the wakeup, too.
//!
//! A wait is proven by a `poll` or `select` of the C library, by a wait for an epoll set that
//! contains the connection, or by a read that found nothing, in the kernel's socket neither. A
//! program that waited by itself before it reads finds something. A reader that is always behind
//! is never proven, and pays little: as long as bytes are left, its peer rings once.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use weft_fabric::WaitFor;
use weft_socket::Phase;

use crate::arena::{Connection, flag};
use crate::sys;

impl Connection {
    /// Called before the connection may get a lane. Unless a wait was seen, its words stay armed
    /// from the beginning of the lane on.
    pub fn counts_as_asleep(&self) {
        let is_known = self.has(flag::PROVEN | flag::UNPROVEN);
        if is_known || self.is_registered() {
            return;
        }
        let former = self.shared.flags.fetch_or(flag::UNPROVEN, Ordering::SeqCst);
        if former & flag::UNPROVEN == 0 {
            self.shared.common.begin_watch(1);
        }
    }

    /// The library saw the program wait.
    #[inline]
    pub fn proves_wait(&self) {
        if !self.has(flag::PROVEN) {
            self.is_proven();
        }
    }

    #[cold]
    fn is_proven(&self) {
        self.set(flag::PROVEN, true);
        let former = self.shared.flags.fetch_and(!flag::UNPROVEN, Ordering::SeqCst);
        if former & flag::UNPROVEN != 0 {
            self.shared.common.end_watch(1);
        }
    }

    /// Called when a read found nothing and is to wait. It proves a wait if the kernel shows
    /// nothing either, which could have ended a wait before.
    #[cold]
    pub fn reads_in_vain(&self, fd: RawFd) {
        let nothing = || rustix::io::ioctl_fionread(sys::borrow(fd)) == Ok(0);
        if self.phase() == Phase::Laned && !self.has_stale_wakeups() && nothing() {
            self.proves_wait();
        }
    }

    /// Called after a read. Leaves the lane as a thread does that falls asleep, unless bytes are
    /// left.
    #[cold]
    pub fn leaves_armed(&self, fd: RawFd) {
        if self.phase() != Phase::Laned || self.has_lane_data(fd) {
            return;
        }
        let stale = self.arm(fd, WaitFor::Data);
        if !(self.settle(WaitFor::Data) && self.readable(fd) == Some(true)) {
            self.drain(fd, stale, false);
        }
    }
}
