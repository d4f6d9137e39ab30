//! Settings of a network interface in the calling thread's network namespace.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::{Errno, Result as OsResult};
use rustix::net::{SocketFlags, SocketType, socket_with};

use crate::netlink::Netlink;
use crate::sys::{NAME_BYTES, Request};
use crate::{NetdevError, sys};

const UP: u16 = 1;
const ETHERNET: u16 = 1;

/// An interface, by its name.
#[derive(Debug)]
pub struct Interface {
    socket: OwnedFd,
    name: [u8; NAME_BYTES],
    text: String,
}

/// Checks an interface name and pads it with zeros as the kernel wants it.
pub(crate) fn name_of(name: &str) -> Result<[u8; NAME_BYTES], NetdevError> {
    let error = |why| NetdevError::Name { name: name.to_owned(), what: "an interface", why };
    if name.is_empty() || name.len() >= NAME_BYTES {
        return Err(error("it needs 1 to 15 bytes"));
    }
    let is_bad =
        |byte: u8| byte == b'/' || byte == b':' || byte == b'%' || !byte.is_ascii_graphic();
    if name == "." || name == ".." || name.bytes().any(is_bad) {
        return Err(error("it may have letters, digits and signs other than / : %"));
    }
    let mut bytes = [0; NAME_BYTES];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    Ok(bytes)
}

impl Interface {
    /// The interface `name`. It need not exist yet.
    ///
    /// # Errors
    /// [`NetdevError::Name`] for an invalid name, [`NetdevError::Os`] without a socket.
    pub fn named(name: &str) -> Result<Self, NetdevError> {
        let bytes = name_of(name)?;
        let inet = rustix::net::AddressFamily::INET;
        let socket =
            socket_with(inet, SocketType::DGRAM, SocketFlags::CLOEXEC, None).map_err(|errno| {
                NetdevError::Os {
                    what: "opening a socket for interface settings".to_owned(),
                    errno,
                }
            })?;
        Ok(Self { socket, name: bytes, text: name.to_owned() })
    }

