//! The broker as a state machine: a request and its descriptors in, messages with descriptors out.
//!
//! The owner of a [`State`] gives every client a [`ProcessId`] and passes the client's credentials
//! as the kernel reports them. It sends outgoing messages in order, sends the wakeup that comes
//! with a message after sending it, and reports the end of a client.
//!
//! # Invariants
//! - A request acts only on endpoints of the process that sent it.
//! - A process cannot see endpoints of other partitions. `opening` says who comes into one.
//! - Pairs are symmetric: both ends know each other, or after a restart one end is awaited.
//! - Notifications that a request causes are sent before its answer.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use weft_fabric::{Access, EndpointAddress, Group, NodeId, PartitionId, Vpid};
use weft_options::ServicePolicy;
use weft_wire::control::InvalidMessage;
use weft_wire::endpoint_control::{
    AskMembers, Close, Connect, Disconnect, EndpointControl, GroupsChanged, Join, Leave, Members,
    NoPort, Paired, PeerGone, Publish, Remember, Reply, Resolve, Retract, VPIDS_MAX, gone, memory,
    status,
};

use crate::answers::{self, Connected, KeyFound, Memory, Retracted, Words};
use crate::cuts::{By, Sites};
use crate::doubts::IsStopped;
use crate::invitations::Invitations;
use crate::nodes::Nodes;
use crate::ports::Outcome;
use crate::tables::{Entry, Files, Key, Limits, PublishedMemory, Shared, VpidSet};
use crate::{Bell, Credentials, OpenBell, ProcessId};

/// A message to send.
#[derive(Debug)]
pub struct Outgoing {
    /// The client that receives the message.
    pub to: ProcessId,
    /// The message.
    pub message: EndpointControl,
    /// The descriptors to send with the message.
    pub files: Vec<Arc<OwnedFd>>,
    /// The wakeup to send after sending, so that the endpoint reads the message.
    pub wakeup: Option<Arc<dyn Bell>>,
}

impl Outgoing {
    /// An answer without descriptors.
    pub(crate) fn plain(to: ProcessId, message: impl Into<EndpointControl>) -> Self {
        Self { to, message: message.into(), files: Vec::new(), wakeup: None }
    }
}

/// The broker's state.
#[derive(Debug)]
pub struct State {
    pub(crate) node: NodeId,
    pub(crate) open_bell: OpenBell,
    pub(crate) limits: Limits,
    pub(crate) policy: ServicePolicy,
    pub(crate) entries: Vec<Option<Entry>>,
    pub(crate) next_vpid: u16,
    keys: usize,
    pub(crate) invitations: Invitations,
    pub(crate) nodes: Nodes,
    pub(crate) sites: Sites,
    /// How long a peer may be silent, milliseconds; 0 if that is not said.
    pub(crate) silence_ms: u64,
    pub(crate) is_stopped: IsStopped,
    /// Endpoints from before a restart have had their time to come back.
    pub(crate) is_settled: bool,
}

/// The parts of a reply that depend on the request.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) first: u64,
    second: u64,
    files: Vec<Arc<OwnedFd>>,
}

impl Answer {
    pub(crate) const fn done((first, second): Words) -> Self {
        Self { status: status::DONE, first, second, files: Vec::new() }
    }

    /// The request was carried out, and there is nothing to tell.
    pub(crate) const fn plain() -> Self {
        Self::done((0, 0))
    }

    pub(crate) const fn refused(status: u16) -> Self {
        Self { status, first: 0, second: 0, files: Vec::new() }
    }

    pub(crate) fn full(maximum: usize) -> Self {
        Self { first: maximum as u64, ..Self::refused(status::EXHAUSTED) }
    }

    /// The VPID is taken, by the endpoint at `address`.
    pub(crate) fn taken(address: EndpointAddress) -> Self {
        Self { first: answers::address_word(address), ..Self::refused(status::IN_USE) }
    }
}

/// Descriptors that the broker keeps for an endpoint: the three that the endpoint sent, a duplicate
/// of its wakeup, and the counters of its port.
const ENDPOINT_DESCRIPTORS: usize = 5;

