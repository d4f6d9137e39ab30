//! How an end comes to a lane, leaves it, and gives it back.

use weft_fabric::{Lane, WaitFor};
use weft_socket::{Leave, Origin, ReceiveSide, SendSide, Side};

use crate::world::{Peer, World};

/// Lanes that a connection has at most, one after another.
pub const LANES: usize = 4;

impl World {
    /// Called before input and output: the lane comes into place when the plan says so.
    pub fn decide(&self, number: usize) {
        let host = &self.hosts[number];
        let late = self.plan.attach_at[number].is_none_or(|at| self.steps.get() < at);
        self.give_back(number);
        let other = &self.hosts[0];
        let is_there = other.has_lane.get() && other.lanes_before.get() == host.lanes_before.get();
        let first = number == 1 && !is_there;
        let done = host.has_lane.get() || host.declined.get() || host.deciding.get();
        if done || late || first || host.lanes_before.get() > 0 && !self.chance(4) {
            return;
        }
        // Under the lock that whoever arms takes, so that nobody else's word is disarmed.
        let Ok(_locked) = host.receive.try_borrow_mut() else { return };
        host.deciding.set(true);
        let lane = self.lane(number);
        // Armed for threads that sleep without knowing of the lane; see below.
        lane.arm(WaitFor::Data);
        if host.side == Side::Connected {
            SendSide::attach(&lane);
        }
        if self.plan.faults.attach_without_arming {
            lane.disarm(WaitFor::Data);
        }
        host.has_lane.set(true);
        host.deciding.set(false);
        // Nobody sleeps: a wakeup that came meanwhile must be stale, or it wakes for ever.
        if host.sleepers[0].get() == 0 {
            self.stop_waiting(number, WaitFor::Data);
        }
    }

    /// Now and then a host that has nothing on its way leaves the lane to give it back.
    pub fn lend(&self, number: usize) {
        let host = &self.hosts[number];
        let due = self.plan.gives_back_every[number].is_some_and(|every| self.chance(every));
        if !due || !host.has_lane.get() || host.lanes_before.get() + 1 == LANES {
            return;
        }
        let Ok(mut receive) = host.receive.try_borrow_mut() else { return };
        let lane = self.lane(number);
        let is_quiet = match self.origin(number, &mut receive) {
            Origin::Lane => !receive.has_data(&lane),
            Origin::Tcp { at_most } => at_most.is_none(),
            Origin::Wakeups(_) | Origin::Back => false,
        };
        let stays =
            ReceiveSide::peer_closed(&lane).is_some() || !SendSide::peer_attached(&lane, host.side);
        drop(receive);
        if is_quiet
            && !stays
            && host.peer.get() == Peer::Alive
            && let Ok(mut send) = host.send.try_borrow_mut()
            && host.has_lane.get()
            && !send.is_shut()
            && !send.unread_by_peer(&self.lane(number))
        {
            self.leave(number, &mut send, Leave::GivingBack);
        }
    }

    /// Forgets a lane that is given back, when all of both directions is on TCP.
    fn give_back(&self, number: usize) {
        let host = &self.hosts[number];
        if !host.giving_back.get() || host.peer.get() != Peer::Alive {
            return;
        }
        let Ok(mut receive) = host.receive.try_borrow_mut() else { return };
        let Ok(mut send) = host.send.try_borrow_mut() else { return };
        let lane = self.lane(number);
        self.origin(number, &mut receive);
        let early = self.plan.faults.forget_too_early && !receive.on_lane();
        let is_done = send.has_given_back() && (early || receive.is_given_back(&lane));
        if !is_done || host.is_gone() {
            return;
        }
        send.begin_again();
        receive.begin_again();
        host.stale.set(0);
        host.drained.set(0);
        host.giving_back.set(false);
        host.lanes_before.set(host.lanes_before.get() + 1);
        host.has_lane.set(false);
    }

    /// Takes the sending direction back to TCP, if that can be.
    pub fn leave(&self, number: usize, send: &mut SendSide, how: Leave) {
        let (host, lane) = (&self.hosts[number], self.lane(number));
        let Some(ring) = send.leave(&lane, host.side, how) else { return };
        if ring && !self.plan.faults.leave_silently {
            self.wakeup(number, send);
        }
        if !host.is_gone() {
            let unread = send.go_back(&lane);
            if !self.plan.faults.send_nothing_again {
                // A kernel holds more than a lane does.
                self.pipes[number].borrow_mut().send_all(&unread, self.arrival());
            }
            send.begin_tcp();
            send.wrote_tcp(unread.len());
            if how == Leave::GivingBack {
                host.giving_back.set(true);
            }
            if how != Leave::ForNow && send.is_shut() {
                self.pipes[number].borrow_mut().finish(self.arrival());
            }
        }
    }
}
