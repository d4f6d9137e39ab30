//! Opens the endpoints of ports. Only this part of the devices names a transport.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use weft_broker::{Connector, remote::RemoteBroker};
use weft_ether::{Seat, Segment};
use weft_fabric::{EndpointOptions, Transport};
use weft_transport_shm::{Parameters, ShmEndpoint, ShmTransport};

/// Slots of the ring from one peer.
const MAILBOX_SLOTS: u32 = 256;

/// The broker where the ports of a device meet others: that of the daemon at the socket `segment`,
/// or `own`.
pub fn meeting(segment: Option<&Path>, own: &Arc<dyn Connector>) -> Arc<dyn Connector> {
    match segment {
        Some(socket) => Arc::new(RemoteBroker::new(socket, "weft-ether")),
        None => Arc::clone(own),
    }
}

/// The endpoint of the port at `seat`.
///
/// # Errors
/// Names the port.
pub fn open(
    broker: &Arc<dyn Connector>,
    segment: Segment,
    seat: Seat,
) -> anyhow::Result<ShmEndpoint> {
    let Seat { node, queue } = seat;
    let parameters = Parameters { ring_slots: MAILBOX_SLOTS, ..Parameters::default() };
    let transport = ShmTransport::new(Arc::clone(broker), parameters);
    let vpid = segment
        .vpid_of(seat)
        .with_context(|| format!("there is no port number for queue {queue} of node {}", node.0))?;
    transport
        .open(&EndpointOptions { vpid, ..EndpointOptions::default() })
        .with_context(|| format!("the port of queue {queue} of node {}", node.0))
}
