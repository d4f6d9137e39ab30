//! Waiting until something in memory changes: look, then yield the processor, then sleep.
//!
//! Stores of other PEs ring no bell, so a sleeper looks again by itself. With more PEs than
//! processors the one that is waited for may have none, so the looking is short then.
//!
//! In a job across hosts a waiter also handles the messages of others, and sleeps on its endpoint.

use std::time::Duration;

use weft_sync::{AdaptiveWait, Step, contention};

use crate::far::{self, Remote};
use crate::fault::{Fault, raise};

/// Looks before the wait adapts, about 2 us: a line of the cache comes from another processor in
/// 50 ns. There is a pause between two of them. Without it the loads that have begun when the line
/// changes are done again, and the line arrives half as late again.
const LOOKS: u32 = 125;
/// Looks while others want the processor. The answer of a PE that runs comes within these, and a
/// sleep costs a hundred times as much; a PE that does not run is waited for little longer.
const LOOKS_CROWDED: u32 = 50;
/// Calls that look and return, until another process gets the processor.
const CALLS_IN_VAIN: u32 = 1500;
/// Looks between two looks at the endpoint, which take about as long.
const LOOKS_EACH: u32 = 16;
/// Polls of the endpoint without a pause, each of which looks several times: about the time of some
/// messages over a network.
const POLLS: u32 = 50;
const POLLS_CROWDED: u32 = 15;
const SPINS: u32 = 16;
const YIELDS: u32 = 100;
const NAP_MIN: Duration = Duration::from_micros(20);
const NAP_MAX: Duration = Duration::from_micros(250);

/// Waits until `ready`. Before each nap `gone` is asked for a PE that has ended without doing what
/// is waited for; the job ends then, unless it is ready after all.
#[inline(always)]
pub fn until(call: &str, mut ready: impl FnMut() -> bool, gone: impl FnMut() -> Option<usize>) {
    if !ready() {
        keep_waiting(call, &mut ready, gone);
    }
}

#[inline(never)]
fn keep_waiting(
    call: &str,
    ready: &mut impl FnMut() -> bool,
    mut gone: impl FnMut() -> Option<usize>,
) {
    if let Some(remote) = far::installed() {
        return keep_waiting_across(call, remote, ready, gone);
    }
    let looks = if contention::is_contended() { LOOKS_CROWDED } else { LOOKS };
    for _ in 0..looks {
        if ready() {
            return;
        }
        std::hint::spin_loop();
    }
    let mut wait = AdaptiveWait::new(SPINS, YIELDS);
    let mut nap = NAP_MIN;
    while !ready() {
        match wait.step() {
            Step::Spin => std::hint::spin_loop(),
            Step::Yield => wait.give_way(),
            Step::Sleep => {
                // It may have ended just after it did what is waited for: so look once more.
                if let Some(pe) = gone()
                    && !ready()
                {
                    raise(call, &Fault::Deserted { pe });
                }
                std::thread::sleep(nap);
                nap = (nap * 2).min(NAP_MAX);
            }
        }
    }
}

#[inline(never)]
fn keep_waiting_across(
    call: &str,
    remote: &dyn Remote,
    ready: &mut dyn FnMut() -> bool,
    mut gone: impl FnMut() -> Option<usize>,
) {
    let mut wait = AdaptiveWait::new(SPINS, YIELDS);
    let mut nap = NAP_MIN;
    let mut polls = 0;
    let enough = if contention::is_contended() { POLLS_CROWDED } else { POLLS };
    while !(0..LOOKS_EACH).any(|_| ready()) {
        // Others that wait for this PE's answers say more soon: it does not sleep between them.
        polls = if remote.poll() { 0 } else { polls + 1 };
        if polls < enough {
            continue;
        }
        match wait.step() {
            Step::Spin => {}
            Step::Yield => wait.give_way(),
            Step::Sleep => {
                if let Some(pe) = gone()
                    && !ready()
                {
                    raise(call, &Fault::Deserted { pe });
                }
                remote.sleep(nap);
                nap = (nap * 2).min(NAP_MAX);
            }
        }
    }
}

/// Called when a program looked at memory and found nothing: now and then another process gets the
/// processor, so that a program that polls does not keep it from the one it waits for.
pub(crate) fn in_vain() {
    if let Some(remote) = far::installed() {
        remote.poll();
    }
    thread_local! {
        static LOOKED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }
    let looked = LOOKED.get().wrapping_add(1);
    LOOKED.set(looked);
    if looked.is_multiple_of(CALLS_IN_VAIN) {
        contention::yield_core();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_is_ready_is_looked_at_once() {
        let looks = Cell::new(0);
        let ready = || {
            looks.set(looks.get() + 1);
            true
        };
        until("test", ready, || unreachable!("nobody sleeps"));
        assert_eq!(looks.get(), 1);
    }

    #[test]
    fn a_long_wait_asks_who_is_gone_and_looks_once_more() {
        let asked = Cell::new(0);
        let gone = || {
            asked.set(asked.get() + 1);
            (asked.get() == 3).then_some(1)
        };
        until("test", || asked.get() == 3, gone);
        assert_eq!(asked.get(), 3);
    }
}
