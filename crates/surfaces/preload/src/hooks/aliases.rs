//! Other names of hooked functions, which old programs and some libraries use.

use libc::{c_int, c_uint, c_void, fd_set, mmsghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t};
use libc::{pid_t, ssize_t, timeval};

use super::{descriptors, programs, readiness, sockets, streams};

macro_rules! aliases {
    ($($alias:ident is $module:ident::$name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*)
    => {
        $(
            pub(super) unsafe extern "C-unwind" fn $alias($($argument: $type),*) -> $result {
                // SAFETY: another name of the same function.
                unsafe { $module::$name($($argument),*) }
            }
        )*
    };
}

aliases! {
    __read is streams::read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t;
    __write is streams::write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t;
    __send is streams::send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int)
        -> ssize_t;
    __recv is streams::recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int)
        -> ssize_t;
    __sendmmsg is streams::sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int)
        -> c_int;
    __connect is sockets::connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    __close is descriptors::close(fd: c_int) -> c_int;
    __dup2 is descriptors::dup2(old: c_int, new: c_int) -> c_int;
    __fcntl is descriptors::fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    __pipe is descriptors::pipe(pair: *mut c_int) -> c_int;
    __poll is readiness::poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    __select is readiness::select(count: c_int, reads: *mut fd_set, writes: *mut fd_set,
        exceptions: *mut fd_set, time: *mut timeval) -> c_int;
    __fork is programs::fork() -> pid_t;
}

/// `sockatmark`, for which the C library asks the kernel. Bytes on a lane are never at the mark.
pub(super) unsafe extern "C-unwind" fn sockatmark(fd: c_int) -> c_int {
    let mut mark: c_int = 0;
    let pointer: *mut c_int = &raw mut mark;
    // SAFETY: the call writes one int.
    let result = unsafe { sockets::ioctl(fd, crate::sys::SIOCATMARK, pointer.cast()) };
    if result < 0 { result } else { mark }
}
