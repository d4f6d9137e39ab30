//! Invitations into partitions that have not been used.
//!
//! # Invariants
//! - An invitation is good for one opening, until its time, while its host is open.
//! - A program that asks with a ticket that is not good learns nothing else.

use std::time::Duration;

use weft_fabric::{OpenError, Ticket};

/// An invitation that has not been used.
#[derive(Debug)]
pub(crate) struct Invitation {
    pub ticket: Ticket,
    /// The VPID of the endpoint that invites.
    pub host: u16,
    /// The user of that endpoint.
    pub user: u32,
    /// From this time on it is too late.
    pub until: Duration,
}

/// The invitations of a broker.
#[derive(Debug, Default)]
pub(crate) struct Invitations {
    waiting: Vec<Invitation>,
    /// How often a ticket was not good.
    refused: u64,
}

impl Invitations {
    /// How many wait.
    pub fn count(&self) -> usize {
        self.waiting.len()
    }

    /// How often a ticket was not good.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// How many of a user wait.
    pub fn of(&self, user: u32) -> usize {
        self.waiting.iter().filter(|invitation| invitation.user == user).count()
    }

    pub fn add(&mut self, invitation: Invitation) {
        self.waiting.push(invitation);
    }

    /// Forgets what is too late at `now`.
    pub fn expire(&mut self, now: Duration) {
        self.waiting.retain(|invitation| now < invitation.until);
    }

    /// Forgets the invitations of an endpoint that has ended.
    pub fn void(&mut self, host: u16) {
        self.waiting.retain(|invitation| invitation.host != host);
    }

    /// Counts a refusal, if it is of a ticket.
    pub fn count_refused(&mut self, error: &OpenError) {
        self.refused += u64::from(*error == OpenError::InvalidTicket);
    }

    /// The host of a ticket that is good.
    pub fn host(&self, ticket: Ticket) -> Option<u16> {
        // Looks at all of them, so that the time does not tell how far the search came.
        let mut found = None;
        for invitation in &self.waiting {
            if invitation.ticket == ticket {
                found = Some(invitation.host);
            }
        }
        found
    }

    /// Takes the invitation with this ticket: an endpoint was opened by it.
    pub fn take(&mut self, ticket: Ticket) {
        let used = self.waiting.iter().rposition(|invitation| invitation.ticket == ticket);
        used.map(|place| self.waiting.swap_remove(place));
    }
}
