//! Epoll sets that hold connections of the fabric among ordinary descriptors.
//!
//! The kernel's set stays in charge of everything: a tracked connection is in it with a tag of ours
//! instead of the program's data, and the tag leads back to what the program registered. While a
//! connection is on TCP its events are the kernel's. On a lane, readiness is computed, and the
//! kernel's set is where a bell shows.
//!
//! A connection that was active lately is *hot*: it is looked at directly, without a system call.
//! One that stayed quiet is armed and left to the kernel, so that idle connections cost nothing.
//!
//! # Invariants
//! - Before the kernel's `epoll_wait` may sleep, every hot connection is armed and looked at again.
//! - A tag names a registration and its generation; what the kernel reports for one that is gone is
//!   dropped.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP, c_int};
use weft_fabric::WaitFor;
use weft_sync::{Patience, Step, crowd};

use crate::arena::{self, Connection, flag, phase};
use crate::guard::{ForkLock, LocalGuard, LocalLock};
use crate::sys::Word;
use crate::table::{self, Entry};
use crate::{process, sys};

/// Upper half of a tag; no pointer and no small number looks like it.
const TAG: u64 = 0xe7f7_5bad << 32;
const TAG_MASK: u64 = 0xffff_ffff << 32;
const SETS_MAX: usize = 4096;
const REGISTRATIONS_MAX: usize = 1 << 20;
/// Looks at a hot connection without finding anything before it is armed and left to the kernel.
const LOOKS_MAX: u32 = 512;
/// Looks at hot connections alone before the kernel's set gets its turn.
const LOOKS_A_TURN: u32 = 8;

const IN: u32 = bits(EPOLLIN);
const OUT: u32 = bits(EPOLLOUT);
const ERR: u32 = bits(EPOLLERR);
const HUP: u32 = bits(EPOLLHUP);
const RDHUP: u32 = bits(EPOLLRDHUP);
const ET: u32 = bits(EPOLLET);
const ONESHOT: u32 = bits(EPOLLONESHOT);

const fn bits(value: c_int) -> u32 {
    value.cast_unsigned()
}

struct Registration {
    fd: RawFd,
    place: u32,
    events: u32,
    data: u64,
    /// On the lane, so that readiness is computed.
    laned: bool,
    /// Looked at directly.
    hot: bool,
    /// ONESHOT has fired.
    spent: bool,
    /// The program took it out; the kernel's set keeps it, since programs that put a connection in
    /// and out for every message would pay two system calls for each.
    dormant: bool,
    /// What had arrived when an edge was last reported.
    seen: u64,
    /// Report the next readiness whatever the edge says.
    fresh: bool,
    /// The kernel's registration is edge-triggered.
    kernel_edge: bool,
    idle: u32,
}

#[derive(Default)]
struct Set {
    registrations: Vec<Option<Registration>>,
    free: Vec<u32>,
    by_fd: HashMap<RawFd, u32>,
    hot: Vec<u32>,
    looks: u32,
    share: u32,
    descriptors: u32,
    /// Threads inside the kernel's wait.
    sleeping: u32,
    /// A hot or armed connection waits for room.
    room: bool,
    /// Another set, or a poll, waits for this one.
    nested: bool,
}

type Slot = LocalLock<Set>;

static SETS: [AtomicPtr<Slot>; SETS_MAX] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; SETS_MAX];
static SETS_END: AtomicU32 = AtomicU32::new(0);
static FREE_SETS: LocalLock<Vec<u32>> = LocalLock::new(Vec::new());

fn set_at(number: u32) -> Option<&'static Slot> {
    let set = SETS.get(number as usize)?.load(Ordering::Acquire);
    // SAFETY: sets are leaked boxes, so a pointer that was stored stays valid.
    (!set.is_null()).then(|| unsafe { &*set })
}

fn all_sets() -> impl Iterator<Item = &'static Slot> {
    (0..SETS_END.load(Ordering::Acquire)).filter_map(set_at)
}

/// A set was made.
pub fn created(epfd: RawFd) {
    let errno = sys::errno();
    drop(set_of(epfd, true));
    sys::set_errno(errno);
}

