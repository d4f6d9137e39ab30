//! Which way a connection's bytes go: when directions move between TCP and the lane.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use rustix::event::PollFlags;
use weft_fabric::{Carry, Lane};
use weft_socket::{Followed, Leave, Origin, Peer, Phase, ReceiveSide, SendSide};
use weft_unread::room_to_send;

use crate::arena::{Connection, flag};
use crate::direction::SendGuard;
use crate::waits::LOOK_AGAIN_NS;
use crate::{epoll, lanes, sys, waits};

/// For how many ticks a lane may be full, while the peer takes nothing, before its direction goes
/// back to TCP (about 100 ms). The kernel holds some megabytes more, and some programs count on
/// that. A shorter time would take the lane from readers that only wait for a processor.
const STUCK_TICKS: u64 = 250_000_000;
/// How long a peer may take to go back to TCP when it is asked to, in nanoseconds.
const FOLLOW_NS: u64 = 1_000_000_000;
/// After how long this end leaves alone, in nanoseconds. A peer that is awake has followed by then.
const ALONE_NS: u64 = 20_000_000;
/// How long this end waits before it tries again to stand in for its peer.
const STAND_IN_NS: u64 = 200_000_000;

impl Connection {
    /// Until when peers that are asked to follow now may do so, as a time of [`sys::now_ns`].
    pub fn follow_until() -> u64 {
        sys::now_ns() + FOLLOW_NS
    }

    /// Called when the lane is full. Takes the sending direction back to TCP if no wakeup can end
    /// the waiting, or the lane was full for long. True when the direction is on TCP.
    ///
    /// A peer that ended its own direction on TCP takes bytes and rings for no room. Waits look for
    /// room again and again then.
    pub fn leave_if_stuck<L: Lane>(&self, sending: &mut SendGuard<'_, L>) -> bool {
        let lane = sending.lane;
        let is_small = sending.state.has_small_buffers(lane);
        let is_rung = SendSide::peer_can_ring(lane) || !is_small && self.looks_for_room(lane);
        let due = !is_rung || !is_small && self.is_stuck(sending.state.taken_by_peer(lane));
        due && sending.leave(Leave::ForNow)
    }

    /// True when a wait for room has to look for it in short slices: the peer rings for none, since
    /// it ended its own direction on TCP.
    pub fn looks_for_room<L: Carry>(&self, lane: &L) -> bool {
        self.peer() != Peer::Alive && ReceiveSide::ended_on_tcp(lane)
    }

    /// For how many ns a thread that waits for room sleeps at most before it looks.
    pub fn room_slice_ns(&self) -> u64 {
        const SHORT_NS: u64 = 1_000_000;
        if self.has_heard_end_on_tcp() { SHORT_NS } else { LOOK_AGAIN_NS }
    }

    /// True when the peer took nothing since [`STUCK_TICKS`] ago. `taken` is what it has taken by
    /// now.
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

    /// Notes that a write went to the lane, which is not full any more.
    #[inline]
    pub fn note_progress(&self) {
        if self.local.full_since.load(Ordering::Relaxed) != 0 {
            self.local.full_since.store(0, Ordering::Relaxed);
        }
    }

    /// Follows a peer that left the lane for good or to give it back, or leaves a lane that the
    /// daemon recalled. Costs little when neither is so.
    #[inline]
    pub fn follow<L: Carry>(&self, fd: RawFd, lane: &L) {
        if SendSide::is_called_away(lane) {
            self.follow_now(fd);
        }
    }

    /// Takes the sending direction back to TCP if the peer left the lane and this end did not
    /// follow yet.
    #[cold]
    pub fn follow_now(&self, fd: RawFd) {
        if let Some(mut sending) = self.sending_on_lane(fd)
            && let Some(how) = sending.leave_to_follow()
        {
            sending.leave(how);
        }
    }

    /// Called before something is sent in a way that only the kernel knows. From here on all is
    /// sent over TCP. False when that cannot be.
    pub fn send_over_tcp_for_good(&self, fd: RawFd) -> bool {
        if self.decide_for_kernel(fd) != Phase::Laned {
            return true;
        }
        let Some(sending) = self.sending() else { return false };
        let Ok(mut sending) = sending.on_lane(*self, fd) else {
            // Another thread took the lane away since.
            return self.phase() != Phase::Laned && self.send_over_tcp_for_good(fd);
        };
        sending.state.is_back_for_good() || sending.leave(Leave::ForGood)
    }

    /// Sends what has to go over TCP before anything else. True if nothing of that is left.
    fn is_through(&self, fd: RawFd) -> bool {
        self.sending_on_lane(fd).is_none_or(|mut sending| sending.push())
    }

    /// True while bytes lie unread on the lane and are next.
    pub fn has_lane_data(&self, fd: RawFd) -> bool {
        self.receiving_on_lane(fd).is_some_and(|mut receiving| receiving.has_lane_data())
    }

    /// True when all that is read from here on comes over TCP.
    pub fn reads_tcp(&self, fd: RawFd) -> bool {
        let Some(receiving) = self.receiving() else { return false };
        let Ok(mut receiving) = receiving.on_lane(*self, fd) else { return true };
        receiving.origin() == Origin::Tcp { at_most: None }
    }

