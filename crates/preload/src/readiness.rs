//! Readiness of a connection, how it ended, and the threads that wait for it.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use rustix::event::PollFlags;
use weft_fabric::WaitFor;
use weft_socket::{Origin, ReceiveSide, SendSide, closed};
use weft_transport_shm::lane::ShmLane;

use crate::arena::{Connection, flag, peer};
use crate::sys;
use crate::wakeups::StaleWakeups;

/// How a connection ended.
#[derive(Clone, Copy, Default)]
pub struct HangUp {
    /// The peer sends no more.
    pub ended: bool,
    /// Nothing goes either way.
    pub hung_up: bool,
    /// It was reset, and nobody was told yet.
    pub failed: bool,
}

impl Connection {
    /// Whether a read would not block, or `None` when only the kernel knows.
    pub fn readable(&self, fd: RawFd) -> Option<bool> {
        let receiving = self.receiving()?;
        let lane = receiving.lane?;
        self.follow(fd, lane);
        loop {
            let ends = self.has(flag::READING_SHUT) || self.peer() != peer::ALIVE;
            match self.origin(fd, receiving.state, lane) {
                Origin::Lane => {}
                // Wakeups come before the data on TCP: what the kernel sees next is one of them.
                Origin::Wakeups(_) => return Some(ends),
                Origin::Tcp { .. } | Origin::Back => return None,
            }
            let readable = receiving.state.readable(lane);
            // Only that it goes on over TCP, since just now: there may be nothing.
            if !readable || receiving.state.origin(lane) != Origin::Back {
                return Some(ends || readable);
            }
        }
    }

    /// The kernel said a moment ago that there is something to read, and the receiving direction is
    /// on TCP now. What it saw may have been a wakeup of a lane that the direction went to and came
    /// back from meanwhile, and that was taken on the way: whether there is something still.
    pub fn has_bytes_still(&self, fd: RawFd) -> bool {
        // Interrupted by a signal it is believed.
        let there = sys::poll_one(fd, PollFlags::IN, 0).map_or(true, |seen| !seen.is_empty());
        self.readable(fd).unwrap_or(there)
    }

    /// Whether a write would not block, or `None` when only the kernel knows.
    pub fn writable(&self, fd: RawFd) -> Option<bool> {
        let sending = self.sending()?;
        let lane = sending.lane?;
        if !sending.state.switch(lane, self.side()) {
            return None;
        }
        if self.is_gone(lane) || sending.state.writable(lane) {
            return Some(true);
        }
        (!self.leaves_when_full(fd, sending.state, lane)).then_some(false)
    }

    /// Whether a read would not block, and how the connection ended, as one answer: whoever is told
    /// of an end is told that it can be read, and whoever may read an end is told of it.
    pub fn read_readiness(&self, fd: RawFd) -> (Option<bool>, HangUp) {
        let readable = self.readable(fd);
        // After the look above, so that an end which made it readable is seen here, too.
        let end = self.hang_up(fd);
        (if end.ended { Some(true) } else { readable }, end)
    }

    /// How the connection ended, as POLLRDHUP, POLLHUP and POLLERR tell it. A direction that this
    /// end shut is over, whatever the peer does.
    fn hang_up(&self, fd: RawFd) -> HangUp {
        let by_peer = self.ended_by_peer(fd);
        if by_peer.ended || !self.has(flag::READING_SHUT) {
            return by_peer;
        }
        let shut = self.sending().is_some_and(|sending| sending.state.is_shut());
        HangUp { ended: true, hung_up: by_peer.hung_up || shut, ..by_peer }
    }

    /// Both ends have shut it down, or it was reset.
    pub fn is_over(&self, fd: RawFd) -> bool {
        self.ended_by_peer(fd).hung_up
    }

    /// The end of the connection as far as the peer brought it about.
    fn ended_by_peer(&self, fd: RawFd) -> HangUp {
        let none = HangUp::default();
        let Some(receiving) = self.receiving() else { return none };
        let Some(lane) = receiving.lane else { return none };
        let goodbye = ReceiveSide::peer_closed(lane);
        let reset = goodbye == Some(closed::RESET);
        let killed = goodbye.is_none() && self.peer() != peer::ALIVE;
        let told = self.has(flag::SENT_TO_NOBODY | flag::RESET_REPORTED);
        let broken = receiving.state.is_broken();
        if goodbye.is_none() && !killed && !told && !broken {
            // Nothing was said of an end, nor heard: most looks end here.
            return none;
        }
        let on_lane = self.origin(fd, receiving.state, lane) == Origin::Lane;
        if !on_lane && !reset && !killed && !told {
            return none;
        }
        let ended = reset || receiving.state.ended(lane).is_some() || self.peer() != peer::ALIVE;
        drop(receiving);
        let (shut, lost) = self.sending().map_or((false, false), |sending| {
            let lost =
                killed && sending.lane.is_some_and(|l| self.lost_something(sending.state, l));
            (sending.state.is_shut(), lost)
        });
        let broken = reset || lost || told || broken;
        HangUp {
            ended,
            hung_up: broken || ended && shut,
            failed: broken && !self.has(flag::RESET_REPORTED),
        }
    }

