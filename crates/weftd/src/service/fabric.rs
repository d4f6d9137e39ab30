//! The fabric service: commands about other hosts, and their status.
//!
//! The thread of the fabric keeps the connections ([`crate::fabric`]). Its machine answers at once.

use std::sync::Arc;
use std::time::Instant;

use weft_fabric::NodeId;
use weft_wire::control::{Control, FABRIC_KINDS, InvalidMessage, split};

use super::{Event, Manifest, Outbox, Placement, Report, Request, Service};
use crate::fabric::{Fabric, NodeState, NodeStatus, Own};
use crate::status::{EtcdStatus, FabricNodeStatus, FabricStatus};

/// The service.
pub struct FabricService {
    fabric: Option<Arc<Fabric>>,
}

impl FabricService {
    /// The service of a daemon that knows these other hosts.
    pub const fn new(fabric: Option<Arc<Fabric>>) -> Self {
        Self { fabric }
    }

    fn handle(&self, request: &Request, out: &mut Outbox) -> Result<(), InvalidMessage> {
        let Control::Expel { node } = Control::parse(&request.bytes)? else {
            let (kind, _) = split(&request.bytes)?;
            return Err(InvalidMessage::Kind { kind });
        };
        let done = match &self.fabric {
            _ if !request.from.may_command => {
                Err("only root and the daemon's own user may expel nodes".to_owned())
            }
            None => Err("the daemon serves this host alone; see fabric.listen".to_owned()),
            Some(fabric) => fabric.expel(NodeId(node)).map_err(|error| error.to_string()),
        };
        let answer = match done {
            Ok(()) => {
                out.event("expelled", request.from, || format!("node {node} was expelled"));
                Control::Done
            }
            Err(reason) => Control::Refused { token: 0, reason },
        };
        out.reply(request.from.process, &answer);
        Ok(())
    }
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
            events: &[("expelled", "A node was expelled from the fabric.")],
        }
    }

    fn handle_event(&mut self, event: Event, _now: Instant, out: &mut Outbox) {
        if let Event::Packet(request) = event
            && let Err(error) = self.handle(&request, out)
        {
            out.reject(request.from, error);
        }
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