    /// True when the sending direction went back to TCP for good.
    pub fn is_back_for_good(&self) -> bool {
        self.sending().is_some_and(|sending| sending.state.is_back_for_good())
    }

    /// Asks the peer to send all unread bytes of the lane over TCP. This end must leave for good
    /// next.
    pub fn request_resend(&self, fd: RawFd) {
        if let Some(mut receiving) = self.receiving_on_lane(fd) {
            // Makes the crossings that are due first, so that the request names the last place that
            // was read.
            receiving.origin();
            let lane = receiving.lane;
            receiving.state.request_resend(lane);
        }
    }

    fn has_no_use_for_lane(&self, fd: RawFd) -> bool {
        self.receiving_on_lane(fd).is_some_and(|mut receiving| receiving.has_no_use_for_lane())
    }

    /// Takes both directions back to TCP for good, so that others can use the kernel's socket: a
    /// process that receives it, or a program without weft that this process becomes. The peer
    /// follows when it next looks at the connection, and sends the unread bytes of the lane again
    /// over TCP. A peer may not look, since it sleeps, computes or was stopped. This call does not
    /// wait for such a peer if nothing of it is unread, or this process can put it on TCP by itself
    /// ([`Connection::stands_in_for_peer`]).
    ///
    /// False when something of such a peer is unread, or a peer cannot send its bytes again. The
    /// connection then goes on, and this end sends over TCP.
    pub fn return_to_tcp_for_good(&self, fd: RawFd) -> bool {
        self.return_to_tcp_until(fd, Self::follow_until())
    }

    /// As [`Connection::return_to_tcp_for_good`], with a peer that follows until this time of
    /// [`sys::now_ns`]. Several connections whose peers were first asked take the time of one.
    pub fn return_to_tcp_until(&self, fd: RawFd, until: u64) -> bool {
        self.ask_to_follow(fd) && self.await_follower(fd, until)
    }

    /// Asks the peer to follow this end to TCP. False when this end cannot go there.
    pub fn ask_to_follow(&self, fd: RawFd) -> bool {
        if self.decide_for_kernel(fd) != Phase::Laned {
            return true;
        }
        // Before this end tells the kernel of an end of its own direction.
        if self.keeps_rest_of_peer(fd) {
            self.go_on_without_lane(fd);
            return true;
        }
        self.request_resend(fd);
        self.send_over_tcp_for_good(fd)
    }

    /// Waits for the peer, and leaves the lane.
    fn await_follower(&self, fd: RawFd, until: u64) -> bool {
        if self.phase() != Phase::Laned {
            return true;
        }
        let start = sys::now_ns();
        let mut looked_at_end = false;
        let mut tried = 0;
        let mut is_time = |now: u64| {
            let is_due = now - tried > STAND_IN_NS;
            tried = if is_due { now } else { tried };
            is_due
        };
        loop {
            self.have_others_follow();
            match self.is_followed(fd, looked_at_end) {
                Followed::Yes if self.is_through(fd) => break,
                Followed::Never if self.keeps_rest_of_peer(fd) => break,
                // A peer that has just closed may have told so on the lane alone by now.
                Followed::Never if looked_at_end || sys::now_ns() - start > ALONE_NS => {
                    return false;
                }
                Followed::Never => {}
                Followed::Yes | Followed::NotYet => {}
            }
            // The kernel shows the end of a peer that is gone, after all that this peer sent. A
            // peer that follows may end its direction meanwhile. One more look finds what either of
            // them sent.
            let seen = waits::poll_one(fd, PollFlags::RDHUP, 1).unwrap_or(PollFlags::empty());
            if !seen.is_empty() && !self.has(flag::READING_SHUT) {
                self.note_wakeup(waits::Wakeup::End);
            }
            looked_at_end = !seen.is_empty();
            let now = sys::now_ns();
            if now - start > ALONE_NS
                && (is_time(now) && self.stands_in_for_peer(fd) || self.has_no_use_for_lane(fd))
            {
                break;
            }
            if now > until {
                return false;
            }
        }
        self.go_on_without_lane(fd);
        true
    }

    /// Leaves the connection to the kernel, whose socket has all that is unread.
    fn go_on_without_lane(&self, fd: RawFd) {
        self.stop_wakeups(fd);
        self.shared.phase.set(Phase::Declined);
        epoll::forget(*self);
        self.leave_lane_behind();
    }

    /// Has the other connections of this process follow peers that left their lanes. The other end
    /// of this one may be among them, and no other thread may ever look at it.
    fn have_others_follow(&self) {
        for (fd, other) in lanes::connections() {
            if other.place != self.place
                && other.phase() == Phase::Laned
                && let Some(mut sending) = other.sending_on_lane(fd)
                && let Some(how) = sending.leave_to_follow()
                // Nobody reads while this call waits.
                && sending.state.bytes_to_resend(sending.lane) <= room_to_send(sys::borrow(fd))
            {
                sending.leave(how);
            }
        }
    }

    fn is_followed(&self, fd: RawFd, has_ended: bool) -> Followed {
        let receiving = self.receiving_on_lane(fd);
        receiving
            .map_or(Followed::Never, |mut receiving| receiving.is_followed(self.side(), has_ended))
    }
}
