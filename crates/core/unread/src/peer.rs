//! Sends by the socket at the other end of a connection, in place of the process that holds it.
//!
//! pidfd_getfd(2) gives a copy of that socket to a process that may trace the other one: one of the
//! same user, or of root. It is forbidden by some scopes of Yama, and in another namespace of
//! processes the other one is not seen.
//!
//! # Invariants
//! - The copy lives for some microseconds, in which the caller forks no child: it would keep the
//!   connection alive after the peer's end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_send_buffer_size, set_socket_send_buffer_size_force};
use rustix::net::{SendFlags, Shutdown, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

use crate::socket_table::{Ends, Table};
use crate::{Put, sys};

/// How often the kernel may say that it takes nothing, with 1 ms in between. It was asked for room
/// before.
const TRIES: usize = 1000;
/// How many bytes may be on their way to a reader that takes none.
const ON_THE_WAY_MAX: usize = 16 << 20;
/// `SO_BUF_LOCK` of `asm-generic/socket.h`: which buffers the program has sized itself.
const SO_BUF_LOCK: libc::c_int = 72;

/// A descriptor of another process.
struct Place {
    process: Pid,
    number: RawFd,
    /// The inode of the socket there.
    inode: u64,
}

/// A copy of the socket at the other end of a connection.
#[derive(Debug)]
pub struct PeerSocket(OwnedFd);

impl PeerSocket {
    /// Looks for the process that holds the other end of `socket`. `None` if there is none in this
    /// network namespace, or the kernel does not give its socket to this process. The call may
    /// take some milliseconds.
    #[must_use]
    pub fn of(socket: BorrowedFd<'_>) -> Option<Self> {
        let inode = Table::open()?.holder(&Ends::of(socket)?)?.inode;
        find(&format!("socket:[{inode}]"), inode.into())?.copy().map(Self)
    }

    /// Sends `bytes` as the process that holds this socket, and ends its direction if `is_end`. If
    /// the kernel does not take all, nothing is sent or the connection is reset.
    #[must_use]
    pub fn send(self, bytes: &[u8], is_end: bool) -> Put {
        let socket = self.0.as_fd();
        let unsent = take_more_unsent(socket);
        let former = hold_more(socket, bytes.len());
        let put = if bytes.len() <= room_to_send(socket) {
            send_all(socket, bytes)
        } else {
            Put::Nothing
        };
        if let Some(former) = former {
            former.restore(socket);
        }
        if let Some(unsent) = unsent {
            let _ = sys::set_option(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, unsent);
        }
        match put {
            Put::All if is_end => {
                let _ = rustix::net::shutdown(socket, Shutdown::Write);
            }
            Put::Reset => {
                let _ = rustix::net::connect_unspec(socket);
            }
            Put::All | Put::Nothing => {}
        }
        put
    }
}

fn send_all(socket: BorrowedFd<'_>, bytes: &[u8]) -> Put {
    let mut rest = bytes;
    let mut tries = 0;
    while !rest.is_empty() {
        match rustix::net::send(socket, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => rest = &rest[sent.min(rest.len())..],
            Err(Errno::AGAIN | Errno::INTR) if tries < TRIES => {
                tries += 1;
                let moment = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                let _ =
                    poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::OUT)], Some(&moment));
            }
            Err(_) if rest.len() == bytes.len() => return Put::Nothing,
            Err(_) => return Put::Reset,
        }
    }
    Put::All
}

/// How many bytes the kernel takes for certain, even if the peer reads none.
#[must_use]
pub fn room_to_send(socket: BorrowedFd<'_>) -> usize {
    let held = sockopt::socket_send_buffer_size(socket).unwrap_or(0);
    // The kernel counts its own bytes beside the data.
    let by_size = (held / 2).saturating_sub(sys::unacknowledged(socket).unwrap_or(held));
    let by_unsent = unsent_max(socket).map_or(usize::MAX, |most| {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        most.saturating_sub(sys::not_sent(socket).unwrap_or(most))
    });
    by_size.min(by_unsent)
}

/// How many bytes may wait unsent before the kernel takes no more (TCP_NOTSENT_LOWAT). `None` where
/// the size of the buffer alone says that.
fn unsent_max(socket: BorrowedFd<'_>) -> Option<libc::c_int> {
    let most = sys::option(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT).ok()?;
    // 0 stands for the value of the whole system, which is none unless somebody set it.
    (most > 0).then_some(most)
}

/// Takes the bound on unsent bytes away, and returns it: a reader whose window is full would keep
/// the kernel from taking more.
fn take_more_unsent(socket: BorrowedFd<'_>) -> Option<libc::c_int> {
    const UNBOUNDED: libc::c_int = -1;
    let former = unsent_max(socket)?;
    sys::set_option(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, UNBOUNDED).ok()?;
    Some(former)
}

/// The size of a socket's send buffer, and which sizes its program has set.
struct Former {
    bytes: usize,
    locks: libc::c_int,
}

/// Lets the kernel hold `bytes` more, as far as it permits that. `None` if it does already.
fn hold_more(socket: BorrowedFd<'_>, bytes: usize) -> Option<Former> {
    let on_the_way = sys::unacknowledged(socket)?;
    if bytes <= room_to_send(socket) || on_the_way > ON_THE_WAY_MAX {
        return None;
    }
    let former = Former {
        bytes: sockopt::socket_send_buffer_size(socket).ok()?,
        // Before Linux 5.14 the size stays as it is now.
        locks: sys::option(socket, libc::SOL_SOCKET, SO_BUF_LOCK).ok()?,
    };
    // The kernel doubles the number.
    let wanted = on_the_way + bytes + bytes / 8;
    if set_socket_send_buffer_size_force(socket, wanted).is_err() {
        if wanted > largest() {
            // The kernel would take less, and might make the buffer smaller.
            return None;
        }
        set_socket_send_buffer_size(socket, wanted).ok()?;
    }
    Some(former)
}

