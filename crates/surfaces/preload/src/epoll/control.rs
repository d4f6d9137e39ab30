//! `epoll_ctl`, and the other events that change registrations: connections that move or close.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use libc::c_int;

use super::kernel::{has_fired, kernel_ctl, kernel_event, tell_kernel};
use super::registration::{Registration, compute};
use super::sets::{Set, Slot, all_sets, set_at, set_of};
use super::{ET, EXCLUSIVE, OUT};
use weft_socket::Phase;

use crate::arena::{self, Connection};
use crate::sys;
use crate::table::{self, Entry};

/// `epoll_ctl` for a tracked connection.
pub fn control(
    epfd: RawFd,
    op: c_int,
    fd: RawFd,
    event: *mut libc::epoll_event,
    connection: Connection,
) -> c_int {
    if op == libc::EPOLL_CTL_ADD {
        connection.decide_if_laned(fd);
    } else {
        connection.decide(fd, 0);
    }
    let result = control_undecided(epfd, op, fd, event, connection);
    if op == libc::EPOLL_CTL_ADD && result == 0 {
        // In a set that is waited for, it may move from here on.
        connection.decide(fd, 0);
    }
    result
}

fn control_undecided(
    epfd: RawFd,
    op: c_int,
    fd: RawFd,
    event: *mut libc::epoll_event,
    connection: Connection,
) -> c_int {
    let Some(mut set) = set_of(epfd, op == libc::EPOLL_CTL_ADD) else {
        return kernel_ctl(epfd, op, fd, event);
    };
    let known = set.by_fd.get(&fd).copied();
    // SAFETY: the caller's event, which epoll_ctl would read; unaligned since it is packed.
    let wanted = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
    let is_exclusive = |events: u32| events & EXCLUSIVE != 0;
    if op == libc::EPOLL_CTL_MOD
        && let Some(registration) = known.and_then(|index| set.get(index))
        && (is_exclusive(registration.events)
            || wanted.is_some_and(|wanted| is_exclusive(wanted.events)))
    {
        sys::set_errno(libc::EINVAL);
        return -1;
    }
    if let Some(index) = known
        && let Some(done) = set.change_quietly(epfd, index, op, wanted, connection)
    {
        return done;
    }
    if op == libc::EPOLL_CTL_DEL {
        let result = kernel_ctl(epfd, op, fd, event);
        if let Some(index) = known {
            set.remove(index);
        }
        return result;
    }
    let Some(wanted) = wanted else { return kernel_ctl(epfd, op, fd, event) };
    // Read with the set locked: a thread that moves the connection updates the set after that.
    let laned = connection.phase() == Phase::Laned;
    match (op, known) {
        (libc::EPOLL_CTL_MOD, Some(index)) => {
            let Some(registration) = set.get(index) else { return -1 };
            registration.change(wanted);
            registration.laned |= laned;
            registration.tagged = registration.laned;
            let mut event = kernel_event(registration, index);
            let laned = registration.laned;
            let result = kernel_ctl(epfd, op, fd, &raw mut event);
            if result == 0 && laned {
                set.enlist(epfd, index);
            }
            result
        }
        (libc::EPOLL_CTL_ADD, former) => {
            let result = add(&mut set, epfd, fd, wanted, connection, laned);
            let errno = sys::errno();
            match former {
                // The kernel did not have the descriptor, so the former registration is of a closed
                // one.
                Some(index) if result == 0 => set.remove(index),
                // The kernel refused: the former registration stays.
                Some(index) => {
                    set.by_fd.insert(fd, index);
                }
                None => {}
            }
            sys::set_errno(errno);
            result
        }
        _ => kernel_ctl(epfd, op, fd, event),
    }
}

