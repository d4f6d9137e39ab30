//! Descriptors of the library that the program must not close, where lanes go over endpoints.
//!
//! Programs close descriptors that they do not know, by a loop or a range. Those of an endpoint are
//! many, and it cannot be opened anew for connections that have lanes over it. So the hooks leave
//! them open, and the program is told that they were closed.

use std::os::fd::RawFd;

use crate::{bells, carrier, deferral, process, sys};

/// How long [`vacate`] waits, in nanoseconds.
const VACATED_WITHIN_NS: u64 = 2_000_000_000;

/// True if `fd` must stay open although the program closes it. Costs two loads in processes without
/// lanes over endpoints.
#[inline]
pub fn keeps(fd: RawFd) -> bool {
    is_there() && keeps_one(fd)
}

#[inline]
fn is_there() -> bool {
    carrier::is_there() || bells::are_there()
}

#[cold]
fn keeps_one(fd: RawFd) -> bool {
    // The library closes its own by the same call, and holds a lock then. A child of vfork closes
    // its own copies.
    !deferral::is_held() && process::is_itself() && holds(fd)
}

fn each(mut look: impl FnMut(RawFd)) {
    // A descriptor that it closes later than the program would be the program's next file.
    carrier::await_closed();
    bells::each_descriptor(&mut look);
    carrier::each_descriptor(&mut look);
}

fn holds(fd: RawFd) -> bool {
    let mut is_own = false;
    each(|own| is_own |= own == fd);
    is_own
}

/// The descriptors from `first` to `last`, inclusive, that must stay open, in their order.
pub fn kept_between(first: u32, last: u32) -> Vec<RawFd> {
    let mut kept = Vec::new();
    if is_there() {
        each(|own| {
            if (first..=last).contains(&own.unsigned_abs()) {
                kept.push(own);
            }
        });
    }
    kept.sort_unstable();
    kept.dedup();
    kept
}

/// The program is about to put another file at this number. Has the library leave it; false if it
/// does not in time.
#[inline]
pub fn vacate(fd: RawFd) -> bool {
    !is_there() || vacate_one(fd)
}

#[cold]
fn vacate_one(fd: RawFd) -> bool {
    if !process::is_itself() {
        return true;
    }
    let start = sys::now_ns();
    while holds(fd) {
        if sys::now_ns() - start > VACATED_WITHIN_NS {
            return false;
        }
        // The connections go back to TCP, and the endpoint ends with its last lane.
        carrier::leave();
        carrier::forsake_peers();
        bells::drop_kept();
        rustix::thread::sched_yield();
    }
    true
}
