//! How the library's threads wait for wakeups. The rules are in `weft-socket` (`receiving`,
//! `common`).

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use libc::c_int;
use rustix::event::PollFlags;
use weft_fabric::WaitFor;
use weft_socket::{Drained, Peer, Phase, ReceiveSide, StaleWakeups};

use crate::arena::{Connection, flag};
use crate::bells::Bell;
use crate::carrier::Asleep;
use crate::waits::Limit;
use crate::{carrier, process, sys, waits};

/// Options of TCP that hold small segments back, each with the flag for the program's own setting.
const DELAYS: [(c_int, u32); 2] =
    [(libc::TCP_NODELAY, flag::NO_DELAY), (libc::TCP_CORK, flag::CORKED)];

impl Connection {
    /// Lets the kernel send wakeups at once. It would hold a second one back until the first is
    /// acknowledged, 40 ms later, or as long as the socket is corked. Remembers the program's
    /// settings.
    pub fn ring_at_once(&self, fd: RawFd) {
        for (option, wish) in DELAYS {
            let set = sys::tcp_option(fd, option).unwrap_or(false);
            self.set(wish, set);
            if set != (option == libc::TCP_NODELAY) {
                sys::set_tcp_option(fd, option, !set);
            }
        }
    }

    /// Gives the kernel's socket the program's settings again. No more wakeups are sent.
    pub fn stop_wakeups(&self, fd: RawFd) {
        for (option, wish) in DELAYS {
            if self.has(wish) != (option == libc::TCP_NODELAY) {
                sys::set_tcp_option(fd, option, self.has(wish));
            }
        }
    }

    /// The flag with the program's setting of an option that weft sets otherwise in the kernel.
    pub fn wish(&self, level: c_int, option: c_int) -> Option<u32> {
        if level != libc::IPPROTO_TCP || self.phase() != Phase::Laned {
            return None;
        }
        DELAYS.iter().find(|(name, _)| *name == option).map(|(_, wish)| *wish)
    }

    /// Rings a peer that waits for the room that a read made.
    pub fn ring_for_room(&self, fd: RawFd) {
        if let Some(mut sending) = self.sending_on_lane(fd) {
            sending.ring_for_room();
        }
    }

    /// A bell for a thread that is about to sleep for this connection, if lanes go over an endpoint
    /// in this process. The thread may sleep before there is a lane. Taken before it arms.
    pub fn takes_bell(&self) -> Option<Bell> {
        let may_need = process::settings().between_hosts && self.phase() != Phase::Declined;
        may_need.then(|| Bell::take(vec![self.place])).flatten()
    }

    /// The calling thread falls asleep for this connection. `None` if it must look once more.
    pub fn falls_asleep(&self) -> Option<Asleep> {
        if self.is_on_far_lane() {
            carrier::falls_asleep(Some(self.place))
        } else {
            Some(Asleep::of_no_endpoint())
        }
    }

    /// The events of the kernel's socket that end the sleep of a thread which also has a bell. A
    /// lane over an endpoint rings the bell for all that arrives there. The kernel's socket then
    /// tells of nothing but the peer's way back to TCP, and of the end, and of that once: it would
    /// end every further sleep, too.
    pub fn wakes_by_kernel(&self, fd: RawFd) -> PollFlags {
        let all = PollFlags::IN | PollFlags::RDHUP;
        if self.has_heard_end_on_tcp() {
            return PollFlags::empty();
        }
        if !process::settings().between_hosts {
            return all;
        }
        let Some(mut receiving) = self.receiving_on_lane(fd) else { return all };
        if !receiving.lane.is_far() {
            return all;
        }
        if self.peer() != Peer::Alive || self.has(flag::READING_SHUT) {
            return PollFlags::empty();
        }
        // A peer that goes back to TCP says so there. A look that took its word leaves nothing that
        // would end the sleep at once.
        receiving.look_for_record();
        all
    }

    /// True when the kernel told of the end of the peer's direction, which ended on TCP. The peer
    /// sends no wakeups, and the kernel would tell of the end in every sleep again.
    #[inline]
    pub fn has_heard_end_on_tcp(&self) -> bool {
        self.peer() == Peer::Ended
            && self
                .receiving()
                .is_some_and(|receiving| receiving.lane.is_some_and(ReceiveSide::ended_on_tcp))
    }

