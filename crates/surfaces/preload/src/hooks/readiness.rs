//! poll, select and epoll with all their variants.

use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use rustix::io::Errno;

use super::memory::check;
use super::sockets::track_unconnected;
use super::times::{
    MASK_BYTES, kernel_epoll, kernel_poll, limit, limit_of_ms, limit_of_timeval, refused,
};
use super::{as_int, kernel};
use crate::connection::{find, tracked};
use crate::poll::Selection;
use crate::real::real;
use crate::waits::{self, Limit};
use crate::{cancel, epoll, lanes, poll, sys};

/// Passes on the result of a wait. A thread that was cancelled while it waited ends here.
fn end_if_cancelled(result: c_int) -> c_int {
    if result < 0 && sys::errno() == libc::ECANCELED {
        cancel::act();
        sys::set_errno(libc::EINTR);
    }
    result
}

/// # Safety
/// As poll(2) demands of `fds`.
unsafe fn list<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    let bytes = usize::try_from(count).unwrap_or(0).saturating_mul(size_of::<pollfd>());
    // For an array that the program cannot have, the list is empty, and the kernel refuses the
    // call.
    if count == 0 || check(fds as usize, bytes).is_err() {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(fds, usize::try_from(count).unwrap_or(0)) }
}

pub(super) unsafe extern "C-unwind" fn poll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
) -> c_int {
    cancel::point();
    // SAFETY: the program's promise to poll(2).
    let entries = unsafe { list(fds, count) };
    if poll::concerns(entries) {
        return end_if_cancelled(poll::wait(entries, limit_of_ms(timeout), &mut |fds, limit| {
            kernel_poll(fds, limit, std::ptr::null())
        }));
    }
    real!(poll as fn(*mut pollfd, nfds_t, c_int) -> c_int, (fds, count, timeout),
        else as_int(kernel!(SYS_poll, fds, count, timeout)))
}

pub(super) unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    _room: size_t,
) -> c_int {
    // SAFETY: this is poll(2), with its conditions.
    unsafe { poll(fds, count, timeout) }
}

pub(super) unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    cancel::point();
    // SAFETY: the program's promise to ppoll(2).
    let entries = unsafe { list(fds, count) };
    if poll::concerns(entries) {
        // SAFETY: as above.
        let limit = match unsafe { limit(time) } {
            Ok(limit) => limit,
            Err(errno) => return refused(errno),
        };
        let mut kernel = |fds: &mut [pollfd], limit| kernel_poll(fds, limit, mask);
        return end_if_cancelled(poll::wait(entries, limit, &mut kernel));
    }
    real!(ppoll as fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int,
        (fds, count, time, mask),
        else as_int(kernel!(SYS_ppoll, fds, count, time, mask, MASK_BYTES)))
}

pub(super) unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
    _room: size_t,
) -> c_int {
    // SAFETY: this is ppoll(2), with its conditions.
    unsafe { ppoll(fds, count, time, mask) }
}

/// `select` as a poll of a list of descriptors; `None` when no connection is in the sets.
///
/// # Safety
/// As select(2) demands of the sets.
unsafe fn select_ours(
    count: c_int,
    sets: [*mut fd_set; 3],
    limit: Result<Limit, Errno>,
    mask: *const sigset_t,
) -> Option<c_int> {
    if count <= 0 {
        return None;
    }
    let [reads, writes, exceptions] = sets;
    // SAFETY: the caller's promise.
    let mut selection = unsafe { Selection::new(count, reads, writes, exceptions) };
    if !poll::concerns(selection.list()) {
        return None;
    }
    let limit = match limit {
        Ok(limit) => limit,
        Err(errno) => return Some(refused(errno)),
    };
    let result =
        poll::wait(selection.list(), limit, &mut |fds, limit| kernel_poll(fds, limit, mask));
    if result < 0 {
        return Some(result);
    }
    if selection.is_invalid() {
        sys::set_errno(libc::EBADF);
        return Some(-1);
    }
    // SAFETY: the caller's promise.
    Some(unsafe { selection.store(reads, writes, exceptions) })
}

pub(super) unsafe extern "C-unwind" fn select(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    exceptions: *mut fd_set,
    time: *mut timeval,
) -> c_int {
    cancel::point();
    // SAFETY: the program's promise to select(2).
    let limit = unsafe { limit_of_timeval(time) };
    let deadline = waits::deadline(limit.ok().flatten());
    let sets = [reads, writes, exceptions];
    // SAFETY: as above.
    let result = unsafe { select_ours(count, sets, limit, std::ptr::null()) };
    if let Some(result) = result.map(end_if_cancelled) {
        if let Some(left) = waits::time_left(deadline) {
            // On Linux, select writes back the time that is left.
            let left = i64::try_from(left / 1000).unwrap_or(i64::MAX);
            // SAFETY: the program's pointer, not null, as there is a limit.
            unsafe {
                time.write_unaligned(timeval {
                    tv_sec: left / 1_000_000,
                    tv_usec: left % 1_000_000,
                })
            };
        }
        return result;
    }
    real!(select as fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int,
        (count, reads, writes, exceptions, time),
        else as_int(kernel!(SYS_select, count, reads, writes, exceptions, time)))
}

