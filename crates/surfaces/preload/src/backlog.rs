//! Bounds what a writer leaves in the kernel's socket while the two ends agree on a lane.
//!
//! All that went over TCP before the agreement is read there first. The kernel would take some
//! megabytes at once from a writer that never waits, and on a busy machine the answer of the daemon
//! takes as long as those. So TCP_NOTSENT_LOWAT is low for that time: the kernel itself then says
//! when there is room, to writes and to all kinds of waits.
//!
//! # Invariants
//! - The bound ends after [`MOST_NS`], since programs count on the kernel's buffers: two that both
//!   write before they read would wait for each other. Waits are cut into slices until then.
//! - A bound that the program set itself stays.
//! - No other lock is taken under the one of this module. Callers that hold a lock of a connection
//!   look at no other connection.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_socket::{Phase, SendSide};

use crate::arena::{self, Connection, flag};
use crate::guard::{ForkLock, LocalLock};
use crate::table::{self, Entry};
use crate::waits::Limit;
use crate::{sys, waits};

/// How many bytes that were not sent may wait in the kernel.
const BYTES: i32 = 64 << 10;
/// How long the bound holds, in nanoseconds: a lane that is full is left as late.
const MOST_NS: u64 = 100_000_000;
/// How long a thread sleeps meanwhile before it looks, in nanoseconds.
const SLICE_NS: u64 = 1_000_000;

#[derive(Clone, Copy)]
struct Bounded {
    fd: RawFd,
    place: u32,
    since_ns: u64,
}

static BOUNDED: LocalLock<Vec<Bounded>> = LocalLock::new(Vec::new());
/// True while the list has something: read without the lock.
static ARE_THERE: AtomicBool = AtomicBool::new(false);

impl Connection {
    /// Called when much is to go over TCP, and the two ends may be about to agree.
    #[cold]
    pub fn bound_backlog(&self, fd: RawFd) {
        self.set(flag::BOUNDED, true);
        let is_own = sys::socket_option(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) == Some(0);
        if is_own && let Some(mut list) = BOUNDED.lock() {
            sys::set_tcp_value(fd, libc::TCP_NOTSENT_LOWAT, BYTES);
            list.push(Bounded { fd, place: self.place, since_ns: sys::now_ns() });
            ARE_THERE.store(true, Ordering::Relaxed);
        }
    }

    /// Ends the bound of this connection, if it has one.
    #[inline]
    pub fn unbound_backlog(&self) {
        if ARE_THERE.load(Ordering::Relaxed) {
            lift(|bounded| bounded.place == self.place);
        }
    }

    /// True while the two ends may be about to agree.
    fn is_about_to_move(&self) -> bool {
        match self.phase() {
            Phase::Pending | Phase::Deciding => true,
            Phase::Laned => self.sending().is_some_and(|sending| {
                let attached = |lane| SendSide::peer_attached(lane, self.side());
                !sending.state.on_lane() && sending.lane.is_some_and(|lane| !attached(lane))
            }),
            Phase::Free | Phase::Fresh | Phase::Declined => false,
        }
    }
}

/// The longest sleep of a thread whose limit is `limit`. Ends the bounds that have no more use.
#[inline]
pub fn bounds(limit: Limit) -> Limit {
    if !ARE_THERE.load(Ordering::Relaxed) {
        return limit;
    }
    lift_idle();
    let are_left = ARE_THERE.load(Ordering::Relaxed);
    if are_left { Some(waits::at_most(limit, SLICE_NS)) } else { limit }
}

/// Called when the kernel took no byte. True if that was for a bound that has ended now.
#[inline]
pub fn made_room() -> bool {
    ARE_THERE.load(Ordering::Relaxed) && lift_idle()
}

/// Ends the bounds that have no more use. True if there was one.
#[cold]
fn lift_idle() -> bool {
    let now = sys::now_ns();
    // Looked at outside of the lock: a look takes locks of the connection.
    let listed = BOUNDED.lock().map_or_else(Vec::new, |list| list.clone());
    let is_idle = |bounded: &Bounded| {
        now.saturating_sub(bounded.since_ns) > MOST_NS
            || arena::at(bounded.place).is_none_or(|connection| !connection.is_about_to_move())
    };
    let idle: Vec<u32> = listed.iter().filter(|one| is_idle(one)).map(|one| one.place).collect();
    if !idle.is_empty() {
        lift(|bounded| idle.contains(&bounded.place));
    }
    !idle.is_empty()
}

/// Ends all bounds, before another program gets the sockets.
pub fn lift_all() {
    if ARE_THERE.load(Ordering::Relaxed) {
        lift(|_| true);
    }
}

#[cold]
fn lift(is_over: impl Fn(&Bounded) -> bool) {
    let Some(mut list) = BOUNDED.lock() else { return };
    list.retain(|bounded| {
        if !is_over(bounded) {
            return true;
        }
        let Bounded { fd, place, .. } = *bounded;
        let option = libc::TCP_NOTSENT_LOWAT;
        if table::get(fd) == Entry::Connection(place)
            && sys::socket_option(fd, libc::IPPROTO_TCP, option) == Some(BYTES)
        {
            sys::set_tcp_value(fd, option, 0);
        }
        false
    });
    ARE_THERE.store(!list.is_empty(), Ordering::Relaxed);
}

/// The lock of this module, for fork. A child goes on with the list: both may end a bound.
pub fn lock() -> &'static dyn ForkLock {
    &BOUNDED
}
