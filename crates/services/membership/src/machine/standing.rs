//! Whether this daemon takes part in the fabric, or another one has its identity.
//!
//! A daemon for which the table has another address than its own was moved there, or is a copy of
//! one that still runs. So it first asks at that address. The peers do the same
//! ([`super::moved`]): the copy may reach them alone.

use std::time::Duration;

use super::{ASKED_WITHIN, Admission, ConnectionId, Fault, Machine, NodeState, Output};
use crate::identity::Identity;
use crate::key::Role;
use crate::message::Refusal;

/// How long a daemon is out of the fabric after it heard that another one has its identity.
const OUT_FOR: Duration = Duration::from_secs(5);

/// The part of this daemon in the fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Participation {
    /// It takes part.
    In,
    /// It asks by this connection whether another daemon of its identity is at the address that
    /// the table has.
    Asks { by: ConnectionId, until: Duration },
    /// Another daemon has its identity.
    Out { until: Duration },
}

impl Participation {
    pub(super) const fn is_in(self) -> bool {
        matches!(self, Self::In)
    }

    /// When it is to be looked at again.
    pub(super) const fn ends_at(self) -> Option<Duration> {
        match self {
            Self::In => None,
            Self::Asks { until, .. } | Self::Out { until } => Some(until),
        }
    }
}

impl Machine {
    /// Takes part in the fabric, or asks first at the former address.
    pub(super) fn enter(&mut self) {
        let own = self.roster.as_ref().and_then(|roster| roster.of_identity(&self.config.own));
        let former = own.filter(|own| !own.is_expelled).map(|own| own.address);
        match former.filter(|former| *former != self.config.about.address) {
            None => self.take_part(),
            Some(address) => {
                let by = self.add(Role::Dialer, address.to_string());
                self.outputs.push_back(Output::Dial { connection: by, address });
                self.standing = Participation::Asks { by, until: self.now + ASKED_WITHIN };
            }
        }
    }

    fn take_part(&mut self) {
        self.standing = Participation::In;
        self.set_targets();
        if self.config.admission == Admission::First {
            let (own, about) = (self.config.own, self.config.about.clone());
            self.update(&own, &about);
        }
    }

    /// Looks at the clock.
    pub(super) fn stand(&mut self) {
        if self.standing.ends_at().is_none_or(|until| until > self.now) {
            return;
        }
        match self.standing {
            Participation::In => {}
            Participation::Out { .. } => self.enter(),
            Participation::Asks { by, .. } => {
                let asked = self.connections.get(&by).and_then(|one| one.identity());
                if asked == Some(&self.config.own) {
                    // It is there, and slow.
                    self.suspend(&Refusal::SameIdentity);
                } else {
                    self.end(by, &Fault::Other("it does not answer".to_owned()));
                }
            }
        }
    }

    /// A connection ended. If it was to ask at the former address, nobody is there, unless the
    /// other end said so.
    pub(super) fn has_looked(&mut self, id: ConnectionId, fault: &Fault) {
        if matches!(self.standing, Participation::Asks { by, .. } if by == id)
            && *fault != Fault::Refused(Refusal::SameIdentity)
        {
            self.take_part();
        }
    }

    /// Whether a daemon that proved its identity is told of this one.
    pub(super) fn may_greet(&mut self, id: ConnectionId, identity: Identity) -> bool {
        match self.standing {
            Participation::In => true,
            Participation::Out { .. } => false,
            Participation::Asks { by, .. } if by != id => false,
            Participation::Asks { .. } => {
                // Another host has the former address by now.
                if identity != self.config.own {
                    self.take_part();
                }
                true
            }
        }
    }

    /// Whether the other end of a connection can say that the own identity is that of another
    /// daemon: that one itself, or a node of the fabric.
    pub(super) fn is_believed(&self, id: ConnectionId) -> bool {
        let identity = self.connections.get(&id).and_then(|one| one.identity());
        identity.is_some_and(|identity| {
            let roster = self.roster.as_ref();
            *identity == self.config.own || roster.is_none_or(|own| !own.has_expelled(identity))
        })
    }

    /// Leaves the fabric for some seconds: another daemon has the same identity.
    pub(super) fn suspend(&mut self, refusal: &Refusal) {
        let milliseconds = self.random(2_000);
        let longer = Duration::from_millis(milliseconds);
        self.standing = Participation::Out { until: self.now + OUT_FOR + longer };
        let all: Vec<_> = self.connections.keys().copied().collect();
        for id in all {
            self.end(id, &Fault::Refused(refusal.clone()));
        }
    }

    /// The state of the own node in the table, for people.
    pub(super) fn own_state(&self) -> NodeState {
        match self.standing {
            Participation::In => NodeState::Own,
            Participation::Out { .. } => NodeState::Refused(Refusal::SameIdentity.to_string()),
            Participation::Asks { by, .. } => {
                let place = self.place(by).unwrap_or_default();
                NodeState::Joining(format!(
                    "the address of this host was {place}; asks there whether another daemon has \
                     its identity"
                ))
            }
        }
    }
}