/// The set behind `epfd`; made here for one that came by other ways than `epoll_create`.
fn set_of(epfd: RawFd, make: bool) -> Option<LocalGuard<'static, Set>> {
    if let Entry::Epoll(number) = table::get(epfd) {
        return set_at(number)?.lock();
    }
    if !make || !table::covers(epfd) {
        return None;
    }
    let mut free = FREE_SETS.lock()?;
    let number = match free.pop() {
        Some(number) => number,
        None => {
            let number = SETS_END.load(Ordering::Relaxed);
            let slot = SETS.get(number as usize)?;
            slot.store(Box::into_raw(Box::new(Slot::new(Set::default()))), Ordering::Release);
            SETS_END.store(number + 1, Ordering::Release);
            number
        }
    };
    drop(free);
    let mut set = set_at(number)?.lock()?;
    *set = Set { descriptors: 1, ..Set::default() };
    table::set(epfd, Entry::Epoll(number));
    Some(set)
}

impl Set {
    fn get(&mut self, index: u32) -> Option<&mut Registration> {
        self.registrations.get_mut(index as usize)?.as_mut()
    }

    fn insert(&mut self, registration: Registration) -> Option<u32> {
        let fd = registration.fd;
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.registrations.len() < REGISTRATIONS_MAX => {
                self.registrations.push(None);
                u32::try_from(self.registrations.len() - 1).ok()?
            }
            None => return None,
        };
        self.registrations[index as usize] = Some(registration);
        self.by_fd.insert(fd, index);
        Some(index)
    }

    fn remove(&mut self, index: u32) {
        let Some(place) = self.registrations.get_mut(index as usize) else { return };
        let Some(registration) = place.take() else { return };
        self.by_fd.remove(&registration.fd);
        self.hot.retain(|hot| *hot != index);
        self.free.push(index);
        if let Some(connection) = arena::at(registration.place) {
            let registered = &connection.local.registered;
            let _ = registered
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
        }
    }

    /// A registration is new or changed: it is looked at next, or, when a thread sleeps in the
    /// kernel's wait, armed, and that thread woken if there is something already.
    fn enlist(&mut self, epfd: RawFd, index: u32) {
        if self.sleeping == 0 && !self.nested {
            self.warm(index);
            return;
        }
        let Some(registration) = self.get(index) else { return };
        let (fd, wants) = (registration.fd, registration.events);
        let Some(connection) = arena::at(registration.place) else { return };
        connection.arm(fd, WaitFor::Data);
        if wants & OUT != 0 {
            connection.arm(fd, WaitFor::Room);
        }
        connection.settle();
        if compute(registration, connection, false) != 0 {
            // The kernel's socket is always writable: asking for that wakes the sleeper.
            let mut event = kernel_event(registration, index);
            event.events |= OUT;
            kernel_ctl(epfd, libc::EPOLL_CTL_MOD, fd, &raw mut event);
            self.warm(index);
        }
    }

    /// Has those that wait for room looked at again.
    fn warm_writers(&mut self) {
        self.room = false;
        for index in 0..u32::try_from(self.registrations.len()).unwrap_or(0) {
            let writes = self.get(index).is_some_and(|r| r.laned && r.events & OUT != 0);
            if writes {
                self.warm(index);
            }
        }
    }

    fn warm(&mut self, index: u32) {
        if let Some(registration) = self.get(index) {
            registration.idle = 0;
            if !registration.hot {
                registration.hot = true;
                self.hot.push(index);
            }
        }
    }
}

/// What the kernel's set is told to watch for.
fn kernel_event(registration: &Registration, index: u32) -> libc::epoll_event {
    let events = if !registration.laned {
        registration.events
    } else if registration.spent {
        0
    } else {
        // While the receiving direction is on TCP, the kernel's own edges and single shots count.
        let own = registration.events & (ET | ONESHOT);
        IN | RDHUP | if registration.kernel_edge { ET } else { own }
    };
    libc::epoll_event { events, u64: TAG | u64::from(index) }
}

fn kernel_ctl(epfd: RawFd, op: c_int, fd: RawFd, event: *mut libc::epoll_event) -> c_int {
    let arguments = [epfd.word(), op.word(), fd.word(), event.word(), 0, 0];
    // SAFETY: epoll_ctl reads one event where there is one; a bad descriptor is an error.
    let result = unsafe { sys::raw(libc::SYS_epoll_ctl, arguments) };
    c_int::try_from(sys::c_result(result)).unwrap_or(-1)
}

