//! The table of nodes: which identity has which number.
//!
//! # Invariants
//! - Numbers and identities of a valid table are each there once, in the order of the numbers.
//! - A number passes to another identity only when the former one was expelled, and `former` counts
//!   it. So of two tables that differ about a number it can be said which one is the later.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use weft_fabric::NodeId;

use crate::identity::Identity;
use crate::message::{NODES_MAX, NodeAbout, is_name};

/// A node in the table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub number: u32,
    /// Its identity, to which the number is bound until that is expelled.
    pub identity: Identity,
    /// The name that it had when it last entered the table.
    pub name: String,
    /// The address at which it listened then.
    pub address: SocketAddr,
    /// Whether it was expelled.
    pub is_expelled: bool,
    /// How many identities had the number before, all of which were expelled.
    #[serde(default)]
    pub former: u32,
}

/// The giver of numbers. A fabric can pass from the first to the second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub enum Numbering {
    /// The first daemon alone changes the table.
    #[default]
    First,
    /// The table is kept in a directory, where each daemon enters itself.
    Directory,
}

/// The table of nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Roster {
    /// Rises with each change.
    pub revision: u64,
    /// The identity of the daemon that founded the fabric, by which fabrics are told apart.
    pub first: Identity,
    /// All nodes that were ever admitted, in the order of their numbers.
    pub members: Vec<Member>,
    /// The giver of numbers.
    #[serde(default)]
    pub numbering: Numbering,
}

/// No number is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl Roster {
    /// The table of a fabric that is founded by a daemon, which gets number 0.
    #[must_use]
    pub fn founded(first: Identity, about: &NodeAbout, numbering: Numbering) -> Self {
        let number = NodeId::LOCAL.0;
        Self { revision: 1, first, members: vec![member(number, 0, first, about)], numbering }
    }

    /// The node with this number.
    #[must_use]
    pub fn of_number(&self, number: u32) -> Option<&Member> {
        self.members.iter().find(|member| member.number == number)
    }

    /// The node with this identity.
    #[must_use]
    pub fn of_identity(&self, identity: &Identity) -> Option<&Member> {
        self.members.iter().find(|member| member.identity == *identity)
    }

    /// Whether an identity is none of the fabric any more: it was expelled, and its number may have
    /// been given to another one since.
    #[must_use]
    pub(crate) fn has_expelled(&self, identity: &Identity) -> bool {
        self.of_identity(identity).is_none_or(|member| member.is_expelled)
    }

    /// Whether numbers and identities are each there once, in order, within all maxima.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let is_ordered = self.members.is_sorted_by(|one, next| one.number < next.number);
        let mut identities: Vec<_> = self.members.iter().map(|member| member.identity).collect();
        identities.sort_unstable();
        let is_below = |member: &Member| (member.number as usize) < NODES_MAX;
        is_ordered
            && identities.is_sorted_by(|one, next| one < next)
            && self.members.iter().all(|member| is_below(member) && is_name(&member.name))
            && self.of_identity(&self.first).is_some()
    }

    /// Whether this table can have come from `older` by the changes that are allowed.
    #[must_use]
    pub fn follows(&self, older: &Self) -> bool {
        let stays = |member: &Member| {
            self.of_number(member.number).is_some_and(|found| {
                found.former > member.former
                    || found.former == member.former
                        && found.identity == member.identity
                        && found.is_expelled >= member.is_expelled
            })
        };
        self.first == older.first
            && self.numbering >= older.numbering
            && older.members.iter().all(stays)
    }

    /// Gives a number to an identity that has none: one that nobody had, or, when there is none
    /// left, that of a host which was expelled.
    ///
    /// # Errors
    /// [`Full`].
    pub(crate) fn admit(&mut self, identity: Identity, about: &NodeAbout) -> Result<(), Full> {
        let next = self.members.last().map_or(NodeId::LOCAL.0, |member| member.number + 1);
        if (next as usize) < NODES_MAX {
            self.members.push(member(next, 0, identity, about));
        } else {
            let first = self.first;
            let mut members = self.members.iter_mut();
            let is_free = |old: &&mut Member| {
                old.is_expelled && old.identity != first && old.former < u32::MAX
            };
            let old = members.find(is_free).ok_or(Full)?;
            let former = old.former + 1;
            *old = member(old.number, former, identity, about);
        }
        self.revise();
        Ok(())
    }

    /// Writes the name and the address of a node into the table. False if they stood there.
    pub(crate) fn update(&mut self, identity: &Identity, about: &NodeAbout) -> bool {
        let mut members = self.members.iter_mut();
        let Some(member) = members.find(|member| member.identity == *identity) else {
            return false;
        };
        if member.name == about.name && member.address == about.address {
            return false;
        }
        (member.name, member.address) = (about.name.clone(), about.address);
        self.revise();
        true
    }

    /// Expels a node. False if it was expelled before; `None` if there is no such node.
    pub(crate) fn expel(&mut self, number: u32) -> Option<bool> {
        let mut members = self.members.iter_mut();
        let member = members.find(|member| member.number == number)?;
        let is_new = !member.is_expelled;
        member.is_expelled = true;
        if is_new {
            self.revise();
        }
        Some(is_new)
    }

    /// Counts a change. Somebody with the key can tell a table of the highest revision, of which no
    /// change is heard any more.
    pub(crate) const fn revise(&mut self) {
        self.revision = self.revision.saturating_add(1);
    }
}

