//! The table of nodes: the first daemon changes it, all others keep the newest that they hear of.

use std::time::Duration;

use weft_fabric::NodeId;

use super::{ConnectionId, Event, Fault, Machine, Output, Stage};
use crate::message::{Member, Message, NODES_MAX, Refusal, Roster};

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
    #[error("the first daemon cannot expel its own node")]
    Own,
}

impl Machine {
    /// Founds the fabric: the own node gets number 0.
    pub(super) fn found(&mut self) {
        let own = Member {
            number: NodeId::LOCAL.0,
            identity: self.config.own,
            name: self.config.about.name.clone(),
            address: self.config.about.address,
            is_expelled: false,
        };
        let roster = Roster { revision: 1, first: self.config.own, members: vec![own] };
        self.outputs.push_back(Output::Save(roster.clone()));
        self.use_roster(roster);
    }

    /// Takes a table into use. It is kept already, or its `Save` is an output.
    pub(super) fn use_roster(&mut self, roster: Roster) {
        let own = roster.of_identity(&self.config.own).map(|member| member.number);
        let is_new = own.is_some() && self.number.is_none();
        self.number = own.or(self.number);
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
                return;
            }
            let stays = |member: &Member| {
                roster.of_number(member.number).is_some_and(|found| {
                    found.identity == member.identity && found.is_expelled >= member.is_expelled
                })
            };
            if !own.members.iter().all(stays) {
                self.refuse(id, Refusal::Protocol);
                return;
            }
        } else if self.config.is_first {
            self.refuse(id, Refusal::Protocol);
            return;
        }
        self.change(roster, Some(id));
    }

    /// Keeps a new table, passes it on to all but `from`, and looks at all connections again.
    fn change(&mut self, roster: Roster, from: Option<ConnectionId>) {
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
            if member.is_some_and(|member| member.is_expelled) {
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
        if roster.members.len() >= NODES_MAX {
            self.refuse(id, Refusal::Full);
            return;
        }
        let highest = roster.members.last().map_or(NodeId::LOCAL.0, |member| member.number);
        roster.members.push(Member {
            number: highest + 1,
            identity: *identity,
            name: hello.about.name.clone(),
            address: hello.about.address,
            is_expelled: false,
        });
        roster.revision += 1;
        self.change(roster, None);
    }

    /// Writes a new name or address of a node into the table.
    pub(super) fn update(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get(&id) else { return };
        let Stage::Known { identity, hello } = &connection.stage else { return };
        let (identity, about) = (*identity, hello.about.clone());
        let Some(mut roster) = self.roster.clone() else { return };
        let mut members = roster.members.iter_mut();
        let Some(member) = members.find(|member| member.identity == identity) else { return };
        if member.name == about.name && member.address == about.address {
            return;
        }
        (member.name, member.address) = (about.name, about.address);
        roster.revision += 1;
        self.change(roster, None);
    }

    /// Expels a node: its identity is not accepted any more, and its number is given to nobody.
    ///
    /// # Errors
    /// This is not the first daemon, or there is no such other node.
    pub fn expel(&mut self, node: NodeId, now: Duration) -> Result<(), NotExpelled> {
        self.now = now;
        let first = || {
            let roster = self.roster.as_ref()?;
            let first = roster.of_identity(&roster.first)?;
            Some(format!("{} ({})", first.name, first.address))
        };
        if !self.config.is_first {
            let first = first().unwrap_or_else(|| "the host that has no seeds".to_owned());
            return Err(NotExpelled::NotFirst(first));
        }
        if self.number == Some(node.0) {
            return Err(NotExpelled::Own);
        }
        let Some(mut roster) = self.roster.clone() else {
            return Err(NotExpelled::Unknown(node.0));
        };
        let mut members = roster.members.iter_mut();
        let Some(member) = members.find(|member| member.number == node.0) else {
            return Err(NotExpelled::Unknown(node.0));
        };
        if !member.is_expelled {
            member.is_expelled = true;
            roster.revision += 1;
            self.change(roster, None);
        }
        Ok(())
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
        self.settle_contenders();
    }
}
