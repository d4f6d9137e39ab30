//! The endpoint as the broker is told of it: the requests that open it, open it again after a
//! restart, and say its port.

use weft_fabric::{EndpointAddress, NodeId, Partition, PartitionId, Vpid};
use weft_wire::endpoint_control::{Attach, EndpointControl, Open, Port, flags, status};

use super::{Opening, PortOffer};
use crate::answers::{OpenedHere, PortKnown};
use crate::calls;

/// The endpoint, for a broker that was restarted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Account {
    /// This connection opened it: the request that opens it again, but for its way into the
    /// partition, and its port if that alone leads to it.
    Opened { open: Open, partition: Partition, port: Option<PortOffer> },
    /// Another connection opened it. It has this birth, and this connection its port.
    Attached { birth: u64, port: PortOffer },
}

/// An answer to the announcement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Said {
    /// The endpoint has this address.
    At(EndpointAddress),
    /// It is not there, for this reason.
    Refused(u16),
}

/// The request that opens an endpoint.
pub(super) fn first(opening: &Opening) -> Open {
    let way = calls::way_into(opening.partition);
    Open {
        ticket: 1,
        vpid: opening.vpid.0,
        birth: opening.birth,
        slots: opening.slots,
        peers_max: u16::try_from(opening.peers_max).unwrap_or(u16::MAX),
        flags: way.flags | opening.flags,
        ..way
    }
}

impl Account {
    /// An endpoint that was opened and has come into this partition.
    pub fn opened(opening: &Opening, partition: PartitionId) -> Self {
        let again = match opening.partition {
            Partition::Offered(_, name) => Partition::Offered(partition, name),
            _ => Partition::Numbered(partition),
        };
        let open = Open { flags: opening.flags, ..first(opening) };
        Self::Opened { open, partition: again, port: None }
    }

    pub const fn attached(birth: u64, port: PortOffer) -> Self {
        Self::Attached { birth, port }
    }

    pub const fn is_attached(&self) -> bool {
        matches!(self, Self::Attached { .. })
    }

    /// Whether peers get descriptors of the endpoint.
    pub const fn has_memory(&self) -> bool {
        matches!(self, Self::Opened { port: None, .. })
    }

    /// A port alone leads to the endpoint.
    pub fn add_port(&mut self, offer: PortOffer) {
        if let Self::Opened { port, .. } = self {
            *port = Some(offer);
        }
    }

    /// The endpoint opens no port.
    pub fn refuse_port(&mut self) {
        if let Self::Opened { open, .. } = self {
            open.flags &= !flags::PORT_LATER;
        }
    }

    /// The endpoint offers its partition no more. False if it did not.
    pub fn give_up_name(&mut self) -> bool {
        let Self::Opened { partition, .. } = self else { return false };
        let Partition::Offered(number, _) = *partition else { return false };
        *partition = Partition::Numbered(number);
        true
    }

    /// The request that announces the endpoint again.
    pub fn again(&self, ticket: u32, vpid: u16) -> EndpointControl {
        match *self {
            Self::Attached { birth, port: PortOffer { depth, name } } => {
                Attach { ticket, vpid, birth, depth, name }.into()
            }
            Self::Opened { open, partition, .. } => {
                let way = calls::way_into(partition);
                let flags = way.flags | open.flags | flags::AGAIN;
                let Open { birth, slots, peers_max, .. } = open;
                Open { ticket, vpid, birth, slots, peers_max, flags, ..way }.into()
            }
        }
    }

    /// The request that says the port, if there is one.
    pub fn port(&self, ticket: u32, vpid: u16) -> Option<EndpointControl> {
        match *self {
            Self::Attached { .. } => Some(self.again(ticket, vpid)),
            Self::Opened { port, .. } => {
                let PortOffer { depth, name } = port?;
                Some(Port { ticket, vpid, depth, name }.into())
            }
        }
    }

    /// The meaning of an answer to [`Account::again`]; `None` if it is none.
    pub fn said(&self, message: &EndpointControl) -> Option<Said> {
        match message {
            EndpointControl::Opened(opened) => {
                Some(Said::At(EndpointAddress::new(NodeId(opened.node), Vpid(opened.vpid))))
            }
            EndpointControl::Reply(reply) if reply.status != status::DONE => {
                Some(Said::Refused(reply.status))
            }
            EndpointControl::Reply(reply) if self.is_attached() => {
                Some(Said::At(PortKnown::of(reply).address))
            }
            EndpointControl::Reply(reply) => Some(Said::At(OpenedHere::of(reply).address)),
            _ => None,
        }
    }
}