impl Set {
    /// Changes a registration on a lane whose kernel side is edge-triggered and can stay as it is.
    /// `None` when the kernel must be told.
    fn change_quietly(
        &mut self,
        epfd: RawFd,
        index: u32,
        op: c_int,
        wanted: Option<libc::epoll_event>,
        connection: Connection,
    ) -> Option<c_int> {
        let registration = self.get(index)?;
        let is_same = registration.kernel_edge && registration.place == connection.place;
        if !is_same || registration.events & EXCLUSIVE != 0 {
            return None;
        }
        if op != libc::EPOLL_CTL_DEL && wanted.is_some_and(|wanted| wanted.events & EXCLUSIVE != 0)
        {
            if registration.dormant {
                kernel_ctl(epfd, libc::EPOLL_CTL_DEL, registration.fd, std::ptr::null_mut());
                self.remove(index);
            }
            return None;
        }
        let refused = match op {
            libc::EPOLL_CTL_ADD if !registration.dormant => libc::EEXIST,
            libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if registration.dormant => libc::ENOENT,
            _ => 0,
        };
        if refused != 0 {
            sys::set_errno(refused);
            return Some(-1);
        }
        if op == libc::EPOLL_CTL_DEL {
            registration.dormant = true;
            registration.hot = false;
            self.hot.retain(|hot| *hot != index);
            return Some(0);
        }
        registration.change(wanted?);
        self.enlist(epfd, index);
        Some(0)
    }
}

fn add(
    set: &mut Set,
    epfd: RawFd,
    fd: RawFd,
    wanted: libc::epoll_event,
    connection: Connection,
    laned: bool,
) -> c_int {
    let registration = Registration {
        fd,
        generation: 0,
        place: connection.place,
        events: wanted.events,
        data: wanted.u64,
        laned,
        hot: false,
        spent: false,
        is_off: false,
        exclusive: wanted.events & EXCLUSIVE != 0,
        tagged: laned,
        dormant: false,
        seen: 0,
        blocks_seen: connection.shared.write_blocks.load(Ordering::Relaxed),
        fresh: true,
        woken: false,
        kernel_edge: false,
        kernel_room: false,
        wants_edge: false,
        wants_room: false,
        kernel_alone: false,
        wants_alone: false,
        idle: 0,
    };
    let Some(index) = set.insert(registration) else {
        sys::set_errno(libc::ENOSPC);
        return -1;
    };
    connection.local.registered.fetch_add(1, Ordering::Relaxed);
    connection.shared.common.begin_watch(1);
    let Some(registration) = set.get(index) else { return -1 };
    let mut event = kernel_event(registration, index);
    let result = kernel_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &raw mut event);
    if result < 0 {
        let errno = sys::errno();
        set.remove(index);
        sys::set_errno(errno);
    } else if laned {
        set.enlist(epfd, index);
    }
    result
}

/// The connection moved to a lane: the readiness of its registrations is computed from now on.
pub fn moved(connection: Connection) {
    if connection.local.registered.load(Ordering::Relaxed) == 0 {
        return;
    }
    for (epfd, entry) in table::walk(0, u32::MAX) {
        let Entry::Epoll(number) = entry else { continue };
        // This thread may hold the lock, in a wait for the set; that wait finds the lane by itself.
        let Some(mut set) = set_at(number).and_then(Slot::lock) else { continue };
        // Another thread may have given the lane back since. It updated the set, or will do so.
        if connection.phase() != Phase::Laned {
            return;
        }
        let indices: Vec<u32> = set.by_fd.values().copied().collect();
        for index in indices {
            let Some(registration) = set.get(index) else { continue };
            if registration.place == connection.place && !registration.laned {
                set.moved_to_lane(epfd, index);
            }
        }
    }
}

impl Set {
    /// The connection of a registration came to a lane.
    pub(super) fn moved_to_lane(&mut self, epfd: RawFd, index: u32) {
        let Some(registration) = self.get(index) else { return };
        registration.spent |= has_fired(epfd, registration);
        registration.laned = true;
        if registration.events & (ET | OUT) == ET {
            // Told anything now, the kernel would report an edge of what lies on TCP again.
            self.untagged.push(index);
        } else {
            registration.fresh = true;
            tell_kernel(epfd, registration, index);
        }
        self.enlist(epfd, index);
    }
}

