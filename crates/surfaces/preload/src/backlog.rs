//! Bounds what a writer leaves in the kernel's socket while the two ends agree on a lane.
//!
//! All that went over TCP before the agreement is read there first. The kernel would take some
//! megabytes at once from a writer that never waits, and on a busy machine the answer of the daemon
//! takes as long as those. So TCP_NOTSENT_LOWAT is low for that time: the kernel itself then says
//! when there is room, to writes and to all kinds of waits.
//!
//! # Invariants
//! - The bound ends when the kernel took nothing for [`STUCK_NS`], since programs count on its
//!   buffers: two that both write before they read would wait for each other. As long as the peer
//!   reads, the ends may still agree, however long the daemon has no processor. Waits are cut into
//!   slices until then.
//! - A bound that the program set itself stays.
//! - No other lock is taken under the one of this module. Callers that hold a lock of a connection
//!   look at no other connection.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_socket::{Phase, SendSide};

use crate::arena::{self, Connection, flag};
use crate::guard::{ForkLock, LocalLock, Rank};
use crate::table::{self, Entry};
use crate::waits::Limit;
use crate::{sys, waits};

/// How many bytes that were not sent may wait in the kernel.
const BYTES: i32 = 64 << 10;
/// How long the bound holds while the kernel takes nothing, in nanoseconds: a lane that is full is
/// left as late.
const STUCK_NS: u64 = 100_000_000;
/// How long it holds at most, in nanoseconds.
const MOST_NS: u64 = 10_000_000_000;
/// How long a thread sleeps meanwhile before it looks, in nanoseconds.
const SLICE_NS: u64 = 1_000_000;

#[derive(Clone, Copy)]
struct Bounded {
    fd: RawFd,
    place: u32,
    since_ns: u64,
    /// When the kernel was first seen to have as many bytes as `sent`.
    moved_ns: u64,
    sent: u64,
}

impl Bounded {
    fn is_of(&self, other: &Self) -> bool {
        (self.fd, self.place, self.since_ns) == (other.fd, other.place, other.since_ns)
    }
}

static BOUNDED: LocalLock<Vec<Bounded>> = LocalLock::new(Rank::Backlog, Vec::new());
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
            let now = sys::now_ns();
            list.push(Bounded { fd, place: self.place, since_ns: now, moved_ns: now, sent: 0 });
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

    /// How many bytes went over TCP, while the two ends may be about to agree; `None` afterwards.
    fn sent_before_move(&self) -> Option<u64> {
        let sending = self.sending()?;
        let is_about_to_move = match self.phase() {
            Phase::Pending | Phase::Deciding => true,
            Phase::Laned => {
                let attached = |lane| SendSide::peer_attached(lane, self.side());
                !sending.state.on_lane() && sending.lane.is_some_and(|lane| !attached(lane))
            }
            Phase::Free | Phase::Fresh | Phase::Declined => false,
        };
        is_about_to_move.then(|| sending.state.totals().0)
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
    let mut listed = BOUNDED.lock().map_or_else(Vec::new, |list| list.clone());
    listed.retain_mut(|bounded| {
        let sent = arena::at(bounded.place).and_then(|connection| connection.sent_before_move());
        if let Some(sent) = sent.filter(|sent| *sent != bounded.sent) {
            (bounded.sent, bounded.moved_ns) = (sent, now);
        }
        sent.is_some()
            && now.saturating_sub(bounded.moved_ns) <= STUCK_NS
            && now.saturating_sub(bounded.since_ns) <= MOST_NS
    });
    let left = |bounded: &Bounded| listed.iter().find(|one| one.is_of(bounded));
    lift(|bounded| {
        if let Some(now) = left(bounded) {
            *bounded = *now;
        }
        left(bounded).is_none()
    })
}

/// Ends all bounds, before another program gets the sockets.
pub fn lift_all() {
    if ARE_THERE.load(Ordering::Relaxed) {
        lift(|_| true);
    }
}

/// Ends the bounds for which `is_over`. True if there was one.
#[cold]
fn lift(mut is_over: impl FnMut(&mut Bounded) -> bool) -> bool {
    let Some(mut list) = BOUNDED.lock() else { return false };
    let before = list.len();
    list.retain_mut(|bounded| {
        let is_over = is_over(bounded);
        let Bounded { fd, place, .. } = *bounded;
        let option = libc::TCP_NOTSENT_LOWAT;
        if is_over
            && table::get(fd) == Entry::Connection(place)
            && sys::socket_option(fd, libc::IPPROTO_TCP, option) == Some(BYTES)
        {
            sys::set_tcp_value(fd, option, 0);
        }
        !is_over
    });
    ARE_THERE.store(!list.is_empty(), Ordering::Relaxed);
    list.len() < before
}

/// The lock of this module, for fork. A child goes on with the list: both may end a bound.
pub fn lock() -> &'static dyn ForkLock {
    &BOUNDED
}
