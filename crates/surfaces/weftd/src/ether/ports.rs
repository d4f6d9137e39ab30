//! Opens the endpoints of ports. Only this part of the devices names a transport.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use weft_broker::{Connector, remote::RemoteBroker};
use weft_ether::{Seat, Segment};
use weft_fabric::{Endpoint, EndpointOptions, Partition, PartitionId, Transport, Vpid};
use weft_open::{FarEndpoint, FarTransport, NearEndpoint, Opening, OpeningError, Source};
use weft_options::Options;

/// The name under which a daemon lists the endpoints.
const NAME: &str = "weft-ether";

/// Slots of the ring from one peer.
const MAILBOX_SLOTS: u32 = 256;

/// The broker where the ports of a device meet others: that of the daemon at the socket `segment`,
/// or `own`.
pub fn meeting(segment: Option<&Path>, own: &Arc<dyn Connector>) -> Arc<dyn Connector> {
    match segment {
        Some(socket) => Arc::new(RemoteBroker::new(socket, NAME)),
        None => Arc::clone(own),
    }
}

/// The VPID of the port of queue 0 in a fabric of hosts, the same on each (EXTOLL-THESIS#5.4.6
/// reserves one). It is in the upper part of the usual 256, which programs get last.
const FABRIC_VPID: Vpid = Vpid(224);

/// The partition of the ports in a fabric of hosts. They greet all members of theirs, and in that
/// of the user those would be the endpoints of programs, which take a greeting for nonsense, and
/// load libfabric for it.
fn fabric_partition() -> Partition {
    const PORTS: u32 = 1;
    let user = rustix::process::geteuid().as_raw();
    Partition::Numbered(PartitionId::of_user_named(user, PORTS))
}

/// The addresses of ports in a fabric of hosts, of which each has one device.
pub const fn fabric_segment(queues: u8) -> Segment {
    Segment::Fabric { vpid: FABRIC_VPID, queues }
}

/// The transport of ports in a fabric of hosts, at the daemon with this socket. Loads libfabric.
///
/// # Errors
/// There is no libfabric, or no provider.
pub fn between_hosts(socket: &Path, options: &Options) -> Result<FarTransport, OpeningError> {
    let opening = Opening::with(NAME, options).at(socket);
    let listen = options.fabric_listen();
    let source = listen.map_or(Source::Found, |listen| Source::Address(listen.ip()));
    opening.source(source).far()
}

/// The endpoint of the port at `seat` in a fabric of hosts.
///
/// # Errors
/// Names the port.
pub fn open_on_fabric(
    transport: &FarTransport,
    segment: Segment,
    seat: Seat,
) -> anyhow::Result<FarEndpoint> {
    let endpoint = open_at(transport, segment, seat, fabric_partition())?;
    let node = endpoint.address().node;
    ensure!(
        node == seat.node,
        "this host has the number {} by now, and endpoints that programs opened before have \
         {node}; end them",
        seat.node
    );
    Ok(endpoint)
}

/// The endpoint of the port at `seat`.
///
/// # Errors
/// Names the port.
pub fn open(
    broker: &Arc<dyn Connector>,
    segment: Segment,
    seat: Seat,
) -> anyhow::Result<NearEndpoint> {
    let opening = Opening::with(NAME, &Options::default()).by(Arc::clone(broker));
    open_at(&opening.ring_slots(MAILBOX_SLOTS).near()?, segment, seat, Partition::OfUser)
}

fn open_at<T: Transport>(
    transport: &T,
    segment: Segment,
    seat: Seat,
    partition: Partition,
) -> anyhow::Result<T::Endpoint> {
    let Seat { node, queue } = seat;
    let vpid = segment
        .vpid_of(seat)
        .with_context(|| format!("there is no port number for queue {queue} of node {}", node.0))?;
    transport
        .open(&EndpointOptions { vpid, partition, ..EndpointOptions::default() })
        .with_context(|| format!("the port of queue {queue} of node {}", node.0))
}
