//! The transport: it opens endpoints in shared memory, which may open a port later.

use std::sync::Arc;

use weft_fabric::{
    Capabilities, Endpoint, EndpointLimits, EndpointOptions, OpenError, Progress, Transport,
};
use weft_sync::AdaptiveWait;
use weft_transport_ofi::{Cards, OfiTransport};
use weft_transport_shm::ShmTransport;

use crate::calls::Calls;
use crate::endpoint::LayeredEndpoint;
use crate::port::{Door, Files, Run};
use crate::progress::Turns;

/// The transport of a host that is one of several.
///
/// Both transports have to be those of one broker.
#[derive(Debug)]
pub struct LayeredTransport<C> {
    near: ShmTransport,
    far: Arc<OfiTransport<C>>,
    run: Run,
    capabilities: Capabilities,
}

/// Looks of a wait before it yields.
const SPINS: u32 = 50;
/// Yields of a wait before it sleeps.
const YIELDS: u32 = 100;

impl<C: Cards + 'static> LayeredTransport<C> {
    /// A transport over `near` on its node and over `far` between nodes. `run` has work done that
    /// takes long: loading a library and opening a port.
    #[must_use]
    pub fn new(near: ShmTransport, far: OfiTransport<C>, run: Run) -> Self {
        let capabilities = common(near.capabilities(), far.capabilities());
        Self { near: near.with_ports_later(), far: Arc::new(far), run, capabilities }
    }
}

/// The capabilities that hold on both ways.
fn common(near: &Capabilities, far: &Capabilities) -> Capabilities {
    Capabilities {
        transport: "layers",
        message_bytes_max: near.message_bytes_max.min(far.message_bytes_max),
        mtu_bytes: near.mtu_bytes.min(far.mtu_bytes),
        descriptor_bytes_max: near.descriptor_bytes_max.min(far.descriptor_bytes_max),
        progress: Progress::Auto,
        ordered: false,
        completes_inline: false,
        window_is_memory: false,
        descriptor: true,
        ..near.clone()
    }
}

impl<C: Cards + 'static> Transport for LayeredTransport<C> {
    type Endpoint = LayeredEndpoint<C>;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn open(&self, options: &EndpointOptions) -> Result<LayeredEndpoint<C>, OpenError> {
        // The rails are those of the node.
        self.capabilities.clone().on_rail(options.rail.as_deref())?;
        let near = self.near.open(options)?;
        let capabilities = common(near.capabilities(), self.far.capabilities());
        // The port keeps to what the endpoint got.
        let limits = EndpointLimits {
            mailbox_depth: Some(capabilities.mailbox_depth),
            operations: Some(capabilities.operations_max),
            peers: Some(capabilities.peers_max),
            keys: Some(capabilities.keys_max),
            // Bytes that are sent need memory of the port's own.
            regions: options.limits.regions,
        };
        let files = Files::watching(&near)?;
        let door = Door::new(Arc::clone(&self.far), self.run, limits);
        Ok(LayeredEndpoint {
            door,
            near,
            capabilities,
            files,
            calls: Calls::default(),
            grants: Default::default(),
            mark: Arc::new(()),
            turns: Turns::default(),
            adaptive_wait: AdaptiveWait::new(SPINS, YIELDS),
        })
    }
}
