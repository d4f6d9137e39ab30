//! The pairs that a broker that was restarted is told of.
//!
//! The conversation with the broker announces the endpoint, and the broker knows it then. The
//! endpoint names the pairs that it had, and publishes its keys. No step waits, and none sends more
//! than [`STEP`] messages.
//!
//! Invariant: only pairs from before the restart are named: the broker would wait for the other end
//! of a new one, and then report it dead. It makes none before it knows the endpoint.

use weft_broker::conversation::Announcement;
use weft_fabric::{DownReason, Peer};
use weft_wire::endpoint_control::Remember;

use crate::address_vector::PeerState;
use crate::endpoint::ShmEndpoint;

/// Messages of one step.
pub(crate) const STEP: usize = 64;

/// A pair from before the restart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    vpid: u16,
    birth: u64,
    peer: Peer,
}

impl ShmEndpoint {
    /// A broker that was restarted knows this endpoint, and not its pairs.
    pub(crate) fn known_again(&mut self) {
        let own = self.address.vpid.0;
        let others = self.peers.iter().filter(|peer| peer.vpid() != own);
        let known = |peer: &PeerState| {
            let PeerState { birth, handle, .. } = *peer;
            Known { vpid: peer.vpid(), birth, peer: handle }
        };
        self.unnamed = others.map(known).collect();
    }

    /// Another endpoint has the address, and the peers were told that this one is gone.
    pub(crate) fn replaced(&mut self) {
        let peers: Vec<u16> = self.peers.iter().map(PeerState::vpid).collect();
        for peer in peers {
            self.peer_gone(peer, DownReason::Ended);
        }
    }

    /// Names some of the pairs to the broker. Behind the last it gets the keys.
    pub(crate) fn name_some(&mut self) {
        if self.broker.announcement() != Announcement::Naming {
            return;
        }
        let vpid = self.address.vpid.0;
        let some = self.unnamed.len().min(STEP);
        for Known { vpid: other, birth, peer } in self.unnamed.drain(..some) {
            if self.peers.by_vpid(other).is_some_and(|state| state.handle == peer) {
                // This fails with the connection, and then all begins again.
                self.broker.tell(Remember { vpid, peer: other, birth });
            }
        }
        if self.unnamed.is_empty() {
            self.broker.named_all();
            self.publish_all();
            self.groups_changed(u64::MAX);
        }
    }
}

#[cfg(test)]
#[path = "greeting_tests.rs"]
mod tests;