/// The largest size that a process without rights may give to a send buffer; 0 if the kernel does
/// not tell.
fn largest() -> usize {
    const PATH: &str = "/proc/sys/net/core/wmem_max";
    let read = || {
        let file = rustix::fs::open(PATH, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut text = [0; 32];
        let length = rustix::io::read(&file, &mut text).ok()?;
        std::str::from_utf8(text.get(..length)?).ok()?.trim().parse().ok()
    };
    read().unwrap_or(0)
}

impl Former {
    /// Gives the buffer back to the program or to the kernel. What lies there stays.
    fn restore(self, socket: BorrowedFd<'_>) {
        let half = self.bytes / 2;
        if set_socket_send_buffer_size_force(socket, half).is_err() {
            let _ = set_socket_send_buffer_size(socket, half);
        }
        let _ = sys::set_option(socket, libc::SOL_SOCKET, SO_BUF_LOCK, self.locks);
    }
}

impl Place {
    /// A copy of the descriptor, if the kernel permits it and the socket is still there.
    fn copy(&self) -> Option<OwnedFd> {
        let process = rustix::process::pidfd_open(self.process, PidfdFlags::empty()).ok()?;
        let flags = PidfdGetfdFlags::empty();
        let copy = rustix::process::pidfd_getfd(&process, self.number, flags).ok()?;
        let is_it = rustix::fs::fstat(&copy).is_ok_and(|status| status.st_ino == self.inode);
        is_it.then_some(copy)
    }
}

/// Looks for a descriptor that leads to `link` in all processes whose descriptors this one may see.
fn find(link: &str, inode: u64) -> Option<Place> {
    numbers("/proc").find_map(|process| {
        let path = format!("/proc/{process}/fd");
        let leads = |number: &RawFd| {
            rustix::fs::readlink(format!("{path}/{number}"), Vec::new())
                .is_ok_and(|found| found.as_bytes() == link.as_bytes())
        };
        let number = numbers(&path).find(leads)?;
        Some(Place { process: Pid::from_raw(process)?, number, inode })
    })
}

/// The entries of a directory that are numbers.
fn numbers(path: &str) -> impl Iterator<Item = i32> + use<> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let entries = opened.and_then(|directory| Dir::read_from(directory.as_fd())).ok();
    entries
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok())
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests own sockets")]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("listening");
        (client, listener.accept().expect("connected").0)
    }

    #[test]
    fn bytes_go_into_a_buffer_that_is_too_small_and_keeps_its_size() {
        let (mut reader, peer) = pair();
        set_socket_send_buffer_size(&peer, 4_096).expect("a socket");
        let size = sockopt::socket_send_buffer_size(&peer).expect("a socket");
        let locks = sys::option(peer.as_fd(), libc::SOL_SOCKET, SO_BUF_LOCK);
        assert!(room_to_send(peer.as_fd()) < 50_000);
        let copy = PeerSocket::of(reader.as_fd()).expect("a socket of this process");
        let bytes: Vec<u8> = (0..50_000_u32).map(|number| (number % 251) as u8).collect();
        assert_eq!(copy.send(&bytes, true), Put::All);
        assert_eq!(sockopt::socket_send_buffer_size(&peer), Ok(size));
        assert_eq!(sys::option(peer.as_fd(), libc::SOL_SOCKET, SO_BUF_LOCK), locks);
        let mut read = Vec::new();
        reader.read_to_end(&mut read).expect("the bytes and the end");
        assert!(read == bytes, "{} bytes", read.len());
    }

    #[test]
    fn a_buffer_that_the_kernel_sized_stays_with_the_kernel() {
        let (reader, peer) = pair();
        let copy = PeerSocket::of(reader.as_fd()).expect("a socket of this process");
        let bytes = vec![1; room_to_send(peer.as_fd()) + 50_000];
        if bytes.len() < largest() {
            assert_eq!(copy.send(&bytes, false), Put::All);
        }
        assert_eq!(sys::option(peer.as_fd(), libc::SOL_SOCKET, SO_BUF_LOCK), Ok(0));
    }

    #[test]
    fn a_bound_on_unsent_bytes_does_not_hold_them_up_and_stays() {
        const BYTES: usize = 700_000;
        let (mut reader, peer) = pair();
        let name = libc::TCP_NOTSENT_LOWAT;
        sys::set_option(peer.as_fd(), libc::IPPROTO_TCP, name, 65_536).expect("a socket");
        assert!(room_to_send(peer.as_fd()) <= 65_536);
        let copy = PeerSocket::of(reader.as_fd()).expect("a socket of this process");
        assert_eq!(copy.send(&vec![7; BYTES], true), Put::All);
        assert_eq!(sys::option(peer.as_fd(), libc::IPPROTO_TCP, name), Ok(65_536));
        let mut read = Vec::new();
        reader.read_to_end(&mut read).expect("the bytes and the end");
        assert_eq!(read.len(), BYTES);
    }

    #[test]
    fn a_peer_that_is_gone_has_no_socket() {
        let (reader, peer) = pair();
        assert!(PeerSocket::of(reader.as_fd()).is_some());
        drop(peer);
        assert!(PeerSocket::of(reader.as_fd()).is_none());
    }
}
