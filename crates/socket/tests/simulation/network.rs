//! The events of a network: links are cut and mended, nodes die, and arrivals wake threads.

use std::cell::Cell;

use weft_fabric::{NodeId, WaitFor};
use weft_lane::Told;

use crate::plan::Ending;
use crate::world::{Gone, World};

/// The state of the network of a run.
#[derive(Debug, Default)]
pub struct State {
    /// Whether an arrival rang the thread of each host that waits for data, and for room.
    rung: [[Cell<bool>; 2]; 2],
    cut: Cell<Cut>,
    /// The link of the torus that is cut.
    flapped: Cell<Option<(u32, u16)>>,
    /// When it is mended, or the next one is cut.
    flaps_at: Cell<u64>,
    /// When the survivor's kernel notices that the other node is dead.
    noticed_at: Cell<Option<u64>>,
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

impl World {
    /// True if an arrival rang the thread that waits for `what` since it armed.
    fn is_rung(&self, number: usize, what: WaitFor) -> bool {
        self.network.rung[number][index(what)].get()
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
        let is_new = is_over && !self.has_heard(number, what);
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
        self.network.rung[number][index(what)].set(false);
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
                Told::Rung(..) if self.plan.faults.forget_rings && self.chance(8) => {}
                Told::Rung(_, what) => self.network.rung[number][index(what)].set(true),
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next time at which the network does something by itself.
    pub fn next_of_network(&self) -> Option<u64> {
        let until = match self.network.cut.get() {
            Cut::Until(time) => Some(time),
            Cut::NotYet | Cut::Over => None,
        };
        let events = [self.sim.next_event(), until, self.network.noticed_at.get()];
        events.into_iter().flatten().min()
    }

    /// Cuts and mends the link as planned.
    pub fn happen_in_network(&self) {
        let Some(plan) = self.plan.network else { return };
        let now = self.now();
        if plan.has_routes && now >= self.network.flaps_at.get() {
            self.network.flaps_at.set(now + FLAPS_EVERY_NS);
            self.flap();
        }
        let nodes = [NodeId(0), NodeId(1)];
        match (self.network.cut.get(), plan.cut) {
            (Cut::NotYet, Some((at, duration))) if self.steps.get() >= at => {
                self.network.cut.set(Cut::Until(now + duration));
                self.sim.cut(nodes[0], nodes[1]);
                self.pipes.iter().for_each(|pipe| pipe.borrow_mut().cut(now));
            }
            (Cut::Until(time), _) if now >= time => {
                self.network.cut.set(Cut::Over);
                self.sim.heal(nodes[0], nodes[1]);
                for pipe in &self.pipes {
                    pipe.borrow_mut().mend(self.arrival());
                }
            }
            _ => {}
        }
        if let (Some(time), Some((_, dead, Ending::NodeDies))) =
            (self.network.noticed_at.get(), self.plan.ending)
            && now >= time
        {
            self.network.noticed_at.set(None);
            self.pipes[dead].borrow_mut().abort(now);
            self.pipes[1 - dead].borrow_mut().close();
        }
    }

    /// Mends the link of the torus that is cut, or cuts one: a way is always left.
    fn flap(&self) {
        let flapped = &self.network.flapped;
        if let Some((vertex, port)) = flapped.take() {
            assert!(self.sim.heal_link(vertex, port));
        } else {
            let turn = self.now() / FLAPS_EVERY_NS + self.plan.seed;
            let link = (u32::try_from(turn % 6).expect("it is small"), 0);
            assert!(self.sim.cut_link(link.0, link.1));
            flapped.set(Some(link));
        }
    }

    /// A node dies: its kernel says nothing more either.
    pub fn node_dies(&self, number: usize) {
        if !self.hosts[number].is_gone() {
            self.hosts[number].gone.set(Gone::Killed);
            self.end_process(number);
            self.network.noticed_at.set(Some(self.now() + KERNEL_NOTICES_NS));
            self.moved();
        }
    }
}

/// The time between a cut of a link of the torus and its end: longer than packets need to find
/// another way, so that none is lost for ever.
const FLAPS_EVERY_NS: u64 = 50_000;
/// After this time a cut ends all lanes over it.
pub const CUT_DOWN_AFTER_NS: u64 = 1_000_000;
/// After this time a kernel gives up a peer that does not answer.
const KERNEL_NOTICES_NS: u64 = 20_000_000;
