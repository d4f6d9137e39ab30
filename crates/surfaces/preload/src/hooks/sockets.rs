//! How connections begin and end: `listen`, `accept`, `connect`, `shutdown`; socket options and
//! `ioctl`.

use std::sync::atomic::{AtomicU8, Ordering};

use libc::{c_int, c_ulong, c_void, sockaddr, socklen_t};
use rustix::io::Errno;
use rustix::net::{SocketType, ipproto, sockopt};
use weft_fabric::WaitFor;
use weft_socket::{Phase, Side};

use super::descriptors::{note_blocking, note_signals};
use super::memory::check;
use super::options::{leaves_to_kernel, note_options};
use super::{as_int, kernel};
use crate::arena::{Connection, flag};
use crate::calls::Call;
use crate::connection::{find, made, track};
use crate::history::Address;
use crate::real::real;
use crate::table::{self, Entry};
use crate::{control, deferral, epoll, history, process, provider_files, sys};

/// True when the program makes a call, after the library is set up. libfabric makes connections of
/// its own, in calls that the library makes with its locks held.
fn is_of_program() -> bool {
    process::ready() && !deferral::is_held()
}

/// True for a TCP socket. MPTCP and SCTP streams are none.
pub(super) fn is_tcp(fd: c_int) -> bool {
    let socket = sys::borrow(fd);
    sockopt::socket_protocol(socket) == Ok(Some(ipproto::TCP))
        && sockopt::socket_type(socket) == Ok(SocketType::STREAM)
}

pub(super) unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    let result = real!(listen as fn(c_int, c_int) -> c_int, (fd, backlog),
        else as_int(kernel!(SYS_listen, fd, backlog)));
    if result == 0 && is_of_program() {
        let errno = sys::errno();
        note_listener(fd);
        sys::set_errno(errno);
    }
    result
}

/// Tells the daemon, once, that this process will accept connections of `fd` through weft.
fn note_listener(fd: c_int) {
    match table::get(fd) {
        Entry::Listener | Entry::LeftToKernel => return,
        _ => {}
    }
    if is_tcp(fd) {
        if let Some(connection) = find(fd) {
            // It was tracked when it was added to an epoll set, before it listened.
            epoll::forget(*connection);
        }
        made(fd);
        if leaves_to_kernel(fd) {
            table::set(fd, Entry::LeftToKernel);
            return;
        }
        note_options(fd);
        // Before the table has the listener: if this call opens the channel, it announces the
        // listeners of the table. The daemon's answer to that would be taken for the answer to this
        // packet, which still holds the listener open.
        control::listening(table::listener_token(fd), fd);
        history::begin();
        table::set(fd, Entry::Listener);
    } else {
        table::set(fd, Entry::LeftToKernel);
    }
}

fn accepted(listener: c_int, fd: c_int, nonblocking: bool) {
    if fd < 0 || !is_of_program() {
        return;
    }
    let errno = sys::errno();
    note_listener(listener);
    if table::get(listener) == Entry::Listener {
        track(fd, Side::Accepted, nonblocking, Address::Listener(listener).place());
        control::keep_open();
    } else {
        made(fd);
    }
    sys::set_errno(errno);
}

pub(super) unsafe extern "C-unwind" fn accept(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    let accept_one = || {
        real!(accept as fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
            (fd, address, length), else as_int(kernel!(SYS_accept, fd, address, length)))
    };
    if provider_files::is_calling() {
        return provider_files::made(accept_one);
    }
    let new = accept_one();
    accepted(fd, new, false);
    new
}

pub(super) unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let accept_one = || {
        real!(accept4 as fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int,
            (fd, address, length, flags),
            else as_int(kernel!(SYS_accept4, fd, address, length, flags)))
    };
    if provider_files::is_calling() {
        return provider_files::made(accept_one);
    }
    let new = accept_one();
    accepted(fd, new, flags & libc::SOCK_NONBLOCK != 0);
    new
}

/// The bytes of the address that a program gave, as many as a `sockaddr_in6` has at most.
///
/// # Safety
/// As connect(2) demands of the two.
unsafe fn bytes_of<'a>(address: *const sockaddr, length: socklen_t) -> &'a [u8] {
    let most = size_of::<libc::sockaddr_in6>();
    let length = usize::try_from(length).unwrap_or(0).min(most);
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(address.cast(), length) }
}

