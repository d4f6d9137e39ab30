//! Opening endpoints: who may come into which partition.
//!
//! # Invariants
//! - An endpoint comes into a partition of another user by a service that the policy lets it use,
//!   by an invitation, or back after a restart of the broker, and in no other way.
//! - One that comes back so is outside until an endpoint of the partition's user remembers it, or
//!   is met by it on any node.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use weft_fabric::rules::{self, Door, Doors};
use weft_fabric::{
    EndpointAddress, Group, InviteError, NodeId, OpenError, Partition, PartitionId, ServiceName,
    Ticket,
};
use weft_wire::endpoint_control::{Invite, NO_VPID, Open, Opened, VPIDS_MAX, flags, status};

use crate::Offer;
use crate::answers::OpenedHere;
use crate::calls;
use crate::invitations::Invitation;
use crate::later::PortState;
use crate::ports::{Outcome, address};
use crate::state::{Answer, Asker, Outgoing, State};
use crate::tables::{Entry, Files, Shared, VpidSet};

/// How an endpoint comes into its partition.
pub(crate) struct Entrance {
    partition: PartitionId,
    /// False for a guest that comes back after a restart.
    is_member: bool,
    /// The endpoint that offered the service or invited.
    host: Option<EndpointAddress>,
    offers: Option<ServiceName>,
    ticket: Option<Ticket>,
}

impl Entrance {
    const fn into(partition: PartitionId) -> Self {
        Self { partition, is_member: true, host: None, offers: None, ticket: None }
    }

    /// As a guest of an endpoint.
    pub(crate) const fn guest(partition: PartitionId, host: EndpointAddress) -> Self {
        Self { host: Some(host), ..Self::into(partition) }
    }
}

impl State {
    pub(crate) fn open(
        &mut self,
        asker: Asker,
        open: Open,
        files: Vec<OwnedFd>,
        now: Duration,
        out: &mut Vec<Outgoing>,
    ) -> Outcome {
        let entrance = match self.entrance(asker, &open, now) {
            Ok(entrance) => entrance,
            // Another node may know the ticket.
            Err(status::NOT_INVITED) if open.flags & (flags::PORT | flags::PORT_LATER) != 0 => {
                return self.ask_for_ticket(asker, open, files);
            }
            Err(status) => return Outcome::Answer(Answer::refused(status)),
        };
        match self.enter(asker, open, files, entrance, out) {
            Ok(opened) => opened,
            Err(answer) => Outcome::Answer(answer),
        }
    }

    /// Opens an endpoint that may come in.
    pub(crate) fn enter(
        &mut self,
        asker: Asker,
        open: Open,
        files: Vec<OwnedFd>,
        entrance: Entrance,
        out: &mut Vec<Outgoing>,
    ) -> Result<Outcome, Answer> {
        let vpid = self.choose_vpid(open.vpid)?;
        let (own, all) = self.endpoints_by(asker.uid);
        let maximum = self.limits.allowance(asker.uid, self.entries.len(), own, all);
        if own >= maximum {
            return Err(Answer::full(maximum));
        }
        let is_port_alone = open.flags & flags::PORT != 0;
        let memory = self.memory(is_port_alone, files);
        let shared = memory.ok_or(Answer::refused(status::INVALID))?;
        let Entrance { partition, is_member, host, offers, ticket } = entrance;
        let opens_port = open.flags & flags::PORT_LATER != 0;
        let port = match (is_port_alone, opens_port) {
            (true, _) => PortState::Untold,
            (false, true) => PortState::Later(Vec::new()),
            (false, false) => PortState::Never,
        };
        // Nothing can fail from here on.
        if let Some(ticket) = ticket {
            self.invitations.take(ticket);
        }
        self.entries[usize::from(vpid)] = Some(Entry {
            process: asker.process,
            pid: asker.pid,
            uid: asker.uid,
            site: self.site_of(asker.process),
            partition,
            is_member,
            offers,
            flags: open.flags & flags::FULL_FENCES,
            slots: open.slots,
            peers_max: usize::from(if open.peers_max == 0 { VPIDS_MAX } else { open.peers_max }),
            birth: open.birth,
            shared,
            port,
            port_counts: None,
            met: BTreeMap::new(),
            pairs: VpidSet::default(),
            awaited: Vec::new(),
            groups: 0,
            asked: 0,
            keys: Vec::new(),
            keys_count: 0,
        });
        if is_member {
            self.tell_groups(partition, vpid, 1 << Group::BROADCAST.number(), out);
            self.announce(vpid);
        }
        if open.flags & flags::AGAIN != 0 {
            self.welcome_back(vpid, open.birth, out);
        }
        if is_port_alone || opens_port && open.flags & flags::AGAIN == 0 {
            let (host_node, host) = host.map_or((0, NO_VPID), |host| (host.node.0, host.vpid.0));
            let (ticket, node, partition) = (open.ticket, self.node.0, partition.0);
            let opened = Opened { ticket, node, vpid, partition, host_node, host };
            out.push(Outgoing::plain(asker.process, opened));
            return Ok(Outcome::Other);
        }
        // An endpoint with memory alone cannot reach a host on another node.
        let host = host.filter(|host| host.node == self.node);
        let opened = OpenedHere { address: self.address(vpid), partition, host };
        Ok(Outcome::Answer(Answer::done(opened.words())))
    }