/// An open endpoint, as its broker shows it to others.
#[derive(Debug)]
pub struct Listing {
    /// Its VPID.
    pub vpid: u16,
    /// Its paired peers.
    pub peers: usize,
    /// The file of its registers, if it has memory for its peers.
    pub registers: Option<Arc<OwnedFd>>,
    /// The file with the [counters](crate::counts) of its port, if that told of one.
    pub port_counts: Option<Arc<OwnedFd>>,
}

/// The client that sent a request, its process and its user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) process: ProcessId,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
}

impl State {
    /// A broker for node `node` without endpoints.
    #[must_use]
    pub fn new(node: NodeId, limits: Limits, open_bell: OpenBell) -> Self {
        let entries = (0..limits.endpoints_max.min(VPIDS_MAX)).map(|_| None).collect();
        Self {
            node,
            open_bell,
            limits,
            policy: ServicePolicy::default(),
            entries,
            next_vpid: 0,
            keys: 0,
            invitations: Invitations::default(),
            nodes: Nodes::default(),
            sites: Sites::default(),
            silence_ms: 0,
            is_stopped: |_| false,
            is_settled: false,
        }
    }

    /// A broker for another node, with the same limits and rules.
    pub(crate) fn another(&self, node: NodeId) -> Self {
        let other = Self::new(node, self.limits, self.open_bell).with_policy(self.policy.clone());
        Self { silence_ms: self.silence_ms, is_stopped: self.is_stopped, ..other }
    }

    /// The same with rules for services.
    #[must_use]
    pub fn with_policy(self, policy: ServicePolicy) -> Self {
        Self { policy, ..self }
    }

    /// The same, which tells endpoints with ports how long a peer may be silent before it is down.
    #[must_use]
    pub fn with_silence(self, silence: Duration) -> Self {
        Self { silence_ms: u64::try_from(silence.as_millis()).unwrap_or(u64::MAX), ..self }
    }

    /// The same, which tells of endpoints whose processes are stopped.
    #[must_use]
    pub fn with_stops(self, is_stopped: IsStopped) -> Self {
        Self { is_stopped, ..self }
    }

    /// Hands out VPIDs from `first` on. After a restart earlier endpoints come back with their
    /// VPIDs, which are then less likely to be taken.
    #[must_use]
    pub fn starting_at(mut self, first: u16) -> Self {
        let count = u16::try_from(self.entries.len()).unwrap_or(VPIDS_MAX).max(1);
        self.next_vpid = first % count;
        self
    }

    /// Gives the node another number. False while endpoints have addresses with the former one.
    pub fn renumber(&mut self, node: NodeId) -> bool {
        let is_free = self.endpoints() == 0;
        if is_free {
            self.node = node;
        }
        is_free
    }

    /// Number of open endpoints.
    #[must_use]
    pub fn endpoints(&self) -> usize {
        self.entries.iter().flatten().count()
    }

    /// Number of endpoints of `user`, and of all users.
    pub(crate) fn endpoints_by(&self, user: u32) -> (usize, usize) {
        let own = self.entries.iter().flatten().filter(|entry| entry.uid == user).count();
        (own, self.endpoints())
    }

    fn keys_by(&self, user: u32) -> usize {
        let of_user = self.entries.iter().flatten().filter(|entry| entry.uid == user);
        of_user.map(|entry| entry.keys_count).sum()
    }

    /// Number of descriptors that the broker keeps for a user.
    #[must_use]
    pub fn descriptors(&self, user: u32) -> usize {
        self.endpoints_by(user).0 * ENDPOINT_DESCRIPTORS + self.keys_by(user)
    }

    /// Invitations that were not used when they were last looked at.
    #[must_use]
    pub fn invitations(&self) -> usize {
        self.invitations.count()
    }

    /// How often a ticket was not good.
    #[must_use]
    pub const fn tickets_refused(&self) -> u64 {
        self.invitations.refused()
    }

    /// The endpoints of a process.
    pub fn endpoints_of(&self, process: ProcessId) -> impl Iterator<Item = Listing> {
        (0..).zip(&self.entries).filter_map(move |(vpid, entry)| {
            let entry = entry.as_ref().filter(|entry| entry.process == process)?;
            let registers = entry.shared.as_ref().map(|shared| Arc::clone(&shared.files.registers));
            let peers = entry.pairs.count() + entry.met.len();
            Some(Listing { vpid, peers, registers, port_counts: entry.port_counts.clone() })
        })
    }

