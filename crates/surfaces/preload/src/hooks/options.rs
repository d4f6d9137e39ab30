//! Options of sockets. Most are the kernel's own and hold for both ways of a connection, or mean
//! nothing on a lane. The table here decides about the others.
//!
//! Some options change what the bytes on the wire are, drop or delay them, or tell of each as it
//! arrives at the kernel. A connection with one of these goes back to TCP before the option is set,
//! or the option is refused. A socket that has one before it is a connection is left to the kernel,
//! with all connections that it accepts.

use libc::{c_int, c_void, socklen_t};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use weft_socket::Phase;

use super::sockets::is_tcp;
use super::{as_int, kernel};
use crate::arena::{Connection, flag};
use crate::connection::{INHERITED, find, has_low_water, tells_unread};
use crate::real::real;
use crate::sys::{self, Word, raw};
use crate::table::{self, Entry};
use crate::{control, process};

/// The effect of an option on a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Both directions go back to TCP first, and nothing is left on the lane. If that cannot be,
    /// the option is refused with this error.
    BackFirst(Errno),
    /// All goes over TCP from here on. The peer follows.
    BackFromHere,
    /// The sending direction goes back to TCP first. If that cannot be, the option is refused.
    SendsByKernel,
    /// As [`Effect::BackFromHere`], and waits for several bytes are the kernel's (SO_RCVLOWAT).
    LowWater,
    /// The lane is used up to these sizes.
    Buffers,
    /// `recvmsg` tells what is left to read (TCP_INQ).
    TellsUnread,
}

/// The values with which an option is off.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Off {
    /// None: it cannot be asked for either.
    Never,
    Zero,
    UpToOne,
    Negative,
    /// -1, which is no limit.
    AllOnes,
}

impl Off {
    fn has(self, value: c_int) -> bool {
        match self {
            Self::Never => false,
            Self::Zero => value == 0,
            Self::UpToOne => value <= 1,
            Self::Negative => value < 0,
            Self::AllOnes => value == -1,
        }
    }
}

struct Row {
    level: c_int,
    name: c_int,
    off: Off,
    effect: Effect,
}

/// Options that libc does not name on this architecture.
mod name {
    use libc::c_int;

    pub const SO_PEEK_OFF: c_int = 42;
    pub const SO_MAX_PACING_RATE: c_int = 47;
    pub const SO_ATTACH_BPF: c_int = 50;
    pub const SO_TXTIME: c_int = 61;
    pub const SO_TIMESTAMP_NEW: c_int = 63;
    pub const SO_TIMESTAMPNS_NEW: c_int = 64;
    pub const SO_TIMESTAMPING_NEW: c_int = 65;
    pub const TCP_TX_DELAY: c_int = 37;
    pub const TCP_AO_ADD_KEY: c_int = 38;
}

const NOT_SUPPORTED: Effect = Effect::BackFirst(Errno::OPNOTSUPP);

const fn socket(name: c_int, off: Off, effect: Effect) -> Row {
    Row { level: libc::SOL_SOCKET, name, off, effect }
}

const fn tcp(name: c_int, off: Off, effect: Effect) -> Row {
    Row { level: libc::IPPROTO_TCP, name, off, effect }
}

