//! Ancillary data that `recvmsg` tells beside the bytes, where the library serves it: TCP_INQ. The
//! kernel serves connections with stamps of times ([`super::options`]).

use std::os::fd::RawFd;

use libc::{c_int, cmsghdr, msghdr};

use super::memory::check;
use crate::arena::{Connection, flag};

/// Writes what a call that received says beside the bytes.
///
/// # Safety
/// As recvmsg(2) demands of the message.
pub(super) unsafe fn tell(connection: Connection, fd: RawFd, header: &mut msghdr) {
    header.msg_namelen = 0;
    header.msg_flags = 0;
    let room = std::mem::replace(&mut header.msg_controllen, 0);
    if connection.has(flag::TELLS_UNREAD) {
        // SAFETY: the caller's promise.
        unsafe { put(header, room, connection.unread_hint(fd)) };
    }
}

/// Puts one int as TCP_CM_INQ into the control buffer, by the kernel's rules for a buffer that is
/// too short.
///
/// # Safety
/// The control buffer has `room` bytes, unless `check` refuses it.
unsafe fn put(header: &mut msghdr, room: usize, value: c_int) {
    const DATA_BYTES: u32 = c_int::BITS / 8;
    // SAFETY: constants of the layout.
    let (whole, space) = unsafe { (libc::CMSG_LEN(DATA_BYTES), libc::CMSG_SPACE(DATA_BYTES)) };
    let (whole, space) = (whole as usize, space as usize);
    let place = header.msg_control;
    if place.is_null() || room < size_of::<cmsghdr>() || check(place as usize, room).is_err() {
        header.msg_flags |= libc::MSG_CTRUNC;
        return;
    }
    if room < whole {
        header.msg_flags |= libc::MSG_CTRUNC;
    }
    let length = whole.min(room);
    let mut bytes = [0u8; 32];
    let data = size_of::<cmsghdr>();
    bytes[..8].copy_from_slice(&length.to_ne_bytes());
    bytes[8..12].copy_from_slice(&libc::IPPROTO_TCP.to_ne_bytes());
    bytes[12..16].copy_from_slice(&libc::TCP_CM_INQ.to_ne_bytes());
    bytes[data..whole].copy_from_slice(&value.to_ne_bytes());
    // SAFETY: the buffer has at least `length` bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast(), length) };
    header.msg_controllen = space.min(room);
}
