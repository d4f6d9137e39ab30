//! The ioctls, behind safe calls. Numbers and layouts are those of the kernel's `if_tun.h` and
//! `if.h`, which are part of its interface for all architectures that weft supports.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use rustix::io::Result;
use rustix::ioctl::{IntegerSetter, Setter, Updater, ioctl};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Bytes of an interface's name with its final zero.
pub const NAME_BYTES: usize = 16;

/// `struct ifreq`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Request {
    pub name: [u8; NAME_BYTES],
    /// The union behind it.
    pub data: [u8; 24],
}

/// A call about an interface that takes a [`Request`] and may write it.
macro_rules! of_interface {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {$(
        $(#[$doc])*
        pub fn $name(socket: BorrowedFd<'_>, request: &mut Request) -> Result<()> {
            // SAFETY: the kernel reads and writes at most a `struct ifreq` there, which a request
            // is, and any bytes in it are valid.
            unsafe { ioctl(socket, Updater::<$number, Request>::new(request)) }
        }
    )*};
}

of_interface! {
    /// TUNSETIFF: makes the device or attaches to it; writes its name.
    attach = 0x4004_54ca;
    /// SIOCGIFFLAGS.
    flags = 0x8913;
    /// SIOCSIFFLAGS.
    set_flags = 0x8914;
    /// SIOCGIFMTU.
    mtu = 0x8921;
    /// SIOCSIFMTU.
    set_mtu = 0x8922;
    /// SIOCSIFHWADDR.
    set_mac = 0x8924;
    /// SIOCGIFINDEX.
    index = 0x8933;
    /// SIOCSIFTXQLEN.
    set_queue = 0x8943;
}

/// A call about a TAP device that takes a number.
macro_rules! of_tap {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {$(
        $(#[$doc])*
        pub fn $name(tap: BorrowedFd<'_>, value: usize) -> Result<()> {
            // SAFETY: the kernel takes the value itself and no memory.
            unsafe { ioctl(tap, IntegerSetter::<$number>::new_usize(value)) }
        }
    )*};
}

of_tap! {
    /// TUNSETPERSIST: the device stays when nobody has it open.
    set_persistent = 0x4004_54cb;
    /// TUNSETOFFLOAD: what the kernel may leave to the device.
    set_offload = 0x4004_54d0;
}

/// A call about a TAP device that takes the address of a number.
macro_rules! of_tap_by_place {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {$(
        $(#[$doc])*
        pub fn $name(tap: BorrowedFd<'_>, value: i32) -> Result<()> {
            // SAFETY: the kernel reads an `int` there.
            unsafe { ioctl(tap, Setter::<$number, i32>::new(value)) }
        }
    )*};
}

of_tap_by_place! {
    /// TUNSETVNETHDRSZ: bytes of the header of offloads.
    set_header_bytes = 0x4004_54d8;
    /// TUNSETVNETLE: that header is little endian.
    set_little_endian = 0x4004_54dc;
    /// TUNSETSTEERINGEBPF: the program that chooses a queue; the kernel's own choice with -1.
    set_steering = 0x8004_54e0;
    /// TUNSETCARRIER: whether the device has a link.
    set_carrier = 0x4004_54e2;
}

/// Moves the calling thread to new namespaces of its own.
pub fn leave(namespaces: UnshareFlags) -> Result<()> {
    debug_assert!(!namespaces.contains(UnshareFlags::FILES), "descriptors stay shared");
    // SAFETY: only namespaces change; the thread's descriptors stay those of its process.
    unsafe { unshare_unsafe(namespaces - UnshareFlags::FILES) }
}