    /// Handles a message of kinds 32 to 79 at `now`, by any clock that does not go back.
    ///
    /// # Errors
    /// [`InvalidMessage`] when the message is malformed or is not a request: close the connection.
    #[allow(clippy::too_many_arguments, reason = "each is a part of what happened")]
    pub fn handle(
        &mut self,
        process: ProcessId,
        credentials: Credentials,
        kind: u16,
        body: &[u8],
        files: Vec<OwnedFd>,
        now: Duration,
        out: &mut Vec<Outgoing>,
    ) -> Result<(), InvalidMessage> {
        let asker = Asker { process, pid: credentials.pid, uid: credentials.uid };
        let message = EndpointControl::parse(kind, body)?;
        let (ticket, answer) = match message {
            EndpointControl::Open(open) => match self.open(asker, open, files, now, out) {
                Outcome::Answer(answer) => (open.ticket, answer),
                Outcome::Other => return Ok(()),
            },
            EndpointControl::Close(Close { ticket, vpid }) => {
                (ticket, self.close(asker, vpid, out))
            }
            EndpointControl::Connect(ask) => (ask.ticket, self.connect(asker, ask, files, out)),
            EndpointControl::Disconnect(ask) => (ask.ticket, self.disconnect(asker, ask, out)),
            EndpointControl::Join(Join { ticket, vpid, group }) => {
                (ticket, self.change_group(asker, vpid, group, true, out))
            }
            EndpointControl::Leave(Leave { ticket, vpid, group }) => {
                (ticket, self.change_group(asker, vpid, group, false, out))
            }
            EndpointControl::Invite(ask) => (ask.ticket, self.invite(asker, ask, now)),
            EndpointControl::Publish(ask) => (ask.ticket, self.publish(asker, ask, files)),
            EndpointControl::Retract(ask) => (ask.ticket, self.retract(asker, ask)),
            EndpointControl::Resolve(ask) => (ask.ticket, self.resolve(asker, ask)),
            EndpointControl::AskMembers(ask) => {
                self.answer_members(asker, ask, out);
                return Ok(());
            }
            EndpointControl::Remember(pair) => {
                self.remember(asker, pair, out);
                return Ok(());
            }
            EndpointControl::Port(ask) => (ask.ticket, self.set_port(asker, ask, files, out)),
            EndpointControl::Attach(ask) => (ask.ticket, self.attach(asker, ask, files, now, out)),
            EndpointControl::NoPort(NoPort { vpid }) => {
                self.no_port(asker, vpid, out);
                return Ok(());
            }
            EndpointControl::Meet(ask) => match self.meet(asker, ask, now, out) {
                Outcome::Answer(answer) => (ask.ticket, answer),
                Outcome::Other => return Ok(()),
            },
            EndpointControl::Part(ask) => {
                self.part(asker, ask, out);
                return Ok(());
            }
            EndpointControl::Doubt(ask) => {
                self.doubt(asker, ask, out);
                return Ok(());
            }
            EndpointControl::AskAllMembers(ask) => {
                self.answer_all_members(asker, ask, out);
                return Ok(());
            }
            EndpointControl::Recall(ask) => {
                self.recall(asker, ask, out);
                return Ok(());
            }
            _ => return Err(InvalidMessage::Kind { kind }),
        };
        let Answer { status, first, second, files } = answer;
        let message = Reply { ticket, status, first, second }.into();
        out.push(Outgoing { to: process, message, files, wakeup: None });
        Ok(())
    }

    /// Removes the endpoints of a client that is gone.
    pub fn process_gone(&mut self, process: ProcessId, out: &mut Vec<Outgoing>) {
        self.no_guest(process);
        self.forget_site(process);
        self.unplug(process, out);
        for vpid in self.vpids() {
            if self.entry(vpid).is_some_and(|entry| entry.process == process) {
                self.remove(vpid, out);
            }
        }
    }

