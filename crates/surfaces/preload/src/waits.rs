//! A thread's waits in the kernel for one descriptor. Cancelling the thread ends them
//! ([`crate::cancel`]).

use std::os::fd::{AsFd, AsRawFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::bells::Bell;
use crate::cancel;
use crate::carrier::Asleep;
use crate::sys::{Word, borrow, now_ns, poll_now, raw};

/// How long a wait may last, in nanoseconds; `None` without end.
pub type Limit = Option<u64>;

/// How long a thread that waits for room sleeps before it looks whether the lane is stuck.
pub const LOOK_AGAIN_NS: u64 = 50_000_000;

/// The shorter of `limit` and a slice.
pub fn at_most(limit: Limit, slice_ns: u64) -> u64 {
    limit.map_or(slice_ns, |limit| limit.min(slice_ns))
}

/// The time for the kernel.
pub fn timespec(limit: Limit) -> Option<Timespec> {
    const SECOND_NS: u64 = 1_000_000_000;
    let part = |part: u64| i64::try_from(part).unwrap_or(i64::MAX);
    limit.map(|ns| Timespec { tv_sec: part(ns / SECOND_NS), tv_nsec: part(ns % SECOND_NS) })
}

/// The time until `deadline`, a time of [`crate::sys::now_ns`]; `None` without one.
pub fn time_left(deadline: Option<u64>) -> Limit {
    deadline.map(|deadline| deadline.saturating_sub(now_ns()))
}

/// The time at which a wait ends that begins now.
pub fn deadline(limit: Limit) -> Option<u64> {
    limit.map(|limit| now_ns().saturating_add(limit))
}

/// The reason why a wait on the kernel's socket ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wakeup {
    /// Bytes are there: wakeups, or data of a direction that is on TCP.
    Bytes,
    /// The peer sent its end of file.
    End,
    /// The connection was reset or failed.
    Failed(Errno),
    /// Something happened: the bell rang, the peer ended, or a slice of the sleep is over.
    Woken,
    /// SO_RCVTIMEO has passed, or the socket is non-blocking and has nothing.
    Nothing,
    /// A signal handler ran that does not let system calls restart.
    Interrupted,
    /// The thread was cancelled, see [`cancel`].
    Cancelled,
}

/// Waits until the kernel's socket has something, and takes nothing. The wait has the socket's
/// timeout and restarts after signals, as in a blocking `recv`.
pub fn wait_for_wakeup(fd: RawFd) -> Wakeup {
    let mut byte = [0u8; 1];
    loop {
        let woken = cancel::sleeping(|| rustix::net::recv(borrow(fd), &mut byte, RecvFlags::PEEK));
        return match woken {
            None => continue,
            Some(Ok((0, _))) => Wakeup::End,
            Some(Ok(_)) => Wakeup::Bytes,
            Some(Err(Errno::AGAIN)) => Wakeup::Nothing,
            Some(Err(Errno::INTR)) => Wakeup::Interrupted,
            Some(Err(Errno::CANCELED)) => Wakeup::Cancelled,
            Some(Err(errno)) => Wakeup::Failed(errno),
        };
    }
}

/// Waits as a blocking `recv` of `count` bytes does, with SO_RCVLOWAT, but takes no bytes.
pub fn wait_for_bytes(fd: RawFd, count: usize) -> Result<(), Errno> {
    let flags = libc::MSG_PEEK | libc::MSG_TRUNC;
    let arguments = [fd.word(), 0, count.word(), flags.word(), 0, 0];
    loop {
        let woken = cancel::sleeping(|| {
            // SAFETY: with MSG_TRUNC, TCP counts the bytes and writes none.
            let result = unsafe { raw(libc::SYS_recvfrom, arguments) };
            i32::try_from(-result).map_or(Ok(()), |errno| match errno {
                1.. => Err(Errno::from_raw_os_error(errno)),
                _ => Ok(()),
            })
        });
        if let Some(result) = woken {
            return result;
        }
    }
}

/// Waits for `events` of one descriptor, for a bell, or for what the sleep watches, within `limit`.
/// With no events the descriptor is left out, even if it reports an end. Returns
/// the events that are there.
pub fn poll_with_bell(
    fd: RawFd,
    events: PollFlags,
    (bell, asleep): (&Bell, &Asleep),
    limit: Limit,
) -> Result<PollFlags, Errno> {
    let timeout = timespec(asleep.bounds(limit));
    let descriptor = borrow(fd);
    // Without the watch the bell stands in for the endpoint's, and is left out.
    let endpoint = borrow(asleep.descriptor().unwrap_or(bell.as_fd().as_raw_fd()));
    let [first, own] = [endpoint, bell.as_fd()];
    let mut all = [
        PollFd::from_borrowed_fd(first, PollFlags::IN),
        PollFd::from_borrowed_fd(own, PollFlags::IN),
        PollFd::new(&descriptor, events),
    ];
    let from = usize::from(asleep.descriptor().is_none());
    let to = if events.is_empty() { 2 } else { 3 };
    let watched = &mut all[from..to];
    cancel::sleeping(|| rustix::event::poll(watched, timeout.as_ref())).transpose()?;
    Ok(all[2].revents())
}

/// Waits for `events` of one descriptor, at most `milliseconds`. Returns the events that are there.
pub fn poll_one(fd: RawFd, events: PollFlags, milliseconds: u64) -> Result<PollFlags, Errno> {
    poll_within(fd, events, Some(milliseconds * 1_000_000))
}

/// As [`poll_one`], within `limit`.
pub fn poll_within(fd: RawFd, events: PollFlags, limit: Limit) -> Result<PollFlags, Errno> {
    if limit == Some(0) {
        return poll_now(fd, events);
    }
    let timeout = timespec(limit);
    let descriptor = borrow(fd);
    let mut one = [PollFd::new(&descriptor, events)];
    cancel::sleeping(|| rustix::event::poll(&mut one, timeout.as_ref())).transpose()?;
    Ok(one[0].revents())
}
