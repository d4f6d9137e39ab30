//! The status of the node, as `weft status --json` prints it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weft_metrics::Snapshot;

/// The state of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// The node's name.
    pub node: String,
    /// Process number of the daemon.
    pub pid: u32,
    /// Version of the daemon.
    pub version: String,
    /// Seconds since the daemon started.
    pub uptime_s: u64,
    /// When this was collected, in milliseconds since 1970.
    #[serde(default)]
    pub at_ms: u64,
    /// How long collecting it took, in microseconds.
    #[serde(default)]
    pub collected_us: u64,
    /// The daemon's process.
    #[serde(default)]
    pub daemon: DaemonStatus,
    /// How bytes are copied into memory that another processor reads next; measured by the daemon.
    pub copy: String,
    /// Programs that are connected to the daemon.
    pub processes: Vec<ProcessStatus>,
    /// The counts of all programs since the daemon started, those that ended included, by name and
    /// user.
    #[serde(default)]
    pub totals: Vec<TotalStatus>,
    /// Programs that ended last.
    #[serde(default)]
    pub ended: Vec<ProcessStatus>,
    /// Listening sockets of programs under weft.
    pub listeners: Vec<ListenerStatus>,
    /// Connections with both ends on the fabric.
    pub connections: Vec<ConnectionStatus>,
    /// Endpoints of the fabric.
    #[serde(default)]
    pub endpoints: Vec<EndpointStatus>,
    /// Endpoints that closed last, each with its number among all that did.
    #[serde(skip)]
    pub closed_endpoints: Vec<(u64, EndpointStatus)>,
    /// Offered ends of connections whose other end has not been offered.
    pub waiting: usize,
    /// Ethernet devices.
    #[serde(default)]
    pub devices: Vec<DeviceStatus>,
    /// The nodes and links of the lab; `None` if there is none.
    #[serde(default)]
    pub wired: Option<WiredStatus>,
    /// The other hosts; `None` for a daemon that serves its host alone.
    #[serde(default)]
    pub fabric: Option<FabricStatus>,
    /// Services that programs of this host and of others offer to clients.
    #[serde(default)]
    pub offers: Vec<OfferStatus>,
    /// The daemon's services.
    #[serde(default)]
    pub services: Vec<ServiceStatus>,
}

impl Status {
    /// Whether the daemon has no other hosts. One that is too busy to tell its fabric may have
    /// some.
    #[must_use]
    pub fn serves_alone(&self) -> bool {
        let is_late = |service: &ServiceStatus| service.name == "fabric" && !service.answers;
        self.fabric.is_none() && !self.services.iter().any(is_late)
    }
}

/// The process of a daemon.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// Bytes of its memory that are in use.
    pub resident_bytes: u64,
    /// Descriptors that it has open.
    pub descriptors: u64,
    /// Processor time that it used, in microseconds.
    pub cpu_us: u64,
    /// The quotas that programs share.
    pub quotas: Vec<QuotaStatus>,
}

/// A quota.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QuotaStatus {
    /// Its name.
    pub name: String,
    /// Units that are taken.
    pub used: u64,
    /// Units that there are.
    pub maximum: u64,
}

/// The nodes and links of a lab.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WiredStatus {
    /// The names of the nodes.
    pub nodes: Vec<String>,
    /// The links: place and port of both ends, and whether the link is cut.
    pub links: Vec<(u32, u16, u32, u16, bool)>,
}

/// The counts of a program's connections. An end counts once, when it moves to the fabric, or when
/// it is certain that it stays on TCP.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StreamCounts {
    /// Ends of connections that moved to the fabric.
    pub fabric: u64,
    /// Ends of connections that stayed on TCP.
    pub tcp: u64,
    /// Bytes sent over the fabric.
    pub fabric_sent: u64,
    /// Bytes received over the fabric.
    pub fabric_received: u64,
    /// Bytes sent over TCP.
    pub tcp_sent: u64,
    /// Bytes received over TCP.
    pub tcp_received: u64,
    /// How many stayed on TCP, by the names of the reasons.
    pub reasons: BTreeMap<String, u64>,
}

