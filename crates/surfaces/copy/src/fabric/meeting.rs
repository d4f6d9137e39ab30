//! How the two ends of a transfer find each other on the fabric.
//!
//! One offers a service, and the other one finds it by name and host. The daemons let in the own
//! user and those that `daemon.services` names.

use std::net::{IpAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use weft_fabric::{Endpoint, NodeId};
use weft_open::{Client, Opening, Service, ServicePlace};
use weft_session::{Options, SessionId};

use super::hub::{Hub, SESSIONS_MAX};
use super::talk::Early;
use super::{PROTOCOL, VERSION, Wire};
use crate::channel::SILENCE;
use crate::near::{Machine, Near};

const VERSIONS: RangeInclusive<u16> = VERSION..=VERSION;

/// The name of the service of a server with this port.
pub(crate) fn server_name(port: u16) -> String {
    format!("transfer.{port}")
}

fn options() -> Options {
    Options { sessions_max: SESSIONS_MAX, silence: Some(SILENCE), ..Options::default() }
}

/// Opens a session with the service at a place.
///
/// # Errors
/// Why there is none, for people.
pub(crate) fn find(opening: &Opening, place: &str) -> Result<Wire, String> {
    find_at(opening, place, false)
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
    /// Offers a service of this name.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn new(opening: &Opening, name: &str) -> Result<Self, String> {
        let failed = |why: weft_open::OpeningError| why.to_string();
        let endpoint = opening.clone().offering(name).and_then(|opening| opening.open());
        let endpoint = endpoint.map_err(failed)?;
        let NodeId(node) = endpoint.address().node;
        let service = Service::over(endpoint, PROTOCOL, &VERSIONS, options()).map_err(failed)?;
        let (tell, arrived) = mpsc::channel();
        let started = Hub::start(service.into_sessions(), near_rail(opening), None, Some(tell));
        let (hub, _) = started.map_err(|why| why.to_string())?;
        Ok(Self { hub, arrived, place: format!("{name}@{node}") })
    }

    /// Where others find it: `NAME@NUMBER`.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The next session that somebody opens.
    pub fn accept(&self, within: Duration) -> Option<Wire> {
        let (session, early) = self.arrived.recv_timeout(within).ok()?;
        Some(Wire::new(Arc::clone(&self.hub), session, early))
    }
}
