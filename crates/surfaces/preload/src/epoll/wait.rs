//! `epoll_wait`: looks at hot connections, asks the kernel's set, and sleeps.

use std::os::fd::RawFd;

use libc::c_int;
use weft_sync::{AdaptiveWait, Step};

use super::control::look_after_inner;
use super::sets::set_of;
use crate::signals::Watch;
use crate::waits::{self, Limit, time_left};
use crate::{backlog, carrier, process, sys};

/// After this many looks at hot connections, the kernel's set is asked, too.
const LOOKS_A_TURN: u32 = 8;
/// After more calls in a row that hot connections alone filled, the kernel's set is asked first.
const FULL_CALLS_MAX: u32 = 3;

/// The kernel's wait: takes a buffer and a limit, and returns what the system call did. With a
/// descriptor it waits until that or the set is readable, and takes no events.
pub type KernelWait<'a> = dyn FnMut(&mut [libc::epoll_event], Limit, Option<RawFd>) -> c_int + 'a;

/// A limit for calls that only look.
const NOW: Limit = Some(0);

/// `epoll_wait` for a tracked set. `between` is called before each look, while nothing is locked.
#[inline(always)]
#[allow(clippy::inline_always, reason = "it has one caller; as a call it costs 4 %")]
pub fn wait(
    epfd: RawFd,
    events: &mut [libc::epoll_event],
    limit: Limit,
    between: fn(),
    kernel: &mut KernelWait<'_>,
) -> c_int {
    let mut known = None;
    let settings = process::settings();
    let mut adaptive_wait: Option<AdaptiveWait> = None;
    let watch = Watch::new();
    let mut looked_within = false;
    loop {
        between();
        let Some(mut set) = set_of(epfd, false) else {
            return kernel(events, limit, None);
        };
        if !set.is_seen {
            set.see();
        }
        if !set.inner.is_empty() && !looked_within {
            looked_within = true;
            drop(set);
            look_after_inner(epfd);
            continue;
        }
        if set.full_calls > FULL_CALLS_MAX {
            drop(set);
            match finish(epfd, events, 0, NOW, kernel) {
                Finished::Return(0) | Finished::Again => {}
                Finished::Return(count) => return count,
            }
            continue;
        }
        let (found, unsure) = set.look(epfd, events);
        set.looks = set.looks.wrapping_add(1);
        set.full_calls += u32::from(found == events.len());
        if found > 0 && !unsure && !set.looks.is_multiple_of(LOOKS_A_TURN) {
            if let Some(mut adaptive_wait) = adaptive_wait {
                adaptive_wait.hit();
                set.learned = adaptive_wait.learned();
            }
            set.leave(epfd);
            return as_count(found);
        }
        // A call that finds events at once does not ask for the time.
        let deadline = *known.get_or_insert_with(|| waits::deadline(limit));
        if set.hot.is_empty() {
            let left = time_left(deadline);
            drop(set);
            match finish(epfd, events, found, left, kernel) {
                Finished::Return(0) if left != NOW && !is_over(deadline) => continue,
                Finished::Return(count) => return count,
                Finished::Again => continue,
            }
        }
        let learned = set.learned;
        drop(set);
        let mut steps = adaptive_wait
            .unwrap_or_else(|| AdaptiveWait::new(settings.spins, settings.yields).with(learned));
        // The kernel's set is asked after the spin, then now and then while yielding.
        let turn = found > 0 || limit == NOW;
        let step = steps.step();
        if turn || (step == Step::Yield && set_turn(epfd)) {
            match finish(epfd, events, found, NOW, kernel) {
                Finished::Return(0) if limit != NOW => {}
                Finished::Return(count) => {
                    learn(epfd, steps, true);
                    return count;
                }
                Finished::Again => {}
            }
            if limit == NOW {
                return 0;
            }
        }
        if watch.saw_any() {
            sys::set_errno(libc::EINTR);
            return -1;
        }
        match step {
            Step::Spin => std::hint::spin_loop(),
            Step::Yield => steps.give_way(),
            Step::Sleep => {
                learn(epfd, steps, false);
                if !prepare_to_sleep(epfd) {
                    let left = time_left(deadline);
                    match finish(epfd, events, 0, left, kernel) {
                        Finished::Return(0) | Finished::Again => {}
                        Finished::Return(count) => return count,
                    }
                }
                adaptive_wait = None;
                if is_over(deadline) {
                    return 0;
                }
                continue;
            }
        }
        adaptive_wait = Some(steps);
    }
}

