//! Ports of libfabric that a layered endpoint opens when it first needs one.

use weft_libfabric::{Error, Wanted};
use weft_transport_ofi::nic::PortNic;
use weft_transport_ofi::{Cards, Ports};

use crate::daemon::Daemon;
use crate::opening::Driver;

/// The ports of a host. Libfabric is not loaded before the first is opened.
#[derive(Clone, Debug)]
pub struct HostPorts {
    /// The daemon, where there is one: it knows the address of this host.
    pub(crate) daemon: Option<Daemon>,
    /// The port that is wanted; the first provider that serves hosts if none is named.
    pub(crate) wanted: Wanted,
    pub(crate) driver: Driver,
}

impl HostPorts {
    /// The ports with a provider and an address. Loads libfabric.
    ///
    /// # Errors
    /// There is no libfabric, or no provider.
    pub(crate) fn found(&self) -> Result<Ports, Error> {
        let wanted = match &self.wanted.source {
            Some(_) => self.wanted.clone(),
            // The daemon may have joined a fabric by now.
            None => Wanted { source: self.data_address(), ..self.wanted.clone() },
        };
        let wanted = match self.driver {
            Driver::Thread | Driver::Owner => Ports::between_hosts(wanted)?,
            Driver::Polling | Driver::Alternating => Ports::for_polling(wanted)?,
        }
        .wanted;
        let loopback = || loopback(wanted.provider.as_deref()?);
        let source = wanted.source.clone().or_else(loopback);
        Ok(Ports { wanted: Wanted { source, ..wanted } })
    }

    fn data_address(&self) -> Option<String> {
        let status = self.daemon.as_ref()?.status().ok()?;
        status.data_address().map(|address| address.to_string())
    }
}

/// Providers over TCP find each other on the loopback interface.
fn loopback(provider: &str) -> Option<String> {
    let is_tcp = ["tcp", "net", "sockets"].iter().any(|name| provider.starts_with(name));
    is_tcp.then(|| "127.0.0.1".to_owned())
}

impl Cards for HostPorts {
    type Nic = PortNic;

    fn open(&self) -> Result<PortNic, Error> {
        self.found()?.open()
    }
}
