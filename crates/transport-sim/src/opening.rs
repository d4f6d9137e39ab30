//! Opening endpoints: who may come into which partition.
//!
//! Invariants: an endpoint comes into a partition of another user by a service that the rules let
//! it use or by an invitation, and in no other way. An invitation is good for one opening, until
//! its time, while its host lives.

use rand::RngExt;
use weft_fabric::{
    Capabilities, EndpointAddress, EndpointOptions, InviteError, NodeId, OpenError, Partition,
    PartitionId, ServiceName, Ticket, Vpid,
};

use crate::completion::EndpointState;
use crate::trace::Kind;
use crate::world::{Id, State};

/// An invitation that has not been used.
#[derive(Debug)]
pub(crate) struct Invitation {
    ticket: Ticket,
    host: Id,
    user: u32,
    /// From this time on it is too late, in nanoseconds.
    until: u64,
}

/// An endpoint that was opened.
pub(crate) struct Opened {
    pub id: Id,
    pub address: EndpointAddress,
    pub partition: PartitionId,
    pub host: Option<EndpointAddress>,
}

impl State {
    /// Opens an endpoint of `user` on `node`.
    pub(crate) fn open(
        &mut self,
        (node, user): (NodeId, u32),
        options: &EndpointOptions,
        capabilities: Capabilities,
    ) -> Result<Opened, OpenError> {
        let (partition, host) = self.entrance((node, user), options.partition)?;
        let address = self.free_address(node, options.vpid)?;
        let id = self.endpoints.len();
        // Nothing can fail from here on.
        match options.partition {
            Partition::Offered(_, name) => {
                self.services.insert((name, node), id);
            }
            Partition::Ticket(ticket) => {
                let used = self.invitations.iter().position(|found| found.ticket == ticket);
                used.map(|place| self.invitations.remove(place));
            }
            Partition::OfUser
            | Partition::Numbered(_)
            | Partition::Service(_)
            | Partition::ServiceAt(..) => {}
        }
        let rail = self.rail_named(&capabilities.rail);
        self.endpoints.push(EndpointState::new(address, partition, user, rail, capabilities));
        self.addresses.insert(address, id);
        self.record(Kind::Open, address, address, partition.0, &[]);
        let host = host.map(|host| self.endpoints[host].address);
        Ok(Opened { id, address, partition, host })
    }

    /// The partition that `user` may come into, and the endpoint that let it in.
    fn entrance(
        &mut self,
        (node, user): (NodeId, u32),
        partition: Partition,
    ) -> Result<(PartitionId, Option<Id>), OpenError> {
        let owned = |partition: PartitionId| {
            let owns = user == 0 || partition.user() == user;
            if owns { Ok(partition) } else { Err(OpenError::Forbidden { partition: partition.0 }) }
        };
        match partition {
            Partition::OfUser => Ok((PartitionId::of_user(user), None)),
            Partition::Numbered(partition) => Ok((owned(partition)?, None)),
            Partition::Offered(partition, name) => {
                self.check_offer((node, user), owned(partition)?, name)?;
                Ok((partition, None))
            }
            Partition::Service(name) => self.guest((node, user), name, None),
            Partition::ServiceAt(name, at) => self.guest((node, user), name, Some(at)),
            Partition::Ticket(ticket) => {
                self.expire();
                let found = self.invitations.iter().find(|found| found.ticket == ticket);
                let host = found.ok_or(OpenError::InvalidTicket)?.host;
                Ok((self.endpoints[host].partition, Some(host)))
            }
        }
    }

    /// The way into a service: by the first of those that offer it, the own node before others,
    /// whose service the user may use.
    fn guest(
        &self,
        (node, user): (NodeId, u32),
        name: ServiceName,
        wanted: Option<NodeId>,
    ) -> Result<(PartitionId, Option<Id>), OpenError> {
        let of_name = self.services.iter().filter(|((offered, _), _)| *offered == name);
        let at_wanted = of_name.filter(|((_, at), _)| wanted.is_none_or(|wanted| wanted == *at));
        let mut hosts: Vec<(NodeId, Id)> = at_wanted.map(|((_, at), id)| (*at, *id)).collect();
        if hosts.is_empty() {
            return Err(OpenError::NotOffered { name });
        }
        hosts.sort_by_key(|(at, _)| (*at != node, *at));
        let may_use = |id: &Id| {
            let owner = self.endpoints[*id].user;
            self.settings.services.may_use(user, owner, name.as_str())
        };
        let host = hosts.into_iter().map(|(_, id)| id).find(may_use);
        let host = host.ok_or(OpenError::ServiceForbidden { name })?;
        Ok((self.endpoints[host].partition, Some(host)))
    }

    fn check_offer(
        &self,
        (node, user): (NodeId, u32),
        partition: PartitionId,
        name: ServiceName,
    ) -> Result<(), OpenError> {
        if partition.is_default() {
            return Err(OpenError::DefaultPartition);
        }
        if !self.settings.services.may_offer(user, name.as_str()) {
            return Err(OpenError::OfferForbidden { name });
        }
        if self.services.contains_key(&(name, node)) {
            return Err(OpenError::NameTaken { name });
        }
        Ok(())
    }

    //= EXTOLL-THESIS#3.2.3
    //# There are 256 VPIDs; a process asks for one before it communicates.
    /// The address to open, if it is free. An unspecified VPID becomes the lowest free one.
    fn free_address(&self, node: NodeId, vpid: Vpid) -> Result<EndpointAddress, OpenError> {
        let maximum = self.capabilities.vpids;
        let free =
            |vpid: &u16| !self.addresses.contains_key(&EndpointAddress::new(node, Vpid(*vpid)));
        if vpid.is_any() {
            let vpid = (0..maximum).find(free).ok_or(OpenError::Exhausted { maximum })?;
            return Ok(EndpointAddress::new(node, Vpid(vpid)));
        }
        if vpid.0 >= maximum {
            return Err(OpenError::Exhausted { maximum });
        }
        let address = EndpointAddress::new(node, vpid);
        if free(&vpid.0) { Ok(address) } else { Err(OpenError::AddressInUse(address)) }
    }

    /// A ticket that was not given before.
    pub(crate) fn new_ticket(&mut self) -> Ticket {
        Ticket(self.random.random())
    }

    /// Lets one endpoint come into the partition of `host` by a ticket, for `within` nanoseconds
    /// from now on.
    pub(crate) fn invite(
        &mut self,
        host: Id,
        ticket: Ticket,
        within: u64,
    ) -> Result<(), InviteError> {
        self.expire();
        let EndpointState { partition, user, .. } = self.endpoints[host];
        if user != 0 && partition.user() != user {
            return Err(InviteError::Forbidden);
        }
        if partition.is_default() {
            return Err(InviteError::DefaultPartition);
        }
        let maximum = self.settings.invitations_max;
        let own = self.invitations.iter().filter(|invitation| invitation.user == user).count();
        if own >= maximum {
            return Err(InviteError::Exhausted { maximum });
        }
        let until = self.now.saturating_add(within);
        self.invitations.push(Invitation { ticket, host, user, until });
        Ok(())
    }

    fn expire(&mut self) {
        let now = self.now;
        self.invitations.retain(|invitation| now < invitation.until);
    }

    /// Ends the services and invitations of an endpoint.
    pub(crate) fn close_doors(&mut self, host: Id) {
        self.services.retain(|_, offering| *offering != host);
        self.invitations.retain(|invitation| invitation.host != host);
    }
}
