//! The endpoints of other nodes that have ports, and the messages between the brokers of nodes.
//!
//! Each broker tells the others which endpoints it has: all when a node joins, and what changes
//! from then on. So questions about partitions and groups are answered at home, and a meeting alone
//! needs the other node. What a node says of its endpoints and their partitions is believed: it has
//! the key of the fabric.
//!
//! # Invariants
//! - A node that is away for a while ends no meeting: the ports notice by themselves if their peers
//!   are gone. When it is back, the meetings end that it does not know.
//! - A node says of its own endpoints alone. It has as many as a node can have.
//! - Each question to a node ends: by its answer, or when the node is away.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weft_fabric::{EndpointAddress, Group, NodeId, PartitionId, ServiceName, Vpid};
use weft_wire::endpoint_control::{NO_VPID, PortName, VPIDS_MAX, status};

use crate::ProcessId;
use crate::guests::Guest;
use crate::later::Who;
use crate::ports::OpenPort;
use crate::state::{Answer, Outgoing, State};
use crate::tables::VpidSet;

/// Endpoints in one message of a list.
const LISTED_AT_ONCE: usize = 400;
/// Questions to one node that may wait for their answers.
const WAITING_MAX: usize = 4096;

/// A message between the brokers of two nodes. Its form belongs to the versions that the daemons
/// tell each other ([`weft_wire::versions`]).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeMessage {
    /// A part of the list of all endpoints with ports. `is_last` ends the list.
    List {
        /// The endpoints.
        endpoints: Vec<Listed>,
        /// No further part follows.
        is_last: bool,
        /// Endpoints from before a restart of this broker have had their time to come back.
        is_settled: bool,
    },
    /// A part of the list of all meetings with endpoints of the other node, those that are asked
    /// for included. It comes behind a list of endpoints that is settled.
    Meetings {
        /// The endpoint, its peer, and the secret.
        meetings: Vec<(u16, u16, [u8; 16])>,
        /// No further part follows.
        is_last: bool,
        /// The sender wants the other's, too.
        asks: bool,
    },
    /// An endpoint is new, or something about it has changed.
    Changed(Listed),
    /// An endpoint has ended.
    Ended {
        /// Its VPID.
        vpid: u16,
    },
    /// An endpoint asks for a meeting.
    Meet {
        /// Identifies the question in its answer.
        number: u64,
        /// The endpoint that asks.
        from: u16,
        /// The messages that fit in its mailbox.
        depth: u32,
        /// The name of its port.
        name: Vec<u8>,
        /// The endpoint asked for.
        to: u16,
        /// The secret of the meeting.
        secret: [u8; 16],
    },
    /// The answer: the depth of the mailbox and the name of the port.
    Met {
        /// The number of the question.
        number: u64,
        /// The port, or why there is no meeting.
        outcome: Result<(u32, Vec<u8>), Refusal>,
    },
    /// An endpoint shows a ticket. The invitation is used up with a good answer.
    Ticket {
        /// Identifies the question in its answer.
        number: u64,
        /// The ticket.
        ticket: [u8; 16],
    },
    /// The answer: the partition, and the VPID of the endpoint that invited.
    Invited {
        /// The number of the question.
        number: u64,
        /// `None` for a ticket that is not good.
        host: Option<(u64, u16)>,
    },
    /// An endpoint has ended a meeting.
    Part {
        /// That endpoint.
        from: u16,
        /// Its peer.
        to: u16,
        /// The secret of the meeting.
        secret: [u8; 16],
    },
    /// An endpoint hears nothing of its peer. There is an answer if that is stopped.
    Doubt {
        /// That endpoint.
        from: u16,
        /// Its peer.
        to: u16,
        /// The secret of the meeting.
        secret: [u8; 16],
    },
    /// The process of an endpoint is stopped, by a signal, a debugger or a freezer.
    Stands {
        /// That endpoint.
        from: u16,
        /// Its peer, which asked.
        to: u16,
        /// The secret of the meeting.
        secret: [u8; 16],
    },
}

