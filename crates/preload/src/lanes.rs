//! How many lanes this process has, and how connections that rest give theirs to others.
//!
//! A lane is memory: some pages when it is idle, two sinks when it was full. A process has as many
//! as `socket.lanes_max`; when another connection wants one, those that moved nothing for
//! `socket.idle_ms` give theirs back. Such a connection leaves its lane, its peer follows, and when
//! all of both directions is on TCP each end forgets the lane by itself and is as it was before it
//! had one: in use again, it asks for another.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_socket::Phase;

use crate::arena::{self, Connection, flag};
use crate::guard::{ForkLock, LocalLock};
use crate::table::{self, Entry};
use crate::{control, epoll, log, process, sys};

/// Lanes that this process has mapped.
static LANES: AtomicU32 = AtomicU32::new(0);
/// When connections are next looked at for rest.
static LOOK_AT_NS: AtomicU64 = AtomicU64::new(0);

/// Connections that are giving their lanes back. Nothing else is locked under it.
static LEAVING: LocalLock<Vec<Leaver>> = LocalLock::new(Vec::new());
/// How many those are.
static LEAVERS: AtomicU32 = AtomicU32::new(0);
/// When they are next looked after.
static FINISH_AT_NS: AtomicU64 = AtomicU64::new(0);
const FINISH_EVERY_NS: u64 = 10_000_000;
/// That much later for each of them: a thousandth of the time goes to looking.
const FINISH_EACH_NS: u64 = 100_000;

/// Held while a connection forgets its lane: a child that is forked meanwhile would keep it.
static FORGETTING: LocalLock<()> = LocalLock::new(());

/// Flags of connections that keep what they have: TCP alone would not answer as their lane does.
const KEEPS: u32 = flag::READING_SHUT | flag::RESET_REPORTED | flag::SENT_TO_NOBODY;

#[derive(Clone, Copy)]
struct Leaver {
    fd: RawFd,
    place: u32,
    generation: u32,
}

/// The locks of this module, for fork: one that is taken before all others, and one behind them.
pub fn locks() -> [&'static dyn ForkLock; 2] {
    [&FORGETTING, &LEAVING]
}

/// A lane was mapped.
pub fn taken() {
    LANES.fetch_add(1, Ordering::Relaxed);
}

/// A lane was unmapped.
pub fn free() {
    LANES.fetch_sub(1, Ordering::Relaxed);
}

/// True when this process may have one more lane. If not, connections that rest are asked for
/// theirs, now and then; those come free later.
pub fn is_one_free() -> bool {
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
        let Entry::Connection(place) = entry else { continue };
        let Some(connection) = arena::at(place) else { continue };
        if wanted > 0 && connection.is_idle() && connection.leaves_its_lane(fd) {
            wanted -= 1;
        }
    }
    LANES.load(Ordering::Relaxed) < most
}

/// The connection left its lane, or follows a peer that did; the sending direction is locked.
pub fn expect_back(fd: RawFd, connection: Connection) {
    connection.set(flag::GIVING_BACK, true);
    let generation = connection.shared.generation.load(Ordering::Relaxed);
    if let Some(mut leaving) = LEAVING.lock() {
        leaving.push(Leaver { fd, place: connection.place, generation });
        LEAVERS.store(u32::try_from(leaving.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
    }
}

/// Called where programs wait, with nothing locked: looks after connections that are on their way
/// from their lanes and may not be used for long.
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
        let is_it = table::get(leaver.fd) == Entry::Connection(leaver.place);
        let Some(connection) = arena::at(leaver.place).filter(|_| is_it) else { return false };
        connection.shared.generation.load(Ordering::Relaxed) == leaver.generation
            && connection.has(flag::GIVING_BACK)
            && !connection.gives_back(leaver.fd)
    });
    if let Some(mut leaving) = LEAVING.lock() {
        leaving.append(&mut left);
        LEAVERS.store(u32::try_from(leaving.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
    }
}

/// In a forked child: what it holds is its parent's, too, and stays.
pub fn forked() {
    if let Some(mut leaving) = LEAVING.lock() {
        leaving.clear();
    }
    LEAVERS.store(0, Ordering::Relaxed);
}

impl Connection {
    /// True when it has a lane of its own and moved nothing there since it was last asked.
    fn is_idle(&self) -> bool {
        if self.phase() != Phase::Laned || self.has(flag::GIVING_BACK) {
            return false;
        }
        let received = self.receiving().map_or(0, |receiving| receiving.state.totals().1);
        let sent = self.sending().map_or(0, |sending| sending.state.totals().1);
        let moved = received.wrapping_add(sent);
        self.local.moved_before.swap(moved, Ordering::Relaxed) == moved
    }

    /// Leaves the lane to give it back, when nothing is on its way; false when that cannot be.
    fn leaves_its_lane(&self, fd: RawFd) -> bool {
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

    /// Forgets the lane when all of both directions is on TCP; false when it is not yet.
    #[cold]
    pub fn gives_back(&self, fd: RawFd) -> bool {
        let Some(_guard) = FORGETTING.lock() else { return false };
        if self.is_shared() || self.has(KEEPS) {
            return false;
        }
        let directions = (self.receiving_on_lane(fd), self.sending_on_lane(fd));
        let (Some(mut receiving), Some(mut sending)) = directions else { return false };
        if !sending.is_given_back(&mut receiving) || !self.claims_decision(Phase::Laned) {
            return false;
        }
        self.teaches_with(sending.state, receiving.state);
        sending.begin_again(&mut receiving);
        self.set(flag::GIVING_BACK, false);
        let lane = self.take_lane();
        drop((receiving, sending));
        drop(lane);
        control::withdraw(self.token());
        self.shared.token.store(arena::new_token(), Ordering::Relaxed);
        self.shared.calls.store(0, Ordering::Relaxed);
        self.shared.writes.store(0, Ordering::Relaxed);
        self.shared.moved.store(0, Ordering::Relaxed);
        self.rings_no_more(fd);
        epoll::moved_back(*self);
        self.shared.phase.set(Phase::Fresh);
        log::debug!("connection {} gave its lane back", self.place);
        true
    }
}