/// The connection that a `connect` ends, since it is to no address; its peer is reset.
///
/// # Safety
/// As connect(2) demands.
unsafe fn dissolves(fd: c_int, address: *const sockaddr, length: socklen_t) -> Option<Call> {
    let connection = find(fd).filter(|_| is_of_program())?;
    check(address as usize, size_of::<sockaddr>()).ok()?;
    // SAFETY: the caller's promise.
    let family = c_int::from(unsafe { (&raw const (*address).sa_family).read_unaligned() });
    let is_none = family == libc::AF_UNSPEC && length as usize >= size_of::<libc::sa_family_t>();
    (is_none && connection.dissolve(fd)).then_some(connection)
}

pub(super) unsafe extern "C-unwind" fn connect(
    fd: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> c_int {
    // SAFETY: the program's promise to connect(2).
    let dissolved = unsafe { dissolves(fd, address, length) };
    let result = real!(connect as fn(c_int, *const sockaddr, socklen_t) -> c_int,
        (fd, address, length), else as_int(kernel!(SYS_connect, fd, address, length)));
    if let Some(connection) = dissolved {
        let errno = sys::errno();
        connection.renew(fd);
        sys::set_errno(errno);
        return result;
    }
    if is_of_program() && !address.is_null() {
        let errno = sys::errno();
        let begun = result == 0 || errno == libc::EINPROGRESS || errno == libc::EINTR;
        // SAFETY: the program's address, which connect(2) just read.
        let family = c_int::from(unsafe { (&raw const (*address).sa_family).read_unaligned() });
        let internet = family == libc::AF_INET || family == libc::AF_INET6;
        let is_unknown = table::get(fd) == Entry::None;
        let nonblocking = match table::get(fd) {
            Entry::Unconnected { nonblocking } if begun && internet => Some(nonblocking),
            Entry::Connection(_) if begun && internet => {
                if let Some(connection) = find(fd) {
                    connection.connects(fd);
                }
                None
            }
            Entry::None if begun && internet && is_tcp(fd) && !leaves_to_kernel(fd) => {
                note_options(fd);
                Some(sys::is_nonblocking(fd))
            }
            _ => None,
        };
        if let Some(nonblocking) = nonblocking {
            // SAFETY: as above; `bytes_of` cuts the length at that of the longest internet address.
            let remote = unsafe { bytes_of(address, length) };
            track(fd, Side::Connected, nonblocking, Address::Remote(remote).place());
            if is_unknown && sys::is_signalled(fd) {
                note_signals(fd);
            }
        }
        sys::set_errno(errno);
    }
    result
}

/// Tracks `fd`, which is about to be added to an epoll set, if it is a TCP socket without a peer.
/// The program may connect it later, and the set must know by then that it is a connection.
pub(super) fn track_unconnected(fd: c_int) {
    let may_be = matches!(table::get(fd), Entry::None | Entry::Unconnected { .. });
    if fd < 0 || !may_be || !is_of_program() {
        return;
    }
    let errno = sys::errno();
    let unconnected = || {
        let socket = sys::borrow(fd);
        rustix::net::getpeername(socket) == Err(Errno::NOTCONN)
            && sockopt::socket_acceptconn(socket) == Ok(false)
    };
    if is_tcp(fd) && unconnected() {
        track(fd, Side::Connected, sys::is_nonblocking(fd), 0);
    }
    sys::set_errno(errno);
}

pub(super) unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    // Until the kernel's call is over: the other end may close before that, and then another thread
    // of this program.
    let connection = find(fd);
    if let Some(connection) = connection.as_deref().copied() {
        let goes_on = how == libc::SHUT_WR && connection.ends_sending_on_tcp(fd);
        if !goes_on {
            connection.stay_at_its_end(fd);
        }
        if !goes_on && connection.decide_if_asked(fd) == Phase::Laned {
            if connection.is_over(fd) {
                // Both directions have ended, which the kernel does not know yet.
                kernel!(SYS_shutdown, fd, libc::SHUT_RDWR);
                sys::set_errno(libc::ENOTCONN);
                return -1;
            }
            let is_done = shut(connection, fd, how);
            epoll::shut(connection);
            if is_done {
                return 0;
            }
        }
    }
    real!(shutdown as fn(c_int, c_int) -> c_int, (fd, how),
        else as_int(kernel!(SYS_shutdown, fd, how)))
}

