//! The endpoint that carries lanes to other hosts, over libfabric.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;

use weft_broker::remote::RemoteBroker;
use weft_fabric::{EndpointOptions, Transport};
use weft_libfabric::Wanted;
use weft_transport_ofi::nic::PortNic;
use weft_transport_ofi::{OfiEndpoint, OfiTransport, Ports};

use super::without_signals;
use crate::deferral::Held;
use crate::{process, sys};

/// The endpoint of a process.
pub type Own = OfiEndpoint<PortNic>;

/// Opens an endpoint over libfabric, which uses the interface of the connection to which `fd`
/// leads.
pub fn open(path: &Path, fd: RawFd) -> Result<Own, String> {
    /// Kept by the thread of an endpoint: its calls are none of the program's.
    struct OwnThread(#[allow(dead_code, reason = "it is held")] Held);

    impl Drop for OwnThread {
        fn drop(&mut self) {
            process::own_thread_ends();
        }
    }

    let broker = Arc::new(RemoteBroker::new(path, &process::name()));
    let local = rustix::net::getsockname(sys::borrow(fd)).map_err(|e| e.to_string())?;
    let local = SocketAddr::try_from(local).map_err(|e| e.to_string())?;
    let source = local.ip().to_canonical().to_string();
    let options = &process::settings().options;
    let provider = options.fabric_provider().map(str::to_owned);
    let wanted = Wanted { provider, source: Some(source), ports: options.fabric_ports() };
    // Threads of the transport's and of libfabric's.
    without_signals(|| {
        let ports = Ports::between_hosts(wanted).map_err(|e| e.to_string())?;
        let parameters = weft_transport_ofi::Parameters::default();
        // The thread that drives the carrier drives the endpoint.
        let transport = OfiTransport::new(ports, broker, parameters).driven_by_owner();
        let transport = transport.whose_threads_hold(|| {
            process::has_own_thread();
            Box::new(OwnThread(Held::new()))
        });
        transport.open(&EndpointOptions::default()).map_err(|e| e.to_string())
    })
}
