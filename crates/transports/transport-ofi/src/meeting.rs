//! Meetings of endpoints at the broker: the port that each says, and the peer that it is told of.
//!
//! Invariant: two ends whose packets have different versions do not meet.

use weft_broker::BrokerError;
use weft_broker::conversation::PortOffer;
use weft_fabric::{ConnectError, EndpointAddress, NodeId, OpenError, Vpid};
use weft_wire::endpoint_control::{Met, PortName};
use weft_wire::versions::PACKETS;

/// A new pair, as each of its ends is told of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Introduction {
    /// The peer's address.
    pub address: EndpointAddress,
    /// The name of its port.
    pub name: Vec<u8>,
    /// The secret that both ends show each other.
    pub secret: [u8; 16],
    /// The messages that fit in its mailbox.
    pub mailbox_depth: usize,
    /// Whether this end greets first. The other waits for the greeting: of two connections that are
    /// opened at the same time some providers lose one, with what went over it.
    pub greets_first: bool,
}

/// A pair that is told to a broker that was restarted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Known {
    pub address: EndpointAddress,
    pub secret: [u8; 16],
    pub greets_first: bool,
}

/// The address of the peer of a meeting.
pub(crate) fn peer_of(met: &Met) -> EndpointAddress {
    EndpointAddress::new(NodeId(met.node), Vpid(met.peer))
}

impl Introduction {
    /// The pair that the broker made.
    ///
    /// # Errors
    /// The two ends would not understand each other.
    pub fn of(met: &Met) -> Result<Self, ConnectError> {
        Ok(Self {
            address: peer_of(met),
            name: name_in(met.name.bytes().unwrap_or_default())?.to_vec(),
            secret: met.secret.0,
            mailbox_depth: usize::try_from(met.depth).unwrap_or(usize::MAX),
            greets_first: met.greets_first != 0,
        })
    }
}

/// A port as other endpoints are told of it: the version of its packets, and the provider's name.
pub(crate) fn offer(name: &[u8], mailbox_depth: usize) -> Result<PortOffer, OpenError> {
    let with_version = [&PACKETS.to_le_bytes(), name].concat();
    let name = PortName::of(&with_version).ok_or_else(|| OpenError::Provider {
        reason: format!("its port has a name of {} bytes", name.len()),
    })?;
    Ok(PortOffer { depth: u32::try_from(mailbox_depth).unwrap_or(u32::MAX), name })
}

/// The provider's name of a peer's port.
///
/// # Errors
/// The peer has another version of the packets, or its name is none.
fn name_in(told: &[u8]) -> Result<&[u8], ConnectError> {
    let (version, name) = told.split_first_chunk().ok_or(BrokerError::InvalidAnswer)?;
    let version = u16::from_le_bytes(*version);
    if version == PACKETS {
        return Ok(name);
    }
    let older = if version < PACKETS { "there" } else { "here" };
    Err(ConnectError::Broker {
        reason: format!(
            "the two releases of weft do not work together: the peer's packets have version \
             {version}, and those of this program {PACKETS}; update weft {older}, and start that \
             program anew"
        ),
    })
}

#[cfg(test)]
#[path = "meeting_tests.rs"]
mod tests;
