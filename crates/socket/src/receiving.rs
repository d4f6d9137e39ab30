//! The receiving direction of an end that has a lane: crossings, wakeups and waiting.

use weft_fabric::{Attention, Lane, Standing, WaitFor};

use crate::common::{Common, Peer, StaleWakeups, peer_rings};
use crate::route::Origin;
use crate::shadow::Shadow;
use crate::stream::Side;
use crate::{ReceiveSide, SendSide};

/// The receiving direction with everything that its rules use. The caller holds its lock.
#[derive(Debug)]
pub struct Receiving<'a, L, S> {
    /// State of the direction.
    pub state: &'a mut ReceiveSide,
    /// The lane.
    pub lane: &'a L,
    /// The kernel's connection.
    pub shadow: S,
    /// State that both directions use.
    pub common: &'a Common,
}

/// How far the peer has followed an end that left the lane for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Followed {
    /// All that the peer sent, and will send, lies on TCP.
    Yes,
    /// The peer has not looked yet, or is about to follow.
    NotYet,
    /// The peer has not followed yet. Unread bytes lie on TCP before its bytes on the lane.
    BehindTcp,
    /// Bytes lie on the lane that the peer does not send again.
    Never,
}

/// The next step of a reader that found the lane empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Empty {
    /// Wait: the peer is there.
    Wait,
    /// Look again: something arrived after the look.
    LookAgain,
    /// Stop: the peer died without ending its direction, and all that it sent was read.
    PeerDied,
    /// Report a reset: the direction is broken, since strays lie in the kernel's socket.
    Broken,
}