    /// Called about a second after the start. Peers that were announced by others and have not
    /// announced themselves are dead.
    pub fn settle(&mut self, out: &mut Vec<Outgoing>) {
        self.is_settled = true;
        self.remove_strangers(out);
        for vpid in self.vpids() {
            let awaited = match self.entry_mut(vpid) {
                Some(entry) => std::mem::take(&mut entry.awaited),
                None => continue,
            };
            for (peer, _) in awaited {
                self.tell_gone(vpid, peer, gone::ENDED, out);
            }
        }
        self.settle_meetings(out);
        self.remove_strangers(out);
        self.list_to_all();
    }

    /// Removes those from before a restart that nobody can vouch for any more. One that has a
    /// meeting stays outside until the node of its peer has told of it.
    pub(crate) fn remove_strangers(&mut self, out: &mut Vec<Outgoing>) {
        if !self.is_settled {
            return;
        }
        for vpid in self.vpids() {
            if self.entry(vpid).is_some_and(|entry| !entry.is_member && entry.met.is_empty()) {
                self.remove(vpid, out);
            }
        }
    }

    pub(crate) fn vpids(&self) -> std::ops::Range<u16> {
        0..u16::try_from(self.entries.len()).unwrap_or(VPIDS_MAX)
    }

    pub(crate) fn entry(&self, vpid: u16) -> Option<&Entry> {
        self.entries.get(usize::from(vpid))?.as_ref()
    }

    pub(crate) fn entry_mut(&mut self, vpid: u16) -> Option<&mut Entry> {
        self.entries.get_mut(usize::from(vpid))?.as_mut()
    }

    /// The endpoint `vpid`, if it belongs to the client that sent the request.
    pub(crate) fn own(&mut self, asker: Asker, vpid: u16) -> Option<&mut Entry> {
        self.entry_mut(vpid).filter(|entry| entry.process == asker.process)
    }

    /// The address of a VPID as answers have it: node in bits 16 to 47, VPID in bits 0 to 15.
    pub(crate) const fn address(&self, vpid: u16) -> EndpointAddress {
        EndpointAddress::new(self.node, Vpid(vpid))
    }

    fn close(&mut self, asker: Asker, vpid: u16, out: &mut Vec<Outgoing>) -> Answer {
        if self.own(asker, vpid).is_none() {
            return Answer::refused(status::NOT_FOUND);
        }
        self.remove(vpid, out);
        Answer::plain()
    }

    fn remove(&mut self, vpid: u16, out: &mut Vec<Outgoing>) {
        let Some(entry) = self.entries.get_mut(usize::from(vpid)).and_then(Option::take) else {
            return;
        };
        self.keys -= entry.keys_count;
        self.invitations.void(vpid);
        for peer in entry.pairs.iter().filter(|peer| *peer != vpid) {
            if self.entry(peer).is_some() {
                self.unpair(peer, vpid, out);
                self.tell_gone(peer, vpid, gone::ENDED, out);
            }
        }
        self.end_meetings_of(vpid, entry.met.keys().copied(), out);
        if entry.port.leads_here() {
            self.announce_end(vpid);
        }
        self.nobody_opens(entry.port, out);
        let groups = entry.groups | 1 << Group::BROADCAST.number();
        self.tell_groups(entry.partition, vpid, groups, out);
    }

