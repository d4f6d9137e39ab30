//! The transport: it opens endpoints at a broker.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use rustix::io::Errno;
use weft_fabric::{
    Capabilities, EndpointAddress, EndpointOptions, NodeId, OpenError, Partition, PartitionId,
    Register, Ticket, Transport, Vpid,
};
use weft_memory::SegmentError;
use weft_sync::{AdaptiveWait, fence};
use weft_wire::endpoint_control::{
    Close, EndpointControl, Invitation, NO_VPID, Open, Reply, flags, status,
};

use crate::address_vector::AddressVector;
use crate::attr::Parameters;
use crate::completion::LocalQueue;
use crate::doorbell::Doorbell;
use crate::endpoint::ShmEndpoint;
use crate::greeting::Greeting;
use crate::groups::Groups;
use crate::memory::Grants;
use crate::moves::Moves;
use crate::partings::Partings;
use crate::recent::Recently;
use crate::registers::Registers;
use crate::requests::Requests;
use crate::sharing::Granter;
use crate::sys;
use crate::ways::{Initiated, Sign};
use weft_broker::{BrokerError, Client, Connector};

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
        let capabilities = self.parameters.limited(&options.limits);
        let capabilities = capabilities.on_rail(options.rail.as_deref())?;
        let mut client = self.broker.client().map_err(no_broker)?;
        let (wakeup, woken) = sys::wakeup_socket()
            .map_err(|errno| OpenError::Os { call: "socketpair", errno: errno.raw_os_error() })?;
        let (doorbell, doorbell_file) = Doorbell::create(wakeup).map_err(no_memory)?;
        let (registers, registers_file) = Registers::create().map_err(no_memory)?;
        let full_fences = !fence::register();
        let birth = sys::random();
        let mut open = way_into(options.partition);
        (open.ticket, open.birth, open.vpid) = (1, birth, options.vpid.0);
        describe(&mut open, full_fences, &capabilities);
        let files = [doorbell_file.as_fd(), registers_file.as_fd(), doorbell.wakeup()];
        let Opened { address, partition, host } =
            ask_open(client.as_mut(), open, options.partition, &files)?;
        let (mut wakeup_and_line, mut timer) = (None, None);
        if let Some(line) = client.line() {
            let os = |call| move |errno: Errno| OpenError::Os { call, errno: errno.raw_os_error() };
            let own = sys::timer().map_err(os("timerfd_create"))?;
            let both = sys::watch(&[woken.as_fd(), line, own.as_fd()]);
            wakeup_and_line = Some(both.map_err(os("epoll_create"))?);
            timer = Some(own);
        }
        let (doorbell, registers) = (Arc::new(doorbell), Arc::new(registers));
        let granter = Arc::new(Granter::new(Arc::clone(&registers), Arc::clone(&doorbell)));
        let ring_slots = u32::try_from(capabilities.mailbox_depth).unwrap_or(u32::MAX);
        let parameters = Parameters { ring_slots, ..self.parameters };
        let offers = match options.partition {
            Partition::Offered(_, name) => Some(name),
            _ => None,
        };
        let spins = parameters.spin_us.saturating_mul(SPINS_PER_US);
        let [a, b, c, d, ..] = sys::random().to_le_bytes();
        Ok(ShmEndpoint {
            address,
            local: LocalQueue::new(capabilities.operations_max),
            capabilities,
            parameters,
            partition,
            host,
            offers,
            birth,
            full_fences,
            doorbell,
            doorbell_file,
            sign: Sign::show(&registers),
            initiated: Initiated::default(),
            registers,
            registers_file,
            woken,
            wakeup_and_line,
            timer,
            timer_is_set: false,
            greeting: Greeting::Over,
            restarted: None,
            wakeup_broken: false,
            peers: AddressVector::new(address.node),
            recently: Recently::default(),
            active: Vec::new(),
            turn: 0,
            batches: Vec::new(),
            waits_for_room: Vec::new(),
            leaving: Vec::new(),
            granter,
            grants: Grants::new(u32::from_le_bytes([a, b, c, d])),
            regions: Arc::new(AtomicUsize::new(0)),
            groups: Groups::new(),
            client,
            ticket: 1,
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

fn no_broker(error: BrokerError) -> OpenError {
    OpenError::NoBroker { reason: error.to_string() }
}

fn no_memory(error: SegmentError) -> OpenError {
    match error {
        SegmentError::Os { call, errno, .. } => OpenError::Os { call, errno },
        _ => OpenError::Os { call: "memfd_create", errno: weft_fabric::errno::EINVAL },
    }
}

/// A request to open an endpoint in this partition.
pub(crate) fn way_into(partition: Partition) -> Open {
    let mut open = Open::default();
    match partition {
        Partition::OfUser => {}
        Partition::Numbered(PartitionId(number)) => {
            (open.flags, open.partition) = (flags::PARTITION, number);
        }
        Partition::Offered(PartitionId(number), name) => {
            (open.flags, open.partition) = (flags::PARTITION | flags::OFFER, number);
            open.name = name.padded();
        }
        Partition::Service(name) => (open.flags, open.name) = (flags::SERVICE, name.padded()),
        Partition::Ticket(Ticket(secret)) => {
            (open.flags, open.invitation) = (flags::INVITATION, Invitation(secret));
        }
    }
    open
}

/// Adds what the broker tells peers of the endpoint, or bounds for it.
pub(crate) fn describe(open: &mut Open, full_fences: bool, capabilities: &Capabilities) {
    if full_fences {
        open.flags |= flags::FULL_FENCES;
    }
    open.slots = u32::try_from(capabilities.mailbox_depth).unwrap_or(u32::MAX);
    open.peers_max = u16::try_from(capabilities.peers_max).unwrap_or(u16::MAX);
}

/// The outcome of a request to open.
struct Opened {
    address: EndpointAddress,
    partition: PartitionId,
    host: Option<EndpointAddress>,
}

fn ask_open(
    client: &mut dyn Client,
    open: Open,
    partition: Partition,
    files: &[std::os::fd::BorrowedFd<'_>],
) -> Result<Opened, OpenError> {
    let received = client.call(open.into(), open.ticket, files).map_err(no_broker)?;
    let EndpointControl::Reply(reply) = received.message else {
        return Err(no_broker(BrokerError::InvalidAnswer));
    };
    if reply.status != status::DONE {
        return Err(refusal(reply, open, partition));
    }
    let address = address_in(reply.first);
    if address.vpid.0 >= crate::wakeup::VPIDS_MAX {
        return Err(no_broker(BrokerError::InvalidAnswer));
    }
    let [.., h0, h1] = reply.first.to_le_bytes();
    let host = u16::from_le_bytes([h0, h1]);
    let host = (host != NO_VPID).then(|| EndpointAddress::new(address.node, Vpid(host)));
    Ok(Opened { address, partition: PartitionId(reply.second), host })
}

/// Why the broker did not open an endpoint.
fn refusal(reply: Reply, open: Open, partition: Partition) -> OpenError {
    match (reply.status, partition) {
        (status::IN_USE, _) => {
            // The broker alone knows the number of its node. The VPID is the one asked for.
            let node = address_in(reply.first).node;
            OpenError::AddressInUse(EndpointAddress::new(node, Vpid(open.vpid)))
        }
        (status::EXHAUSTED, _) => OpenError::Exhausted {
            maximum: u16::try_from(reply.first).unwrap_or(crate::wakeup::VPIDS_MAX),
        },
        (status::FORBIDDEN, _) => OpenError::Forbidden { partition: open.partition },
        (status::DEFAULT_PARTITION, _) => OpenError::DefaultPartition,
        (status::NAME_TAKEN, Partition::Offered(_, name)) => OpenError::NameTaken { name },
        (status::OFFER_FORBIDDEN, Partition::Offered(_, name)) => {
            OpenError::OfferForbidden { name }
        }
        (status::NOT_OFFERED, Partition::Service(name)) => OpenError::NotOffered { name },
        (status::SERVICE_FORBIDDEN, Partition::Service(name)) => {
            OpenError::ServiceForbidden { name }
        }
        (status::NOT_INVITED, _) => OpenError::InvalidTicket,
        _ => no_broker(BrokerError::InvalidAnswer),
    }
}

/// The address in an answer to [`Open`].
pub(crate) fn address_in(first: u64) -> EndpointAddress {
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
        self.sign.take_down();
        self.part_from_writers();
        if closes {
            self.ticket = self.ticket.wrapping_add(1);
            let close = Close { ticket: self.ticket, vpid: self.address.vpid.0 };
            // When this fails, the broker still notices the end of the connection, only later.
            let _ = self.client.call(close.into(), self.ticket, &[]);
        }
        self.registers.set(Register::Scratch, 0);
        self.leave_moves();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_broker;
    use weft_broker::Limits;

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