fn member(number: u32, former: u32, identity: Identity, about: &NodeAbout) -> Member {
    let (name, address) = (about.name.clone(), about.address);
    Member { number, identity, name, address, is_expelled: false, former }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(name: &str) -> NodeAbout {
        NodeAbout {
            name: name.to_owned(),
            address: "10.9.0.1:7700".parse().expect("an address"),
            release: "1".to_owned(),
            facts: Vec::new(),
        }
    }

    fn identity(number: u32) -> Identity {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        Identity(bytes)
    }

    fn full() -> Roster {
        let mut roster = Roster::founded(identity(0), &about("h"), Numbering::First);
        for number in 1..NODES_MAX {
            let number = u32::try_from(number).expect("few");
            roster.admit(identity(number), &about("h")).expect("room");
        }
        roster
    }

    #[test]
    fn the_number_of_one_that_was_expelled_is_given_again_when_no_other_is_left() {
        let mut roster = full();
        assert_eq!(roster.clone().admit(identity(1000), &about("h")), Err(Full));
        let before = roster.clone();
        assert_eq!(roster.expel(7), Some(true));
        assert_eq!(roster.expel(7), Some(false));
        let expelled = roster.clone();
        roster.admit(identity(1000), &about("new")).expect("its number");
        assert!(roster.is_valid());
        let member = roster.of_number(7).expect("given");
        assert_eq!(
            (member.identity, member.former, member.is_expelled),
            (identity(1000), 1, false)
        );
        // Also one that heard of nothing in between takes the new table, and nobody an older one.
        assert!(roster.follows(&before) && roster.follows(&expelled));
        assert!(!before.follows(&roster) && !expelled.follows(&roster));
        // Again and again: identities are not counted.
        for other in 0..1_000 {
            roster.expel(7).expect("it is there");
            roster.admit(identity(2_000 + other), &about("h")).expect("its number");
        }
        assert_eq!(roster.of_number(7).expect("given").former, 1_001);
    }

    #[test]
    fn the_highest_revision_breaks_nothing() {
        let mut roster = Roster { revision: u64::MAX, ..full() };
        assert_eq!(roster.expel(3), Some(true));
        roster.admit(identity(999), &about("h")).expect("its number");
        assert!(roster.update(&identity(999), &about("i")));
        assert_eq!(roster.revision, u64::MAX);
    }

    #[test]
    fn a_number_keeps_its_identity_and_an_expulsion_stays() {
        let mut roster = full();
        roster.expel(3).expect("it is there");
        let mut other = roster.clone();
        other.members[9].identity = identity(999);
        let mut back = roster.clone();
        back.members[3].is_expelled = false;
        let mut without = roster.clone();
        without.members.pop();
        let mut founder = roster.clone();
        founder.first = identity(1);
        for wrong in [other, back, without, founder] {
            assert!(!wrong.follows(&roster));
        }
        let directory = Roster { numbering: Numbering::Directory, ..roster.clone() };
        assert!(directory.follows(&roster) && !roster.follows(&directory));
    }
}
