//! Finds the device at which a connection ends, by the addresses of the interfaces.
//!
//! Programs on two nodes of one daemon run on one host, each in its own network namespace. Their
//! direct sockets find each other by the table of addresses, as in EXTOLL-THESIS#5.5.2.1.

use std::net::IpAddr;
use std::os::fd::AsFd;

use anyhow::Context;
use weft_broker::Site;
use weft_netdev::addresses::Addresses;
use weft_netdev::interface::Interface;
use weft_socket::tuple::{Route, Tuple};

/// The location of a device.
pub struct Place {
    /// The cookie of its network namespace.
    namespace: u64,
    addresses: Addresses,
    /// The node of a lab, whose namespace it is; `None` in that of the daemon.
    site: Option<Site>,
}

impl Place {
    /// The place of `interface`. Must be called in the network namespace of the interface.
    pub fn of(interface: &Interface, site: Option<Site>) -> anyhow::Result<Self> {
        let addresses = Addresses::of(interface)?;
        let namespace =
            weft_channel::network_namespace(interface.as_fd()).context("SO_NETNS_COOKIE")?;
        Ok(Self { namespace, addresses, site })
    }
}

/// All devices of a daemon.
#[derive(Default)]
pub struct Network {
    places: Vec<Place>,
}

impl Network {
    /// Adds the devices at `places`.
    pub fn add(&mut self, places: Vec<Place>) {
        self.places.extend(places);
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

    /// The node whose device is in the network namespace with this cookie.
    pub fn site_at(&self, namespace: u64) -> Option<Site> {
        let place = self.places.iter().find(|place| place.namespace == namespace)?;
        place.site
    }

    /// The cookies of the network namespaces of a lab's nodes.
    pub fn sites(&self) -> impl Iterator<Item = (u64, Site)> {
        self.places.iter().filter_map(|place| Some((place.namespace, place.site?)))
    }

    fn holders(&mut self, address: IpAddr) -> Vec<u64> {
        let has = |place: &mut Place| place.addresses.now().contains(&address);
        self.places.iter_mut().filter_map(|place| has(place).then_some(place.namespace)).collect()
    }
}
