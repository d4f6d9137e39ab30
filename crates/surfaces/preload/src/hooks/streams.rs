//! `read`, `write` and their relatives.

use std::sync::atomic::Ordering;

use libc::{c_int, c_void, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};
use rustix::io::Errno;

use super::ancillary::tell;
use super::memory::{check, source, target};
use super::times::limit;
use super::vectors::{receive_vector, send_vector};
use super::{as_int, kernel, returned};
use crate::arena::{Connection, flag};
use crate::connection::find;
use crate::real::real;
use crate::transfer::How;
use crate::{calls, cancel, sys, waits};

/// The [`How`] of a call with `flags`; `None` when a flag needs the kernel.
fn how(flags: c_int) -> Option<How> {
    let served = libc::MSG_PEEK
        | libc::MSG_DONTWAIT
        | libc::MSG_WAITALL
        | libc::MSG_NOSIGNAL
        | libc::MSG_MORE
        | libc::MSG_CONFIRM
        | libc::MSG_EOR
        | libc::MSG_CMSG_CLOEXEC
        | libc::MSG_ZEROCOPY;
    (flags & !served == 0).then_some(How {
        peek: flags & libc::MSG_PEEK != 0,
        dont_wait: flags & libc::MSG_DONTWAIT != 0,
        wait_all: flags & libc::MSG_WAITALL != 0,
        no_signal: flags & libc::MSG_NOSIGNAL != 0,
    })
}

/// Takes up to `length` bytes and drops them, as MSG_TRUNC does on TCP. With MSG_PEEK they stay.
#[cold]
fn discard(connection: Connection, fd: c_int, length: usize, how: How) -> Result<usize, Errno> {
    /// The bytes that are dropped at a time.
    const PART_BYTES: usize = 1 << 16;
    if how.peek {
        return count_ahead(connection, fd, length, how);
    }
    let mut waste = vec![0u8; length.min(PART_BYTES)];
    let mut total = 0;
    loop {
        let wanted = waste.len().min(length - total);
        let dont_wait = how.dont_wait || total > 0 && !how.wait_all;
        match connection.receive(fd, &mut [&mut waste[..wanted]], How { dont_wait, ..how }) {
            Ok(taken) => {
                total += taken;
                // A short part says that there are no more bytes.
                if taken < wanted || total == length {
                    return Ok(total);
                }
            }
            // The thread ends in its hook.
            Err(Errno::CANCELED) => return Err(Errno::CANCELED),
            Err(_) if total > 0 => return Ok(total),
            Err(errno) => return Err(errno),
        }
    }
}

/// How many of `length` bytes are there, for MSG_TRUNC with MSG_PEEK.
fn count_ahead(connection: Connection, fd: c_int, length: usize, how: How) -> Result<usize, Errno> {
    /// More than any socket's buffer holds.
    const MOST: usize = 64 << 20;
    let mut seen = vec![0u8; if how.wait_all { length.min(MOST) } else { length.min(1) }];
    let first = connection.receive(fd, &mut [&mut seen[..]], how)?;
    if how.wait_all || first == 0 {
        return Ok(first);
    }
    let there = connection
        .unread(fd)
        .or_else(|| rustix::io::ioctl_fionread(sys::borrow(fd)).ok())
        .map_or(first, |there| usize::try_from(there).unwrap_or(usize::MAX));
    Ok(there.max(first).min(length))
}

pub(super) unsafe extern "C-unwind" fn read(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
) -> ssize_t {
    cancel::point();
    if let Some(connection) = find(fd) {
        // SAFETY: the program's promise to read(2).
        let part = unsafe { target(buffer, length) };
        return returned(part.and_then(|part| connection.receive(fd, &mut [part], How::default())));
    }
    real!(read as fn(c_int, *mut c_void, size_t) -> ssize_t, (fd, buffer, length),
        else kernel!(SYS_read, fd, buffer, length))
}

pub(super) unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    room: size_t,
) -> ssize_t {
    check_room(length, room);
    // SAFETY: this is read(2), with its conditions.
    unsafe { read(fd, buffer, length) }
}