/// A connection that stayed on TCP.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OnTcpStatus {
    /// The name of the reason.
    pub reason: String,
    /// The reason for people.
    pub why: String,
    /// When that was decided, in milliseconds since 1970.
    pub at_ms: u64,
    /// The addresses of the program's end and of the other one, if they were known.
    pub addresses: Option<(String, String)>,
}

/// The counts of all programs of one name and one user.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TotalStatus {
    /// The name; `other` for all that have no place of their own.
    pub name: String,
    /// The number of the user; `None` with `other`.
    pub uid: Option<u32>,
    /// Programs that are connected now.
    pub programs: u64,
    /// Their connections.
    pub streams: StreamCounts,
    /// Their endpoints that are open now.
    pub endpoints: u64,
    /// The registers of their endpoints, by name.
    pub registers: BTreeMap<String, u64>,
    /// How long operations of those took, of which some are timed, by the register that counts
    /// them.
    #[serde(default)]
    pub times: BTreeMap<String, TimesStatus>,
    /// From a write of the connecting end on the fabric until it read the next bytes; of each
    /// connection one in 10 ms.
    #[serde(default)]
    pub turns: TimesStatus,
    /// The work of servers and tools of weft, by service and count.
    #[serde(default)]
    pub work: BTreeMap<String, BTreeMap<String, u64>>,
}

/// Durations: the counts of a log-linear histogram, and what people want to know of it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TimesStatus {
    /// Half of them were up to this long, in nanoseconds, to a quarter.
    pub half_ns: u64,
    /// 99 of 100 were up to this long.
    pub most_ns: u64,
    /// The counts of the buckets, without the zeros at the end.
    pub counts: Vec<u64>,
    /// The sum, in nanoseconds.
    pub sum_ns: u64,
}

impl TimesStatus {
    /// The times of a histogram.
    #[must_use]
    pub fn of(seen: &Snapshot) -> Self {
        let share = |share| {
            let time = seen.quantile(share).unwrap_or_default();
            u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
        };
        Self {
            half_ns: share(0.5),
            most_ns: share(0.99),
            sum_ns: seen.sum_ns(),
            counts: seen.clone().trimmed(),
        }
    }

    /// The histogram.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.counts.clone(), self.sum_ns)
    }
}

/// A service that a program offers by a name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OfferStatus {
    /// Its name.
    pub name: String,
    /// The number of its node.
    pub node: u32,
    /// The number of its endpoint there.
    pub vpid: u16,
    /// The number of its user.
    pub user: u32,
}

/// A service of the daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Its name.
    pub name: String,
    /// False when the service was too busy to report; its part of the status is then missing.
    pub answers: bool,
    /// Packets and ends of programs that wait for the service.
    pub queued: usize,
    /// How often the service panicked. Each panic is a bug.
    pub panics: u64,
    /// The counters of the service.
    pub counters: Vec<CounterStatus>,
    /// How long it took for packets of programs: the counts of the buckets of a log-linear
    /// histogram, without the zeros at the end.
    #[serde(default)]
    pub times: Vec<u64>,
    /// The sum of those times, in nanoseconds.
    #[serde(default)]
    pub times_sum_ns: u64,
    /// The options that the service reads.
    pub options: Vec<String>,
}

/// A counter of a service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CounterStatus {
    /// Its name.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// Its meaning.
    pub help: String,
    /// Its value.
    pub value: u64,
}

/// The fabric as a daemon sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FabricStatus {
    /// Its name.
    pub name: String,
    /// The number of the own node; `None` while it was never given.
    pub number: Option<u32>,
    /// All nodes, and the own host while it has no number.
    pub nodes: Vec<FabricNodeStatus>,
    /// The addresses of `fabric.seeds` at which no node of the fabric was found.
    #[serde(default)]
    pub seeds: Vec<FabricSeedStatus>,
    /// The etcd by which hosts join; `None` if they join by a first daemon.
    #[serde(default)]
    pub etcd: Option<EtcdStatus>,
}

/// A seed at which no node of the fabric was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FabricSeedStatus {
    /// Its address.
    pub address: String,
    /// The result of the last try.
    pub reason: String,
}

/// The etcd of a fabric.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EtcdStatus {
    /// `up`, or `away`: nobody new joins, and what runs goes on.
    pub state: String,
    /// Why it is away; empty if it is not.
    pub reason: String,
}