const TABLE: &[Row] = &[
    // Arriving segments: filters drop them, stamps tell of each, an offset moves with each look.
    socket(libc::SO_ATTACH_FILTER, Off::Never, Effect::BackFromHere),
    socket(name::SO_ATTACH_BPF, Off::Never, Effect::BackFromHere),
    socket(libc::SO_TIMESTAMP, Off::Zero, NOT_SUPPORTED),
    socket(libc::SO_TIMESTAMPNS, Off::Zero, NOT_SUPPORTED),
    socket(libc::SO_TIMESTAMPING, Off::Zero, NOT_SUPPORTED),
    socket(name::SO_TIMESTAMP_NEW, Off::Zero, NOT_SUPPORTED),
    socket(name::SO_TIMESTAMPNS_NEW, Off::Zero, NOT_SUPPORTED),
    socket(name::SO_TIMESTAMPING_NEW, Off::Zero, NOT_SUPPORTED),
    socket(name::SO_PEEK_OFF, Off::Negative, NOT_SUPPORTED),
    socket(libc::SO_RCVLOWAT, Off::UpToOne, Effect::LowWater),
    tcp(libc::TCP_ZEROCOPY_RECEIVE, Off::Never, NOT_SUPPORTED),
    tcp(libc::TCP_INQ, Off::Zero, Effect::TellsUnread),
    // When it leaves.
    socket(name::SO_MAX_PACING_RATE, Off::AllOnes, Effect::BackFromHere),
    socket(name::SO_TXTIME, Off::Never, Effect::BackFromHere),
    tcp(name::TCP_TX_DELAY, Off::Zero, Effect::BackFromHere),
    // These change the bytes on the wire: encrypted, signed, or set from outside.
    tcp(libc::TCP_ULP, Off::Never, Effect::BackFirst(Errno::NOENT)),
    tcp(libc::TCP_MD5SIG, Off::Never, NOT_SUPPORTED),
    tcp(libc::TCP_MD5SIG_EXT, Off::Never, NOT_SUPPORTED),
    tcp(name::TCP_AO_ADD_KEY, Off::Never, NOT_SUPPORTED),
    tcp(libc::TCP_REPAIR, Off::Zero, NOT_SUPPORTED),
    Row { level: libc::IPPROTO_IP, name: libc::IP_IPSEC_POLICY, ..WITH_POLICY },
    Row { level: libc::IPPROTO_IP, name: libc::IP_XFRM_POLICY, ..WITH_POLICY },
    Row { level: libc::IPPROTO_IPV6, name: libc::IPV6_IPSEC_POLICY, ..WITH_POLICY },
    Row { level: libc::IPPROTO_IPV6, name: libc::IPV6_XFRM_POLICY, ..WITH_POLICY },
    // Bytes on a lane get no completions.
    socket(libc::SO_ZEROCOPY, Off::Never, Effect::SendsByKernel),
    socket(libc::SO_SNDBUF, Off::Never, Effect::Buffers),
    socket(libc::SO_RCVBUF, Off::Never, Effect::Buffers),
    socket(libc::SO_SNDBUFFORCE, Off::Never, Effect::Buffers),
    socket(libc::SO_RCVBUFFORCE, Off::Never, Effect::Buffers),
];

const WITH_POLICY: Row = Row { level: 0, name: 0, off: Off::Never, effect: NOT_SUPPORTED };

fn row(level: c_int, name: c_int) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.level == level && row.name == name)
}

/// A value that a program gives.
#[derive(Clone, Copy)]
struct Given {
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
}

impl Given {
    /// The value as an int; `None` if it is shorter, or not readable for sure.
    ///
    /// # Safety
    /// As setsockopt(2) demands.
    unsafe fn int(self) -> Option<c_int> {
        let size = size_of::<c_int>();
        let is_int = self.length as usize >= size;
        (is_int && super::memory::check(self.value as usize, size).is_ok())
            // SAFETY: the caller's promise.
            .then(|| unsafe { self.value.cast::<c_int>().read_unaligned() })
    }

    /// The error with which the kernel refuses the option for any socket. A connection need not
    /// leave its lane to be told that.
    fn is_refused(self) -> Option<Errno> {
        let flags = SocketFlags::CLOEXEC;
        let fresh = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
        let fd = fresh.as_ref().ok()?.as_raw_fd();
        let Self { level, name, value, length } = self;
        let words = [fd.word(), level.word(), name.word(), value.word(), length.word(), 0];
        // SAFETY: the program's own value, on a socket of the library's.
        let result = unsafe { raw(libc::SYS_setsockopt, words) };
        let errno = i32::try_from(-result).ok().filter(|errno| *errno > 0)?;
        let lasts = [libc::ENOENT, libc::ENOPROTOOPT, libc::EOPNOTSUPP, libc::EPERM, libc::EFAULT];
        lasts.contains(&errno).then(|| Errno::from_raw_os_error(errno))
    }
}

/// Prepares a connection for an option.
fn before(effect: Effect, connection: Connection, fd: c_int, given: Given) -> Result<(), Errno> {
    match effect {
        Effect::BackFirst(errno) => {
            if let Some(errno) = given.is_refused() {
                return Err(errno);
            }
            if connection.return_to_tcp_for_good(fd) { Ok(()) } else { Err(errno) }
        }
        // Programs copy after this error.
        Effect::SendsByKernel if !connection.send_over_tcp_for_good(fd) => Err(Errno::NOTSUP),
        Effect::SendsByKernel
        | Effect::BackFromHere
        | Effect::LowWater
        | Effect::Buffers
        | Effect::TellsUnread => Ok(()),
    }
}

/// Follows up an option that a connection got.
fn after(effect: Effect, connection: Connection, fd: c_int) {
    match effect {
        Effect::BackFirst(_) | Effect::SendsByKernel => {}
        Effect::BackFromHere => {
            connection.send_over_tcp_for_good(fd);
        }
        Effect::LowWater => {
            connection.set(flag::LOW_WATER, true);
            connection.send_over_tcp_for_good(fd);
        }
        Effect::Buffers => {
            if connection.phase() == Phase::Laned {
                connection.fix_buffers(fd);
            }
        }
        Effect::TellsUnread => connection.set(flag::TELLS_UNREAD, true),
    }
}

