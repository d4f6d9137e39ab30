//! Requests of endpoints, and the meaning of their answers.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use weft_fabric::{
    ConnectError, EndpointAddress, GroupError, InviteError, NodeId, OpenError, Partition,
    PartitionId, ServiceName, Ticket, Vpid,
};
use weft_wire::endpoint_control::{
    self, EndpointControl, Invitation, NO_VPID, Open, Reply, VPIDS_MAX, flags, status,
};

use crate::answers::{self, OpenedHere, PortKnown};
use crate::{BrokerError, Client};

/// A request to open an endpoint in this partition.
#[must_use]
pub fn way_into(partition: Partition) -> Open {
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
        Partition::ServiceAt(name, node) => {
            (open.flags, open.name) = (flags::SERVICE | flags::SERVICE_AT, name.padded());
            open.node = node.0;
        }
        Partition::Ticket(Ticket(secret)) => {
            (open.flags, open.invitation) = (flags::INVITATION, Invitation(secret));
        }
    }
    open
}

/// The way into a partition that a request asks for: the other direction of [`way_into`]. `None` if
/// it asks for none that there is.
pub(crate) fn way_of(open: &Open) -> Option<Partition> {
    let ways = flags::PARTITION | flags::OFFER | flags::SERVICE | flags::INVITATION;
    let partition = PartitionId(open.partition);
    let name = || ServiceName::of_padded(open.name).ok();
    match open.flags & ways {
        0 => Some(Partition::OfUser),
        flags::PARTITION => Some(Partition::Numbered(partition)),
        way if way == flags::PARTITION | flags::OFFER => {
            Some(Partition::Offered(partition, name()?))
        }
        flags::SERVICE if open.flags & flags::SERVICE_AT != 0 => {
            Some(Partition::ServiceAt(name()?, NodeId(open.node)))
        }
        flags::SERVICE => Some(Partition::Service(name()?)),
        flags::INVITATION => Some(Partition::Ticket(Ticket(open.invitation.0))),
        _ => None,
    }
}

/// The status that tells why nobody comes in: the other direction of `refusal`.
pub(crate) fn status_of(error: &OpenError) -> u16 {
    match error {
        OpenError::Forbidden { .. } => status::FORBIDDEN,
        OpenError::DefaultPartition => status::DEFAULT_PARTITION,
        OpenError::NameTaken { .. } => status::NAME_TAKEN,
        OpenError::OfferForbidden { .. } => status::OFFER_FORBIDDEN,
        OpenError::NotOffered { .. } => status::NOT_OFFERED,
        OpenError::ServiceForbidden { .. } => status::SERVICE_FORBIDDEN,
        OpenError::InvalidTicket => status::NOT_INVITED,
        _ => status::INVALID,
    }
}

/// The outcome of a request to open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The address of the endpoint.
    pub address: EndpointAddress,
    /// Its partition.
    pub partition: PartitionId,
    /// The endpoint that offered the service or gave the ticket.
    pub host: Option<EndpointAddress>,
}

