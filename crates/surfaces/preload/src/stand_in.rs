//! Puts unread bytes of a lane on TCP in place of a peer that does not look.
//!
//! A process that hands a connection on needs them there, and only the peer's own socket leads
//! there. pidfd_getfd(2) gives it to a process that may trace the peer's: one of the same user, or
//! of root. Where that is forbidden (a scope of Yama, another user, another namespace of
//! processes), the peer has to look by itself.
//!
//! # Invariants
//! - The copy of the peer's socket lives for some microseconds, in which no child is forked: it
//!   would keep the connection alive after the peer's end.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::event::PollFlags;
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use weft_socket::OnLaneAlone;

use crate::arena::Connection;
use crate::guard::{ForkLock, LocalLock};
use crate::other_end::{self, Ends};
use crate::{log, sys, waits};

/// Held while this process has a copy of a peer's socket.
static HAS_COPY: LocalLock<()> = LocalLock::new(());

/// How long the kernel may take to take all bytes, in nanoseconds. It was asked for room before.
const SENDS_NS: u64 = 1_000_000_000;

/// The lock of this module, for fork.
pub fn lock() -> &'static dyn ForkLock {
    &HAS_COPY
}

/// A descriptor of another process.
struct Place {
    process: Pid,
    number: RawFd,
    /// The inode of the socket there.
    inode: u64,
}

impl Connection {
    /// Puts what is unread on the lane on TCP, and the end of the peer's direction if it was told
    /// on the lane alone. False if there is nothing of that, or it cannot be. The call may take
    /// some milliseconds. The caller requested a resend and left for good.
    pub fn stands_in_for_peer(&self, fd: RawFd) -> bool {
        let is_wanted =
            self.receiving_on_lane(fd).is_some_and(|mut receiving| receiving.may_stand_in());
        let place = is_wanted.then(|| Ends::of(fd)).flatten().and_then(|ends| {
            let inode = other_end::inode(&ends)?;
            find(&format!("socket:[{inode}]"), inode)
        });
        let Some(place) = place else { return false };
        let Some(_has_copy) = HAS_COPY.lock() else { return false };
        let Some(socket) = place.copy() else { return false };
        let Some(mut receiving) = self.receiving_on_lane(fd) else { return false };
        let Some(found) = receiving.begin_stand_in() else { return false };
        let sent = puts(&socket, &found);
        receiving.end_stand_in((sent == Sent::All).then_some(&found));
        if sent == Sent::Part {
            log::warn_user!("a connection is reset: the kernel took a part of what was unread");
            let _ = rustix::net::connect_unspec(&socket);
        }
        sent == Sent::All
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    Nothing,
    Part,
    All,
}

/// Sends what the peer has on its lane by the peer's socket.
fn puts(socket: &OwnedFd, found: &OnLaneAlone) -> Sent {
    let OnLaneAlone { bytes, is_end } = found;
    let number = socket.as_raw_fd();
    if bytes.len() > sys::room_to_send(number) {
        return Sent::Nothing;
    }
    let start = sys::now_ns();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        match rustix::net::send(socket, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => rest = &rest[sent.min(rest.len())..],
            Err(Errno::AGAIN | Errno::INTR) if sys::now_ns() - start < SENDS_NS => {
                let _ = waits::poll_one(number, PollFlags::OUT, 1);
            }
            Err(_) if rest.len() == bytes.len() => return Sent::Nothing,
            Err(_) => return Sent::Part,
        }
    }
    if *is_end {
        let _ = rustix::net::shutdown(socket, Shutdown::Write);
    }
    Sent::All
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
