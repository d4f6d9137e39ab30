//! Socket options that rustix does not wrap.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// `SO_NETNS_COOKIE` of `asm-generic/socket.h`.
const SO_NETNS_COOKIE: libc::c_int = 71;
/// `SO_PEERPIDFD` of `asm-generic/socket.h`.
const SO_PEERPIDFD: libc::c_int = 77;

/// The number of a socket's network namespace, unique while the system runs.
///
/// # Errors
/// `NOPROTOOPT` before Linux 5.14, others as for getsockopt(2).
pub fn network_namespace(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    option(socket, SO_NETNS_COOKIE, 0u64)
}

/// `SO_PEERGROUPS` of `asm-generic/socket.h`.
const SO_PEERGROUPS: libc::c_int = 59;
/// `NGROUPS_MAX` of `linux/limits.h`.
const GROUPS_MAX: usize = 65_536;

/// The process, user and group at the other end, when it connected or began to listen. The process
/// is 0 where the own process namespace has no number for it, so this is not read as a `Pid`.
///
/// # Errors
/// Those of getsockopt(2).
pub fn peer_of(socket: BorrowedFd<'_>) -> Result<(u32, u32, u32), Errno> {
    let nobody = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let found = option(socket, libc::SO_PEERCRED, nobody)?;
    Ok((found.pid.unsigned_abs(), found.uid, found.gid))
}

/// The supplementary groups of the process at the other end.
///
/// # Errors
/// Those of getsockopt(2).
pub fn peer_groups(socket: BorrowedFd<'_>) -> Result<Vec<u32>, Errno> {
    let mut groups = vec![0_u32; 32];
    loop {
        let mut length =
            libc::socklen_t::try_from(size_of_val(groups.as_slice())).map_err(|_| Errno::INVAL)?;
        // SAFETY: the kernel writes at most `length` bytes of the vector, which has as many and
        // holds numbers, and `length` itself.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = usize::try_from(length).unwrap_or(0) / size_of::<u32>();
        match last_error(result) {
            Ok(()) => {
                groups.truncate(count);
                return Ok(groups);
            }
            Err(Errno::RANGE) if count > groups.len() && count <= GROUPS_MAX => {
                groups.resize(count, 0);
            }
            Err(errno) => return Err(errno),
        }
    }
}

/// The error of a call that returned `result`.
fn last_error(result: libc::c_int) -> Result<(), Errno> {
    if result == 0 {
        return Ok(());
    }
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
    Err(Errno::from_raw_os_error(errno))
}

/// A descriptor that becomes readable when the process that connected `socket` has ended. `pid` is
/// the number of that process, 0 where the own process namespace has none.
///
/// # Errors
/// `SRCH` when it has ended already, others as for pidfd_open(2).
pub fn process_of_peer(socket: BorrowedFd<'_>, pid: u32) -> Result<OwnedFd, Errno> {
    match option::<libc::c_int>(socket, SO_PEERPIDFD, -1) {
        // SAFETY: the kernel just made this descriptor, so nobody else owns it.
        Ok(descriptor @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        // Before Linux 6.5. `pid` may have been reused by now, and the end is then reported too
        // late.
        Ok(_) | Err(Errno::NOPROTOOPT) => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
            pidfd_open(pid, PidfdFlags::empty())
        }
        Err(errno) => Err(errno),
    }
}

/// The interval of the signals that interrupt a close.
const INTERRUPTED_EVERY_NS: libc::c_long = 200_000;

/// Closes `socket`, and with it descriptors that were sent to it and not received. If one of them
/// is a connection with SO_LINGER, its close waits for the peer. The kernel ends this wait on a
/// signal, so that it takes a fraction of a millisecond here.
pub fn close_without_waiting(socket: OwnedFd) {
    let timer = Interruptions::begin();
    drop(socket);
    drop(timer);
}

/// Repeated signals to the calling thread that only interrupt its system calls.
struct Interruptions(libc::timer_t);

impl Interruptions {
    fn begin() -> Option<Self> {
        let signal = libc::SIGRTMIN() + 7;
        // SAFETY: an all-zero sigaction is valid: no flags, no mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = ignore as *const () as usize;
        // SAFETY: the handler does nothing, so it is safe at any moment.
        if unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } != 0 {
            return None;
        }
        // SAFETY: an all-zero sigevent is valid.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let mut timer: libc::timer_t = std::ptr::null_mut();
        let clock = libc::CLOCK_MONOTONIC;
        // SAFETY: the event and the variable for the timer are valid.
        if unsafe { libc::timer_create(clock, &raw mut event, &raw mut timer) } != 0 {
            return None;
        }
        let timer = Self(timer);
        let time = libc::timespec { tv_sec: 0, tv_nsec: INTERRUPTED_EVERY_NS };
        let times = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: the timer was just created, and the times are valid.
        let result =
            unsafe { libc::timer_settime(timer.0, 0, &raw const times, std::ptr::null_mut()) };
        (result == 0).then_some(timer)
    }
}

impl Drop for Interruptions {
    fn drop(&mut self) {
        // SAFETY: `begin` created the timer, and it is deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}

extern "C" fn ignore(_: libc::c_int) {}

/// Reads a socket option whose value is a number, or a structure of numbers.
fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int, mut value: T) -> Result<T, Errno> {
    let mut length = libc::socklen_t::try_from(size_of::<T>()).map_err(|_| Errno::INVAL)?;
    // SAFETY: `value` and `length` are valid variables. The kernel writes `length`, and at most
    // that many bytes of `value`, which consists of numbers.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    last_error(result).map(|()| value)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    #[test]
    fn sockets_of_one_program_share_a_namespace() {
        let of = |socket: &std::net::UdpSocket| super::network_namespace(socket.as_fd());
        let one = std::net::UdpSocket::bind("127.0.0.1:0").expect("loopback");
        let two = std::net::UdpSocket::bind("127.0.0.1:0").expect("loopback");
        assert_eq!(of(&one).expect("Linux 5.14"), of(&two).expect("Linux 5.14"));
    }
}