/// Follows up an option of a socket that is no connection of the library's.
fn after_without_connection(effect: Effect, fd: c_int) {
    match effect {
        Effect::BackFirst(_) | Effect::BackFromHere => {
            let entry = table::get(fd);
            let may_connect = match entry {
                Entry::Unconnected { .. } | Entry::Listener => true,
                Entry::None => is_tcp(fd),
                Entry::Connection(_)
                | Entry::Epoll(_)
                | Entry::LeftToKernel
                | Entry::Leaving(_) => false,
            };
            if may_connect {
                table::set(fd, Entry::LeftToKernel);
            }
            if entry == Entry::Listener {
                control::withdraw(table::listener_token(fd));
            }
        }
        Effect::LowWater => INHERITED.low_water.store(true, Ordering::Relaxed),
        Effect::TellsUnread => INHERITED.tells_unread.store(true, Ordering::Relaxed),
        Effect::SendsByKernel | Effect::Buffers => {}
    }
}

/// True if `fd`, a TCP socket, has an option with which it is left to the kernel. Another program
/// may have set it.
pub(super) fn leaves_to_kernel(fd: c_int) -> bool {
    TABLE.iter().any(|row| {
        let is_kernels = matches!(row.effect, Effect::BackFirst(_) | Effect::BackFromHere);
        let value = || sys::socket_option(fd, row.level, row.name);
        is_kernels && row.off != Off::Never && value().is_some_and(|value| !row.off.has(value))
    })
}

/// Looks at options of `fd`, which another program may have set, and new connections inherit.
pub(super) fn note_options(fd: c_int) {
    if has_low_water(fd) {
        INHERITED.low_water.store(true, Ordering::Relaxed);
    }
    if tells_unread(fd) {
        INHERITED.tells_unread.store(true, Ordering::Relaxed);
    }
}

pub(super) unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let given = Given { level, name, value, length };
    let effect = row(level, name).filter(|row| {
        // SAFETY: the program's promise to setsockopt(2).
        row.off == Off::Never || unsafe { given.int() }.is_some_and(|value| !row.off.has(value))
    });
    let effect = effect.map(|row| row.effect).filter(|_| process::ready());
    let connection = find(fd);
    if let (Some(effect), Some(connection)) = (effect, &connection)
        && let Err(errno) = before(effect, **connection, fd, given)
    {
        sys::set_errno(errno.raw_os_error());
        return -1;
    }
    if let Some(connection) = &connection {
        if let Some(wish) = connection.wish(level, name)
            // SAFETY: the program's promise to setsockopt(2).
            && let Some(value) = unsafe { given.int() }
        {
            connection.set(wish, value != 0);
            return 0;
        }
        if level == libc::IPPROTO_TCP && name == libc::TCP_INQ {
            connection.set(flag::TELLS_UNREAD, false);
        }
    }
    let result = real!(setsockopt as fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
        (fd, level, name, value, length),
        else as_int(kernel!(SYS_setsockopt, fd, level, name, value, length)));
    if result == 0
        && let Some(effect) = effect
    {
        let errno = sys::errno();
        match &connection {
            Some(connection) => after(effect, **connection, fd),
            None => after_without_connection(effect, fd),
        }
        sys::set_errno(errno);
    }
    result
}

pub(super) unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let connection = find(fd);
    if level == libc::IPPROTO_TCP
        && name == libc::TCP_ZEROCOPY_RECEIVE
        && let Some(connection) = &connection
        && !connection.return_to_tcp_for_good(fd)
    {
        // It maps what the kernel received. Programs copy after this error.
        sys::set_errno(libc::EOPNOTSUPP);
        return -1;
    }
    let result = real!(getsockopt as
        fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
        (fd, level, name, value, length),
        else as_int(kernel!(SYS_getsockopt, fd, level, name, value, length)));
    if result != 0 {
        return result;
    }
    // SAFETY: the kernel just wrote a length there.
    let written = unsafe { length.read_unaligned() } as usize;
    if level == libc::IPPROTO_TCP && name == libc::TCP_INFO {
        // SAFETY: the kernel just wrote so many bytes there.
        let info = unsafe { std::slice::from_raw_parts_mut(value.cast::<u8>(), written) };
        if let Some(connection) = crate::connection::tracked(fd) {
            connection.complete(fd, info);
        }
    }
    let Some(connection) = connection.filter(|_| written == size_of::<c_int>()) else {
        return result;
    };
    let answer = if level == libc::SOL_SOCKET && name == libc::SO_ERROR {
        connection.take_error(fd)
    } else {
        connection.wish(level, name).map(|wish| c_int::from(connection.has(wish)))
    };
    if let Some(answer) = answer {
        // SAFETY: the kernel just wrote an int there.
        unsafe { value.cast::<c_int>().write_unaligned(answer) };
    }
    result
}