    fn connect(
        &mut self,
        asker: Asker,
        ask: Connect,
        files: Vec<OwnedFd>,
        out: &mut Vec<Outgoing>,
    ) -> Answer {
        let Ok([memory]) = <[OwnedFd; 1]>::try_from(files) else {
            return Answer::refused(status::INVALID);
        };
        let node = self.node.0;
        let Some(own) = self.own(asker, ask.vpid) else {
            return Answer::refused(status::INVALID);
        };
        let Entry { flags, birth, .. } = *own;
        let (partition, own_files, own_full) = (own.inside(), own.shared.clone(), own.full());
        let Some(Shared { files: own_files, .. }) = own_files else {
            return Answer::refused(status::INVALID);
        };
        if own.pairs.contains(ask.peer) {
            return Answer::refused(status::PAIRED);
        }
        let leads = self.leads(ask.vpid, ask.peer);
        let found = self.entry_mut(ask.peer);
        let found = found.filter(|peer| partition.is_some() && peer.inside() == partition);
        let Some(peer) = found.filter(|_| ask.node == node && ask.peer != ask.vpid) else {
            return Answer::refused(status::NOT_FOUND);
        };
        let Some(Shared { files: peer_files, bell }) = peer.shared.clone() else {
            return Answer::refused(status::PORT_ALONE);
        };
        if !leads {
            return Answer::refused(status::AWAY);
        }
        if let Some(maximum) = own_full.or(peer.full()) {
            return Answer::full(maximum);
        }
        peer.pairs.insert(ask.vpid);
        let (vpid, told) = (ask.peer, ask.vpid);
        let message = Paired { vpid, node, peer: told, flags, birth }.into();
        let wakeup = Some(bell);
        let Files { doorbell, registers, wakeup: wakes } = own_files;
        let files = vec![Arc::new(memory), doorbell, registers, wakes];
        out.push(Outgoing { to: peer.process, message, files, wakeup });
        let Files { doorbell, registers, wakeup } = peer_files;
        let Entry { flags, slots, birth, .. } = *peer;
        let mut answer = Answer::done(Connected { flags, slots, birth }.words());
        answer.files = vec![doorbell, registers, wakeup];
        if let Some(own) = self.own(asker, ask.vpid) {
            own.pairs.insert(ask.peer);
        }
        answer
    }

    fn disconnect(&mut self, asker: Asker, ask: Disconnect, out: &mut Vec<Outgoing>) -> Answer {
        let Disconnect { vpid, peer, .. } = ask;
        let Some(own) = self.own(asker, vpid) else {
            return Answer::refused(status::NOT_FOUND);
        };
        // A peer that was awaited after a restart learns of it when it comes back.
        own.awaited.retain(|(awaited, _)| *awaited != peer);
        if !own.pairs.contains(peer) {
            return Answer::refused(status::NOT_FOUND);
        }
        self.unpair(vpid, peer, out);
        if self.entry(peer).is_some() {
            self.unpair(peer, vpid, out);
            self.tell_gone(peer, vpid, gone::DISCONNECTED, out);
        }
        Answer::plain()
    }

    /// Takes a peer from an endpoint. The senders to its groups hear of it if there was no room for
    /// further peers, because it was left out.
    pub(crate) fn unpair(&mut self, vpid: u16, peer: u16, out: &mut Vec<Outgoing>) {
        let Some(entry) = self.entry_mut(vpid) else { return };
        let was_full = entry.full().is_some();
        entry.pairs.remove(peer);
        let groups = entry.groups | 1 << Group::BROADCAST.number();
        if let Some(partition) = entry.inside().filter(|_| was_full) {
            self.tell_groups(partition, vpid, groups, out);
            self.announce(vpid);
        }
    }

    fn change_group(
        &mut self,
        asker: Asker,
        vpid: u16,
        group: u8,
        join: bool,
        out: &mut Vec<Outgoing>,
    ) -> Answer {
        if group >= Group::BROADCAST.number() {
            return Answer::refused(status::INVALID);
        }
        let Some(entry) = self.own(asker, vpid) else {
            return Answer::refused(status::NOT_FOUND);
        };
        let bit = 1 << group;
        let former = entry.groups;
        entry.groups = if join { former | bit } else { former & !bit };
        let (partition, changed) = (entry.inside(), entry.groups != former);
        if let Some(partition) = partition.filter(|_| changed) {
            self.tell_groups(partition, vpid, bit, out);
            self.announce(vpid);
        }
        Answer::plain()
    }

    fn answer_members(&mut self, asker: Asker, ask: AskMembers, out: &mut Vec<Outgoing>) {
        let AskMembers { ticket, vpid, group } = ask;
        let mut members = VpidSet::default();
        let own = self.own(asker, vpid).filter(|_| group < Group::COUNT);
        let partition = own.and_then(|entry| {
            entry.asked |= 1 << group;
            entry.inside()
        });
        if partition.is_some() {
            for (other, entry) in (0..).zip(&self.entries) {
                let Some(entry) = entry.as_ref().filter(|entry| entry.inside() == partition) else {
                    continue;
                };
                if !self.is_within_reach(vpid, other) {
                    continue;
                }
                let joined = group < 63 && entry.groups & (1 << group) != 0;
                if joined || group == Group::BROADCAST.number() {
                    members.insert(other);
                }
            }
        }
        if partition.is_some() {
            self.want_port_for_members(vpid, group, out);
        }
        let message = Members { ticket, vpids: members.0 }.into();
        out.push(Outgoing { to: asker.process, message, files: Vec::new(), wakeup: None });
    }

