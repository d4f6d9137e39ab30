//! The fabric service: commands about other hosts and about the links of a lab, and their status.
//!
//! The thread of the fabric keeps the connections ([`crate::fabric`]). Its machine answers at once,
//! but for an expulsion by etcd: the service looks again and again whether etcd has taken it, and
//! answers then. The thread of the lab ([`crate::lab`]) may take some milliseconds.
//!
//! # Invariants
//! - Each command gets one answer; an expulsion gets it after [`EXPELLED_WITHIN`] at the latest.
//! - An expulsion that is told as done is in the table.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_fabric::NodeId;
use weft_membership::{Expulsion, Identity};
use weft_wire::control::{Control, FABRIC_KINDS, InvalidMessage, split};

use self::hosts::HostsDriver;
use super::{
    Event, Manifest, NodeEvent, Outbox, Outgoing, Peer, Placement, Report, Request, Service,
};
use crate::fabric::{Fabric, NodeState, NodeStatus, Own};
use crate::hub::written;
use crate::lab::Ruler;
use crate::status::{EtcdStatus, FabricNodeStatus, FabricStatus};

mod hosts;

/// How long etcd may take for an expulsion: it may lose a member meanwhile.
pub const EXPELLED_WITHIN: Duration = Duration::from_secs(10);
/// How often the service looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Most commands that may wait.
const WAITING_MAX: usize = 64;

/// The service.
pub struct FabricService {
    fabric: Option<Arc<Fabric>>,
    ruler: Option<Arc<Ruler>>,
    hosts: Option<HostsDriver>,
    /// The hosts that are up, while the own number is not known.
    up: BTreeSet<NodeId>,
    waiting: Vec<Waiting>,
    /// When to look whether an expulsion is done.
    look: Instant,
}

/// A command that waits for etcd.
#[derive(Debug)]
struct Waiting {
    asker: Peer,
    node: u32,
    identity: Identity,
    until: Instant,
}

