//! How many lanes this process has, and how idle connections give their lanes to others.
//!
//! A lane is memory: some pages when it is idle, two sinks when it was full. A process has at most
//! `socket.lanes_max` lanes. When another connection wants one, connections that moved nothing for
//! `socket.idle_ms` give their lanes back. Such a connection leaves its lane, and its peer follows.
//! When all bytes of both directions are on TCP, each end forgets the lane by itself. The
//! connection is then as before it had a lane, and can ask for another one.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_socket::Phase;

use crate::arena::{self, Connection, flag};
use crate::guard::{ForkLock, LocalLock, Rank};
use crate::table::{self, Entry};
use crate::{calls, control, epoll, log, process, sys};

/// How many lanes this process has mapped.
static LANES: AtomicU32 = AtomicU32::new(0);
/// When idle connections are next looked for.
static LOOK_AT_NS: AtomicU64 = AtomicU64::new(0);

/// Connections that are giving their lanes back. No other lock is taken under this one.
static LEAVING: LocalLock<Vec<Leaver>> = LocalLock::new(Rank::Leaving, Vec::new());
/// The length of that list, read without the lock.
static LEAVERS: AtomicU32 = AtomicU32::new(0);
/// When [`finish`] next runs for them.
static FINISH_AT_NS: AtomicU64 = AtomicU64::new(0);
const FINISH_EVERY_NS: u64 = 10_000_000;
/// With more of them [`finish`] runs less often, so that it takes a thousandth of the time.
const FINISH_EACH_NS: u64 = 100_000;

/// Held while a connection forgets its lane. A child that is forked meanwhile would keep the lane.
static FORGETTING: LocalLock<()> = LocalLock::new(Rank::Forgetting, ());

/// A connection with one of these flags keeps its lane, since TCP alone would answer otherwise.
const KEEPS: u32 = flag::READING_SHUT | flag::RESET_REPORTED | flag::SENT_TO_NOBODY;

#[derive(Clone, Copy)]
struct Leaver {
    fd: RawFd,
    place: u32,
    generation: u32,
}

/// The locks of this module, for fork: the first is taken before all others, the second after them.
pub fn locks() -> [&'static dyn ForkLock; 2] {
    [&FORGETTING, &LEAVING]
}

/// Counts a lane that was mapped.
pub fn taken() {
    LANES.fetch_add(1, Ordering::Relaxed);
}

/// Counts a lane that was unmapped.
pub fn free() {
    LANES.fetch_sub(1, Ordering::Relaxed);
}

/// True when this process may have one more lane. If not, asks idle connections for theirs, at most
/// once in `socket.idle_ms`. Those lanes come free later.
pub fn has_free_lane() -> bool {
    let most = process::settings().lanes_max;
    if LANES.load(Ordering::Relaxed) < most {
        return true;
    }
    let now = sys::now_ns();
    let at = LOOK_AT_NS.load(Ordering::Relaxed);
    let next = now + process::settings().idle_ns;
    let mine = now >= at
        && LOOK_AT_NS.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if !mine {
        return false;
    }
    finish(now);
    let mut wanted = LANES.load(Ordering::Relaxed).saturating_sub(most - most / 8).max(1);
    for (fd, entry) in table::walk(0, u32::MAX) {
        let Entry::Connection(_) = entry else { continue };
        let Some(connection) = calls::enter(fd) else { continue };
        if wanted > 0 && connection.is_idle() && connection.leave_idle_lane(fd) {
            wanted -= 1;
        }
    }
    LANES.load(Ordering::Relaxed) < most
}

