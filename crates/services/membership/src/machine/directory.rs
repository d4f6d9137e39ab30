//! Joining by a directory, which keeps the table of nodes for all: etcd.
//!
//! The driver reads the directory again and again, and tells what it found
//! ([`Machine::directory_says`]). A daemon that has to change the table proposes the next one
//! ([`Output::Propose`]); the directory takes it only if nobody has changed the table meanwhile.
//! Then it is read again, so nothing is lost when a proposal is.
//!
//! # Invariants
//! - A table of the directory is believed no more than one of another daemon: it has to follow the
//!   own one.
//! - A table that was proposed is used when the directory has taken it, and not before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weft_fabric::NodeId;

use super::{Admission, Fault, Machine, Output};
use crate::identity::Identity;
use crate::message::Refusal;
use crate::roster::{Numbering, Roster};

/// How long another start of a daemon may hold the presence of the own number before it counts as
/// another daemon with the same identity. The presence of one that died is gone by then.
const RIVAL_FOR: Duration = Duration::from_secs(20);

/// The answer of the directory, or the lack of one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DirectoryNews {
    /// It answered.
    Table {
        /// The table in it.
        table: Option<Roster>,
        /// The version of the table, for [`Output::Propose`]; 0 for none.
        version: u64,
        /// The numbers of the nodes that are there, with the random numbers of their starts.
        present: BTreeMap<u32, u64>,
    },
    /// It does not answer, or what it holds is no table. For people.
    Away(String),
}

/// The directory as it was last heard of.
#[derive(Debug, Default)]
pub(super) struct Directory {
    /// The table and its version.
    seen: Option<(Roster, u64)>,
    /// Why it cannot be used.
    fault: Option<String>,
    present: BTreeMap<u32, u64>,
    /// The start that holds the presence of the own number, and since when it is seen.
    rival: Option<(u64, Duration)>,
    /// The identities that are to be expelled.
    expelling: BTreeSet<Identity>,
}

impl Machine {
    /// Handles an answer of the directory, or its silence.
    pub fn directory_says(&mut self, news: DirectoryNews, now: Duration) {
        self.now = now;
        let fault = match news {
            DirectoryNews::Away(reason) => Some(reason),
            DirectoryNews::Table { table, version, present } => {
                self.directory.present = present;
                self.look_for_rival();
                self.read(table, version).err()
            }
        };
        if self.directory.fault != fault {
            self.outputs.push_back(match &fault {
                Some(reason) => Output::DirectoryLost(reason.clone()),
                None => Output::DirectoryFound,
            });
        }
        self.directory.fault = fault;
        self.settle();
    }

    /// Why the directory cannot be used at present, for people; `None` if it can, or there is none.
    #[must_use]
    pub fn directory_fault(&self) -> Option<&str> {
        self.directory.fault.as_deref()
    }

    /// The number by which the own node is there for others, if it is a node of the fabric and no
    /// other daemon has its identity.
    #[must_use]
    pub fn present_as(&self) -> Option<NodeId> {
        let is_in = self.standing.is_in();
        self.member_number().filter(|_| is_in).map(NodeId)
    }

    /// The own number, if the table has the own node under it.
    fn member_number(&self) -> Option<u32> {
        let own = self.roster.as_ref()?.of_identity(&self.config.own)?;
        (self.is_in_roster() && !own.is_expelled).then_some(own.number)
    }

    /// Whether the directory says that this daemon is the one which has the own number. Of two
    /// copies one is.
    fn is_present(&self) -> bool {
        let holder = self.member_number().and_then(|own| self.directory.present.get(&own));
        holder == Some(&self.config.incarnation)
    }

    /// Compares the directory's table with the own one, takes the newer one, and proposes the next.
    fn read(&mut self, table: Option<Roster>, version: u64) -> Result<(), String> {
        let Some(table) = table else {
            self.directory.seen = None;
            let founded = self.founding()?;
            self.outputs.push_back(Output::Propose { table: founded, version });
            return Ok(());
        };
        self.compare(&table)?;
        self.directory.seen = Some((table.clone(), version));
        if self.roster.as_ref().is_none_or(|own| own.revision < table.revision) {
            self.change(table, None);
        }
        self.propose()
    }

    /// The table for a directory that has none. One daemon alone puts it there once nodes have
    /// numbers, so that two directories never give them.
    fn founding(&self) -> Result<Roster, String> {
        let Some(roster) = &self.roster else {
            let (own, about) = (self.config.own, &self.config.about);
            return Ok(Roster::founded(own, about, Numbering::Directory));
        };
        if roster.first != self.config.own {
            let founder = roster.of_identity(&roster.first);
            let founder = founder.map(|found| format!("{} ({})", found.name, found.address));
            return Err(format!(
                "it holds no table of nodes, and this host has one; the daemon of {}, which \
                 founded the fabric, puts it there: start that one with the same fabric.etcd",
                founder.unwrap_or_default()
            ));
        }
        let mut roster = roster.clone();
        if roster.numbering == Numbering::First {
            roster.numbering = Numbering::Directory;
            roster.revise();
        }
        Ok(roster)
    }

