//! Messages, to one peer or to all members of a group.
//!
//! Invariant: a message takes a credit of its receiver's mailbox, which returns when the receiving
//! program takes the message. So at most as many messages of one sender are on their way or
//! wait as the mailboxes of both ends are deep. A pair that ends and is made again gives no more:
//! what came by the former pair counts until it is taken.

use weft_fabric::{Group, MessageHeader, Peer, Register, SendError};

use crate::completion::Queued;
use crate::memory::bytes_of;
use crate::progress::{Body, Flight};
use crate::world::{Id, WorldState};

impl WorldState {
    /// Sends a message to one peer.
    pub(crate) fn send_short(
        &mut self,
        id: Id,
        peer: Peer,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<(), SendError> {
        let endpoint = &self.endpoints[id];
        let state = endpoint.peer(peer).ok_or(SendError::UnknownPeer)?;
        if state.down || !endpoint.alive {
            return Err(SendError::PeerDown);
        }
        let payload = self.gather(header, parts)?;
        if !self.has_room(id, peer.0) {
            self.endpoints[id].count(Register::Refused, 1);
            return Err(SendError::WouldBlock);
        }
        self.count_sent(id, payload.len());
        self.send_to(id, peer.0, header, None, payload);
        Ok(())
    }

    //= EXTOLL-THESIS#3.2.2
    //# With the multicast bit set, the target node is read as a group.
    /// Sends a message to every other member of a group that is reachable, or to none.
    pub(crate) fn send_multicast(
        &mut self,
        id: Id,
        group: Group,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<usize, SendError> {
        if !self.endpoints[id].alive {
            return Err(SendError::PeerDown);
        }
        let payload = self.gather(header, parts)?;
        let mut peers = Vec::new();
        for member in self.members(id, group) {
            match (self.handle(id, member), self.full(id)) {
                (Ok(peer), _) => peers.push(peer),
                (Err(_), Some(maximum)) => return Err(SendError::Exhausted { maximum }),
                // The member has as many peers as it may have.
                (Err(_), None) => {}
            }
        }
        if peers.iter().any(|peer| self.is_full(id, *peer)) {
            let endpoint = &mut self.endpoints[id];
            endpoint.count(Register::Refused, 1);
            endpoint.refused_groups.insert(group);
            self.group_waiters.insert(id);
            return Err(SendError::WouldBlock);
        }
        for peer in &peers {
            self.count_sent(id, payload.len());
            self.send_to(id, *peer, header, Some(group), payload.clone());
        }
        Ok(peers.len())
    }

    /// The other members of a group that are reachable.
    fn members(&self, id: Id, group: Group) -> Vec<Id> {
        let partition = self.endpoints[id].partition;
        let everyone = self.addresses.values().copied().filter(|other| {
            let other = &self.endpoints[*other];
            other.partition == partition
        });
        let joined = self.groups.get(&(partition, group.number()));
        let candidates: Vec<Id> = if group == Group::BROADCAST {
            everyone.collect()
        } else {
            joined.into_iter().flatten().copied().collect()
        };
        let reachable = |other: &Id| {
            *other != id && self.endpoints[*other].alive && !self.is_cut_off(id, *other)
        };
        candidates.into_iter().filter(reachable).collect()
    }

    /// Checks the header and the length, and gathers the payload.
    fn gather(&self, header: MessageHeader, parts: &[&[u8]]) -> Result<Vec<u8>, SendError> {
        self.capabilities.check_message(header, parts)?;
        Ok(parts.concat())
    }

    /// Tells an endpoint of the groups to which a message was refused, and whose members have room
    /// by now.
    pub(crate) fn tell_group_room(&mut self, id: Id) {
        if self.endpoints[id].refused_groups.is_empty() || !self.endpoints[id].alive {
            return;
        }
        for group in std::mem::take(&mut self.endpoints[id].refused_groups) {
            let mut peers = self.members(id, group).into_iter();
            let is_full = peers.any(|member| {
                let peer = self.endpoints[id].handle_of(member);
                peer.is_some_and(|peer| self.is_full(id, peer.0))
            });
            let endpoint = &mut self.endpoints[id];
            if is_full {
                endpoint.refused_groups.insert(group);
            } else {
                endpoint.events.push_back(Queued::GroupRoom(group));
            }
        }
        if self.endpoints[id].refused_groups.is_empty() {
            self.group_waiters.remove(&id);
        }
    }

    /// True when the mailbox of a peer has room. If not, the peer's next credit causes
    /// [`weft_fabric::Event::Room`].
    fn has_room(&mut self, id: Id, peer: u32) -> bool {
        let is_full = self.is_full(id, peer);
        self.endpoints[id].peer_mut(peer).refused |= is_full;
        !is_full
    }

    /// Whether the mailbox of a peer has no room, also because of what came by former pairs.
    fn is_full(&self, id: Id, peer: u32) -> bool {
        let depth = |of: Id| self.endpoints[of].capabilities.mailbox_depth;
        let Some(state) = self.endpoints[id].peer(Peer(peer)) else { return true };
        let target = &self.endpoints[state.target];
        let former = target.former(id).messages;
        !target.has_memory || state.messages_out + former >= depth(id).min(depth(state.target))
    }

    fn count_sent(&mut self, id: Id, length: usize) {
        let endpoint = &mut self.endpoints[id];
        endpoint.count(Register::MessagesSent, 1);
        endpoint.count(Register::MessageBytesSent, bytes_of(length));
    }

    fn send_to(
        &mut self,
        id: Id,
        peer: u32,
        header: MessageHeader,
        group: Option<Group>,
        payload: Vec<u8>,
    ) {
        let state = self.endpoints[id].peer_mut(peer);
        state.messages_out += 1;
        let to = state.target;
        let epoch = self.epoch(id, to);
        let length = bytes_of(payload.len());
        let body = Body::Message { peer, header, group, payload };
        self.send_now(Flight { from: id, to, epoch, body }, length);
    }
}
