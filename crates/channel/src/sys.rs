//! The one socket option that rustix does not wrap.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// `SO_NETNS_COOKIE` of `asm-generic/socket.h`.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// A number of the network namespace that a socket belongs to, unique while the system runs.
///
/// # Errors
/// `NOPROTOOPT` before Linux 5.14, others as getsockopt(2).
pub fn network_namespace(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut cookie = 0u64;
    let mut length: libc::socklen_t = 8;
    // SAFETY: value and length point at live variables of the sizes given; the kernel writes at
    // most 8 bytes and the length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        return Ok(cookie);
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
