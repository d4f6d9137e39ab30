//! The receiving direction of an end that has a lane: crossings, wakeups and waiting.

use weft_fabric::{Attention, Lane, WaitFor};

use crate::common::{Common, Peer, StaleWakeups};
use crate::route::Origin;
use crate::shadow::Shadow;
use crate::stream::Side;
use crate::{ReceiveSide, SendSide};

/// The receiving direction with all that its rules use. The caller holds its lock.
#[derive(Debug)]
pub struct Receiving<'a, L, S> {
    /// The direction's state.
    pub state: &'a mut ReceiveSide,
    /// The lane.
    pub lane: &'a L,
    /// The kernel's connection.
    pub shadow: S,
    /// What both directions use.
    pub common: &'a Common,
}

/// How far the peer followed an end that left the lane for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Followed {
    /// All that it sent, and will send, lies on TCP.
    Yes,
    /// It did not look yet, or is about to follow.
    NotYet,
    /// It did not follow yet, and bytes lie unread on TCP in front of what it wrote to the lane.
    BehindTcp,
    /// Bytes lie on the lane that it does not send again.
    Never,
}

/// What a reader does that found the lane empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Empty {
    /// It waits: the peer is there.
    Wait,
    /// It looks again: something came after its look.
    LookAgain,
    /// Nothing will come: the peer died without a word, and all that it sent was read.
    PeerDied,
    /// The direction is broken off: bytes that are no wakeups lie in the kernel's socket.
    Broken,
}

