//! The directory as a state machine: questions in, answers and news out.
//!
//! # Invariants
//! - An endpoint finds those of its partition alone. It comes into a partition of another user by a
//!   service that the rules let it use or by a ticket, and in no other way.
//! - Both ends of a pair know it, or neither does.
//! - News that a question causes for others come before its answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weft_fabric::{
    ConnectError, EndpointAddress, Group, GroupError, InviteError, NodeId, OpenError,
    OperationError, Partition, PartitionId, ServiceName, Ticket, Vpid,
};
use weft_options::ServicePolicy;

use super::{Answer, Introduction, News, Opened, Opening, Question};

/// A client of the directory.
pub type ClientId = u64;

/// The limits of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Endpoints of a node.
    pub endpoints_max: u16,
    /// Tickets of one user that wait.
    pub invitations_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { endpoints_max: 256, invitations_max: 1024 }
    }
}

/// The state of a directory.
#[derive(Debug)]
pub struct State {
    node: NodeId,
    limits: Limits,
    policy: ServicePolicy,
    entries: BTreeMap<u16, Entry>,
    services: BTreeMap<ServiceName, u16>,
    invitations: Vec<Invitation>,
}

/// An endpoint.
#[derive(Debug)]
struct Entry {
    client: ClientId,
    user: u32,
    partition: PartitionId,
    name: Vec<u8>,
    mailbox_depth: usize,
    peers_max: usize,
    /// Its peers.
    pairs: BTreeMap<u16, Pair>,
    groups: u64,
}

/// A pair, as one end has it.
#[derive(Clone, Copy, Debug)]
struct Pair {
    /// The secret that the two ends show each other.
    secret: [u8; 16],
    /// Whether this end asked for it.
    greets_first: bool,
}

/// A ticket that was not used.
#[derive(Debug)]
struct Invitation {
    ticket: Ticket,
    host: u16,
    user: u32,
    until: Duration,
}

/// News, and the client that hears them.
pub type Outgoing = (ClientId, News);

const fn bit(group: Group) -> u64 {
    1 << group.number()
}

impl State {
    /// A directory of the endpoints of `node`.
    #[must_use]
    pub fn new(node: NodeId, limits: Limits, policy: ServicePolicy) -> Self {
        Self {
            node,
            limits,
            policy,
            entries: BTreeMap::new(),
            services: BTreeMap::new(),
            invitations: Vec::new(),
        }
    }

    const fn address(&self, vpid: u16) -> EndpointAddress {
        EndpointAddress::new(self.node, Vpid(vpid))
    }

    fn of_client(&self, client: ClientId) -> Option<u16> {
        self.entries.iter().find(|(_, entry)| entry.client == client).map(|(vpid, _)| *vpid)
    }

