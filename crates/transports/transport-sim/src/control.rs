//! Connects, changes of groups, grants, revocations and invitations: calls that take the time
//! [`crate::Settings::control_ns`].
//!
//! Invariants: what a call changes, it changes when it ends, with one exception: a key that is
//! revoked is void at once. A call that its caller gave up changes nothing. [`CONTROLS_MAX`] bounds
//! the calls that have not ended and the ends that were not polled, together.

use std::time::Duration;

use weft_fabric::{
    Completion, ConnectError, EndpointAddress, GrantError, Group, GroupError, InviteError, Issued,
    OperationError, Peer, RemoteKey, Revoked, Ticket, Value,
};

use crate::completion::Queued;
use crate::memory::Key;
use crate::progress::Occasion;
use crate::world::{Id, WorldState};

/// Calls of one endpoint that have not taken effect, or whose ends were not polled.
const CONTROLS_MAX: usize = 8192;

/// A call that has not taken effect.
#[derive(Debug)]
pub(crate) struct Control {
    context: u64,
    wanted: WantedControl,
}

/// The change that a call is for.
#[derive(Debug)]
pub(crate) enum WantedControl {
    Connect(EndpointAddress),
    Group {
        group: Group,
        join: bool,
    },
    Grant(Key),
    /// The key is void already.
    Revoke,
    /// A ticket that is good for so many nanoseconds.
    Invite(Ticket, u64),
}

impl WorldState {
    /// Starts a call, or makes it whole where calls take no time.
    pub(crate) fn control(
        &mut self,
        id: Id,
        wanted: WantedControl,
        context: u64,
    ) -> Result<Issued, OperationError> {
        if self.settings.control_ns == 0 {
            return self.take_effect(id, wanted).map(Issued::Done);
        }
        // A revocation takes something back and must not fail. Keys bound their number.
        let takes_back = matches!(wanted, WantedControl::Revoke);
        let endpoint = &mut self.endpoints[id];
        if endpoint.controls_open >= CONTROLS_MAX && !takes_back {
            let reason = "too many calls wait for their end; poll first".to_owned();
            return Err(OperationError::Broker { reason });
        }
        endpoint.controls_open += 1;
        self.next_operation += 1;
        let number = self.next_operation;
        self.endpoints[id].controls.insert(number, Control { context, wanted });
        let time = self.now.saturating_add(self.settings.control_ns);
        self.schedule(time, Occasion::Control { endpoint: id, number });
        Ok(Issued::Pending)
    }

    /// A call takes effect.
    pub(crate) fn control_due(&mut self, id: Id, number: u64) {
        // The call was given up, or its endpoint has ended.
        let Some(control) = self.endpoints[id].controls.remove(&number) else { return };
        let result = self.take_effect(id, control.wanted);
        let completion = Completion { context: control.context, result };
        self.endpoints[id].events.push_back(Queued::Ended(completion));
    }

    fn take_effect(&mut self, id: Id, wanted: WantedControl) -> Result<Value, OperationError> {
        Ok(match wanted {
            WantedControl::Connect(to) => Value::Peer(Peer(self.connect(id, to)?)),
            WantedControl::Group { group, join } => {
                self.change_group(id, group, join)?;
                Value::Nothing
            }
            WantedControl::Grant(key) => Value::Key(self.grant(key)?),
            WantedControl::Invite(ticket, within) => {
                self.invite(id, ticket, within)?;
                Value::Nothing
            }
            WantedControl::Revoke => Value::Revoked(Revoked::Published),
        })
    }

    /// Starts a connect.
    pub(crate) fn start_connect(
        &mut self,
        id: Id,
        to: EndpointAddress,
        context: u64,
    ) -> Result<Issued, ConnectError> {
        if !to.is_exact() {
            return Err(ConnectError::NotExact(to));
        }
        self.control(id, WantedControl::Connect(to), context).map_err(|error| match error {
            OperationError::Connect(error) => error,
            other => ConnectError::Broker { reason: reason_of(other) },
        })
    }

    /// Starts to join or leave a group.
    pub(crate) fn start_group(
        &mut self,
        id: Id,
        group: Group,
        join: bool,
        context: u64,
    ) -> Result<Issued, GroupError> {
        if group == Group::BROADCAST {
            return Err(GroupError::Broadcast);
        }
        let wanted = WantedControl::Group { group, join };
        self.control(id, wanted, context).map_err(|error| match error {
            OperationError::Group(error) => error,
            other => GroupError::Broker { reason: reason_of(other) },
        })
    }

    /// Starts a grant.
    pub(crate) fn start_grant(
        &mut self,
        id: Id,
        key: Key,
        context: u64,
    ) -> Result<Issued, GrantError> {
        self.control(id, WantedControl::Grant(key), context).map_err(right_error)
    }

    /// Starts a revocation.
    pub(crate) fn start_revoke(
        &mut self,
        id: Id,
        key: RemoteKey,
        context: u64,
    ) -> Result<Issued, GrantError> {
        self.revoke(id, key)?;
        self.control(id, WantedControl::Revoke, context).map_err(right_error)
    }

    /// Starts an invitation.
    pub(crate) fn start_invite(
        &mut self,
        id: Id,
        within: Duration,
        context: u64,
    ) -> Result<(Ticket, Issued), InviteError> {
        if within.is_zero() || within > Ticket::WITHIN_MAX {
            return Err(InviteError::InvalidTime);
        }
        let ticket = self.new_ticket();
        let within = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        let started = self.control(id, WantedControl::Invite(ticket, within), context);
        match started {
            Ok(issued) => Ok((ticket, issued)),
            Err(OperationError::Invite(error)) => Err(error),
            Err(other) => Err(InviteError::Broker { reason: reason_of(other) }),
        }
    }

    /// Takes the end of the call with this context from the queue of events.
    pub(crate) fn take_ended(
        &mut self,
        id: Id,
        context: u64,
    ) -> Option<Result<Value, OperationError>> {
        let events = &mut self.endpoints[id].events;
        let place = events
            .iter()
            .position(|queued| matches!(queued, Queued::Ended(end) if end.context == context))?;
        let taken = events.remove(place);
        self.endpoints[id].controls_open -= 1;
        match taken {
            Some(Queued::Ended(Completion { result, .. })) => Some(result),
            _ => unreachable!("the event is the end of a call"),
        }
    }

    /// Whether a call with this context has not taken effect.
    pub(crate) fn awaits(&self, id: Id, context: u64) -> bool {
        self.endpoints[id].controls.values().any(|control| control.context == context)
    }

    /// Gives up the first call with this context.
    pub(crate) fn give_up(&mut self, id: Id, context: u64) {
        let controls = &mut self.endpoints[id].controls;
        let found = controls.iter().find(|(_, control)| control.context == context);
        if let Some(number) = found.map(|(number, _)| *number) {
            controls.remove(&number);
            self.endpoints[id].controls_open -= 1;
        }
    }
}

fn right_error(error: OperationError) -> GrantError {
    match error {
        OperationError::Grant(error) => error,
        other => GrantError::Broker { reason: reason_of(other) },
    }
}

fn reason_of(error: OperationError) -> String {
    match error {
        OperationError::Broker { reason } => reason,
        other => other.to_string(),
    }
}
