//! A TAP device: an Ethernet interface whose frames a program reads and writes.
//!
//! Each read and write transfers one packet: an offload header of 12 bytes, `struct
//! virtio_net_hdr_v1`, in which the kernel describes the work that it left to the device, and a
//! frame. With all offloads on, TCP and UDP pass super-packets of up to 64 KB without checksums,
//! whatever the MTU (RED-SEA-D2.3#3.8).
//!
//! The kernel (`drivers/net/tun.c`) answers a read and a write with EBADFD when the descriptor has
//! no interface any more: somebody removed the interface or its network namespace. It answers a
//! write with EIO while the interface is down, and a read with EAGAIN then, as when no packet
//! waits.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::interface::name_of;
use crate::netlink::errno_of;
use crate::steering::Steering;
use crate::{NetdevError, sys};

/// Bytes of the offload header in front of each frame.
pub const HEADER_BYTES: i32 = 12;

const TAP: u16 = 0x0002;
const NO_PACKET_INFORMATION: u16 = 0x1000;
const OFFLOAD_HEADER: u16 = 0x4000;
const SEVERAL_QUEUES: u16 = 0x0100;

/// The kernel's `TUN_F_` flags: the work that it may leave to the device.
mod offload {
    pub const CHECKSUM: usize = 0x01;
    pub const TSO4: usize = 0x02;
    pub const TSO6: usize = 0x04;
    pub const TSO_ECN: usize = 0x08;
    pub const USO4: usize = 0x20;
    pub const USO6: usize = 0x40;
}

/// A TAP device. It stays in the network namespace in which it was opened, whatever thread uses it.
#[derive(Debug)]
pub struct Tap {
    device: OwnedFd,
    name: String,
    segments_udp: bool,
}

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// A packet was read.
    Packet,
    /// No packet waits.
    Nothing,
    /// The interface was removed.
    Gone,
}

/// The result of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Write {
    /// The packet was written.
    Packet,
    /// The interface is down and takes no packet.
    Down,
    /// The interface was removed.
    Gone,
}

impl Tap {
    /// Creates the interface `name`, or attaches to an existing one, in the calling thread's
    /// network namespace. Returns one `Tap` for each of its `queues`. Reads and writes do not
    /// block.
    ///
    /// # Errors
    /// [`NetdevError`], which names what is missing.
    pub fn open(name: &str, queues: u8) -> Result<Vec<Self>, NetdevError> {
        (0..queues.max(1)).map(|_| Self::attach(name, queues > 1)).collect()
    }

