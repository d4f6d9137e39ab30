//! Opening endpoints: who may come into which partition.
//!
//! Invariants: an endpoint comes into a partition of another user by a service that the rules let
//! it use or by an invitation, and in no other way. An invitation is good for one opening, until
//! its time, while its host lives.

use rand::RngExt;
use weft_fabric::rules::{Door, Doors, entrance};
use weft_fabric::{
    Capabilities, EndpointAddress, EndpointOptions, InviteError, NodeId, OpenError, Partition,
    PartitionId, ServiceName, Ticket, Vpid,
};

use crate::completion::EndpointState;
use crate::trace::Kind;
use crate::world::{Id, WorldState};

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

impl WorldState {
    /// Opens an endpoint of `user` on `node`.
    pub(crate) fn open(
        &mut self,
        (node, user): (NodeId, u32),
        options: &EndpointOptions,
        capabilities: Capabilities,
    ) -> Result<Opened, OpenError> {
        self.expire();
        let (partition, host) = entrance(&From { world: self, node }, user, options.partition)?;
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
        partition.check_invitation(user)?;
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

/// Offers and the rules for them, as an endpoint of this node sees them. Invitations that are
/// too late are gone before they are asked for.
struct From<'a> {
    world: &'a WorldState,
    node: NodeId,
}

impl Doors<Id> for From<'_> {
    fn offered(&self, name: ServiceName, at: Option<NodeId>) -> Vec<Door<Id>> {
        let of_name = self.world.services.iter().filter(|((offered, _), _)| *offered == name);
        let is_wanted = |node: NodeId| at.is_none_or(|wanted| wanted == node);
        let all = of_name.filter(|((_, node), _)| is_wanted(*node));
        let mut all: Vec<(NodeId, Id)> = all.map(|((_, node), host)| (*node, *host)).collect();
        all.sort_by_key(|(node, _)| (*node != self.node, *node));
        let door = |(_, host): (NodeId, Id)| {
            let EndpointState { user, partition, .. } = self.world.endpoints[host];
            Door { user, partition, host }
        };
        all.into_iter().map(door).collect()
    }

    fn is_taken(&self, name: ServiceName) -> bool {
        self.world.services.contains_key(&(name, self.node))
    }

    fn invited(&self, ticket: Ticket) -> Option<(PartitionId, Id)> {
        let found = self.world.invitations.iter().find(|found| found.ticket == ticket)?;
        Some((self.world.endpoints[found.host].partition, found.host))
    }

    fn may_offer(&self, user: u32, name: ServiceName) -> bool {
        self.world.settings.services.may_offer(user, name.as_str())
    }

    fn may_use(&self, user: u32, owner: u32, name: ServiceName) -> bool {
        self.world.settings.services.may_use(user, owner, name.as_str())
    }
}
