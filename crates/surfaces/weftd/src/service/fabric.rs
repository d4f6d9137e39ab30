//! The fabric service: commands about other hosts and about the links of a lab, and their status.
//!
//! The thread of the fabric keeps the connections ([`crate::fabric`]). Its machine answers at once,
//! but for an expulsion by etcd ([`expulsions`]). The thread of the lab ([`crate::lab`]) may take
//! some milliseconds.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use weft_fabric::NodeId;
use weft_socket::ways::{Way, Why};
use weft_wire::control::{Control, FABRIC_KINDS, InvalidMessage, split};

use self::expulsions::Expulsions;
use self::hosts::HostsDriver;
use super::paths::{Path, SharedPaths};
use super::ways::SharedWays;
use super::{
    Event, Manifest, NodeEvent, Outbox, Outgoing, Peer, Placement, Report, Request, Service,
};
use crate::fabric::{Fabric, NodeState, NodeStatus, Own};
use crate::hub::written;
use crate::lab::Ruler;
use crate::status::{
    EtcdStatus, FabricNodeStatus, FabricSeedStatus, FabricStatus, WayFigures, WayStatus,
};

mod expulsions;
mod hosts;

pub use expulsions::EXPELLED_WITHIN;

/// The service.
pub struct FabricService {
    fabric: Option<Arc<Fabric>>,
    ruler: Option<Arc<Ruler>>,
    ways: SharedWays,
    paths: SharedPaths,
    hosts: Option<HostsDriver>,
    /// The hosts whose daemons are up.
    up: BTreeSet<NodeId>,
    expulsions: Expulsions,
}

impl FabricService {
    /// The service of a daemon that knows these other hosts, and rules the links of this lab.
    pub fn new(
        fabric: Option<Arc<Fabric>>,
        ruler: Option<Arc<Ruler>>,
        (ways, paths): (SharedWays, SharedPaths),
        now: Instant,
    ) -> Self {
        let expulsions = Expulsions::new(now);
        let (hosts, up) = (None, BTreeSet::new());
        let mut service = Self { fabric, ruler, ways, paths, hosts, up, expulsions };
        if let Some(Own::Known(node)) = service.fabric.as_ref().map(|fabric| fabric.own()) {
            service.numbered(node, now);
        }
        service
    }

    /// The own number is known: this host takes part in the network of hosts.
    fn numbered(&mut self, node: NodeId, now: Instant) {
        let Some(fabric) = &self.fabric else { return };
        if self.hosts.is_none() {
            self.hosts = HostsDriver::new(Arc::clone(fabric), node, now);
            self.link_all();
        }
    }

    /// A link is up while the daemon of its host is, unless no data go there.
    fn link_all(&mut self) {
        for node in &self.up {
            let is_open = self.paths.why_cut(*node).is_none();
            self.hosts.iter_mut().for_each(|hosts| hosts.link(*node, is_open));
        }
    }

    fn handle(
        &mut self,
        request: &Request,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), InvalidMessage> {
        let from = request.from;
        let done = match Control::parse(&request.bytes)? {
            Control::Expel { node } => {
                self.expulsions.begin(self.fabric.as_deref(), (from, node), now, out);
                return Ok(());
            }
            Control::Link { node, port, is_cut } => self.set_cut(from, (node, port), is_cut, out),
            Control::Network => return self.tell_network(from, out),
            _ => {
                let (kind, _) = split(&request.bytes)?;
                return Err(InvalidMessage::Kind { kind });
            }
        };
        let answer = match done {
            Ok(()) => Control::Done,
            Err(reason) => Control::Refused { token: 0, reason },
        };
        out.reply(from.process, &answer);
        Ok(())
    }

    fn set_cut(
        &self,
        from: Peer,
        (node, port): (u32, u16),
        is_cut: bool,
        out: &mut Outbox,
    ) -> Result<(), String> {
        if !from.may_command {
            return Err("only root and the daemon's own user may cut links".to_owned());
        }
        let ruler = self.ruler.as_ref().ok_or_else(no_lab)?;
        ruler.set_cut(node, port, is_cut)?;
        out.event("link", from, || format!("port {port} of node {node}: cut is {is_cut}"));
        Ok(())
    }

    fn tell_network(&self, from: Peer, out: &mut Outbox) -> Result<(), InvalidMessage> {
        let network = match (&self.ruler, &self.hosts) {
            (Some(ruler), _) => ruler.describe(),
            (None, Some(hosts)) => {
                let nodes = self.fabric.iter().flat_map(|fabric| fabric.nodes());
                let nodes = nodes.map(|node| node_status(node, &self.paths));
                Ok(hosts.describe(nodes.collect()))
            }
            (None, None) => Err(no_network()),
        };
        let written = network.and_then(|network| {
            let text = serde_json::to_vec(&network).map_err(|error| error.to_string())?;
            written(&text).map_err(|errno| format!("no memory for the network: {errno}"))
        });
        match written {
            Ok(file) => out.send(Outgoing {
                to: from.process,
                bytes: Control::NetworkReply.emit(),
                descriptors: vec![Arc::new(file) as _],
                wakeup: None,
            }),
            Err(reason) => out.reply(from.process, &Control::Refused { token: 0, reason }),
        }
        Ok(())
    }
}

fn no_lab() -> String {
    "the daemon has no lab, whose links alone can be cut; `weft lab up` starts one".to_owned()
}

fn no_network() -> String {
    "the daemon rules no network; `weft lab up` or fabric.listen starts one, and `--topology SPEC` \
     needs none"
        .to_owned()
}

