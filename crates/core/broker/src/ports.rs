//! Ports: how endpoints that share no memory meet, on one node and across nodes.
//!
//! An endpoint says the name of its port. Another one of its partition asks for a meeting, with a
//! secret, and both ends are told the name of the other's port and the secret. What crosses the
//! network from then on is not the broker's business.
//!
//! # Invariants
//! - Both ends of a meeting know it, or neither does; across nodes, as soon as what is under way
//!   between the brokers has arrived.
//! - Where both ends ask at the same time, the one with the lower address has asked.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use weft_fabric::{EndpointAddress, Group, NodeId, PartitionId, Vpid};
use weft_wire::endpoint_control::{
    AskAllMembers, Meet, MembersOf, Met, Part, Parted, Port, PortName, Recall, Reply, status,
};

use crate::answers::PortKnown;
use crate::cuts::By;
use crate::later::{PortState, Who};
use crate::nodes::{Refusal, Waiting};
use crate::state::{Answer, Asker, Outgoing, State};
use crate::tables::{Entry, VpidSet};
use crate::{NodeMessage, ProcessId};

/// The port of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpenPort {
    /// The messages that fit in the endpoint's mailbox.
    pub depth: u32,
    pub name: PortName,
}

/// A meeting, as one end has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Meeting {
    pub secret: [u8; 16],
    /// Whether this end greets first.
    pub greets_first: bool,
    /// The peer's port; `None` for a meeting from before a restart.
    pub port: Option<OpenPort>,
}

/// An answer, or none as yet.
pub(crate) enum Outcome {
    Answer(Answer),
    /// The answer is a message of its own, now or later.
    Other,
}

/// The file with the counters of a port, if it was sent. `None` if more was.
pub(crate) fn port_counts(mut files: Vec<OwnedFd>) -> Option<Option<Arc<OwnedFd>>> {
    let counts = files.pop();
    files.is_empty().then(|| counts.map(Arc::new))
}

pub(crate) const fn address(node: u32, vpid: u16) -> EndpointAddress {
    EndpointAddress::new(NodeId(node), Vpid(vpid))
}

impl State {
    pub(crate) fn set_port(
        &mut self,
        asker: Asker,
        ask: Port,
        files: Vec<OwnedFd>,
        out: &mut Vec<Outgoing>,
    ) -> Answer {
        let Some(entry) = self.own(asker, ask.vpid) else {
            return Answer::refused(status::NOT_FOUND);
        };
        let Some(counts) = port_counts(files) else {
            return Answer::refused(status::INVALID);
        };
        if ask.name.bytes().is_none() || !matches!(entry.port, PortState::Untold) {
            return Answer::refused(status::INVALID);
        }
        entry.port_counts = counts;
        let port = OpenPort { depth: ask.depth, name: ask.name };
        entry.port = PortState::Open(port, asker.process);
        let groups = entry.groups | 1 << Group::BROADCAST.number();
        if let Some(partition) = entry.inside() {
            // It can be sent to from now on.
            self.tell_groups(partition, ask.vpid, groups, out);
        }
        self.announce(ask.vpid);
        Answer::done(
            PortKnown { address: self.address(ask.vpid), silence_ms: self.silence_ms }.words(),
        )
    }

    pub(crate) fn meet(
        &mut self,
        asker: Asker,
        ask: Meet,
        now: Duration,
        out: &mut Vec<Outgoing>,
    ) -> Outcome {
        let refused = |status| Outcome::Answer(Answer::refused(status));
        let Meet { ticket, vpid, node, peer, secret } = ask;
        let to = address(node, peer);
        let Some(own) = self.plugged(asker, vpid).filter(|own| own.port.open().is_some()) else {
            return refused(status::INVALID);
        };
        if ticket == 0 || own.inside().is_none() {
            return refused(status::INVALID);
        }
        if let Some(meeting) = own.met.get(&to).filter(|meeting| meeting.port.is_some()) {
            let known = *meeting;
            self.tell_met(vpid, to, known, ticket, out);
            return Outcome::Other;
        }
        if let Some(maximum) = own.full() {
            return Outcome::Answer(Answer::full(maximum));
        }
        let asker = Waiting { process: asker.process, vpid, ticket, to, secret: secret.0 };
        if node != self.node.0 {
            return match self.ask_node(asker) {
                Ok(()) => Outcome::Other,
                Err(status) => refused(status),
            };
        }
        self.meet_here(asker, now, out);
        Outcome::Other
    }

