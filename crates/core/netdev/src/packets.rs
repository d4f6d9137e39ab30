//! The packets of an interface, as packet(7) shows them to an observer: those that the host sends
//! and those that it receives. The interface does not wait for the observer; the kernel counts what
//! it had no room for.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use crate::interface::Interface;
use crate::{NetdevError, sys};

pub use crate::sys::Seen;

/// Bytes of packets that may wait for the observer.
const WAITING_BYTES: usize = 16 << 20;

/// The packets of an interface.
#[derive(Debug)]
pub struct Packets {
    socket: OwnedFd,
}

impl Packets {
    /// Those of the interface `name` in the calling thread's network namespace, from now on.
    ///
    /// # Errors
    /// [`NetdevError`]: there is no such interface, or the caller lacks CAP_NET_RAW.
    pub fn of(name: &str) -> Result<Self, NetdevError> {
        let index = Interface::named(name)?.index()?;
        let what = || format!("looking at the packets of {name}");
        let failed = |errno| NetdevError::from_call(what(), "CAP_NET_RAW", errno);
        let index = i32::try_from(index).map_err(|_| failed(Errno::NODEV))?;
        let socket = sys::packet_socket(index).map_err(failed)?;
        // Without CAP_NET_ADMIN it is as large as the system allows everybody.
        let _ = set_socket_recv_buffer_size_force(&socket, WAITING_BYTES);
        Ok(Self { socket })
    }

    /// The next packet, whose bytes it copies, as many as there is room for; `None` if there is
    /// none now.
    ///
    /// # Errors
    /// The interface is gone or down.
    pub fn next(&self, bytes: &mut [u8]) -> Result<Option<Seen>, Errno> {
        sys::next_packet(self.socket.as_fd(), bytes)
    }

    /// Packets that were lost since this was asked last, because the observer was late.
    #[must_use]
    pub fn lost(&self) -> u64 {
        sys::packets_lost(self.socket.as_fd()).map_or(0, u64::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn packets_of_the_loopback_are_seen_whole() {
        let packets = match Packets::of("lo") {
            Err(NetdevError::NotPermitted { .. }) => return,
            packets => packets.expect("there is a loopback"),
        };
        let socket = UdpSocket::bind("127.0.0.1:0").expect("an address");
        let to = socket.local_addr().expect("it is bound");
        let word = format!("a word of {}", to.port());
        socket.send_to(word.as_bytes(), to).expect("the loopback is up");
        let mut bytes = vec![0; 70_000];
        // Others use the loopback, too; the own packet is there already.
        let mut found = Vec::new();
        while let Some(seen) = packets.next(&mut bytes).expect("the loopback stays") {
            if bytes[..seen.length].ends_with(word.as_bytes()) {
                found.push(seen.is_outgoing);
            }
        }
        found.sort_unstable();
        assert_eq!((found, packets.lost()), (vec![false, true], 0));
        assert!(Packets::of("weft-none").is_err());
    }
}
