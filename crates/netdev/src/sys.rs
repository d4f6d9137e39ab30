//! The ioctls, behind safe calls. Their numbers and layouts are those of the kernel's `if_tun.h`
//! and `if.h`, which are stable on all architectures that weft supports.
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
    /// The union behind the name.
    pub data: [u8; 24],
}

/// Defines calls that pass a [`Request`] about an interface, which the kernel may write to.
macro_rules! of_interface {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {$(
        $(#[$doc])*
        pub fn $name(socket: BorrowedFd<'_>, request: &mut Request) -> Result<()> {
            // SAFETY: the kernel reads and writes at most a `struct ifreq` at the pointer. A
            // request has that layout, and any bytes in it are valid.
            unsafe { ioctl(socket, Updater::<$number, Request>::new(request)) }
        }
    )*};
}

of_interface! {
    /// TUNSETIFF: creates the device or attaches to it, and writes its name.
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

/// Defines calls about a TAP device that pass a number by value.
macro_rules! of_tap {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {$(
        $(#[$doc])*
        pub fn $name(tap: BorrowedFd<'_>, value: usize) -> Result<()> {
            // SAFETY: the kernel takes the number itself and accesses no memory.
            unsafe { ioctl(tap, IntegerSetter::<$number>::new_usize(value)) }
        }
    )*};
}

of_tap! {
    /// TUNSETPERSIST: whether the device stays after its last descriptor was closed.
    set_persistent = 0x4004_54cb;
    /// TUNSETOFFLOAD: the work that the kernel may leave to the device.
    set_offload = 0x4004_54d0;
}

/// Defines calls about a TAP device that pass the address of a number.
macro_rules! of_tap_by_pointer {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {$(
        $(#[$doc])*
        pub fn $name(tap: BorrowedFd<'_>, value: i32) -> Result<()> {
            // SAFETY: the kernel reads an `int` at the pointer, and `value` is one.
            unsafe { ioctl(tap, Setter::<$number, i32>::new(value)) }
        }
    )*};
}

of_tap_by_pointer! {
    /// TUNSETVNETHDRSZ: bytes of the offload header.
    set_header_bytes = 0x4004_54d8;
    /// TUNSETVNETLE: the offload header is little endian.
    set_little_endian = 0x4004_54dc;
    /// TUNSETSTEERINGEBPF: the eBPF program that chooses a queue, or -1 for the kernel's own
    /// choice.
    set_steering = 0x8004_54e0;
    /// TUNSETCARRIER: whether the device has a link.
    set_carrier = 0x4004_54e2;
}

/// Moves the calling thread into new namespaces.
pub fn leave(namespaces: UnshareFlags) -> Result<()> {
    debug_assert!(!namespaces.contains(UnshareFlags::FILES), "descriptors stay shared");
    // SAFETY: without `FILES`, unsharing leaves the thread's descriptors shared with its process.
    unsafe { unshare_unsafe(namespaces - UnshareFlags::FILES) }
}
