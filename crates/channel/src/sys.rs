//! Socket options that rustix does not wrap.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// `SO_NETNS_COOKIE` of `asm-generic/socket.h`.
const SO_NETNS_COOKIE: libc::c_int = 71;
/// `SO_PEERPIDFD` of `asm-generic/socket.h`.
const SO_PEERPIDFD: libc::c_int = 77;

/// A number of the network namespace that a socket belongs to, unique while the system runs.
///
/// # Errors
/// `NOPROTOOPT` before Linux 5.14, others as getsockopt(2).
pub fn network_namespace(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    option(socket, SO_NETNS_COOKIE, 0u64)
}

/// A descriptor that becomes readable when the process that connected `socket`, which has number
/// `pid`, has ended.
///
/// # Errors
/// `SRCH` when it has ended already, others as pidfd_open(2).
pub fn process_of_peer(socket: BorrowedFd<'_>, pid: Pid) -> Result<OwnedFd, Errno> {
    match option::<libc::c_int>(socket, SO_PEERPIDFD, -1) {
        // SAFETY: the kernel made the descriptor for this call.
        Ok(descriptor @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        // Before Linux 6.5: the number may belong to another process by now, whose end is then
        // reported too late.
        Ok(_) | Err(Errno::NOPROTOOPT) => pidfd_open(pid, PidfdFlags::empty()),
        Err(errno) => Err(errno),
    }
}

/// Reads an option whose value is a number.
fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int, mut value: T) -> Result<T, Errno> {
    let mut length = libc::socklen_t::try_from(size_of::<T>()).map_err(|_| Errno::INVAL)?;
    // SAFETY: value and length point at live variables; the kernel writes at most `length` bytes of
    // the value, which is a number, and the length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        return Ok(value);
    }
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
    Err(Errno::from_raw_os_error(errno))
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
