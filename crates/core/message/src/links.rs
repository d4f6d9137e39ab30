//! The table of peers.
//!
//! Each message looks its peer up, so the peers that were looked up last are found by an index and
//! a comparison. Invariant: a recent place names the slot of its handle, or none.

use std::collections::HashMap;

use weft_fabric::Peer;

use crate::link::{Link, Live};

/// Places for recent look-ups, a power of two.
const RECENT: usize = 16;
/// No slot.
const NONE: u32 = u32::MAX;

/// The peers, by handle.
#[derive(Debug)]
pub(crate) struct Links<R> {
    slots: Vec<Option<Link<R>>>,
    free: Vec<u32>,
    places: HashMap<Peer, u32>,
    recent: [(Peer, u32); RECENT],
}

fn index(slot: u32) -> usize {
    usize::try_from(slot).expect("32 bits fit an index")
}

#[inline]
fn recent_place(peer: Peer) -> usize {
    index(peer.0) % RECENT
}

impl<R> Links<R> {
    pub fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            places: HashMap::new(),
            recent: [(Peer(0), NONE); RECENT],
        }
    }

    /// The state of a peer.
    #[inline]
    pub fn get_mut(&mut self, peer: Peer) -> Option<&mut Link<R>> {
        let (recent, slot) = self.recent[recent_place(peer)];
        let slot = if recent == peer && slot != NONE { slot } else { self.look_up(peer)? };
        self.slots.get_mut(index(slot))?.as_mut()
    }

    /// The state of a peer that is not down and keeps the protocol.
    #[inline]
    pub fn live(&mut self, peer: Peer) -> Option<&mut Live<R>> {
        match self.get_mut(peer) {
            Some(Link::Live(live)) => Some(live),
            _ => None,
        }
    }

    #[cold]
    fn look_up(&mut self, peer: Peer) -> Option<u32> {
        let slot = *self.places.get(&peer)?;
        self.recent[recent_place(peer)] = (peer, slot);
        Some(slot)
    }

    /// Whether the peer has a state.
    pub fn contains(&self, peer: Peer) -> bool {
        self.places.contains_key(&peer)
    }

    /// Sets the state of a peer and returns the former one.
    pub fn insert(&mut self, peer: Peer, link: Link<R>) -> Option<Link<R>> {
        if let Some(place) = self.get_mut(peer) {
            return Some(std::mem::replace(place, link));
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("a handle has 32 bits")
        });
        self.slots[index(slot)] = Some(link);
        self.places.insert(peer, slot);
        None
    }

    /// Removes a peer and returns its state.
    pub fn remove(&mut self, peer: Peer) -> Option<Link<R>> {
        let slot = self.places.remove(&peer)?;
        let recent = &mut self.recent[recent_place(peer)];
        if recent.0 == peer {
            recent.1 = NONE;
        }
        self.free.push(slot);
        self.slots[index(slot)].take()
    }

    /// All states.
    pub fn iter(&self) -> impl Iterator<Item = &Link<R>> {
        self.slots.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_in_the_recent_places_are_told_apart() {
        let mut links: Links<char> = Links::new();
        let peers: Vec<Peer> = (0..5).map(|n| Peer(3 + n * 16)).collect();
        for peer in &peers {
            assert!(links.get_mut(*peer).is_none());
            assert!(links.insert(*peer, Link::Live(Live::new(*peer, 32))).is_none());
        }
        for peer in peers.iter().chain(&peers) {
            assert_eq!(links.live(*peer).map(|live| live.peer), Some(*peer));
        }
        assert!(links.remove(peers[1]).is_some() && links.live(peers[1]).is_none());
        assert!(links.insert(peers[4], Link::Ended).is_some() && links.live(peers[4]).is_none());
        // A slot that is used again is not found by its former handle.
        assert!(links.live(peers[0]).is_some());
        links.remove(peers[0]);
        links.insert(Peer(1), Link::Ended);
        links.insert(Peer(2), Link::Ended);
        assert!(links.get_mut(peers[0]).is_none() && !links.contains(peers[0]));
        assert_eq!(links.iter().count(), 5);
    }
}