/// Something arrived on the connection's lane over the endpoint. If a set is ready by that, wakes
/// those that wait for it, as a byte on the kernel's socket does for a lane in memory. Otherwise
/// arms the connection again: a control word rings, too, and must not look like an edge.
pub fn rung(connection: Connection) {
    for_each_laned(connection, |set, epfd, index| {
        let Some(registration) = set.get(index) else { return };
        if !registration.dormant && !registration.spent {
            set.enlist(epfd, index);
        }
    });
}

/// This end shut the connection down, which is an edge, as in the kernel.
pub fn shut(connection: Connection) {
    for_each_laned(connection, |set, epfd, index| {
        let Some(registration) = set.get(index) else { return };
        registration.fresh = true;
        set.enlist(epfd, index);
    });
}

/// The connection gave its lane back: the kernel reports the events of its registrations again.
pub fn moved_back(connection: Connection) {
    for_each_laned(connection, |set, epfd, index| {
        let Some(registration) = set.get(index) else { return };
        registration.leave_lane();
        if registration.dormant {
            kernel_ctl(epfd, libc::EPOLL_CTL_DEL, registration.fd, std::ptr::null_mut());
            set.remove(index);
        } else {
            // Removed and added, since the kernel modifies nothing into EPOLLEXCLUSIVE.
            registration.exclusive = true;
            tell_kernel(epfd, registration, index);
            set.hot.retain(|hot| *hot != index);
        }
    });
}

/// Calls `change` for each registration of a connection, in all sets, that is on the lane. Its
/// arguments are the locked set, the set's descriptor and the registration's index.
fn for_each_laned(connection: Connection, change: impl Fn(&mut Set, RawFd, u32)) {
    if connection.local.registered.load(Ordering::Relaxed) == 0 {
        return;
    }
    for (epfd, entry) in table::walk(0, u32::MAX) {
        let Entry::Epoll(number) = entry else { continue };
        let Some(mut set) = set_at(number).and_then(Slot::lock) else { continue };
        let indices: Vec<u32> = set.by_fd.values().copied().collect();
        for index in indices {
            let is_laned = set.get(index).is_some_and(|registration| {
                registration.place == connection.place && registration.laned
            });
            if is_laned {
                change(&mut set, epfd, index);
            }
        }
    }
}

/// Hands the registrations of a connection that a forked process took off the fabric over to the
/// kernel. This process uses the set `epfd`, so its registration is included.
pub fn forget_here(epfd: RawFd, connection: Connection) {
    drop(set_of(epfd, false));
    forget(connection);
}

/// The library does not serve the connection any more: hands its registrations over to the kernel.
pub fn forget(connection: Connection) {
    if connection.local.registered.load(Ordering::Relaxed) == 0 {
        return;
    }
    for (epfd, entry) in table::walk(0, u32::MAX) {
        let Entry::Epoll(number) = entry else { continue };
        let Some(mut set) = set_at(number).and_then(Slot::lock) else { continue };
        if set.inherited {
            continue;
        }
        let indices: Vec<u32> = set.by_fd.values().copied().collect();
        for index in indices {
            let Some(registration) = set.get(index) else { continue };
            if registration.place != connection.place {
                continue;
            }
            let (fd, dormant) = (registration.fd, registration.dormant);
            let (events, u64) = (registration.events, registration.data);
            let mut event = libc::epoll_event { events, u64 };
            // Removed and added, since the kernel does not modify EPOLLEXCLUSIVE.
            kernel_ctl(epfd, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut());
            if !dormant {
                kernel_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &raw mut event);
            }
            set.remove(index);
        }
    }
}

