//! Calls that wait for their end, for programs that have no loop.

use std::time::Duration;

use crate::address::{EndpointAddress, Group};
use crate::endpoint::{Audience, Endpoint, LocalRange, Peer, Revoked};
use crate::error::{ConnectError, GrantError, GroupError, InviteError, OperationError};
use crate::operation::{Access, Issued, RemoteKey, Value};
use crate::service::Ticket;

/// A timeout for programs that have no better one.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The calls of [`Endpoint`] that ask the broker or a peer, each with a wait for its end.
///
/// The wait hands out no event: messages and completions of other calls stay for
/// [`Endpoint::poll`]. The context [`Blocking::CONTEXT`] belongs to these calls.
///
/// ```
/// # use weft_fabric::{Blocking, ConnectError, Endpoint, EndpointOptions, NodeId, Transport, Vpid};
/// # use weft_fabric::{EndpointAddress, PATIENCE};
/// # let world = weft_transport_sim::SimWorld::new(weft_transport_sim::Settings::seeded(1));
/// # let transport = world.transport(NodeId(0), 1000);
/// let mut endpoint = transport.open(&EndpointOptions::default())?;
/// let nobody = EndpointAddress::new(NodeId(0), Vpid(99));
/// let refused = endpoint.connect_within(nobody, PATIENCE);
/// assert_eq!(refused, Err(ConnectError::NotFound(nobody)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Blocking: Endpoint {
    /// The context of the calls.
    const CONTEXT: u64 = u64::MAX;

    /// As [`Endpoint::connect`].
    ///
    /// # Errors
    /// [`ConnectError`]; [`ConnectError::Broker`] when the timeout has passed.
    fn connect_within(
        &mut self,
        to: EndpointAddress,
        timeout: Duration,
    ) -> Result<Peer, ConnectError> {
        let issued = self.connect(to, Self::CONTEXT)?;
        let late = || ConnectError::Broker { reason: late(timeout) };
        let result = ended(self, issued, timeout).ok_or_else(late)?;
        match result {
            Ok(Value::Peer(peer)) => Ok(peer),
            Ok(value) => Err(ConnectError::Broker { reason: unexpected(value) }),
            Err(OperationError::Connect(error)) => Err(error),
            Err(other) => Err(ConnectError::Broker { reason: other.to_string() }),
        }
    }

    /// As [`Endpoint::join`].
    ///
    /// # Errors
    /// [`GroupError`]; [`GroupError::Broker`] when the timeout has passed.
    fn join_within(&mut self, group: Group, timeout: Duration) -> Result<(), GroupError> {
        let issued = self.join(group, Self::CONTEXT)?;
        group_changed(self, issued, timeout)
    }

    /// As [`Endpoint::leave`].
    ///
    /// # Errors
    /// As [`Blocking::join_within`].
    fn leave_within(&mut self, group: Group, timeout: Duration) -> Result<(), GroupError> {
        let issued = self.leave(group, Self::CONTEXT)?;
        group_changed(self, issued, timeout)
    }

    /// As [`Endpoint::grant`].
    ///
    /// # Errors
    /// [`GrantError`]; [`GrantError::Broker`] when the timeout has passed. No key is in force then.
    fn grant_within(
        &mut self,
        range: LocalRange<'_, Self::Region>,
        audience: Audience,
        access: Access,
        timeout: Duration,
    ) -> Result<RemoteKey, GrantError> {
        let issued = self.grant(range, audience, access, Self::CONTEXT)?;
        let late = || GrantError::Broker { reason: late(timeout) };
        match right_changed(ended(self, issued, timeout).ok_or_else(late)?)? {
            Value::Key(key) => Ok(key),
            value => Err(GrantError::Broker { reason: unexpected(value) }),
        }
    }

    /// As [`Endpoint::revoke`].
    ///
    /// # Errors
    /// [`GrantError`]. When the timeout has passed, the key is void, and the result is
    /// [`Revoked::Local`].
    fn revoke_within(&mut self, key: RemoteKey, timeout: Duration) -> Result<Revoked, GrantError> {
        let issued = self.revoke(key, Self::CONTEXT)?;
        match ended(self, issued, timeout) {
            None => Ok(Revoked::Local),
            Some(result) => match right_changed(result)? {
                Value::Revoked(revoked) => Ok(revoked),
                value => Err(GrantError::Broker { reason: unexpected(value) }),
            },
        }
    }

    /// As [`Endpoint::resolve`].
    ///
    /// # Errors
    /// [`OperationError`]; [`OperationError::Broker`] when the timeout has passed.
    fn resolve_within(
        &mut self,
        of: Peer,
        key: RemoteKey,
        timeout: Duration,
    ) -> Result<(), OperationError> {
        let issued = self.resolve(of, key, Self::CONTEXT)?;
        let late = || OperationError::Broker { reason: late(timeout) };
        ended(self, issued, timeout).ok_or_else(late)?.map(drop)
    }

    /// As [`Endpoint::invite`].
    ///
    /// # Errors
    /// [`InviteError`]; [`InviteError::Broker`] when the timeout has passed.
    fn invite_within(
        &mut self,
        within: Duration,
        timeout: Duration,
    ) -> Result<Ticket, InviteError> {
        let (ticket, issued) = self.invite(within, Self::CONTEXT)?;
        let late = || InviteError::Broker { reason: late(timeout) };
        match ended(self, issued, timeout).ok_or_else(late)? {
            Ok(_) => Ok(ticket),
            Err(OperationError::Invite(error)) => Err(error),
            Err(other) => Err(InviteError::Broker { reason: other.to_string() }),
        }
    }
}

impl<E: Endpoint> Blocking for E {}

/// The end of a call; `None` after the timeout.
fn ended<E: Endpoint + ?Sized>(
    endpoint: &mut E,
    issued: Issued,
    timeout: Duration,
) -> Option<Result<Value, OperationError>> {
    match issued {
        Issued::Done(value) => Some(Ok(value)),
        Issued::Pending => endpoint.finish(u64::MAX, timeout),
    }
}

fn group_changed<E: Endpoint + ?Sized>(
    endpoint: &mut E,
    issued: Issued,
    timeout: Duration,
) -> Result<(), GroupError> {
    match ended(endpoint, issued, timeout) {
        Some(Ok(_)) => Ok(()),
        Some(Err(OperationError::Group(error))) => Err(error),
        Some(Err(other)) => Err(GroupError::Broker { reason: other.to_string() }),
        None => Err(GroupError::Broker { reason: late(timeout) }),
    }
}

fn right_changed(result: Result<Value, OperationError>) -> Result<Value, GrantError> {
    result.map_err(|error| match error {
        OperationError::Grant(error) => error,
        other => GrantError::Broker { reason: other.to_string() },
    })
}

/// The transport gave the value of another call.
fn unexpected(value: Value) -> String {
    format!("the transport answered with {value:?}")
}

fn late(timeout: Duration) -> String {
    format!("no answer within {timeout:?}")
}
