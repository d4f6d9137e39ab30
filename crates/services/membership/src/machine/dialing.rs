//! Which addresses are dialled, and when.

use std::net::SocketAddr;
use std::time::Duration;

use weft_fabric::NodeId;

use super::{
    Admission, Connection, ConnectionId, Fault, Machine, NodeState, NodeStatus, Output, Stage,
};
use crate::key::Role;
use crate::message::Refusal;
use crate::roster::{Member, Numbering};

/// The first pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause where the other side does not answer.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The pause after a refusal, which somebody has to mend.
const PAUSE_REFUSED: Duration = Duration::from_secs(5);
/// How long the node with the lower number waits for the other one to dial.
const GRACE: Duration = Duration::from_secs(2);

/// The daemon behind a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Goal {
    /// Any daemon of the fabric.
    Seed,
    /// The node with this number.
    Node(u32),
}

/// An address to dial.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) goal: Goal,
    pub(super) address: SocketAddr,
    /// The connection that is being made, or is up.
    connection: Option<ConnectionId>,
    /// When it is dialled next.
    next: Duration,
    pause: Duration,
    /// Why the last connection ended.
    pub(super) fault: Option<Fault>,
    /// It is the address of this daemon.
    pub(super) is_self: bool,
}

impl Machine {
    /// Makes the list of targets fit the table of nodes and the own number.
    pub(super) fn set_targets(&mut self) {
        let own = self.config.own;
        let members = self.roster.iter().flat_map(|roster| &roster.members);
        let mut wanted: Vec<(Goal, SocketAddr)> = members
            .filter(|member| member.identity != own && !member.is_expelled)
            .map(|member| (Goal::Node(member.number), member.address))
            .collect();
        let named = self.names.values().filter_map(|found| found.as_ref().ok()).flatten();
        let seeds = self.config.seeds.iter().chain(named).map(|seed| (Goal::Seed, *seed));
        wanted.extend(seeds);
        self.targets.retain(|target| {
            wanted.iter().any(|(goal, address)| {
                *goal == target.goal && (*goal != Goal::Seed || *address == target.address)
            })
        });
        for (goal, address) in wanted {
            let mut targets = self.targets.iter_mut();
            let found = targets.find(|target| {
                target.goal == goal && (goal != Goal::Seed || target.address == address)
            });
            match found {
                Some(target) => target.address = address,
                None => {
                    let next = self.now + self.grace(goal);
                    let pause = PAUSE;
                    let (connection, fault, is_self) = (None, None, false);
                    self.targets.push(Target {
                        goal,
                        address,
                        connection,
                        next,
                        pause,
                        fault,
                        is_self,
                    });
                }
            }
        }
    }

    /// How long this side leaves the dialling to the other one.
    fn grace(&self, goal: Goal) -> Duration {
        match (goal, self.number) {
            (Goal::Node(number), Some(own)) if own < number => GRACE,
            _ => Duration::ZERO,
        }
    }

    /// Whether a target is to be dialled at all.
    fn is_wanted(&self, target: &Target) -> bool {
        let is_first_up = || {
            let roster = self.roster.as_ref();
            let first = roster.and_then(|roster| roster.of_identity(&roster.first));
            first.is_some_and(|first| self.is_near(first.number))
        };
        // The address of a node is dialled once, and where it is, is known best by the table.
        let is_of_node = || {
            let mut nodes = self.targets.iter().filter(|other| other.goal != Goal::Seed);
            nodes.any(|other| other.address == target.address)
        };
        match target.goal {
            _ if target.is_self || target.connection.is_some() || !self.standing.is_in() => false,
            Goal::Node(number) => {
                let admits = self.roster.as_ref().is_some_and(|roster| {
                    roster.numbering == Numbering::First
                        && roster.of_number(number).is_some_and(|one| one.identity == roster.first)
                });
                !self.is_near(number) && (self.number.is_some() || admits)
            }
            Goal::Seed => match self.config.admission {
                Admission::First | Admission::ByDirectory => false,
                Admission::ByFirst => !is_first_up() && !is_of_node(),
            },
        }
    }

    /// Whether there is a connection to a node, up or not yet.
    fn is_near(&self, number: u32) -> bool {
        let member = self.roster.as_ref().and_then(|roster| roster.of_number(number));
        let identity = member.map(|member| &member.identity);
        identity.is_some() && self.connections.values().any(|one| one.identity() == identity)
    }

