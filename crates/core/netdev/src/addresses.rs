//! The addresses of an interface, or of all, kept up to date.

use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use rustix::io::Errno;
use rustix::net::netdevice::index_to_name;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::NetdevError;
use crate::interface::Interface;
use crate::netlink::Netlink;

/// RTNLGRP_IPV4_IFADDR and RTNLGRP_IPV6_IFADDR of the kernel's `rtnetlink.h`.
const CHANGES: [u32; 2] = [5, 9];

/// The addresses of one interface or of all, in the network namespace in which this was made.
#[derive(Debug)]
pub struct Addresses {
    /// The interface; `None` for all.
    index: Option<u32>,
    changes: Netlink,
    requests: Netlink,
    known: Vec<IpAddr>,
}

impl Addresses {
    /// Opens the sockets and reads the addresses of `interface`.
    ///
    /// # Errors
    /// [`NetdevError`].
    pub fn of(interface: &Interface) -> Result<Self, NetdevError> {
        Self::watch(Some(interface.index()?))
    }

    /// The same for all interfaces.
    ///
    /// # Errors
    /// [`NetdevError`].
    pub fn of_all() -> Result<Self, NetdevError> {
        Self::watch(None)
    }

    fn watch(index: Option<u32>) -> Result<Self, NetdevError> {
        let failed =
            |errno| NetdevError::Os { what: "opening a socket for addresses".to_owned(), errno };
        let mut addresses = Self {
            index,
            // Opened before the first read, so that no change is missed.
            changes: Netlink::watching(&CHANGES).map_err(failed)?,
            requests: Netlink::open().map_err(failed)?,
            known: Vec::new(),
        };
        addresses.read().map_err(failed)?;
        Ok(addresses)
    }

    /// The current addresses. Empty if they cannot be read.
    pub fn now(&mut self) -> &[IpAddr] {
        if self.changes.has_changed() && self.read().is_err() {
            self.known.clear();
        }
        &self.known
    }

    fn read(&mut self) -> Result<(), Errno> {
        let all = self.requests.list(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
        self.known.clear();
        for message in all {
            if let RouteNetlinkMessage::NewAddress(message) = message
                && self.index.is_none_or(|index| message.header.index == index)
            {
                self.known.extend(address_of(&message));
            }
        }
        Ok(())
    }
}

/// The name of the interface that has this address; `None` if none has it.
///
/// # Errors
/// The kernel does not say.
pub fn interface_of(address: IpAddr) -> Result<Option<String>, NetdevError> {
    let failed =
        |errno| NetdevError::Os { what: "asking which interface has an address".to_owned(), errno };
    let requests = Netlink::open().map_err(failed)?;
    let all = requests.list(RouteNetlinkMessage::GetAddress(AddressMessage::default()));
    let index = all.map_err(failed)?.into_iter().find_map(|message| match message {
        RouteNetlinkMessage::NewAddress(message) if address_of(&message) == Some(address) => {
            Some(message.header.index)
        }
        _ => None,
    });
    let Some(index) = index else { return Ok(None) };
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let name = socket.and_then(|socket| index_to_name(socket, index));
    name.map(Some).map_err(failed)
}

/// The interface's own address. On a point-to-point link `Address` is the address of the other end;
/// elsewhere there may be no `Local`, and `Address` is the own one.
fn address_of(message: &AddressMessage) -> Option<IpAddr> {
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    local.or_else(|| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_its_addresses() {
        let loopback = Interface::named("lo").expect("a name");
        let mut addresses = Addresses::of(&loopback).expect("lo exists");
        assert!(addresses.now().contains(&IpAddr::from([127, 0, 0, 1])), "{addresses:?}");
    }

    #[test]
    fn an_address_leads_to_its_interface() {
        let of = |address: [u8; 4]| interface_of(IpAddr::from(address)).expect("it says");
        assert_eq!(of([127, 0, 0, 1]).as_deref(), Some("lo"));
        assert_eq!(of([192, 0, 2, 77]), None, "an address for documents");
    }
}
