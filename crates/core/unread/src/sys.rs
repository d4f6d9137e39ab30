//! Socket options that rustix does not wrap.

use std::os::fd::{AsRawFd, BorrowedFd};

use libc::c_int;
use rustix::io::Errno;

/// Sets an option whose value is a number.
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_option(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: c_int,
) -> Result<(), Errno> {
    // SAFETY: the kernel reads as many bytes of `value` as it has.
    let result = unsafe {
        let (number, length) = (socket.as_raw_fd(), size_of_val(&value));
        libc::syscall(libc::SYS_setsockopt, number, level, name, &raw const value, length)
    };
    last_error(result)
}

/// Reads an option whose value is a number. One that has fewer bytes is read as a number, too.
///
/// # Errors
/// Those of getsockopt(2).
pub fn option(socket: BorrowedFd<'_>, level: c_int, name: c_int) -> Result<c_int, Errno> {
    let mut value: c_int = 0;
    let mut length: libc::socklen_t = 4;
    // SAFETY: the kernel writes `length`, and at most four bytes of `value`, which has as many.
    let result = unsafe {
        let (number, place) = (socket.as_raw_fd(), &raw mut value);
        libc::syscall(libc::SYS_getsockopt, number, level, name, place, &raw mut length)
    };
    last_error(result).map(|()| value)
}

/// How many bytes were sent that the peer's kernel has not acknowledged (SIOCOUTQ).
pub fn unacknowledged(socket: BorrowedFd<'_>) -> Option<usize> {
    count(socket, libc::TIOCOUTQ)
}

/// How many bytes the kernel holds that it has not sent even once (SIOCOUTQNSD).
pub fn not_sent(socket: BorrowedFd<'_>) -> Option<usize> {
    /// Of `linux/sockios.h`.
    const SIOCOUTQNSD: libc::Ioctl = 0x894b;
    count(socket, SIOCOUTQNSD)
}

fn count(socket: BorrowedFd<'_>, request: libc::Ioctl) -> Option<usize> {
    let mut count: c_int = 0;
    // SAFETY: both requests write one int.
    let result =
        unsafe { libc::syscall(libc::SYS_ioctl, socket.as_raw_fd(), request, &raw mut count) };
    last_error(result).ok().and_then(|()| usize::try_from(count).ok())
}

/// The error of a call that returned `result`.
fn last_error(result: libc::c_long) -> Result<(), Errno> {
    if result == 0 {
        return Ok(());
    }
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
    Err(Errno::from_raw_os_error(errno))
}
