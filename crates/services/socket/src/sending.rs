//! The sending direction of an end that has a lane: wakeups for the peer, and ways back to TCP.

use std::sync::atomic::Ordering;

use weft_fabric::{Lane, WaitFor};

use crate::common::{Common, Peer};
use crate::medium::peer_rings;
use crate::receiving::Receiving;
use crate::route::Leave;
use crate::send::Again;
use crate::shadow::Shadow;
use crate::stream::{Side, closed};
use crate::{ReceiveSide, SendSide, stand_in};

/// How often an end waits at its close for a peer that has not followed to the lane yet.
const FOLLOWS_WITHIN: usize = 10;

/// The sending direction with everything that its rules use. The caller holds its lock.
#[derive(Debug)]
pub struct Sending<'a, L, S> {
    /// State of the direction.
    pub state: &'a mut SendSide,
    /// The lane.
    pub lane: &'a L,
    /// The kernel's connection.
    pub shadow: S,
    /// State that both directions use.
    pub common: &'a Common,
    /// Whether this end accepted or connected.
    pub side: Side,
}

/// Makes a lane ready for an end of the given side, before any thread of it can use the lane. The
/// caller holds the lock of the receiving direction. Threads may sleep on TCP without knowing of
/// the lane, so the lane is armed for them, until [`Receiving::disarm_if_no_sleeper`].
pub fn prepare<L: Lane>(lane: &L, side: Side) {
    match side {
        Side::Accepted if peer_rings(lane) => lane.arm(WaitFor::Data),
        Side::Accepted | Side::Connected => SendSide::attach(lane),
    }
}