impl NodeMessage {
    /// The bytes of the message, at most some 40,000.
    ///
    /// # Panics
    /// Never: each message can be written.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("each message can be written")
    }

    /// The message of these bytes.
    ///
    /// # Errors
    /// [`InvalidNodeMessage`].
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidNodeMessage> {
        let (message, rest) = postcard::take_from_bytes(bytes)
            .map_err(|error| InvalidNodeMessage { reason: error.to_string() })?;
        if rest.is_empty() {
            return Ok(message);
        }
        let reason = format!("{} bytes follow it", rest.len());
        Err(InvalidNodeMessage { reason })
    }
}

/// Bytes of another node that are no message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a message between brokers: {reason}")]
pub struct InvalidNodeMessage {
    reason: String,
}

/// Why there is no meeting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Refusal {
    /// The partition has no such endpoint with a port.
    NotFound,
    /// The endpoint has its maximum of peers.
    Full(u32),
    /// The endpoint did not open its port.
    NoPort,
}

impl Refusal {
    /// The answer to the endpoint that asked.
    pub(crate) fn answer(self) -> Answer {
        match self {
            Self::NotFound => Answer::refused(status::NOT_FOUND),
            Self::Full(maximum) => Answer::full(maximum as usize),
            Self::NoPort => Answer::refused(status::NO_PORT),
        }
    }
}

/// An endpoint, as its broker tells others of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Listed {
    /// Its VPID.
    pub vpid: u16,
    /// Its partition.
    pub partition: u64,
    /// One bit for each group that it joined.
    pub groups: u64,
    /// The number of its user.
    pub user: u32,
    /// The name by which it offers its partition.
    pub offers: Option<String>,
}

/// A service that an endpoint offers by a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer<'a> {
    /// Its name.
    pub name: &'a str,
    /// The endpoint.
    pub address: EndpointAddress,
    /// The number of its user.
    pub user: u32,
    /// Its partition.
    pub partition: PartitionId,
}

impl Listed {
    /// Whether a broker could say this of an endpoint.
    fn is_valid(&self) -> bool {
        let is_name = |name: &String| ServiceName::new(name).is_ok();
        self.vpid < VPIDS_MAX && self.offers.as_ref().is_none_or(is_name)
    }
}

/// A question of an endpoint that waits for the answer of another node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub process: ProcessId,
    pub vpid: u16,
    pub ticket: u32,
    pub to: EndpointAddress,
    pub secret: [u8; 16],
}

/// Another node.
#[derive(Debug, Default)]
struct Node {
    /// It is joined at present.
    is_up: bool,
    endpoints: BTreeMap<u16, Listed>,
    /// The parts of its list that have come. The last one replaces `endpoints`.
    arriving: BTreeMap<u16, Listed>,
    /// The parts of its list of meetings that have come.
    meetings: BTreeSet<(u16, u16, [u8; 16])>,
    waiting: BTreeMap<u64, Waiting>,
}

/// The other nodes.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    nodes: BTreeMap<NodeId, Node>,
    number: u64,
    /// Endpoints that wait for an answer about their ticket.
    pub(crate) guests: BTreeMap<u64, Guest>,
    /// Messages that were not taken yet.
    unsent: Vec<(NodeId, NodeMessage)>,
}

impl State {
    /// Takes the messages to other nodes, in the order in which they have to be sent.
    pub fn take_node_messages(&mut self) -> Vec<(NodeId, NodeMessage)> {
        std::mem::take(&mut self.nodes.unsent)
    }

    /// A node has joined, or is back.
    pub fn node_up(&mut self, node: NodeId) {
        if node != self.node {
            let known = self.nodes.nodes.entry(node).or_default();
            (known.is_up, known.arriving) = (true, BTreeMap::new());
            known.meetings = BTreeSet::new();
            self.forget_callers(node);
            self.list_to(node);
            if self.is_settled {
                self.list_meetings_to(node, false);
            }
        }
    }

