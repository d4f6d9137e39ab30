//! The events of a network: links are cut and mended, nodes die, and arrivals wake threads.

use std::cell::Cell;

use weft_fabric::{Endpoint, NodeId, WaitFor};
use weft_lane::Told;
use weft_socket::Peer;

use super::connection::{Connection, Gone};

/// The state of the network of a run.
#[derive(Debug, Default)]
pub struct State {
    /// Whether an arrival rang the thread of each host that waits for data, and for room.
    rung: [[Cell<bool>; 2]; 2],
    cut: Cell<Cut>,
    /// When the survivor's kernel notices that the other node is dead, and which is.
    noticed: Cell<Option<(u64, usize)>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Cut {
    #[default]
    NotYet,
    Until(u64),
    Over,
}

const fn index(what: WaitFor) -> usize {
    match what {
        WaitFor::Data => 0,
        WaitFor::Room => 1,
    }
}

impl<E: Endpoint> Connection<E> {
    /// True if an arrival rang the thread that waits for `what` since it armed.
    fn is_rung(&self, number: usize, what: WaitFor) -> bool {
        self.events.rung[number][index(what)].get()
    }

    /// True if a thread that sleeps until there is `what` goes on. Across a network an arrival
    /// wakes it, and the kernel as long as it has something new to say: `bytes` tells whether bytes
    /// on TCP are something new. On one host the kernel's bytes and its end wake.
    pub fn is_woken(&self, number: usize, what: WaitFor, bytes: bool) -> bool {
        let incoming = self.pipes[1 - number].borrow();
        let (has_bytes, is_over) = (incoming.has_bytes(self.now()), incoming.is_over(self.now()));
        if self.plan.network.is_none() || !self.hosts[number].has_lane() {
            return has_bytes || is_over;
        }
        // An end behind bytes is told again when they are taken.
        let is_told = self.hosts[number].common.peer() != Peer::Alive || has_bytes;
        let is_new = is_over && !(self.has_heard(number, what) && is_told);
        self.is_rung(number, what) || is_new || bytes && has_bytes
    }

    /// Notes whether the thread that waits for `what` sees that the kernel has told of the end.
    pub fn note_heard(&self, number: usize, what: WaitFor) {
        let is_over = self.pipes[1 - number].borrow().is_over(self.now());
        self.hosts[number].has_heard[index(what)].set(is_over);
    }

    /// True if the thread that waits for `what` knows what the kernel told.
    pub fn has_heard(&self, number: usize, what: WaitFor) -> bool {
        self.hosts[number].has_heard[index(what)].get()
    }

    /// A thread arms: only later arrivals count.
    pub fn forget_ring(&self, number: usize, what: WaitFor) {
        self.events.rung[number][index(what)].set(false);
    }

    /// The thread of a host that drives its endpoint, and wakes those that sleep.
    pub fn drive(&self, number: usize) {
        let Some(carrier) = self.carrier(number) else { return };
        if self.hosts[number].gone.get() == Gone::Killed {
            return;
        }
        carrier.poll();
        self.rescue(number);
        while let Some(told) = carrier.told() {
            match told {
                Told::Rung(..) if self.plan.mistakes.forget_rings && self.chance(8) => {}
                Told::Rung(_, what) => self.events.rung[number][index(what)].set(true),
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next time at which the network does something by itself.
    pub fn next_of_network(&self) -> Option<u64> {
        let until = match self.events.cut.get() {
            Cut::Until(time) => Some(time),
            Cut::NotYet | Cut::Over => None,
        };
        let noticed = self.events.noticed.get().map(|(time, _)| time);
        let events = [self.sim.next_event(), until, noticed];
        events.into_iter().flatten().min()
    }

    /// Cuts and mends the link as planned.
    pub fn happen_in_network(&self) {
        let Some(plan) = self.plan.network else { return };
        let now = self.now();
        let nodes = [NodeId(0), NodeId(1)];
        match (self.events.cut.get(), plan.cut) {
            (Cut::NotYet, Some((at, duration))) if self.steps.get() >= at => {
                self.events.cut.set(Cut::Until(now + duration));
                self.sim.cut(nodes[0], nodes[1]);
                self.pipes.iter().for_each(|pipe| pipe.borrow_mut().cut(now));
            }
            (Cut::Until(time), _) if now >= time => {
                self.events.cut.set(Cut::Over);
                self.sim.heal(nodes[0], nodes[1]);
                for pipe in &self.pipes {
                    pipe.borrow_mut().mend(self.arrival());
                }
            }
            _ => {}
        }
        if let Some((time, dead)) = self.events.noticed.get()
            && now >= time
        {
            self.events.noticed.set(None);
            self.pipes[dead].borrow_mut().abort(now);
            self.pipes[1 - dead].borrow_mut().close();
        }
    }

    /// A node dies: its kernel says nothing more either.
    pub fn node_dies(&self, number: usize) {
        if !self.hosts[number].is_gone() {
            self.hosts[number].gone.set(Gone::Killed);
            self.end_process(number);
            self.events.noticed.set(Some((self.now() + KERNEL_NOTICES_NS, number)));
            self.moved();
        }
    }
}

/// After this time a cut ends all lanes over it.
pub const CUT_DOWN_AFTER_NS: u64 = 1_000_000;
/// After this time a kernel gives up a peer that does not answer.
const KERNEL_NOTICES_NS: u64 = 20_000_000;