/// Descriptor `fd` is about to be closed while others lead to the connection. Its registrations go
/// on by `other` of these, as the kernel's do by the file. Without it they end: the others are of
/// the library. A registration that the program removed must leave the kernel's set: it would be
/// found there if the connection got this number once more.
pub fn closing(fd: RawFd, connection: Connection, other: Option<RawFd>) {
    if connection.local.registered.load(Ordering::Relaxed) == 0 {
        return;
    }
    for (epfd, entry) in table::walk(0, u32::MAX) {
        let Entry::Epoll(number) = entry else { continue };
        let Some(mut set) = set_at(number).and_then(Slot::lock) else { continue };
        if set.inherited {
            continue;
        }
        let Some(index) = set.by_fd.get(&fd).copied() else { continue };
        let Some(found) = set.get(index).filter(|found| found.place == connection.place) else {
            continue;
        };
        kernel_ctl(epfd, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut());
        let mut event = kernel_event(found, index);
        let goes_on = other.filter(|other| {
            !found.dormant && kernel_ctl(epfd, libc::EPOLL_CTL_ADD, *other, &raw mut event) == 0
        });
        match goes_on {
            Some(other) => {
                found.fd = other;
                set.by_fd.remove(&fd);
                set.by_fd.insert(other, index);
            }
            None => set.remove(index),
        }
    }
}

/// No descriptor of this process leads to the connection any more: removes its registrations.
pub fn closed(connection: Connection) {
    if connection.local.registered.load(Ordering::Relaxed) == 0 {
        return;
    }
    for slot in all_sets() {
        let Some(mut set) = slot.lock() else { continue };
        let gone: Vec<u32> = (set.registrations.iter().zip(0u32..))
            .filter(|(registration, _)| {
                registration.as_ref().is_some_and(|r| r.place == connection.place)
            })
            .map(|(_, index)| index)
            .collect();
        for index in gone {
            set.remove(index);
        }
    }
}

/// The kernel allows no deeper nesting of sets.
const DEPTH_MAX: u32 = 5;

/// Makes the kernel report the readiness of the set `epfd`, since the set `outer`, or a poll if
/// `None`, waits for it.
pub fn watched(epfd: RawFd, outer: Option<RawFd>) {
    if !matches!(table::get(epfd), Entry::Epoll(_)) {
        return;
    }
    if let Some(outer) = outer
        && let Some(mut outer) = set_of(outer, true)
        && !outer.inner.contains(&epfd)
    {
        outer.inner.push(epfd);
    }
    if outer.is_none() {
        see(epfd);
    }
    show(epfd, DEPTH_MAX);
}

/// The library saw a wait for the set `epfd`, or for one that it is in.
fn see(epfd: RawFd) {
    if let Some(mut set) = set_of(epfd, false)
        && !set.is_seen
    {
        set.see();
    }
}

/// A thread is about to wait for a set: makes the kernel report the present readiness of the sets
/// in it. The program may have read from a connection without a look at the set that has it.
pub fn look_after_inner(epfd: RawFd) {
    look_within(epfd, DEPTH_MAX);
}

fn look_within(epfd: RawFd, depth: u32) {
    let Some(set) = set_of(epfd, false) else { return };
    if set.inner.is_empty() || depth == 0 {
        return;
    }
    let inner = set.inner.clone();
    drop(set);
    for each in inner {
        see(each);
        show(each, depth - 1);
    }
}

/// Makes the kernel report a set as ready when one of its connections is ready.
fn show(epfd: RawFd, depth: u32) {
    look_within(epfd, depth);
    let Some(mut set) = set_of(epfd, false) else { return };
    set.nested = true;
    set.leave(epfd);
    for index in 0..u32::try_from(set.registrations.len()).unwrap_or(0) {
        if set.get(index).is_some_and(is_to_be_shown) {
            set.enlist(epfd, index);
        }
    }
}

/// True when the kernel may report something else than the present readiness. Either the peer rang
/// since the connection was armed, or the kernel was asked for EPOLLOUT and nothing is ready any
/// more.
fn is_to_be_shown(registration: &mut Registration) -> bool {
    let is_served = registration.laned && !registration.dormant && !registration.spent;
    let Some(connection) = arena::at(registration.place).filter(|_| is_served) else {
        return false;
    };
    match registration.woken {
        true => compute(registration, connection, false) == 0,
        // Wakeups that another sleeper left would still show the set as ready.
        false => !connection.is_armed(registration.fd) || connection.has_stale_wakeups(),
    }
}