/// Aborts the program when its buffer is too small, as the fortified functions of the C library do.
fn check_room(length: size_t, room: size_t) {
    if length > room {
        crate::log::say(format_args!("*** buffer overflow detected ***: terminated"));
        std::process::abort();
    }
}

pub(super) unsafe extern "C-unwind" fn write(
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
) -> ssize_t {
    cancel::point();
    if let Some(connection) = find(fd) {
        // SAFETY: the program's promise to write(2).
        let part = unsafe { source(buffer, length) };
        return returned(part.and_then(|part| connection.send(fd, &[part], How::default())));
    }
    real!(write as fn(c_int, *const c_void, size_t) -> ssize_t, (fd, buffer, length),
        else kernel!(SYS_write, fd, buffer, length))
}

/// recvfrom(2) on a connection; `None` when the kernel serves the call.
///
/// # Safety
/// As recvfrom(2) demands.
#[inline(always)]
#[allow(clippy::inline_always, reason = "two hooks begin with it")]
unsafe fn receive_from(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
    address_length: *mut socklen_t,
) -> Option<ssize_t> {
    cancel::point();
    let connection = find(fd)?;
    let truncates = flags & libc::MSG_TRUNC != 0;
    let how = how(flags & !libc::MSG_TRUNC)?;
    if !address_length.is_null() {
        // SAFETY: the program's pointer, not null. A stream has no source address.
        unsafe { address_length.write_unaligned(0) };
    }
    if truncates {
        return Some(returned(discard(*connection, fd, length, how)));
    }
    // SAFETY: the program's promise to recvfrom(2).
    let part = unsafe { target(buffer, length) };
    Some(returned(part.and_then(|part| connection.receive(fd, &mut [part], how))))
}

pub(super) unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_length: *mut socklen_t,
) -> ssize_t {
    let wanted = if address.is_null() { std::ptr::null_mut() } else { address_length };
    // SAFETY: the program's promise to recvfrom(2).
    if let Some(result) = unsafe { receive_from(fd, buffer, length, flags, wanted) } {
        return result;
    }
    real!(recvfrom as
        fn(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t,
        (fd, buffer, length, flags, address, address_length),
        else kernel!(SYS_recvfrom, fd, buffer, length, flags, address, address_length))
}

pub(super) unsafe extern "C-unwind" fn recv(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: recv is recvfrom without an address.
    let ours = unsafe { receive_from(fd, buffer, length, flags, std::ptr::null_mut()) };
    if let Some(result) = ours {
        return result;
    }
    real!(recv as fn(c_int, *mut c_void, size_t, c_int) -> ssize_t, (fd, buffer, length, flags),
        else kernel!(SYS_recvfrom, fd, buffer, length, flags, 0, 0))
}

pub(super) unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    check_room(length, room);
    // SAFETY: this is recv(2), with its conditions.
    unsafe { recv(fd, buffer, length, flags) }
}

pub(super) unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_length: *mut socklen_t,
) -> ssize_t {
    check_room(length, room);
    // SAFETY: this is recvfrom(2), with its conditions.
    unsafe { recvfrom(fd, buffer, length, flags, address, address_length) }
}

/// As [`how`], for a call that sends; `None` when the kernel must serve it. Urgent data take the
/// sending direction back to TCP; if it cannot return, the urgent byte is sent in line, as with
/// SO_OOBINLINE. MSG_ZEROCOPY gets its completions only where the direction returned before.
fn how_to_send(connection: Connection, fd: c_int, flags: c_int) -> Option<How> {
    let urgent = flags & libc::MSG_OOB != 0 && connection.send_over_tcp_for_good(fd);
    let completes = flags & libc::MSG_ZEROCOPY != 0 && connection.is_back_for_good();
    if urgent || completes { None } else { how(flags & !libc::MSG_OOB) }
}