impl FabricService {
    /// The service of a daemon that knows these other hosts, and rules the links of this lab.
    pub fn new(fabric: Option<Arc<Fabric>>, ruler: Option<Arc<Ruler>>, now: Instant) -> Self {
        let (hosts, up, waiting, look) = (None, BTreeSet::new(), Vec::new(), now);
        let mut service = Self { fabric, ruler, hosts, up, waiting, look };
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
            for node in std::mem::take(&mut self.up) {
                self.hosts.iter_mut().for_each(|hosts| hosts.link(node, true));
            }
        }
    }

    fn handle(
        &mut self,
        request: &Request,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), InvalidMessage> {
        let from = request.from;
        match Control::parse(&request.bytes)? {
            Control::Expel { node } => self.expel(from, node, now, out),
            Control::Link { node, port, is_cut } => {
                let answer = match self.set_cut(from, (node, port), is_cut, out) {
                    Ok(()) => Control::Done,
                    Err(reason) => Control::Refused { token: 0, reason },
                };
                out.reply(from.process, &answer);
            }
            Control::Network => self.tell_network(from, out),
            _ => {
                let (kind, _) = split(&request.bytes)?;
                return Err(InvalidMessage::Kind { kind });
            }
        }
        Ok(())
    }

    fn expel(&mut self, asker: Peer, node: u32, now: Instant, out: &mut Outbox) {
        let done = match &self.fabric {
            _ if !asker.may_command => {
                Err("only root and the daemon's own user may expel nodes".to_owned())
            }
            _ if self.waiting.len() >= WAITING_MAX => {
                Err("too many expulsions are under way; try again".to_owned())
            }
            None => Err("the daemon serves this host alone; see fabric.listen".to_owned()),
            Some(fabric) => fabric.expel(NodeId(node)).map_err(|error| error.to_string()),
        };
        match done {
            Ok(Expulsion::Done) => answer(asker, node, Ok(()), out),
            Ok(Expulsion::UnderWay(identity)) => {
                self.look = now + LOOK_EVERY;
                let until = now + EXPELLED_WITHIN;
                self.waiting.push(Waiting { asker, node, identity, until });
            }
            Err(reason) => answer(asker, node, Err(reason), out),
        }
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

    fn tell_network(&self, from: Peer, out: &mut Outbox) {
        let network = match (&self.ruler, &self.hosts) {
            (Some(ruler), _) => ruler.describe(),
            (None, Some(hosts)) => {
                let nodes = self.fabric.iter().flat_map(|fabric| fabric.nodes()).map(node_status);
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

fn answer(asker: Peer, node: u32, done: Result<(), String>, out: &mut Outbox) {
    let answer = match done {
        Ok(()) => {
            out.event("expelled", asker, || format!("node {node} was expelled"));
            Control::Done
        }
        Err(reason) => Control::Refused { token: 0, reason },
    };
    out.reply(asker.process, &answer);
}

/// The reason when an expulsion is not known to be done: etcd is away, or too slow.
fn not_taken(node: u32, away: Option<String>) -> String {
    let why = away.unwrap_or_else(|| format!("no answer within {} s", EXPELLED_WITHIN.as_secs()));
    format!(
        "etcd has not taken the expulsion of node {node} ({why}). It may take it when it is back: \
         look at `weft fabric nodes` then, and expel the node again if it is still there"
    )
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
            // The node is expelled all the same.
            Event::Gone(peer) => self.waiting.retain(|one| one.asker.process != peer.process),
            Event::Ended(_) | Event::Answer(..) => {}
        }
    }

    fn handle_node(&mut self, event: NodeEvent, now: Instant, out: &mut Outbox) {
        match event {
            NodeEvent::Numbered(node) => self.numbered(node, now),
            NodeEvent::Up(node) | NodeEvent::Down(node) => {
                let is_up = matches!(event, NodeEvent::Up(_));
                match (&mut self.hosts, is_up) {
                    (Some(hosts), _) => hosts.link(node, is_up),
                    (None, true) => drop(self.up.insert(node)),
                    (None, false) => drop(self.up.remove(&node)),
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
        if let Some(hosts) = &mut self.hosts {
            hosts.tick(now, out);
        }
        self.look = now + LOOK_EVERY;
        let Some(fabric) = &self.fabric else { return };
        self.waiting.retain(|Waiting { asker, node, identity, until }| {
            let away = fabric.etcd().and_then(Result::err);
            let done = match away {
                _ if fabric.has_expelled(identity) => Ok(()),
                None if now < *until => return true,
                away => {
                    fabric.give_up_expulsion(identity);
                    Err(not_taken(*node, away))
                }
            };
            answer(*asker, *node, done, out);
            false
        });
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let look = (!self.waiting.is_empty()).then_some(self.look);
        self.hosts.as_ref().map(HostsDriver::due).into_iter().chain(look).min()
    }

    fn report(&self) -> Report {
        let fabric = self.fabric.clone();
        Box::new(move |status| status.fabric = fabric.map(|fabric| status_of(&fabric)))
    }
}

fn status_of(fabric: &Fabric) -> FabricStatus {
    let number = match fabric.own() {
        Own::Known(node) => Some(node.0),
        Own::Joining { .. } => None,
    };
    let nodes = fabric.nodes().into_iter().map(node_status).collect();
    let etcd = fabric.etcd().map(|state| EtcdStatus {
        state: if state.is_ok() { "up" } else { "away" }.to_owned(),
        reason: state.err().unwrap_or_default(),
    });
    FabricStatus { name: fabric.name().to_owned(), number, nodes, etcd }
}

fn node_status(node: NodeStatus) -> FabricNodeStatus {
    let (state, transport, reason) = match node.state {
        NodeState::Own => ("self", Some("shm"), String::new()),
        NodeState::Up => ("up", Some("ofi"), String::new()),
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
    }
}
