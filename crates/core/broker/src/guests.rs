//! Tickets of other nodes: an endpoint that shows one which this node does not know.
//!
//! Each node that is joined is asked. The first that knows the ticket lets the endpoint in.
//!
//! # Invariants
//! - A ticket that a node has answered for is used up there, whatever becomes of the endpoint.
//! - Each wait ends: by a good answer, or when no node is left that has not answered.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::Duration;

use weft_fabric::{NodeId, OpenError, PartitionId, Ticket};
use weft_wire::endpoint_control::{Open, Reply, VPIDS_MAX, status};

use crate::NodeMessage;
use crate::opening::Entrance;
use crate::ports::{Outcome, address};
use crate::state::{Answer, Asker, Outgoing, State};

/// Endpoints that may wait at a time.
const GUESTS_MAX: usize = 1024;

/// An endpoint that waits for an answer about its ticket.
#[derive(Debug)]
pub(crate) struct Guest {
    asker: Asker,
    open: Open,
    files: Vec<OwnedFd>,
    /// The nodes that have not answered.
    awaits: BTreeSet<NodeId>,
}

impl State {
    /// Asks the other nodes about a ticket.
    pub(crate) fn ask_for_ticket(
        &mut self,
        asker: Asker,
        open: Open,
        files: Vec<OwnedFd>,
    ) -> Outcome {
        let awaits: BTreeSet<NodeId> = self.nodes_up().collect();
        if awaits.is_empty() || self.nodes.guests.len() >= GUESTS_MAX {
            return Outcome::Answer(Answer::refused(status::NOT_INVITED));
        }
        let number = self.next_number();
        for node in &awaits {
            let ticket = open.invitation.0;
            self.tell_node(*node, NodeMessage::Ticket { number, ticket });
        }
        self.nodes.guests.insert(number, Guest { asker, open, files, awaits });
        Outcome::Other
    }

    /// Uses a ticket of this node, for an endpoint of another.
    pub(crate) fn use_ticket(&mut self, ticket: [u8; 16], now: Duration) -> Option<(u64, u16)> {
        self.invitations.expire(now);
        let Some(host) = self.invitations.host(Ticket(ticket)) else {
            self.invitations.count_refused(&OpenError::InvalidTicket);
            return None;
        };
        let partition = self.entry(host).filter(|entry| entry.port.leads_here())?.partition;
        self.invitations.take(Ticket(ticket));
        Some((partition.0, host))
    }

    /// A node has answered about a ticket.
    pub(crate) fn invited_by(
        &mut self,
        node: NodeId,
        number: u64,
        host: Option<(u64, u16)>,
        out: &mut Vec<Outgoing>,
    ) {
        let Some(guest) = self.nodes.guests.get_mut(&number) else { return };
        if !guest.awaits.remove(&node) {
            return;
        }
        let host = host.filter(|(_, vpid)| *vpid < VPIDS_MAX);
        if host.is_none() && !guest.awaits.is_empty() {
            return;
        }
        let Some(Guest { asker, open, files, .. }) = self.nodes.guests.remove(&number) else {
            return;
        };
        let entered = match host {
            Some((partition, vpid)) => {
                let entrance = Entrance::guest(PartitionId(partition), address(node.0, vpid));
                self.enter(asker, open, files, entrance, out)
            }
            None => Err(Answer::refused(status::NOT_INVITED)),
        };
        if let Err(answer) = entered {
            let (ticket, first, second) = (open.ticket, answer.first, 0);
            let reply = Reply { ticket, status: answer.status, first, second };
            out.push(Outgoing::plain(asker.process, reply));
        }
    }

    /// A node is away, and answers nobody.
    pub(crate) fn nobody_invites(&mut self, node: NodeId, out: &mut Vec<Outgoing>) {
        let waiting = self.nodes.guests.iter();
        let waiting = waiting.filter(|(_, guest)| guest.awaits.contains(&node));
        let waiting: Vec<u64> = waiting.map(|(number, _)| *number).collect();
        for number in waiting {
            self.invited_by(node, number, None, out);
        }
    }

    /// A client is gone, and waits for nothing.
    pub(crate) fn no_guest(&mut self, process: crate::ProcessId) {
        self.nodes.guests.retain(|_, guest| guest.asker.process != process);
    }
}
