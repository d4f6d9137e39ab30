//! From a hello to a node that is up, or to a refusal.

use std::mem;

use weft_fabric::NodeId;

use super::{Admission, ConnectionId, Event, Fault, Machine, Output, PROBE_WITHIN, Stage};
use crate::key::Role;
use crate::message::{Hello, Message, Refusal};

impl Machine {
    /// The hello of the other side came.
    pub(super) fn greeted(&mut self, id: ConnectionId, hello: Hello) {
        let first = self.first();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let role = connection.role;
        let Some(identity) = connection.identity().copied() else { return };
        if identity == self.config.own {
            if hello.incarnation == self.config.incarnation {
                self.is_self(id);
                self.end(id, &Fault::Other("it is this daemon itself".to_owned()));
            } else if role == Role::Listener {
                self.refuse(id, Refusal::SameIdentity);
            } else {
                // The other side refuses. If both did, both would be out.
                connection.stage = Stage::Known { identity, hello };
            }
            return;
        }
        if hello.fabric != self.config.fabric {
            let own = Refusal::Fabric(self.config.fabric.clone());
            self.refuse_as(id, own, Refusal::Fabric(hello.fabric));
            return;
        }
        if let (Some(own), Some(other)) = (first, hello.first)
            && own != other
        {
            self.refuse_as(id, Refusal::OtherFirst(own), Refusal::OtherFirst(other));
            return;
        }
        let incarnation = hello.incarnation;
        connection.stage = Stage::Known { identity, hello };
        self.refuse_copies(id, &identity, incarnation);
        self.consider(id);
    }

    /// Accepts a connection whose hello is there, refuses it, or leaves it for later.
    pub(super) fn consider(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get(&id) else { return };
        let Stage::Known { identity, hello } = &connection.stage else { return };
        if *identity == self.config.own {
            return;
        }
        let is_first = self.config.admission == Admission::First;
        let (identity, kept) = (*identity, hello.number);
        let known = self.roster.as_ref().and_then(|roster| roster.of_identity(&identity));
        match known.map(|member| (member.number, member.is_expelled)) {
            Some((_, true)) => self.refuse(id, Refusal::Expelled),
            Some((number, false)) if kept.is_some_and(|kept| kept != number) => {
                self.refuse(id, Refusal::Number(kept.unwrap_or(number)));
            }
            // The own number may still be on its way.
            Some(_) if self.number.is_some() => self.choose(id),
            Some(_) => {}
            None if is_first => match kept {
                Some(number) => self.refuse(id, Refusal::Number(number)),
                None => self.admit(id),
            },
            // It may bring a newer table, or admit this daemon.
            None if kept.is_some() => {}
            None => self.refuse(id, Refusal::NotFirst),
        }
    }

    /// Accepts a connection, unless there is another one to the same node, or the node may be
    /// elsewhere. Nothing about the node changes before.
    fn choose(&mut self, id: ConnectionId) {
        if self.number.is_some() && !self.is_in_roster() {
            return self.refuse(id, Refusal::Expelled);
        }
        let Some(connection) = self.connections.get(&id) else { return };
        let Stage::Known { identity, hello } = &connection.stage else { return };
        let (role, identity, incarnation) = (connection.role, *identity, hello.incarnation);
        let member = self.roster.as_ref().and_then(|roster| roster.of_identity(&identity));
        let (Some(own), Some(number)) = (self.number, member.map(|member| member.number)) else {
            return;
        };
        let winner = if own > number { Role::Dialer } else { Role::Listener };
        if role != winner && self.is_dialing(number) {
            // The own dialling is under way, and would win.
            self.refuse(id, Refusal::Duplicate);
            return;
        }
        let other = self.connections.iter().find_map(|(other, found)| {
            let (_, incarnation) = found.accepted().filter(|(node, _)| *node == number)?;
            Some((*other, found.role, incarnation))
        });
        match other {
            None => self.accept_unless_moved(id, number),
            Some((other, _, known)) if known != incarnation => {
                let since = self.now;
                self.send(other, Message::Ping);
                if let Some(connection) = self.connections.get_mut(&id) {
                    let Stage::Known { identity, hello } =
                        mem::replace(&mut connection.stage, Stage::Dialing)
                    else {
                        return;
                    };
                    connection.stage = Stage::Contending { identity, hello, since };
                }
            }
            // A new connection of the same side means that it has lost the other one.
            Some((other, former, _)) if former == role || role == winner => {
                self.send(other, Message::Refused(Refusal::Duplicate));
                self.end(other, &Fault::Refused(Refusal::Duplicate));
                self.accept(id, number);
            }
            Some(_) => self.refuse(id, Refusal::Duplicate),
        }
    }