fn set_turn(epfd: RawFd) -> bool {
    set_of(epfd, false).is_some_and(|set| set.looks.is_multiple_of(LOOKS_A_TURN))
}

fn learn(epfd: RawFd, mut adaptive_wait: AdaptiveWait, hit: bool) {
    if hit {
        adaptive_wait.hit();
    } else {
        adaptive_wait.miss();
    }
    if let Some(mut set) = set_of(epfd, false) {
        set.learned = adaptive_wait.learned();
    }
}

fn is_over(deadline: Option<u64>) -> bool {
    deadline.is_some_and(|deadline| sys::now_ns() >= deadline)
}

fn as_count(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

enum Finished {
    /// The result of epoll_wait.
    Return(c_int),
    /// The kernel reported nothing but wakeups that led to no event.
    Again,
}

/// Asks the kernel's set; its events come behind the `found` ones.
fn finish(
    epfd: RawFd,
    events: &mut [libc::epoll_event],
    found: usize,
    limit: Limit,
    kernel: &mut KernelWait<'_>,
) -> Finished {
    if found >= events.len() {
        return Finished::Return(as_count(found));
    }
    let limit = if found > 0 { NOW } else { limit };
    let count = if limit == NOW {
        kernel(&mut events[found..], NOW, None)
    } else {
        sleep(epfd, &mut events[found..], limit, kernel)
    };
    let Ok(count) = usize::try_from(count) else {
        return Finished::Return(if found > 0 { as_count(found) } else { count });
    };
    let Some(mut set) = set_of(epfd, false) else {
        return Finished::Return(as_count(found + count));
    };
    set.full_calls = 0;
    let mut kept = found;
    for index in found..found + count {
        let event = events[index];
        if let Some(event) = set.translate(epfd, event, &mut events[..found]) {
            events[kept] = event;
            kept += 1;
        }
    }
    set.leave(epfd);
    if kept == 0 && count > 0 { Finished::Again } else { Finished::Return(as_count(kept)) }
}

/// Sleeps in the kernel's wait. While a connection waits for room, which may never come, the sleep
/// is cut into slices.
fn sleep(
    epfd: RawFd,
    events: &mut [libc::epoll_event],
    mut limit: Limit,
    kernel: &mut KernelWait<'_>,
) -> c_int {
    if let Some(mut set) = set_of(epfd, false) {
        if !set.hot.is_empty() {
            // Another thread changed a registration since this thread looked. It saw no sleeper, so
            // it did not arm the connection.
            return 0;
        }
        set.sleeping += 1;
        if let Some(slice) = set.room_ns {
            limit = Some(waits::at_most(limit, slice));
        }
    }
    let count = sleep_in_kernel(events, backlog::bounds(limit), kernel);
    let errno = sys::errno();
    if let Some(mut set) = set_of(epfd, false) {
        set.sleeping = set.sleeping.saturating_sub(1);
        if set.room_ns.is_some() && count == 0 {
            set.warm_writers();
        }
    }
    sys::set_errno(errno);
    count
}

/// Sleeps in the kernel's wait. A thread that has the watch over the endpoint sleeps on that, too,
/// and then has the sets tell of what arrived, this one among them.
fn sleep_in_kernel(
    events: &mut [libc::epoll_event],
    limit: Limit,
    kernel: &mut KernelWait<'_>,
) -> c_int {
    if !carrier::is_there() {
        return kernel(events, limit, None);
    }
    let Some(asleep) = carrier::falls_asleep(None) else { return kernel(events, NOW, None) };
    let slice = asleep.bounds(limit);
    let beside = asleep.descriptor();
    if beside.is_none() && slice == limit {
        return kernel(events, limit, None);
    }
    let count = kernel(events, slice, beside);
    let errno = sys::errno();
    drop(asleep);
    if beside.is_some() && count >= 0 || count == 0 {
        return kernel(events, NOW, None);
    }
    sys::set_errno(errno);
    count
}

/// Arms every hot connection; true when one of them is ready by then.
fn prepare_to_sleep(epfd: RawFd) -> bool {
    let Some(mut set) = set_of(epfd, false) else { return false };
    let hot = set.hot.clone();
    set.rest(epfd, &hot)
}
