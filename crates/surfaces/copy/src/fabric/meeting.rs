//! How the two ends of a transfer find each other on the fabric.
//!
//! One offers a service, and the other one finds it by name and host. The daemons let in the own
//! user and those that `daemon.services` names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use weft_fabric::{Endpoint, NodeId};
use weft_open::{Client, Opening, Service, ServicePlace, Source};
use weft_session::{Options, SessionId};

use super::hub::{Hub, SESSIONS_MAX};
use super::talk::Early;
use super::{PROTOCOL, VERSION, Wire};
use crate::channel::SILENCE;
use crate::near::{Machine, Near};

const VERSIONS: RangeInclusive<u16> = VERSION..=VERSION;

/// Stands between the place of a service and the address that it is at.
const RAIL: char = '/';

/// The name of the service of a server with this port.
pub(crate) fn server_name(port: u16) -> String {
    format!("transfer.{port}")
}

fn options() -> Options {
    Options { sessions_max: SESSIONS_MAX, silence: Some(SILENCE), ..Options::default() }
}

/// Opens a session with the service at a place, from the network that it names.
///
/// # Errors
/// Why there is none, for people.
pub(crate) fn find(opening: &Opening, place: &str) -> Result<Wire, String> {
    let Some((place, rail)) = place.split_once(RAIL) else {
        return find_at(opening, place, false);
    };
    let rail: IpAddr = rail.parse().map_err(|_| format!("{rail:?} is no address"))?;
    let own = own_address_to(rail).map_err(|why| format!("no network leads to {rail}: {why}"))?;
    find_at(&opening.clone().source(Source::Address(own)), place, false)
}

/// The address of this host on the way to another one. Nothing is sent.
fn own_address_to(other: IpAddr) -> std::io::Result<IpAddr> {
    let any: IpAddr = match other {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    // Any port will do.
    socket.connect((other, 9))?;
    Ok(socket.local_addr()?.ip())
}

fn find_at(opening: &Opening, place: &str, is_near: bool) -> Result<Wire, String> {
    let place = ServicePlace::parse(place, PROTOCOL).map_err(|why| why.to_string())?;
    let endpoint = opening.clone().finding(&place).and_then(|opening| opening.open());
    let endpoint = endpoint.map_err(|why| why.to_string())?;
    let node = endpoint.host().map(|host| host.node);
    if is_near && node != Some(endpoint.address().node) {
        return Err(format!("nobody offers {place} on this host"));
    }
    let client = Client::over(endpoint, PROTOCOL, &VERSIONS, options());
    let (sessions, session) = client.map_err(|why| why.to_string())?.into_sessions();
    let started = Hub::start(sessions, near_rail(opening), Some(session), None);
    let (hub, early) = started.map_err(|why| why.to_string())?;
    Ok(Wire::new(hub, session, early.expect("there is a session")))
}

/// Opens a session with a server on a host.
///
/// # Errors
/// Why there is none, for people.
pub(crate) fn find_server(opening: &Opening, host: &str, port: u16) -> Result<Wire, String> {
    let daemon = opening.daemon().map_err(|why| why.to_string())?;
    let status = daemon.status().map_err(|why| why.to_string())?;
    let addresses: Vec<IpAddr> =
        (host, port).to_socket_addrs().into_iter().flatten().map(|at| at.ip()).collect();
    let names = addresses.iter().map(IpAddr::to_string);
    let number = std::iter::once(host.to_owned()).chain(names);
    let number = number.into_iter().find_map(|name| status.node_named(&name));
    let name = server_name(port);
    match number {
        Some(number) => find_at(opening, &format!("{name}@{number}"), false),
        None if is_here(host, &addresses) => find_at(opening, &name, true),
        None => Err(format!("this host has not joined a fabric with {host}")),
    }
}

/// Near the network device that leads to other hosts.
fn near_rail(opening: &Opening) -> Option<Near> {
    Machine::own()?.near_address(opening.data_address()?)
}

fn is_here(host: &str, addresses: &[IpAddr]) -> bool {
    let own = rustix::system::uname();
    own.nodename().to_bytes() == host.as_bytes() || addresses.iter().any(IpAddr::is_loopback)
}

/// A service that is offered to other ends.
#[derive(Debug)]
pub(crate) struct Offer {
    hub: Arc<Hub>,
    arrived: mpsc::Receiver<(SessionId, Early)>,
    place: String,
}

impl Offer {
    /// Offers a service of this name, at an address of this host or at the usual one.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn new(opening: &Opening, name: &str, rail: Option<IpAddr>) -> Result<Self, String> {
        let opening = match rail {
            Some(address) => &opening.clone().source(Source::Address(address)),
            None => opening,
        };
        let failed = |why: weft_open::OpeningError| why.to_string();
        let endpoint = opening.clone().offering(name).and_then(|opening| opening.open());
        let endpoint = endpoint.map_err(failed)?;
        let NodeId(node) = endpoint.address().node;
        let service = Service::over(endpoint, PROTOCOL, &VERSIONS, options()).map_err(failed)?;
        let (tell, arrived) = mpsc::channel();
        let started = Hub::start(service.into_sessions(), near_rail(opening), None, Some(tell));
        let (hub, _) = started.map_err(|why| why.to_string())?;
        let rail = rail.map(|address| format!("{RAIL}{address}")).unwrap_or_default();
        Ok(Self { hub, arrived, place: format!("{name}@{node}{rail}") })
    }

    /// Where others find it: `NAME@NUMBER`, or `NAME@NUMBER/ADDRESS` at an address.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The next session that somebody opens.
    pub fn accept(&self, within: Duration) -> Option<Wire> {
        let (session, early) = self.arrived.recv_timeout(within).ok()?;
        Some(Wire::new(Arc::clone(&self.hub), session, early))
    }
}
