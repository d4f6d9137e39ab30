//! The addresses that an interface has, kept up to date.

use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use rustix::io::Errno;

use crate::NetdevError;
use crate::interface::Interface;
use crate::netlink::Netlink;

/// RTNLGRP_IPV4_IFADDR and RTNLGRP_IPV6_IFADDR of the kernel's `rtnetlink.h`.
const CHANGES: [u32; 2] = [5, 9];

/// The addresses of one interface, of the network namespace in which it was made.
#[derive(Debug)]
pub struct Addresses {
    index: u32,
    news: Netlink,
    questions: Netlink,
    known: Vec<IpAddr>,
}

impl Addresses {
    /// Those of `interface`.
    ///
    /// # Errors
    /// [`NetdevError`].
    pub fn of(interface: &Interface) -> Result<Self, NetdevError> {
        let failed = |errno| NetdevError::Os { what: "a socket for addresses".to_owned(), errno };
        let mut addresses = Self {
            index: interface.index()?,
            // Before the first look, so that nothing is missed.
            news: Netlink::watching(&CHANGES).map_err(failed)?,
            questions: Netlink::open().map_err(failed)?,
            known: Vec::new(),
        };
        addresses.look().map_err(failed)?;
        Ok(addresses)
    }

    /// The addresses that it has now; none when they cannot be known.
    pub fn now(&mut self) -> &[IpAddr] {
        if self.news.has_news() && self.look().is_err() {
            self.known.clear();
        }
        &self.known
    }

    fn look(&mut self) -> Result<(), Errno> {
        let all =
            self.questions.list(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
        self.known.clear();
        for message in all {
            if let RouteNetlinkMessage::NewAddress(message) = message
                && message.header.index == self.index
            {
                self.known.extend(address_of(&message));
            }
        }
        Ok(())
    }
}

/// Its own address; `Address` alone is that of the other end of a point-to-point link, or its own.
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
        let mut addresses = Addresses::of(&loopback).expect("it is there");
        assert!(addresses.now().contains(&IpAddr::from([127, 0, 0, 1])), "{addresses:?}");
    }
}