    /// The longest sleep on a bell. An end that the kernel told, and the lane not yet, is looked
    /// for now and then.
    pub fn bounds_sleep(&self, limit: Limit) -> Limit {
        match self.peer() {
            Peer::Alive => limit,
            _ => Some(waits::at_most(limit, waits::LOOK_AGAIN_NS)),
        }
    }

    /// Notes that the kernel showed bytes in its socket, which ought to be wakeups.
    pub fn woken_by_bytes(&self) {
        self.local.woken_by_bytes.store(true, Ordering::Relaxed);
    }

    /// Arms for data or room before a thread sleeps in the kernel. [`Connection::settle`] and one
    /// more look must follow. If the look found nothing, [`Connection::drain`] must follow, with
    /// the value returned.
    pub fn arm(&self, fd: RawFd, what: WaitFor) -> StaleWakeups {
        self.receiving_on_lane(fd).map_or(StaleWakeups::default(), |mut lane| lane.arm(what))
    }

    /// True when the peer will ring for the next data.
    pub fn is_armed(&self, fd: RawFd) -> bool {
        self.receiving_on_lane(fd).is_some_and(|lane| lane.is_armed())
    }

    /// Takes the wakeups that were stale when a thread armed, after it looked and found nothing. A
    /// thread is `alone` if no other one, and no epoll set, waits for data.
    pub fn drain(&self, fd: RawFd, stale: StaleWakeups, alone: bool) -> Drained {
        let in_vain = self.local.woken_by_bytes.swap(false, Ordering::Relaxed);
        if !in_vain && self.shared.common.is_drained(stale) {
            return Drained::All;
        }
        self.receiving_on_lane(fd)
            .map_or(Drained::All, |mut lane| lane.drain(stale, in_vain, alone))
    }

    /// True when wakeups lie in the kernel's socket that no thread waits for any more.
    pub fn has_stale_wakeups(&self) -> bool {
        let common = &self.shared.common;
        !common.is_drained(common.stale())
    }

    /// Takes all wakeups that are there, and asks for no more. False when some are on their way.
    fn drain_all(&self, fd: RawFd) -> bool {
        self.receiving_on_lane(fd).is_none_or(|mut lane| lane.drain_all())
    }

    /// Takes every wakeup out of the kernel's socket before it is closed. With unread bytes the
    /// kernel sends a reset instead of an end. A peer that is told the end on the lane does not see
    /// the reset. For a peer that reads TCP, this waits for wakeups that are on their way.
    pub fn drain_before_close(&self, fd: RawFd, sends_on_lane: bool) {
        /// A peer that has claimed a word rings within this time unless it loses its processor.
        const WAIT_NS: u64 = 500_000_000;
        let start = sys::now_ns();
        while !self.drain_all(fd) {
            let patient = !sends_on_lane && self.peer() == Peer::Alive;
            if !patient || sys::now_ns() - start > WAIT_NS {
                return;
            }
            let seen = waits::poll_one(fd, PollFlags::IN | PollFlags::RDHUP, 1);
            if seen.is_ok_and(|seen| seen.contains(PollFlags::RDHUP)) {
                self.note_wakeup(waits::Wakeup::End);
            }
        }
    }

    /// Stops waiting after a sleep in the kernel.
    pub fn stop_waiting(&self, fd: RawFd, what: WaitFor) {
        self.stop_waiting_besides(fd, what, 0);
    }

    /// Stops waiting for an epoll set that was woken. The set looks by itself from now on. The word
    /// stays armed if other sets contain the connection.
    pub fn woken(&self, fd: RawFd, what: WaitFor) {
        self.stop_waiting_besides(fd, what, 1);
    }

    /// Of the epoll sets that contain the connection, `own` are the caller's.
    fn stop_waiting_besides(&self, fd: RawFd, what: WaitFor, own: u32) {
        if let Some(mut lane) = self.receiving_on_lane(fd) {
            lane.stop_waiting(what, self.shared.common.is_watched_besides(own));
        }
    }

    /// Disarms the lane that was just put in place armed, unless a thread sleeps.
    pub fn disarm_if_no_sleeper(&self, fd: RawFd) {
        if let Some(mut lane) = self.receiving_on_lane(fd) {
            lane.disarm_if_no_sleeper(self.shared.common.is_watched_besides(0));
        }
    }
}