pub(super) unsafe extern "C-unwind" fn pselect(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    exceptions: *mut fd_set,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    cancel::point();
    // SAFETY: the program's promise to pselect(2).
    let limit = unsafe { limit(time) };
    let sets = [reads, writes, exceptions];
    // SAFETY: as above.
    if let Some(result) = unsafe { select_ours(count, sets, limit, mask) }.map(end_if_cancelled) {
        return result;
    }
    let with_size = [mask as usize, MASK_BYTES];
    real!(pselect as
        fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t) -> c_int,
        (count, reads, writes, exceptions, time, mask),
        else as_int(kernel!(SYS_pselect6, count, reads, writes, exceptions, time,
            with_size.as_ptr())))
}

pub(super) unsafe extern "C-unwind" fn epoll_ctl(
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if operation == libc::EPOLL_CTL_ADD {
        track_unconnected(fd);
        epoll::watched(fd, Some(epfd));
    }
    if let Some(connection) = find(fd) {
        return epoll::control(epfd, operation, fd, event, *connection);
    }
    if let Some(connection) = tracked(fd) {
        epoll::forget_here(epfd, *connection);
    }
    real!(epoll_ctl as fn(c_int, c_int, c_int, *mut epoll_event) -> c_int,
        (epfd, operation, fd, event),
        else as_int(kernel!(SYS_epoll_ctl, epfd, operation, fd, event)))
}

/// # Safety
/// As epoll_wait(2) demands of `events`.
unsafe fn wait_ours(
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    limit: Limit,
    mask: *const sigset_t,
) -> c_int {
    let length = usize::try_from(count).unwrap_or(0);
    if let Err(errno) = check(events as usize, length.saturating_mul(size_of::<epoll_event>())) {
        sys::set_errno(errno.raw_os_error());
        return -1;
    }
    // SAFETY: the caller's promise.
    let events = unsafe { std::slice::from_raw_parts_mut(events, length) };
    end_if_cancelled(epoll::wait(
        epfd,
        events,
        limit,
        lanes::look_after,
        &mut |events, limit, beside| match beside {
            None => kernel_epoll(epfd, events, limit, mask),
            Some(beside) => {
                let both = [epfd, beside];
                let mut both = both.map(|fd| pollfd { fd, events: libc::POLLIN, revents: 0 });
                kernel_poll(&mut both, limit, mask)
            }
        },
    ))
}

fn concerns(epfd: c_int, events: *mut epoll_event, count: c_int) -> bool {
    count > 0 && !events.is_null() && epoll::is_ours(epfd)
}

pub(super) unsafe extern "C-unwind" fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    cancel::point();
    if concerns(epfd, events, count) {
        // SAFETY: the program's promise to epoll_wait(2).
        return unsafe { wait_ours(epfd, events, count, limit_of_ms(timeout), std::ptr::null()) };
    }
    real!(epoll_wait as fn(c_int, *mut epoll_event, c_int, c_int) -> c_int,
        (epfd, events, count, timeout),
        else as_int(kernel!(SYS_epoll_pwait, epfd, events, count, timeout, 0, MASK_BYTES)))
}

pub(super) unsafe extern "C-unwind" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    cancel::point();
    if concerns(epfd, events, count) {
        // SAFETY: the program's promise to epoll_pwait(2).
        return unsafe { wait_ours(epfd, events, count, limit_of_ms(timeout), mask) };
    }
    real!(epoll_pwait as fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int,
        (epfd, events, count, timeout, mask),
        else as_int(kernel!(SYS_epoll_pwait, epfd, events, count, timeout, mask, MASK_BYTES)))
}

pub(super) unsafe extern "C-unwind" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    cancel::point();
    if concerns(epfd, events, count) {
        // SAFETY: the program's promise to epoll_pwait2(2).
        let limit = match unsafe { limit(time) } {
            Ok(limit) => limit,
            Err(errno) => return refused(errno),
        };
        // SAFETY: as above.
        return unsafe { wait_ours(epfd, events, count, limit, mask) };
    }
    real!(epoll_pwait2 as
        fn(c_int, *mut epoll_event, c_int, *const timespec, *const sigset_t) -> c_int,
        (epfd, events, count, time, mask),
        else as_int(kernel!(SYS_epoll_pwait2, epfd, events, count, time, mask, MASK_BYTES)))
}
