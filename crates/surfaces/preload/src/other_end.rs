//! Asks the kernel which user holds the other end of a connection within this host (sock_diag(7)).
//!
//! Two questions need the answer. A daemon that serves one user serves nobody else, so programs of
//! two such users get no lane, and `weft run --stats` tells the user so ([`user`]). A lane that was
//! kept with a process is used for a later connection only if the user of that process holds its
//! other end ([`is_of`]).
//!
//! # Invariants
//! - Users' numbers, and the connections that are found, are those of the namespaces in which the
//!   kernel's socket was made. [`is_of`] uses one socket, for connections of that socket's own
//!   network namespace. It takes a number from others only in the first user namespace. In another
//!   one it compares two answers to the same socket, of which neither is the number that all users
//!   have who are not known there.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};

use weft_unread::socket_table::{Ends, Table};

use crate::guard::{ForkLock, LocalLock, Rank};
use crate::sys;

/// The kernel's socket for [`is_of`], and its inode: a program may close all descriptors it does
/// not know.
struct Questions {
    table: Table,
    inode: u64,
    /// Whether it was made in the first user namespace.
    names_users: bool,
}

static QUESTIONS: LocalLock<Option<Questions>> = LocalLock::new(Rank::OtherEnd, None);

/// The lock of this module, for fork.
pub fn lock() -> &'static dyn ForkLock {
    &QUESTIONS
}

/// In a forked child: an answer would go to whoever reads first, the parent or the child.
pub fn forked() {
    if let Some(mut questions) = QUESTIONS.lock() {
        close(&mut questions);
    }
}

/// Whether the kernel names users to this process by the numbers of the first user namespace;
/// `None` when this process cannot learn the users of other ends.
pub fn names_users() -> Option<bool> {
    let mut questions = QUESTIONS.lock()?;
    let answer = opened(&mut questions).map(|found| found.names_users);
    close_if_wanted(&mut questions);
    answer
}

/// True when `user` holds the other end of the connection, which is within this network namespace.
/// `None` stands for the user who holds this end.
pub fn is_of(ends: &Ends, user: Option<u32>) -> bool {
    let Some(mut questions) = QUESTIONS.lock() else { return false };
    let answer = opened(&mut questions).is_some_and(|found| answers(found, ends, user));
    close_if_wanted(&mut questions);
    answer
}

/// Closes the socket where its number is one that the program may want.
fn close_if_wanted(questions: &mut Option<Questions>) {
    if questions.as_ref().is_some_and(|found| sys::is_below_limit(found.table.as_fd().as_raw_fd()))
    {
        close(questions);
    }
}

fn answers(found: &Questions, ends: &Ends, user: Option<u32>) -> bool {
    let user_of = |ends| Some(found.table.holder(&ends)?.user);
    let Some(other) = user_of(*ends) else { return false };
    let mirrored = Ends { own: ends.other, other: ends.own, ..*ends };
    match user {
        Some(user) => found.names_users && other == user,
        None => {
            let is_known = || unknown_user().is_some_and(|unknown| unknown != other);
            (found.names_users || is_known()) && user_of(mirrored) == Some(other)
        }
    }
}

/// The number that the kernel names in place of a user whom the user namespace does not know.
fn unknown_user() -> Option<u32> {
    use rustix::fs::{Mode, OFlags};
    const PATH: &str = "/proc/sys/kernel/overflowuid";
    let file = rustix::fs::open(PATH, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 16];
    let length = rustix::io::read(&file, &mut text).ok()?;
    std::str::from_utf8(text.get(..length)?).ok()?.trim().parse().ok()
}

/// The user of the other end of the connection from `local` to `remote`; `None` when that socket is
/// on another host, or closed.
pub fn user(local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    Some(Table::open()?.at(remote, local)?.user)
}

fn opened(questions: &mut Option<Questions>) -> Option<&Questions> {
    let is_ours = |found: &Questions| {
        rustix::fs::fstat(&found.table).is_ok_and(|status| status.st_ino == found.inode)
    };
    if !questions.as_ref().is_some_and(is_ours) {
        close(questions);
        *questions = open();
    }
    questions.as_ref()
}

fn open() -> Option<Questions> {
    /// The inode of the first user namespace, `PROC_USER_INIT_INO` of linux/proc_ns.h.
    const FIRST: u64 = 0xefff_fffd;
    let table = Table::of(sys::high(Table::open()?.into_socket()))?;
    // A process that has left this namespace does not come back. So it was in it when the socket
    // was made, too.
    let names_users =
        rustix::fs::stat("/proc/self/ns/user").is_ok_and(|status| status.st_ino == FIRST);
    let inode = rustix::fs::fstat(&table).ok()?.st_ino;
    Some(Questions { table, inode, names_users })
}

fn close(questions: &mut Option<Questions>) {
    let Some(Questions { table, inode, .. }) = questions.take() else { return };
    let socket = table.into_socket();
    let is_ours = rustix::fs::fstat(&socket).is_ok_and(|status| status.st_ino == inode);
    if !is_ours {
        // The number leads to a descriptor of the program by now.
        let _ = socket.into_raw_fd();
    }
}
