//! System calls of this crate: the clock for timeouts, and the wakeup socket that wakes an
//! endpoint.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType,
};

/// Monotonic time since an unspecified moment.
pub fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Makes a wakeup: the end that peers write to, and the end that the owner waits on.
///
/// # Errors
/// As socketpair(2).
pub fn wakeup_socket() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Makes the owner's end of a wakeup readable. Never blocks. A wakeup is a socket and not an
/// eventfd because the owner of an eventfd could make this write block.
pub fn ring(wakeup: BorrowedFd<'_>) {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let byte = [IoSlice::new(&[1])];
    // A full socket is readable already. A broken socket belongs to a peer that needs no wake-up.
    let _ = rustix::net::sendmsg(wakeup, &byte, &mut SendAncillaryBuffer::default(), flags);
}

/// A descriptor that is readable while any of `files` is.
///
/// # Errors
/// As epoll_create(2) and epoll_ctl(2).
pub fn watch(files: &[BorrowedFd<'_>]) -> Result<OwnedFd, Errno> {
    let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for file in files {
        watch_also(both.as_fd(), *file)?;
    }
    Ok(both)
}

/// Adds `file` to a descriptor made by [`watch`].
///
/// # Errors
/// As epoll_ctl(2).
pub fn watch_also(both: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<(), Errno> {
    epoll::add(both, file, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
}

/// Reads all bytes from a wakeup. False when the socket is broken.
pub fn drain(wakeup: BorrowedFd<'_>) -> bool {
    let mut bytes = [0; 4096];
    loop {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let mut beside = rustix::net::RecvAncillaryBuffer::default();
        match rustix::net::recvmsg(wakeup, &mut parts, &mut beside, RecvFlags::DONTWAIT) {
            Ok(message) if message.bytes == 0 => return false,
            Ok(message) if message.bytes < bytes.len() => return true,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return errno == Errno::AGAIN,
        }
    }
}

/// A random number that peers cannot guess.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_le_bytes(bytes),
        // Early in boot an old kernel has no random numbers; the clock still differs between calls.
        _ => u64::try_from(now().as_nanos() & u128::from(u64::MAX)).unwrap_or(1),
    }
}

/// 16 random bytes that nobody can guess. Waits early in boot, until the kernel has some.
///
/// # Errors
/// As getrandom(2).
pub fn secret() -> Result<[u8; 16], Errno> {
    let mut bytes = [0; 16];
    // The kernel fills up to 256 bytes in one call.
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())? {
        16 => Ok(bytes),
        _ => Err(Errno::INTR),
    }
}

/// Waits until `file` is readable, at most `longest`. A signal may end the wait early.
pub fn await_readable(file: BorrowedFd<'_>, longest: Duration) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let nanoseconds = i64::from(longest.subsec_nanos());
    let seconds = i64::try_from(longest.as_secs()).unwrap_or(i64::MAX);
    let timeout = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let _ = poll(&mut [PollFd::from_borrowed_fd(file, PollFlags::IN)], Some(&timeout));
}

/// A timer that is not set.
///
/// # Errors
/// As timerfd_create(2).
pub fn timer() -> Result<OwnedFd, Errno> {
    use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
    timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
}

/// Makes a timer readable after `time`; with zero it is never readable.
pub fn set_timer(timer: BorrowedFd<'_>, time: Duration) {
    use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
    let never = Timespec { tv_sec: 0, tv_nsec: 0 };
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let it_value = Timespec { tv_sec: seconds, tv_nsec: i64::from(time.subsec_nanos()) };
    let value = Itimerspec { it_interval: never, it_value };
    let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &value);
}