    /// A node is away.
    pub fn node_down(&mut self, node: NodeId, out: &mut Vec<Outgoing>) {
        let Some(known) = self.nodes.nodes.get_mut(&node) else { return };
        known.is_up = false;
        for waiting in std::mem::take(&mut known.waiting).into_values() {
            self.refuse_waiting(waiting, Answer::refused(status::AWAY), out);
        }
        self.forget_callers(node);
        self.nobody_invites(node, out);
    }

    /// Handles a message of another node at `now`, by the clock of [`State::handle`].
    pub fn node_says(
        &mut self,
        node: NodeId,
        message: NodeMessage,
        now: Duration,
        out: &mut Vec<Outgoing>,
    ) {
        if !self.nodes.nodes.get(&node).is_some_and(|known| known.is_up) {
            return;
        }
        match message {
            NodeMessage::List { endpoints, is_last, is_settled } => {
                let Some(known) = self.nodes.nodes.get_mut(&node) else { return };
                let valid = endpoints.into_iter().filter(Listed::is_valid);
                known.arriving.extend(valid.map(|listed| (listed.vpid, listed)));
                if is_last {
                    self.take_list(node, is_settled, out);
                }
            }
            NodeMessage::Meetings { meetings, is_last, asks } => {
                let Some(known) = self.nodes.nodes.get_mut(&node) else { return };
                if known.meetings.len() < usize::from(VPIDS_MAX) * LISTED_AT_ONCE {
                    known.meetings.extend(meetings);
                }
                if is_last {
                    self.take_meetings(node, out);
                    if asks {
                        self.list_meetings_to(node, false);
                    }
                }
            }
            NodeMessage::Changed(listed) => self.changed(node, listed, out),
            NodeMessage::Ended { vpid } => self.ended(node, vpid, out),
            NodeMessage::Meet { number, from, depth, name, to, secret } => {
                let port = PortName::of(&name).filter(|name| name.bytes().is_some());
                let port = port.map(|name| OpenPort { depth, name });
                let outcome = match port {
                    Some(port) => {
                        let who = Who::Elsewhere { node, number, from, port, secret };
                        match self.wait_for_port(to, who, self.partition_of(node, from), now, out) {
                            Ok(true) => None,
                            Ok(false) => self.asked_by_node((node, from), port, to, secret, out),
                            Err(refusal) => Some(Err(refusal)),
                        }
                    }
                    None => Some(Err(Refusal::NotFound)),
                };
                if let Some(outcome) = outcome {
                    self.tell_met_node(node, number, outcome);
                }
            }
            NodeMessage::Ticket { number, ticket } => {
                let host = self.use_ticket(ticket, now);
                self.tell_node(node, NodeMessage::Invited { number, host });
            }
            NodeMessage::Invited { number, host } => self.invited_by(node, number, host, out),
            NodeMessage::Met { number, outcome } => self.answered(node, number, outcome, out),
            NodeMessage::Part { from, to, secret } => {
                self.parted(to, EndpointAddress::new(node, Vpid(from)), Some(secret), out);
            }
            NodeMessage::Doubt { from, to, secret } => self.doubted(node, from, to, secret),
            NodeMessage::Stands { from, to, secret } => {
                self.tell_stands(to, EndpointAddress::new(node, Vpid(from)), secret, out);
            }
        }
    }

    /// Asks another node for a meeting.
    pub(crate) fn ask_node(&mut self, asker: Waiting) -> Result<(), u16> {
        let to = asker.to;
        let port = self.entry(asker.vpid).and_then(|entry| entry.port.open());
        let Some(known) = self.nodes.nodes.get_mut(&to.node) else {
            return Err(status::NOT_FOUND);
        };
        if !known.is_up {
            return Err(status::AWAY);
        }
        // The news of an endpoint that was opened just now may be on the way: its node knows it.
        let Some(port) = port else { return Err(status::NOT_FOUND) };
        if known.waiting.len() >= WAITING_MAX {
            return Err(status::AWAY);
        }
        self.nodes.number += 1;
        let number = self.nodes.number;
        known.waiting.insert(number, asker);
        let name = port.name.bytes().unwrap_or_default().to_vec();
        let Waiting { vpid: from, secret, .. } = asker;
        let (depth, to_vpid) = (port.depth, to.vpid.0);
        self.tell_node(
            to.node,
            NodeMessage::Meet { number, from, depth, name, to: to_vpid, secret },
        );
        Ok(())
    }

