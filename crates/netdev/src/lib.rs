//! Layer 1: the kernel's side of an Ethernet device.
//!
//! - [`tap`]: a TAP device, which gives and takes frames with the kernel's header of offloads.
//! - [`steering`]: which of its queues a packet goes to.
//! - [`interface`]: settings of a network interface: up, MTU, addresses.
//! - [`addresses`]: the addresses of one, kept up to date.
//! - [`rate`]: a limit of packets per second in front of its queue.
//! - [`namespace`]: network namespaces with names, as `ip netns` keeps them.
//! - [`room`]: what else a program there sees of the machine.
//!
//! May depend on nothing of weft. `unsafe` is in `sys`, the ioctls of the kernel's `if_tun.h`
//! and `if.h`, and in `bpf` alone. Linux only.

pub mod addresses;
mod bpf;
pub mod interface;
pub mod namespace;
mod netlink;
pub mod rate;
pub mod room;
pub mod steering;
mod sys;
pub mod tap;

use thiserror::Error;

/// Why the kernel did not do as it was asked.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NetdevError {
    /// The kernel has no TAP devices, or the program cannot see its door to them.
    #[error(
        "/dev/net/tun cannot be opened ({errno}): the kernel needs CONFIG_TUN (`modprobe tun`); a \
         container needs the device, with Docker `--device /dev/net/tun`"
    )]
    NoTun {
        /// Why.
        errno: rustix::io::Errno,
    },
    /// The caller may not.
    #[error("{what} needs the capability {capability}: be root, or grant it")]
    NotPermitted {
        /// What was tried.
        what: String,
        /// What is missing.
        capability: &'static str,
    },
    /// A name that no interface or namespace can have.
    #[error("{name:?} is no name for {what}: {why}")]
    Name {
        /// The name.
        name: String,
        /// What it was to name.
        what: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Anything else.
    #[error("{what}: {errno}")]
    Os {
        /// What was tried.
        what: String,
        /// Why it failed.
        errno: rustix::io::Errno,
    },
}

impl NetdevError {
    /// What `errno` of something that needs `capability` says.
    fn from_call(what: String, capability: &'static str, errno: rustix::io::Errno) -> Self {
        match errno {
            rustix::io::Errno::PERM | rustix::io::Errno::ACCESS => {
                Self::NotPermitted { what, capability }
            }
            errno => Self::Os { what, errno },
        }
    }
}
