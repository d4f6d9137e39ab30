//! The table of nodes: the first daemon or the directory changes it, and all daemons keep the
//! newest that they hear of.

use std::time::Duration;

use weft_fabric::NodeId;

use super::{Admission, ConnectionId, Event, Fault, Machine, Output, Stage};
use crate::identity::Identity;
use crate::message::{Message, NodeAbout, Refusal};
use crate::roster::{Full, Numbering, Roster};

/// Why a node is not expelled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotExpelled {
    /// Only the first daemon changes the table.
    #[error("only the first daemon expels nodes: ask that of {0}")]
    NotFirst(String),
    /// There is no such node.
    #[error("no node has the number {0}; `weft fabric nodes` lists them")]
    Unknown(u32),
    /// It is the own node.
    #[error("a daemon cannot expel its own node")]
    Own,
    /// The directory does not answer.
    #[error("etcd, by which nodes are expelled, is away: {0}")]
    Away(String),
}

/// How far an expulsion is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expulsion {
    /// The table says it.
    Done,
    /// The directory is asked to expel the node with this identity ([`Machine::has_expelled`]).
    UnderWay(Identity),
}

impl Machine {
    /// Founds the fabric: the own node gets number 0.
    pub(super) fn found(&mut self) {
        let roster = Roster::founded(self.config.own, &self.config.about, Numbering::First);
        self.outputs.push_back(Output::Save(roster.clone()));
        self.use_roster(roster);
    }

    /// Whether the own node is in the table with its number: it has none yet if not, or that was
    /// given to another host.
    pub(super) fn is_in_roster(&self) -> bool {
        let found = self.roster.as_ref().and_then(|own| own.of_identity(&self.config.own));
        found.is_some_and(|found| self.number == Some(found.number))
    }

    /// Takes a table into use. It is kept already, or its `Save` is an output.
    pub(super) fn use_roster(&mut self, roster: Roster) {
        let own = roster.of_identity(&self.config.own).map(|member| member.number);
        let is_new = own.is_some() && self.number.is_none();
        // It does not change while the daemon runs, whatever a table says: addresses have it.
        self.number = self.number.or(own);
        if roster.numbering == Numbering::Directory && self.config.admission == Admission::First {
            self.config.admission = Admission::ByFirst;
        }
        self.roster = Some(roster);
        if let (true, Some(number)) = (is_new, own) {
            self.tell(Event::Numbered(NodeId(number)));
        }
        self.set_targets();
    }

    /// Another daemon has a table.
    pub(super) fn offered(&mut self, id: ConnectionId, roster: Roster) {
        if let Some(own) = &self.roster {
            if roster.first != own.first {
                let first = own.first;
                self.refuse(id, Refusal::OtherFirst(first));
                return;
            }
            if roster.revision <= own.revision {
                self.refuse_unknown(id);
                return;
            }
            if !roster.follows(own) {
                self.refuse(id, Refusal::Protocol);
                return;
            }
        } else if self.config.admission == Admission::First {
            self.refuse(id, Refusal::Protocol);
            return;
        }
        self.change(roster, Some(id));
    }

    /// Refuses one that has a number of which the own table, which is no older, knows nothing: the
    /// number was given to another host.
    fn refuse_unknown(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get(&id) else { return };
        let Stage::Known { identity, hello } = &connection.stage else { return };
        let is_unknown =
            self.roster.as_ref().is_some_and(|own| own.of_identity(identity).is_none());
        if let (true, Some(number)) = (is_unknown, hello.number) {
            self.refuse(id, Refusal::Number(number));
        }
    }

    /// Keeps a new table, passes it on to all but `from`, and looks at all connections again.
    pub(super) fn change(&mut self, roster: Roster, from: Option<ConnectionId>) {
        self.outputs.push_back(Output::Save(roster.clone()));
        self.use_roster(roster.clone());
        let ids: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in ids.iter().copied().filter(|id| Some(*id) != from) {
            let stage = self.connections.get(&id).map(|connection| &connection.stage);
            if !matches!(stage, None | Some(Stage::Dialing)) {
                self.send(id, Message::Roster(roster.clone()));
            }
        }
        for id in ids {
            let identity = self.connections.get(&id).and_then(|found| found.identity().copied());
            let member = identity.and_then(|identity| roster.of_identity(&identity));
            let was_accepted =
                self.connections.get(&id).is_some_and(|one| one.accepted().is_some());
            if member.map_or(was_accepted, |member| member.is_expelled) {
                self.refuse(id, Refusal::Expelled);
            } else {
                self.consider(id);
            }
        }
    }

    /// Admits the daemon at the other end of a connection. Only the first daemon does.
    pub(super) fn admit(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get(&id) else { return };
        let Stage::Known { identity, hello } = &connection.stage else { return };
        let Some(mut roster) = self.roster.clone() else { return };
        match roster.admit(*identity, &hello.about) {
            Ok(()) => self.change(roster, None),
            Err(Full) => self.refuse(id, Refusal::Full),
        }
    }

    /// Writes a new name or address of a node that was accepted into the table. Only the first
    /// daemon does.
    pub(super) fn update(&mut self, identity: &Identity, about: &NodeAbout) {
        let Some(mut roster) = self.roster.clone() else { return };
        if roster.update(identity, about) {
            self.change(roster, None);
        }
    }

    /// Expels a node: its identity is not accepted any more. Its number is given to another host
    /// only when no other number is left.
    ///
    /// # Errors
    /// This is not the first daemon, the directory is away, or there is no such other node.
    pub fn expel(&mut self, node: NodeId, now: Duration) -> Result<Expulsion, NotExpelled> {
        self.now = now;
        if self.config.admission == Admission::ByFirst {
            let first = self.roster.as_ref().and_then(|own| own.of_identity(&own.first));
            let first = first.map(|first| format!("{} ({})", first.name, first.address));
            let first = first.unwrap_or_else(|| "the host that has no seeds".to_owned());
            return Err(NotExpelled::NotFirst(first));
        }
        if self.number == Some(node.0) {
            return Err(NotExpelled::Own);
        }
        let unknown = NotExpelled::Unknown(node.0);
        let Some(mut roster) = self.roster.clone() else { return Err(unknown) };
        let identity = roster.of_number(node.0).ok_or(unknown)?.identity;
        if roster.expel(node.0) != Some(true) {
            return Ok(Expulsion::Done);
        }
        if self.config.admission == Admission::ByDirectory {
            self.propose_expulsion(identity).map_err(NotExpelled::Away)?;
            return Ok(Expulsion::UnderWay(identity));
        }
        self.change(roster, None);
        Ok(Expulsion::Done)
    }

    /// Ends the connection to a node that does not take its messages.
    pub fn give_up(&mut self, node: NodeId, now: Duration) {
        let mut all = self.connections.iter();
        let found = all.find(|(_, connection)| connection.up() == Some(node.0));
        if let Some(id) = found.map(|(id, _)| *id) {
            self.overflowed(id, now);
        }
    }

    /// The address of the other end of a connection, for people.
    #[must_use]
    pub fn place(&self, id: ConnectionId) -> Option<String> {
        self.connections.get(&id).map(|connection| connection.place.clone())
    }

    /// Ends a connection that does not take what is sent to it.
    pub fn overflowed(&mut self, id: ConnectionId, now: Duration) {
        self.now = now;
        self.end(id, &Fault::Other("it does not take its messages".to_owned()));
        self.settle();
    }
}
