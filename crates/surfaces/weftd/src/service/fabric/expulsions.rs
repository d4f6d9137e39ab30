//! Expulsions that wait until etcd has taken them.
//!
//! # Invariants
//! - Each command gets one answer, after [`EXPELLED_WITHIN`] at the latest.
//! - An expulsion that is told as done is in the table.

use std::time::{Duration, Instant};

use weft_fabric::NodeId;
use weft_membership::{Expulsion, Identity};
use weft_wire::control::Control;

use crate::fabric::Fabric;
use crate::service::{Outbox, Peer};

/// How long etcd may take for an expulsion: it may lose a member meanwhile.
pub const EXPELLED_WITHIN: Duration = Duration::from_secs(10);
/// How often the service looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Most commands that may wait.
const WAITING_MAX: usize = 64;

/// The commands that wait.
#[derive(Debug)]
pub(super) struct Expulsions {
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

impl Expulsions {
    pub const fn new(now: Instant) -> Self {
        Self { waiting: Vec::new(), look: now }
    }

    /// Begins to expel a node. The answer comes at once, or from a later [`Expulsions::look`].
    pub fn begin(
        &mut self,
        fabric: Option<&Fabric>,
        (asker, node): (Peer, u32),
        now: Instant,
        out: &mut Outbox,
    ) {
        let done = match fabric {
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

    /// A program is gone. Its node is expelled all the same.
    pub fn forget(&mut self, gone: Peer) {
        self.waiting.retain(|one| one.asker.process != gone.process);
    }

    /// Answers those that are done, or that etcd does not take.
    pub fn look(&mut self, fabric: &Fabric, now: Instant, out: &mut Outbox) {
        self.look = now + LOOK_EVERY;
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

    /// When to look, if a command waits.
    pub fn due(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.look)
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
