//! Invitations into the partition of an endpoint.

use std::time::Duration;

use weft_broker::conversation::Conversation;
use weft_fabric::{InviteError, Issued, OperationError, Ticket};

use crate::endpoint::ShmEndpoint;
use crate::requests::{Asked, Question};
use crate::sys;

impl ShmEndpoint {
    pub(crate) fn do_invite(
        &mut self,
        within: Duration,
        context: u64,
    ) -> Result<(Ticket, Issued), InviteError> {
        let secret = sys::secret()
            .map_err(|errno| InviteError::Os { call: "getrandom", errno: errno.raw_os_error() })?;
        let invitation = Ticket(secret);
        let ask = |broker: &mut Conversation<Question>, question, now| {
            broker.invite(invitation, within, question, now)
        };
        let issued =
            self.start(Asked::Invite, Some(context), ask)?.issued(|error| match error {
                OperationError::Invite(error) => Some(error),
                _ => None,
            })?;
        Ok((invitation, issued))
    }
}
