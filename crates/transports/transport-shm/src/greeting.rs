//! The announcement of an endpoint to a broker that was restarted.
//!
//! The endpoint opens again under its address, joins its groups, names the pairs that it had, and
//! publishes its keys. No step waits, and none sends more than [`STEP`] messages. The broker
//! handles requests in order, so that the program's own ones may follow at once.
//!
//! # Invariants
//! - A broker that is restarted once more is told everything from the beginning.
//! - Only pairs from before the restart are named: the broker would wait for the other end of a
//!   new one, and then report it dead.
//! - A broker that does not answer is never asked twice: the second request would find the address
//!   taken. Polls look for its answer for [`ANSWER_WITHIN`], and from then on from time to time.

use std::os::fd::AsFd;
use std::time::Duration;

use weft_broker::ANSWER_WITHIN;
use weft_broker::Connection;
use weft_broker::answers::OpenedHere;
use weft_broker::calls::way_into;
use weft_fabric::{DownReason, Partition, Peer};
use weft_wire::endpoint_control::{Join, Remember, Reply, flags, status};

use crate::address_vector::PeerState;
use crate::domain::describe;
use crate::endpoint::ShmEndpoint;
use crate::sys;

/// Messages of one step.
pub(crate) const STEP: usize = 64;

/// How far a broker knows the endpoint.
#[derive(Debug)]
pub(crate) enum Greeting {
    /// As far as it has to.
    Over,
    /// The connection is new, and its broker has said nothing.
    Expected,
    /// It was told nothing.
    Due,
    /// It was asked to open the endpoint again.
    Opening { ticket: u32, until: Duration, pairs: Vec<Known> },
    /// It knows the endpoint, and not these pairs.
    Remembering(Vec<Known>),
}

/// A pair from before the restart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    vpid: u16,
    birth: u64,
    peer: Peer,
}

impl Greeting {
    /// Whether polls have to look after it.
    #[inline]
    pub fn is_under_way(&self) -> bool {
        match self {
            Self::Over => false,
            Self::Expected | Self::Due | Self::Remembering(_) => true,
            Self::Opening { until, .. } => sys::now() < *until,
        }
    }

    /// Whether its next step waits for nobody, so that the endpoint must not sleep.
    pub fn has_steps(&self) -> bool {
        matches!(self, Self::Due | Self::Remembering(_))
    }
}

impl ShmEndpoint {
    /// The broker was `restarted`, or is what its connection says: begins the announcement, or
    /// gives it up. True when the broker was asked something.
    pub(crate) fn greet_if_due(&mut self, restarted: bool) -> bool {
        if restarted {
            self.restarted = Some(sys::now());
        }
        match self.client.connection() {
            Connection::Lost => self.greeting = Greeting::Over,
            Connection::Greeting => self.greeting = Greeting::Expected,
            Connection::Open if restarted => self.greeting = Greeting::Due,
            Connection::Open => {}
        }
        if (restarted || matches!(self.greeting, Greeting::Expected))
            && let (Some(wakeup_and_line), Some(line)) = (&self.wakeup_and_line, self.client.line())
        {
            // This fails when it is watched already, and when no descriptors are left; waits still
            // look once per slice.
            let _ = sys::watch_also(wakeup_and_line.as_fd(), line);
        }
        matches!(self.greeting, Greeting::Due) && self.greet()
    }

    /// Asks the broker to open the endpoint again, and to let it join its groups. False when that
    /// could not be sent; the next look tries again.
    fn greet(&mut self) -> bool {
        let own = self.address.vpid.0;
        let others = self.peers.iter().filter(|peer| peer.vpid() != own);
        let known = |peer: &PeerState| {
            let PeerState { birth, handle, .. } = *peer;
            Known { vpid: peer.vpid(), birth, peer: handle }
        };
        let pairs = others.map(known).collect();
        let ticket = self.next_ticket();
        let partition = match self.offers {
            Some(name) => Partition::Offered(self.partition, name),
            None => Partition::Numbered(self.partition),
        };
        let mut open = way_into(partition);
        open.flags |= flags::AGAIN;
        (open.ticket, open.vpid, open.birth) = (ticket, own, self.birth);
        describe(&mut open, self.full_fences, self.beside, &self.capabilities);
        let files =
            [self.doorbell_file.as_fd(), self.registers_file.as_fd(), self.doorbell.wakeup()];
        if self.client.start(open.into(), &files).is_err() {
            return false;
        }
        // Before any request of the program, which may be to leave one of them.
        let joined = self.groups.joined;
        for group in (0..64).filter(|group| joined & (1 << group) != 0) {
            let ticket = self.next_ticket();
            let _ = self.client.start(Join { ticket, vpid: own, group }.into(), &[]);
        }
        let until = sys::now().saturating_add(ANSWER_WITHIN);
        self.greeting = Greeting::Opening { ticket, until, pairs };
        true
    }

    /// The broker answered the request with this ticket. True if that is the announcement.
    pub(crate) fn greeted(&mut self, reply: &Reply) -> bool {
        let Greeting::Opening { ticket, pairs, .. } = &mut self.greeting else { return false };
        if *ticket != reply.ticket {
            return false;
        }
        self.greeting = match reply.status {
            status::DONE if OpenedHere::of(reply).address == self.address => {
                Greeting::Remembering(std::mem::take(pairs))
            }
            // Another endpoint was faster: this one stays, without the name.
            status::NAME_TAKEN if self.offers.take().is_some() => Greeting::Due,
            // Too late: another endpoint has the VPID, and the peers were told that this endpoint
            // is gone.
            _ => {
                let peers: Vec<u16> = self.peers.iter().map(PeerState::vpid).collect();
                for peer in peers {
                    self.peer_gone(peer, DownReason::Ended);
                }
                Greeting::Over
            }
        };
        true
    }

    /// Names some of the pairs to the broker. Behind the last it gets the keys.
    pub(crate) fn remember_some(&mut self) {
        let Greeting::Remembering(pairs) = &mut self.greeting else { return };
        let vpid = self.address.vpid.0;
        for Known { vpid: other, birth, peer } in pairs.drain(..pairs.len().min(STEP)) {
            if self.peers.by_vpid(other).is_some_and(|state| state.handle == peer) {
                let pair = Remember { vpid, peer: other, birth };
                // This fails with the connection, and then all begins again.
                let _ = self.client.start(pair.into(), &[]);
            }
        }
        if pairs.is_empty() {
            self.greeting = Greeting::Over;
            self.publish_all();
            self.groups_changed(u64::MAX);
        }
    }
}

#[cfg(test)]
#[path = "greeting_tests.rs"]
mod tests;