    /// Opens an endpoint of `user`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(
        &mut self,
        (client, user): (ClientId, u32),
        opening: &Opening,
        now: Duration,
        out: &mut Vec<Outgoing>,
    ) -> Result<Opened, OpenError> {
        self.invitations.retain(|invitation| now < invitation.until);
        let (partition, host) = self.entrance(user, opening.partition)?;
        let vpid = self.free_vpid(opening.vpid)?;
        // Nothing can fail from here on.
        match opening.partition {
            Partition::Offered(_, name) => {
                self.services.insert(name, vpid);
            }
            Partition::Ticket(ticket) => {
                let used = self.invitations.iter().position(|found| found.ticket == ticket);
                used.map(|place| self.invitations.remove(place));
            }
            Partition::OfUser | Partition::Numbered(_) | Partition::Service(_) => {}
        }
        let entry = Entry {
            client,
            user,
            partition,
            name: opening.name.clone(),
            mailbox_depth: opening.mailbox_depth,
            peers_max: opening.peers_max,
            pairs: BTreeMap::new(),
            groups: bit(Group::BROADCAST),
        };
        self.entries.insert(vpid, entry);
        self.tell_groups(partition, vpid, bit(Group::BROADCAST), out);
        let host = host.map(|host| self.address(host));
        Ok(Opened { address: self.address(vpid), partition, host })
    }

    /// The partition that `user` may come into, and the endpoint that lets it in.
    fn entrance(
        &self,
        user: u32,
        partition: Partition,
    ) -> Result<(PartitionId, Option<u16>), OpenError> {
        let owned = |partition: PartitionId| {
            let owns = user == 0 || partition.user() == user;
            if owns { Ok(partition) } else { Err(OpenError::Forbidden { partition: partition.0 }) }
        };
        match partition {
            Partition::OfUser => Ok((PartitionId::of_user(user), None)),
            Partition::Numbered(partition) => Ok((owned(partition)?, None)),
            Partition::Offered(partition, name) => {
                if owned(partition)?.is_default() {
                    return Err(OpenError::DefaultPartition);
                }
                if !self.policy.may_offer(user, name.as_str()) {
                    return Err(OpenError::OfferForbidden { name });
                }
                if self.services.contains_key(&name) {
                    return Err(OpenError::NameTaken { name });
                }
                Ok((partition, None))
            }
            Partition::Service(name) => {
                let host = self.services.get(&name).copied();
                let owner = host.and_then(|host| Some((host, self.entries.get(&host)?)));
                let (host, owner) = owner.ok_or(OpenError::NotOffered { name })?;
                if !self.policy.may_use(user, owner.user, name.as_str()) {
                    return Err(OpenError::ServiceForbidden { name });
                }
                Ok((owner.partition, Some(host)))
            }
            Partition::Ticket(ticket) => {
                let found = self.invitations.iter().find(|found| found.ticket == ticket);
                let host = found.ok_or(OpenError::InvalidTicket)?.host;
                let entry = self.entries.get(&host).ok_or(OpenError::InvalidTicket)?;
                Ok((entry.partition, Some(host)))
            }
        }
    }

    //= EXTOLL-THESIS#3.2.3
    //# There are 256 VPIDs; a process asks for one before it communicates.
    fn free_vpid(&self, wanted: Vpid) -> Result<u16, OpenError> {
        let maximum = self.limits.endpoints_max;
        if wanted.is_any() {
            let free = (0..maximum).find(|vpid| !self.entries.contains_key(vpid));
            return free.ok_or(OpenError::Exhausted { maximum });
        }
        if wanted.0 >= maximum {
            return Err(OpenError::Exhausted { maximum });
        }
        if self.entries.contains_key(&wanted.0) {
            return Err(OpenError::AddressInUse(self.address(wanted.0)));
        }
        Ok(wanted.0)
    }

    /// Answers a question. `secret` is a number that nobody can guess.
    pub fn ask(
        &mut self,
        client: ClientId,
        (number, question): (u64, Question),
        secret: [u8; 16],
        now: Duration,
        out: &mut Vec<Outgoing>,
    ) {
        let Some(vpid) = self.of_client(client) else { return };
        let result = match question {
            Question::Connect(to) => self.connect(vpid, to, secret, out),
            Question::Disconnect(to, secret) => {
                self.disconnect(vpid, to, secret, out);
                Ok(Answer::Done)
            }
            Question::Join(group) => self.change_group(vpid, group, true, out),
            Question::Leave(group) => self.change_group(vpid, group, false, out),
            Question::Invite(ticket, within) => self.invite(vpid, ticket, within, now),
            Question::Members(group) => Ok(Answer::Members(self.members(vpid, group))),
        };
        out.push((client, News::Answer(number, result)));
    }

    /// The introduction of the endpoint `vpid` to the other end of a pair.
    fn introduction(&self, vpid: u16, pair: Pair) -> Option<Introduction> {
        let entry = self.entries.get(&vpid)?;
        let Pair { secret, greets_first } = pair;
        Some(Introduction {
            address: self.address(vpid),
            name: entry.name.clone(),
            secret,
            mailbox_depth: entry.mailbox_depth,
            greets_first,
        })
    }

    fn connect(
        &mut self,
        from: u16,
        to: EndpointAddress,
        secret: [u8; 16],
        out: &mut Vec<Outgoing>,
    ) -> Result<Answer, OperationError> {
        let not_found = OperationError::Connect(ConnectError::NotFound(to));
        let (Some(own), Some(other)) = (self.entries.get(&from), self.entries.get(&to.vpid.0))
        else {
            return Err(not_found);
        };
        if to.node != self.node || own.partition != other.partition {
            return Err(not_found);
        }
        let there = other.client;
        if let Some(pair) = own.pairs.get(&to.vpid.0).copied() {
            let known = self.introduction(to.vpid.0, pair);
            return known.map(Answer::Introduced).ok_or(not_found);
        }
        for entry in [own, other] {
            if entry.pairs.len() >= entry.peers_max {
                let maximum = entry.peers_max;
                return Err(OperationError::Connect(ConnectError::Exhausted { maximum }));
            }
        }
        // The second one last: an endpoint that is its own peer greets.
        let (asked, asks) =
            (Pair { secret, greets_first: false }, Pair { secret, greets_first: true });
        for (one, two, pair) in [(to.vpid.0, from, asked), (from, to.vpid.0, asks)] {
            if let Some(entry) = self.entries.get_mut(&one) {
                entry.pairs.insert(two, pair);
            }
        }
        if from != to.vpid.0
            && let Some(introduction) = self.introduction(from, asked)
        {
            out.push((there, News::Introduced(introduction)));
        }
        let introduced = self.introduction(to.vpid.0, asks);
        introduced.map(Answer::Introduced).ok_or(not_found)
    }

    fn disconnect(
        &mut self,
        from: u16,
        to: EndpointAddress,
        secret: [u8; 16],
        out: &mut Vec<Outgoing>,
    ) {
        for (one, two) in [(from, to.vpid.0), (to.vpid.0, from)] {
            let pair = self.entries.get(&one).and_then(|entry| entry.pairs.get(&two));
            if pair.is_some_and(|pair| pair.secret == secret) {
                self.end_pair(one, two, out);
            }
        }
    }

    /// Takes a peer from an endpoint, and returns the secret of the pair. One that had as many
    /// peers as it may have can be sent to by groups again.
    fn end_pair(&mut self, of: u16, peer: u16, out: &mut Vec<Outgoing>) -> Option<[u8; 16]> {
        let entry = self.entries.get_mut(&of)?;
        let was_full = entry.pairs.len() >= entry.peers_max;
        let Pair { secret, .. } = entry.pairs.remove(&peer)?;
        let (partition, groups) = (entry.partition, entry.groups);
        if was_full {
            self.tell_groups(partition, of, groups, out);
        }
        Some(secret)
    }

    fn change_group(
        &mut self,
        vpid: u16,
        group: Group,
        join: bool,
        out: &mut Vec<Outgoing>,
    ) -> Result<Answer, OperationError> {
        if group == Group::BROADCAST {
            return Err(OperationError::Group(GroupError::Broadcast));
        }
        let unknown = OperationError::Group(GroupError::UnknownEndpoint);
        let entry = self.entries.get_mut(&vpid).ok_or(unknown)?;
        if join {
            entry.groups |= bit(group);
        } else {
            entry.groups &= !bit(group);
        }
        let partition = entry.partition;
        self.tell_groups(partition, vpid, bit(group), out);
        Ok(Answer::Done)
    }

    /// Tells the other endpoints of a partition that groups have changed.
    fn tell_groups(&self, partition: PartitionId, but: u16, groups: u64, out: &mut Vec<Outgoing>) {
        for (vpid, entry) in &self.entries {
            if *vpid != but && entry.partition == partition {
                out.push((entry.client, News::Groups(groups)));
            }
        }
    }

    fn members(&self, of: u16, group: Group) -> Vec<EndpointAddress> {
        let Some(own) = self.entries.get(&of) else { return Vec::new() };
        let is_member = |vpid: u16, entry: &Entry| {
            vpid != of && entry.partition == own.partition && entry.groups & bit(group) != 0
        };
        let members = self.entries.iter().filter(|(vpid, entry)| is_member(**vpid, entry));
        members.map(|(vpid, _)| self.address(*vpid)).collect()
    }

    fn invite(
        &mut self,
        host: u16,
        ticket: Ticket,
        within: Duration,
        now: Duration,
    ) -> Result<Answer, OperationError> {
        self.invitations.retain(|invitation| now < invitation.until);
        let refused = |error| Err(OperationError::Invite(error));
        let Some(entry) = self.entries.get(&host) else { return refused(InviteError::Forbidden) };
        let user = entry.user;
        if user != 0 && entry.partition.user() != user {
            return refused(InviteError::Forbidden);
        }
        if entry.partition.is_default() {
            return refused(InviteError::DefaultPartition);
        }
        let maximum = self.limits.invitations_max;
        let own = self.invitations.iter().filter(|invitation| invitation.user == user).count();
        if own >= maximum {
            return refused(InviteError::Exhausted { maximum });
        }
        self.invitations.push(Invitation { ticket, host, user, until: now + within });
        Ok(Answer::Done)
    }

    /// A client is gone, and so is its endpoint.
    pub fn gone(&mut self, client: ClientId, out: &mut Vec<Outgoing>) {
        let Some(vpid) = self.of_client(client) else { return };
        let Some(entry) = self.entries.remove(&vpid) else { return };
        self.services.retain(|_, host| *host != vpid);
        self.invitations.retain(|invitation| invitation.host != vpid);
        let address = self.address(vpid);
        let peers: BTreeSet<u16> = entry.pairs.keys().copied().collect();
        for peer in peers {
            let secret = self.end_pair(peer, vpid, out);
            if let (Some(secret), Some(other)) = (secret, self.entries.get(&peer)) {
                out.push((other.client, News::Ended(address, secret)));
            }
        }
        self.tell_groups(entry.partition, vpid, entry.groups, out);
    }
}