    /// Whether this side dials a node just now.
    pub(super) fn is_dialing(&self, number: u32) -> bool {
        let mut targets = self.targets.iter().filter(|one| one.goal == Goal::Node(number));
        targets.any(|target| {
            let connection = target.connection.and_then(|id| self.connections.get(&id));
            connection.is_some_and(|connection| {
                matches!(connection.stage, Stage::Dialing | Stage::Proved { .. })
            })
        })
    }

    /// When the next target is to be dialled.
    pub(super) fn next_dial(&self) -> Option<Duration> {
        self.targets.iter().filter(|one| self.is_wanted(one)).map(|target| target.next).min()
    }

    /// Dials all targets whose time has come.
    pub(super) fn dial(&mut self) {
        for place in 0..self.targets.len() {
            let target = &self.targets[place];
            if target.next > self.now || !self.is_wanted(target) {
                continue;
            }
            let address = target.address;
            let id = self.add(Role::Dialer, address.to_string());
            self.targets[place].connection = Some(id);
            self.outputs.push_back(Output::Dial { connection: id, address });
        }
    }

    /// A connection ended: its target is dialled again after a pause.
    pub(super) fn schedule(&mut self, id: ConnectionId, connection: &Connection, fault: &Fault) {
        let jitter = self.random(100);
        let jitter = Duration::from_millis(jitter);
        let up = connection.up();
        for place in 0..self.targets.len() {
            let grace = self.grace(self.targets[place].goal);
            let target = &mut self.targets[place];
            let is_its_node = up.is_some_and(|number| target.goal == Goal::Node(number));
            if target.connection == Some(id) {
                target.connection = None;
            } else if !is_its_node {
                continue;
            }
            if *fault != Fault::Refused(Refusal::Duplicate) {
                target.fault = Some(fault.clone());
            }
            let pause = match fault {
                _ if is_its_node => PAUSE + grace,
                // The first one, of which it told, is dialled instead.
                Fault::Refused(Refusal::NotFirst) => PAUSE_MAX,
                Fault::Refused(Refusal::Duplicate) => PAUSE + grace,
                Fault::Refused(_) => PAUSE_REFUSED,
                Fault::Other(_) => {
                    target.pause = (target.pause * 2).min(PAUSE_MAX);
                    target.pause / 2
                }
            };
            target.next = self.now + pause + jitter;
        }
    }

    /// A node is up.
    pub(super) fn reached(&mut self, number: u32, id: ConnectionId) {
        for target in &mut self.targets {
            if target.goal == Goal::Node(number) || target.connection == Some(id) {
                (target.pause, target.fault) = (PAUSE, None);
            }
        }
    }

    /// The other end of a connection is this daemon.
    pub(super) fn is_self(&mut self, id: ConnectionId) {
        for target in self.targets.iter_mut().filter(|one| one.connection == Some(id)) {
            target.is_self = true;
        }
    }

    /// All nodes, and the own host while it has no number, for people.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeStatus> {
        let about = &self.config.about;
        let members = self.roster.iter().flat_map(|roster| &roster.members);
        let mut all: Vec<NodeStatus> = members.map(|member| self.status_of(member)).collect();
        if !self.is_in_roster() {
            let state = match self.number {
                Some(_) => NodeState::Refused(Refusal::Expelled.to_string()),
                None => self.joining(),
            };
            let (name, address) = (Some(about.name.clone()), about.address);
            all.push(NodeStatus { node: None, name, address, state });
        }
        all
    }

    fn status_of(&self, member: &Member) -> NodeStatus {
        let target = self.targets.iter().find(|one| one.goal == Goal::Node(member.number));
        let is_up = self.connections.values().any(|one| one.up() == Some(member.number));
        let state = if member.is_expelled {
            NodeState::Refused("it was expelled".to_owned())
        } else if self.number == Some(member.number) && self.is_in_roster() {
            self.own_state()
        } else if is_up {
            NodeState::Up
        } else {
            let fault = target.and_then(|target| target.fault.as_ref());
            match fault.map_or_else(|| NodeState::Down("no connection yet".to_owned()), state_of) {
                NodeState::Down(reason) => NodeState::Down(reason + self.presence(member.number)),
                other => other,
            }
        };
        NodeStatus {
            node: Some(NodeId(member.number)),
            name: Some(self.name_of(member)),
            address: member.address,
            state,
        }
    }
}

fn state_of(fault: &Fault) -> NodeState {
    match fault {
        Fault::Refused(refusal) => NodeState::Refused(refusal.to_string()),
        Fault::Other(reason) => NodeState::Down(reason.clone()),
    }
}
