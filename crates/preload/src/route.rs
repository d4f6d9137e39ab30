//! Which way a connection's bytes go: directions that move between TCP and the lane, and what only
//! the kernel can carry.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use weft_socket::{Leave, Origin, ReceiveSide, SendSide, closed};
use weft_transport_shm::lane::ShmLane;
use weft_wire::stats::BYTES_TCP_SENT;

use crate::arena::{Connection, flag, peer, phase};
use crate::{epoll, lanes, log, stats, sys};

/// A lane that is full for so long, while the peer takes nothing, is left for TCP, ticks (about
/// 100 ms): the kernel holds some megabytes more, and programs exist that count on that. Shorter,
/// and readers that only wait for a processor would lose their lane.
const STUCK_TICKS: u64 = 250_000_000;
/// How long who waits for room may sleep before it looks whether that is so.
pub const LOOK_AGAIN_MS: i64 = 50;
/// How long a peer may take to go back to TCP when it is asked to.
const FOLLOW_NS: u64 = 1_000_000_000;
/// How long before this end leaves alone: a peer that is awake has followed by then.
const ALONE_NS: u64 = 20_000_000;
/// How long it may take to read what it wanted sent again.
const UNREAD_NS: u64 = 10_000_000_000;

impl Connection {
    /// Where the next bytes come from, after everything that is due there was done.
    #[inline]
    pub fn origin(&self, fd: RawFd, state: &mut ReceiveSide, lane: &ShmLane) -> Origin {
        if self.peer() != peer::ALIVE {
            state.recall_is_void(lane);
        }
        match state.origin(lane) {
            Origin::Back | Origin::Wakeups(_) => self.come_back(fd, state, lane),
            origin => origin,
        }
    }

    #[cold]
    fn come_back(&self, fd: RawFd, state: &mut ReceiveSide, lane: &ShmLane) -> Origin {
        /// A peer of ours moves once at most while we look.
        const MOVES_MAX: usize = 64;
        let mut origin = state.origin(lane);
        for _ in 0..MOVES_MAX {
            match origin {
                Origin::Back => {
                    self.forget_wakeups();
                    state.come_back(lane);
                    // The wakeups that are taken next are those that asked this end to follow. They
                    // may be for a thread that sleeps, while this one only looks by the way.
                    self.follow(fd, lane);
                }
                Origin::Wakeups(left) => {
                    let left = usize::try_from(left).unwrap_or(usize::MAX);
                    if self.take_wakeups(fd, state, lane, left) == 0 {
                        return origin;
                    }
                }
                Origin::Lane | Origin::Tcp { .. } => return origin,
            }
            origin = state.origin(lane);
        }
        origin
    }

    /// Takes the sending direction, which is locked, back to TCP; false when that cannot be.
    #[cold]
    pub fn leave(&self, fd: RawFd, sending: &mut SendSide, lane: &ShmLane, how: Leave) -> bool {
        let Some(ring) = sending.leave(lane, self.side(), how) else { return false };
        if ring {
            self.ring(fd, sending);
        }
        let unread = sending.go_back(lane);
        if !unread.is_empty() {
            self.send_again(fd, sending, lane, &unread);
        }
        if how != Leave::ForNow && sending.is_shut() {
            // The peer's kernel knew nothing of an end that was told on the lane.
            let _ = rustix::net::shutdown(sys::borrow(fd), Shutdown::Write);
        }
        self.local.full_since.store(0, Ordering::Relaxed);
        if how == Leave::GivingBack {
            lanes::expect_back(fd, *self);
        }
        log::debug!("connection {} sends over TCP again, {how:?}", self.place);
        true
    }

    /// Ends the connection for both ends: what follows would not be what belongs there.
    fn abort(&self, fd: RawFd, sending: &mut SendSide, lane: &ShmLane) {
        log::warn_user!("a connection is reset: its other end does not go on");
        sending.close(lane, closed::RESET);
        // A connect to AF_UNSPEC sends a reset, and all later calls on the socket fail.
        let _ = rustix::net::connect_unspec(sys::borrow(fd));
        self.heard(sys::Wakeup::Failed(Errno::CONNRESET));
    }