    fn compare(&self, table: &Roster) -> Result<(), String> {
        if table.numbering == Numbering::First {
            return Err("its table of nodes says that a first daemon gives numbers".to_owned());
        }
        let Some(own) = &self.roster else { return Ok(()) };
        if own.first != table.first {
            return Err(format!(
                "its table of nodes is of another fabric, which the identity {} founded; give \
                 this fabric another fabric.name or another etcd, or remove the state of this \
                 host (fabric.state) to join that one",
                table.first
            ));
        }
        let agrees = match table.revision.cmp(&own.revision) {
            std::cmp::Ordering::Less => own.follows(table),
            std::cmp::Ordering::Equal => own == table,
            std::cmp::Ordering::Greater => table.follows(own),
        };
        if agrees {
            return Ok(());
        }
        Err(format!(
            "its table of nodes (revision {}) contradicts that of this host (revision {}): etcd \
             lost data, or numbers were given at two places. Remove the state (fabric.state) of \
             the hosts that were admitted since etcd lost them, and start their daemons again",
            table.revision, own.revision
        ))
    }

    /// Proposes the next table, if the own daemon has something to change.
    fn propose(&mut self) -> Result<(), String> {
        let (Some((table, version)), Some(own)) = (&self.directory.seen, &self.roster) else {
            return Ok(());
        };
        let is_older = table.revision < own.revision;
        // The directory went back to an older table, or the own one came while it was read.
        if is_older && own.first != self.config.own {
            return Ok(());
        }
        let (mut next, version) = (own.clone(), *version);
        let mut is_changed = is_older;
        // By the identity, since another daemon may have given its number to another host.
        self.directory.expelling.retain(|identity| !own.has_expelled(identity));
        for identity in &self.directory.expelling {
            let number = next.of_identity(identity).map(|member| member.number);
            is_changed |= number.and_then(|number| next.expel(number)) == Some(true);
        }
        let (own, about) = (self.config.own, &self.config.about);
        match next.of_identity(&own).map(|member| member.is_expelled) {
            Some(true) => {}
            // A copy of this host may be at another address, and the table says which one is it.
            Some(false) if !self.is_present() => {}
            Some(false) => is_changed |= next.update(&own, about),
            // The own number was given to another host.
            None if self.number.is_some() => {}
            None => {
                next.admit(own, about).map_err(|_| Refusal::Full.to_string())?;
                is_changed = true;
            }
        }
        if is_changed {
            self.outputs.push_back(Output::Propose { table: next, version });
        }
        Ok(())
    }

    /// Expels a node by the directory.
    pub(super) fn propose_expulsion(&mut self, identity: Identity) -> Result<(), String> {
        if let Some(fault) = &self.directory.fault {
            return Err(fault.clone());
        }
        self.directory.expelling.insert(identity);
        self.propose()
    }

    /// Whether a node with this identity is none of the fabric any more.
    #[must_use]
    pub fn has_expelled(&self, identity: &Identity) -> bool {
        self.roster.as_ref().is_some_and(|roster| roster.has_expelled(identity))
    }

    /// Asks the directory for an expulsion no more. A proposal that is on its way to it may still
    /// be taken.
    pub fn give_up_expulsion(&mut self, identity: &Identity) {
        self.directory.expelling.remove(identity);
    }

    /// Two daemons that a partition keeps apart do not see each other, but both may see the
    /// directory. There one of them holds the presence of the number.
    fn look_for_rival(&mut self) {
        let Some(number) = self.member_number() else { return };
        let holder = self.directory.present.get(&number).copied();
        let rival = holder.filter(|holder| *holder != self.config.incarnation);
        let since = match (rival, self.directory.rival) {
            (None, _) => return self.directory.rival = None,
            (Some(rival), Some((known, since))) if rival == known => since,
            (Some(rival), _) => {
                self.directory.rival = Some((rival, self.now));
                return;
            }
        };
        if since + RIVAL_FOR <= self.now {
            let fault = Fault::Refused(Refusal::SameIdentity);
            if self.standing.is_in() {
                let about = "etcd".to_owned();
                self.outputs.push_back(Output::Complain { about, fault });
            }
            self.suspend(&Refusal::SameIdentity);
        }
    }

    /// The directory's word about a node without a connection, for people.
    pub(super) fn presence(&self, number: u32) -> &'static str {
        if self.config.admission != Admission::ByDirectory || self.directory.fault.is_some() {
            return "";
        }
        match self.directory.present.contains_key(&number) {
            true => "; etcd says that its daemon runs",
            false => "; etcd says that its daemon does not run",
        }
    }

    /// Why the own node has no number.
    pub(super) fn waits_for_directory(&self) -> String {
        match &self.directory.fault {
            Some(fault) => format!("waits for etcd, by which hosts are admitted: {fault}"),
            None => "asks etcd for a number".to_owned(),
        }
    }
}
