//! The sending direction of an end that has a lane: wakeups that it rings, and ways back to TCP.

use weft_fabric::{Lane, WaitFor};

use crate::common::{Common, Peer};
use crate::receiving::Receiving;
use crate::route::Leave;
use crate::shadow::Shadow;
use crate::stream::{Side, closed};
use crate::{ReceiveSide, SendSide};

/// The sending direction with all that its rules use. The caller holds its lock.
#[derive(Debug)]
pub struct Sending<'a, L, S> {
    /// The direction's state.
    pub state: &'a mut SendSide,
    /// The lane.
    pub lane: &'a L,
    /// The kernel's connection.
    pub shadow: S,
    /// What both directions use.
    pub common: &'a Common,
    /// Which end it is.
    pub side: Side,
}

/// Makes a lane ready for an end of the given side, before any thread of it can use the lane. The
/// receiving direction is locked. Threads may sleep on TCP without knowing of the lane: it is armed
/// for them, until [`Receiving::disarm_for_nobody`].
pub fn prepare<L: Lane>(lane: &L, side: Side) {
    match side {
        Side::Accepted => lane.arm(WaitFor::Data),
        Side::Connected => SendSide::attach(lane),
    }
}

impl<L: Lane, S: Shadow> Sending<'_, L, S> {
    /// Rings the peer.
    pub fn ring(&mut self) {
        self.state.begin_tcp();
        let wakeups = u64::from(self.shadow.ring());
        self.state.rang(wakeups);
    }

    /// Rings a peer that waits for the room that a read made.
    pub fn ring_for_room(&mut self) {
        if self.state.rings_for_room(self.lane, self.side) {
            self.ring();
        }
    }

    /// Moves to the lane if the peer has it and follows; true when the direction is there.
    #[inline]
    pub fn switch(&mut self) -> bool {
        self.state.switch(self.lane, self.side)
    }

    /// How the peer left the lane, when this end did not follow yet.
    #[inline]
    pub fn called_back(&self) -> Option<Leave> {
        self.state.called_back(self.lane)
    }

    /// Takes the direction back to TCP; false when that cannot be.
    ///
    /// The peer may want sent again what it did not read on the lane. When the kernel does not take
    /// that, the connection is reset.
    pub fn leave(&mut self, how: Leave) -> bool {
        let Some(ring) = self.state.leave(self.lane, self.side, how) else { return false };
        if ring {
            self.ring();
        }
        let unread = self.state.go_back(self.lane);
        if !self.send_again(&unread) {
            self.abort();
        } else if how != Leave::ForNow && self.state.is_shut() {
            // The peer's kernel knew nothing of an end that was told on the lane.
            self.shadow.end();
        }
        true
    }

    /// Sends over TCP what the peer did not read on the lane. Its kernel holds more than a lane
    /// does.
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

    /// Ends the connection for both ends: what follows would not be what belongs there.
    fn abort(&mut self) {
        self.state.close(self.lane, closed::RESET);
        self.shadow.abort();
        self.common.hear(Peer::Reset);
    }

    /// Ends the direction in a way of [`closed`], on the lane if that is possible; returns whether
    /// it was there.
    pub fn close(&mut self, how: u64) -> bool {
        let on_lane = self.switch();
        if self.state.close(self.lane, how) {
            self.ring();
        }
        on_lane
    }

    /// Ends the direction and leaves the other alone. False asks for the kernel's own half close.
    pub fn shut(&mut self) -> bool {
        let ring = self.state.shut(self.lane, self.side);
        if ring == Some(true) {
            self.ring();
        }
        ring.is_some()
    }

    /// The peer makes no room any more, as far as the kernel said. A peer that ended its direction
    /// over TCP may read on, and since it has no wakeups this end goes to TCP where it finds no
    /// room.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self.common.peer() {
            Peer::Alive => false,
            Peer::Ended => !ReceiveSide::ended_on_tcp(self.lane),
            Peer::Reset => true,
        }
    }

    /// The peer, which is gone without a word, left something unread: on TCP that is a reset.
    pub fn lost_something(&mut self) -> bool {
        let was_reset = self.common.peer() == Peer::Reset;
        was_reset && !self.state.rings_alone(self.lane) || self.state.unread_by_peer(self.lane)
    }

    /// Leaves the lane to give it back; false when that cannot be. [`Receiving::may_give_back`] was
    /// asked before.
    pub fn begin_giving_back(&mut self) -> bool {
        !self.state.is_shut()
            && !self.state.unread_by_peer(self.lane)
            && self.leave(Leave::GivingBack)
    }

    /// True when the end can forget its lane: all of both directions is on TCP, for both ends.
    pub fn is_given_back(&self, receiving: &mut Receiving<'_, L, S>) -> bool {
        if receiving.common.peer() != Peer::Alive {
            return false;
        }
        receiving.origin();
        self.state.has_given_back() && receiving.state.is_given_back(receiving.lane)
    }

    /// Forgets the lane, which both ends have given back. The caller unmaps it.
    pub fn begin_again(&mut self, receiving: &mut Receiving<'_, L, S>) {
        self.state.begin_again();
        receiving.state.begin_again();
        self.common.forget_wakeups();
    }
}
