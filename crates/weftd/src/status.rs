//! What the daemon says about its node, as `weft status --json` prints it.

use serde::{Deserialize, Serialize};

/// The state of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
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
    /// The shortest and the longest block, bytes, that readers on the writer's processor take from
    /// its memory, zeros for none; nothing until that was measured.
    pub block_bytes: Option<[u64; 2]>,
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