    /// Has an endpoint meet another one of this node, now or when that one has opened its port.
    pub(crate) fn meet_here(&mut self, asker: Waiting, now: Duration, out: &mut Vec<Outgoing>) {
        let Waiting { process, vpid, to, secret, .. } = asker;
        let own = self.entry(vpid).filter(|entry| entry.has_plugged(process));
        let Some(partition) = own.and_then(Entry::inside) else {
            return self.refuse_waiting(asker, Refusal::NotFound.answer(), out);
        };
        if !self.leads(vpid, to.vpid.0) {
            return self.refuse_waiting(asker, Answer::refused(status::AWAY), out);
        }
        let waits = self.wait_for_port(to.vpid.0, Who::Here(asker), Some(partition), now, out);
        let from = address(self.node.0, vpid);
        let accepted = match waits {
            Ok(true) => return,
            Ok(false) => self.accept(from, partition, None, to, secret, out),
            Err(refusal) => Err(refusal),
        };
        match accepted {
            Ok(port) => self.met(asker, port, out),
            Err(refusal) => self.refuse_waiting(asker, refusal.answer(), out),
        }
    }

    /// The endpoint `vpid`, if this client asks about its ports.
    pub(crate) fn plugged(&mut self, asker: Asker, vpid: u16) -> Option<&mut Entry> {
        self.entry_mut(vpid).filter(|entry| entry.has_plugged(asker.process))
    }

    /// Lets an endpoint of this node be met by `from`, which has this port or is of this node, too.
    /// Returns the port of the endpoint.
    pub(crate) fn accept(
        &mut self,
        from: EndpointAddress,
        partition: PartitionId,
        port: Option<OpenPort>,
        to: EndpointAddress,
        secret: [u8; 16],
        out: &mut Vec<Outgoing>,
    ) -> Result<OpenPort, Refusal> {
        let local = (from.node == self.node).then(|| self.entry(from.vpid.0)?.port.open());
        let their_port = port.or(local.flatten());
        let entry = self.entry_mut(to.vpid.0).filter(|entry| entry.inside() == Some(partition));
        let (Some(entry), Some(their_port)) = (entry, their_port) else {
            return Err(Refusal::NotFound);
        };
        let own_port = entry.port.open().ok_or(Refusal::NotFound)?;
        let is_known = entry.met.contains_key(&from);
        if let Some(maximum) = entry.full().filter(|_| !is_known) {
            return Err(Refusal::Full(u32::try_from(maximum).unwrap_or(u32::MAX)));
        }
        if from != to {
            let meeting = Meeting { secret, greets_first: false, port: Some(their_port) };
            entry.met.insert(from, meeting);
            self.tell_met(to.vpid.0, from, meeting, 0, out);
        }
        Ok(own_port)
    }

    /// The endpoint that was asked for is there, and has this port.
    pub(crate) fn met(&mut self, asker: Waiting, port: OpenPort, out: &mut Vec<Outgoing>) {
        let Waiting { process, vpid, ticket, to, secret } = asker;
        let Some(entry) = self.entry_mut(vpid).filter(|entry| entry.has_plugged(process)) else {
            return;
        };
        let meeting = Meeting { secret, greets_first: true, port: Some(port) };
        entry.met.insert(to, meeting);
        self.tell_met(vpid, to, meeting, ticket, out);
    }