pub(super) unsafe extern "C-unwind" fn send(
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    cancel::point();
    if let Some(connection) = find(fd)
        && let Some(how) = how_to_send(*connection, fd, flags)
    {
        // SAFETY: the program's promise to send(2).
        let part = unsafe { source(buffer, length) };
        return returned(part.and_then(|part| connection.send(fd, &[part], how)));
    }
    real!(send as fn(c_int, *const c_void, size_t, c_int) -> ssize_t, (fd, buffer, length, flags),
        else kernel!(SYS_sendto, fd, buffer, length, flags, 0, 0))
}

/// With MSG_FASTOPEN the kernel sends bytes while it connects, and this library cannot count them.
/// So the connection stays on TCP.
fn stay_before_fastopen(fd: c_int, flags: c_int) {
    if flags & libc::MSG_FASTOPEN != 0
        && let Some(connection) = find(fd)
    {
        connection.decide_for_kernel(fd);
    }
}

pub(super) unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_length: socklen_t,
) -> ssize_t {
    cancel::point();
    if find(fd).is_some() && flags & libc::MSG_FASTOPEN == 0 {
        // SAFETY: the caller's promise; a connected stream ignores the address.
        return unsafe { send(fd, buffer, length, flags) };
    }
    stay_before_fastopen(fd, flags);
    real!(sendto as
        fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t,
        (fd, buffer, length, flags, address, address_length),
        else kernel!(SYS_sendto, fd, buffer, length, flags, address, address_length))
}

pub(super) unsafe extern "C-unwind" fn recvmsg(
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    cancel::point();
    if let Some(connection) = find(fd)
        && let Some(how) = how(flags)
        && check(message as usize, size_of::<msghdr>()).is_ok()
    {
        // SAFETY: the program's message, which recvmsg(2) would read and write.
        let header = unsafe { &mut *message };
        let (parts, count) = (header.msg_iov, header.msg_iovlen);
        // SAFETY: the program's promise to recvmsg(2).
        let received = unsafe { receive_vector(*connection, fd, parts, count, how) };
        if received.is_ok() {
            // SAFETY: as above.
            unsafe { tell(*connection, fd, header) };
        }
        return returned(received);
    }
    real!(recvmsg as fn(c_int, *mut msghdr, c_int) -> ssize_t, (fd, message, flags),
        else kernel!(SYS_recvmsg, fd, message, flags))
}

pub(super) unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    cancel::point();
    if let Some(connection) = find(fd)
        && let Some(how) = how_to_send(*connection, fd, flags)
        && check(message as usize, size_of::<msghdr>()).is_ok()
    {
        // SAFETY: the program's message, which sendmsg(2) would read.
        let header = unsafe { &*message };
        let (parts, count) = (header.msg_iov, header.msg_iovlen);
        // SAFETY: the program's promise to sendmsg(2).
        return returned(unsafe { send_vector(*connection, fd, parts, count, how) });
    }
    stay_before_fastopen(fd, flags);
    // SAFETY: the program's message or null.
    if unsafe { passes_stuck_lane(message) } {
        // The receiver of the descriptor could not read the bytes that lie on the lane.
        sys::set_errno(libc::EOPNOTSUPP);
        return -1;
    }
    real!(sendmsg as fn(c_int, *const msghdr, c_int) -> ssize_t, (fd, message, flags),
        else kernel!(SYS_sendmsg, fd, message, flags))
}

/// Takes all connections whose descriptors `message` passes back to TCP for good, where their
/// receiver finds the bytes. True when one of them cannot leave its lane.
///
/// # Safety
/// `message` is null or valid for sendmsg(2).
unsafe fn passes_stuck_lane(message: *const msghdr) -> bool {
    let is_there = check(message as usize, size_of::<msghdr>()).is_ok();
    if !is_there || !crate::process::ready() {
        return false;
    }
    let mut stuck = false;
    // SAFETY: the caller's promise.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: the macro gave a header inside the control buffer.
        let entry = unsafe { header.read_unaligned() };
        if entry.cmsg_level == libc::SOL_SOCKET && entry.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: data follows its header.
            let data = unsafe { libc::CMSG_DATA(header) }.cast::<c_int>();
            // SAFETY: a constant of the layout.
            let head = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = (entry.cmsg_len as usize).saturating_sub(head) / size_of::<c_int>();
            for index in 0..count {
                // SAFETY: inside the data of this header.
                let fd = unsafe { data.add(index).read_unaligned() };
                stuck |= find(fd).is_some_and(|connection| !connection.return_to_tcp_for_good(fd));
            }
        }
        // SAFETY: the caller's promise.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    stuck
}