/// Opens an endpoint. `open` is made by [`way_into`] of `partition`.
///
/// # Errors
/// [`OpenError`].
pub fn open(
    client: &mut dyn Client,
    open: Open,
    partition: Partition,
    files: &[BorrowedFd<'_>],
) -> Result<Opened, OpenError> {
    let received = client.call(open.into(), open.ticket, files).map_err(no_broker)?;
    let invalid = || no_broker(BrokerError::InvalidAnswer);
    let opened = match received.message {
        EndpointControl::Reply(reply) if reply.status == status::DONE => {
            let OpenedHere { address, partition, host } = OpenedHere::of(&reply);
            Opened { address, partition, host }
        }
        EndpointControl::Reply(reply) => return Err(refusal(reply, open, partition)),
        EndpointControl::Opened(opened) => opened_of(&opened),
        _ => return Err(invalid()),
    };
    if opened.address.vpid.0 >= VPIDS_MAX {
        return Err(invalid());
    }
    let host = opened.host.filter(|host| host.vpid.0 != NO_VPID);
    Ok(Opened { host, ..opened })
}

fn opened_of(opened: &endpoint_control::Opened) -> Opened {
    let host = EndpointAddress::new(NodeId(opened.host_node), Vpid(opened.host));
    Opened {
        address: EndpointAddress::new(NodeId(opened.node), Vpid(opened.vpid)),
        partition: PartitionId(opened.partition),
        host: Some(host),
    }
}

/// Why the broker did not open an endpoint.
fn refusal(reply: Reply, open: Open, partition: Partition) -> OpenError {
    match (reply.status, partition) {
        (status::IN_USE, _) => {
            // The broker alone knows the number of its node. The VPID is the one asked for.
            let node = answers::taken(&reply).node;
            OpenError::AddressInUse(EndpointAddress::new(node, Vpid(open.vpid)))
        }
        (status::EXHAUSTED, _) => OpenError::Exhausted {
            maximum: u16::try_from(answers::maximum(&reply)).unwrap_or(VPIDS_MAX),
        },
        (status::FORBIDDEN, _) => OpenError::Forbidden { partition: open.partition },
        (status::DEFAULT_PARTITION, _) => OpenError::DefaultPartition,
        (status::NAME_TAKEN, Partition::Offered(_, name)) => OpenError::NameTaken { name },
        (status::OFFER_FORBIDDEN, Partition::Offered(_, name)) => {
            OpenError::OfferForbidden { name }
        }
        (status::NOT_OFFERED, Partition::Service(name) | Partition::ServiceAt(name, _)) => {
            OpenError::NotOffered { name }
        }
        (status::SERVICE_FORBIDDEN, Partition::Service(name) | Partition::ServiceAt(name, _)) => {
            OpenError::ServiceForbidden { name }
        }
        (status::NOT_INVITED, _) => OpenError::InvalidTicket,
        _ => no_broker(BrokerError::InvalidAnswer),
    }
}

/// The outcome of a request for an invitation.
///
/// # Errors
/// [`InviteError`].
pub(crate) fn invited(reply: Reply) -> Result<(), InviteError> {
    match reply.status {
        status::DONE => Ok(()),
        status::FORBIDDEN => Err(InviteError::Forbidden),
        status::DEFAULT_PARTITION => Err(InviteError::DefaultPartition),
        status::EXHAUSTED => Err(InviteError::Exhausted { maximum: answers::maximum(&reply) }),
        _ => Err(BrokerError::InvalidAnswer.into()),
    }
}

/// The outcome of a request to join or leave a group.
///
/// # Errors
/// [`GroupError`].
pub(crate) fn group_changed(reply: &Reply) -> Result<(), GroupError> {
    match reply.status {
        status::DONE => Ok(()),
        status::NOT_FOUND => Err(GroupError::UnknownEndpoint),
        // A daemon of an earlier release says the same of an endpoint that it does not know.
        status::INVALID => {
            let reason = "it found the request not valid; open a new endpoint".to_owned();
            Err(GroupError::Broker { reason })
        }
        _ => Err(BrokerError::InvalidAnswer.into()),
    }
}

/// Why an endpoint was not introduced to the one at an address.
#[must_use]
pub fn not_introduced(to: EndpointAddress, reply: &Reply) -> ConnectError {
    match reply.status {
        status::NOT_FOUND => ConnectError::NotFound(to),
        status::EXHAUSTED => ConnectError::Exhausted { maximum: answers::maximum(reply) },
        status::PORT_ALONE => ConnectError::NetworkAlone(to),
        status::AWAY => ConnectError::Broker {
            reason: format!(
                "no way leads to node {} at present, or it is not joined; try again later",
                to.node.0
            ),
        },
        status::NO_PORT => ConnectError::Broker {
            reason: format!(
                "endpoint {to} opened no port; look there whether libfabric is installed \
                 (`weft info`), and try again"
            ),
        },
        _ => BrokerError::InvalidAnswer.into(),
    }
}

/// How long a peer of a port may be silent, as the answer to its announcement says.
pub(crate) fn silence_in(answer: &EndpointControl) -> Result<Option<Duration>, BrokerError> {
    match answer {
        EndpointControl::Reply(reply) if reply.status == status::DONE => {
            let silence_ms = PortKnown::of(reply).silence_ms;
            Ok((silence_ms > 0).then(|| Duration::from_millis(silence_ms)))
        }
        _ => Err(BrokerError::InvalidAnswer),
    }
}

/// The broker could not be asked.
#[must_use]
pub fn no_broker(error: BrokerError) -> OpenError {
    OpenError::NoBroker { reason: error.to_string() }
}