/// Shuts down directions of a connection with a lane. False when the kernel must act, too.
fn shut(connection: Connection, fd: c_int, how: c_int) -> bool {
    if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
        connection.set(flag::READING_SHUT, true);
    }
    let mut on_lane = false;
    if how != libc::SHUT_RD
        && let Some(mut sending) = connection.sending_on_lane(fd)
    {
        // The end is posted on the lane in any case: a peer that moves to the lane later would take
        // the end of file on the kernel's socket for the death of this process.
        on_lane = sending.shut();
    }
    match how {
        // A half close by the kernel would also end wakeups, which the other direction still needs.
        libc::SHUT_WR => on_lane,
        // Reading needs no shutdown by the kernel, except to wake threads that sleep in it.
        libc::SHUT_RD => !connection.shared.common.has_sleeper(WaitFor::Data),
        _ => false,
    }
}

pub(super) unsafe extern "C-unwind" fn socket(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    // A program that another thread starts just now gets none of libfabric's.
    let of_library = provider_files::is_calling();
    let kind = if of_library { kind | libc::SOCK_CLOEXEC } else { kind };
    let fd = provider_files::made(|| {
        real!(socket as fn(c_int, c_int, c_int) -> c_int, (domain, kind, protocol),
            else as_int(kernel!(SYS_socket, domain, kind, protocol)))
    });
    if fd >= 0 && process::ready() && !of_library && makes_tcp(fd, domain, kind, protocol) {
        table::set(fd, Entry::Unconnected { nonblocking: kind & libc::SOCK_NONBLOCK != 0 });
    }
    fd
}

/// True when `fd`, which was made with these arguments, is a TCP socket. The kernel is asked once
/// for each family, since it may be configured to make MPTCP sockets for programs that ask for TCP.
fn makes_tcp(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) -> bool {
    const UNKNOWN: u8 = 0;
    const TCP: u8 = 1;
    const OTHER: u8 = 2;
    static FAMILIES: [AtomicU8; 2] = [const { AtomicU8::new(UNKNOWN) }; 2];
    let family = match domain {
        libc::AF_INET => &FAMILIES[0],
        libc::AF_INET6 => &FAMILIES[1],
        _ => return false,
    };
    let is_stream = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM;
    if !is_stream || !matches!(protocol, 0 | libc::IPPROTO_TCP) {
        return false;
    }
    match family.load(Ordering::Relaxed) {
        UNKNOWN => {
            let errno = sys::errno();
            let is_it = is_tcp(fd);
            sys::set_errno(errno);
            family.store(if is_it { TCP } else { OTHER }, Ordering::Relaxed);
            is_it
        }
        known => known == TCP,
    }
}

pub(super) unsafe extern "C-unwind" fn getpeername(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // After a reset that was posted on the lane, the kernel's socket still has a peer.
    if find(fd).is_some_and(|connection| connection.was_reset()) {
        sys::set_errno(libc::ENOTCONN);
        return -1;
    }
    real!(getpeername as fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
        (fd, address, length),
        else as_int(kernel!(SYS_getpeername, fd, address, length)))
}

pub(super) unsafe extern "C-unwind" fn ioctl(
    fd: c_int,
    request: c_ulong,
    argument: *mut c_void,
) -> c_int {
    if let Some(connection) = find(fd) {
        if request == libc::FIONREAD
            && !argument.is_null()
            && let Some(bytes) = connection.unread(fd)
        {
            let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
            // SAFETY: the program's int, which FIONREAD writes, at any address.
            unsafe { argument.cast::<c_int>().write_unaligned(bytes) };
            return 0;
        }
        if request == sys::SIOCATMARK && !argument.is_null() && connection.has_lane_data(fd) {
            // SAFETY: the program's int, which SIOCATMARK writes.
            unsafe { argument.cast::<c_int>().write_unaligned(0) };
            return 0;
        }
    }
    let result = real!(ioctl as fn(c_int, c_ulong, *mut c_void) -> c_int,
        (fd, request, argument), else as_int(kernel!(SYS_ioctl, fd, request, argument)));
    if result == 0
        && (request == libc::TIOCOUTQ || request == sys::SIOCOUTQNSD)
        && let Some(connection) = find(fd)
    {
        let place = argument.cast::<c_int>();
        // SAFETY: the kernel just wrote an int there.
        let unacknowledged = unsafe { place.read_unaligned() };
        // SAFETY: as above.
        unsafe { place.write_unaligned(connection.data_of_unacknowledged(unacknowledged)) };
    }
    if result == 0 && request == libc::FIONBIO {
        // SAFETY: the kernel just read an int there.
        note_blocking(fd, unsafe { argument.cast::<c_int>().read_unaligned() } != 0);
    }
    if result == 0
        && request == libc::FIOASYNC
        // SAFETY: as above.
        && unsafe { argument.cast::<c_int>().read_unaligned() } != 0
    {
        note_signals(fd);
    }
    result
}
