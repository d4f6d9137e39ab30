//! A connection in a set: what the program asked for, what the kernel is told, what is ready.

use std::os::fd::RawFd;

use libc::c_int;
use weft_fabric::WaitFor;

use super::{ERR, ET, HUP, IN, ONESHOT, OUT, RDHUP};
use crate::arena::{Connection, flag};
use crate::sys::{self, Word};
use crate::wakeups::StaleWakeups;

/// Upper half of a tag; no pointer and no small number looks like it.
const TAG: u64 = 0xe7f7_5bad << 32;
pub(super) const TAG_MASK: u64 = 0xffff_ffff << 32;

/// A tag below [`TAG`]: the generation of a registration above, its index below.
const INDEX_BITS: u32 = 20;
/// Generations that tags can tell apart.
pub(super) const GENERATIONS: u32 = 1 << (32 - INDEX_BITS);
/// Registrations that a set can have.
pub(super) const REGISTRATIONS_MAX: usize = 1 << INDEX_BITS;

/// The index and the generation of the registration that a tag names; `None` when it is not ours.
pub(super) fn parse_tag(tag: u64) -> Option<(u32, u32)> {
    if tag & TAG_MASK != TAG {
        return None;
    }
    let low = u32::try_from(tag & !TAG_MASK).ok()?;
    Some((low & ((1 << INDEX_BITS) - 1), low >> INDEX_BITS))
}

/// One connection that the program put into a set.
pub(super) struct Registration {
    pub(super) fd: RawFd,
    /// Tells it from others that had its index before.
    pub(super) generation: u32,
    pub(super) place: u32,
    pub(super) events: u32,
    pub(super) data: u64,
    /// On the lane, so that readiness is computed.
    pub(super) laned: bool,
    /// Looked at directly.
    pub(super) hot: bool,
    /// ONESHOT has fired.
    pub(super) spent: bool,
    /// The program took it out; the kernel's set keeps it, since programs that put a connection in
    /// and out for every message would pay two system calls for each.
    pub(super) dormant: bool,
    /// The count of arrivals when an edge was last reported.
    pub(super) seen: u64,
    /// Report the next readiness whatever the edge says.
    pub(super) fresh: bool,
    /// The kernel was asked for what is always so, to wake who waits for the set.
    pub(super) woken: bool,
    /// The kernel's registration is edge-triggered, as it is while the lane brings the data: its
    /// wakeups are edges, and what lies undrained in the kernel's socket does not wake again.
    pub(super) kernel_edge: bool,
    /// The kernel is asked for room, since the sending direction is on TCP.
    pub(super) kernel_room: bool,
    /// The values that the two should have, as last computed.
    pub(super) wants_edge: bool,
    pub(super) wants_room: bool,
    pub(super) idle: u32,
}

impl Registration {
    /// Arms the connection for what the program waits for.
    pub(super) fn arm(&self, connection: Connection) -> StaleWakeups {
        let stale = connection.arm(WaitFor::Data);
        if self.events & OUT == 0 { stale } else { connection.arm(WaitFor::Room) }
    }

    /// Makes that count.
    pub(super) fn settle(&self, connection: Connection) {
        connection.settle(WaitFor::Data);
        if self.events & OUT != 0 {
            connection.settle(WaitFor::Room);
        }
    }

    /// The connection has no lane any more.
    pub(super) fn leave_lane(&mut self) {
        self.laned = false;
        self.hot = false;
        // Another lane counts from the beginning.
        self.seen = 0;
        self.kernel_edge = false;
        self.kernel_room = false;
        self.wants_edge = false;
        self.wants_room = false;
        self.woken = false;
    }

    /// The program changed it.
    pub(super) fn change(&mut self, wanted: libc::epoll_event) {
        self.events = wanted.events;
        self.data = wanted.u64;
        self.spent = false;
        self.dormant = false;
        self.fresh = true;
    }
}

