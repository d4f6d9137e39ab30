//! Rests of a program that looks at its queues again and again.
//!
//! Programs of MPI wait by calls that never block. Where others want the processor, such a program
//! would keep it from the very peer that it waits for. So after looks that found nothing the call
//! gives the processor away, without the lock of the domain.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weft_fabric::Armed;
use weft_sync::contention;

use crate::state::Domain;

/// The longest sleep: a program may have more to do than to wait.
const NAP: Duration = Duration::from_micros(100);

/// Looks of a wait before its first rest, at most: a peer that runs answers within them.
const LOOKS_MAX: u32 = 512;
/// The least, where peers need the processor of this program first.
const LOOKS_MIN: u32 = 4;
/// The least where the last packet came from another host: an answer over TCP takes so many.
const LOOKS_MIN_FAR: u32 = 32;
/// After so many waits that took a rest, one looks for long: it may pay off again.
const RESTS_MAX: u32 = 64;
/// A yield of this duration let another thread run.
const LONG: Duration = Duration::from_micros(2);

/// The looks of a wait before it rests, by the experience of earlier waits: twice as many after a
/// wait that looking ended, half as many after one that took a rest.
#[derive(Debug)]
pub struct Patience {
    looks: u32,
    looks_max: u32,
    looks_min: u32,
    has_rested: bool,
    rests: u32,
}

impl Default for Patience {
    fn default() -> Self {
        let (looks_max, looks_min) = (LOOKS_MAX, LOOKS_MIN);
        Self { looks: 0, looks_max, looks_min, has_rested: false, rests: 0 }
    }
}

impl Patience {
    /// A look has found something or nothing. The last packet came from another host or not.
    #[inline]
    pub fn looked(&mut self, found: bool, is_far: bool) {
        self.looks_min = if is_far { LOOKS_MIN_FAR } else { LOOKS_MIN };
        if !found {
            self.looks += 1;
        } else if self.looks > 0 || self.has_rested {
            self.learn();
        }
    }

    fn learn(&mut self) {
        let times = if self.has_rested { self.looks_max / 2 } else { self.looks_max * 2 };
        self.looks_max = times.clamp(self.looks_min, LOOKS_MAX);
        if self.has_rested {
            self.rests += 1;
            if self.rests.is_multiple_of(RESTS_MAX) {
                self.looks_max = LOOKS_MAX;
            }
        }
        (self.looks, self.has_rested) = (0, false);
    }

    /// True when so many looks found nothing that the program is to rest.
    #[inline]
    pub fn is_over(&mut self) -> bool {
        let is_over = self.looks >= self.looks_max.max(self.looks_min);
        if is_over {
            self.looks = 0;
        }
        is_over
    }

    /// Another thread had the processor meanwhile.
    pub const fn rested(&mut self) {
        self.has_rested = true;
    }
}

/// Gives the processor to others: by a yield, which lets a peer run. Where programs compute, a
/// yield costs a time slice. Then this is a short sleep, which the next message ends.
#[cold]
pub fn rest(domain: &Domain) {
    let has_given = if contention::is_computing() {
        nap(domain).is_some()
    } else {
        contention::yield_core() >= LONG
    };
    if has_given {
        domain.lock().patience.rested();
    }
}

/// Sleeps for a moment. `None` if there is something to be looked at.
fn nap(domain: &Domain) -> Option<()> {
    let mut files = Vec::new();
    let mut time = NAP;
    for ep in domain.lock().endpoints.iter_mut().flatten() {
        match ep.rdm.arm() {
            Armed::Busy => return None,
            Armed::Sleep => {}
            Armed::PollWithin(within) => time = time.min(within),
        }
        // A copy, since another thread may close the endpoint meanwhile.
        files.push(ep.descriptor().try_clone_to_owned().ok()?);
    }
    let mut files: Vec<_> = files.iter().map(|file| PollFd::new(file, PollFlags::IN)).collect();
    let time = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    // An interruption is a look too much.
    let _ = poll(&mut files, Some(&time));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait that found something behind so many looks. Returns whether it rested.
    fn wait(patience: &mut Patience, looks: u32) -> bool {
        wait_for(patience, looks, false)
    }

    fn wait_for(patience: &mut Patience, looks: u32, is_far: bool) -> bool {
        let mut has_rested = false;
        for _ in 0..looks {
            patience.looked(false, is_far);
            if patience.is_over() {
                patience.rested();
                has_rested = true;
            }
        }
        patience.looked(true, is_far);
        has_rested
    }

    #[test]
    fn a_wait_is_as_long_as_waits_that_paid_off() {
        let mut patience = Patience::default();
        for _ in 0..100 {
            assert!(!wait(&mut patience, 100), "a peer that runs is waited for by looking");
        }
        for _ in 0..20 {
            wait(&mut patience, 10_000);
        }
        assert!(wait(&mut patience, 2 * LOOKS_MIN), "one that has to run first gets the processor");
        assert!(!wait_for(&mut patience, LOOKS_MIN_FAR - 1, true), "an answer of another host");
        assert!(wait_for(&mut patience, 10_000, true));
        assert!(wait(&mut patience, 2 * LOOKS_MIN_FAR));
        let mut waits = 0;
        while wait(&mut patience, 100) {
            waits += 1;
            assert!(waits <= RESTS_MAX, "a change is noticed");
        }
        assert!(!wait(&mut patience, 100));
    }
}
