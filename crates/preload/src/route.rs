//! Which way a connection's bytes go: directions that move between TCP and the lane, and what only
//! the kernel can carry.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use rustix::event::PollFlags;
use weft_socket::{Followed, Leave, Origin, Phase, SendSide};
use weft_transport_shm::lane::ShmLane;

use crate::arena::{Connection, flag};
use crate::direction::SendGuard;
use crate::{epoll, sys, waits};

/// A lane that is full for so long, while the peer takes nothing, is left for TCP, ticks (about
/// 100 ms): the kernel holds some megabytes more, and programs exist that count on that. Shorter,
/// and readers that only wait for a processor would lose their lane.
const STUCK_TICKS: u64 = 250_000_000;
/// How long a peer may take to go back to TCP when it is asked to.
const FOLLOW_NS: u64 = 1_000_000_000;
/// How long before this end leaves alone: a peer that is awake has followed by then.
const ALONE_NS: u64 = 20_000_000;

impl Connection {
    /// The lane is full: takes the sending direction back to TCP if waiting has no end, or went on
    /// for long; true when it is there.
    pub fn leaves_when_full(&self, sending: &mut SendGuard<'_>) -> bool {
        let lane = sending.lane;
        let due = !SendSide::is_answered(lane)
            || !sending.state.is_limited(lane) && self.is_stuck(sending.state.taken_by_peer(lane));
        due && sending.leave(Leave::ForNow)
    }

    /// True when what the peer has taken did not grow for long since it was first asked.
    fn is_stuck(&self, taken: u64) -> bool {
        let now = sys::ticks().max(1);
        let since = self.local.full_since.load(Ordering::Relaxed);
        let grew = self.local.full_taken.swap(taken, Ordering::Relaxed) != taken;
        if since == 0 || grew {
            self.local.full_since.store(now, Ordering::Relaxed);
            return false;
        }
        now.wrapping_sub(since) >= STUCK_TICKS
    }

    /// Something moved.
    #[inline]
    pub fn is_not_stuck(&self) {
        if self.local.full_since.load(Ordering::Relaxed) != 0 {
            self.local.full_since.store(0, Ordering::Relaxed);
        }
    }

    /// The peer went back to TCP for good, or to give the lane back, and this end follows.
    #[inline]
    pub fn follow(&self, fd: RawFd, lane: &ShmLane) {
        if SendSide::is_called(lane) {
            self.follow_now(fd);
        }
    }

    /// Follows a peer that left the lane, where it need not be quick.
    #[cold]
    pub fn follow_now(&self, fd: RawFd) {
        if let Some(mut sending) = self.sending_on_lane(fd)
            && let Some(how) = sending.called_back()
        {
            sending.leave(how);
        }
    }

    /// Called before something is sent in a way that only the kernel knows: from here on all goes
    /// over TCP. False when that cannot be.
    pub fn sends_by_kernel(&self, fd: RawFd) -> bool {
        if self.decide_for_kernel(fd) != Phase::Laned {
            return true;
        }
        let Some(sending) = self.sending() else { return false };
        let Ok(mut sending) = sending.on_lane(*self, fd) else {
            // Another thread took it off the lane since.
            return self.phase() != Phase::Laned && self.sends_by_kernel(fd);
        };
        sending.state.is_back_for_good() || sending.leave(Leave::ForGood)
    }

    /// True while bytes lie unread on the lane.
    pub fn has_lane_data(&self, fd: RawFd) -> bool {
        self.receiving_on_lane(fd).is_some_and(|mut receiving| receiving.has_lane_data())
    }

    /// True when all that is read comes over TCP from here on.
    pub fn reads_tcp(&self, fd: RawFd) -> bool {
        let Some(receiving) = self.receiving() else { return false };
        let Ok(mut receiving) = receiving.on_lane(*self, fd) else { return true };
        receiving.origin() == Origin::Tcp { at_most: None }
    }

    /// True when its sending direction went back to TCP for good.
    pub fn is_back_for_good(&self) -> bool {
        self.sending().is_some_and(|sending| sending.state.is_back_for_good())
    }

    /// Asks the peer to send all unread bytes of the lane over TCP; this end leaves for good next.
    pub fn recall(&self, fd: RawFd) {
        if let Some(mut receiving) = self.receiving_on_lane(fd) {
            // Takes what is due first, so that the recall names the last place that was read.
            receiving.origin();
            let lane = receiving.lane;
            receiving.state.recall(lane);
        }
    }

    fn has_no_use_for_lane(&self, fd: RawFd) -> bool {
        self.receiving_on_lane(fd).is_some_and(|mut receiving| receiving.has_no_use_for_lane())
    }

    /// Takes both directions back to TCP for good, so that others can use the kernel's socket:
    /// whoever it is passed to, or a program without weft that this process becomes. The peer
    /// follows when it next looks at the connection, and sends again over TCP what lies unread on
    /// the lane. A peer that does not look, since it sleeps, computes or was stopped, is not waited
    /// for where nothing of it is unread.
    ///
    /// False when bytes of such a peer are, or it cannot send again: the connection then goes on,
    /// with this end sending over TCP.
    pub fn goes_back_for_good(&self, fd: RawFd) -> bool {
        if self.decide_for_kernel(fd) != Phase::Laned {
            return true;
        }
        self.recall(fd);
        if !self.sends_by_kernel(fd) {
            return false;
        }
        let start = sys::now_ns();
        let mut looked_at_end = false;
        loop {
            match self.is_followed(fd) {
                Followed::Yes => break,
                Followed::Never => return false,
                Followed::NotYet if looked_at_end => break,
                // It sends nothing again any more.
                Followed::BehindTcp if looked_at_end => return false,
                Followed::NotYet | Followed::BehindTcp => {}
            }
            // Nothing but its end comes from a peer that is gone, nor what it sent before. One that
            // follows may end its direction on the way. Both show in one more look.
            let seen = waits::poll_one(fd, PollFlags::RDHUP, 1).unwrap_or(PollFlags::empty());
            if !seen.is_empty() && !self.has(flag::READING_SHUT) {
                self.heard(waits::Wakeup::End);
            }
            looked_at_end = !seen.is_empty();
            let waited = sys::now_ns() - start;
            if waited > ALONE_NS && self.has_no_use_for_lane(fd) {
                break;
            }
            if waited > FOLLOW_NS {
                return false;
            }
        }
        self.rings_no_more(fd);
        self.shared.phase.set(Phase::Declined);
        epoll::forget(*self);
        self.drop_lane();
        true
    }

    fn is_followed(&self, fd: RawFd) -> Followed {
        let receiving = self.receiving_on_lane(fd);
        receiving.map_or(Followed::Never, |mut receiving| receiving.is_followed(self.side()))
    }
}
