//! Waiting for wakeups, as the library's threads do it; the rules are those of `weft-socket`
//! (`receiving`, `common`).

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use libc::c_int;
use rustix::event::PollFlags;
use weft_fabric::WaitFor;
use weft_socket::{Peer, Phase, StaleWakeups};

use crate::arena::{Connection, flag};
use crate::{sys, waits};

/// Options of TCP that hold small segments back, and what the program wants of them.
const DELAYS: [(c_int, u32); 2] =
    [(libc::TCP_NODELAY, flag::NO_DELAY), (libc::TCP_CORK, flag::CORKED)];

impl Connection {
    /// Wakeups are sent at once from here on: the kernel would hold a second one back until the
    /// first is acknowledged, 40 ms later, or while it is corked. What the program had set is
    /// remembered.
    pub fn ring_at_once(&self, fd: RawFd) {
        for (option, wish) in DELAYS {
            let set = sys::tcp_option(fd, option).unwrap_or(false);
            self.set(wish, set);
            if set != (option == libc::TCP_NODELAY) {
                sys::set_tcp_option(fd, option, !set);
            }
        }
    }

    /// No wakeups ring any more: the kernel's socket gets what the program has set.
    pub fn rings_no_more(&self, fd: RawFd) {
        for (option, wish) in DELAYS {
            if self.has(wish) != (option == libc::TCP_NODELAY) {
                sys::set_tcp_option(fd, option, self.has(wish));
            }
        }
    }

    /// The flag that holds the program's wish for an option that weft sets otherwise in the kernel.
    pub fn wish(&self, level: c_int, option: c_int) -> Option<u32> {
        if level != libc::IPPROTO_TCP || self.phase() != Phase::Laned {
            return None;
        }
        DELAYS.iter().find(|(name, _)| *name == option).map(|(_, wish)| *wish)
    }

    /// A read made room that the peer may wait for.
    pub fn ring_for_room(&self, fd: RawFd) {
        if let Some(mut sending) = self.sending_on_lane(fd) {
            sending.ring_for_room();
        }
    }

    /// The kernel says that bytes lie in its socket, which are to be wakeups.
    pub fn woken_by_bytes(&self) {
        self.local.woken_by_bytes.store(true, Ordering::Relaxed);
    }

    /// Arms for data or room before a thread sleeps in the kernel; [`Connection::settle`] and one
    /// more look must follow and, when that found nothing, [`Connection::drain`].
    pub fn arm(&self, fd: RawFd, what: WaitFor) -> StaleWakeups {
        self.receiving_on_lane(fd).map_or(StaleWakeups::default(), |mut lane| lane.arm(what))
    }

    /// The peer will ring for what comes next.
    pub fn is_armed(&self, fd: RawFd) -> bool {
        self.receiving_on_lane(fd).is_some_and(|lane| lane.is_armed())
    }

    /// Takes the wakeups that were stale when a thread armed, once it found nothing. False when the
    /// connection was found broken, so that there is something to tell.
    #[must_use]
    pub fn drain(&self, fd: RawFd, stale: StaleWakeups) -> bool {
        let in_vain = self.local.woken_by_bytes.swap(false, Ordering::Relaxed);
        if !in_vain && self.shared.common.is_drained(stale) {
            return true;
        }
        self.receiving_on_lane(fd).is_none_or(|mut lane| lane.drain(stale, in_vain))
    }

    /// Takes all wakeups that are there, and asks for no more; false when some are on their way.
    fn drain_all(&self, fd: RawFd) -> bool {
        self.receiving_on_lane(fd).is_none_or(|mut lane| lane.drain_all())
    }

    /// Takes every wakeup out of the kernel's socket before it is closed: with bytes unread the
    /// kernel sends a reset instead of an end. A peer that is told the end on the lane does not see
    /// the reset; for one that reads TCP, wakeups on their way are waited for.
    pub fn drain_before_close(&self, fd: RawFd, sends_on_lane: bool) {
        /// A peer that has claimed a wakeup rings it unless it loses its processor in between.
        const WAIT_NS: u64 = 500_000_000;
        let start = sys::now_ns();
        while !self.drain_all(fd) {
            let patient = !sends_on_lane && self.peer() == Peer::Alive;
            if !patient || sys::now_ns() - start > WAIT_NS {
                return;
            }
            let seen = waits::poll_one(fd, PollFlags::IN | PollFlags::RDHUP, 1);
            if seen.is_ok_and(|seen| seen.contains(PollFlags::RDHUP)) {
                self.heard(waits::Wakeup::End);
            }
        }
    }

    /// Stops waiting after a sleep in the kernel.
    pub fn stop_waiting(&self, fd: RawFd, what: WaitFor) {
        self.stop_waiting_besides(fd, what, 0);
    }

    /// The same for an epoll set, which looks by itself from now on unless it is not the only one.
    pub fn woken(&self, fd: RawFd, what: WaitFor) {
        self.stop_waiting_besides(fd, what, 1);
    }

    /// `own` of the sets that it is in are the caller's.
    fn stop_waiting_besides(&self, fd: RawFd, what: WaitFor, own: u32) {
        if let Some(mut lane) = self.receiving_on_lane(fd) {
            lane.stop_waiting(what, self.local.registered.load(Ordering::Relaxed) > own);
        }
    }

    /// The lane that was just put in place is armed. It need not be when no thread sleeps.
    pub fn disarm_for_nobody(&self, fd: RawFd) {
        if let Some(mut lane) = self.receiving_on_lane(fd) {
            lane.disarm_for_nobody();
        }
    }
}
