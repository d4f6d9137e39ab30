//! Seeds and names, for people and by their addresses.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use weft_fabric::NodeId;

use super::dialing::Goal;
use super::{Admission, Fault, Machine, NodeState};
use crate::message::Refusal;
use crate::roster::{Member, Numbering, Roster};

/// The cure where all daemons have seeds and none is the first.
const BE_FIRST: &str = "start the daemon of one of these hosts once without fabric.seeds: it \
                        becomes the first, and stays that, with seeds or without (fabric.state)";

impl Machine {
    /// The addresses of a seed that has a name, or why none is known.
    pub fn seed_is_at(
        &mut self,
        name: &str,
        found: Result<Vec<SocketAddr>, String>,
        now: Duration,
    ) {
        self.now = now;
        // Addresses that were found last are better than none.
        let keeps = found.is_err() && self.names.get(name).is_some_and(Result::is_ok);
        if !keeps && self.names.contains_key(name) {
            self.names.insert(name.to_owned(), found);
            self.set_targets();
        }
    }

    /// Whether the addresses of seeds are needed at present.
    #[must_use]
    pub fn needs_seeds(&self) -> bool {
        let is_first = |number: u32| {
            let roster = self.roster.as_ref();
            roster
                .is_some_and(|own| own.of_number(number).is_some_and(|it| it.identity == own.first))
        };
        let mut up = self.connections.values().filter_map(super::Connection::up);
        self.config.admission == Admission::ByFirst && !up.any(is_first)
    }

    /// The name of a node among others: with its number where another one has the same.
    pub(super) fn name_of(&self, member: &Member) -> String {
        let members = self.roster.iter().flat_map(|roster| &roster.members);
        let mut same = members.filter(|other| other.name == member.name);
        let is_other = |other: &Member| {
            other.number != member.number && (member.is_expelled || !other.is_expelled)
        };
        match same.any(is_other) {
            true => format!("{}#{}", member.name, member.number),
            false => member.name.clone(),
        }
    }

    /// Other nodes with the name of this one that were not expelled.
    #[must_use]
    pub fn namesakes(&self, node: NodeId) -> Vec<NodeId> {
        let members = || self.roster.iter().flat_map(|roster| &roster.members);
        let Some(own) = members().find(|member| member.number == node.0) else { return Vec::new() };
        let same = members()
            .filter(|one| one.name == own.name && one.number != own.number && !one.is_expelled);
        same.map(|member| NodeId(member.number)).collect()
    }

    /// The seeds at which no node of the fabric was found, with the reason of the last try, for
    /// people. Those that were not tried are not among them.
    #[must_use]
    pub fn seeds_without_node(&self) -> Vec<(String, String)> {
        let members = self.roster.iter().flat_map(|roster| &roster.members);
        let known: BTreeSet<SocketAddr> = members.map(|member| member.address).collect();
        let seeds = self.targets.iter().filter(|one| one.goal == Goal::Seed && !one.is_self);
        let faults = seeds.filter(|seed| !known.contains(&seed.address)).filter_map(|seed| {
            // One that told of the first daemon is a node, at another address than the table has.
            let fault = seed.fault.as_ref();
            let fault = fault.filter(|one| **one != Fault::Refused(Refusal::NotFirst))?;
            Some((self.seed_text(seed.address), fault.to_string()))
        });
        let unknown = self
            .names
            .iter()
            .filter_map(|(name, found)| Some((name.clone(), found.as_ref().err()?.clone())));
        faults.chain(unknown).collect()
    }

    /// The address of a seed, with its name if it has one.
    fn seed_text(&self, address: SocketAddr) -> String {
        let mut names = self.names.iter();
        let is_at = |found: &Result<Vec<SocketAddr>, String>| {
            found.as_ref().is_ok_and(|all| all.contains(&address))
        };
        match names.find(|(_, found)| is_at(found)) {
            Some((name, _)) => format!("{name} ({address})"),
            None => address.to_string(),
        }
    }

    /// Why the own node has no number.
    pub(super) fn joining(&self) -> NodeState {
        let is_of_directory = |roster: &Roster| roster.numbering == Numbering::Directory;
        if self.config.admission == Admission::ByDirectory {
            return NodeState::Joining(self.waits_for_directory());
        }
        if self.roster.as_ref().is_some_and(is_of_directory) {
            let reason = "the hosts of this fabric are admitted by etcd; set fabric.etcd, as they \
                          have it, and start the daemon again";
            return NodeState::Refused(reason.to_owned());
        }
        let targets = self.targets.iter().filter(|target| !target.is_self);
        let refused = targets.clone().find_map(|target| match &target.fault {
            // That one told of the first daemon; its own fault says more.
            Some(Fault::Refused(Refusal::NotFirst)) | None => None,
            Some(fault @ Fault::Refused(_)) => Some((target, fault)),
            Some(Fault::Other(_)) => None,
        });
        if let Some((target, fault)) = refused {
            return NodeState::Refused(format!("{}: {fault}", self.seed_text(target.address)));
        }
        let is_of_first = |target: &&super::Target| target.goal != Goal::Seed;
        let waits_for = targets.clone().find(is_of_first).or_else(|| targets.clone().next());
        let waits = match waits_for {
            None => match self.names.iter().find_map(|(name, it)| Some((name, it.as_ref().err()?)))
            {
                Some((name, fault)) => format!("no address of the seed {name} is known: {fault}"),
                None => "fabric.seeds names no other daemon".to_owned(),
            },
            Some(target) => {
                let which = match target.goal {
                    Goal::Seed => "the daemon",
                    Goal::Node(_) => "the first daemon, which alone admits hosts,",
                };
                let address = self.seed_text(target.address);
                match &target.fault {
                    Some(fault) => format!("waits for {which} at {address}: {fault}"),
                    None => format!("asks {which} at {address}"),
                }
            }
        };
        let lacks_first = self.roster.is_none()
            && self.targets.iter().any(|target| {
                target.is_self || target.fault == Some(Fault::Refused(Refusal::NotFirst))
            });
        NodeState::Joining(match lacks_first {
            true => format!("{waits}. If all daemons have seeds, none is the first: {BE_FIRST}"),
            false => waits,
        })
    }
}