    pub(super) fn accept(&mut self, id: ConnectionId, number: u32) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match mem::replace(&mut connection.stage, Stage::Dialing) {
            Stage::Known { identity, hello }
            | Stage::Contending { identity, hello, .. }
            | Stage::Moving { identity, hello, .. } => {
                connection.stage = Stage::Accepted { number, identity, hello };
            }
            other => connection.stage = other,
        }
        self.send(id, Message::Accepted { number });
        self.is_up(id);
    }

    /// Tells that a node is up, if both sides have accepted each other.
    pub(super) fn is_up(&mut self, id: ConnectionId) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Stage::Accepted { number, identity, hello } = &connection.stage else { return };
        if !connection.is_accepted {
            return;
        }
        let (number, identity, hello) = (*number, *identity, hello.clone());
        let incarnation = hello.incarnation;
        connection.stage = Stage::Up { number, identity, incarnation };
        connection.pinged = now;
        self.reached(number, id);
        self.tell(Event::Up { node: NodeId(number), incarnation, about: hello.about.clone() });
        if self.config.admission == Admission::First {
            self.update(&identity, &hello.about);
        }
    }

    /// Decides about connections that wait for something to be known of another one.
    pub(super) fn settle(&mut self) {
        self.settle_contenders();
        self.settle_moved();
    }

    /// Decides about connections that show the identity of another one: that one ended, gave a sign
    /// of life, or did not.
    fn settle_contenders(&mut self) {
        let contending = self.connections.iter().find_map(|(id, connection)| {
            let Stage::Contending { identity, since, .. } = &connection.stage else { return None };
            let former = self.connections.iter().find(|(_, other)| {
                other.accepted().is_some() && other.identity() == Some(identity)
            });
            let former = former.map(|(former, other)| (*former, other.heard));
            let is_over = *since + PROBE_WITHIN <= self.now;
            match former {
                Some((_, heard)) if heard <= *since && !is_over => None,
                former => Some((*id, *since, former)),
            }
        });
        let Some((id, since, former)) = contending else { return };
        match former {
            Some((_, heard)) if heard > since => self.refuse(id, Refusal::SameIdentity),
            former => {
                if let Some((former, _)) = former {
                    let reason = "its daemon was started anew".to_owned();
                    self.end(former, &Fault::Other(reason));
                }
                self.return_to_known(id);
                self.consider(id);
            }
        }
        self.settle_contenders();
    }

    pub(super) fn return_to_known(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match mem::replace(&mut connection.stage, Stage::Dialing) {
            Stage::Contending { identity, hello, .. } | Stage::Moving { identity, hello, .. } => {
                connection.stage = Stage::Known { identity, hello };
            }
            other => connection.stage = other,
        }
    }

    /// Refuses the other side.
    pub(super) fn refuse(&mut self, id: ConnectionId, refusal: Refusal) {
        self.refuse_as(id, refusal.clone(), refusal);
    }

    /// Refuses the other side, which is told something else than this one.
    fn refuse_as(&mut self, id: ConnectionId, told: Refusal, own: Refusal) {
        self.send(id, Message::Refused(told));
        self.complain(id, &own);
        self.end(id, &Fault::Refused(own));
    }

    /// The other side refuses.
    pub(super) fn refused(&mut self, id: ConnectionId, refusal: Refusal) {
        self.complain(id, &refusal);
        let is_out = refusal == Refusal::SameIdentity && self.is_believed(id);
        self.end(id, &Fault::Refused(refusal.clone()));
        if is_out {
            self.suspend(&refusal);
        }
    }

    /// Tells the administrator of a refusal, unless it is part of the usual course.
    fn complain(&mut self, id: ConnectionId, refusal: &Refusal) {
        if matches!(refusal, Refusal::Duplicate | Refusal::NotFirst) {
            return;
        }
        let Some(connection) = self.connections.get(&id) else { return };
        let name = match &connection.stage {
            Stage::Known { hello, .. }
            | Stage::Contending { hello, .. }
            | Stage::Moving { hello, .. } => {
                format!("{} ({})", connection.place, hello.about.name)
            }
            _ => connection.place.clone(),
        };
        let fault = Fault::Refused(refusal.clone());
        self.outputs.push_back(Output::Complain { about: name, fault });
    }
}
