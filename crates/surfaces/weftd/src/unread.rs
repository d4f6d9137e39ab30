//! Puts bytes that only a lane has into the kernel's connection, for a program that may not.
//!
//! This runs on the thread of the program's user, as [`crate::evidence`] does.
//!
//! # Invariants
//! - The socket that a program shows was made by the program's user. So nobody sees bytes that
//!   another one of its users invented: whoever else reads there has the socket from that user.
//! - The memory is sealed against writing before it is read, and the program can tell by that seal
//!   whether the daemon has begun. So a program that waits no more knows what it may do.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::SealFlags;
use weft_memory::Segment;
use weft_unread::{BYTES_MAX, PeerSocket, Put, replace_unread};
use weft_wire::control::{PutFate, PutWay};

use crate::kernel;

/// Puts the bytes of the memory, the second one of `descriptors`, into the connection of the first
/// one. `user` is the user of the program that sent them.
pub fn put(user: u32, way: PutWay, descriptors: &[OwnedFd]) -> PutFate {
    let [socket, memory] = descriptors else { return PutFate::Nothing };
    let (socket, memory) = (socket.as_fd(), memory.as_fd());
    let is_own = kernel::is_tcp(socket) == Ok(true)
        && kernel::socket_of(socket).is_some_and(|(_, owner)| owner == user);
    if !is_own {
        return PutFate::Nothing;
    }
    let put = match way {
        PutWay::AsPeer | PutWay::AsPeerWithEnd => PeerSocket::of(socket)
            .and_then(|peer| Some(peer.send(&begin(memory)?, way == PutWay::AsPeerWithEnd))),
        PutWay::InPlaceOfUnread => begin(memory).map(|bytes| replace_unread(socket, &bytes)),
    };
    match put {
        None | Some(Put::Nothing) => PutFate::Nothing,
        Some(Put::All) => PutFate::All,
        Some(Put::Reset) => PutFate::Reset,
    }
}

/// The bytes of the memory, which change no more. `None` if the program waits no more, or the
/// descriptor is none of a memory.
fn begin(memory: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let length = Segment::sealed_length(memory).ok().filter(|length| *length <= BYTES_MAX)?;
    rustix::fs::fcntl_add_seals(memory, SealFlags::WRITE).ok()?;
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pread(memory, &mut bytes[done..], done as u64) {
            Ok(read @ 1..) => done += read,
            Ok(0) | Err(_) => return None,
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    fn memory(bytes: &[u8]) -> OwnedFd {
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("weft-test", flags).expect("memory");
        assert_eq!(rustix::io::pwrite(&memory, bytes, 0), Ok(bytes.len()));
        let seals = SealFlags::SHRINK | SealFlags::GROW;
        rustix::fs::fcntl_add_seals(&memory, seals).expect("it is new");
        memory
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("listening");
        (client, listener.accept().expect("connected").0)
    }

    fn own_user() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// The daemon's answer to a program that shows `socket`.
    fn asked(user: u32, way: PutWay, socket: &TcpStream, memory: OwnedFd) -> PutFate {
        put(user, way, &[socket.as_fd().try_clone_to_owned().expect("a number"), memory])
    }

    #[test]
    fn the_socket_at_the_other_end_sends_the_bytes_and_the_end() {
        let (mut client, _server) = pair();
        let bytes = vec![7; 300_000];
        let fate = asked(own_user(), PutWay::AsPeerWithEnd, &client, memory(&bytes));
        assert_eq!(fate, PutFate::All);
        let mut read = Vec::new();
        client.read_to_end(&mut read).expect("the bytes and the end");
        assert!(read == bytes, "{} bytes", read.len());
    }

    #[test]
    fn a_socket_of_another_user_is_left_alone() {
        let (client, _server) = pair();
        for way in [PutWay::AsPeer, PutWay::InPlaceOfUnread] {
            assert_eq!(asked(own_user() + 1, way, &client, memory(b"x")), PutFate::Nothing);
        }
        client.set_nonblocking(true).expect("a socket");
        assert!((&client).read(&mut [0]).is_err(), "nothing was put there");
    }

    #[test]
    fn a_program_that_waits_no_more_gets_nothing() {
        let (client, _server) = pair();
        let withdrawn = memory(b"x");
        rustix::fs::fcntl_add_seals(&withdrawn, SealFlags::SEAL).expect("it may be sealed");
        assert_eq!(asked(own_user(), PutWay::AsPeer, &client, withdrawn), PutFate::Nothing);
        let unsealed = std::fs::File::open("/dev/null").expect("always there").into();
        assert_eq!(asked(own_user(), PutWay::AsPeer, &client, unsealed), PutFate::Nothing);
        assert_eq!(put(own_user(), PutWay::AsPeer, &[]), PutFate::Nothing);
    }
}
