//! The fabric service: commands about other hosts, and their status.
//!
//! The thread of the fabric keeps the connections ([`crate::fabric`]). Its machine answers at once,
//! but for an expulsion by etcd: the service looks again and again whether etcd has taken it, and
//! answers then.
//!
//! # Invariants
//! - Each command gets one answer, after [`EXPELLED_WITHIN`] at the latest.
//! - An expulsion that is told as done is in the table.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_fabric::NodeId;
use weft_membership::{Expulsion, Identity};
use weft_wire::control::{Control, FABRIC_KINDS, InvalidMessage, split};

use super::{Event, Manifest, Outbox, Peer, Placement, Report, Request, Service};
use crate::fabric::{Fabric, NodeState, NodeStatus, Own};
use crate::status::{EtcdStatus, FabricNodeStatus, FabricStatus};

/// How long etcd may take for an expulsion: it may lose a member meanwhile.
pub const EXPELLED_WITHIN: Duration = Duration::from_secs(10);
/// How often the service looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Most commands that may wait.
const WAITING_MAX: usize = 64;

/// The service.
pub struct FabricService {
    fabric: Option<Arc<Fabric>>,
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
    /// The service of a daemon that knows these other hosts.
    pub const fn new(fabric: Option<Arc<Fabric>>, now: Instant) -> Self {
        Self { fabric, waiting: Vec::new(), look: now }
    }

    fn handle(
        &mut self,
        request: &Request,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), InvalidMessage> {
        let Control::Expel { node } = Control::parse(&request.bytes)? else {
            let (kind, _) = split(&request.bytes)?;
            return Err(InvalidMessage::Kind { kind });
        };
        let asker = request.from;
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
        Ok(())
    }
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
            events: &[("expelled", "A node was expelled from the fabric.")],
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

    fn handle_timeout(&mut self, now: Instant, out: &mut Outbox) {
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
        (!self.waiting.is_empty()).then_some(self.look)
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
