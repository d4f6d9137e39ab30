//! Descriptors that libfabric and its providers open in this process.
//!
//! They do so by calls of the C library, in threads that hold [`Held`]: those of the program while
//! they are in a call of this library, and those that libfabric works in. The hooks of such calls
//! come here. Each descriptor is moved to a high number, closed by exec, and noted, so that the
//! hooks of `close`, `dup2` and their kin leave it to libfabric.
//!
//! # Invariants
//! - One lock is held from the call that makes a descriptor until it is noted, and while libfabric
//!   closes one. A program's call for a number that is not open is answered under the same lock, so
//!   it meets no descriptor that was not noted yet.
//! - Descriptors that a driver of the kernel makes past the C library are not known here.

use std::os::fd::{IntoRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::connection;
use crate::deferral::{self, Held};
use crate::guard::{ForkLock, LocalGuard, LocalLock, Rank};
use crate::{process, sys};

static FILES: LocalLock<Vec<RawFd>> = LocalLock::new(Rank::ProviderFiles, Vec::new());
/// True since the first descriptor: read without the lock.
static ARE_THERE: AtomicBool = AtomicBool::new(false);

/// No descriptor of libfabric is made or closed while this value lives. Handlers of signals are
/// deferred.
pub struct Still {
    files: LocalGuard<'static, Vec<RawFd>>,
    _held: Held,
}

/// True when libfabric may have descriptors in this process.
#[inline]
pub fn are_there() -> bool {
    ARE_THERE.load(Ordering::Relaxed)
}

/// True if the calling thread is in a call of libfabric, as far as a hook can tell.
pub fn is_calling() -> bool {
    deferral::is_held() && process::ready() && process::settings().may_load_libfabric()
}

/// Makes one descriptor by the call `make`, which returns a negative number on failure.
pub fn made(make: impl FnOnce() -> RawFd) -> RawFd {
    if !is_calling() {
        let fd = make();
        connection::made(fd);
        return fd;
    }
    let files = FILES.lock();
    let fd = make();
    match files {
        Some(mut files) if fd >= 0 => note(&mut files, fd),
        _ => fd,
    }
}

/// Makes two descriptors by the call `make`, which returns 0 when it wrote them to `pair`.
///
/// # Safety
/// `pair` points at two ints if the call returns 0.
pub unsafe fn made_two(make: impl FnOnce() -> i32, pair: *mut RawFd) -> i32 {
    let files = is_calling().then(|| FILES.lock()).flatten();
    let result = make();
    if result != 0 || pair.is_null() {
        return result;
    }
    // SAFETY: the caller's promise.
    let pair = unsafe { std::slice::from_raw_parts_mut(pair, 2) };
    match files {
        Some(mut files) => pair.iter_mut().for_each(|fd| *fd = note(&mut files, *fd)),
        None => pair.iter().copied().for_each(connection::made),
    }
    result
}

/// Moves a descriptor of libfabric to a high number, and notes it. Returns its number.
fn note(files: &mut Vec<RawFd>, fd: RawFd) -> RawFd {
    ARE_THERE.store(true, Ordering::Relaxed);
    let errno = sys::errno();
    let noted = match rustix::io::fcntl_dupfd_cloexec(sys::borrow(fd), first_number()) {
        Ok(moved) => {
            // SAFETY: the number was made just now, and nobody else knows it.
            unsafe { rustix::io::close(fd) };
            moved.into_raw_fd()
        }
        Err(_) => fd,
    };
    connection::made(noted);
    files.push(noted);
    sys::set_errno(errno);
    noted
}

/// The first number for libfabric's descriptors, which are some for each peer.
fn first_number() -> RawFd {
    sys::high_number() / 4 * 3
}

/// libfabric closes `fd`, by the call `close`.
pub fn close(fd: RawFd, close: impl FnOnce() -> i32) -> i32 {
    let Some(mut files) = FILES.lock() else { return close() };
    files.retain(|noted| *noted != fd);
    close()
}

/// Keeps libfabric from making and closing descriptors while the value lives. `None` where it has
/// none, and for a thread that is in one of its calls.
#[inline]
pub fn still() -> Option<Still> {
    if are_there() { still_where_there() } else { None }
}

#[cold]
fn still_where_there() -> Option<Still> {
    if deferral::is_held() || !process::is_itself() {
        return None;
    }
    let held = Held::new();
    FILES.lock().map(|files| Still { files, _held: held })
}

impl Still {
    /// The descriptors of libfabric.
    pub fn files(&self) -> &[RawFd] {
        &self.files
    }
}

/// The lock of this module, for fork.
pub fn lock() -> &'static dyn ForkLock {
    &FILES
}

/// In a forked child, which does not use libfabric: closes its copies. With them it would hold the
/// connections of its parent open.
pub fn forked() {
    ARE_THERE.store(false, Ordering::Relaxed);
    let Some(mut files) = FILES.lock() else { return };
    for fd in files.drain(..) {
        // SAFETY: the number is libfabric's, and nothing in this process uses that any more.
        unsafe { rustix::io::close(fd) };
    }
}