impl Service for FabricService {
    fn manifest(&self) -> Manifest {
        Manifest {
            name: "fabric",
            kinds: FABRIC_KINDS,
            placement: Placement::Thread,
            options: &[
                "fabric.listen",
                "fabric.seeds",
                "fabric.etcd",
                "fabric.etcd_ca",
                "fabric.etcd_cert",
                "fabric.etcd_key",
                "fabric.etcd_user",
                "fabric.etcd_password",
                "fabric.key",
                "fabric.name",
                "fabric.file",
                "fabric.state",
                "fabric.silence_ms",
                "fabric.provider",
                "fabric.ports",
                "fabric.device",
            ],
            events: &[
                ("expelled", "A node was expelled from the fabric."),
                ("link", "A link of the lab was cut or mended."),
            ],
        }
    }

    fn handle_event(&mut self, event: Event, now: Instant, out: &mut Outbox) {
        match event {
            Event::Packet(request) => {
                if let Err(error) = self.handle(&request, now, out) {
                    out.reject(request.from, error);
                }
            }
            Event::Gone(peer) => self.expulsions.forget(peer),
            Event::Ended(_) | Event::Answer(..) => {}
        }
    }

    fn handle_node(&mut self, event: NodeEvent, now: Instant, out: &mut Outbox) {
        match event {
            NodeEvent::Numbered(node) => self.numbered(node, now),
            NodeEvent::Up(node) | NodeEvent::Down(node) => {
                if matches!(event, NodeEvent::Up(_)) {
                    self.up.insert(node);
                } else {
                    self.up.remove(&node);
                    self.hosts.iter_mut().for_each(|hosts| hosts.link(node, false));
                }
            }
            NodeEvent::Message(node, bytes) => {
                if let Some(hosts) = &mut self.hosts {
                    hosts.receive(node, &bytes, now, out);
                }
            }
            NodeEvent::Cuts(_) => {}
        }
        self.handle_timeout(now, out);
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Outbox) {
        self.link_all();
        if let Some(hosts) = &mut self.hosts {
            hosts.tick(now, out);
        }
        if let (Some(fabric), Some(due)) = (&self.fabric, self.expulsions.due())
            && due <= now
        {
            self.expulsions.look(fabric, now, out);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let hosts = self.hosts.as_ref().map(HostsDriver::due);
        hosts.into_iter().chain(self.expulsions.due()).min()
    }

    fn report(&self) -> Report {
        let (fabric, ways, paths) = (self.fabric.clone(), self.ways.clone(), self.paths.clone());
        let wired = self.ruler.as_ref().map(|ruler| ruler.wired());
        Box::new(move |status| {
            status.wired = wired.map(|wired| (*wired).clone());
            status.fabric = fabric.map(|fabric| status_of(&fabric, &ways, &paths));
        })
    }
}

fn status_of(fabric: &Fabric, ways: &SharedWays, paths: &SharedPaths) -> FabricStatus {
    let number = match fabric.own() {
        Own::Known(node) => Some(node.0),
        Own::Joining { .. } => None,
    };
    let nodes = fabric.nodes().into_iter().map(|node| {
        let way = node.node.and_then(|node| way_status(ways, node));
        FabricNodeStatus { way, ..node_status(node, paths) }
    });
    let nodes = nodes.collect();
    let seeds = fabric.seeds_without_node().into_iter();
    let seeds = seeds.map(|(address, reason)| FabricSeedStatus { address, reason });
    let seeds = seeds.collect();
    let etcd = fabric.etcd().map(|state| EtcdStatus {
        state: if state.is_ok() { "up" } else { "away" }.to_owned(),
        reason: state.err().unwrap_or_default(),
    });
    FabricStatus { name: fabric.name().to_owned(), number, nodes, seeds, etcd }
}

/// A host is up when its daemon is and data go there and back.
fn node_status(node: NodeStatus, paths: &SharedPaths) -> FabricNodeStatus {
    let (state, transport, reason) = match node.state {
        NodeState::Own => ("self", Some("shm"), String::new()),
        NodeState::Up => match node.node.map_or(Path::Tried, |node| paths.of(node)) {
            Path::Open => ("up", Some("ofi"), String::new()),
            Path::Tried => ("trying", Some("ofi"), "the path of data is being tried".to_owned()),
            Path::Without(reason) => ("up", None, format!("its daemon alone: {reason}")),
            Path::Cut(reason) => ("unreachable", Some("ofi"), reason),
        },
        NodeState::Down(reason) => ("down", Some("ofi"), reason),
        NodeState::Joining(reason) => ("joining", None, reason),
        NodeState::Refused(reason) => ("refused", None, reason),
    };
    FabricNodeStatus {
        number: node.node.map(|node| node.0),
        name: node.name,
        address: node.address.to_string(),
        transport: transport.map(str::to_owned),
        state: state.to_owned(),
        reason,
        way: None,
    }
}

/// The way of programs to a host, as far as it was measured.
fn way_status(ways: &SharedWays, node: NodeId) -> Option<WayStatus> {
    let (way, why) = ways.lock().report(node.0, ways.at(Instant::now()))?;
    let (way, text) = (if way == Way::Tcp { "tcp" } else { "fabric" }.to_owned(), String::new());
    let status = WayStatus { way, measured: None, age_s: None, failure: text };
    Some(match why {
        Why::NotMeasured => status,
        Why::Measured(measured, age) => {
            let [tcp, fabric] = [measured.tcp, measured.fabric];
            let measured = WayFigures {
                tcp_round_trip_ns: tcp.round_trip_ns,
                fabric_round_trip_ns: fabric.round_trip_ns,
                tcp_bytes_per_s: tcp.bytes_per_s,
                fabric_bytes_per_s: fabric.bytes_per_s,
            };
            WayStatus { measured: Some(measured), age_s: Some(age.as_secs()), ..status }
        }
        Why::Failed(failure, age) => WayStatus { age_s: Some(age.as_secs()), failure, ..status },
    })
}
