//! Layer 4: the node daemon, as a library of the `weft` command.
//!
//! One daemon per node finds the two ends of connections, brokers endpoints and passes memory. It
//! is never on the data path, so connections outlive it. [`serve`] runs the daemon; the `weft`
//! command talks to it through [`client`]. Source: design of the shadow socket in
//! EXTOLL-THESIS#5.5.2.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "layer 4 owns clocks and threads")]

use std::path::PathBuf;

mod calibration;
pub mod client;
mod complaints;
mod ether;
mod evidence;
mod fabric;
mod hub;
mod intake;
mod kernel;
mod lab;
mod ledger;
mod measuring;
pub mod metrics;
mod networks;
mod observing;
mod place;
mod programs;
mod quota;
mod reports;
mod server;
mod service;
mod status;
mod stopped;
mod supervisor;
mod trying;
mod unread;
mod users;
mod watching;

pub use ether::{DeviceSpec, INTERFACE, MTU_MAX, MTU_MIN};
pub use fabric::{
    Fabric, FabricConfig, FabricEvent, FabricUser, NodeAbout, NodeState, NodeStatus, NotSent, Own,
};
pub use observing::{snapshot, token, token_file};
pub use server::serve;
pub use status::{
    ConnectionStatus, CounterStatus, DaemonStatus, DeviceStatus, EndpointStatus, EtcdStatus,
    FabricNodeStatus, FabricSeedStatus, FabricStatus, ListenerStatus, NetworkManager, NetworkNode,
    NetworkStatus, NetworkTables, OfferStatus, OnTcpStatus, PeerStatus, ProcessStatus, QueueStatus,
    QuotaStatus, ServiceStatus, Status, StreamCounts, TotalStatus, WayFigures, WayStatus,
    WiredStatus,
};
pub use users::Users;
pub use weft_ether::Reach;

/// The configuration of a daemon.
#[derive(Clone, Debug)]
pub struct Config {
    /// The control socket.
    pub socket: PathBuf,
    /// The node's name.
    pub node: String,
    /// The options in force.
    pub options: weft_options::Options,
    /// Whether the daemon reports on standard error that it is ready.
    pub foreground: bool,
    /// Ethernet devices to serve.
    pub devices: Vec<DeviceSpec>,
    /// The links between the nodes of a lab, some of which may be cut; `None` if there is no lab.
    pub links: Option<weft_topology::Graph>,
}
