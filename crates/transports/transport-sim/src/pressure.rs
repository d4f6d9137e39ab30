//! Memory pressure: an endpoint that gets no memory for a time.
//!
//! # Invariant
//! A program that was refused for lack of memory is told of room when the endpoint has memory
//! again.

use weft_fabric::{EndpointAddress, Peer};

use crate::completion::Queued;
use crate::world::{Id, SimWorld, WorldState};

impl SimWorld {
    /// The endpoint at `address` gets no memory until [`SimWorld::relieve`]: it is refused regions
    /// and keys, messages to it are refused as to a full mailbox, and operations that it begins as
    /// where all are under way. False if there is no endpoint.
    pub fn starve(&self, address: EndpointAddress) -> bool {
        let mut state = self.lock();
        let Some(id) = state.addresses.get(&address).copied() else { return false };
        state.endpoints[id].has_memory = false;
        true
    }

    /// The endpoint at `address` gets memory again. False if there is no endpoint.
    pub fn relieve(&self, address: EndpointAddress) -> bool {
        let mut state = self.lock();
        let Some(id) = state.addresses.get(&address).copied() else { return false };
        state.relieve(id);
        true
    }
}

impl WorldState {
    fn relieve(&mut self, id: Id) {
        let endpoint = &mut self.endpoints[id];
        endpoint.has_memory = true;
        for peer in std::mem::take(&mut endpoint.starved) {
            if !endpoint.peer_mut(peer).down {
                endpoint.events.push_back(Queued::Room(Peer(peer)));
            }
        }
        let peers: Vec<Id> = endpoint.handles.keys().copied().collect();
        for peer in peers {
            let sender = &mut self.endpoints[peer];
            let Some(Peer(handle)) = sender.handle_of(id) else { continue };
            if std::mem::take(&mut sender.peer_mut(handle).refused) {
                sender.events.push_back(Queued::Room(Peer(handle)));
            }
        }
        self.tell_all_group_room();
    }
}
