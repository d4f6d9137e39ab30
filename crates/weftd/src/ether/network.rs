//! Where connections over the devices end, by the addresses of their interfaces.
//!
//! Programs on two nodes of one daemon are on one host, though each in a network namespace of its
//! own. Their direct sockets find each other by the table of addresses, as 003 section 5.5.2.1 has
//! it.

use std::net::IpAddr;
use std::os::fd::AsFd;

use anyhow::Context;
use weft_netdev::addresses::Addresses;
use weft_netdev::interface::Interface;
use weft_socket::matchmaker::Tuple;

/// Where one device is.
pub struct Site {
    /// Its network namespace.
    namespace: u64,
    addresses: Addresses,
}

impl Site {
    /// Of `interface`, called in its network namespace.
    pub fn of(interface: &Interface) -> anyhow::Result<Self> {
        let addresses = Addresses::of(interface)?;
        let namespace =
            weft_channel::network_namespace(interface.as_fd()).context("SO_NETNS_COOKIE")?;
        Ok(Self { namespace, addresses })
    }
}

/// The network that the devices of a daemon make.
pub struct Network {
    sites: Vec<Site>,
}

impl Network {
    /// Of devices at `sites`.
    pub const fn new(sites: Vec<Site>) -> Self {
        Self { sites }
    }

    /// `tuple`, with the namespace of its other end where that is at a device, too. An address that
    /// several devices have is nobody's.
    pub fn locate(&mut self, tuple: Tuple) -> Tuple {
        let here = self.holders(tuple.local.ip());
        let there = self.holders(tuple.remote.ip());
        match (here.as_slice(), there.as_slice()) {
            ([here], [there]) if *here == tuple.namespace => {
                Tuple { remote_namespace: *there, ..tuple }
            }
            _ => tuple,
        }
    }

    fn holders(&mut self, address: IpAddr) -> Vec<u64> {
        let has = |site: &mut Site| site.addresses.now().contains(&address);
        self.sites.iter_mut().filter_map(|site| has(site).then_some(site.namespace)).collect()
    }
}
