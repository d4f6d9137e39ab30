//! The receiving direction of an end that has a lane: crossings, wakeups and waiting.

use std::sync::atomic::Ordering;

use weft_fabric::{Attention, Lane, Standing, WaitFor};

use crate::common::{Common, Peer, StaleWakeups};
use crate::medium::peer_rings;
use crate::record::{self, Found, Record};
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
    /// All that the peer sent, and will send, lies on TCP. This end can go on without the lane.
    Yes,
    /// The peer has not looked yet, or is about to follow.
    NotYet,
    /// This end needs the lane further: bytes lie there that the peer does not send again, or what
    /// the peer sent cannot be understood without it.
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

/// The fate of the wakeups that were stale when a thread armed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drained {
    /// None of them is left in the kernel's socket.
    All,
    /// They stay for others, and would end a wait for bytes at once.
    NotYet,
    /// The direction is broken, which the program must be told.
    Broken,
}

impl<L: Lane, S: Shadow> Receiving<'_, L, S> {
    /// The place of the next bytes. Makes every crossing first that is due.
    #[inline]
    pub fn origin(&mut self) -> Origin {
        self.common.meet(self.lane);
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

    /// Takes the record out of the kernel's socket with which the peer went back to TCP, if it is
    /// next there. True if it was.
    ///
    /// Where the next bytes would come from the lane, bytes that are no record are strays.
    #[cold]
    pub fn look_for_record(&mut self) -> bool {
        let on_lane = self.state.on_lane();
        let may_be = on_lane || self.state.may_meet_record(self.lane);
        if peer_rings(self.lane) || !may_be || self.state.is_broken() {
            return false;
        }
        let mut seen = [0; record::BYTES];
        let there = self.shadow.peek(&mut seen);
        if !on_lane {
            let is_one =
                there == record::BYTES && Record::decode(&seen, self.lane.token()).is_some();
            return is_one && self.take_record(&seen);
        }
        match there {
            0 => false,
            record::BYTES => self.take_record(&seen),
            // The rest of it is on its way, unless it is none.
            some => {
                let start = seen[..some].len().min(8);
                let is_part = Record::may_begin(&seen[..start]);
                if !is_part {
                    self.meet_strays();
                }
                false
            }
        }
    }

    /// Takes the record that `seen` is, or breaks the direction off.
    fn take_record(&mut self, seen: &[u8; record::BYTES]) -> bool {
        let Some(record) = Record::decode(seen, self.lane.token()) else {
            self.meet_strays();
            return false;
        };
        self.state.begin_tcp();
        let taken = self.shadow.take_wakeups(record::BYTES);
        self.state.took_wakeups(taken);
        if taken == record::BYTES {
            self.state.return_by_record(self.lane, &record);
            self.common.taken_by_peer.store(record.taken, Ordering::Relaxed);
        } else {
            self.state.break_off();
        }
        self.shadow.crossed();
        !self.state.is_broken()
    }

    #[cold]
    fn meet_strays(&mut self) {
        self.state.break_off();
        self.common.set_peer(Peer::Reset);
        self.shadow.report_strays();
    }

    /// How many of `bytes` unread bytes on TCP are data, while [`Receiving::origin`] is there. 0 if
    /// the caller has to look at the origin again. `None` if there is nothing for it yet.
    pub fn data_of(&mut self, bytes: usize) -> Option<usize> {
        // This look comes first: a boundary that arrives between the two bounds the data.
        let may_meet_record = self.state.may_meet_record(self.lane);
        let data = self.state.data_of(self.lane, bytes);
        if data == 0 || !may_meet_record {
            return Some(data);
        }
        let mut seen = vec![0; data + record::BYTES];
        let there = self.shadow.peek(&mut seen);
        match Record::find(&seen[..there], self.lane.token()) {
            Found::Nothing => Some(data),
            Found::At(0) => {
                let whole = seen.first_chunk().filter(|_| there >= record::BYTES);
                whole.copied().map(|whole| {
                    self.take_record(&whole);
                    0
                })
            }
            Found::Perhaps(0) => None,
            Found::At(at) | Found::Perhaps(at) => Some(data.min(at)),
        }
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
        if self.state.may_meet_copies(self.lane) {
            return seen.wakeups.min(self.common.wakeups_due(self.lane));
        }
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
        // Bytes that were read on the lane and came again may be any bytes. Across a network there
        // are no others.
        let wakeups = match self.state.copies() {
            _ if !peer_rings(self.lane) => most,
            0 => self.unread_wakeups().min(most),
            copies => copies.min(most),
        };
        if wakeups == 0 {
            return 0;
        }
        self.state.begin_tcp();
        let taken = self.shadow.take_wakeups(wakeups);
        self.state.took_wakeups(taken);
        taken
    }

    /// As [`ReceiveSide::behind_lane`], for an end that is to see the data there. The copies of the
    /// bytes of the lane go: the kernel holds no data behind them that it has no room for. This end
    /// reads those bytes on the lane, and cannot leave them to others on TCP any more.
    pub fn behind_lane(&mut self) -> Option<u64> {
        if self.state.behind_lane(self.lane)? > 0 {
            let wakeups = self.take_wakeups(usize::MAX);
            self.common.note_drained(wakeups);
            let copies = self.state.copies_behind(self.lane);
            if copies > 0 {
                self.state.begin_tcp();
                let taken = self.shadow.take_wakeups(copies);
                self.state.took_wakeups(taken);
            }
        }
        self.state.behind_lane(self.lane)
    }

    /// Takes the wakeups out of the kernel's socket that were stale when the thread armed. Call it
    /// after the look that follows arming found nothing. A wakeup that became stale later stays,
    /// since it may be the only one that wakes another thread. `in_vain` says that bytes ended a
    /// wait in the kernel, but brought no data or room.
    ///
    /// The caller may have looked for something else than data: for room, for the end alone, or for
    /// data that came since it was last told of some. As long as data or the end is there, the
    /// wakeups stay, unless the caller is `alone`: another thread that sleeps for them may not have
    /// run yet.
    pub fn drain(&mut self, stale: StaleWakeups, mut in_vain: bool, alone: bool) -> Drained {
        // Only on the lane are all bytes of the kernel's socket wakeups.
        if self.origin() != Origin::Lane {
            return Drained::All;
        }
        if !alone && self.state.readable(self.lane) {
            return if self.state.is_broken() { Drained::Broken } else { Drained::NotYet };
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
        let is_broken = if in_vain { self.has_strays() } else { self.state.is_broken() };
        if is_broken { Drained::Broken } else { Drained::All }
    }

    /// Takes all wakeups that are there, and disarms the words, so that the peer sends no more.
    /// False if some wakeups are still on their way.
    pub fn drain_all(&mut self) -> bool {
        match self.origin() {
            _ if !peer_rings(self.lane) => return true,
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

    /// The same across a network. A lane that is over is no end: the peer goes on over TCP. If its
    /// kernel has ended the connection without a record, the peer was killed, and it is not known
    /// that all of its bytes arrived. So this is a reset.
    #[cold]
    fn found_empty_far(&mut self) -> Empty {
        // These looks come before the next one: a peer that ends in order sends its record first.
        let ended = self.common.peer() != Peer::Alive;
        let is_over = self.lane.is_over();
        // By now all that the peer sent before the lane ended is visible.
        if self.look_for_record() || self.state.readable(self.lane) {
            Empty::LookAgain
        } else if is_over && ended {
            self.common.set_peer(Peer::Reset);
            Empty::Broken
        } else {
            Empty::Wait
        }
    }

    /// The next step of a reader that found no data on TCP but the end of the connection, which the
    /// kernel told. [`Empty::PeerDied`] means that the kernel's word stands.
    pub fn after_end_of_tcp(&mut self) -> Empty {
        if self.state.is_owed_bytes() {
            // The peer was killed before its kernel had all that the lane did not bring.
            self.common.set_peer(Peer::Reset);
            return Empty::Broken;
        }
        let is_all_on_tcp = !self.state.on_lane() && !self.common.has_met();
        if !peer_rings(self.lane) && (self.state.stays_on_tcp() || is_all_on_tcp) {
            return Empty::PeerDied;
        }
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

    /// True if bytes are unread on the lane, even if the peer was asked to send them again, or on
    /// TCP in front of the boundary to the lane. The kernel's close then resets the connection.
    pub fn has_unread(&mut self) -> bool {
        match self.origin() {
            Origin::Tcp { .. } => {
                let there = self.shadow.peek(&mut [0]);
                self.state.data_of(self.lane, there) > 0
            }
            Origin::Lane | Origin::Wakeups(_) | Origin::Return => self.state.has_unread(self.lane),
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
            let ends = shut || self.has_ended_visibly();
            match self.origin() {
                Origin::Lane => {}
                // Wakeups lie before the data on TCP, so the kernel would report one of them.
                Origin::Wakeups(_) => return Some(ends),
                Origin::Tcp { .. } | Origin::Return => return None,
            }
            let readable = self.state.readable(self.lane);
            if !readable && self.look_for_record() {
                continue;
            }
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
    ///
    /// Across a network the peer's record still comes.
    pub fn has_no_use_for_lane(&mut self) -> bool {
        self.is_quiet() && !self.state.has_unread(self.lane)
    }

    /// True if no wakeup lies in the kernel's socket, and none will come.
    pub(crate) fn is_quiet(&mut self) -> bool {
        // The drain comes first, so that no wakeup follows that the looks behind it would miss.
        if !peer_rings(self.lane) || !self.drain_all() {
            return false;
        }
        match self.origin() {
            Origin::Lane => true,
            // A peer that left for now may come again before it sees that this end left. It must
            // not ring then.
            Origin::Tcp { at_most: None } if self.state.has_asked() => {
                for what in [WaitFor::Data, WaitFor::Room] {
                    self.common.note_stale_if(|| self.lane.disarm(what));
                }
                true
            }
            _ => false,
        }
    }

    /// The same across a network, where the peer's record says that it follows.
    ///
    /// The record of a peer that has ended may lie on TCP behind unread data, and without the lane
    /// nobody would know it there. A peer that was killed writes none, and without the lane nobody
    /// would know that its bytes there are missing.
    fn is_followed_far(&mut self, has_ended: bool) -> Followed {
        self.look_for_record();
        let is_on_tcp = self.origin() == Origin::Tcp { at_most: None };
        if is_on_tcp && self.state.stays_on_tcp() {
            Followed::Yes
        } else if self.state.is_broken() {
            Followed::Never
        } else if !has_ended {
            Followed::NotYet
        } else if is_on_tcp && !self.common.has_met() && self.shadow.peek(&mut [0]) == 0 {
            Followed::Yes
        } else {
            Followed::Never
        }
    }

    /// How far the peer has followed this end, which left for good. `has_ended` says that the
    /// kernel had told of the peer's end before this call: such a peer sends nothing more.
    pub fn is_followed(&mut self, side: Side, has_ended: bool) -> Followed {
        if !peer_rings(self.lane) {
            return self.is_followed_far(has_ended);
        }
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
            // Unread bytes lie on TCP before the peer's bytes on the lane.
            Origin::Tcp { at_most: Some(_) } => match self.state.is_all_on_tcp(self.lane) {
                Some(true) => Followed::Yes,
                None if !has_ended => Followed::NotYet,
                Some(false) | None => Followed::Never,
            },
            _ if has_ended => Followed::Yes,
            _ => Followed::NotYet,
        }
    }
}
