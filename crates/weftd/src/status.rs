//! What the daemon says about its node, as `weft status --json` prints it.

use serde::{Deserialize, Serialize};

/// The state of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// The node's name.
    pub node: String,
    /// The daemon's process.
    pub pid: u32,
    /// The daemon's release.
    pub version: String,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// How bytes are copied into memory that another processor reads next, as measured here.
    pub copy: String,
    /// Programs that are connected to the daemon.
    pub processes: Vec<ProcessStatus>,
    /// Sockets under weft that listen.
    pub listeners: Vec<ListenerStatus>,
    /// Connections both ends of which are on the fabric.
    pub connections: Vec<ConnectionStatus>,
    /// Endpoints of the fabric.
    #[serde(default)]
    pub endpoints: Vec<EndpointStatus>,
    /// Offers whose other end has not come.
    pub waiting: usize,
    /// Ethernet devices.
    #[serde(default)]
    pub devices: Vec<DeviceStatus>,
    /// The daemon's services.
    #[serde(default)]
    pub services: Vec<ServiceStatus>,
}

/// A service of the daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Its name.
    pub name: String,
    /// It told how it is; one that is too busy is missing from the rest of the status.
    pub answers: bool,
    /// Packets and ends of programs that wait for it.
    pub queued: usize,
    /// How often it panicked, which is a bug.
    pub panics: u64,
    /// Its numbers.
    pub counters: Vec<CounterStatus>,
    /// The options that it reads.
    pub options: Vec<String>,
}

/// A number that a service tells.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CounterStatus {
    /// Its name.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// Its meaning.
    pub help: String,
    /// How much.
    pub value: u64,
}

/// An Ethernet device. Packets are counted once in each place, bytes with the 12 of their header of
/// offloads.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// The node that it belongs to.
    pub node: u16,
    /// The network namespace that it is in, if that has a name.
    pub namespace: Option<String>,
    /// The interface.
    pub interface: String,
    /// Its address.
    pub mac: String,
    /// Packets that the interface gave.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets that the interface got.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Of those that it gave, how many went to several nodes in one message.
    pub multicast: u64,
    /// For an address behind the own device, or a group that nobody wants.
    pub filtered: u64,
    /// For a node that is not there.
    pub unreachable: u64,
    /// Malformed, forged, or against the protocol.
    pub refused: u64,
    /// Came for others.
    pub unwanted: u64,
    /// Waited for a node that went, or came while the interface was off.
    pub lost: u64,
    /// The nodes that are there.
    pub peers: Vec<PeerStatus>,
    /// Learned addresses: address, VLAN, node, seconds since it was heard of.
    pub addresses: Vec<(String, u16, u16, u64)>,
    /// Groups: address, VLAN, nodes that want it.
    pub groups: Vec<(String, u16, Vec<u16>)>,
    /// Its queues; one is missing, with what it counted, while its loop is too busy to say.
    #[serde(default)]
    pub queues: Vec<QueueStatus>,
}

impl DeviceStatus {
    /// Adds what another queue of the device has done.
    pub(crate) fn add(&mut self, queue: &Self) {
        self.sent += queue.sent;
        self.sent_bytes += queue.sent_bytes;
        self.received += queue.received;
        self.received_bytes += queue.received_bytes;
        self.multicast += queue.multicast;
        self.filtered += queue.filtered;
        self.unreachable += queue.unreachable;
        self.refused += queue.refused;
        self.unwanted += queue.unwanted;
        self.lost += queue.lost;
        self.queues.extend_from_slice(&queue.queues);
        self.queues.sort_by_key(|queue| queue.queue);
        for peer in &queue.peers {
            match self.peers.iter_mut().find(|known| known.node == peer.node) {
                Some(known) => {
                    known.waiting += peer.waiting;
                    known.active |= peer.active;
                }
                None => self.peers.push(peer.clone()),
            }
        }
        self.peers.sort_by_key(|peer| peer.node);
    }
}

/// A queue of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueueStatus {
    /// Its number.
    pub queue: u8,
    /// Packets that the interface gave there.
    pub sent: u64,
    /// Packets that the interface got there.
    pub received: u64,
}

/// Another node as a device sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Which.
    pub node: u16,
    /// Packets that wait for it.
    pub waiting: u64,
    /// It has memory for long packets here, or this one has there.
    pub active: bool,
}

/// A program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Process id, as the kernel says.
    pub pid: u32,
    /// User, as the kernel says.
    pub uid: u32,
    /// Its name, as it says.
    pub name: String,
}

/// A listening socket.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// Who listens.
    pub pid: u32,
    /// Where.
    pub address: String,
}

/// A connection on the fabric.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// The address that was connected to.
    pub server: String,
    /// The address that connected.
    pub client: String,
    /// The process that accepted.
    pub server_pid: u32,
    /// The process that connected.
    pub client_pid: u32,
    /// Bytes the server sent over the fabric.
    pub bytes_from_server: u64,
    /// Bytes the client sent over the fabric.
    pub bytes_from_client: u64,
}

/// An endpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// Its number on the node.
    pub vpid: u16,
    /// The process that opened it.
    pub pid: u32,
    /// How many peers it is paired with.
    pub peers: usize,
}
