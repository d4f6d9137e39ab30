//! The end of a direction.

use weft_fabric::{Carry, Lane, WaitFor};

use super::SendSide;
use crate::route::word;
use crate::state::SendState;
use crate::stream::{Side, closed};

impl SendSide {
    /// Ends this direction in a way of [`closed`]. A broken direction ends with a reset. True if
    /// the caller must ring. A direction on TCP needs no wakeup: the kernel's own shutdown or close
    /// wakes the peer.
    pub fn close<L: Lane>(&mut self, lane: &L, how: u64) -> bool {
        assert!(how <= closed::RESET, "{how} is not a way to close");
        let how = match self.state.get() {
            SendState::Shut if how == closed::RESET => closed::RESET_AFTER_END,
            SendState::Open | SendState::Shut => {
                self.state.set(SendState::Shut);
                how
            }
            SendState::Broken => closed::RESET,
        };
        self.post_end(lane, how);
        if !self.on_lane() {
            return false;
        }
        let data = lane.must_ring(WaitFor::Data);
        // A half close makes no room, so a writer that waits for room need not know of it. The peer
        // would count a second claimed word as a second wakeup.
        data | (how != closed::WRITING && lane.must_ring(WaitFor::Room))
    }

    /// Ends this direction across a network, where the kernel tells the end, behind all bytes. The
    /// caller first takes the direction back to TCP.
    pub fn close_on_tcp(&mut self) {
        if self.state.get() == SendState::Open {
            self.state.set(SendState::Shut);
        }
    }

    fn post_end<L: Carry>(&self, lane: &L, how: u64) {
        lane.post(word::CLOSED, self.cursor.messages.wrapping_add(1) << 2 | how);
    }

    /// Ends this direction and leaves the other one alone. `Some` if the direction ended on the
    /// lane, with true if the caller must ring. `None` if the caller must do the kernel's own half
    /// close.
    ///
    /// A peer that attaches later, or right now, learns that no wakeups will come, and stays on
    /// TCP.
    pub fn shut<L: Lane>(&mut self, lane: &L, side: Side) -> Option<bool> {
        if self.switch(lane, side) {
            return Some(self.close(lane, closed::WRITING));
        }
        self.post_end(lane, closed::WRITING);
        lane.settle();
        // The peer may have attached meanwhile. It may be on the lane already, and needs wakeups.
        let rings = self.switch(lane, side).then(|| self.close(lane, closed::WRITING));
        self.state.set(SendState::Shut);
        rings
    }

    /// Ends this direction on TCP, where the caller does the kernel's half close. For use without a
    /// lane: [`SendSide::tell_former_end`] tells one that follows.
    pub fn shut_without_lane(&mut self) {
        if self.on_lane() {
            self.break_off();
        }
        self.close_on_tcp();
    }

    /// Tells a new lane that this direction has ended on TCP, if that is so. Call it before the
    /// peer knows that this end has the lane: the peer then knows that no wakeups will come.
    pub fn tell_former_end<L: Carry>(&self, lane: &L) {
        if self.state.get() == SendState::Shut {
            self.post_end(lane, closed::WRITING);
        }
    }

    /// True if nothing more is sent: after [`SendSide::close`], or since the direction broke.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.state.get() != SendState::Open
    }
}
