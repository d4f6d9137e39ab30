//! The ways in which an end gets a lane, leaves it, and gives it back.

use weft_fabric::{Carry, Endpoint, WaitFor, Wake};
use weft_socket::{Followed, Leave, Phase, SendSide, prepare};

use super::connection::Connection;

/// Number of lanes that a connection has at most, one after another.
pub const LANES: usize = 4;

impl<E: Endpoint> Connection<E> {
    /// Threads call it before input and output. It puts the lane in place when the plan says so.
    pub fn decide(&self, number: usize) {
        let host = &self.hosts[number];
        let late = self.plan.attach_at[number].is_none_or(|at| self.steps.get() < at);
        self.give_back(number);
        let other = &self.hosts[0];
        let is_there = other.has_lane() && other.lanes_before.get() == host.lanes_before.get();
        let first = number == 1 && !is_there;
        // Across a network no end has a lane before the other has accepted it.
        let other = &self.hosts[1 - number];
        let not_accepted =
            self.plan.network.is_some() && other.lanes_before.get() < host.lanes_before.get();
        let first = first || not_accepted;
        if late || first || host.lanes_before.get() > 0 && !self.chance(4) {
            return;
        }
        // A thread arms under this lock, so no word of another thread is disarmed here.
        let Ok(mut receive) = host.receive.try_borrow_mut() else { return };
        if !host.phase.claim(Phase::Fresh, 0) {
            return;
        }
        let lane = self.lane(number);
        if lane.is_over() {
            // The driver asks for no lane to a peer that is gone.
            host.phase.decide(Phase::Fresh);
            return;
        }
        prepare(&lane, host.side);
        if self.plan.mistakes.attach_without_arming {
            lane.disarm(WaitFor::Data);
        }
        host.phase.decide(Phase::Laned);
        self.receive(number, &mut receive, |receiving| receiving.disarm_if_no_sleeper(false));
    }

    /// Makes a host with nothing on its way leave the lane now and then, to give it back.
    pub fn maybe_give_back(&self, number: usize) {
        let host = &self.hosts[number];
        let due = self.plan.gives_back_every[number].is_some_and(|every| self.chance(every));
        if !due || !host.has_lane() || host.lanes_before.get() + 1 == LANES {
            return;
        }
        let Ok(mut receive) = host.receive.try_borrow_mut() else { return };
        let may =
            self.receive(number, &mut receive, |receiving| receiving.may_give_back(host.side));
        drop(receive);
        if may
            && let Ok(mut send) = host.send.try_borrow_mut()
            && host.has_lane()
        {
            let lane = self.lane(number);
            if self.sending(number, &mut send, &lane).begin_giving_back() {
                host.giving_back.set(true);
            }
        }
    }

    /// Forgets a lane that was given back, once both directions are on TCP.
    fn give_back(&self, number: usize) {
        let host = &self.hosts[number];
        if !host.giving_back.get() {
            return;
        }
        let Ok(mut receive) = host.receive.try_borrow_mut() else { return };
        let Ok(mut send) = host.send.try_borrow_mut() else { return };
        let lane = self.lane(number);
        let mut receiving = self.receiving(number, &mut receive, &lane);
        let mut sending = self.sending(number, &mut send, &lane);
        let is_early = self.plan.mistakes.forget_too_early
            && sending.state.has_given_back()
            && !receiving.state.on_lane();
        let is_done = sending.is_given_back(&mut receiving) || is_early;
        if !is_done || host.is_gone() || !host.phase.claim(Phase::Laned, 0) {
            return;
        }
        sending.forget_lane(&mut receiving);
        self.close_lane(number, host.lanes_before.get());
        host.giving_back.set(false);
        host.lanes_before.set(host.lanes_before.get() + 1);
        host.phase.decide(Phase::Fresh);
    }

    /// A host that left for good waits for its peer. True when the wait is over, and the host goes
    /// on without the lane if it can. `has_ended` tells whether the kernel had told of the peer's
    /// end at the last look, and becomes what it tells now.
    pub fn leave_behind(&self, number: usize, has_ended: &mut bool) -> bool {
        let host = &self.hosts[number];
        let Ok(mut receive) = host.receive.try_borrow_mut() else { return false };
        let Ok(mut send) = host.send.try_borrow_mut() else { return false };
        if !host.has_lane() || !send.is_back_for_good() {
            return true;
        }
        let lane = self.lane(number);
        let mut receiving = self.receiving(number, &mut receive, &lane);
        let followed = receiving.is_followed(host.side, *has_ended);
        let is_through = self.sending(number, &mut send, &lane).push();
        let may_leave = match followed {
            Followed::Yes => is_through,
            Followed::Never if !self.plan.mistakes.leave_lane_at_end => return true,
            Followed::Never => *has_ended && !receiving.state.is_broken(),
            Followed::NotYet => false,
        };
        *has_ended = self.pipes[1 - number].borrow().is_over(self.now());
        if host.is_gone() || may_leave {
            host.phase.moves(Phase::Laned, Phase::Declined);
            return true;
        }
        // The peer has its time.
        self.chance(200)
    }

    /// Sends over TCP what the peer has not taken from a lane that is lost, as the thread does that
    /// drives an endpoint.
    pub fn rescue(&self, number: usize) {
        let host = &self.hosts[number];
        let Ok(mut send) = host.send.try_borrow_mut() else { return };
        if host.has_lane() && !host.is_gone() && !self.plan.mistakes.rescue_nobody {
            let lane = self.lane(number);
            self.sending(number, &mut send, &lane).rescue();
        }
    }

    /// True if a thread should try to follow the peer to TCP, and that would work now. A thread
    /// that falls asleep looks here, since the end of an earlier try may have come before it armed.
    pub fn may_follow(&self, number: usize) -> bool {
        let host = &self.hosts[number];
        let Ok(send) = host.send.try_borrow() else { return false };
        let lane = self.lane(number);
        let is_due = self.plan.network.is_some()
            && !send.is_shut()
            && self.plan.leaves_at[number].is_some_and(|at| self.steps.get() >= at);
        let is_wanted = is_due || send.leave_to_follow(&lane).is_some();
        host.has_lane() && send.on_lane() && is_wanted && lane.has_landed()
    }

    /// Takes the sending direction back to TCP, if possible.
    pub fn leave(&self, number: usize, send: &mut SendSide, how: Leave) {
        let lane = self.lane(number);
        let mut sending = self.sending(number, send, &lane);
        sending.shadow.silent = self.plan.mistakes.leave_silently;
        if sending.leave(how) && how == Leave::GivingBack {
            self.hosts[number].giving_back.set(true);
        }
    }
}