    /// Tells the endpoint `vpid` of a meeting.
    pub(crate) fn tell_met(
        &self,
        vpid: u16,
        with: EndpointAddress,
        meeting: Meeting,
        ticket: u32,
        out: &mut Vec<Outgoing>,
    ) {
        let (Some(entry), Some(port)) = (self.entry(vpid), meeting.port) else { return };
        let message = Met {
            ticket,
            vpid,
            node: with.node.0,
            peer: with.vpid.0,
            depth: port.depth,
            greets_first: meeting.greets_first.into(),
            secret: weft_wire::endpoint_control::Secret(meeting.secret),
            name: port.name,
        };
        out.extend(entry.news_of_ports(message));
    }

    pub(crate) fn part(&mut self, asker: Asker, ask: Part, out: &mut Vec<Outgoing>) {
        let Part { vpid, node, peer, secret } = ask;
        let to = address(node, peer);
        if self.plugged(asker, vpid).is_none() || !self.end_meeting(vpid, to, Some(secret.0), out) {
            return;
        }
        let own = address(self.node.0, vpid);
        if to.node == self.node {
            self.parted(peer, own, Some(secret.0), out);
        } else {
            self.tell_node(to.node, NodeMessage::Part { from: vpid, to: peer, secret: secret.0 });
        }
    }

    /// Ends a meeting, and tells the endpoint.
    pub(crate) fn parted(
        &mut self,
        vpid: u16,
        with: EndpointAddress,
        secret: Option<[u8; 16]>,
        out: &mut Vec<Outgoing>,
    ) {
        let Some(entry) = self.entry(vpid) else { return };
        let Some(meeting) = entry.met.get(&with).copied() else { return };
        if self.end_meeting(vpid, with, secret, out)
            && let Some(entry) = self.entry(vpid)
        {
            let secret = weft_wire::endpoint_control::Secret(meeting.secret);
            let (node, peer) = (with.node.0, with.vpid.0);
            out.extend(entry.news_of_ports(Parted { vpid, node, peer, secret }));
        }
    }

    /// Takes a meeting from an endpoint, if it has this secret. The senders to the endpoint's
    /// groups hear of it if there was no room for further peers, because it was left out.
    pub(crate) fn end_meeting(
        &mut self,
        vpid: u16,
        with: EndpointAddress,
        secret: Option<[u8; 16]>,
        out: &mut Vec<Outgoing>,
    ) -> bool {
        let Some(entry) = self.entry_mut(vpid) else { return false };
        let is_it = |meeting: &Meeting| secret.is_none_or(|secret| secret == meeting.secret);
        if !entry.met.get(&with).is_some_and(is_it) {
            return false;
        }
        let was_full = entry.full().is_some();
        entry.met.remove(&with);
        let groups = entry.groups | 1 << Group::BROADCAST.number();
        if let Some(partition) = entry.inside().filter(|_| was_full) {
            self.tell_groups(partition, vpid, groups, out);
            self.announce(vpid);
        }
        true
    }

    pub(crate) fn answer_all_members(
        &mut self,
        asker: Asker,
        ask: AskAllMembers,
        out: &mut Vec<Outgoing>,
    ) {
        let AskAllMembers { ticket, vpid, group } = ask;
        let own = self.plugged(asker, vpid).filter(|_| group < Group::COUNT);
        let partition = own.and_then(|entry| {
            entry.asked |= 1 << group;
            entry.inside()
        });
        let parts = match partition {
            Some(partition) => self.members_by_port(partition, group, vpid),
            None => vec![(self.node, VpidSet::default())],
        };
        let count = parts.len();
        for (place, (node, vpids)) in parts.into_iter().enumerate() {
            let further = u32::try_from(count - 1 - place).unwrap_or(u32::MAX);
            let part = MembersOf { ticket, node: node.0, further, vpids: vpids.0 };
            out.push(Outgoing::plain(asker.process, part));
        }
    }

