//! A node that shows another address than the table has: it was moved, or is a copy of a host that
//! still runs. Both have the same key, so one thing tells them apart: a daemon of that identity
//! answers at the address of the table, or none does.
//!
//! # Invariants
//! - The table keeps the address of a node as long as a daemon of its identity answers there.
//! - Each such question has an end, after [`ASKED_WITHIN`].

use std::mem;
use std::net::SocketAddr;

use super::{ASKED_WITHIN, ConnectionId, Fault, Machine, Output, Stage};
use crate::identity::Identity;
use crate::key::Role;
use crate::message::Refusal;

/// The consequence for a node that shows another address.
enum Verdict {
    /// Nobody of its identity is at the former one.
    Nobody,
    /// It is there itself, or the table has the new address by now.
    Itself,
    /// Another daemon of its identity is there.
    Another,
}

impl Machine {
    /// Accepts a connection, or asks at the address that the table has for the node.
    pub(super) fn accept_unless_moved(&mut self, id: ConnectionId, number: u32) {
        let member = self.roster.as_ref().and_then(|roster| roster.of_number(number));
        let Some(former) = member.map(|member| member.address) else { return };
        if self.is_at(id, former) {
            return self.accept(id, number);
        }
        let (since, asks) = (self.now, self.add(Role::Dialer, former.to_string()));
        self.outputs.push_back(Output::Dial { connection: asks, address: former });
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match mem::replace(&mut connection.stage, Stage::Dialing) {
            Stage::Known { identity, hello } => {
                connection.stage = Stage::Moving { identity, hello, since, asks };
            }
            other => connection.stage = other,
        }
    }

    /// Whether the daemon at the other end, whose hello came, is at this address.
    fn is_at(&self, id: ConnectionId, address: SocketAddr) -> bool {
        let Some(connection) = self.connections.get(&id) else { return false };
        let Stage::Known { hello, .. } = &connection.stage else { return false };
        let was_dialled =
            || connection.role == Role::Dialer && connection.place == address.to_string();
        hello.about.address == address || was_dialled()
    }

    /// A daemon said hello. If it is at the address of the table, those that show its identity and
    /// another address are copies.
    pub(super) fn refuse_copies(&mut self, id: ConnectionId, its: &Identity, incarnation: u64) {
        let member = self.roster.as_ref().and_then(|roster| roster.of_identity(its));
        if !member.is_some_and(|member| self.is_at(id, member.address)) {
            return;
        }
        let is_copy = |stage: &Stage| {
            matches!(stage, Stage::Moving { identity, hello, .. }
                if identity == its && hello.incarnation != incarnation)
        };
        let all = self.connections.iter();
        let copies = all.filter(|(_, one)| is_copy(&one.stage)).map(|(id, _)| *id);
        for copy in copies.collect::<Vec<_>>() {
            self.refuse(copy, Refusal::SameIdentity);
        }
    }

    /// Decides about nodes that show another address, as far as that is known.
    pub(super) fn settle_moved(&mut self) {
        loop {
            let all = self.connections.iter();
            let next = all.filter_map(|(id, one)| Some((*id, self.judge(&one.stage)?))).next();
            let Some((id, (number, verdict))) = next else { return };
            let Some(connection) = self.connections.get(&id) else { return };
            let Stage::Moving { asks, .. } = connection.stage else { return };
            match verdict {
                Verdict::Another => self.refuse(id, Refusal::SameIdentity),
                Verdict::Itself => {
                    self.return_to_known(id);
                    self.consider(id);
                }
                Verdict::Nobody => {
                    let is_open = self
                        .connections
                        .get(&asks)
                        .is_some_and(|one| matches!(one.stage, Stage::Dialing));
                    if is_open {
                        self.end(asks, &Fault::Other("it does not answer".to_owned()));
                    }
                    self.accept(id, number);
                }
            }
        }
    }

    /// The facts about a node that shows another address, and its number.
    fn judge(&self, stage: &Stage) -> Option<(u32, Verdict)> {
        let Stage::Moving { identity, hello, since, asks } = stage else { return None };
        let member = self.roster.as_ref()?.of_identity(identity)?;
        let accepted = self.connections.values().find_map(|one| {
            let (_, incarnation) = one.accepted().filter(|_| one.identity() == Some(identity))?;
            Some(incarnation)
        });
        let is_late = *since + ASKED_WITHIN <= self.now;
        let asked = self.connections.get(asks);
        let verdict = match (accepted, asked.map(super::Connection::identity)) {
            (Some(other), _) if other != hello.incarnation => Verdict::Another,
            _ if member.address == hello.about.address => Verdict::Itself,
            (Some(_), _) => Verdict::Itself,
            (None, None) => Verdict::Nobody,
            (None, Some(Some(other))) if other != identity => Verdict::Nobody,
            (None, Some(None)) if is_late => Verdict::Nobody,
            // One that proved the identity is there, and slow.
            (None, Some(_)) if is_late => Verdict::Another,
            (None, Some(_)) => return None,
        };
        Some((member.number, verdict))
    }
}
