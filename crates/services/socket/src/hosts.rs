//! Which IP addresses are on which host, as the daemons of a fabric tell each other.
//!
//! A daemon is believed what it says of its own host, as far as nobody contradicts it: an address
//! that two hosts claim is on none. Loopback and link-local addresses mean another thing on each
//! host, so they are never claimed.
//!
//! # Invariants
//! - Of each node that is there at most [`ADDRESSES_MAX`] addresses are kept, of others none.
//! - [`Hosts::host_of`] and [`Hosts::is_of`] agree: what one host takes for a connection to another
//!   is at that one a connection from the first, if both know the same addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Addresses of a host that are kept at most.
pub const ADDRESSES_MAX: usize = 64;

/// The hosts that are there, with their addresses.
#[derive(Debug, Default)]
pub struct Hosts {
    own: Vec<IpAddr>,
    /// The other nodes, by number.
    others: BTreeMap<u32, Vec<IpAddr>>,
}

/// True for an address that can name a host.
#[must_use]
pub const fn names_a_host(address: IpAddr) -> bool {
    let is_everywhere = address.is_loopback() || address.is_unspecified() || address.is_multicast();
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !is_everywhere && !is_link_local
}

fn kept(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let canonical = addresses.iter().map(IpAddr::to_canonical);
    let mut kept: Vec<IpAddr> = canonical.filter(|address| names_a_host(*address)).collect();
    kept.truncate(ADDRESSES_MAX);
    kept
}

impl Hosts {
    /// This host has these addresses. True if that changes anything.
    pub fn set_own(&mut self, addresses: &[IpAddr]) -> bool {
        let former = std::mem::replace(&mut self.own, kept(addresses));
        former != self.own
    }

    /// The addresses of this host that others are told.
    #[must_use]
    pub fn own(&self) -> &[IpAddr] {
        &self.own
    }

    /// A node is there, and has said nothing yet.
    pub fn up(&mut self, node: u32) {
        self.others.insert(node, Vec::new());
    }

    /// A node is away.
    pub fn down(&mut self, node: u32) {
        self.others.remove(&node);
    }

    /// A node says that its host has these addresses.
    pub fn claim(&mut self, node: u32, addresses: &[IpAddr]) {
        if let Some(known) = self.others.get_mut(&node) {
            *known = kept(addresses);
        }
    }

    /// The nodes that are there.
    pub fn nodes(&self) -> impl Iterator<Item = u32> {
        self.others.keys().copied()
    }

    /// The other host at which a connection of this host ends: one that has `remote`, while this
    /// host has `local`, and no third one claims either.
    #[must_use]
    pub fn host_of(&self, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
        let (local, remote) = (local.ip().to_canonical(), remote.ip().to_canonical());
        let with = |address: IpAddr| {
            let claims = move |claims: &Vec<IpAddr>| claims.contains(&address);
            self.others.iter().filter(move |(_, known)| claims(known)).map(|(node, _)| *node)
        };
        let is_own_alone = self.own.contains(&local) && with(local).next().is_none();
        let mut at = with(remote);
        let node = at.next().filter(|_| at.next().is_none());
        node.filter(|_| is_own_alone && !self.own.contains(&remote))
    }

    /// Whether a connection from `local` to `remote`, as `node` tells of its own end, begins at
    /// that node's host and ends at this one.
    #[must_use]
    pub fn is_of(&self, node: u32, local: SocketAddr, remote: SocketAddr) -> bool {
        self.host_of(remote, local) == Some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn hosts() -> Hosts {
        let mut hosts = Hosts::default();
        assert!(hosts.set_own(&[ip("10.9.0.1"), ip("127.0.0.1"), ip("fe80::1")]));
        for (node, address) in [(1, "10.9.0.2"), (2, "10.9.0.3")] {
            hosts.up(node);
            hosts.claim(node, &[ip(address)]);
        }
        hosts
    }

    #[test]
    fn a_connection_ends_at_the_host_that_has_its_address() {
        let hosts = hosts();
        assert_eq!(hosts.own(), [ip("10.9.0.1")]);
        let own = at("10.9.0.1:5000");
        assert_eq!(hosts.host_of(own, at("10.9.0.2:80")), Some(1));
        assert_eq!(
            hosts.host_of(at("[::ffff:10.9.0.1]:5000"), at("[::ffff:10.9.0.3]:80")),
            Some(2)
        );
        assert_eq!(hosts.host_of(own, at("10.9.0.4:80")), None, "nobody has it");
        assert_eq!(hosts.host_of(own, own), None, "it stays here");
        assert_eq!(hosts.host_of(at("10.1.0.1:5000"), at("10.9.0.2:80")), None, "not of this host");
        assert!(hosts.is_of(1, at("10.9.0.2:5000"), at("10.9.0.1:80")));
    }

    #[test]
    fn a_node_cannot_claim_connections_of_others() {
        let mut hosts = hosts();
        let (own, other) = (at("10.9.0.1:80"), at("10.9.0.3:5000"));
        assert!(!hosts.is_of(1, other, own), "that host is another node");
        assert!(!hosts.is_of(1, own, own) && !hosts.is_of(1, own, other));
        assert!(!hosts.is_of(7, other, own), "no such node");
        // It claims what another one has, and then both have nothing.
        hosts.claim(1, &[ip("10.9.0.2"), ip("10.9.0.3"), ip("10.9.0.1")]);
        for node in [1, 2] {
            assert!(!hosts.is_of(node, other, own));
        }
        assert_eq!(hosts.host_of(own, at("10.9.0.2:80")), None, "the own address is claimed, too");
        hosts.claim(1, &[ip("10.9.0.2")]);
        assert_eq!(hosts.host_of(own, other), Some(2));
    }

    #[test]
    fn addresses_that_each_host_has_and_those_beyond_the_bound_are_nothing() {
        let mut hosts = hosts();
        let nowhere = ["127.0.0.1", "::1", "0.0.0.0", "169.254.0.1", "fe80::1", "224.0.0.1"];
        let claimed: Vec<IpAddr> = nowhere.iter().map(|text| ip(text)).collect();
        hosts.claim(1, &claimed);
        for address in claimed {
            assert_eq!(hosts.host_of(at("10.9.0.1:1"), SocketAddr::new(address, 80)), None);
        }
        let many: Vec<IpAddr> = (0..=255).map(|last| IpAddr::from([10, 1, 1, last])).collect();
        hosts.claim(1, &many);
        assert_eq!(hosts.host_of(at("10.9.0.1:1"), at("10.1.1.63:80")), Some(1));
        assert_eq!(hosts.host_of(at("10.9.0.1:1"), at("10.1.1.64:80")), None);
    }

    #[test]
    fn a_node_that_is_away_has_nothing() {
        let mut hosts = hosts();
        hosts.down(1);
        hosts.claim(1, &[ip("10.9.0.2")]);
        assert_eq!(hosts.host_of(at("10.9.0.1:1"), at("10.9.0.2:80")), None);
        hosts.up(1);
        assert_eq!(hosts.host_of(at("10.9.0.1:1"), at("10.9.0.2:80")), None, "it said nothing yet");
        assert_eq!(hosts.nodes().collect::<Vec<_>>(), [1, 2]);
    }
}
