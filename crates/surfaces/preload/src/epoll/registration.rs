//! A connection in a set: the program's events, the kernel's events, and its readiness.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use weft_fabric::WaitFor;
use weft_socket::{Drained, StaleWakeups};

use super::{ERR, ET, HUP, IN, ONESHOT, OUT, RDHUP};
use crate::arena::Connection;

use crate::waits;

/// One connection that the program put into a set.
pub(super) struct Registration {
    pub(super) fd: RawFd,
    /// Tells the registration from earlier ones with the same index.
    pub(super) generation: u32,
    pub(super) place: u32,
    pub(super) events: u32,
    pub(super) data: u64,
    /// The connection has a lane, so readiness is computed.
    pub(super) laned: bool,
    /// The kernel has a tag in place of the program's data.
    pub(super) tagged: bool,
    /// The connection is looked at directly.
    pub(super) hot: bool,
    /// EPOLLONESHOT has fired.
    pub(super) spent: bool,
    /// The kernel was told not to report bytes, since a wakeup came while EPOLLONESHOT had fired.
    pub(super) is_off: bool,
    /// The kernel's registration has EPOLLEXCLUSIVE, so that it cannot be modified.
    pub(super) exclusive: bool,
    /// The program removed it. The kernel's set still has it, since programs that add and remove a
    /// connection for every message would make two system calls for each.
    pub(super) dormant: bool,
    /// The count of arrivals when an edge was last reported.
    pub(super) seen: u64,
    /// The count of writes without room when EPOLLOUT was last reported.
    pub(super) blocks_seen: u32,
    /// The next readiness is reported even without an edge.
    pub(super) fresh: bool,
    /// The kernel was asked for EPOLLOUT, which is always ready, to wake a thread that waits for
    /// the set.
    pub(super) woken: bool,
    /// The kernel's registration is edge-triggered, as it is while data come over the lane: a
    /// wakeup makes an edge, and wakeups that were not drained make no further one.
    pub(super) kernel_edge: bool,
    /// The kernel is asked for EPOLLOUT, since the sending direction is on TCP.
    pub(super) kernel_room: bool,
    /// The values that `kernel_edge` and `kernel_room` should have, as last computed.
    pub(super) wants_edge: bool,
    pub(super) wants_room: bool,
    /// The peer ended its direction on TCP, so that no wakeups come. The kernel is asked for what
    /// the program waits for alone, since it would tell of that end again and again.
    pub(super) kernel_alone: bool,
    /// The value that `kernel_alone` should have, as last computed.
    pub(super) wants_alone: bool,
    pub(super) idle: u32,
}

impl Registration {
    /// Arms the connection for data, and for room if the program asked for EPOLLOUT.
    pub(super) fn arm(&self, connection: Connection) -> StaleWakeups {
        let stale = connection.arm(self.fd, WaitFor::Data);
        if self.events & OUT == 0 { stale } else { connection.arm(self.fd, WaitFor::Room) }
    }

    /// Executes the fence that must follow [`Registration::arm`].
    pub(super) fn settle(&self, connection: Connection) {
        connection.settle(WaitFor::Data);
        if self.events & OUT != 0 {
            connection.settle(WaitFor::Room);
        }
    }

    /// The kernel reported bytes: a set looks by itself from now on. Other sleepers rely on a word
    /// that this registration does not wait for.
    pub(super) fn woken_by_kernel(&self, connection: Connection) {
        connection.woken(self.fd, WaitFor::Data);
        if self.events & OUT != 0 {
            connection.woken(self.fd, WaitFor::Room);
        }
    }

    /// Resets the state that belongs to a lane, which the connection no longer has.
    pub(super) fn leave_lane(&mut self) {
        self.laned = false;
        self.hot = false;
        // On another lane, arrivals are counted from 0.
        self.seen = 0;
        self.kernel_edge = false;
        self.kernel_room = false;
        self.wants_edge = false;
        self.wants_room = false;
        self.kernel_alone = false;
        self.wants_alone = false;
        self.woken = false;
        self.is_off = false;
    }

    /// Stores what the program asked for in `epoll_ctl`.
    pub(super) fn change(&mut self, wanted: libc::epoll_event) {
        self.events = wanted.events;
        self.data = wanted.u64;
        self.spent = false;
        self.dormant = false;
        self.fresh = true;
    }
}

/// The look after a registration was armed: true if it is ready for nothing and not broken, so that
/// the kernel may wait for it. Takes wakeups that nobody waits for. Those that stay for others make
/// no further edge.
#[inline(never)]
pub(super) fn is_quiet(
    registration: &mut Registration,
    connection: Connection,
    stale: StaleWakeups,
) -> bool {
    compute(registration, connection, false) == 0
        && connection.drain(registration.fd, stale, false) != Drained::Broken
}

/// The events for which a registration on a lane is ready. With `report`, edges and one-shots count
/// as reported.
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
    // Counted before the look. Bytes that arrive in between are not reported, and make another
    // edge. So do writes.
    let blocks = connection.shared.write_blocks.load(Ordering::Relaxed);
    let arrived = match wants & ET {
        0 => 0,
        _ => connection.arrived(registration.seen).unwrap_or(0),
    };
    let (readable, end) = connection.read_readiness(registration.fd);
    registration.wants_edge = readable.is_some();
    registration.wants_alone = connection.has_heard_end_on_tcp();
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
        // Bytes arrived on the lane, behind data that are still on TCP: an edge, too.
        None if wants & ET != 0 && connection.lane_brings(registration.fd) => ready |= IN & wants,
        _ => {}
    }
    let may_write = wants & OUT != 0 && writes(registration, connection);
    if may_write {
        ready |= OUT;
    }
    if wants & ET != 0 {
        ready = edge(registration, ready, (arrived, blocks), report);
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
        waits::poll_one(registration.fd, events, 0).is_ok_and(|seen| !seen.is_empty())
    })
}

/// `ready` if something is new since the last report, else 0.
fn edge(
    registration: &mut Registration,
    ready: u32,
    (arrived, blocks): (u64, u32),
    report: bool,
) -> u32 {
    let new_data = arrived > registration.seen && ready & (IN | RDHUP | HUP) != 0;
    let room = ready & OUT != 0 && blocks != registration.blocks_seen;
    if !(registration.fresh && ready != 0 || new_data || room) {
        return 0;
    }
    if report {
        registration.fresh = false;
        registration.seen = registration.seen.max(arrived);
        if ready & OUT != 0 {
            registration.blocks_seen = blocks;
        }
    }
    ready
}
