//! The transport: it opens endpoints at a broker.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use rustix::io::Errno;
use weft_fabric::{
    Capabilities, EndpointAddress, EndpointOptions, Group, NodeId, OpenError, Register, Transport,
    Vpid,
};
use weft_memory::SegmentError;
use weft_sync::{AdaptiveWait, fence};
use weft_wire::endpoint_control::{Close, EndpointControl, Open, flags, status};

use crate::address_vector::AddressVector;
use crate::attr::Parameters;
use crate::broker::{BrokerError, Client, Connector};
use crate::completion::LocalQueue;
use crate::doorbell::Doorbell;
use crate::endpoint::ShmEndpoint;
use crate::memory::Grants;
use crate::registers::Registers;
use crate::requests::Requests;
use crate::sys;

/// The shared-memory transport of a host.
#[derive(Clone)]
pub struct ShmTransport {
    broker: Arc<dyn Connector>,
    parameters: Parameters,
    capabilities: Capabilities,
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
        Self { broker, parameters, capabilities: parameters.capabilities() }
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
        let mut client = self.broker.client().map_err(no_broker)?;
        let (wakeup, woken) = sys::wakeup_socket()
            .map_err(|errno| OpenError::Os { call: "socketpair", errno: errno.raw_os_error() })?;
        let (doorbell, doorbell_file) = Doorbell::create(wakeup).map_err(no_memory)?;
        let (registers, registers_file) = Registers::create().map_err(no_memory)?;
        let full_fences = !fence::register();
        let birth = sys::random();
        let mut open = Open { ticket: 1, birth, vpid: options.vpid.0, ..Open::default() };
        if full_fences {
            open.flags |= flags::FULL_FENCES;
        }
        if let Some(partition) = options.partition {
            open.flags |= flags::PARTITION;
            open.partition = partition.0;
        }
        let files = [doorbell_file.as_fd(), registers_file.as_fd(), doorbell.wakeup()];
        let (address, partition) = ask_open(client.as_mut(), open, &files)?;
        let (mut wakeup_and_line, mut timer) = (None, None);
        if let Some(line) = client.line() {
            let os = |call| move |errno: Errno| OpenError::Os { call, errno: errno.raw_os_error() };
            let own = sys::timer().map_err(os("timerfd_create"))?;
            let both = sys::watch(&[woken.as_fd(), line, own.as_fd()]);
            wakeup_and_line = Some(both.map_err(os("epoll_create"))?);
            timer = Some(own);
        }
        let parameters = self.parameters;
        let spins = parameters.spin_us.saturating_mul(SPINS_PER_US);
        let [a, b, c, d, ..] = sys::random().to_le_bytes();
        Ok(ShmEndpoint {
            address,
            capabilities: self.capabilities.clone(),
            parameters,
            partition,
            birth,
            full_fences,
            doorbell,
            doorbell_file,
            registers: Arc::new(registers),
            registers_file,
            woken,
            wakeup_and_line,
            timer,
            timer_is_set: false,
            unannounced: false,
            wakeup_broken: false,
            peers: AddressVector::new(address.node),
            recent: None,
            active: Vec::new(),
            turn: 0,
            batches: Vec::new(),
            waits_for_room: Vec::new(),
            leaving: Vec::new(),
            local: LocalQueue::new(),
            grants: Grants::new(u32::from_le_bytes([a, b, c, d])),
            regions: Arc::new(AtomicUsize::new(0)),
            joined: 0,
            members: (0..Group::COUNT).map(|_| None).collect(),
            client,
            ticket: 1,
            requests: Requests::default(),
            unread: false,
            adaptive_wait: AdaptiveWait::new(spins, parameters.yields),
            armed: false,
            polls: 0,
            #[cfg(any(test, feature = "test-doors"))]
            vanished: false,
        })
    }
}

fn no_broker(error: BrokerError) -> OpenError {
    OpenError::NoBroker { reason: error.to_string() }
}

fn no_memory(error: SegmentError) -> OpenError {
    match error {
        SegmentError::Os { call, errno, .. } => OpenError::Os { call, errno },
        _ => OpenError::Os { call: "memfd_create", errno: weft_fabric::errno::EINVAL },
    }
}

fn ask_open(
    client: &mut dyn Client,
    open: Open,
    files: &[std::os::fd::BorrowedFd<'_>],
) -> Result<(EndpointAddress, u64), OpenError> {
    let received = client.call(open.into(), open.ticket, files).map_err(no_broker)?;
    let EndpointControl::Reply(reply) = received.message else {
        return Err(no_broker(BrokerError::InvalidAnswer));
    };
    match reply.status {
        status::DONE => {
            let address = address_in(reply.first);
            if address.vpid.0 >= crate::wakeup::VPIDS_MAX {
                return Err(no_broker(BrokerError::InvalidAnswer));
            }
            Ok((address, reply.second))
        }
        status::IN_USE => {
            // The broker alone knows the number of its node. The VPID is the one asked for.
            let node = address_in(reply.first).node;
            Err(OpenError::AddressInUse(EndpointAddress::new(node, Vpid(open.vpid))))
        }
        status::EXHAUSTED => Err(OpenError::Exhausted {
            maximum: u16::try_from(reply.first).unwrap_or(crate::wakeup::VPIDS_MAX),
        }),
        status::FORBIDDEN => Err(OpenError::Forbidden { partition: open.partition }),
        _ => Err(no_broker(BrokerError::InvalidAnswer)),
    }
}

/// The address in an answer to [`Open`].
fn address_in(first: u64) -> EndpointAddress {
    let [v0, v1, n0, n1, n2, n3, ..] = first.to_le_bytes();
    let node = NodeId(u32::from_le_bytes([n0, n1, n2, n3]));
    EndpointAddress::new(node, Vpid(u16::from_le_bytes([v0, v1])))
}

impl Drop for ShmEndpoint {
    fn drop(&mut self) {
        #[cfg(any(test, feature = "test-doors"))]
        let closes = !self.vanished;
        #[cfg(not(any(test, feature = "test-doors")))]
        let closes = true;
        if closes {
            self.ticket = self.ticket.wrapping_add(1);
            let close = Close { ticket: self.ticket, vpid: self.address.vpid.0 };
            // When this fails, the broker still notices the end of the connection, only later.
            let _ = self.client.call(close.into(), self.ticket, &[]);
        }
        self.registers.set(Register::Scratch, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{Limits, local::LocalBroker};

    #[test]
    fn an_address_in_use_has_the_number_of_the_broker_s_node() {
        let broker = Arc::new(LocalBroker::new(NodeId(7), Limits::default()));
        let transport = ShmTransport::new(broker, Parameters::default());
        let options = EndpointOptions { vpid: Vpid(3), ..EndpointOptions::default() };
        let _first = transport.open(&options).expect("a fresh broker");
        let second = transport.open(&options).err();
        let address = EndpointAddress::new(NodeId(7), Vpid(3));
        assert_eq!(second, Some(OpenError::AddressInUse(address)));
    }
}
