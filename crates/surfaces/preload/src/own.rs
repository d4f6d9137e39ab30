//! Descriptors of the library that the program must not close, where lanes go over endpoints.
//!
//! Programs close descriptors that they do not know, by a loop or a range. Those of an endpoint are
//! many, and it cannot be opened anew for connections that have lanes over it. So the hooks leave
//! them open, and the program is told that they were closed.

use std::os::fd::RawFd;

use crate::provider_files::{self, Still};
use crate::{bells, calls, carrier, deferral, process, sys};

/// How long [`vacate`] waits, in nanoseconds.
const VACATED_WITHIN_NS: u64 = 2_000_000_000;

/// The answer to a program that closes a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Close {
    /// It is the program's.
    Goes,
    /// It must stay open, and the program is told that it was closed.
    Stays,
    /// It is not open. The kernel is not asked: libfabric may get the number just now.
    NotOpen,
}

/// The fate of `fd`, which the program closes. Costs three loads in processes without lanes
/// over endpoints.
#[inline]
pub fn close(fd: RawFd) -> Close {
    if is_there() { close_one(fd) } else { Close::Goes }
}

#[inline]
fn is_there() -> bool {
    carrier::is_there() || bells::are_there() || provider_files::are_there() || calls::are_lent()
}

#[cold]
fn close_one(fd: RawFd) -> Close {
    // libfabric closes its own by the same call, while this library holds a lock. A child of vfork
    // closes its own copies.
    if deferral::is_held() || !process::is_itself() {
        return Close::Goes;
    }
    if holds(fd) || calls::lent().contains(&fd) {
        return Close::Stays;
    }
    let still = provider_files::still();
    if still.is_some() && !sys::is_open(fd) { Close::NotOpen } else { Close::Goes }
}

fn each(mut look: impl FnMut(RawFd)) {
    // A descriptor that it closes later than the program would be the program's next file.
    carrier::await_closed();
    bells::each_descriptor(&mut look);
    carrier::each_descriptor(&mut look);
    if let Some(still) = provider_files::still() {
        still.files().iter().copied().for_each(look);
    }
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
        kept.extend(calls::lent().iter().filter(|fd| (first..=last).contains(&fd.unsigned_abs())));
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

/// Keeps a number that is not open from libfabric, until the program has put its file there.
pub fn reserve(fd: RawFd) -> Option<Still> {
    provider_files::still().filter(|_| !sys::is_open(fd))
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
