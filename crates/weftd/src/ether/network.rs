//! Finds the device at which a connection ends, by the addresses of the interfaces.
//!
//! Programs on two nodes of one daemon run on one host, each in its own network namespace. Their
//! direct sockets find each other by the table of addresses, as in 003 section 5.5.2.1.

use std::net::IpAddr;
use std::os::fd::AsFd;

use anyhow::Context;
use weft_netdev::addresses::Addresses;
use weft_netdev::interface::Interface;
use weft_socket::tuple::{Route, Tuple};

/// The location of a device.
pub struct Site {
    /// The cookie of its network namespace.
    namespace: u64,
    addresses: Addresses,
}

impl Site {
    /// The site of `interface`. Must be called in the network namespace of the interface.
    pub fn of(interface: &Interface) -> anyhow::Result<Self> {
        let addresses = Addresses::of(interface)?;
        let namespace =
            weft_channel::network_namespace(interface.as_fd()).context("SO_NETNS_COOKIE")?;
        Ok(Self { namespace, addresses })
    }
}

/// All devices of a daemon.
#[derive(Default)]
pub struct Network {
    sites: Vec<Site>,
}

impl Network {
    /// Adds the devices at `sites`.
    pub fn add(&mut self, sites: Vec<Site>) {
        self.sites.extend(sites);
    }

    /// `tuple` with the namespace of its other end, if both ends are at a device. An address that
    /// several devices have is not used.
    pub fn locate(&mut self, tuple: Tuple) -> Tuple {
        let here = self.holders(tuple.local.ip());
        let there = self.holders(tuple.remote.ip());
        match (here.as_slice(), there.as_slice(), tuple.route) {
            (&[at], &[there], Route::Namespaces { here, .. }) if at == here => {
                Tuple { route: Route::Namespaces { here, there }, ..tuple }
            }
            _ => tuple,
        }
    }

    /// True when a device is in the network namespace with this cookie.
    pub fn is_at(&self, namespace: u64) -> bool {
        self.sites.iter().any(|site| site.namespace == namespace)
    }

    fn holders(&mut self, address: IpAddr) -> Vec<u64> {
        let has = |site: &mut Site| site.addresses.now().contains(&address);
        self.sites.iter_mut().filter_map(|site| has(site).then_some(site.namespace)).collect()
    }
}