    /// The peer makes no room any more, as far as the kernel said. One that ended its direction
    /// over TCP may read on, and since it has no wakeups this end goes to TCP where it finds no
    /// room.
    pub fn is_gone(&self, lane: &ShmLane) -> bool {
        match self.peer() {
            peer::ALIVE => false,
            peer::ENDED => !ReceiveSide::ended_on_tcp(lane),
            _ => true,
        }
    }

    /// The peer, which is gone without a word, left something unread: on TCP that is a reset.
    pub fn lost_something(&self, sending: &mut SendSide, lane: &ShmLane) -> bool {
        self.peer() == peer::RESET && !sending.rings_alone(lane) || sending.unread_by_peer(lane)
    }

    /// The peer aborted it on the lane.
    pub fn was_reset(&self) -> bool {
        let Some(receiving) = self.receiving() else { return false };
        let closed = receiving.lane.and_then(ReceiveSide::peer_closed);
        closed == Some(closed::RESET)
    }

    /// The error that SO_ERROR tells, once: 0 when it was told, `None` when only the kernel knows.
    pub fn take_error(&self, fd: RawFd) -> Option<i32> {
        if self.hang_up(fd).failed {
            self.set(flag::RESET_REPORTED, true);
            let broken_pipe = self.has(flag::SENT_TO_NOBODY);
            return Some(if broken_pipe { libc::EPIPE } else { libc::ECONNRESET });
        }
        // The kernel's error may come from a wakeup alone: one sent to a process that is gone, say.
        let wakeups_alone = self.peer() != peer::ALIVE
            && self.sending().is_some_and(|sending| {
                sending.lane.is_some_and(|lane| sending.state.rings_alone(lane))
            });
        (wakeups_alone || self.has(flag::RESET_REPORTED)).then_some(0)
    }

    /// Counts a thread that is about to sleep, before it looks for a lane.
    pub fn begin_sleep(&self, what: WaitFor) {
        self.sleepers(what).fetch_add(1, Ordering::SeqCst);
    }

    /// The thread woke up.
    pub fn end_sleep(&self, what: WaitFor) {
        let _ = self
            .sleepers(what)
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
    }

    /// Arms for data or room before somebody sleeps in the kernel; [`Connection::settle`] and one
    /// more look must follow and, when that found nothing, [`Connection::drain`].
    pub fn arm(&self, what: WaitFor) -> StaleWakeups {
        let Some(receiving) = self.receiving() else { return StaleWakeups::default() };
        receiving.lane.map_or(StaleWakeups::default(), |lane| self.arm_word(lane, what))
    }

    /// Stops waiting after a sleep in the kernel.
    pub fn stop_waiting(&self, what: WaitFor) {
        if let Some(receiving) = self.receiving()
            && let Some(lane) = receiving.lane
        {
            self.stop_waiting_for(lane, what);
        }
    }

    /// The same for an epoll set, which looks by itself from now on unless it is not the only one.
    pub fn woken(&self, what: WaitFor) {
        if let Some(receiving) = self.receiving()
            && let Some(lane) = receiving.lane
        {
            self.woken_for(lane, what);
        }
    }

    /// Something lies on the lane, behind what lies on TCP.
    pub fn lane_brings(&self, fd: RawFd) -> bool {
        let on_lane = self.receiving().is_some_and(|receiving| {
            receiving.lane.is_some_and(|lane| receiving.state.has_data(lane))
        });
        // Bytes on their way come with an edge of their own.
        on_lane && sys::look_for_wakeups(fd, &mut [0]) > 0
    }

    /// How much has arrived on the lane, for edges; `None` without one.
    pub fn arrived(&self, from: u64) -> Option<u64> {
        let receiving = self.receiving()?;
        let lane = receiving.lane?;
        let gone = u64::from(self.peer() != peer::ALIVE);
        // The former answer may count the end and the death as one each.
        Some(receiving.state.arrived(lane, from.saturating_sub(2)) + gone)
    }
}
