//! The transports that this build carries, with the parameters that the options say, and endpoints
//! that choose between them for each peer.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weft_broker::Connector;
use weft_fabric::{Capabilities, NodeId};
use weft_layers::{LayeredTransport, on_a_thread};
use weft_libfabric::{Error, Wanted};
use weft_memory::CopyMode;
use weft_netdev::interface::Interface;
use weft_netdev::namespace::Namespace;
use weft_options::{CopyMethod, Options};
use weft_transport_ofi::nic::PortNic;
use weft_transport_ofi::{Cards, OfiTransport, Ports};
use weft_transport_shm::{Parameters, ShmTransport};
use weftd::DeviceStatus;

/// The capabilities of each of them.
pub fn all(options: &Options) -> Vec<Capabilities> {
    let sim = weft_transport_sim::Settings::default().capabilities();
    vec![shm_parameters(options).capabilities(), sim]
}

/// The settings of the option table for endpoints over shared memory.
pub fn shm_parameters(options: &Options) -> Parameters {
    let default = Parameters::default();
    let limited = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Parameters {
        ring_slots: u32::try_from(options.shm_ring_slots()).unwrap_or(default.ring_slots),
        endpoints: u16::try_from(options.daemon_endpoints_max()).unwrap_or(default.endpoints),
        spin_us: limited(options.shm_spin_us()),
        yields: options.shm_yields(),
        copy: match options.shm_copy() {
            CopyMethod::Auto => default.copy,
            CopyMethod::Plain => CopyMode::Plain,
            CopyMethod::NonTemporal => CopyMode::NonTemporal,
        },
        ..default
    }
}

/// The ports of a node. Libfabric is not loaded before the first is opened.
#[derive(Clone, Debug)]
pub struct PortsOfNode {
    /// The daemon's socket.
    socket: PathBuf,
    /// The provider that is wanted; the first that serves hosts if none is named. And the TCP ports
    /// at which it listens.
    wanted: Wanted,
}

impl Cards for PortsOfNode {
    type Nic = PortNic;

    fn open(&self) -> Result<PortNic, Error> {
        // The daemon may have joined a fabric by now.
        let address = data_address(&self.socket);
        Ports { wanted: found(Wanted { source: address, ..self.wanted.clone() })? }.open()
    }
}

/// Endpoints with memory on their node and ports to others, at the daemon behind `socket`.
pub fn layered(
    socket: &Path,
    broker: Arc<dyn Connector>,
    parameters: Parameters,
    wanted: Wanted,
) -> LayeredTransport<PortsOfNode> {
    let ports = PortsOfNode { socket: socket.to_path_buf(), wanted };
    let far = OfiTransport::new(ports, Arc::clone(&broker), Default::default());
    LayeredTransport::new(ShmTransport::new(broker, parameters), far, on_a_thread)
}

/// The port that the options want, at the provider `named` if one is.
pub fn wanted(named: Option<&str>, options: &Options) -> Wanted {
    let provider = named.or(options.fabric_provider()).map(str::to_owned);
    Wanted { provider, source: None, ports: options.fabric_ports() }
}

/// The same with the first provider that serves hosts if none is named, and the address of its
/// interface. Loads libfabric.
///
/// # Errors
/// There is no libfabric, or no provider.
pub fn found(wanted: Wanted) -> Result<Wanted, Error> {
    let wanted = Ports::between_hosts(wanted)?.wanted;
    let source = wanted.source.or_else(|| loopback(wanted.provider.as_deref()?));
    Ok(Wanted { source, ..wanted })
}

/// Providers over TCP find each other on the loopback interface.
fn loopback(provider: &str) -> Option<String> {
    let is_tcp = ["tcp", "net", "sockets"].iter().any(|name| provider.starts_with(name));
    is_tcp.then(|| "127.0.0.1".to_owned())
}

/// The address at which the other nodes find this program: that of the device in a node of a lab,
/// elsewhere that of the interface that leads to the daemons of the fabric. `None` without either.
pub fn data_address(socket: &Path) -> Option<String> {
    let status = weftd::client::status(socket).ok()?;
    if let Some(address) = device_address(&status.devices) {
        return Some(address.to_string());
    }
    let own = status.fabric?.nodes.into_iter().find(|node| node.state == "self")?;
    let address: SocketAddr = own.address.parse().ok()?;
    Some(address.ip().to_string())
}

/// The address of the device in this network namespace, if the daemon serves one here.
fn device_address(devices: &[DeviceStatus]) -> Option<Ipv4Addr> {
    let is_here = |name: &String| Namespace::named(name).is_ok_and(|it| it.is_own());
    let here = devices.iter().find(|device| device.namespace.as_ref().is_some_and(is_here))?;
    Interface::named(&here.interface).ok()?.address().ok()?
}

/// The number of the daemon's node.
pub fn own_number(socket: &Path) -> u32 {
    let status = weftd::client::status(socket).ok();
    status.and_then(|status| status.fabric?.number).unwrap_or(NodeId::LOCAL.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_transport_have_the_same_defaults() {
        assert_eq!(shm_parameters(&Options::default()), Parameters::default());
    }
}