    /// The interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.text
    }

    fn call(
        &self,
        what: &str,
        data: &[u8],
        call: fn(BorrowedFd<'_>, &mut Request) -> OsResult<()>,
    ) -> Result<[u8; 24], NetdevError> {
        let mut request = Request { name: self.name, data: [0; 24] };
        request.data[..data.len()].copy_from_slice(data);
        call(self.socket.as_fd(), &mut request).map_err(|errno| {
            NetdevError::from_call(format!("{what} of {}", self.text), "CAP_NET_ADMIN", errno)
        })?;
        Ok(request.data)
    }

    /// The interface's index.
    ///
    /// # Errors
    /// [`NetdevError::Os`], also when there is no such interface.
    pub fn index(&self) -> Result<u32, NetdevError> {
        let [a, b, c, d, ..] = self.call("reading the index", &[], sys::index)?;
        Ok(u32::from_ne_bytes([a, b, c, d]))
    }

    /// The interface's MTU in bytes.
    ///
    /// # Errors
    /// [`NetdevError::Os`].
    pub fn mtu(&self) -> Result<u32, NetdevError> {
        let [a, b, c, d, ..] = self.call("reading the MTU", &[], sys::mtu)?;
        Ok(u32::from_ne_bytes([a, b, c, d]))
    }

    /// Sets the MTU: the bytes of an IP packet in one frame.
    ///
    /// # Errors
    /// [`NetdevError`]; the kernel refuses an MTU that the device does not support.
    pub fn set_mtu(&self, mtu: u32) -> Result<(), NetdevError> {
        self.call("setting the MTU", &mtu.to_ne_bytes(), sys::set_mtu).map(|_| ())
    }

    /// Sets the interface's Ethernet address.
    ///
    /// # Errors
    /// [`NetdevError`].
    pub fn set_mac(&self, mac: [u8; 6]) -> Result<(), NetdevError> {
        let [a, b] = ETHERNET.to_ne_bytes();
        let [c, d, e, f, g, h] = mac;
        self.call("setting the address", &[a, b, c, d, e, f, g, h], sys::set_mac).map(|_| ())
    }

    /// Sets how many packets may wait in the interface's transmit queue.
    ///
    /// # Errors
    /// [`NetdevError`].
    pub fn set_queue(&self, packets: u32) -> Result<(), NetdevError> {
        self.call("setting the queue length", &packets.to_ne_bytes(), sys::set_queue).map(|_| ())
    }

    /// Turns the interface on or off.
    ///
    /// # Errors
    /// [`NetdevError`].
    pub fn set_up(&self, is_up: bool) -> Result<(), NetdevError> {
        let [low, high, ..] = self.call("reading the state", &[], sys::flags)?;
        let flags = u16::from_ne_bytes([low, high]);
        let flags = if is_up { flags | UP } else { flags & !UP };
        self.call("setting the state", &flags.to_ne_bytes(), sys::set_flags).map(|_| ())
    }

    /// The interface's first IPv4 address; `None` if it has none.
    ///
    /// # Errors
    /// [`NetdevError::Os`], also when there is no such interface.
    pub fn address(&self) -> Result<Option<Ipv4Addr>, NetdevError> {
        match self.call("reading the IPv4 address", &[], sys::address) {
            // A `struct sockaddr_in`: family and port come first.
            Ok([_, _, _, _, a, b, c, d, ..]) => Ok(Some(Ipv4Addr::new(a, b, c, d))),
            Err(NetdevError::Os { errno: Errno::ADDRNOTAVAIL, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Adds an address with a prefix of `prefix` bits. An address that the interface has already is
    /// no error.
    ///
    /// An IPv6 address is usable at once, without duplicate address detection (RFC 4862 section
    /// 5.4): the caller knows that the address is unique. Detection would take seconds, in which
    /// programs use other source addresses.
    ///
    /// # Errors
    /// [`NetdevError`].
    pub fn add_address(&self, address: IpAddr, prefix: u8) -> Result<(), NetdevError> {
        let mut message = AddressMessage::default();
        message.header.index = self.index()?;
        message.header.prefix_len = prefix;
        message.header.family = match address {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        message.header.flags = AddressHeaderFlags::Nodad;
        message.attributes =
            vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        if let IpAddr::V4(address) = address {
            let hosts = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
            let all = Ipv4Addr::from(u32::from(address) | hosts);
            message.attributes.push(AddressAttribute::Broadcast(all));
        }
        let message = RouteNetlinkMessage::NewAddress(message);
        let asked =
            Netlink::open().and_then(|netlink| netlink.request(message, NLM_F_CREATE | NLM_F_EXCL));
        match asked {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => {
                let what = format!("adding the address {address} to {}", self.text);
                Err(NetdevError::from_call(what, "CAP_NET_ADMIN", errno))
            }
        }
    }
}

/// The interface's socket, which belongs to its network namespace.
impl AsFd for Interface {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(name_of("weft0").map(|name| name[..6].to_vec()), Ok(b"weft0\0".to_vec()));
        for name in ["", "sixteen_letters_", "a/b", "a b", "..", "a%d", "\u{e4}"] {
            assert!(name_of(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn the_loopback_interface_is_there_and_another_is_not() {
        let loopback = Interface::named("lo").expect("a name");
        assert_eq!(loopback.index(), Ok(1));
        assert!(loopback.mtu().is_ok_and(|mtu| mtu >= 1_280));
        let address = loopback.address().expect("the interface is there");
        assert!(address.is_none_or(|address| address.is_loopback()), "{address:?}");
        let none = Interface::named("weft-none").expect("a name").index();
        assert!(matches!(none, Err(NetdevError::Os { errno: Errno::NODEV, .. })), "{none:?}");
    }
}