/// Notes that the connection left its lane to give it back, first or after its peer. The caller
/// holds the lock of the sending direction.
pub fn expect_back(fd: RawFd, connection: Connection) {
    connection.set(flag::GIVING_BACK, true);
    let generation = connection.shared.generation.load(Ordering::Relaxed);
    if let Some(mut leaving) = LEAVING.lock() {
        leaving.push(Leaver { fd, place: connection.place, generation });
        LEAVERS.store(u32::try_from(leaving.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
    }
}

/// Called where programs wait, without a lock. Completes the return of lanes whose connections may
/// not be used for long.
#[inline]
pub fn look_after() {
    if LEAVERS.load(Ordering::Relaxed) != 0 {
        let now = sys::now_ns();
        if now >= FINISH_AT_NS.load(Ordering::Relaxed) {
            finish(now);
        }
    }
}

#[cold]
fn finish(now: u64) {
    let all = u64::from(LEAVERS.load(Ordering::Relaxed)) * FINISH_EACH_NS;
    FINISH_AT_NS.store(now + all.max(FINISH_EVERY_NS), Ordering::Relaxed);
    let Some(leaving) = LEAVING.lock().map(|mut leaving| std::mem::take(&mut *leaving)) else {
        return;
    };
    let mut left = leaving;
    left.retain(|leaver| {
        let found = calls::enter(leaver.fd).filter(|found| found.place == leaver.place);
        let Some(connection) = found else { return false };
        connection.shared.generation.load(Ordering::Relaxed) == leaver.generation
            && connection.has(flag::GIVING_BACK)
            && !connection.gives_back(leaver.fd)
    });
    if let Some(mut leaving) = LEAVING.lock() {
        leaving.append(&mut left);
        LEAVERS.store(u32::try_from(leaving.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
    }
}

/// In a forked child: the connections are the parent's, too, so their lanes stay.
pub fn forked() {
    if let Some(mut leaving) = LEAVING.lock() {
        leaving.clear();
    }
    LEAVERS.store(0, Ordering::Relaxed);
}

/// Takes all connections whose lanes go over the endpoint of this process back to TCP, before a
/// child holds them, too: an endpoint belongs to one process. They give their lanes back, so that
/// one process can move them again when the others have closed them. A peer that does not follow
/// in time, or has unread bytes on its way, makes the connection stay on TCP.
pub fn return_far() {
    /// A peer that is awake has followed by then.
    const WITHIN_NS: u64 = 20_000_000;
    if !process::settings().between_hosts || LANES.load(Ordering::Relaxed) == 0 {
        return;
    }
    let (mut idle, busy): (Vec<_>, Vec<_>) =
        far_connections().into_iter().partition(|(fd, connection)| {
            connection.has(flag::GIVING_BACK) || connection.leave_idle_lane(*fd)
        });
    return_all(|| busy.iter().copied());
    let start = sys::now_ns();
    while !idle.is_empty() && sys::now_ns() - start < WITHIN_NS {
        rustix::thread::sched_yield();
        idle.retain(|(fd, connection)| connection.is_on_far_lane() && !connection.gives_back(*fd));
    }
    return_all(|| idle.iter().copied());
}

/// Takes all connections whose lanes go over the endpoint of this process back to TCP for good, as
/// far as their peers follow. Takes no memory: the program may have been interrupted while it held
/// the lock of the allocator.
pub fn leave_far() {
    // Another thread may be bringing a connection to a lane.
    let decided = |(_, connection): &(_, Connection)| {
        connection.wait_until_decided();
        connection.is_on_far_lane()
    };
    return_all(|| connections().filter(decided));
}

/// Takes all connections back to TCP for good, as far as their peers follow.
pub fn leave_all() {
    return_all(connections);
}

/// Takes connections back to TCP for good, as far as their peers follow: asks all peers first, so
/// that all together take the time of one.
fn return_all<I: Iterator<Item = (RawFd, Connection)>>(connections: impl Fn() -> I) {
    let until = Connection::follow_until();
    for (fd, connection) in connections() {
        connection.ask_to_follow(fd);
    }
    for (fd, connection) in connections() {
        if !connection.return_to_tcp_until(fd, until) {
            log::debug!("descriptor {fd} stays on its lane: its peer does not follow");
        }
    }
}

/// The tracked descriptors that lead to connections.
pub fn connections() -> impl Iterator<Item = (RawFd, Connection)> {
    table::walk(0, u32::MAX).filter_map(|(fd, entry)| match entry {
        Entry::Connection(place) => Some((fd, arena::at(place)?)),
        _ => None,
    })
}

fn far_connections() -> Vec<(RawFd, Connection)> {
    let mut found: Vec<(RawFd, Connection)> = Vec::new();
    for (fd, connection) in connections().filter(|(_, connection)| connection.is_on_far_lane()) {
        if found.iter().all(|(_, other)| other.place != connection.place) {
            found.push((fd, connection));
        }
    }
    found
}

impl Connection {
    /// True when the connection has a lane and moved nothing there since the last call.
    fn is_idle(&self) -> bool {
        if self.phase() != Phase::Laned || self.has(flag::GIVING_BACK) {
            return false;
        }
        let received = self.receiving().map_or(0, |receiving| receiving.state.totals().1);
        let sent = self.sending().map_or(0, |sending| sending.state.totals().1);
        let moved = received.wrapping_add(sent);
        self.local.moved_before.swap(moved, Ordering::Relaxed) == moved
    }

    /// Leaves the lane to give it back, if nothing is on its way; false when that cannot be.
    fn leave_idle_lane(&self, fd: RawFd) -> bool {
        if self.is_shared() || self.has(KEEPS) {
            return false;
        }
        let receiving = self.receiving_on_lane(fd);
        let may = receiving.is_some_and(|mut receiving| receiving.may_give_back(self.side()));
        if !may {
            return false;
        }
        self.sending_on_lane(fd).is_some_and(|mut sending| sending.begin_giving_back())
    }

    /// Forgets the lane if all bytes of both directions are on TCP; false when that is not so yet.
    #[cold]
    pub fn gives_back(&self, fd: RawFd) -> bool {
        let Some(_guard) = FORGETTING.lock() else { return false };
        if self.is_shared() || self.has(KEEPS) {
            return false;
        }
        let directions = (self.receiving_on_lane(fd), self.sending_on_lane(fd));
        let (Some(mut receiving), Some(mut sending)) = directions else { return false };
        if !sending.is_given_back(&mut receiving) || !self.claim_decision(Phase::Laned) {
            return false;
        }
        self.record_use_with(sending.state, receiving.state);
        sending.forget_lane(&mut receiving);
        self.set(flag::GIVING_BACK, false);
        let lane = self.take_lane();
        // Under the locks, as all that counts there.
        self.shared.over_tcp.reset();
        drop((receiving, sending));
        drop(lane);
        control::withdraw(self.token());
        self.shared.token.store(arena::new_token(), Ordering::Relaxed);
        self.stop_wakeups(fd);
        epoll::moved_back(*self);
        self.shared.phase.set(Phase::Fresh);
        log::debug!("connection {} gave its lane back", self.place);
        true
    }
}
