//! The life of descriptor numbers: close, dup, fcntl, and every call that makes one.

use std::os::fd::RawFd;

use libc::{c_char, c_int, c_uint, mode_t};

use super::{as_int, kernel};
use weft_socket::Phase;

use crate::arena::flag;
use crate::connection::{Closing, ClosingRange, closing, copied, find, tracked};
use crate::own::Close;
use crate::real::real;
use crate::table::{self, Entry};
use crate::{calls, control, epoll, lanes, own, process, provider_files, sys};
use weft_wire::stats::TcpReason;

/// Tracks that `fd` is about to be closed, except in a child of vfork, which shares its memory. The
/// value lives until the kernel has closed it.
fn note_closing(fd: c_int) -> Option<Closing> {
    if table::get(fd) == Entry::None || !process::is_itself() {
        return None;
    }
    let errno = sys::errno();
    let closing = closing(fd);
    sys::set_errno(errno);
    Some(closing)
}

/// The same for all numbers of a range.
fn note_closing_range(first: c_uint, last: c_uint) -> ClosingRange {
    for (fd, _) in table::walk(first, last) {
        // Given up by the range, when the kernel has closed all.
        std::mem::forget(note_closing(fd));
    }
    ClosingRange(first, last)
}

pub(super) unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    // Programs that close all descriptors they do not know must neither close these nor fail.
    let close_it = || real!(close as fn(c_int) -> c_int, (fd), else as_int(kernel!(SYS_close, fd)));
    if fd >= 0 && control::is_channel(fd) && process::is_itself() {
        return 0;
    }
    if provider_files::are_there() && provider_files::is_calling() {
        return provider_files::close(fd, close_it);
    }
    match own::close(fd) {
        Close::Stays => return 0,
        Close::NotOpen => {
            sys::set_errno(libc::EBADF);
            return -1;
        }
        Close::Goes => {}
    }
    let _closing = note_closing(fd);
    close_it()
}

pub(super) unsafe extern "C-unwind" fn close_range(
    first: c_uint,
    last: c_uint,
    flags: c_int,
) -> c_int {
    const CLOEXEC: c_int = 4;
    const UNSHARE: c_int = 2;
    if flags & UNSHARE != 0 && process::ready() && !process::is_single_threaded() {
        return apart(|| close_all_of(first, last, flags));
    }
    if flags & CLOEXEC == 0 && process::is_itself() {
        let _closing = note_closing_range(first, last);
        let kept = own::kept_between(first, last);
        // A descriptor that is made from here on has a number that the program closes.
        let _still = provider_files::still();
        return close_around(&kept, first, last, flags);
    }
    close_all_of(first, last, flags)
}

/// Makes a call by which this thread gets descriptors of its own, beside other threads. The table
/// is that of the others. So connections go back to TCP for good, where all can use them, and this
/// thread uses the library no more.
fn apart(call: impl FnOnce() -> c_int) -> c_int {
    lanes::leave_all();
    let result = call();
    if result == 0 {
        let errno = sys::errno();
        process::begin_own_files();
        calls::begin_own_files();
        sys::set_errno(errno);
    }
    result
}

pub(super) unsafe extern "C-unwind" fn unshare(flags: c_int) -> c_int {
    let call =
        || real!(unshare as fn(c_int) -> c_int, (flags), else as_int(kernel!(SYS_unshare, flags)));
    let divides = flags & libc::CLONE_FILES != 0 && process::ready();
    if divides && !process::is_single_threaded() { apart(call) } else { call() }
}

fn close_all_of(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    real!(close_range as fn(c_uint, c_uint, c_int) -> c_int, (first, last, flags),
        else as_int(kernel!(SYS_close_range, first, last, flags)))
}

/// Closes a range but for descriptors of the library, which are in order.
#[cold]
fn close_around(kept: &[RawFd], first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if kept.is_empty() {
        return close_all_of(first, last, flags);
    }
    let mut next = first;
    for fd in kept.iter().map(|fd| fd.unsigned_abs()) {
        if next < fd {
            let closed = close_all_of(next, fd - 1, flags);
            if closed != 0 {
                return closed;
            }
        }
        next = fd + 1;
    }
    if next <= last { close_all_of(next, last, flags) } else { 0 }
}

pub(super) unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let start = first.max(0).unsigned_abs();
    if process::is_itself() {
        let _closing = note_closing_range(start, u32::MAX - 1);
        let kept = own::kept_between(start, c_uint::MAX);
        if !kept.is_empty() {
            close_around(&kept, start, c_uint::MAX, 0);
            return;
        }
    }
    real!(closefrom as fn(c_int) -> (), (first), else {
        kernel!(SYS_close_range, start, c_uint::MAX, 0);
    });
}

pub(super) unsafe extern "C-unwind" fn dup(old: c_int) -> c_int {
    let copy = || real!(dup as fn(c_int) -> c_int, (old), else as_int(kernel!(SYS_dup, old)));
    if provider_files::is_calling() {
        return provider_files::made(copy);
    }
    // The number leads to the same connection until its copy is noted.
    let _call = tracked(old);
    let new = copy();
    note_copy(old, new);
    new
}