    fn publish(&mut self, asker: Asker, ask: Publish, files: Vec<OwnedFd>) -> Answer {
        let Publish { vpid, slot, generation, access, start, length, .. } = ask;
        let keys = self.keys_by(asker.uid);
        let maximum = self.limits.allowance(asker.uid, self.limits.keys_max, keys, self.keys);
        let Some(entry) = self.own(asker, vpid) else {
            return Answer::refused(status::INVALID);
        };
        // Peers map memory read-only that they may not write to: an atomic alone would fault.
        let Some(access) = Access::of_key(access) else {
            return Answer::refused(status::INVALID);
        };
        let memory = match (ask.memory, <[OwnedFd; 1]>::try_from(files)) {
            (memory::FILE, Ok([file])) => PublishedMemory::File(Arc::new(file)),
            (memory::IN_PLACE, Err(none)) if none.is_empty() => PublishedMemory::InPlace,
            _ => return Answer::refused(status::INVALID),
        };
        if keys >= maximum && entry.key(slot, generation).is_none() {
            return Answer::full(maximum);
        }
        if start > KeyFound::START_MAX {
            return Answer::refused(status::INVALID);
        }
        let audience = (ask.audience != 0xffff).then_some((ask.audience, ask.audience_birth));
        let key = Key { generation, access, start, length, audience, memory, resolved: 0 };
        let Some(more) = entry.publish(slot, key) else {
            return Answer::refused(status::INVALID);
        };
        self.keys += more;
        Answer::plain()
    }

    fn retract(&mut self, asker: Asker, ask: Retract) -> Answer {
        let Retract { vpid, slot, generation, .. } = ask;
        let Some(entry) = self.own(asker, vpid) else {
            return Answer::refused(status::INVALID);
        };
        let Some(resolved) = entry.key(slot, generation).map(|key| key.resolved) else {
            return Answer::refused(status::NOT_FOUND);
        };
        entry.keys[usize::from(slot)] = None;
        entry.keys_count -= 1;
        self.keys -= 1;
        Answer::done(Retracted { told: resolved }.words())
    }

    fn resolve(&mut self, asker: Asker, ask: Resolve) -> Answer {
        let Resolve { vpid, owner, slot, generation, .. } = ask;
        let Some((partition, birth)) =
            self.own(asker, vpid).map(|entry| (entry.inside(), entry.birth))
        else {
            return Answer::refused(status::INVALID);
        };
        let entry = self
            .entry_mut(owner)
            .filter(|entry| partition.is_some() && entry.inside() == partition);
        // An address is for the owner's user alone. To others the kernel gives no memory of the
        // owner's. Root could be led to write to a process that the owner only claims to be.
        let may_copy = entry.as_ref().is_some_and(|of| of.uid == asker.uid);
        let key = entry
            .and_then(|entry| entry.key_mut(slot, generation))
            .filter(|key| key.audience.is_none_or(|audience| audience == (vpid, birth)));
        let Some(key) = key else {
            return Answer::refused(status::NOT_FOUND);
        };
        key.resolved += 1;
        let (memory, files) = match &key.memory {
            PublishedMemory::File(file) => (Memory::File(key.start), vec![Arc::clone(file)]),
            PublishedMemory::InPlace => {
                (Memory::InPlace(may_copy.then_some(key.start)), Vec::new())
            }
        };
        let found = KeyFound { length: key.length, access: key.access, memory };
        Answer { files, ..Answer::done(found.words()) }
    }