impl<L: Lane, S: Shadow> Receiving<'_, L, S> {
    /// The place of the next bytes. Makes every crossing first that is due.
    #[inline]
    pub fn origin(&mut self) -> Origin {
        if self.has_ended_visibly() {
            self.state.end_resend_request(self.lane);
        }
        match self.state.origin(self.lane) {
            Origin::Return | Origin::Wakeups(_) => self.cross(),
            origin => origin,
        }
    }

    /// True if the kernel told of the end of the peer, and all that the peer did to the lane before
    /// is visible.
    #[inline]
    fn has_ended_visibly(&self) -> bool {
        self.common.peer() != Peer::Alive && ReceiveSide::end_is_visible(self.lane)
    }

    #[cold]
    fn cross(&mut self) -> Origin {
        /// A peer that follows the protocol crosses at most once during the call. Another one may
        /// post boundaries as fast as this end crosses them, so the loop has a bound.
        const CROSSINGS_MAX: usize = 64;
        let mut origin = self.state.origin(self.lane);
        for _ in 0..CROSSINGS_MAX {
            match origin {
                Origin::Return => {
                    self.common.forget_wakeups();
                    self.state.return_to_tcp(self.lane);
                    self.shadow.crossed();
                }
                Origin::Wakeups(left) => {
                    let left = usize::try_from(left).unwrap_or(usize::MAX);
                    if self.take_wakeups(left) == 0 {
                        return origin;
                    }
                }
                Origin::Lane | Origin::Tcp { .. } => return origin,
            }
            origin = self.state.origin(self.lane);
        }
        origin
    }

    /// How many wakeups lie unread in the kernel's socket. If strays lie there, the call breaks the
    /// direction off and returns 0. A process without weft that holds the peer's socket wrote them,
    /// and their place in the stream is unknown.
    ///
    /// Across a network there are no wakeups, and no strays can be told from data: the word that
    /// says that the peer went back to TCP may come later than what it sent there.
    fn unread_wakeups(&mut self) -> usize {
        if self.state.is_broken() || !peer_rings(self.lane) {
            return 0;
        }
        // This look comes before the look at the boundary. So the boundary before data that it
        // finds is posted, and the peer has claimed a word for each wakeup.
        let seen = self.shadow.look();
        let wakeups = self.state.wakeups_of(self.lane, seen.bytes);
        let more = self.state.on_lane() && wakeups > self.common.wakeups_due(self.lane);
        if more || wakeups > seen.wakeups {
            self.state.break_off();
            self.common.set_peer(Peer::Reset);
            self.shadow.report_strays();
            return 0;
        }
        wakeups
    }

    /// True if strays lie in the kernel's socket, or if the direction broke before.
    pub fn has_strays(&mut self) -> bool {
        self.unread_wakeups();
        self.state.is_broken()
    }

    /// Takes up to `most` wakeups out of the kernel's socket and returns how many it took.
    pub fn take_wakeups(&mut self, most: usize) -> usize {
        let wakeups = self.unread_wakeups().min(most);
        if wakeups == 0 {
            return 0;
        }
        self.state.begin_tcp();
        let taken = self.shadow.take_wakeups(wakeups);
        self.state.took_wakeups(taken);
        taken
    }

    /// Takes the wakeups out of the kernel's socket that were stale when the thread armed. Call it
    /// after the look that follows arming found nothing: the data of those wakeups is then taken. A
    /// wakeup that became stale later stays, since it may be the only one that wakes another
    /// thread. `in_vain` says that bytes ended a wait in the kernel, but brought no data or room.
    ///
    /// False if the direction is broken. The caller must then report that.
    #[must_use]
    pub fn drain(&mut self, stale: StaleWakeups, mut in_vain: bool) -> bool {
        // Only on the lane are all bytes of the kernel's socket wakeups.
        if self.origin() != Origin::Lane {
            return true;
        }
        loop {
            let left = self.common.remaining(stale);
            if left == 0 {
                break;
            }
            in_vain = false;
            let taken = self.take_wakeups(left);
            self.common.note_drained(taken);
            if taken == 0 {
                break;
            }
        }
        if in_vain {
            return !self.has_strays();
        }
        !self.state.is_broken()
    }

    /// Takes all wakeups that are there, and disarms the words, so that the peer sends no more.
    /// False if some wakeups are still on their way.
    pub fn drain_all(&mut self) -> bool {
        match self.origin() {
            Origin::Lane => {}
            Origin::Wakeups(_) => return false,
            Origin::Tcp { .. } | Origin::Return => return true,
        }
        for what in [WaitFor::Data, WaitFor::Room] {
            self.common.note_stale_if(|| self.lane.disarm(what) && peer_rings(self.lane));
        }
        loop {
            let taken = self.take_wakeups(usize::MAX);
            self.common.note_drained(taken);
            if taken == 0 {
                break;
            }
        }
        self.common.remaining(self.common.stale()) == 0
    }

    /// Arms `what` before the thread sleeps. The fence of the lane and one more look must follow,
    /// and [`Receiving::drain`] if the look found nothing. The word is never set to watching in
    /// between, since other threads may rely on it. Returns the wakeups that are stale by now.
    pub fn arm(&mut self, what: WaitFor) -> StaleWakeups {
        self.common.note_stale_if(|| self.lane.rearm(what) && peer_rings(self.lane));
        self.lane.arm(what);
        self.common.stale()
    }

    /// True if the peer will ring for the next data.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.lane.attention(WaitFor::Data) == Attention::Armed
    }

    /// Ends a wait for `what`. The word stays armed while another thread sleeps, or an epoll set
    /// waits for it (`watched`).
    pub fn stop_waiting(&mut self, what: WaitFor, watched: bool) {
        let others = watched || self.common.has_sleeper(what);
        self.common.note_stale_if(|| {
            let was_rung = if others { self.lane.rearm(what) } else { self.lane.disarm(what) };
            was_rung && peer_rings(self.lane)
        });
    }

    /// Disarms a new lane if no thread sleeps. It was armed for threads that may sleep without
    /// knowing of it. If none sleeps, a wakeup that came meanwhile must be stale.
    pub fn disarm_if_no_sleeper(&mut self, watched: bool) {
        if !self.common.has_sleeper(WaitFor::Data) {
            self.stop_waiting(WaitFor::Data, watched);
        }
    }

    /// The next step of a reader that found no data on the lane, and no end of file.
    pub fn found_empty(&mut self) -> Empty {
        if !peer_rings(self.lane) {
            return self.found_empty_far();
        }
        if self.common.peer() == Peer::Alive {
            return Empty::Wait;
        }
        // Another thread may have learned of the end of the peer after the look. By now all that
        // the peer sent before is visible, and no resend request will be answered.
        self.state.end_resend_request(self.lane);
        if self.state.readable(self.lane) {
            Empty::LookAgain
        } else if self.has_strays() {
            Empty::Broken
        } else {
            Empty::PeerDied
        }
    }

    /// The same across a network, where the lane alone tells. If the peer said neither goodbye nor
    /// that its process ends, it is not known that all of its bytes arrived. So this is no end but
    /// a reset.
    #[cold]
    fn found_empty_far(&mut self) -> Empty {
        let is_over = self.lane.is_over();
        if is_over {
            self.state.end_resend_request(self.lane);
        }
        // By now all that the peer sent before the lane ended is visible.
        if self.state.readable(self.lane) {
            Empty::LookAgain
        } else if is_over && ReceiveSide::peer_ends_with_process(self.lane) {
            Empty::PeerDied
        } else if is_over {
            self.common.set_peer(Peer::Reset);
            Empty::Broken
        } else {
            Empty::Wait
        }
    }

    /// The next step of a reader that found no data on TCP but the end of the connection, which the
    /// kernel told. [`Empty::PeerDied`] means that the kernel's word stands.
    pub fn after_end_of_tcp(&mut self) -> Empty {
        // These looks come first: what the peer did before its goodbye is then visible.
        let knows_end = ReceiveSide::end_is_visible(self.lane);
        let has_all = ReceiveSide::peer_closed(self.lane).is_some()
            || ReceiveSide::peer_ends_with_process(self.lane)
            || self.lane.standing() == Standing::Closed
            // Before an end goes to the lane, its word that it has the lane has landed here.
            || !ReceiveSide::peer_has_lane(self.lane);
        if self.origin() == Origin::Lane {
            Empty::LookAgain
        } else if self.state.is_given_back(self.lane) {
            // A peer that left for good sends all over TCP, whatever becomes of the lane.
            Empty::PeerDied
        } else if !knows_end {
            Empty::Wait
        } else if peer_rings(self.lane) || has_all {
            Empty::PeerDied
        } else {
            self.common.set_peer(Peer::Reset);
            Empty::Broken
        }
    }

    /// True if the next bytes lie on the lane.
    pub fn has_lane_data(&mut self) -> bool {
        self.origin() == Origin::Lane && self.state.has_data(self.lane)
    }

    /// Whether a read would not block, or `None` if only the kernel knows. With `shut`, the program
    /// shut this direction, so that a read finds the end at once.
    #[inline(always)]
    pub fn readable(&mut self, shut: bool) -> Option<bool> {
        loop {
            let ends = shut || self.has_ended_visibly() || self.lane.is_over();
            match self.origin() {
                Origin::Lane => {}
                // Wakeups lie before the data on TCP, so the kernel would report one of them.
                Origin::Wakeups(_) => return Some(ends),
                Origin::Tcp { .. } | Origin::Return => return None,
            }
            let readable = self.state.readable(self.lane);
            // The peer may just have left for TCP, where there may be no data.
            if !readable || self.state.origin(self.lane) != Origin::Return {
                return Some(ends || readable);
            }
        }
    }

    /// True if the end may leave its lane to give it back: no bytes are on their way to it, and the
    /// peer has the lane and did not close.
    pub fn may_give_back(&mut self, side: Side) -> bool {
        let is_quiet = match self.origin() {
            Origin::Lane => !self.state.has_data(self.lane),
            Origin::Tcp { at_most } => at_most.is_none(),
            Origin::Wakeups(_) | Origin::Return => false,
        };
        is_quiet
            && self.common.peer() == Peer::Alive
            && ReceiveSide::peer_closed(self.lane).is_none()
            && SendSide::peer_attached(self.lane, side)
    }

    /// True if no data lies on the lane and no wakeup in the kernel's socket, and none will come.
    /// The end must have requested a resend: the peer then resends what it writes to the lane
    /// before it sees that. It can be killed before it resends the bytes that lie there already.
    pub fn has_no_use_for_lane(&mut self) -> bool {
        // This comes first, so that no wakeup follows that the looks below would miss.
        self.drain_all() && self.origin() == Origin::Lane && !self.state.has_unread(self.lane)
    }

    /// How far the peer has followed this end, which left for good.
    pub fn is_followed(&mut self, side: Side) -> Followed {
        // This look comes first: a peer that leaves for good has posted its last boundary before.
        let called = SendSide::peer_left(self.lane);
        match self.origin() {
            Origin::Lane if self.state.has_data(self.lane) => Followed::Never,
            // A peer that comes to the lane later sees that this end left it.
            Origin::Tcp { at_most: None }
                if called || !SendSide::peer_attached(self.lane, side) =>
            {
                Followed::Yes
            }
            Origin::Tcp { at_most: Some(_) } => match self.state.is_all_on_tcp(self.lane) {
                Some(true) => Followed::Yes,
                Some(false) => Followed::Never,
                None => Followed::BehindTcp,
            },
            _ => Followed::NotYet,
        }
    }
}