fn note_copy(old: c_int, new: c_int) {
    if new >= 0 && process::ready() && process::is_itself() {
        copied(old, new);
    }
}

/// Tracks that dup2 is about to close `new`: the peer is told while `new` is still open. An error
/// if the library has a descriptor there and cannot leave it, which is told as EBUSY, as dup2(2)
/// may.
fn before_copy_onto(old: c_int, new: c_int) -> Result<Option<Closing>, ()> {
    let valid = old != new && rustix::io::fcntl_getfd(sys::borrow(old.max(0))).is_ok();
    if old >= 0 && new >= 0 && valid {
        if !own::vacate(new) {
            sys::set_errno(libc::EBUSY);
            return Err(());
        }
        let closing = note_closing(new);
        if new <= 2
            && let Some(connection) = find(old)
        {
            if process::is_itself() {
                connection.prepare_for_stdio(old);
            } else {
                // The program that this child of vfork becomes uses it, unseen by the library.
                connection.stay_unless_moved(old, TcpReason::RawUse);
            }
        }
        return Ok(closing);
    }
    Ok(None)
}

pub(super) unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    let _call = tracked(old);
    let Ok(_closing) = before_copy_onto(old, new) else { return -1 };
    let _still = own::reserve(new);
    let result = real!(dup2 as fn(c_int, c_int) -> c_int, (old, new),
        else as_int(kernel!(SYS_dup3, old, new, 0)));
    note_copy(old, result);
    result
}

pub(super) unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    let _call = tracked(old);
    let Ok(_closing) = before_copy_onto(old, new) else { return -1 };
    let _still = own::reserve(new);
    let result = real!(dup3 as fn(c_int, c_int, c_int) -> c_int, (old, new, flags),
        else as_int(kernel!(SYS_dup3, old, new, flags)));
    note_copy(old, result);
    result
}

/// Tracks that O_NONBLOCK of `fd` was set or cleared.
pub(super) fn note_blocking(fd: c_int, nonblocking: bool) {
    if let Some(connection) = find(fd) {
        connection.set(flag::NONBLOCKING, nonblocking);
    } else if matches!(table::get(fd), Entry::Unconnected { .. }) {
        table::set(fd, Entry::Unconnected { nonblocking });
    }
}

/// Tracks that the kernel signals what comes on `fd` (O_ASYNC), so that all has to come there. The
/// peer follows this end to TCP.
pub(super) fn note_signals(fd: c_int) {
    if let Some(connection) = find(fd) {
        let errno = sys::errno();
        connection.send_over_tcp_for_good(fd);
        sys::set_errno(errno);
    } else if matches!(table::get(fd), Entry::Unconnected { .. }) {
        // So connect asks the kernel for the flags.
        table::set(fd, Entry::None);
    }
}

fn note_fcntl(fd: c_int, command: c_int, argument: usize, result: c_int) {
    match command {
        libc::F_SETFL if result == 0 => {
            note_blocking(fd, argument & libc::O_NONBLOCK.unsigned_abs() as usize != 0);
            if argument & libc::O_ASYNC.unsigned_abs() as usize != 0 {
                note_signals(fd);
            }
        }
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => note_copy(fd, result),
        _ => {}
    }
}

pub(super) unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    let call = || {
        real!(fcntl as fn(c_int, c_int, usize) -> c_int, (fd, command, argument),
            else as_int(kernel!(SYS_fcntl, fd, command, argument)))
    };
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) && provider_files::is_calling() {
        return provider_files::made(call);
    }
    let _call = tracked(fd);
    let result = call();
    note_fcntl(fd, command, argument, result);
    result
}

pub(super) unsafe extern "C-unwind" fn fcntl64(
    fd: c_int,
    command: c_int,
    argument: usize,
) -> c_int {
    let call = || {
        real!(fcntl64 as fn(c_int, c_int, usize) -> c_int, (fd, command, argument),
            else as_int(kernel!(SYS_fcntl, fd, command, argument)))
    };
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) && provider_files::is_calling() {
        return provider_files::made(call);
    }
    let _call = tracked(fd);
    let result = call();
    note_fcntl(fd, command, argument, result);
    result
}

/// The C library's own streams read and write where no hook sees it. So a connection on a lane gets
/// a stream of this library (`stdio`), and any other one stays on TCP.
pub(super) unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    if let Some(connection) = find(fd)
        && connection.decide_for_kernel(fd) == Phase::Laned
    {
        // SAFETY: the program's mode, as fdopen(3) demands.
        return unsafe { crate::stdio::open(fd, mode) };
    }
    real!(fdopen as fn(c_int, *const c_char) -> *mut libc::FILE, (fd, mode),
        else std::ptr::null_mut())
}