    /// Answers a question of another node for a meeting.
    pub(crate) fn tell_met_node(
        &mut self,
        node: NodeId,
        number: u64,
        outcome: Result<OpenPort, Refusal>,
    ) {
        let told = |port: OpenPort| {
            let name = port.name.bytes().unwrap_or_default();
            (port.depth, name.to_vec())
        };
        let outcome = outcome.map(told);
        self.tell_node(node, NodeMessage::Met { number, outcome });
    }

    /// The partition of an endpoint of another node.
    fn partition_of(&self, node: NodeId, vpid: u16) -> Option<PartitionId> {
        let listed = self.nodes.nodes.get(&node)?.endpoints.get(&vpid)?;
        Some(PartitionId(listed.partition))
    }

    /// An endpoint of another node asks for a meeting with one of this node. `None` if the other
    /// end's question to that node goes first, which answers this one.
    pub(crate) fn asked_by_node(
        &mut self,
        (node, from): (NodeId, u16),
        port: OpenPort,
        to: u16,
        secret: [u8; 16],
        out: &mut Vec<Outgoing>,
    ) -> Option<Result<OpenPort, Refusal>> {
        let (own, theirs) =
            (EndpointAddress::new(self.node, Vpid(to)), EndpointAddress::new(node, Vpid(from)));
        let known = self.nodes.nodes.get_mut(&node)?;
        let Some(partition) = known.endpoints.get(&from).map(|listed| listed.partition) else {
            return Some(Err(Refusal::NotFound));
        };
        let is_it = |(_, waiting): &(&u64, &Waiting)| waiting.vpid == to && waiting.to == theirs;
        let crossing = known.waiting.iter().find(is_it).map(|(number, _)| *number);
        if crossing.is_some() && own < theirs {
            return None;
        }
        let accepted = self.accept(theirs, PartitionId(partition), Some(port), own, secret, out);
        let known = self.nodes.nodes.get_mut(&node)?;
        if let Some(waiting) = crossing.and_then(|number| known.waiting.remove(&number)) {
            match self.entry(to).and_then(|entry| entry.met.get(&theirs)).copied() {
                Some(meeting) => self.tell_met(to, theirs, meeting, waiting.ticket, out),
                None => self.refuse_waiting(waiting, Answer::refused(status::NOT_FOUND), out),
            }
        }
        Some(accepted)
    }

    fn answered(
        &mut self,
        node: NodeId,
        number: u64,
        outcome: Result<(u32, Vec<u8>), Refusal>,
        out: &mut Vec<Outgoing>,
    ) {
        let waiting =
            self.nodes.nodes.get_mut(&node).and_then(|known| known.waiting.remove(&number));
        let Some(waiting) = waiting else { return };
        let refuse = |answer| (waiting, answer);
        let (waiting, answer) = match outcome {
            Ok((depth, name)) => match PortName::of(&name).filter(|name| name.bytes().is_some()) {
                Some(name) if self.has(waiting.process, waiting.vpid) => {
                    return self.met(waiting, OpenPort { depth, name }, out);
                }
                Some(_) => {
                    // The endpoint that asked has ended, or its port has.
                    let Waiting { vpid: from, to, secret, .. } = waiting;
                    return self.tell_node(node, NodeMessage::Part { from, to: to.vpid.0, secret });
                }
                None => refuse(Answer::refused(status::NOT_FOUND)),
            },
            Err(refusal) => refuse(refusal.answer()),
        };
        self.refuse_waiting(waiting, answer, out);
    }