/// recvmmsg(2) by the kernel's rules. It waits for each message; with MSG_WAITFORONE only for the
/// first. It looks at the time limit behind each message, so that a wait may outlast the limit.
///
/// # Safety
/// `messages` are `count` messages, and `timeout` is null or a time that can be changed.
unsafe fn receive_messages(
    connection: Connection,
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    mut flags: c_int,
    timeout: *mut libc::timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    let limit = match unsafe { TimeLimit::begin(timeout) } {
        Ok(limit) => limit,
        Err(errno) => return as_int(returned(Err(errno))),
    };
    let mut done = 0;
    for index in 0..count as usize {
        let place = messages.wrapping_add(index);
        if let Err(errno) = check(place as usize, size_of::<mmsghdr>()) {
            sys::set_errno(errno.raw_os_error());
            break;
        }
        // SAFETY: the caller's promise.
        let entry = unsafe { &mut *place };
        // SAFETY: as above.
        let received =
            unsafe { recvmsg(fd, &raw mut entry.msg_hdr, flags & !libc::MSG_WAITFORONE) };
        let Ok(length) = u32::try_from(received) else { break };
        entry.msg_len = length;
        done += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        let is_over = limit.as_ref().is_some_and(TimeLimit::is_over);
        if is_over || entry.msg_hdr.msg_flags & libc::MSG_OOB != 0 {
            return done;
        }
    }
    if done == 0 {
        return if count == 0 { 0 } else { -1 };
    }
    if (done.unsigned_abs()) < count && sys::errno() == libc::ECONNRESET {
        // This call returns the messages before the reset. The next call reports the reset.
        connection.set(flag::RESET_REPORTED, false);
    }
    done
}

/// The time limit of recvmmsg(2).
struct TimeLimit {
    /// The program's time, which becomes the time that is left.
    place: *mut libc::timespec,
    ends_ns: u64,
}

impl TimeLimit {
    /// The limit that begins now; `None` without one.
    ///
    /// # Safety
    /// `place` is null, or a time that can be changed while the value is used.
    unsafe fn begin(place: *mut libc::timespec) -> Result<Option<Self>, Errno> {
        // SAFETY: the caller's promise.
        let ends_ns = waits::deadline(unsafe { limit(place) }?);
        Ok(ends_ns.map(|ends_ns| Self { place, ends_ns }))
    }

    /// Stores the time that is left. True if that is nothing.
    fn is_over(&self) -> bool {
        let left_ns = self.ends_ns.saturating_sub(sys::now_ns());
        let time = libc::timespec {
            tv_sec: i64::try_from(left_ns / SECOND_NS).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(left_ns % SECOND_NS).unwrap_or(0),
        };
        // SAFETY: the promise to `begin`.
        unsafe { self.place.write(time) };
        left_ns == 0
    }
}

const SECOND_NS: u64 = 1_000_000_000;

pub(super) unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut libc::timespec,
) -> c_int {
    if let Some(connection) = find(fd) {
        // SAFETY: the program's promise to recvmmsg(2).
        return unsafe { receive_messages(*connection, fd, messages, count, flags, timeout) };
    }
    real!(recvmmsg as fn(c_int, *mut mmsghdr, u32, c_int, *mut libc::timespec) -> c_int,
        (fd, messages, count, flags, timeout),
        else as_int(kernel!(SYS_recvmmsg, fd, messages, count, flags, timeout)))
}