    /// Restores a pair from before the restart.
    fn remember(&mut self, asker: Asker, pair: Remember, out: &mut Vec<Outgoing>) {
        let Remember { vpid, peer, birth } = pair;
        if !self.vpids().contains(&peer) {
            return;
        }
        let Some(own) = self.own(asker, vpid) else { return };
        let (partition, own_birth) = (own.partition, own.birth);
        match self.entry_mut(peer) {
            Some(other) if other.birth == birth && other.partition == partition => {
                // The first of the two endpoints awaits the second.
                let awaits = other.awaited.iter().position(|a| *a == (vpid, own_birth));
                if let Some(place) = awaits {
                    other.awaited.swap_remove(place);
                    other.pairs.insert(vpid);
                    if let Some(own) = self.entry_mut(vpid) {
                        own.pairs.insert(peer);
                    }
                    self.tell_held_again(vpid, peer, By::Memory, out);
                    self.vouch(vpid, peer, out);
                    return;
                }
                self.await_peer(vpid, peer, birth);
            }
            Some(_) => self.tell_gone(vpid, peer, gone::ENDED, out),
            None => self.await_peer(vpid, peer, birth),
        }
    }

    /// Two endpoints from before a restart know each other's births, or the secret of their
    /// meeting, so they had met. If one is of the user of the partition, the other comes in again.
    pub(crate) fn vouch(&mut self, one: u16, two: u16, out: &mut Vec<Outgoing>) {
        for (guest, voucher) in [(one, two), (two, one)] {
            let voucher = self.entry(voucher).filter(|entry| entry.is_member);
            let Some(about) = voucher.map(|entry| (entry.uid, entry.partition)) else { continue };
            self.come_in(guest, about, out);
        }
    }

    /// A guest from before a restart comes in again, if its voucher is of the user of its partition
    /// and in that. `about` says the voucher's user and partition.
    pub(crate) fn come_in(
        &mut self,
        guest: u16,
        about: (u32, PartitionId),
        out: &mut Vec<Outgoing>,
    ) {
        let (user, partition) = about;
        let is_outside = |entry: &&mut Entry| !entry.is_member && entry.partition == partition;
        let Some(entry) = self.entry_mut(guest).filter(is_outside) else { return };
        if user != partition.user() {
            return;
        }
        entry.is_member = true;
        let groups = entry.groups | 1 << Group::BROADCAST.number();
        self.tell_groups(partition, guest, groups, out);
        self.announce(guest);
    }

    fn await_peer(&mut self, vpid: u16, peer: u16, birth: u64) {
        if let Some(own) = self.entry_mut(vpid)
            && own.awaited.len() < usize::from(VPIDS_MAX)
        {
            own.awaited.push((peer, birth));
        }
    }

    /// Ends all waits for an earlier endpoint with the VPID of one that announced itself.
    pub(crate) fn welcome_back(&mut self, vpid: u16, birth: u64, out: &mut Vec<Outgoing>) {
        for other in self.vpids() {
            let Some(entry) = self.entry_mut(other) else { continue };
            let before = entry.awaited.len();
            entry.awaited.retain(|(peer, expected)| *peer != vpid || *expected == birth);
            if entry.awaited.len() != before {
                self.tell_gone(other, vpid, gone::ENDED, out);
            }
        }
    }

    pub(crate) fn tell_gone(&mut self, vpid: u16, peer: u16, reason: u8, out: &mut Vec<Outgoing>) {
        let node = self.node.0;
        if let Some(entry) = self.entry(vpid) {
            out.push(entry.news(PeerGone { vpid, node, peer, reason }));
        }
    }

    pub(crate) fn tell_groups(
        &mut self,
        partition: PartitionId,
        but: u16,
        groups: u64,
        out: &mut Vec<Outgoing>,
    ) {
        for (vpid, entry) in (0..).zip(&mut self.entries) {
            let Some(entry) = entry.as_mut().filter(|entry| entry.inside() == Some(partition))
            else {
                continue;
            };
            let groups = groups & entry.asked;
            if vpid != but && groups != 0 {
                entry.asked &= !groups;
                let changed = GroupsChanged { vpid, groups };
                out.push(entry.news(changed));
                let of_port = entry.news_of_ports(changed);
                out.extend(of_port.filter(|message| message.to != entry.process));
            }
        }
    }
}

#[cfg(any(test, feature = "test-doors"))]
#[path = "state_fuzz.rs"]
mod fuzz;
#[cfg(any(test, feature = "test-doors"))]
pub use fuzz::fuzz_state;
#[cfg(test)]
pub(crate) use fuzz::{fuzz_files, silent_bell};

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
