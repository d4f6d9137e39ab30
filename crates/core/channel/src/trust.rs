//! Decides which control sockets are trusted: only the own user and root may be at the other end.
//! In a user namespace, where the host's root shows as another user, the program's user may name
//! that user, too ([`trust_user`]).
//!
//! A program passes descriptors over the channel, so a wrong decision gives its connections away.
//! Two checks, both of what the kernel reports:
//! - Before connecting: could another user have put the socket there? Every directory from the
//!   socket's up to the root must belong to the own user or to root, and nobody else may write to
//!   it. Above the socket's own directory, others may write to a directory with the sticky bit,
//!   since only the owner of a name can replace it there.
//! - After connecting: does the listener belong to the own user or to root?

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use thiserror::Error;

use crate::Credentials;

/// Why there is no channel to a daemon.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The kernel refused: `NOENT` or `CONNREFUSED` when nobody listens, `AGAIN` when the daemon's
    /// queue is full, others as for connect(2).
    #[error("{errno}")]
    Os {
        /// The error number.
        errno: Errno,
    },
    /// Another user could have put the socket there.
    #[error(
        "{directory} can be written by others than user {own} and root (it is of user {owner}, \
         mode {mode:o}), so weft does not use it; remove it, or name a socket in a directory of \
         your own with WEFT_DAEMON_SOCKET; in a user namespace daemon.trust_uid names the user as \
         whom root shows there"
    )]
    Directory {
        /// The directory.
        directory: String,
        /// The own user.
        own: u32,
        /// The owner of the directory.
        owner: u32,
        /// The permissions of the directory.
        mode: u32,
    },
    /// Another user listens there.
    #[error(
        "process {pid} of user {uid} listens there, and weft trusts only daemons of user {own} \
         and root; `sudo weft daemon` serves all users, and in a user namespace \
         daemon.trust_uid = {uid} trusts this one"
    )]
    Listener {
        /// The own user.
        own: u32,
        /// The user of the listener.
        uid: u32,
        /// The process of the listener.
        pid: u32,
    },
}

impl ConnectError {
    /// True if there may be a socket, but it is not trusted.
    #[must_use]
    pub const fn is_distrust(&self) -> bool {
        matches!(self, Self::Directory { .. } | Self::Listener { .. })
    }
}

impl From<Errno> for ConnectError {
    fn from(errno: Errno) -> Self {
        Self::Os { errno }
    }
}

/// A further user who is trusted as root is; 0, root itself, for none.
static FURTHER: AtomicU32 = AtomicU32::new(0);

/// From now on this process trusts daemons and directories of `user` as those of root. For a user
/// namespace in which the host's root shows as `user`; 0 takes that back. The kernel shows every
/// user of the host who is not mapped as one and the same number, 65,534. So the socket must be one
/// that the program's user named, in a place where no other such user can put one.
pub fn trust_user(user: u32) {
    FURTHER.store(user, Ordering::Relaxed);
}

fn is_trusted(user: u32, own: u32) -> bool {
    [0, own, FURTHER.load(Ordering::Relaxed)].contains(&user)
}

/// Directories from the socket's to the root at most. No path in use is deeper.
const DEPTH_MAX: usize = 128;

/// Opens the directory at `path`, if only the own user and root can create names in it or replace
/// it.
///
/// # Errors
/// [`ConnectError::Directory`], [`ConnectError::Os`].
pub fn open_directory(path: &Path) -> Result<OwnedFd, ConnectError> {
    let own = rustix::process::geteuid().as_raw();
    let directory = rustix::fs::open(path, FLAGS, Mode::empty())?;
    let mut status = rustix::fs::fstat(&directory)?;
    check(path.to_owned(), &status, own, 0)?;
    let mut above: Option<OwnedFd> = None;
    // Ascends by `..`, not by the names in the path, which may be symbolic links.
    for _ in 0..DEPTH_MAX {
        let from = above.as_ref().unwrap_or(&directory);
        let next = rustix::fs::openat(from, "..", FLAGS, Mode::empty())?;
        let found = rustix::fs::fstat(&next)?;
        if (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino) {
            return Ok(directory);
        }
        check(name_of(&next, path), &found, own, STICKY)?;
        (status, above) = (found, Some(next));
    }
    Err(Errno::NAMETOOLONG.into())
}

const FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const STICKY: u32 = 0o1000;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Refuses a directory of another user, and one that others can write to, unless its mode has a bit
/// of `excused`.
fn check(directory: PathBuf, status: &Stat, own: u32, excused: u32) -> Result<(), ConnectError> {
    let is_ours = is_trusted(status.st_uid, own);
    let is_closed = status.st_mode & WRITABLE_BY_OTHERS == 0 || status.st_mode & excused != 0;
    if is_ours && is_closed {
        return Ok(());
    }
    Err(ConnectError::Directory {
        directory: directory.display().to_string(),
        own,
        owner: status.st_uid,
        mode: status.st_mode & 0o7777,
    })
}

/// The path of `above` for messages. `path` is the path of a directory below it.
fn name_of(above: &OwnedFd, path: &Path) -> PathBuf {
    let link = format!("/proc/self/fd/{}", above.as_raw_fd());
    rustix::fs::readlink(link, Vec::new())
        .ok()
        .and_then(|name| name.into_string().ok())
        .map_or_else(|| path.join(".."), PathBuf::from)
}

/// The path of the socket `name` in `directory`. No symbolic link on the way can divert it.
pub(crate) fn fixed_path(directory: &OwnedFd, name: &Path) -> PathBuf {
    Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name)
}

/// Refuses a listener of another user.
pub(crate) fn check_listener(listener: Credentials) -> Result<(), ConnectError> {
    let own = rustix::process::geteuid().as_raw();
    let Credentials { uid, pid } = listener;
    if is_trusted(uid, own) { Ok(()) } else { Err(ConnectError::Listener { own, uid, pid }) }
}

/// True if `name` in `directory` is a socket. Somebody need not listen there.
pub(crate) fn is_socket(directory: &OwnedFd, name: &Path) -> bool {
    rustix::fs::statat(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|status| FileType::from_raw_mode(status.st_mode) == FileType::Socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_further_user_is_trusted_when_it_is_named_and_no_longer() {
        const NOBODY: u32 = 65_534;
        let listener = Credentials { pid: 0, uid: NOBODY };
        let refused = check_listener(listener).expect_err("nobody named it");
        assert!(refused.to_string().contains("daemon.trust_uid = 65534"), "{refused}");
        trust_user(NOBODY);
        assert_eq!(check_listener(listener), Ok(()));
        assert!(check_listener(Credentials { uid: NOBODY - 1, ..listener }).is_err());
        trust_user(0);
        assert!(check_listener(listener).is_err());
    }
}
