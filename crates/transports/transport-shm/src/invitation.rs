//! Invitations into the partition of an endpoint.

use std::time::Duration;

use weft_fabric::{InviteError, Issued, OperationError, Ticket};
use weft_wire::endpoint_control::{Invitation, Invite};

use crate::endpoint::ShmEndpoint;
use crate::requests::Asked;
use crate::sys;

impl ShmEndpoint {
    pub(crate) fn do_invite(
        &mut self,
        within: Duration,
        context: u64,
    ) -> Result<(Ticket, Issued), InviteError> {
        if within.is_zero() || within > Ticket::WITHIN_MAX {
            return Err(InviteError::InvalidTime);
        }
        let within_ms = u32::try_from(within.as_millis().max(1)).unwrap_or(u32::MAX);
        let secret = sys::secret()
            .map_err(|errno| InviteError::Os { call: "getrandom", errno: errno.raw_os_error() })?;
        let (ticket, vpid) = (self.next_ticket(), self.address.vpid.0);
        let invite = Invite { ticket, vpid, within_ms, invitation: Invitation(secret) };
        let started = self.start(ticket, invite, &[], Asked::Invite, Some(context))?;
        let issued = started.issued(|error| match error {
            OperationError::Invite(error) => Some(error),
            _ => None,
        })?;
        Ok((Ticket(secret), issued))
    }
}
