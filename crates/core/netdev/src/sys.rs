//! The ioctls, behind safe calls. Their numbers and layouts are those of the kernel's `if_tun.h`
//! and `if.h`, which are stable on all architectures that weft supports.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Result;
use rustix::ioctl::{IntegerSetter, Ioctl, IoctlOutput, Opcode, Setter, Updater, ioctl};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::netlink::errno_of;

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
    /// SIOCGIFADDR.
    address = 0x8915;
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

/// A call without an argument whose result is a new descriptor.
struct Opens<const NUMBER: Opcode>;

// SAFETY: the calls that are made with this type take no argument, so the kernel accesses no
// memory, and their result is a new descriptor.
unsafe impl<const NUMBER: Opcode> Ioctl for Opens<NUMBER> {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        NUMBER
    }

    fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(
        made: IoctlOutput,
        _: *mut rustix::ffi::c_void,
    ) -> Result<Self::Output> {
        // SAFETY: the kernel just made this descriptor, so nobody else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(made) })
    }
}

/// SO_BINDTOIFINDEX: the number of the interface that a socket is bound to, or 0.
pub fn bound_to(socket: BorrowedFd<'_>) -> Result<i32> {
    const SO_BINDTOIFINDEX: libc::c_int = 62;
    let mut index: libc::c_int = 0;
    let mut length: libc::socklen_t = 4;
    // SAFETY: the kernel writes at most `length` bytes of `index`, which is an `int`, and `length`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_BINDTOIFINDEX,
            (&raw mut index).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(index) } else { Err(errno_of(std::io::Error::last_os_error())) }
}

/// SIOCGSKNS: the network namespace of a socket.
pub fn network_of(socket: BorrowedFd<'_>) -> Result<OwnedFd> {
    // SAFETY: the call takes no argument and returns a new descriptor.
    unsafe { ioctl(socket, Opens::<0x894c>) }
}

/// NS_GET_USERNS: the user namespace that owns a namespace.
pub fn owner_of(namespace: BorrowedFd<'_>) -> Result<OwnedFd> {
    // SAFETY: the call takes no argument and returns a new descriptor.
    unsafe { ioctl(namespace, Opens::<0xb701>) }
}

/// Moves the calling thread into new namespaces.
pub fn leave(namespaces: UnshareFlags) -> Result<()> {
    debug_assert!(!namespaces.contains(UnshareFlags::FILES), "descriptors stay shared");
    // SAFETY: without `FILES`, unsharing leaves the thread's descriptors shared with its process.
    unsafe { unshare_unsafe(namespaces - UnshareFlags::FILES) }
}

/// Bytes of a `struct sockaddr_ll`.
const ADDRESS_BYTES: libc::socklen_t = 20;
const _: () = assert!(size_of::<libc::sockaddr_ll>() == ADDRESS_BYTES as usize);

/// A packet that an interface sent or received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Its bytes; more than there was room for if it was cut.
    pub length: usize,
    /// Whether the host sends it, to the device.
    pub is_outgoing: bool,
}

/// A socket that sees all packets of the interface with an index, in the thread's namespace
/// (packet(7)).
pub fn packet_socket(index: i32) -> Result<OwnedFd> {
    /// `struct sockaddr_ll` has these numbers as 16 bits.
    const FAMILY: u16 = 17;
    const ALL: u16 = 3;
    const { assert!(FAMILY as i32 == libc::AF_PACKET && ALL as i32 == libc::ETH_P_ALL) };
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // Bound to no protocol, so that nothing comes before it is bound to the interface.
    // SAFETY: socket(2) takes numbers alone.
    let made = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if made < 0 {
        return Err(errno_of(std::io::Error::last_os_error()));
    }
    // SAFETY: the kernel just made this descriptor, so nobody else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(made) };
    // SAFETY: `sockaddr_ll` consists of numbers, of which zeros are valid.
    let mut place: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    place.sll_family = FAMILY;
    place.sll_protocol = ALL.to_be();
    place.sll_ifindex = index;
    let length = ADDRESS_BYTES;
    // SAFETY: the pointer leads to a `sockaddr_ll`, which is `length` bytes long.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const place).cast(), length) };
    match bound {
        0 => Ok(socket),
        _ => Err(errno_of(std::io::Error::last_os_error())),
    }
}

/// The next packet of such a socket; `None` if there is none now.
pub fn next_packet(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<Option<Seen>> {
    // SAFETY: `sockaddr_ll` consists of numbers, of which zeros are valid.
    let mut place: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = ADDRESS_BYTES;
    // SAFETY: the kernel writes at most as many bytes as `bytes` has, at most `length` bytes of
    // `place`, and `length`.
    let received = unsafe {
        libc::recvfrom(
            socket.as_raw_fd(),
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            libc::MSG_TRUNC,
            (&raw mut place).cast(),
            &raw mut length,
        )
    };
    match usize::try_from(received) {
        Ok(length) => {
            Ok(Some(Seen { length, is_outgoing: place.sll_pkttype == libc::PACKET_OUTGOING }))
        }
        Err(_) => match errno_of(std::io::Error::last_os_error()) {
            rustix::io::Errno::AGAIN | rustix::io::Errno::INTR => Ok(None),
            errno => Err(errno),
        },
    }
}

/// PACKET_STATISTICS: the packets for which the socket had no room since this was asked last.
pub fn packets_lost(socket: BorrowedFd<'_>) -> Result<u32> {
    let mut counts = [0_u32; 2];
    let mut length: libc::socklen_t = 8;
    // SAFETY: the kernel writes at most `length` bytes of `counts`, which are numbers, and
    // `length`.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            counts.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    match asked {
        0 => Ok(counts[1]),
        _ => Err(errno_of(std::io::Error::last_os_error())),
    }
}
