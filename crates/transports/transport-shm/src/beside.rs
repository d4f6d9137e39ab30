//! A port of a network beside the memory: what the owner of both needs of an endpoint.
//!
//! The endpoint opens no port. It tells its owner when one is wanted, and who it is at the broker.

use weft_fabric::{Group, SendError};

use crate::endpoint::ShmEndpoint;

/// The port beside an endpoint, as the broker is told of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Beside {
    /// There is none.
    Nothing,
    /// One is opened when it is wanted.
    Later,
    /// One is wanted.
    Wanted,
}

impl ShmEndpoint {
    /// Whether a port is wanted since [`ShmEndpoint::port_is_there`] was called last.
    #[inline]
    #[must_use]
    pub fn port_is_wanted(&self) -> bool {
        self.beside == Beside::Wanted
    }

    /// The owner has heard that a port is wanted, and opens it.
    pub fn port_is_there(&mut self) {
        if self.beside == Beside::Wanted {
            self.beside = Beside::Later;
        }
    }

    /// The endpoint opens no port from now on: the broker tells those who want to meet it.
    pub fn refuse_port(&mut self) {
        self.beside = Beside::Nothing;
        self.broker.refuse_port();
    }

    /// The broker wants a port.
    pub(crate) fn want_port(&mut self) {
        if self.beside == Beside::Later {
            self.beside = Beside::Wanted;
        }
    }

    /// The random number of the endpoint, by which the broker tells it from a later one at its
    /// address.
    #[must_use]
    pub const fn birth(&self) -> u64 {
        self.birth
    }

    /// Looks whether the broker was restarted, which a poll does now and then alone.
    pub fn look_at_broker(&mut self) {
        self.handle_broker_messages();
    }

    /// The number of living peers in shared memory.
    #[must_use]
    pub fn peers_here(&self) -> usize {
        self.peers.iter().count()
    }

    /// So many peers are living elsewhere, which count for the endpoint's maximum.
    pub fn count_peers_elsewhere(&mut self, count: usize) {
        self.peers_elsewhere = count;
    }

    /// Whether a poll would hand out an event, or a port is wanted. Makes progress.
    pub fn has_events(&mut self) -> bool {
        self.is_ready()
    }

    /// Looks up the members of a group of this node, as [`weft_fabric::Endpoint::send_multicast`]
    /// does. From then on [`ShmEndpoint::port_is_wanted`] tells if only a port reaches others.
    ///
    /// # Errors
    /// As those of `send_multicast` when the members are not known.
    pub fn look_up_members(&mut self, group: Group) -> Result<(), SendError> {
        self.group_members(group).map(drop).map_err(|error| self.note_send(error))
    }
}
