//! Threads of the program that sleep for lanes over the endpoint.
//!
//! A thread that sleeps alone has the watch: it sleeps on the endpoint's descriptor beside the
//! kernel's socket and its bell, takes what arrives, and wakes others for what is theirs. So a
//! message wakes one thread. Where several sleep, the driving thread watches
//! ([`weft_lane::Carrier::falls_asleep`]).

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weft_lane::{Falling, LaneNumber, Sleep};

use super::{CALLS, IS_THERE, STATE, carrier};
use crate::deferral::Held;
use crate::sys;

/// A thread that sleeps. Dropping it ends the sleep.
pub struct Asleep {
    /// `None` without an endpoint.
    sleep: Option<Sleep>,
    /// The connection for which the thread sleeps, if it is one alone.
    own: Option<u32>,
    descriptor: Option<RawFd>,
    within: Option<Duration>,
}

/// The calling thread falls asleep, for the connection at the place `own` or for several. It has
/// taken a bell, or sleeps on an epoll set, has armed the words, and has found nothing since.
/// `None` if something came: it looks once more.
pub fn falls_asleep(own: Option<u32>) -> Option<Asleep> {
    let mut asleep = Asleep { own, ..Asleep::of_no_endpoint() };
    if !IS_THERE.load(Ordering::Relaxed) {
        return Some(asleep);
    }
    let _held = Held::new();
    let descriptor = STATE.lock()?.driver.as_ref().map(|driver| driver.descriptor);
    let (Some(carrier), Some(descriptor)) = (carrier(), descriptor) else { return Some(asleep) };
    let thread = sys::this_thread() as u64;
    match carrier.falls_asleep(thread) {
        Falling::LookAgain => return None,
        Falling::IsWatched(sleep) => asleep.sleep = Some(sleep),
        Falling::Watches(sleep) => {
            (asleep.sleep, asleep.descriptor) = (Some(sleep), Some(descriptor));
        }
        Falling::Within(sleep, time) => {
            (asleep.sleep, asleep.within) = (Some(sleep), Some(time));
        }
    }
    Some(asleep)
}

impl Asleep {
    /// A sleep that has nothing to do with an endpoint.
    pub const fn of_no_endpoint() -> Self {
        Self { sleep: None, own: None, descriptor: None, within: None }
    }

    /// The descriptor on which the thread sleeps, too.
    pub const fn descriptor(&self) -> Option<RawFd> {
        self.descriptor
    }

    /// The longest sleep in nanoseconds, where the program wants `limit`; `None` without end.
    pub fn bounds(&self, limit: Option<u64>) -> Option<u64> {
        let Some(within) = self.within else { return limit };
        let within = u64::try_from(within.as_nanos().max(1)).unwrap_or(u64::MAX);
        Some(limit.map_or(within, |limit| limit.min(within)))
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        let Some(sleep) = self.sleep else { return };
        let held = Held::new();
        let Some(carrier) = carrier() else { return };
        let rung = carrier.woke(sleep);
        if rung.is_empty() {
            return;
        }
        let found = |number: &LaneNumber| STATE.lock()?.lanes.get(number).copied();
        let found: Vec<(u32, RawFd)> = rung.iter().filter_map(found).collect();
        drop(held);
        let Some(calls) = CALLS.get() else { return };
        for (place, fd) in found {
            if Some(place) == self.own {
                (calls.arrived_here)(place);
            } else {
                (calls.arrived)(place, fd);
            }
        }
    }
}