impl<L: Lane, S: Shadow> Receiving<'_, L, S> {
    /// Where the next bytes come from, after every crossing that is due.
    #[inline]
    pub fn origin(&mut self) -> Origin {
        if self.common.peer() != Peer::Alive {
            self.state.recall_is_void(self.lane);
        }
        match self.state.origin(self.lane) {
            Origin::Back | Origin::Wakeups(_) => self.cross(),
            origin => origin,
        }
    }

    #[cold]
    fn cross(&mut self) -> Origin {
        /// A peer of ours crosses once at most while we look.
        const CROSSINGS_MAX: usize = 64;
        let mut origin = self.state.origin(self.lane);
        for _ in 0..CROSSINGS_MAX {
            match origin {
                Origin::Back => {
                    self.common.forget_wakeups();
                    self.state.come_back(self.lane);
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

    /// How many wakeups lie unread in the kernel's socket. When something else lies there, it
    /// breaks the direction off and returns 0: somebody without weft who holds the peer's socket
    /// wrote bytes, and nobody can tell where in the stream they belong.
    fn unread_wakeups(&mut self) -> usize {
        if self.state.is_broken() {
            return 0;
        }
        // Looked at before the boundary is read: data that came meanwhile is behind a boundary that
        // is posted by then, and the peer claimed a word before it rang.
        let seen = self.shadow.look();
        let wakeups = self.state.wakeups_of(self.lane, seen.bytes);
        let more = self.state.on_lane() && wakeups > self.common.wakeups_due(self.lane);
        if more || wakeups > seen.wakeups {
            self.state.break_off();
            self.common.hear(Peer::Reset);
            self.shadow.report_strays();
            return 0;
        }
        wakeups
    }

    /// True when something else than wakeups lies in the kernel's socket, or lay there before.
    pub fn has_strays(&mut self) -> bool {
        self.unread_wakeups();
        self.state.is_broken()
    }

    /// Takes up to `most` wakeups out of the kernel's socket and returns how many there were.
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

    /// Takes the wakeups that were stale when a thread armed, after it looked once more and found
    /// nothing: by then their data is taken. A wakeup that became stale since may be the only one
    /// that wakes another thread, and stays. `in_vain` says that a wait in the kernel ended with
    /// bytes and nothing came of it.
    ///
    /// False when the direction is broken off, so that there is something to tell.
    #[must_use]
    pub fn drain(&mut self, stale: StaleWakeups, mut in_vain: bool) -> bool {
        // Only there are all bytes wakeups.
        if self.origin() != Origin::Lane {
            return true;
        }
        loop {
            let left = self.common.left_of(stale);
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

    /// Takes all wakeups that are there, and asks the peer for no more. False when some are on
    /// their way.
    pub fn drain_all(&mut self) -> bool {
        match self.origin() {
            Origin::Lane => {}
            Origin::Wakeups(_) => return false,
            Origin::Tcp { .. } | Origin::Back => return true,
        }
        for what in [WaitFor::Data, WaitFor::Room] {
            self.common.note_stale_if(|| self.lane.disarm(what));
        }
        loop {
            let taken = self.take_wakeups(usize::MAX);
            self.common.note_drained(taken);
            if taken == 0 {
                break;
            }
        }
        self.common.left_of(self.common.stale()) == 0
    }

    /// Arms `what` before a thread sleeps: the fence of the lane and one more look must follow, and
    /// [`Receiving::drain`] when that found nothing. Never by way of watching, since other threads
    /// may rely on the word. Returns the wakeups that are stale by then.
    pub fn arm(&mut self, what: WaitFor) -> StaleWakeups {
        self.common.note_stale_if(|| self.lane.rearm(what));
        self.lane.arm(what);
        self.common.stale()
    }

    /// The peer will ring for what comes next.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.lane.attention(WaitFor::Data) == Attention::Armed
    }

    /// The caller waits for `what` no more. The word stays armed while a thread sleeps, or, as
    /// `watched` says, an epoll set waits for it.
    pub fn stop_waiting(&mut self, what: WaitFor, watched: bool) {
        let others = watched || self.common.has_sleeper(what);
        self.common
            .note_stale_if(|| if others { self.lane.rearm(what) } else { self.lane.disarm(what) });
    }

    /// A lane that was just put in place is armed for threads that sleep without knowing of it.
    /// When no thread sleeps, a wakeup that came meanwhile must be stale.
    pub fn disarm_for_nobody(&mut self) {
        if !self.common.has_sleeper(WaitFor::Data) {
            self.stop_waiting(WaitFor::Data, false);
        }
    }

    /// A read found nothing on the lane, and no end either: what the reader does next.
    pub fn found_empty(&mut self) -> Empty {
        if self.common.peer() == Peer::Alive {
            return Empty::Wait;
        }
        // Another thread may have heard of the end after the look: what the peer sent before its
        // end is visible by now, and nobody sends again what was recalled.
        self.state.recall_is_void(self.lane);
        if self.state.readable(self.lane) {
            Empty::LookAgain
        } else if self.has_strays() {
            Empty::Broken
        } else {
            Empty::PeerDied
        }
    }

    /// True while bytes lie unread on the lane and are next.
    pub fn has_lane_data(&mut self) -> bool {
        self.origin() == Origin::Lane && self.state.has_data(self.lane)
    }

    /// Whether a read would not block, or `None` when only the kernel knows. `shut` says that the
    /// program shut this direction, so that a read finds the end at once.
    pub fn readable(&mut self, shut: bool) -> Option<bool> {
        loop {
            let ends = shut || self.common.peer() != Peer::Alive;
            match self.origin() {
                Origin::Lane => {}
                // Wakeups come before the data on TCP: the kernel sees one of them next.
                Origin::Wakeups(_) => return Some(ends),
                Origin::Tcp { .. } | Origin::Back => return None,
            }
            let readable = self.state.readable(self.lane);
            // The peer may just have left for TCP, where there may be nothing.
            if !readable || self.state.origin(self.lane) != Origin::Back {
                return Some(ends || readable);
            }
        }
    }

    /// True when the end may leave its lane to give it back: nothing is on its way to it, the peer
    /// came to the lane and did not close.
    pub fn may_give_back(&mut self, side: Side) -> bool {
        let is_quiet = match self.origin() {
            Origin::Lane => !self.state.has_data(self.lane),
            Origin::Tcp { at_most } => at_most.is_none(),
            Origin::Wakeups(_) | Origin::Back => false,
        };
        is_quiet
            && self.common.peer() == Peer::Alive
            && ReceiveSide::peer_closed(self.lane).is_none()
            && SendSide::peer_attached(self.lane, side)
    }

    /// True when nothing lies on the lane for this end, nor a wakeup in the kernel's socket, and
    /// none will come: the peer sends again what it writes to the lane before it finds the recall.
    pub fn has_no_use_for_lane(&mut self) -> bool {
        // First, so that no wakeup follows that the look below does not see.
        self.drain_all() && self.origin() == Origin::Lane && !self.state.has_data(self.lane)
    }

    /// How far the peer followed this end, which left for good.
    pub fn is_followed(&mut self, side: Side) -> Followed {
        // Asked first: a peer that says so has posted its last boundary by then.
        let called = SendSide::is_called(self.lane);
        match self.origin() {
            Origin::Lane if self.state.has_data(self.lane) => Followed::Never,
            // A peer that comes to the lane from now on sees that this end left it.
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
