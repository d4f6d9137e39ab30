//! Settings of a network interface of the calling thread's network namespace.

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

/// An interface by its name.
#[derive(Debug)]
pub struct Interface {
    socket: OwnedFd,
    name: [u8; NAME_BYTES],
    text: String,
}

/// Checks a name and gives it the kernel's form.
pub(crate) fn name_of(name: &str) -> Result<[u8; NAME_BYTES], NetdevError> {
    let error = |why| NetdevError::Name { name: name.to_owned(), what: "an interface", why };
    if name.is_empty() || name.len() >= NAME_BYTES {
        return Err(error("it has 1 to 15 bytes"));
    }
    let is_bad =
        |byte: u8| byte == b'/' || byte == b':' || byte == b'%' || !byte.is_ascii_graphic();
    if name == "." || name == ".." || name.bytes().any(is_bad) {
        return Err(error("it has letters, digits and signs other than / : %"));
    }
    let mut bytes = [0; NAME_BYTES];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    Ok(bytes)
}

impl Interface {
    /// The interface `name`, whether or not it is there.
    ///
    /// # Errors
    /// [`NetdevError`].
    pub fn named(name: &str) -> Result<Self, NetdevError> {
        let bytes = name_of(name)?;
        let inet = rustix::net::AddressFamily::INET;
        let socket = socket_with(inet, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(|errno| NetdevError::Os { what: "a socket for settings".to_owned(), errno })?;
        Ok(Self { socket, name: bytes, text: name.to_owned() })
    }

    /// Its name.
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

    /// Its number; an error when it is not there.
    ///
    /// # Errors
    /// [`NetdevError::Os`].
    pub fn index(&self) -> Result<u32, NetdevError> {
        let [a, b, c, d, ..] = self.call("the index", &[], sys::index)?;
        Ok(u32::from_ne_bytes([a, b, c, d]))
    }

    /// Its MTU.
    ///
    /// # Errors
    /// [`NetdevError::Os`].
    pub fn mtu(&self) -> Result<u32, NetdevError> {
        let [a, b, c, d, ..] = self.call("the MTU", &[], sys::mtu)?;
        Ok(u32::from_ne_bytes([a, b, c, d]))
    }

    /// Sets its MTU, bytes of IP in a frame.
    ///
    /// # Errors
    /// [`NetdevError`]; the kernel refuses what the device cannot have.
    pub fn set_mtu(&self, mtu: u32) -> Result<(), NetdevError> {
        self.call("the MTU", &mtu.to_ne_bytes(), sys::set_mtu).map(|_| ())
    }

    /// Sets its Ethernet address.
    ///
    /// # Errors
    /// [`NetdevError`].
    pub fn set_mac(&self, mac: [u8; 6]) -> Result<(), NetdevError> {
        let [a, b] = ETHERNET.to_ne_bytes();
        let [c, d, e, f, g, h] = mac;
        self.call("the address", &[a, b, c, d, e, f, g, h], sys::set_mac).map(|_| ())
    }

    /// Sets how many packets may wait in it for their reader.
    ///
    /// # Errors
    /// [`NetdevError`].
    pub fn set_queue(&self, packets: u32) -> Result<(), NetdevError> {
        self.call("the queue", &packets.to_ne_bytes(), sys::set_queue).map(|_| ())
    }

    /// Turns it on or off.
    ///
    /// # Errors
    /// [`NetdevError`].
    pub fn set_up(&self, is_up: bool) -> Result<(), NetdevError> {
        let [low, high, ..] = self.call("the state", &[], sys::flags)?;
        let flags = u16::from_ne_bytes([low, high]);
        let flags = if is_up { flags | UP } else { flags & !UP };
        self.call("the state", &flags.to_ne_bytes(), sys::set_flags).map(|_| ())
    }

    /// Gives it an address in a network with a prefix of so many bits. One of IPv6 can be used at
    /// once: the caller knows that nobody else has it, and duplicate address detection, which takes
    /// seconds in which programs fall back to whatever source they find, is left out (RFC 4862
    /// section 5.4). An address that it has already is no error.
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
                let what = format!("the address {address} of {}", self.text);
                Err(NetdevError::from_call(what, "CAP_NET_ADMIN", errno))
            }
        }
    }
}

/// A socket of its network namespace.
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
        let none = Interface::named("weft-none").expect("a name").index();
        assert!(matches!(none, Err(NetdevError::Os { errno: Errno::NODEV, .. })), "{none:?}");
    }
}