    /// A number for a question.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.nodes.number += 1;
        self.nodes.number
    }

    /// The nodes that are joined.
    pub(crate) fn nodes_up(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.nodes.iter().filter(|(_, known)| known.is_up).map(|(node, _)| *node)
    }

    /// All that is offered on other nodes that are joined.
    pub(crate) fn offers_elsewhere(&self) -> impl Iterator<Item = Offer<'_>> {
        let up = self.nodes.nodes.iter().filter(|(_, known)| known.is_up);
        let all =
            up.flat_map(|(node, known)| known.endpoints.values().map(move |one| (*node, one)));
        all.filter_map(|(node, one)| {
            Some(Offer {
                name: one.offers.as_deref()?,
                address: EndpointAddress::new(node, Vpid(one.vpid)),
                user: one.user,
                partition: PartitionId(one.partition),
            })
        })
    }

    /// Sends a message to a node that is joined.
    pub(crate) fn tell_node(&mut self, node: NodeId, message: NodeMessage) {
        if self.nodes.nodes.get(&node).is_some_and(|known| known.is_up) {
            self.nodes.unsent.push((node, message));
        }
    }

    fn tell_all(&mut self, message: &NodeMessage) {
        let up = self.nodes.nodes.iter().filter(|(_, known)| known.is_up);
        let messages: Vec<_> = up.map(|(node, _)| (*node, message.clone())).collect();
        self.nodes.unsent.extend(messages);
    }

    fn listed(&self, vpid: u16) -> Option<Listed> {
        let entry = self.entry(vpid)?;
        let partition = entry.inside().filter(|_| entry.port.leads_here())?.0;
        let offers = entry.offers.map(|name| name.as_str().to_owned());
        let (groups, user) = (entry.groups, entry.uid);
        Some(Listed { vpid, partition, groups, user, offers })
    }

    /// Tells the other nodes of an endpoint that has a port.
    pub(crate) fn announce(&mut self, vpid: u16) {
        if let Some(listed) = self.listed(vpid) {
            self.tell_all(&NodeMessage::Changed(listed));
        }
    }

    /// Tells the other nodes that an endpoint has ended.
    pub(crate) fn announce_end(&mut self, vpid: u16) {
        self.tell_all(&NodeMessage::Ended { vpid });
    }

    fn list_to(&mut self, node: NodeId) {
        let all: Vec<Listed> = self.vpids().filter_map(|vpid| self.listed(vpid)).collect();
        let is_settled = self.is_settled;
        let parts = all.len().div_ceil(LISTED_AT_ONCE).max(1);
        for part in 0..parts {
            let rest = all.iter().skip(part * LISTED_AT_ONCE);
            let endpoints = rest.take(LISTED_AT_ONCE).cloned().collect();
            let is_last = part + 1 == parts;
            self.tell_node(node, NodeMessage::List { endpoints, is_last, is_settled });
        }
    }

    /// Lists the meetings for another broker: it may not have heard of the end of some.
    fn list_meetings_to(&mut self, node: NodeId, asks: bool) {
        let mut all = Vec::new();
        for vpid in self.vpids() {
            let Some(entry) = self.entry(vpid) else { continue };
            let with_it = entry.met.iter().filter(|(with, _)| with.node == node);
            all.extend(with_it.map(|(with, meeting)| (vpid, with.vpid.0, meeting.secret)));
        }
        if let Some(known) = self.nodes.nodes.get(&node) {
            let asked = known.waiting.values();
            all.extend(asked.map(|asked| (asked.vpid, asked.to.vpid.0, asked.secret)));
        }
        let parts = all.len().div_ceil(LISTED_AT_ONCE).max(1);
        for part in 0..parts {
            let rest = all.iter().skip(part * LISTED_AT_ONCE);
            let meetings = rest.take(LISTED_AT_ONCE).copied().collect();
            let is_last = part + 1 == parts;
            self.tell_node(node, NodeMessage::Meetings { meetings, is_last, asks });
        }
    }

    /// Ends the meetings that the other node does not have. One that it has shows that a guest from
    /// before a restart of this broker was in the partition of its peer: nobody else knows the
    /// secret.
    fn take_meetings(&mut self, node: NodeId, out: &mut Vec<Outgoing>) {
        let Some(known) = self.nodes.nodes.get_mut(&node) else { return };
        let theirs = std::mem::take(&mut known.meetings);
        for vpid in self.vpids() {
            let Some(entry) = self.entry(vpid) else { continue };
            let of_node = entry.met.iter().filter(|(with, _)| with.node == node);
            let (kept, lost): (Vec<_>, Vec<_>) = of_node
                .map(|(with, meeting)| (*with, meeting.secret))
                .partition(|(with, secret)| theirs.contains(&(with.vpid.0, vpid, *secret)));
            for (with, _) in lost {
                self.parted(vpid, with, None, out);
            }
            for (with, _) in kept {
                let known = self.nodes.nodes.get(&node);
                let voucher = known.and_then(|known| known.endpoints.get(&with.vpid.0));
                if let Some(Listed { user, partition, .. }) = voucher {
                    let about = (*user, PartitionId(*partition));
                    self.come_in(vpid, about, out);
                }
            }
        }
        self.remove_strangers(out);
    }

    /// Tells all nodes again, now that endpoints from before a restart had their time.
    pub(crate) fn list_to_all(&mut self) {
        let nodes: Vec<NodeId> = self.nodes.nodes.keys().copied().collect();
        for node in nodes {
            self.list_to(node);
            // Endpoints may have told of meetings that ended meanwhile.
            self.list_meetings_to(node, true);
        }
    }

    fn take_list(&mut self, node: NodeId, is_settled: bool, out: &mut Vec<Outgoing>) {
        let Some(known) = self.nodes.nodes.get_mut(&node) else { return };
        let listed = std::mem::take(&mut known.arriving);
        let mut partitions: BTreeSet<u64> = BTreeSet::new();
        partitions.extend(listed.values().map(|listed| listed.partition));
        partitions.extend(known.endpoints.values().map(|listed| listed.partition));
        if is_settled {
            known.endpoints = listed;
        } else {
            known.endpoints.extend(listed);
        }
        for partition in partitions {
            self.tell_groups(PartitionId(partition), NO_VPID, u64::MAX, out);
        }
    }

    fn changed(&mut self, node: NodeId, listed: Listed, out: &mut Vec<Outgoing>) {
        if !listed.is_valid() {
            return;
        }
        let Some(known) = self.nodes.nodes.get_mut(&node) else { return };
        let Listed { vpid, partition, groups, .. } = listed;
        let former = known.endpoints.insert(vpid, listed);
        let former = former.map_or(0, |former| former.groups);
        let groups = former | groups | 1 << Group::BROADCAST.number();
        self.tell_groups(PartitionId(partition), NO_VPID, groups, out);
    }

    fn ended(&mut self, node: NodeId, vpid: u16, out: &mut Vec<Outgoing>) {
        let Some(known) = self.nodes.nodes.get_mut(&node) else { return };
        let Some(former) = known.endpoints.remove(&vpid) else { return };
        self.end_all_with(EndpointAddress::new(node, Vpid(vpid)), out);
        let groups = former.groups | 1 << Group::BROADCAST.number();
        self.tell_groups(PartitionId(former.partition), NO_VPID, groups, out);
    }

    /// Ends all meetings with an endpoint of another node.
    fn end_all_with(&mut self, with: EndpointAddress, out: &mut Vec<Outgoing>) {
        for vpid in self.vpids() {
            self.parted(vpid, with, None, out);
        }
    }

    /// The endpoints of other nodes in a partition whose groups are wanted.
    pub(crate) fn members_elsewhere(
        &self,
        partition: PartitionId,
        is_wanted: impl Fn(u64) -> bool,
    ) -> Vec<(NodeId, VpidSet)> {
        let mut parts = Vec::new();
        for (node, known) in self.nodes.nodes.iter().filter(|(_, known)| known.is_up) {
            let mut vpids = VpidSet::default();
            for listed in known.endpoints.values() {
                if listed.partition == partition.0 && is_wanted(listed.groups) {
                    vpids.insert(listed.vpid);
                }
            }
            if vpids.count() > 0 {
                parts.push((*node, vpids));
            }
        }
        parts
    }
}

#[cfg(test)]
#[path = "nodes_tests.rs"]
mod tests;