    /// The memory of an endpoint for its peers, if it has some. `None` if the descriptors are not
    /// of the right kind.
    fn memory(&self, is_port_alone: bool, files: Vec<OwnedFd>) -> Option<Option<Shared>> {
        if is_port_alone {
            return files.is_empty().then_some(None);
        }
        let [doorbell, registers, wakeup] = <[OwnedFd; 3]>::try_from(files).ok()?;
        let copy = wakeup.try_clone().ok().filter(is_socket)?;
        let bell = (self.open_bell)(doorbell.as_fd(), copy)?;
        let files = Files {
            doorbell: Arc::new(doorbell),
            registers: Arc::new(registers),
            wakeup: Arc::new(wakeup),
        };
        Some(Some(Shared { files, bell }))
    }

    /// How an endpoint comes into its partition, or the status of the refusal.
    fn entrance(&mut self, asker: Asker, open: &Open, now: Duration) -> Result<Entrance, u16> {
        let way = calls::way_of(open).ok_or(status::INVALID)?;
        self.invitations.expire(now);
        // An endpoint with memory alone reaches no other node.
        let has_port = open.flags & (flags::PORT | flags::PORT_LATER) != 0;
        let (partition, host) =
            match rules::entrance(&Asking { state: self, has_port }, asker.uid, way) {
                Ok(inside) => inside,
                Err(OpenError::Forbidden { partition })
                    if way == Partition::Numbered(PartitionId(partition))
                        && open.flags & flags::AGAIN != 0
                        && !self.is_settled =>
                {
                    let partition = PartitionId(partition);
                    return Ok(Entrance { is_member: false, ..Entrance::into(partition) });
                }
                Err(error) => {
                    self.invitations.count_refused(&error);
                    return Err(calls::status_of(&error));
                }
            };
        let entrance = Entrance { host, ..Entrance::into(partition) };
        Ok(match way {
            Partition::Offered(_, name) => Entrance { offers: Some(name), ..entrance },
            Partition::Ticket(ticket) => Entrance { ticket: Some(ticket), ..entrance },
            Partition::OfUser
            | Partition::Numbered(_)
            | Partition::Service(_)
            | Partition::ServiceAt(..) => entrance,
        })
    }

