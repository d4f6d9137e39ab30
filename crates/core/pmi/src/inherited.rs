//! The descriptor that a launcher left open for this process.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::SocketType;
use rustix::net::sockopt::socket_type;

/// Descriptors below this one are standard input, output and error.
const FIRST: i32 = 3;

/// A descriptor of its own for the stream socket at `number`, closed at exec. So is `number` itself
/// from now on: a program that this one starts must not keep the launcher's connection open. It is
/// not closed here, since another library of the program may use it, too.
///
/// # Errors
/// `BADF` if nothing is open at the number, `NOTSOCK` if it is no stream socket.
pub fn stream_socket(number: i32) -> Result<OwnedFd, Errno> {
    if number < FIRST {
        return Err(Errno::BADF);
    }
    // SAFETY: the number is not -1. It is borrowed for this function alone, in which only the
    // kernel uses it; if nothing is open there, or it is closed meanwhile, the calls fail by BADF.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    let own = fcntl_dupfd_cloexec(descriptor, FIRST)?;
    if socket_type(&own)? != SocketType::STREAM {
        return Err(Errno::NOTSOCK);
    }
    fcntl_setfd(descriptor, FdFlags::CLOEXEC)?;
    Ok(own)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn only_stream_sockets_are_taken() {
        let (stream, _other) = UnixStream::pair().unwrap();
        assert_ne!(stream_socket(stream.as_raw_fd()).unwrap().as_raw_fd(), stream.as_raw_fd());
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(stream_socket(file.as_raw_fd()).unwrap_err(), Errno::NOTSOCK);
        assert_eq!(stream_socket(1_000_000).unwrap_err(), Errno::BADF);
        assert_eq!(stream_socket(0).unwrap_err(), Errno::BADF);
    }
}