/// `epoll_ctl` for a tracked connection.
pub fn control(
    epfd: RawFd,
    op: c_int,
    fd: RawFd,
    event: *mut libc::epoll_event,
    connection: Connection,
) -> c_int {
    let decided = connection.decide(fd);
    let Some(mut set) = set_of(epfd, op == libc::EPOLL_CTL_ADD) else {
        return kernel_ctl(epfd, op, fd, event);
    };
    let known = set.by_fd.get(&fd).copied();
    // SAFETY: the caller's event, which epoll_ctl would read; unaligned since it is packed.
    let wanted = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
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
    let laned = decided == phase::LANED;
    match (op, known) {
        (libc::EPOLL_CTL_MOD, Some(index)) => {
            let Some(registration) = set.get(index) else { return -1 };
            registration.change(wanted);
            registration.laned |= laned;
            let mut event = kernel_event(registration, index);
            let laned = registration.laned;
            let result = kernel_ctl(epfd, op, fd, &raw mut event);
            if result == 0 && laned {
                set.enlist(epfd, index);
            }
            result
        }
        (libc::EPOLL_CTL_ADD, stale) => {
            if let Some(index) = stale {
                set.remove(index);
            }
            add(&mut set, epfd, fd, wanted, connection, laned)
        }
        _ => kernel_ctl(epfd, op, fd, event),
    }
}

impl Registration {
    fn change(&mut self, wanted: libc::epoll_event) {
        self.events = wanted.events;
        self.data = wanted.u64;
        self.spent = false;
        self.dormant = false;
        self.fresh = true;
    }
}

