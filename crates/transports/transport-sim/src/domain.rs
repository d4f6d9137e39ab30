//! The fabric as seen by the programs of one user on one node: connecting, joining.
//!
//! Invariants: an address names at most one live endpoint. Endpoints of another partition are not
//! found; `opening` says who comes into one. An endpoint gets the same handle for a peer as long as
//! the peer lives.

use weft_fabric::{
    Capabilities, ConnectError, DownReason, EndpointAddress, EndpointOptions, Group, GroupError,
    NodeId, OpenError, OperationError, Peer, Transport,
};

use crate::completion::EndpointState;
use crate::endpoint::SimEndpoint;
use crate::progress::{Body, Flight};
use crate::world::{Id, SimWorld, WorldState};

/// The simulated fabric for one user on one node.
#[derive(Clone, Debug)]
pub struct SimTransport {
    world: SimWorld,
    node: NodeId,
    user: u32,
    capabilities: Capabilities,
}

impl SimTransport {
    pub(crate) fn new(
        world: SimWorld,
        node: NodeId,
        user: u32,
        capabilities: Capabilities,
    ) -> Self {
        Self { world, node, user, capabilities }
    }
}

impl Transport for SimTransport {
    type Endpoint = SimEndpoint;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn open(&self, options: &EndpointOptions) -> Result<SimEndpoint, OpenError> {
        let mut state = self.world.lock();
        let capabilities = state.settings.limited(&options.limits, options.class);
        let capabilities = capabilities.on_rail(options.rail.as_deref())?;
        let opened = state.open((self.node, self.user), options, capabilities.clone())?;
        drop(state);
        Ok(SimEndpoint::new(self.world.clone(), opened, capabilities))
    }
}

impl WorldState {
    /// The handle of `id` for the endpoint at `to`.
    pub(crate) fn connect(&mut self, id: Id, to: EndpointAddress) -> Result<u32, ConnectError> {
        let partition = self.endpoints[id].partition;
        let found = self.addresses.get(&to).copied();
        let visible = |other: &Id| {
            let is_ours = self.endpoints[*other].partition == partition;
            is_ours && self.endpoints[id].alive && !self.is_cut_off(id, *other)
        };
        let other = found.filter(visible).ok_or(ConnectError::NotFound(to))?;
        self.handle(id, other)
    }

    /// The handle of `id` for the endpoint `other`. If there is none, each of the two gets one for
    /// the other.
    pub(crate) fn handle(&mut self, id: Id, other: Id) -> Result<u32, ConnectError> {
        if let Some(handle) = self.endpoints[id].handles.get(&other) {
            return Ok(*handle);
        }
        // The other end has not heard yet that this one gave it up.
        if self.endpoints[other].handles.contains_key(&id) {
            self.report_down(other, id, DownReason::Disconnected);
        }
        if let Some(maximum) = self.full(id).or(self.full(other)) {
            return Err(ConnectError::Exhausted { maximum });
        }
        let next = |id: Id| u32::try_from(self.endpoints[id].peers.len()).unwrap_or(u32::MAX);
        let (own, theirs) = (next(id), next(other));
        if id == other {
            return Ok(self.endpoints[id].add_peer(id, own));
        }
        self.endpoints[other].add_peer(id, own);
        Ok(self.endpoints[id].add_peer(other, theirs))
    }

    /// The maximum of peers, if an endpoint has it.
    pub(crate) fn full(&self, id: Id) -> Option<usize> {
        let EndpointState { handles, capabilities, .. } = &self.endpoints[id];
        (handles.len() >= capabilities.peers_max).then_some(capabilities.peers_max)
    }

    /// Ends the pair of `id` with a peer.
    pub(crate) fn disconnect(&mut self, id: Id, peer: Peer) -> Result<(), OperationError> {
        let target = self.target_of(id, peer)?;
        let mirror = self.endpoints[id].peer_mut(peer.0).mirror;
        self.report_down(id, target, DownReason::Disconnected);
        if id != target {
            let epoch = self.epoch(id, target);
            let body = Body::Down { peer: mirror, reason: DownReason::Disconnected };
            self.send_now(Flight { from: id, to: target, epoch, body }, 0);
        }
        Ok(())
    }

    /// Joins or leaves a group.
    pub(crate) fn change_group(
        &mut self,
        id: Id,
        group: Group,
        join: bool,
    ) -> Result<(), GroupError> {
        let endpoint = &self.endpoints[id];
        if !endpoint.alive {
            return Err(GroupError::UnknownEndpoint);
        }
        let members = self.groups.entry((endpoint.partition, group.number())).or_default();
        if join {
            members.insert(id)
        } else {
            members.remove(&id)
        };
        self.tell_all_group_room();
        Ok(())
    }

    /// Members came or went: tells every endpoint of the groups that have room by now.
    pub(crate) fn tell_all_group_room(&mut self) {
        for id in self.group_waiters.clone() {
            self.tell_group_room(id);
        }
    }
}