    fn attach(name: &str, is_one_of_several: bool) -> Result<Self, NetdevError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let device = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
            .map_err(|errno| NetdevError::NoTun { errno })?;
        let mut request = sys::Request { name: name_of(name)?, data: [0; 24] };
        let several = if is_one_of_several { SEVERAL_QUEUES } else { 0 };
        let wanted = TAP | NO_PACKET_INFORMATION | OFFLOAD_HEADER | several;
        request.data[..2].copy_from_slice(&wanted.to_ne_bytes());
        let failed = |what: &str, errno| {
            NetdevError::from_call(format!("{what} {name}"), "CAP_NET_ADMIN", errno)
        };
        sys::attach(device.as_fd(), &mut request).map_err(|errno| match errno {
            Errno::BUSY => failed("another program has opened the TAP device", errno),
            Errno::INVAL => {
                let other = "the name is that of an interface other than a TAP device, or of a TAP \
                             device with one queue where several are needed, or the reverse \
                             (remove it, or set ether.queues to its former value):";
                failed(other, errno)
            }
            errno => failed("making the TAP device", errno),
        })?;
        let mut tap = Self { device, name: name.to_owned(), segments_udp: true };
        let tune = |errno| failed("setting up the TAP device", errno);
        sys::set_header_bytes(tap.as_fd(), HEADER_BYTES).map_err(tune)?;
        sys::set_little_endian(tap.as_fd(), 1).map_err(tune)?;
        let of_tcp = offload::CHECKSUM | offload::TSO4 | offload::TSO6 | offload::TSO_ECN;
        let of_udp = offload::USO4 | offload::USO6;
        // Kernels before 6.2 do not support super-packets of UDP.
        if sys::set_offload(tap.as_fd(), of_tcp | of_udp).is_err() {
            tap.segments_udp = false;
            sys::set_offload(tap.as_fd(), of_tcp).map_err(tune)?;
        }
        Ok(tap)
    }

    /// The interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True when super-packets of UDP cross whole.
    #[must_use]
    pub const fn segments_udp(&self) -> bool {
        self.segments_udp
    }

    /// Whether the interface and its addresses stay when this program ends. Programs that use it
    /// then see it without a link until another program attaches.
    ///
    /// # Errors
    /// [`NetdevError::Os`].
    pub fn set_persistent(&self, stays: bool) -> Result<(), NetdevError> {
        sys::set_persistent(self.as_fd(), usize::from(stays))
            .map_err(|errno| NetdevError::Os { what: format!("making {} stay", self.name), errno })
    }

    /// Sets how the kernel chooses a queue for each packet.
    ///
    /// # Errors
    /// [`NetdevError`], which names what is missing.
    pub fn steer(&self, steering: Steering) -> Result<(), NetdevError> {
        let failed = |errno| {
            let what = format!("choosing the queues of {} by {steering}", self.name);
            NetdevError::from_call(what, "CAP_BPF", errno)
        };
        let program = steering.program().map_err(failed)?;
        // A loaded program's descriptor; -1 for the kernel's own choice.
        let number = program.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        sys::set_steering(self.as_fd(), number).map_err(failed)
    }

    /// Sets whether the interface has a link.
    ///
    /// # Errors
    /// [`NetdevError::Os`].
    pub fn set_carrier(&self, is_up: bool) -> Result<(), NetdevError> {
        sys::set_carrier(self.as_fd(), i32::from(is_up)).map_err(|errno| NetdevError::Os {
            what: format!("setting the carrier of {}", self.name),
            errno,
        })
    }

    /// Reads a packet with `read`: one call of read(2) or similar, into memory for the longest
    /// packet.
    ///
    /// # Errors
    /// Those of the kernel, other than that there is no packet or that the interface is gone.
    pub fn read(
        &self,
        mut read: impl FnMut(BorrowedFd<'_>) -> io::Result<()>,
    ) -> Result<Read, Errno> {
        loop {
            return match read(self.as_fd()).map_err(errno_of) {
                Ok(()) => Ok(Read::Packet),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Ok(Read::Nothing),
                Err(Errno::BADFD) => Ok(Read::Gone),
                Err(errno) => Err(errno),
            };
        }
    }

    /// Writes a packet with `write`: one call of write(2) or similar.
    ///
    /// # Errors
    /// Those of the kernel, other than that the interface takes no packet. [`Errno::INVAL`] for a
    /// packet whose headers the kernel rejects.
    pub fn write(
        &self,
        mut write: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Result<Write, Errno> {
        loop {
            return match write(self.as_fd()).map_err(errno_of) {
                Ok(_) => Ok(Write::Packet),
                Err(Errno::INTR) => continue,
                Err(Errno::IO) => Ok(Write::Down),
                Err(Errno::BADFD) => Ok(Write::Gone),
                Err(errno) => Err(errno),
            };
        }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_and_a_write_tell_alike_that_the_interface_was_removed() {
        let device = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty()).expect("a device");
        let tap = Tap { device, name: "t".to_owned(), segments_udp: true };
        let error = |errno: Errno| Err(io::Error::from(errno));
        assert_eq!(tap.read(|_| error(Errno::BADFD)), Ok(Read::Gone));
        assert_eq!(tap.write(|_| error(Errno::BADFD).map(|()| 0)), Ok(Write::Gone));
        assert_eq!(tap.read(|_| error(Errno::AGAIN)), Ok(Read::Nothing));
        assert_eq!(tap.write(|_| error(Errno::IO).map(|()| 0)), Ok(Write::Down));
        assert_eq!(tap.write(|_| error(Errno::INVAL).map(|()| 0)), Err(Errno::INVAL));
    }
}
