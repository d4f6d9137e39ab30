//! System calls of this crate: the clock that bounds waiting, and the socket that wakes.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType,
};

/// Time since some moment in the past.
pub fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A bell: the end that wakes, and the end that is woken.
///
/// # Errors
/// As socketpair(2).
pub fn bell_socket() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Makes the other end of a bell readable. Never blocks, whatever the other end did to its socket:
/// that is why a bell is a socket and not an eventfd, whose owner could make a write block.
pub fn ring(bell: BorrowedFd<'_>) {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let byte = [IoSlice::new(&[1])];
    // A full socket is readable already; a broken one belongs to a peer that wants no waking.
    let _ = rustix::net::sendmsg(bell, &byte, &mut SendAncillaryBuffer::default(), flags);
}

/// A descriptor that is readable while any of `files` is.
///
/// # Errors
/// As epoll_create(2) and epoll_ctl(2).
pub fn watch(files: &[BorrowedFd<'_>]) -> Result<OwnedFd, Errno> {
    let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for file in files {
        watch_too(both.as_fd(), *file)?;
    }
    Ok(both)
}

/// Makes a descriptor of [`watch`] readable while `file` is, too.
///
/// # Errors
/// As epoll_ctl(2).
pub fn watch_too(both: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<(), Errno> {
    epoll::add(both, file, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
}

/// Takes everything out of a bell; false when it is broken.
pub fn drain(bell: BorrowedFd<'_>) -> bool {
    let mut bytes = [0; 4096];
    loop {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let mut beside = rustix::net::RecvAncillaryBuffer::default();
        match rustix::net::recvmsg(bell, &mut parts, &mut beside, RecvFlags::DONTWAIT) {
            Ok(message) if message.bytes == 0 => return false,
            Ok(message) if message.bytes < bytes.len() => return true,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return errno == Errno::AGAIN,
        }
    }
}

/// Numbers that nobody can guess.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_le_bytes(bytes),
        // Old kernels early at boot: any number that differs between calls does.
        _ => u64::try_from(now().as_nanos() & u128::from(u64::MAX)).unwrap_or(1),
    }
}
