//! Layer 1: the kernel's side of networks: of Ethernet devices, and of connections between
//! namespaces.
//!
//! - [`tap`]: a TAP device, which transfers frames with the kernel's offload header.
//! - [`steering`]: the choice of a TAP device's queue for each packet.
//! - [`interface`]: settings of a network interface: state, MTU, addresses.
//! - [`addresses`]: the addresses of an interface, kept up to date.
//! - [`packets`]: the packets of an interface, for captures.
//! - [`rate`]: a limit of packets per second in front of an interface's queue.
//! - [`namespace`]: named network namespaces, as `ip netns` keeps them.
//! - [`stream`]: the sequence numbers of a TCP connection, which name it across namespaces.
//! - [`translation`]: the addresses of a connection behind network address translation.
//! - [`room`]: the host name, hosts file and `/sys` of a program in a namespace.
//!
//! May depend on nothing of weft. `unsafe` is only in `sys` (the ioctls of the kernel's `if_tun.h`
//! and `if.h`, and packet(7)) and in `bpf`. Linux only.

pub mod addresses;
mod bpf;
pub mod interface;
pub mod namespace;
mod netlink;
pub mod packets;
pub mod rate;
pub mod room;
pub mod steering;
pub mod stream;
mod sys;
pub mod tap;
pub mod translation;

use thiserror::Error;

/// Why the kernel refused a call.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NetdevError {
    /// The kernel has no TAP devices, or this process cannot see `/dev/net/tun`.
    #[error(
        "/dev/net/tun cannot be opened ({errno}): the kernel needs CONFIG_TUN (`modprobe tun`); a \
         container needs the device, with Docker `--device /dev/net/tun`"
    )]
    NoTun {
        /// The error of opening it.
        errno: rustix::io::Errno,
    },
    /// The caller lacks a capability.
    #[error("{what}: this needs the capability {capability}; run as root, or grant it")]
    NotPermitted {
        /// The action that failed.
        what: String,
        /// The missing capability.
        capability: &'static str,
    },
    /// The name is invalid for an interface or a namespace.
    #[error("{name:?} is not a valid name for {what}: {why}")]
    Name {
        /// The name.
        name: String,
        /// The kind of thing to be named.
        what: &'static str,
        /// The form of a valid name.
        why: &'static str,
    },
    /// Any other error.
    #[error("{what}: {errno}")]
    Os {
        /// The action that failed.
        what: String,
        /// The error of the kernel.
        errno: rustix::io::Errno,
    },
}

impl NetdevError {
    /// The error for `errno` of a call that needs `capability`.
    fn from_call(what: String, capability: &'static str, errno: rustix::io::Errno) -> Self {
        match errno {
            rustix::io::Errno::PERM | rustix::io::Errno::ACCESS => {
                Self::NotPermitted { what, capability }
            }
            errno => Self::Os { what, errno },
        }
    }
}