impl<L: Lane, S: Shadow> Sending<'_, L, S> {
    /// Sends the peer a wakeup.
    pub fn ring(&mut self) {
        self.state.begin_tcp();
        let wakeups = u64::from(self.shadow.ring());
        self.state.wrote_wakeups(wakeups);
    }

    /// Rings a peer that waits for the room that a read made.
    pub fn ring_for_room(&mut self) {
        if self.state.rings_for_room(self.lane, self.side) {
            self.ring();
        }
    }

    /// Moves to the lane if the peer has the lane and will follow. True if the direction is there.
    #[inline]
    pub fn switch(&mut self) -> bool {
        self.common.meet(self.lane);
        self.state.switch(self.lane, self.side)
    }

    /// The same for data ([`SendSide::switch_for_data`]).
    #[inline]
    pub fn switch_for_data(&mut self) -> bool {
        self.common.meet(self.lane);
        self.state.switch_for_data(self.lane, self.side)
    }

    /// The way in which the peer left the lane, if this end has not followed yet.
    #[inline]
    pub fn leave_to_follow(&self) -> Option<Leave> {
        self.state.leave_to_follow(self.lane)
    }

    /// Takes the direction back to TCP. False if it cannot go there.
    ///
    /// The bytes that the peer did not read on the lane go there, too, as many as the kernel takes:
    /// whoever gets the connection from the peer may find them there. The peer itself reads them on
    /// the lane, unless it requested them. If the kernel does not take requested bytes, this resets
    /// the connection.
    pub fn leave(&mut self, how: Leave) -> bool {
        if !peer_rings(self.lane) {
            return self.leave_far(Some(how), 0);
        }
        let Some(ring) = self.state.leave(self.lane, self.side, how) else { return false };
        if ring {
            self.ring();
        }
        let is_alone = self.shadow.wait_until(&|| !stand_in::is_at_work(self.lane));
        let again = self.state.to_send_again(self.lane);
        let sent = self.send_again(&again);
        self.state.return_to_tcp(self.lane, &again, sent);
        if !is_alone || again.is_requested && sent < again.bytes.len() {
            self.abort();
        } else if how != Leave::ForNow && self.state.is_shut() {
            // The end of the direction was told on the lane. The peer's kernel does not know of it
            // yet.
            self.shadow.end();
        }
        true
    }

    /// The same across a network. `None` as [`SendSide::begin_return`].
    #[cold]
    fn leave_far(&mut self, how: Option<Leave>, taken: u64) -> bool {
        let has_left = self.state.begin_return(self.lane, self.side, how, taken);
        if has_left {
            self.push();
        }
        has_left
    }

    /// Goes on with what a direction has to send again after it went back to TCP. True if nothing
    /// of that is left, so that the program's bytes may follow. To be called again until then.
    #[inline]
    pub fn push(&mut self) -> bool {
        // On one host nothing of that kind is sent, and a write does not look for it.
        if peer_rings(self.lane) {
            return true;
        }
        self.state.tell_late_peer(self.lane, self.side);
        !self.state.is_returning() || self.push_more()
    }

    #[cold]
    fn push_more(&mut self) -> bool {
        while self.state.is_returning() {
            if self.state.must_be_alone() && !self.shadow.is_acknowledged() {
                return false;
            }
            let Some(bytes) = self.state.next_of_return(self.lane) else {
                self.abort();
                return true;
            };
            self.state.begin_tcp();
            let sent = self.shadow.send(&bytes);
            self.state.wrote_tcp(sent.unwrap_or(0));
            match sent {
                // The peer is gone, and the program's next call is told so by the kernel.
                None => self.state.sent_of_return(self.lane, bytes.len()),
                Some(0) => return false,
                Some(count) => self.state.sent_of_return(self.lane, count),
            }
        }
        if self.state.is_shut() {
            self.shadow.end();
        }
        true
    }

    /// Pushes until nothing is left. False if the kernel takes no more for longer than a live peer
    /// needs.
    fn push_all(&mut self) -> bool {
        loop {
            if self.push() {
                return true;
            }
            if self.state.must_be_alone() {
                // In an outage this would take its whole time. A peer that sees a part of the
                // record holds that back, unless it is very short.
                if !self.shadow.wait_until_acknowledged() {
                    self.state.need_not_be_alone();
                }
            } else if !self.shadow.wait_for_room() {
                return false;
            }
        }
    }

    /// Goes back to TCP if the lane is over. True if the direction is there.
    #[inline]
    pub fn leave_if_over(&mut self) -> bool {
        let is_over = self.lane.is_over();
        if is_over && self.state.on_lane() {
            self.leave(Leave::ForGood);
        }
        is_over && !self.state.on_lane()
    }

    /// Sends over TCP the bytes that the peer did not read on the lane. The kernel's buffers hold
    /// more than a lane does. Returns how many the kernel took.
    fn send_again(&mut self, again: &Again) -> usize {
        let mut gone = 0;
        while gone < again.bytes.len() {
            self.state.begin_tcp();
            let sent = self.shadow.send(&again.bytes[gone..]);
            self.state.wrote_copies(sent.unwrap_or(0));
            match sent {
                Some(bytes @ 1..) => gone += bytes,
                Some(0) if again.is_requested && self.shadow.wait_for_room() => {}
                _ => break,
            }
        }
        gone
    }

    /// Resets the connection for both ends, since bytes of the stream would be missing.
    fn abort(&mut self) {
        self.state.close(self.lane, closed::RESET);
        self.shadow.abort();
        self.common.set_peer(Peer::Reset);
    }

    /// Sends over TCP what the peer has not taken from a lane that is over. A driver calls it when
    /// an armed word was rung, since a program that has sent all may never write again. Where
    /// nothing is left to send, TCP is left in peace, as without a lane.
    pub fn rescue(&mut self) {
        self.state.was_taken(self.common.taken_by_peer.load(Ordering::Relaxed));
        if self.lane.is_over() && self.state.on_lane() && self.state.unread_by_peer(self.lane) {
            self.leave(Leave::ForGood);
        }
        self.push();
    }

    /// Ends the direction in a way of [`closed`], on the lane if possible. True if it was there.
    ///
    /// `taken` is what [`crate::ReceiveSide::taken`] told.
    pub fn close(&mut self, how: u64, taken: u64) -> bool {
        if !peer_rings(self.lane) && how != closed::RESET {
            let on_lane = self.state.on_lane();
            if !self.return_at_end(taken) {
                self.abort();
            }
            self.state.close_on_tcp();
            return on_lane;
        }
        let on_lane = self.switch();
        if self.state.close(self.lane, how) {
            self.ring();
        }
        on_lane
    }

    /// Ends the direction and leaves the other one alone. False if the caller must do the kernel's
    /// own half close.
    pub fn shut(&mut self) -> bool {
        if !peer_rings(self.lane) {
            self.common.meet_no_more();
            // A peer that has the lane is told that this direction does not come there any more.
            if !self.leave_far(None, 0) {
                self.abort();
            }
            self.state.close_on_tcp();
            // Else the end follows the bytes that have to go before it.
            return self.state.is_returning();
        }
        let ring = self.state.shut(self.lane, self.side);
        if ring == Some(true) {
            self.ring();
        }
        ring.is_some()
    }

    /// Goes back to TCP for good, as a process does that ends. Its kernel tells the end behind all
    /// bytes, even if the process is gone by then. False if the direction cannot go back.
    ///
    /// The peer is not asked to follow: a record of its own would come to a socket that is closed,
    /// and be answered with a reset. `taken` as in [`Sending::close`].
    pub fn return_at_end(&mut self, taken: u64) -> bool {
        if peer_rings(self.lane) {
            return true;
        }
        self.common.meet_no_more();
        // A peer that has not followed to the lane looks for the record among the data before it.
        // While these are on their way, a healthy lane may have it follow first.
        for _ in 0..FOLLOWS_WITHIN {
            let is_sure = self.state.is_followed(self.lane) || self.lane.is_over();
            if is_sure || self.shadow.wait_until_acknowledged() {
                break;
            }
        }
        self.leave_far(None, taken) && self.push_all()
    }

    /// True if the kernel said that the peer will make no more room. A peer that ended its
    /// direction over TCP may read on. It sends no wakeups, so this end goes to TCP when it finds
    /// no room.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        if !ReceiveSide::end_is_visible(self.lane) {
            return false;
        }
        match self.common.peer() {
            Peer::Alive => false,
            Peer::Ended => !ReceiveSide::ended_on_tcp(self.lane),
            Peer::Reset => true,
        }
    }

    /// True if a peer that is gone without a goodbye left something unread. TCP gives a reset then.
    pub fn peer_died_with_bytes_unread(&mut self) -> bool {
        let was_reset = self.common.peer() == Peer::Reset;
        was_reset && !self.state.only_wakeups_unread(self.lane)
            || self.state.unread_by_peer(self.lane)
    }

    /// Leaves the lane to give it back. False if it cannot. The caller asked
    /// [`Receiving::may_give_back`] before.
    pub fn begin_giving_back(&mut self) -> bool {
        !self.state.is_shut()
            && !self.state.unread_by_peer(self.lane)
            && self.leave(Leave::GivingBack)
    }

    /// True if the end can forget its lane, since both ends have both directions on TCP.
    pub fn is_given_back(&self, receiving: &mut Receiving<'_, L, S>) -> bool {
        if receiving.common.peer() != Peer::Alive {
            return false;
        }
        receiving.origin();
        self.state.has_given_back() && receiving.state.is_given_back(receiving.lane)
    }

    /// Forgets the lane, which both ends have given back. The caller unmaps it.
    pub fn forget_lane(&mut self, receiving: &mut Receiving<'_, L, S>) {
        self.state.forget_lane();
        receiving.state.forget_lane();
        self.common.forget_wakeups();
        self.common.forget_peer_of_lane();
    }
}
