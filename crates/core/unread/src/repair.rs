//! Fills the receive queue of a connection whose peer has closed, by TCP_REPAIR.
//!
//! # Invariants
//! - The peer is gone and its kernel has told the end. So nothing comes that would follow the
//!   number of bytes that is wrong from here on.
//! - No thread sends by the socket meanwhile: the bytes would go to the receive queue.
//! - The end is acknowledged before the queue is filled. The peer's kernel would not know a later
//!   acknowledgement, which names bytes that it did not send, and would not end its connection.

use std::os::fd::BorrowedFd;

use rustix::net::sockopt::{set_socket_recv_buffer_size_force, socket_recv_buffer_size};
use rustix::net::{RecvFlags, SendFlags};

use crate::{Put, sys};

/// `TCP_CLOSE_WAIT` of `net/tcp_states.h`: the peer ended its direction, and this end did not.
const CLOSE_WAIT: libc::c_int = 8;
/// Values of TCP_REPAIR: on, and off without a segment to the peer.
const ON: libc::c_int = 1;
const OFF: libc::c_int = -1;
/// Values of TCP_REPAIR_QUEUE.
const NO_QUEUE: libc::c_int = 0;
const RECEIVE_QUEUE: libc::c_int = 1;
/// The most bytes of one call: the kernel makes one buffer of them.
const PIECE_BYTES: usize = 64 << 10;

/// Has a read of `socket` find `bytes` and then the end, in place of what is unread there. The peer
/// must have closed the connection, not only ended its direction. [`Put::Nothing`] where this
/// process has no right to that (CAP_NET_ADMIN), or the connection was reset.
#[must_use]
pub fn replace_unread(socket: BorrowedFd<'_>, bytes: &[u8]) -> Put {
    let has_ended = || {
        sys::option(socket, libc::IPPROTO_TCP, libc::TCP_INFO)
            .is_ok_and(|info| info & 0xff == CLOSE_WAIT)
    };
    let room = bytes.len().saturating_mul(2);
    let has_room = || {
        socket_recv_buffer_size(socket).is_ok_and(|held| held / 2 >= room)
            || set_socket_recv_buffer_size_force(socket, room).is_ok()
    };
    // The first repair finds out whether it is permitted.
    if !has_ended() || !has_room() || repair(socket, ON).is_err() || repair(socket, OFF).is_err() {
        return Put::Nothing;
    }
    if take_all(socket) && acknowledge(socket) && fill(socket, bytes) {
        return Put::All;
    }
    let _ = rustix::net::connect_unspec(socket);
    Put::Reset
}

fn repair(socket: BorrowedFd<'_>, value: libc::c_int) -> Result<(), rustix::io::Errno> {
    sys::set_option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, value)
}

/// Takes all bytes, and the end behind them.
fn take_all(socket: BorrowedFd<'_>) -> bool {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match rustix::net::recv(socket, &mut piece[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return true,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Sends an acknowledgement that the kernel puts off.
fn acknowledge(socket: BorrowedFd<'_>) -> bool {
    sys::set_option(socket, libc::IPPROTO_TCP, libc::TCP_QUICKACK, 1).is_ok()
}

fn fill(socket: BorrowedFd<'_>, bytes: &[u8]) -> bool {
    let queue =
        |queue| sys::set_option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, queue).is_ok();
    if repair(socket, ON).is_err() {
        return false;
    }
    let mut rest = bytes;
    let mut goes_on = queue(RECEIVE_QUEUE);
    while goes_on && !rest.is_empty() {
        let piece = &rest[..rest.len().min(PIECE_BYTES)];
        match rustix::net::send(socket, piece, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent @ 1..) => rest = &rest[sent.min(rest.len())..],
            Ok(0) | Err(_) => goes_on = false,
        }
    }
    let is_back = queue(NO_QUEUE) && repair(socket, OFF).is_ok();
    is_back && rest.is_empty()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests own sockets")]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("listening");
        (client, listener.accept().expect("connected").0)
    }

    /// Waits until the kernel has told the end.
    fn await_end(socket: &TcpStream) {
        let state = || sys::option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO);
        while state().is_ok_and(|info| info & 0xff != CLOSE_WAIT) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_queue_is_filled_anew_and_ends_and_a_living_peer_is_left_alone() {
        let (mut reader, mut peer) = pair();
        peer.write_all(&[9; 1000]).expect("room");
        assert_eq!(replace_unread(reader.as_fd(), b"x"), Put::Nothing, "the peer is there");
        drop(peer);
        await_end(&reader);
        let bytes: Vec<u8> = (0..300_000_u32).map(|number| (number % 251) as u8).collect();
        let put = replace_unread(reader.as_fd(), &bytes);
        let mut read = Vec::new();
        reader.read_to_end(&mut read).expect("bytes and the end");
        if put == Put::Nothing {
            assert_eq!(read, [9; 1000], "without the right to that nothing changes");
            return eprintln!("skipped: this process may not repair connections");
        }
        assert_eq!(put, Put::All);
        assert!(read == bytes, "{} bytes", read.len());
        // The kernel at the other end answers the first write with a reset.
        while reader.write_all(b"x").is_ok() {
            std::thread::yield_now();
        }
    }
}