impl Set {
    /// Changes a registration whose place in the kernel's set stays as it is: one on a lane, where
    /// bells are edges. `None` when the kernel must be told.
    fn change_quietly(
        &mut self,
        epfd: RawFd,
        index: u32,
        op: c_int,
        wanted: Option<libc::epoll_event>,
        connection: Connection,
    ) -> Option<c_int> {
        let registration = self.get(index)?;
        if !registration.kernel_edge || registration.place != connection.place {
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
        place: connection.place,
        events: wanted.events,
        data: wanted.u64,
        laned,
        hot: false,
        spent: false,
        dormant: false,
        seen: 0,
        fresh: true,
        kernel_edge: false,
        idle: 0,
    };
    let Some(index) = set.insert(registration) else {
        sys::set_errno(libc::ENOSPC);
        return -1;
    };
    connection.local.registered.fetch_add(1, Ordering::Relaxed);
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

/// The connection moved to a lane: its registrations are computed from now on.
pub fn moved(connection: Connection, _fd: RawFd) {
    if connection.local.registered.load(Ordering::Relaxed) == 0 {
        return;
    }
    for (epfd, entry) in table::walk(0, u32::MAX) {
        let Entry::Epoll(number) = entry else { continue };
        // Re-entered from this set's own wait: it finds out by itself.
        let Some(mut set) = set_at(number).and_then(Slot::lock) else { continue };
        let indices: Vec<u32> = set.by_fd.values().copied().collect();
        for index in indices {
            let Some(registration) = set.get(index) else { continue };
            if registration.place == connection.place && !registration.laned {
                registration.laned = true;
                // Telling the kernel the same again would make it report an edge again.
                let edges = registration.events & (ET | OUT) == ET;
                if !edges {
                    registration.fresh = true;
                    let mut event = kernel_event(registration, index);
                    kernel_ctl(epfd, libc::EPOLL_CTL_MOD, registration.fd, &raw mut event);
                }
                set.enlist(epfd, index);
            }
        }
    }
}

/// No descriptor of this process refers to the connection any more.
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

/// One of several descriptors of a connection is closed: its registrations go on, as in the
/// kernel, since the file is still open.
pub fn closed_descriptor(_fd: RawFd) {}

/// One descriptor of a set is closed.
pub fn destroyed(number: u32) {
    let Some(slot) = set_at(number) else { return };
    let Some(mut set) = slot.lock() else { return };
    set.descriptors = set.descriptors.saturating_sub(1);
    if set.descriptors > 0 {
        return;
    }
    for index in 0..u32::try_from(set.registrations.len()).unwrap_or(0) {
        set.remove(index);
    }
    *set = Set::default();
    drop(set);
    if let Some(mut free) = FREE_SETS.lock() {
        free.push(number);
    }
}

/// One more descriptor for a set.
pub fn retain(number: u32) {
    if let Some(mut set) = set_at(number).and_then(Slot::lock) {
        set.descriptors += 1;
    }
}

/// Locks everything, for fork.
pub fn before_fork() {
    FREE_SETS.take();
    all_sets().for_each(ForkLock::take);
}

/// Gives the locks back on both sides of a fork.
pub fn after_fork() {
    all_sets().for_each(ForkLock::give_back);
    FREE_SETS.give_back();
}

/// True when `epfd` holds connections that need more than the kernel's wait.
pub fn is_ours(epfd: RawFd) -> bool {
    matches!(table::get(epfd), Entry::Epoll(_))
}

/// Somebody waits for the set itself: in another set, or by poll.
pub fn watched(epfd: RawFd) {
    let Some(mut set) = set_of(epfd, false) else { return };
    if !set.nested {
        set.nested = true;
        set.leave(epfd);
    }
}

/// The kernel's wait: (buffer, maximum, timeout in ms) to what it returned.
pub type KernelWait<'a> = dyn FnMut(&mut [libc::epoll_event], c_int) -> c_int + 'a;

/// `epoll_wait` for a set with connections. `timeout` is in milliseconds, -1 without end.
pub fn wait(
    epfd: RawFd,
    events: &mut [libc::epoll_event],
    timeout: c_int,
    kernel: &mut KernelWait<'_>,
) -> c_int {
    let deadline = u64::try_from(timeout).ok().map(|ms| sys::now_ns() + ms * 1_000_000);
    let settings = process::settings();
    let mut patience: Option<Patience> = None;
    loop {
        let Some(mut set) = set_of(epfd, false) else { return kernel(events, timeout) };
        let (found, unsure) = set.look(epfd, events);
        set.looks = set.looks.wrapping_add(1);
        if found > 0 && !unsure && !set.looks.is_multiple_of(LOOKS_A_TURN) {
            set.leave(epfd);
            return as_count(found);
        }
        if set.hot.is_empty() {
            let left = time_left(deadline, timeout);
            drop(set);
            match finish(epfd, events, found, left, kernel) {
                Finished::Return(0) if left != 0 && !is_over(deadline) => continue,
                Finished::Return(count) => return count,
                Finished::Again => continue,
            }
        }
        let share = set.share;
        drop(set);
        let mut steps = patience
            .unwrap_or_else(|| Patience::new(settings.spins, settings.yields).with_share(share));
        // The kernel's turn: after the spin, then now and then while yielding.
        let turn = found > 0 || timeout == 0;
        let step = steps.step();
        if turn || (step == Step::Yield && set_turn(epfd)) {
            match finish(epfd, events, found, 0, kernel) {
                Finished::Return(0) if timeout != 0 => {}
                Finished::Return(count) => {
                    learn(epfd, steps, true);
                    return count;
                }
                Finished::Again => {}
            }
            if timeout == 0 {
                return 0;
            }
        }
        match step {
            Step::Spin => std::hint::spin_loop(),
            Step::Yield => crowd::yield_core(),
            Step::Sleep => {
                learn(epfd, steps, false);
                if !prepare_to_sleep(epfd) {
                    let left = time_left(deadline, timeout);
                    match finish(epfd, events, 0, left, kernel) {
                        Finished::Return(0) | Finished::Again => {}
                        Finished::Return(count) => return count,
                    }
                }
                patience = None;
                if is_over(deadline) {
                    return 0;
                }
                continue;
            }
        }
        patience = Some(steps);
    }
}

fn set_turn(epfd: RawFd) -> bool {
    set_of(epfd, false).is_some_and(|set| set.looks.is_multiple_of(LOOKS_A_TURN))
}

fn learn(epfd: RawFd, mut patience: Patience, hit: bool) {
    if hit {
        patience.hit();
    } else {
        patience.miss();
    }
    if let Some(mut set) = set_of(epfd, false) {
        set.share = patience.share();
    }
}

fn is_over(deadline: Option<u64>) -> bool {
    deadline.is_some_and(|deadline| sys::now_ns() >= deadline)
}

fn as_count(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

fn time_left(deadline: Option<u64>, timeout: c_int) -> c_int {
    let Some(deadline) = deadline else { return timeout };
    let left = deadline.saturating_sub(sys::now_ns()).div_ceil(1_000_000);
    c_int::try_from(left).unwrap_or(c_int::MAX)
}

enum Finished {
    /// What epoll_wait returns.
    Return(c_int),
    /// The kernel had nothing but bells that led to nothing.
    Again,
}

/// Lets the kernel's set speak, behind the `found` events that are there already.
fn finish(
    epfd: RawFd,
    events: &mut [libc::epoll_event],
    found: usize,
    timeout: c_int,
    kernel: &mut KernelWait<'_>,
) -> Finished {
    if found >= events.len() {
        return Finished::Return(as_count(found));
    }
    let timeout = if found > 0 { 0 } else { timeout };
    let count = if timeout == 0 {
        kernel(&mut events[found..], 0)
    } else {
        sleep(epfd, &mut events[found..], timeout, kernel)
    };
    let Ok(count) = usize::try_from(count) else {
        return Finished::Return(if found > 0 { as_count(found) } else { count });
    };
    let Some(mut set) = set_of(epfd, false) else {
        return Finished::Return(as_count(found + count));
    };
    let mut kept = found;
    for index in found..found + count {
        let event = events[index];
        if let Some(event) = set.translate(epfd, event, &events[..found]) {
            events[kept] = event;
            kept += 1;
        }
    }
    set.leave(epfd);
    if kept == 0 && count > 0 { Finished::Again } else { Finished::Return(as_count(kept)) }
}

/// The kernel's wait, counted, and in slices while somebody waits for room: that bell may have to
/// come by another way.
fn sleep(
    epfd: RawFd,
    events: &mut [libc::epoll_event],
    timeout: c_int,
    kernel: &mut KernelWait<'_>,
) -> c_int {
    const SLICE_MS: c_int = 50;
    let mut limit = timeout;
    if let Some(mut set) = set_of(epfd, false) {
        set.sleeping += 1;
        if set.room && !(0..=SLICE_MS).contains(&limit) {
            limit = SLICE_MS;
        }
    }
    let count = kernel(events, limit);
    let errno = sys::errno();
    if let Some(mut set) = set_of(epfd, false) {
        set.sleeping = set.sleeping.saturating_sub(1);
        if set.room && count == 0 {
            set.warm_writers();
        }
    }
    sys::set_errno(errno);
    count
}

/// Arms every hot connection; true when one of them became ready meanwhile.
fn prepare_to_sleep(epfd: RawFd) -> bool {
    let Some(mut set) = set_of(epfd, false) else { return false };
    let hot = std::mem::take(&mut set.hot);
    let mut last = None;
    for index in &hot {
        let Some(registration) = set.get(*index) else { continue };
        registration.hot = false;
        let (fd, wants) = (registration.fd, registration.events);
        let Some(connection) = arena::at(registration.place) else { continue };
        connection.arm(fd, WaitFor::Data);
        if wants & OUT != 0 {
            connection.arm(fd, WaitFor::Room);
            set.room = true;
        }
        last = Some(connection);
    }
    if let Some(connection) = last {
        connection.settle();
    }
    let mut ready = false;
    for index in hot {
        let Some(registration) = set.get(index) else { continue };
        let Some(connection) = arena::at(registration.place) else { continue };
        if compute(registration, connection, false) != 0 {
            connection.woken(WaitFor::Data);
            connection.woken(WaitFor::Room);
            set.warm(index);
            ready = true;
        }
    }
    ready
}

impl Set {
    /// Looks at the hot connections and returns how many events were found, and whether only the
    /// kernel knows of some direction.
    fn look(&mut self, epfd: RawFd, events: &mut [libc::epoll_event]) -> (usize, bool) {
        let mut found = 0;
        let mut unsure = false;
        let mut cold = Vec::new();
        for place in 0..self.hot.len() {
            // Begins elsewhere each time, so that nobody starves when the buffer is small.
            let index = self.hot[(place + self.looks as usize) % self.hot.len()];
            if found == events.len() {
                break;
            }
            let Some(registration) = self.get(index) else { continue };
            let Some(connection) = arena::at(registration.place) else { continue };
            make_edge(epfd, registration, index, connection);
            unsure |= !registration.kernel_edge;
            let ready = compute(registration, connection, true);
            if ready != 0 {
                registration.idle = 0;
                events[found] = libc::epoll_event { events: ready, u64: registration.data };
                found += 1;
            } else {
                registration.idle += 1;
                if registration.idle > LOOKS_MAX {
                    cold.push(index);
                }
            }
        }
        for index in cold {
            self.cool(index);
        }
        (found, unsure)
    }

    /// At the end of a wait: a set that others wait for must show what comes in the kernel's eyes.
    fn leave(&mut self, epfd: RawFd) {
        if self.nested {
            for index in std::mem::take(&mut self.hot) {
                if let Some(registration) = self.get(index) {
                    registration.hot = false;
                }
                self.enlist(epfd, index);
            }
        }
    }

    /// Leaves a quiet connection to the kernel.
    fn cool(&mut self, index: u32) {
        let Some(registration) = self.get(index) else { return };
        registration.idle = 0;
        let (fd, wants) = (registration.fd, registration.events);
        let Some(connection) = arena::at(registration.place) else { return };
        connection.arm(fd, WaitFor::Data);
        if wants & OUT != 0 {
            connection.arm(fd, WaitFor::Room);
        }
        connection.settle();
        if compute(registration, connection, false) == 0 {
            registration.hot = false;
            self.hot.retain(|hot| *hot != index);
        } else {
            connection.woken(WaitFor::Data);
            connection.woken(WaitFor::Room);
        }
    }

    /// Turns what the kernel reported into what the program is told.
    fn translate(
        &mut self,
        epfd: RawFd,
        mut event: libc::epoll_event,
        found: &[libc::epoll_event],
    ) -> Option<libc::epoll_event> {
        let tag = event.u64;
        if tag & TAG_MASK != TAG {
            return Some(event);
        }
        let index = u32::try_from(tag & !TAG_MASK).ok()?;
        let registration = self.get(index)?;
        if registration.dormant {
            return None;
        }
        let connection = arena::at(registration.place)?;
        let data = registration.data;
        if !registration.laned {
            event.u64 = data;
            if registration.events & ONESHOT != 0 {
                registration.spent = true;
            }
            return Some(event);
        }
        let kernel = event.events;
        if kernel & (HUP | ERR) != 0 {
            connection.heard(sys::Bell::Failed(rustix::io::Errno::CONNRESET));
        } else if kernel & RDHUP != 0 && !connection.has(flag::READING_SHUT) {
            connection.heard(sys::Bell::End);
        }
        connection.woken(WaitFor::Data);
        connection.woken(WaitFor::Room);
        make_edge(epfd, registration, index, connection);
        let mut ready = compute(registration, connection, true);
        if connection.readable().is_none() && !registration.spent {
            // Still on TCP in this direction: data there is data.
            ready |= kernel & (IN | RDHUP | HUP | ERR) & (registration.events | HUP | ERR);
            registration.spent = ready != 0 && registration.events & ONESHOT != 0;
            registration.fresh &= ready == 0;
            if ready == 0 && registration.events & ONESHOT != 0 {
                // A bell spent the kernel's single shot.
                let mut event = kernel_event(registration, index);
                kernel_ctl(epfd, libc::EPOLL_CTL_MOD, registration.fd, &raw mut event);
            }
        }
        self.warm(index);
        // It may have been found by a direct look already.
        let told = found.iter().any(|other| {
            let other_data = other.u64;
            other_data == data
        });
        if ready == 0 || told {
            return None;
        }
        event.events = ready;
        event.u64 = data;
        Some(event)
    }
}

/// Once a direction is on the lane, its bells are edges: what lies undrained in the kernel's
/// socket does not wake again.
fn make_edge(epfd: RawFd, registration: &mut Registration, index: u32, connection: Connection) {
    if registration.kernel_edge || !registration.laned || connection.readable().is_none() {
        return;
    }
    registration.kernel_edge = true;
    let mut event = kernel_event(registration, index);
    kernel_ctl(epfd, libc::EPOLL_CTL_MOD, registration.fd, &raw mut event);
}

/// What a registration on a lane is ready for; with `report`, an edge counts as told.
fn compute(registration: &mut Registration, connection: Connection, report: bool) -> u32 {
    if registration.spent || registration.dormant {
        return 0;
    }
    let wants = registration.events;
    let mut ready = 0;
    let (readable, end) = connection.read_readiness();
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
        None if wants & ET != 0
            && connection.arrived(registration.seen).unwrap_or(0) > registration.seen =>
        {
            ready |= IN & wants;
        }
        _ => {}
    }
    let may_write = wants & OUT != 0 && writes(registration, connection);
    if may_write {
        ready |= OUT;
    }
    if wants & ET != 0 {
        ready = edge(registration, connection, ready, report);
    }
    if report && ready != 0 && wants & ONESHOT != 0 {
        registration.spent = true;
    }
    ready
}

fn writes(registration: &Registration, connection: Connection) -> bool {
    connection.writable().unwrap_or_else(|| {
        let events = rustix::event::PollFlags::OUT;
        sys::poll_one(registration.fd, events, 0).is_ok_and(|seen| !seen.is_empty())
    })
}

/// Of `ready`, what is new since it was last reported.
fn edge(registration: &mut Registration, connection: Connection, ready: u32, report: bool) -> u32 {
    let arrived = connection.arrived(registration.seen).unwrap_or(0);
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
