//! The options with which an endpoint is opened.

use crate::address::{NodeId, PartitionId, Vpid};
use crate::service::{ServiceName, Ticket};

/// The options of [`crate::Transport::open`].
///
/// ```
/// use weft_fabric::{EndpointLimits, EndpointOptions, TrafficClass, Vpid};
///
/// let options = EndpointOptions {
///     vpid: Vpid(7),
///     limits: EndpointLimits { mailbox_depth: Some(1024), ..EndpointLimits::default() },
///     class: TrafficClass::Bulk,
///     ..EndpointOptions::default()
/// };
/// assert_eq!(options.limits.keys, None, "the default of the transport");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndpointOptions {
    /// The VPID wanted; [`Vpid::ANY`] stands for the next free one.
    pub vpid: Vpid,
    /// The partition, and the way into it.
    pub partition: Partition,
    /// The limits of the endpoint.
    pub limits: EndpointLimits,
    /// The class of what the endpoint sends.
    pub class: TrafficClass,
    /// The rail of the fabric, by one of the names in [`crate::Capabilities::rails`]; `None` stands
    /// for the first.
    pub rail: Option<String>,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        Self {
            vpid: Vpid::ANY,
            partition: Partition::OfUser,
            limits: EndpointLimits::default(),
            class: TrafficClass::default(),
            rail: None,
        }
    }
}

/// The partition that an endpoint is opened in, and the way into it.
///
/// All members of a partition are equal, whoever their user is: they find each other, are in its
/// groups, and may use the keys that were granted to the partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Partition {
    /// That of the user, which all programs of the user share by default.
    #[default]
    OfUser,
    /// A partition of the own user, by its number.
    Numbered(PartitionId),
    /// The same, and as long as this endpoint lives, other users may open endpoints in it by this
    /// name, if the policy of the node daemon (`daemon.services`) lets them. It must not be that
    /// of [`Partition::OfUser`], which all the user's other programs are in.
    Offered(PartitionId, ServiceName),
    /// The partition that is offered by this name: on this node, else on another that this one is
    /// joined with, the one with the lowest number.
    Service(ServiceName),
    /// The partition that is offered by this name on this node.
    ServiceAt(ServiceName, NodeId),
    /// The partition of the endpoint that gave this ticket.
    Ticket(Ticket),
}

/// The limits that an endpoint asks for. `None` stands for the default of the transport, as its
/// [`crate::Capabilities`] have it. More than the transport can do becomes what it can, and less
/// than it can do becomes the least: the capabilities of the endpoint say what it got.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EndpointLimits {
    /// Sets [`crate::Capabilities::mailbox_depth`].
    pub mailbox_depth: Option<usize>,
    /// Sets [`crate::Capabilities::operations_max`].
    pub operations: Option<usize>,
    /// Sets [`crate::Capabilities::peers_max`].
    pub peers: Option<usize>,
    /// Sets [`crate::Capabilities::keys_max`].
    pub keys: Option<usize>,
    /// Sets [`crate::Capabilities::regions_max`].
    pub regions: Option<usize>,
}

/// The class of what an endpoint sends, and of the answers to its operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum TrafficClass {
    /// Goes before bulk, where a transport tells classes apart.
    #[default]
    Latency,
    /// Yields to latency.
    Bulk,
}