/// The event that the kernel's set is told to watch for.
pub(super) fn kernel_event(registration: &Registration, index: u32) -> libc::epoll_event {
    let events = if registration.spent {
        0
    } else if !registration.laned {
        registration.events
    } else {
        // While the receiving direction is on TCP, the kernel's own edges and single shots count.
        let own = registration.events & (ET | ONESHOT);
        let room = if registration.kernel_room { registration.events & OUT } else { 0 };
        IN | RDHUP | room | if registration.kernel_edge { ET } else { own }
    };
    libc::epoll_event {
        events,
        u64: TAG | u64::from(registration.generation << INDEX_BITS | index),
    }
}

/// The kernel's `epoll_ctl`.
pub(super) fn kernel_ctl(
    epfd: RawFd,
    op: c_int,
    fd: RawFd,
    event: *mut libc::epoll_event,
) -> c_int {
    let arguments = [epfd.word(), op.word(), fd.word(), event.word(), 0, 0];
    // SAFETY: epoll_ctl reads one event where there is one; a bad descriptor is an error.
    let result = unsafe { sys::raw(libc::SYS_epoll_ctl, arguments) };
    c_int::try_from(sys::c_result(result)).unwrap_or(-1)
}

/// Tells the kernel what it is to watch for, when a direction moved since.
pub(super) fn agree(epfd: RawFd, registration: &mut Registration, index: u32) {
    let changed = registration.woken
        || registration.kernel_edge != registration.wants_edge
        || registration.kernel_room != registration.wants_room;
    if !changed || !registration.laned || registration.dormant || registration.spent {
        return;
    }
    registration.kernel_edge = registration.wants_edge;
    registration.kernel_room = registration.wants_room;
    registration.woken = false;
    let mut event = kernel_event(registration, index);
    kernel_ctl(epfd, libc::EPOLL_CTL_MOD, registration.fd, &raw mut event);
}

/// The readiness of a registration on a lane; with `report`, an edge counts as told.
pub(super) fn compute(
    registration: &mut Registration,
    connection: Connection,
    report: bool,
) -> u32 {
    if registration.spent || registration.dormant {
        return 0;
    }
    let wants = registration.events;
    let mut ready = 0;
    // Counted before the look: what comes in between is not told of, and makes another edge.
    let arrived = match wants & ET {
        0 => 0,
        _ => connection.arrived(registration.seen).unwrap_or(0),
    };
    let (readable, end) = connection.read_readiness(registration.fd);
    registration.wants_edge = readable.is_some();
    if end.hung_up {
        ready |= HUP;
    }
    if end.failed {
        ready |= ERR;
    }
    match readable {
        Some(true) if wants & (IN | RDHUP) != 0 => {
            ready |= IN & wants;
            if end.ended {
                ready |= RDHUP & wants;
            }
        }
        // Behind data that is still on TCP something came on the lane: an edge, too.
        None if wants & ET != 0 && connection.lane_brings(registration.fd) => ready |= IN & wants,
        _ => {}
    }
    let may_write = wants & OUT != 0 && writes(registration, connection);
    if may_write {
        ready |= OUT;
    }
    if wants & ET != 0 {
        ready = edge(registration, connection, ready, arrived, report);
    }
    if report && ready != 0 && wants & ONESHOT != 0 {
        registration.spent = true;
    }
    ready
}

fn writes(registration: &mut Registration, connection: Connection) -> bool {
    let writable = connection.writable(registration.fd);
    registration.wants_room = writable.is_none();
    writable.unwrap_or_else(|| {
        let events = rustix::event::PollFlags::OUT;
        sys::poll_one(registration.fd, events, 0).is_ok_and(|seen| !seen.is_empty())
    })
}

/// Of `ready`, what is new since it was last reported.
fn edge(
    registration: &mut Registration,
    connection: Connection,
    ready: u32,
    arrived: u64,
    report: bool,
) -> u32 {
    let new_data = arrived > registration.seen && ready & (IN | RDHUP | HUP) != 0;
    let room = ready & OUT != 0 && connection.has(flag::WRITE_BLOCKED);
    if !(registration.fresh && ready != 0 || new_data || room) {
        return 0;
    }
    if report {
        registration.fresh = false;
        registration.seen = registration.seen.max(arrived);
        if ready & OUT != 0 {
            connection.set(flag::WRITE_BLOCKED, false);
        }
    }
    ready
}