    /// All services that are offered on this node and on those that it is joined with.
    pub fn offers(&self) -> impl Iterator<Item = Offer<'_>> {
        let here = (0..).zip(&self.entries).filter_map(|(vpid, entry)| {
            let entry = entry.as_ref()?;
            let name = entry.offers.as_ref()?.as_str();
            let address = address(self.node.0, vpid);
            Some(Offer { name, address, user: entry.uid, partition: entry.partition })
        });
        here.chain(self.offers_elsewhere())
    }

    /// The endpoint that offers a service of this name.
    fn offered(&self, name: ServiceName) -> Option<(u16, &Entry)> {
        (0..).zip(&self.entries).find_map(|(vpid, entry)| {
            let entry = entry.as_ref().filter(|entry| entry.offers == Some(name))?;
            Some((vpid, entry))
        })
    }

    fn choose_vpid(&mut self, wanted: u16) -> Result<u16, Answer> {
        let count = u16::try_from(self.entries.len()).unwrap_or(VPIDS_MAX);
        if wanted != NO_VPID {
            return match self.entries.get(usize::from(wanted)) {
                Some(None) => Ok(wanted),
                Some(Some(_)) => Err(Answer::taken(self.address(wanted))),
                None => Err(Answer::full(usize::from(count))),
            };
        }
        for step in 0..count {
            let vpid = (self.next_vpid + step) % count;
            let mut others = self.entries.iter().flatten();
            let awaited = others.any(|other| other.awaited.iter().any(|(peer, _)| *peer == vpid));
            if self.entry(vpid).is_none() && !awaited {
                // The VPID of an endpoint that just died is not reused at once: late messages about
                // that endpoint would seem to concern the new one.
                self.next_vpid = (vpid + 1) % count;
                return Ok(vpid);
            }
        }
        Err(Answer::full(usize::from(count)))
    }

    pub(crate) fn invite(&mut self, asker: Asker, ask: Invite, now: Duration) -> Answer {
        let Some(host) = self.own(asker, ask.vpid) else {
            return Answer::refused(status::INVALID);
        };
        match host.partition.check_invitation(asker.uid) {
            Ok(()) => {}
            Err(InviteError::DefaultPartition) => {
                return Answer::refused(status::DEFAULT_PARTITION);
            }
            Err(_) => return Answer::refused(status::FORBIDDEN),
        }
        let within = Duration::from_millis(ask.within_ms.into());
        if within.is_zero() || within > Ticket::WITHIN_MAX {
            return Answer::refused(status::INVALID);
        }
        self.invitations.expire(now);
        let (own, all) = (self.invitations.of(asker.uid), self.invitations.count());
        let maximum = self.limits.allowance(asker.uid, self.limits.invitations_max, own, all);
        if own >= maximum {
            return Answer::full(maximum);
        }
        let (ticket, host, user) = (Ticket(ask.invitation.0), ask.vpid, asker.uid);
        let until = now.saturating_add(within);
        self.invitations.add(Invitation { ticket, host, user, until });
        Answer::plain()
    }
}

/// Offers of this node and of those that are joined, and the rules for them, as seen by an endpoint
/// that has a port to other nodes or not.
struct Asking<'a> {
    state: &'a State,
    has_port: bool,
}

impl Doors<EndpointAddress> for Asking<'_> {
    fn offered(&self, name: ServiceName, at: Option<NodeId>) -> Vec<Door<EndpointAddress>> {
        let of_name = self.state.offers().filter(|offer| offer.name == name.as_str());
        let is_wanted = |offer: &Offer<'_>| {
            let node = offer.address.node;
            at.is_none_or(|wanted| wanted == node) && (self.has_port || node == self.state.node)
        };
        let door = |Offer { user, partition, address: host, .. }: Offer<'_>| Door {
            user,
            partition,
            host,
        };
        of_name.filter(is_wanted).map(door).collect()
    }

    fn is_taken(&self, name: ServiceName) -> bool {
        self.state.offered(name).is_some()
    }

    fn invited(&self, ticket: Ticket) -> Option<(PartitionId, EndpointAddress)> {
        let host = self.state.invitations.host(ticket)?;
        Some((self.state.entry(host)?.partition, self.state.address(host)))
    }

    fn may_offer(&self, user: u32, name: ServiceName) -> bool {
        self.state.policy.may_offer(user, name.as_str())
    }

    fn may_use(&self, user: u32, owner: u32, name: ServiceName) -> bool {
        self.state.policy.may_use(user, owner, name.as_str())
    }
}

/// A wakeup must be a socket: only a write to a socket is guaranteed not to block.
fn is_socket(file: &OwnedFd) -> bool {
    // Not by fstat, which asks the server of a file system in user space.
    rustix::net::sockopt::socket_domain(file) == Ok(rustix::net::AddressFamily::UNIX)
}