/// Declares hooks for the calls that return the descriptor of a stream.
macro_rules! asks_descriptor {
    ($($name:ident)*) => {
        $(
            pub(super) unsafe extern "C-unwind" fn $name(stream: *mut libc::FILE) -> c_int {
                if let Some(fd) = crate::stdio::descriptor_of(stream) {
                    return fd;
                }
                real!($name as fn(*mut libc::FILE) -> c_int, (stream), else {
                    sys::set_errno(libc::EBADF);
                    -1
                })
            }
        )*
    };
}

asks_descriptor! { fileno fileno_unlocked }

/// Declares hooks for the calls that reopen a stream on another file.
macro_rules! reopens {
    ($($name:ident)*) => {
        $(
            pub(super) unsafe extern "C-unwind" fn $name(
                path: *const c_char,
                mode: *const c_char,
                stream: *mut libc::FILE,
            ) -> *mut libc::FILE {
                if let Some(fd) = crate::stdio::descriptor_of(stream)
                    && !mode.is_null()
                {
                    // SAFETY: the program's strings, as freopen(3) demands.
                    return unsafe { crate::stdio::reopen(fd, path, mode, stream) };
                }
                real!($name as
                    fn(*const c_char, *const c_char, *mut libc::FILE) -> *mut libc::FILE,
                    (path, mode, stream), else std::ptr::null_mut())
            }
        )*
    };
}

reopens! { freopen freopen64 }

/// Declares hooks for calls that make one descriptor, and drop the table's entry for its number.
macro_rules! makes_descriptor {
    ($($name:ident($($argument:ident: $type:ty),*) $fallback:expr;)*) => {
        $(
            pub(super) unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
                provider_files::made(|| {
                    real!($name as fn($($type),*) -> c_int, ($($argument),*),
                        else as_int($fallback))
                })
            }
        )*
    };
}

makes_descriptor! {
    open(path: *const c_char, flags: c_int, mode: mode_t)
        kernel!(SYS_openat, libc::AT_FDCWD, path, flags, mode);
    open64(path: *const c_char, flags: c_int, mode: mode_t)
        kernel!(SYS_openat, libc::AT_FDCWD, path, flags, mode);
    openat(at: c_int, path: *const c_char, flags: c_int, mode: mode_t)
        kernel!(SYS_openat, at, path, flags, mode);
    openat64(at: c_int, path: *const c_char, flags: c_int, mode: mode_t)
        kernel!(SYS_openat, at, path, flags, mode);
    creat(path: *const c_char, mode: mode_t)
        kernel!(SYS_openat, libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC,
            mode);
    eventfd(value: c_uint, flags: c_int)
        kernel!(SYS_eventfd2, value, flags);
}

/// Tracks an epoll set from the start: a thread may wait on it before a connection is added.
fn made_set(make: impl FnOnce() -> c_int) -> c_int {
    let epfd = provider_files::made(make);
    if epfd >= 0 && process::ready() && !provider_files::is_calling() {
        epoll::created(epfd);
    }
    epfd
}

pub(super) unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    made_set(|| {
        real!(epoll_create as fn(c_int) -> c_int, (size),
            else as_int(kernel!(SYS_epoll_create1, if size > 0 { 0 } else { -1 })))
    })
}

pub(super) unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    made_set(|| {
        real!(epoll_create1 as fn(c_int) -> c_int, (flags),
            else as_int(kernel!(SYS_epoll_create1, flags)))
    })
}

pub(super) unsafe extern "C-unwind" fn pipe(pair: *mut c_int) -> c_int {
    let make = || {
        real!(pipe as fn(*mut c_int) -> c_int, (pair),
            else as_int(kernel!(SYS_pipe2, pair, 0)))
    };
    // SAFETY: pipe(2) writes two ints.
    unsafe { provider_files::made_two(make, pair) }
}

pub(super) unsafe extern "C-unwind" fn pipe2(pair: *mut c_int, flags: c_int) -> c_int {
    let make = || {
        real!(pipe2 as fn(*mut c_int, c_int) -> c_int, (pair, flags),
            else as_int(kernel!(SYS_pipe2, pair, flags)))
    };
    // SAFETY: pipe2(2) writes two ints.
    unsafe { provider_files::made_two(make, pair) }
}

pub(super) unsafe extern "C-unwind" fn socketpair(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    pair: *mut c_int,
) -> c_int {
    let make = || {
        real!(socketpair as fn(c_int, c_int, c_int, *mut c_int) -> c_int,
            (domain, kind, protocol, pair),
            else as_int(kernel!(SYS_socketpair, domain, kind, protocol, pair)))
    };
    // SAFETY: socketpair(2) writes two ints.
    unsafe { provider_files::made_two(make, pair) }
}

macro_rules! ends_process {
    ($($name:ident)*) => {
        $(
            #[allow(non_snake_case, reason = "the name in C")]
            pub(super) unsafe extern "C-unwind" fn $name(status: c_int) -> ! {
                super::lifecycle::end();
                real!($name as fn(c_int) -> (), (status), else ());
                loop {
                    kernel!(SYS_exit_group, status);
                }
            }
        )*
    };
}

ends_process! { _exit _Exit }