    /// The other members of a group that an endpoint reaches by its port: those of other nodes, and
    /// of this node those with which it does not share memory.
    pub(crate) fn members_by_port(
        &self,
        partition: PartitionId,
        group: u8,
        vpid: u16,
    ) -> Vec<(NodeId, VpidSet)> {
        let is_member = |groups: u64| {
            group == Group::BROADCAST.number() || group < 63 && groups & (1 << group) != 0
        };
        let has_memory = |entry: &Entry| entry.shared.is_some();
        let shares = self.entry(vpid).is_some_and(has_memory);
        let mut here = VpidSet::default();
        for (other, entry) in (0..).zip(&self.entries) {
            let Some(entry) = entry.as_ref().filter(|entry| entry.port.leads_here()) else {
                continue;
            };
            let is_near = shares && has_memory(entry);
            if entry.inside() == Some(partition)
                && is_member(entry.groups)
                && other != vpid
                && !is_near
                && self.is_within_reach(vpid, other)
            {
                here.insert(other);
            }
        }
        let mut parts = vec![(self.node, here)];
        parts.extend(self.members_elsewhere(partition, is_member));
        parts
    }

    /// Restores a meeting from before a restart.
    pub(crate) fn recall(&mut self, asker: Asker, ask: Recall, out: &mut Vec<Outgoing>) {
        let Recall { vpid, node, peer, secret, greets_first } = ask;
        let with = address(node, peer);
        let Some(own) = self.plugged(asker, vpid) else { return };
        if own.met.len() >= own.peers_max {
            return;
        }
        let meeting = Meeting { secret: secret.0, greets_first: greets_first != 0, port: None };
        own.met.insert(with, meeting);
        let theirs = self.entry(peer).filter(|_| with.node == self.node);
        let theirs = theirs.and_then(|peer| peer.met.get(&address(self.node.0, vpid)));
        if theirs.is_some_and(|theirs| theirs.secret == secret.0) {
            self.tell_held_again(vpid, peer, By::Ports, out);
            self.vouch(vpid, peer, out);
        }
        // The other end recalls it, too, or it ends when those from before the restart have had
        // their time. Later it would not be heard of again.
        if self.is_settled && with != address(self.node.0, vpid) {
            self.parted(vpid, with, None, out);
        }
    }

    /// Ends the meetings with endpoints of this node that did not come back after a restart.
    pub(crate) fn settle_meetings(&mut self, out: &mut Vec<Outgoing>) {
        for vpid in self.vpids() {
            let Some(entry) = self.entry(vpid) else { continue };
            let own = address(self.node.0, vpid);
            let is_lost = |with: &EndpointAddress| {
                with.node == self.node
                    && *with != own
                    && self.entry(with.vpid.0).is_none_or(|peer| !peer.met.contains_key(&own))
            };
            let lost: Vec<_> = entry.met.keys().copied().filter(is_lost).collect();
            for with in lost {
                self.parted(vpid, with, None, out);
            }
        }
    }

    /// Ends the meetings of an endpoint that is removed, with those of this node.
    pub(crate) fn end_meetings_of(
        &mut self,
        vpid: u16,
        with: impl Iterator<Item = EndpointAddress>,
        out: &mut Vec<Outgoing>,
    ) {
        let own = address(self.node.0, vpid);
        for peer in with.filter(|peer| peer.node == own.node && *peer != own) {
            self.parted(peer.vpid.0, own, None, out);
        }
    }

    /// The answer to a request that waited for another node.
    pub(crate) fn refuse_waiting(&self, waiting: Waiting, answer: Answer, out: &mut Vec<Outgoing>) {
        let Waiting { process, ticket, vpid, .. } = waiting;
        let message = Reply { ticket, status: answer.status, first: answer.first, second: 0 };
        if self.has(process, vpid) {
            out.push(Outgoing::plain(process, message));
        }
    }

    /// Whether this client has an endpoint with this VPID.
    pub(crate) fn has(&self, process: ProcessId, vpid: u16) -> bool {
        self.entry(vpid).is_some_and(|entry| entry.has_plugged(process))
    }
}
