//! The sending direction of an end that has a lane: wakeups for the peer, and ways back to TCP.

use weft_fabric::{Lane, Standing, WaitFor};

use crate::common::{Common, Peer, peer_rings};
use crate::receiving::Receiving;
use crate::route::Leave;
use crate::shadow::Shadow;
use crate::stream::{Side, closed};
use crate::{ReceiveSide, SendSide};

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
        self.state.switch(self.lane, self.side)
    }

    /// The way in which the peer left the lane, if this end has not followed yet.
    #[inline]
    pub fn leave_to_follow(&self) -> Option<Leave> {
        self.state.leave_to_follow(self.lane)
    }

    /// Takes the direction back to TCP. False if it cannot go there.
    ///
    /// The peer may have requested a resend of bytes that it did not read on the lane. If the
    /// kernel does not take them, this resets the connection.
    pub fn leave(&mut self, how: Leave) -> bool {
        let Some(ring) = self.state.leave(self.lane, self.side, how) else { return false };
        if ring {
            self.ring();
        }
        let unread = self.state.return_to_tcp(self.lane);
        if !self.send_again(&unread) {
            self.abort();
        } else if how != Leave::ForNow && self.state.is_shut() {
            // The end of the direction was told on the lane. The peer's kernel does not know of it
            // yet.
            self.shadow.end();
        }
        true
    }

    /// Sends over TCP the bytes that the peer did not read on the lane. The kernel's buffers hold
    /// more than a lane does. False if the kernel did not take all of them.
    fn send_again(&mut self, unread: &[u8]) -> bool {
        let mut left = unread;
        while !left.is_empty() {
            self.state.begin_tcp();
            let sent = self.shadow.send(left);
            self.state.wrote_tcp(sent.unwrap_or(0));
            match sent {
                Some(bytes @ 1..) => left = &left[bytes..],
                Some(0) if self.shadow.wait_for_room() => {}
                _ => return false,
            }
        }
        true
    }

    /// Resets the connection for both ends, since bytes of the stream would be missing.
    fn abort(&mut self) {
        self.state.close(self.lane, closed::RESET);
        self.shadow.abort();
        self.common.set_peer(Peer::Reset);
    }

    /// Resets the connection if the lane is lost with something on it that the peer did not take.
    /// True if it did. A driver calls it when an armed word was rung, since a program that has sent
    /// all may never write again.
    pub fn reset_if_lost(&mut self) -> bool {
        let is_lost = self.lane.standing() == Standing::Lost
            && self.state.on_lane()
            && self.common.peer() != Peer::Reset
            && self.state.unread_by_peer(self.lane);
        if is_lost {
            self.abort();
        }
        is_lost
    }

    /// Ends the direction in a way of [`closed`], on the lane if possible. True if it was there.
    pub fn close(&mut self, how: u64) -> bool {
        let on_lane = self.switch();
        if self.state.close(self.lane, how) {
            self.ring();
        }
        on_lane
    }

    /// Ends the direction and leaves the other one alone. False if the caller must do the kernel's
    /// own half close.
    pub fn shut(&mut self) -> bool {
        let ring = self.state.shut(self.lane, self.side);
        if ring == Some(true) {
            self.ring();
        }
        ring.is_some()
    }

    /// True if the kernel said that the peer will make no more room. A peer that ended its
    /// direction over TCP may read on. It sends no wakeups, so this end goes to TCP when it finds
    /// no room.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        if self.lane.is_over() {
            return true;
        }
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
    }
}