/// A node of the fabric.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FabricNodeStatus {
    /// Its number; `None` while it has none, or it is not known.
    pub number: Option<u32>,
    /// Its name; `None` while it is not known.
    pub name: Option<String>,
    /// The address at which its daemon listens.
    pub address: String,
    /// The transport by which it is reached; `None` while it is not a node of the fabric.
    pub transport: Option<String>,
    /// `self`, `up`, `trying` (its daemon answers, and the path of data is being tried),
    /// `unreachable` (its daemon answers, and no data go there or come back), `down`, `joining` or
    /// `refused`.
    pub state: String,
    /// Why it is not up, or its daemon alone is; empty if all is well.
    pub reason: String,
    /// The way of programs to it that leave the choice to weft; `None` for the own host.
    #[serde(default)]
    pub way: Option<WayStatus>,
}

/// The way of programs to another host (`socket.between_hosts = auto`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WayStatus {
    /// `tcp` or `fabric`.
    pub way: String,
    /// The last measurement; `None` if there is none, or the last one failed.
    pub measured: Option<WayFigures>,
    /// Its age in seconds, or that of the failure; `None` before the first.
    pub age_s: Option<u64>,
    /// Why it failed; empty if it did not.
    pub failure: String,
}

/// The figures of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WayFigures {
    /// A round trip over TCP, in nanoseconds.
    pub tcp_round_trip_ns: u64,
    /// A round trip over the fabric, in nanoseconds.
    pub fabric_round_trip_ns: u64,
    /// A stream over TCP, in bytes per second.
    pub tcp_bytes_per_s: u64,
    /// A stream over the fabric, in bytes per second.
    pub fabric_bytes_per_s: u64,
}

impl WayStatus {
    /// The way and its cause, for people.
    #[must_use]
    pub fn text(&self) -> String {
        let way = &self.way;
        let ago = self.age_s.map_or_else(String::new, |age| match age {
            0..120 => format!("{age} s ago"),
            120..7200 => format!("{} min ago", age / 60),
            _ => format!("{} h ago", age / 3600),
        });
        let Some(measured) = self.measured else {
            return match self.failure.as_str() {
                "" => format!("{way} (not measured)"),
                failure => format!("{way} (not measured, tried {ago}: {failure})"),
            };
        };
        let us = |nanoseconds: u64| format!("{}.{} us", nanoseconds / 1000, nanoseconds / 100 % 10);
        let megabytes = |bytes: u64| format!("{} MB/s", bytes / 1_000_000);
        format!(
            "{way} (measured {ago}: tcp {}, {}; fabric {}, {})",
            us(measured.tcp_round_trip_ns),
            megabytes(measured.tcp_bytes_per_s),
            us(measured.fabric_round_trip_ns),
            megabytes(measured.fabric_bytes_per_s),
        )
    }
}

/// The network that the daemon's manager knows, as `weft fabric show` and its like read it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NetworkStatus {
    /// The nodes. A place is a vertex of the network.
    pub nodes: Vec<NetworkNode>,
    /// The links: place and port of both ends, and whether the link is cut.
    pub links: Vec<(u32, u16, u32, u16, bool)>,
    /// The managers: one for each part into which cut links divide the network.
    pub managers: Vec<NetworkManager>,
}

/// A node of a network.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NetworkNode {
    /// Its name.
    pub name: String,
    /// Ports, of which some may have no link.
    pub ports: u16,
    /// The number that its manager gave it.
    pub number: Option<u16>,
    /// The version of the tables that it uses.
    pub version: Option<u64>,
    /// The tables of its agent, as bits of entries.
    pub tables: NetworkTables,
    /// The host, where nodes are hosts that joined.
    #[serde(default)]
    pub host: Option<FabricNodeStatus>,
}

/// The tables of a node, as they are loaded.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NetworkTables {
    /// The plane in use: 0 or 1; `None` without tables.
    pub side: Option<u8>,
    /// The virtual channels of the base layer.
    pub base_vcs: u8,
    /// Global and local entries of the base layer and of the two planes.
    pub layers: [(Vec<u16>, Vec<u16>); 3],
    /// The ports of broadcast on the plane in use.
    pub broadcast: Vec<u16>,
}

