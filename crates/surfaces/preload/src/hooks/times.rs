//! Times that programs give to waits, and the kernel's waits with such times.
//!
//! A time that the kernel refuses is refused here with the same error, before anything is looked
//! at. A wait lasts as long as the program says, to the nanosecond and not to the millisecond.

use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, epoll_event, pollfd, sigset_t, timespec, timeval};
use rustix::io::Errno;

use super::memory::check;
use super::{as_int, kernel};
use crate::waits::{self, Limit};
use crate::{cancel, sys};

/// The bytes of a set of signals that the kernel has.
pub(super) const MASK_BYTES: usize = 8;

const SECOND_NS: u64 = 1_000_000_000;

fn nanoseconds(seconds: i64, nanoseconds: i64) -> Result<u64, Errno> {
    let seconds = u64::try_from(seconds).map_err(|_| Errno::INVAL)?;
    let nanoseconds = u64::try_from(nanoseconds).map_err(|_| Errno::INVAL)?;
    if nanoseconds >= SECOND_NS {
        return Err(Errno::INVAL);
    }
    Ok(seconds.saturating_mul(SECOND_NS).saturating_add(nanoseconds))
}

/// The limit that `time` is.
///
/// # Safety
/// `time` is null or the program's, unless `check` refuses the address.
pub(super) unsafe fn limit(time: *const timespec) -> Result<Limit, Errno> {
    if time.is_null() {
        return Ok(None);
    }
    check(time as usize, size_of::<timespec>())?;
    // SAFETY: the caller's promise.
    let time = unsafe { time.read() };
    nanoseconds(time.tv_sec, time.tv_nsec).map(Some)
}

/// As [`limit`], of a time with microseconds, which may be more than a second.
///
/// # Safety
/// As [`limit`].
pub(super) unsafe fn limit_of_timeval(time: *const timeval) -> Result<Limit, Errno> {
    const SECOND_US: i64 = 1_000_000;
    if time.is_null() {
        return Ok(None);
    }
    check(time as usize, size_of::<timeval>())?;
    // SAFETY: the caller's promise.
    let time = unsafe { time.read() };
    if time.tv_sec < 0 || time.tv_usec < 0 {
        return Err(Errno::INVAL);
    }
    let seconds = time.tv_sec.saturating_add(time.tv_usec / SECOND_US);
    nanoseconds(seconds, time.tv_usec % SECOND_US * 1000).map(Some)
}

/// The limit of a call that takes milliseconds, and any number below 0 for no end.
pub(super) fn limit_of_ms(milliseconds: c_int) -> Limit {
    u64::try_from(milliseconds).ok().map(|milliseconds| milliseconds * 1_000_000)
}

/// -1 with errno set.
pub(super) fn refused(errno: Errno) -> c_int {
    sys::set_errno(errno.raw_os_error());
    -1
}

/// Makes a call that sleeps unless it only looks.
fn asleep(limit: Limit, call: &mut dyn FnMut() -> c_int) -> c_int {
    if limit == Some(0) { call() } else { cancel::asleep(call) }
}

/// The kernel's ppoll.
pub(super) fn kernel_poll(fds: &mut [pollfd], limit: Limit, mask: *const sigset_t) -> c_int {
    let time = waits::timespec(limit);
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    asleep(limit, &mut || {
        as_int(kernel!(SYS_ppoll, fds.as_mut_ptr(), fds.len(), time, mask, MASK_BYTES))
    })
}

/// The kernel's epoll_pwait2, or before Linux 5.11 its epoll_pwait, which knows milliseconds.
pub(super) fn kernel_epoll(
    epfd: c_int,
    events: &mut [epoll_event],
    limit: Limit,
    mask: *const sigset_t,
) -> c_int {
    static IS_OLD: AtomicBool = AtomicBool::new(false);
    let (place, room) = (events.as_mut_ptr(), events.len());
    if limit.is_some_and(|limit| limit > 0) && !IS_OLD.load(Ordering::Relaxed) {
        let time = waits::timespec(limit);
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let result = asleep(limit, &mut || {
            as_int(kernel!(SYS_epoll_pwait2, epfd, place, room, time, mask, MASK_BYTES))
        });
        // Filters of containers that do not know the call say EPERM.
        if result >= 0 || !matches!(sys::errno(), libc::ENOSYS | libc::EPERM) {
            return result;
        }
        IS_OLD.store(true, Ordering::Relaxed);
    }
    let milliseconds =
        limit.map_or(-1, |limit| c_int::try_from(limit.div_ceil(1_000_000)).unwrap_or(c_int::MAX));
    asleep(limit, &mut || {
        as_int(kernel!(SYS_epoll_pwait, epfd, place, room, milliseconds, mask, MASK_BYTES))
    })
}