    /// Sends over TCP what the peer did not read on the lane. Its kernel holds more than a lane
    /// does; where that is not so, or it dies, the connection is reset.
    fn send_again(&self, fd: RawFd, sending: &mut SendSide, lane: &ShmLane, unread: &[u8]) {
        let mut left = unread;
        let start = sys::now_ns();
        while !left.is_empty() {
            sending.begin_tcp();
            let sent =
                rustix::net::send(sys::borrow(fd), left, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            sending.wrote_tcp(*sent.as_ref().unwrap_or(&0));
            match sent {
                Ok(bytes) => left = &left[bytes..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if sys::now_ns() - start < UNREAD_NS => {
                    let _ = sys::poll_one(fd, PollFlags::OUT, 10);
                }
                Err(_) => return self.abort(fd, sending, lane),
            }
        }
        stats::add(BYTES_TCP_SENT, unread.len() as u64);
    }

    /// The lane is full: takes the sending direction, which is locked, back to TCP if waiting has
    /// no end, or went on for long; true when it is there.
    pub fn leaves_when_full(&self, fd: RawFd, sending: &mut SendSide, lane: &ShmLane) -> bool {
        let due = !SendSide::is_answered(lane)
            || !sending.is_limited(lane) && self.is_stuck(sending.taken_by_peer(lane));
        due && self.leave(fd, sending, lane, Leave::ForNow)
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

    /// The same, where it need not be quick.
    #[cold]
    pub fn follow_now(&self, fd: RawFd) {
        if let Some(sending) = self.sending()
            && let Some(lane) = sending.lane
            && let Some(how) = sending.state.called_back(lane)
        {
            self.leave(fd, sending.state, lane, how);
        }
    }

    /// Called before something is sent in a way that only the kernel knows: from here on all goes
    /// over TCP. False when that cannot be.
    pub fn sends_by_kernel(&self, fd: RawFd) -> bool {
        if self.decide_for_kernel(fd) != phase::LANED {
            return true;
        }
        let Some(sending) = self.sending() else { return false };
        let Some(lane) = sending.lane else {
            drop(sending);
            // Another thread took it off the lane since.
            return self.phase() != phase::LANED && self.sends_by_kernel(fd);
        };
        sending.state.is_back_for_good() || self.leave(fd, sending.state, lane, Leave::ForGood)
    }

    /// True while bytes lie unread on the lane.
    pub fn has_lane_data(&self, fd: RawFd) -> bool {
        self.receiving().is_some_and(|receiving| {
            receiving.lane.is_some_and(|lane| {
                let on_lane = self.origin(fd, receiving.state, lane) == Origin::Lane;
                on_lane && receiving.state.has_data(lane)
            })
        })
    }

    /// True when all that is read comes over TCP from here on.
    pub fn reads_tcp(&self, fd: RawFd) -> bool {
        self.receiving().is_some_and(|receiving| {
            receiving.lane.is_none_or(|lane| {
                self.origin(fd, receiving.state, lane) == Origin::Tcp { at_most: None }
            })
        })
    }

    /// True when its sending direction went back to TCP for good.
    pub fn is_back_for_good(&self) -> bool {
        self.sending().is_some_and(|sending| sending.state.is_back_for_good())
    }

    /// Asks the peer to send all unread bytes of the lane over TCP; this end leaves for good next.
    pub fn recall(&self, fd: RawFd) {
        if let Some(receiving) = self.receiving()
            && let Some(lane) = receiving.lane
        {
            // Takes what is due first, so that the recall names the last place that was read.
            self.origin(fd, receiving.state, lane);
            receiving.state.recall(lane);
        }
    }

    /// True when nothing lies on the lane for this end, nor a wakeup in the kernel's socket, and
    /// none will: what the peer writes to the lane yet it sends again when it finds the recall.
    fn has_no_use_for_lane(&self, fd: RawFd) -> bool {
        // First, so that no wakeup follows what the look below does not see.
        self.drain_all(fd)
            && self.receiving().is_some_and(|receiving| {
                receiving.lane.is_some_and(|lane| {
                    self.origin(fd, receiving.state, lane) == Origin::Lane
                        && !receiving.state.has_data(lane)
                })
            })
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
        if self.decide_for_kernel(fd) != phase::LANED {
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
            let seen = sys::poll_one(fd, PollFlags::RDHUP, 1).unwrap_or(PollFlags::empty());
            if !seen.is_empty() && !self.has(flag::READING_SHUT) {
                self.heard(sys::Wakeup::End);
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
        self.shared.phase.store(phase::DECLINED, Ordering::Release);
        epoll::forget(*self);
        self.drop_lane();
        true
    }

    /// How far the peer followed this end, which left for good.
    fn is_followed(&self, fd: RawFd) -> Followed {
        let Some(receiving) = self.receiving() else { return Followed::Never };
        let Some(lane) = receiving.lane else { return Followed::Never };
        // Asked first: a peer that says so has posted its last boundary by then.
        let called = SendSide::is_called(lane);
        match self.origin(fd, receiving.state, lane) {
            Origin::Lane if receiving.state.has_data(lane) => Followed::Never,
            // A peer that comes to the lane from now on sees that this end left it.
            Origin::Tcp { at_most: None }
                if called || !SendSide::peer_attached(lane, self.side()) =>
            {
                Followed::Yes
            }
            Origin::Tcp { at_most: Some(_) } => match receiving.state.is_all_on_tcp(lane) {
                Some(true) => Followed::Yes,
                Some(false) => Followed::Never,
                None => Followed::BehindTcp,
            },
            _ => Followed::NotYet,
        }
    }
}

/// How far a peer followed an end that left the lane for good.
enum Followed {
    /// All that it sent, and will send, lies on TCP.
    Yes,
    /// It did not look yet, or is at it.
    NotYet,
    /// The same, and bytes lie unread on TCP in front of what it wrote to the lane.
    BehindTcp,
    /// Bytes lie on the lane that it does not send again.
    Never,
}