/// A manager.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NetworkManager {
    /// The place of the node of its seat.
    pub seat: u32,
    /// The term of its lease.
    pub term: u64,
    /// `ruling`, `sweeping`, `changing`, `idle`, or `stuck`.
    pub standing: String,
    /// The version of the tables, if it is ruling.
    pub version: Option<u64>,
    /// Why it is stuck; empty otherwise.
    pub reason: String,
}

/// An Ethernet device. Each packet is counted once in each place. Bytes include the 12-byte offload
/// header of each packet.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// The node of the device.
    pub node: u32,
    /// The name of the device's network namespace; `None` for that of the daemon.
    pub namespace: Option<String>,
    /// The name of the interface.
    pub interface: String,
    /// The MAC address of the interface.
    pub mac: String,
    /// Packets read from the interface.
    pub sent: u64,
    /// Bytes of those packets.
    pub sent_bytes: u64,
    /// Packets written to the interface.
    pub received: u64,
    /// Bytes of those packets.
    pub received_bytes: u64,
    /// Packets read from the interface that went to several nodes in one message.
    pub multicast: u64,
    /// Packets for an address behind this device, or for a group that no node wants.
    pub filtered: u64,
    /// Packets for a node that cannot be reached, or for all nodes while none can.
    pub unreachable: u64,
    /// Packets that are malformed, forged or against the protocol.
    pub refused: u64,
    /// Packets from the fabric for addresses that are not behind this device.
    pub unwanted: u64,
    /// Packets that waited for a node that went, or arrived while the interface was down or after
    /// it was removed.
    pub lost: u64,
    /// The nodes that can be reached.
    pub peers: Vec<PeerStatus>,
    /// Learned addresses: MAC address, VLAN, node, seconds since the last packet from it.
    pub addresses: Vec<(String, u16, u32, u64)>,
    /// Multicast groups: MAC address, VLAN, nodes that want the group.
    pub groups: Vec<(String, u16, Vec<u32>)>,
    /// The queues. A queue is missing, with its counts, while its loop is too busy to report.
    #[serde(default)]
    pub queues: Vec<QueueStatus>,
}

impl DeviceStatus {
    /// Adds the counts of another queue of the device.
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
    /// Packets that the queue read from the interface.
    pub sent: u64,
    /// Packets that the queue wrote to the interface.
    pub received: u64,
}

/// Another node as a device sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerStatus {
    /// The number of the other node.
    pub node: u32,
    /// Packets that wait for the other node.
    pub waiting: u64,
    /// Whether one of the two nodes has memory for long packets at the other.
    pub active: bool,
}

/// A program.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Process number, from the kernel.
    pub pid: u32,
    /// User number, from the kernel.
    pub uid: u32,
    /// The name that the program gave.
    pub name: String,
    /// Its counts; `None` for a program that shows no counters, as one that has endpoints alone.
    #[serde(default)]
    pub streams: Option<StreamCounts>,
    /// Its connections that stayed on TCP last.
    #[serde(default)]
    pub on_tcp: Vec<OnTcpStatus>,
    /// Its work, as [`TotalStatus::work`] has it.
    #[serde(default)]
    pub work: BTreeMap<String, BTreeMap<String, u64>>,
    /// When it ended, in milliseconds since 1970; `None` while it runs.
    #[serde(default)]
    pub ended_ms: Option<u64>,
}

/// A listening socket.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// The process that listens.
    pub pid: u32,
    /// The address at which it listens.
    pub address: String,
}

/// A connection on the fabric.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// The address of the accepting end.
    pub server: String,
    /// The address of the connecting end.
    pub client: String,
    /// The process that accepted the connection.
    pub server_pid: u32,
    /// The process that opened the connection.
    pub client_pid: u32,
    /// Bytes the server sent over the fabric.
    pub bytes_from_server: u64,
    /// Bytes the client sent over the fabric.
    pub bytes_from_client: u64,
}

/// An endpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// The VPID of the endpoint.
    pub vpid: u16,
    /// The process that opened it.
    pub pid: u32,
    /// The number of peers that the endpoint is paired with.
    pub peers: usize,
    /// Its registers by name, over shared memory and libfabric together.
    #[serde(default)]
    pub registers: BTreeMap<String, u64>,
    /// How long its operations took, as [`TotalStatus::times`] has them.
    #[serde(default)]
    pub times: BTreeMap<String, TimesStatus>,
}
