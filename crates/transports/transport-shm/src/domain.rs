//! The transport: it opens endpoints at a broker.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use rustix::io::Errno;
use weft_broker::Connector;
use weft_broker::calls::{self, Opened};
use weft_broker::conversation::{Conversation, Opening};
use weft_fabric::{Capabilities, EndpointOptions, OpenError, Transport};
use weft_memory::SegmentError;
use weft_sync::{AdaptiveWait, fence};
use weft_wire::endpoint_control::flags;

use crate::address_vector::AddressVector;
use crate::attr::Parameters;
use crate::beside::Beside;
use crate::completion::LocalQueue;
use crate::doorbell::Doorbell;
use crate::endpoint::ShmEndpoint;
use crate::groups::Groups;
use crate::memory::Grants;
use crate::moves::Moves;
use crate::partings::Partings;
use crate::recent::Recently;
use crate::registers::{Registers, Sampling};
use crate::requests::Requests;
use crate::sharing::Granter;
use crate::sys;
use crate::ways::Sign;

/// The shared-memory transport of a host.
#[derive(Clone)]
pub struct ShmTransport {
    broker: Arc<dyn Connector>,
    parameters: Parameters,
    capabilities: Capabilities,
    beside: Beside,
}

impl std::fmt::Debug for ShmTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShmTransport").field("parameters", &self.parameters).finish_non_exhaustive()
    }
}

impl ShmTransport {
    /// A transport whose endpoints are registered at `broker`.
    #[must_use]
    pub fn new(broker: Arc<dyn Connector>, parameters: Parameters) -> Self {
        let capabilities = parameters.capabilities();
        Self { broker, parameters, capabilities, beside: Beside::Nothing }
    }

    /// The same. The broker is told that each endpoint opens a port of a network when one is wanted
    /// ([`ShmEndpoint::port_is_wanted`]).
    #[must_use]
    pub fn with_ports_later(self) -> Self {
        Self { beside: Beside::Later, ..self }
    }
}

/// Spins per microsecond of waiting: a pause and a look at a few words take some 40 ns.
const SPINS_PER_US: u32 = 25;

impl Transport for ShmTransport {
    type Endpoint = ShmEndpoint;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn open(&self, options: &EndpointOptions) -> Result<ShmEndpoint, OpenError> {
        let capabilities = self.parameters.limited(&options.limits);
        let capabilities = capabilities.on_rail(options.rail.as_deref())?;
        let client = self.broker.client().map_err(calls::no_broker)?;
        let (wakeup, woken) = sys::wakeup_socket()
            .map_err(|errno| OpenError::Os { call: "socketpair", errno: errno.raw_os_error() })?;
        let (doorbell, doorbell_file) = Doorbell::create(wakeup).map_err(no_memory)?;
        let (registers, registers_file) = Registers::create().map_err(no_memory)?;
        let full_fences = !fence::register();
        let birth = sys::random();
        let ring_slots = u32::try_from(capabilities.mailbox_depth).unwrap_or(u32::MAX);
        let later = if self.beside == Beside::Nothing { 0 } else { flags::PORT_LATER };
        let opening = Opening {
            partition: options.partition,
            vpid: options.vpid,
            birth,
            flags: later | if full_fences { flags::FULL_FENCES } else { 0 },
            slots: ring_slots,
            peers_max: capabilities.peers_max,
        };
        let shown = [doorbell_file.as_fd(), registers_file.as_fd(), doorbell.wakeup()];
        let broker = Conversation::open(client, opening, &shown)?;
        let Opened { address, partition, host } = broker.opened();
        let (mut wakeup_and_line, mut timer) = (None, None);
        if let Some(line) = broker.line() {
            let os = |call| move |errno: Errno| OpenError::Os { call, errno: errno.raw_os_error() };
            let own = sys::timer().map_err(os("timerfd_create"))?;
            let both = sys::watch(&[woken.as_fd(), line, own.as_fd()]);
            wakeup_and_line = Some(both.map_err(os("epoll_create"))?);
            timer = Some(own);
        }
        let (doorbell, registers) = (Arc::new(doorbell), Arc::new(registers));
        let granter = Arc::new(Granter::new(Arc::clone(&registers), Arc::clone(&doorbell)));
        let parameters = Parameters { ring_slots, ..self.parameters };
        let spins = parameters.spin_us.saturating_mul(SPINS_PER_US);
        let [a, b, c, d, ..] = sys::random().to_le_bytes();
        Ok(ShmEndpoint {
            address,
            local: LocalQueue::new(capabilities.operations_max),
            capabilities,
            parameters,
            partition,
            host,
            birth,
            beside: self.beside,
            peers_elsewhere: 0,
            full_fences,
            doorbell,
            doorbell_file,
            sign: Sign::show(&registers),
            registers,
            registers_file,
            woken,
            wakeup_and_line,
            timer,
            timer_is_set: false,
            unnamed: Vec::new(),
            restarted: None,
            wakeup_broken: false,
            peers: AddressVector::new(address.node),
            recently: Recently::default(),
            sampling: Sampling::default(),
            active: Vec::new(),
            turn: 0,
            batches: Vec::new(),
            waits_for_room: Vec::new(),
            leaving: Vec::new(),
            granter,
            grants: Grants::new(u32::from_le_bytes([a, b, c, d])),
            regions: Arc::new(AtomicUsize::new(0)),
            groups: Groups::new(),
            broker,
            requests: Requests::default(),
            moves: Moves::new(),
            partings: Partings::new(),
            unread: false,
            adaptive_wait: AdaptiveWait::new(spins, parameters.yields),
            armed: false,
            polls: 0,
            #[cfg(any(test, feature = "test-doors"))]
            registers_in_place: false,
            #[cfg(any(test, feature = "test-doors"))]
            vanished: false,
        })
    }
}

fn no_memory(error: SegmentError) -> OpenError {
    match error {
        SegmentError::Os { call, errno, .. } => OpenError::Os { call, errno },
        _ => OpenError::Os { call: "memfd_create", errno: weft_fabric::errno::EINVAL },
    }
}

impl Drop for ShmEndpoint {
    fn drop(&mut self) {
        #[cfg(any(test, feature = "test-doors"))]
        let closes = !self.vanished;
        #[cfg(not(any(test, feature = "test-doors")))]
        let closes = true;
        self.sign.take_down();
        self.part_from_writers();
        if closes {
            self.broker.close();
        }
        self.leave_moves();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_broker;
    use weft_broker::Limits;
    use weft_fabric::{EndpointAddress, NodeId, Vpid};

    #[test]
    fn an_address_in_use_has_the_number_of_the_broker_s_node() {
        let broker = Arc::new(local_broker(NodeId(7), Limits::default()));
        let transport = ShmTransport::new(broker, Parameters::default());
        let options = EndpointOptions { vpid: Vpid(3), ..EndpointOptions::default() };
        let _first = transport.open(&options).expect("a fresh broker");
        let second = transport.open(&options).err();
        let address = EndpointAddress::new(NodeId(7), Vpid(3));
        assert_eq!(second, Some(OpenError::AddressInUse(address)));
    }
}