pub(super) unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
) -> c_int {
    if find(fd).is_some() {
        let mut done = 0;
        for index in 0..count as usize {
            // SAFETY: the program's promise to sendmmsg(2): `count` messages.
            let entry = unsafe { &mut *messages.add(index) };
            // SAFETY: as above.
            let sent = unsafe { sendmsg(fd, &raw const entry.msg_hdr, flags) };
            let Ok(length) = u32::try_from(sent) else { break };
            entry.msg_len = length;
            done += 1;
        }
        return if done > 0 { done } else { -1 };
    }
    real!(sendmmsg as fn(c_int, *mut mmsghdr, u32, c_int) -> c_int, (fd, messages, count, flags),
        else as_int(kernel!(SYS_sendmmsg, fd, messages, count, flags)))
}

pub(super) unsafe extern "C-unwind" fn sendfile(
    out: c_int,
    input: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    cancel::point();
    if let Some(connection) = find(out) {
        // SAFETY: the program's promise to sendfile(2).
        return returned(unsafe { send_file(*connection, out, input, offset, count) });
    }
    real!(sendfile as fn(c_int, c_int, *mut off_t, size_t) -> ssize_t,
        (out, input, offset, count), else kernel!(SYS_sendfile, out, input, offset, count))
}

pub(super) unsafe extern "C-unwind" fn sendfile64(
    out: c_int,
    input: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: off_t has 64 bits, so the two are one function.
    unsafe { sendfile(out, input, offset, count) }
}

/// Copies from a file to a connection. The offset moves by the bytes that the connection accepted.
///
/// # Safety
/// `offset` is null or the program's.
unsafe fn send_file(
    connection: Connection,
    out: c_int,
    input: c_int,
    offset: *mut off_t,
    count: size_t,
) -> Result<usize, Errno> {
    /// Bytes that are read at once for a lane.
    const BUFFER_BYTES: usize = 128 << 10;
    if input < 0 {
        return Err(Errno::BADF);
    }
    let file = sys::borrow(input);
    let mut position = if offset.is_null() {
        rustix::fs::seek(file, rustix::fs::SeekFrom::Current(0)).map_err(|_| Errno::INVAL)?
    } else {
        // SAFETY: the program's pointer, not null.
        u64::try_from(unsafe { offset.read_unaligned() }).map_err(|_| Errno::INVAL)?
    };
    let mut buffer = Vec::new();
    let mut total = 0;
    let mut outcome = Ok(());
    let generation = connection.shared.generation.load(Ordering::Relaxed);
    let mut out = out;
    while total < count {
        if total > 0 {
            // Another thread may have closed the descriptor meanwhile.
            let Some(now) = calls::number(connection, out, generation) else { break };
            out = now;
        }
        match connection.send_file_over_tcp(out, file, position, count - total) {
            None => {}
            Some(Ok(0)) => break,
            Some(Ok(sent)) => {
                total += sent;
                position += sent as u64;
                continue;
            }
            Some(Err(errno)) => {
                outcome = Err(errno);
                break;
            }
        }
        buffer.resize((count - total).min(BUFFER_BYTES).max(buffer.len()), 0);
        let wanted = buffer.len().min(count - total);
        let got = match rustix::io::pread(file, &mut buffer[..wanted], position) {
            Ok(0) => break,
            Ok(got) => got,
            Err(errno) => {
                outcome = Err(errno);
                break;
            }
        };
        match connection.send(out, &[&buffer[..got]], How::default()) {
            Ok(sent) => {
                total += sent;
                position += sent as u64;
                if sent < got {
                    break;
                }
            }
            Err(errno) => {
                outcome = Err(errno);
                break;
            }
        }
    }
    if offset.is_null() {
        rustix::fs::seek(file, rustix::fs::SeekFrom::Start(position))?;
    } else {
        // SAFETY: the program's pointer, not null.
        unsafe { offset.write_unaligned(off_t::try_from(position).map_err(|_| Errno::OVERFLOW)?) };
    }
    if total > 0 { Ok(total) } else { outcome.map(|()| 0) }
}
