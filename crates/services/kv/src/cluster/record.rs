//! The record of a cluster.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::format::Epoch;
use crate::replication::primary::Peer;

/// Most nodes of a cluster.
pub const MEMBERS_MAX: u32 = 16;

/// The end of a node's store. The order is that of the choice: a later primary's store first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Has {
    /// The newest primary that the store knows.
    pub epoch: Epoch,
    /// The newest batch.
    pub lsn: u64,
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberEntry {
    /// 40 hexadecimal digits.
    pub id: String,
    /// The address that clients reach.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The place of its service on the fabric.
    pub service: String,
    /// The end of its store when it came.
    pub has: Has,
}

/// The record of a cluster. A member is named by its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Nodes that begin the cluster.
    pub replicas: u32,
    /// The lease.
    pub lease_ms: u64,
    /// Grows with each primary; 0 until there was one.
    pub epoch: Epoch,
    /// The primary.
    pub primary: Option<Peer>,
    /// All that have everything that was acknowledged, with the primary.
    pub in_sync: BTreeSet<Peer>,
    /// Nodes in sync that miss the primary, with the ends of their stores. They take nothing from
    /// it any more.
    pub candidates: BTreeMap<Peer, Has>,
    /// All nodes that ever came.
    pub members: Vec<MemberEntry>,
}

/// Why a node cannot be in a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It was started for another number of nodes.
    #[error("the cluster has {there} replicas, and this node was started with {wanted}")]
    Replicas {
        /// Of the cluster.
        there: u32,
        /// Of the node.
        wanted: u32,
    },
    /// There are too many.
    #[error("the cluster has {MEMBERS_MAX} nodes, the maximum")]
    Full,
}

impl Record {
    /// The record before the first node.
    #[must_use]
    pub fn new(replicas: u32, lease_ms: u64) -> Self {
        Self {
            replicas,
            lease_ms,
            epoch: 0,
            primary: None,
            in_sync: BTreeSet::new(),
            candidates: BTreeMap::new(),
            members: Vec::new(),
        }
    }

    /// Whether what a store gave is sound: a record comes from outside of the program.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let count = self.count();
        let is_member = |peer: &Peer| *peer < count;
        count <= MEMBERS_MAX
            && (1..=MEMBERS_MAX).contains(&self.replicas)
            && (100..=600_000).contains(&self.lease_ms)
            && self.primary.iter().all(|peer| is_member(peer) && self.in_sync.contains(peer))
            && self.in_sync.iter().all(is_member)
            && self.candidates.keys().all(|peer| self.in_sync.contains(peer))
            && (self.epoch > 0) == self.primary.is_some()
    }

    /// The place of a node.
    #[must_use]
    pub fn place_of(&self, id: &str) -> Option<Peer> {
        let place = self.members.iter().position(|member| member.id == id)?;
        Peer::try_from(place).ok()
    }

    /// The backups that are in sync.
    #[must_use]
    pub fn backups(&self) -> BTreeSet<Peer> {
        self.in_sync.iter().copied().filter(|peer| Some(*peer) != self.primary).collect()
    }

    /// A node comes, for the first time or again. The last one of those that begin a cluster makes
    /// the first primary: the node whose store has most. Empty stores are in sync with each other.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn register(&mut self, entry: MemberEntry, replicas: u32) -> Result<Peer, Refused> {
        if self.replicas != replicas {
            return Err(Refused::Replicas { there: self.replicas, wanted: replicas });
        }
        let count = self.count();
        let peer = match self.place_of(&entry.id) {
            Some(peer) => {
                self.members[peer as usize] = entry;
                peer
            }
            None if count >= MEMBERS_MAX => return Err(Refused::Full),
            None => {
                self.members.push(entry);
                count
            }
        };
        if self.epoch == 0 && self.count() >= replicas {
            self.begin(peer);
        }
        Ok(peer)
    }

    fn count(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }

    fn begin(&mut self, came: Peer) {
        let peers = 0..self.count();
        let most = self.members.iter().map(|member| member.has).max().unwrap_or_default();
        let is_empty = most.lsn == 0;
        let fullest = peers.clone().find(|peer| self.members[*peer as usize].has == most);
        let primary = if is_empty { came } else { fullest.unwrap_or(came) };
        self.epoch = most.epoch + 1;
        self.primary = Some(primary);
        self.in_sync = if is_empty { peers.collect() } else { BTreeSet::from([primary]) };
    }

    /// The primary of an epoch names its backups in sync. False if it is the primary no more.
    pub fn name_backups(&mut self, primary: Peer, epoch: Epoch, backups: &BTreeSet<Peer>) -> bool {
        if self.epoch != epoch || self.primary != Some(primary) {
            return false;
        }
        self.in_sync = backups.iter().copied().chain([primary]).collect();
        let in_sync = &self.in_sync;
        self.candidates.retain(|peer, _| in_sync.contains(peer));
        true
    }

    /// A node in sync misses the primary of an epoch. False if it is not in sync any more, or there
    /// is a later primary, which it did not miss yet.
    pub fn stand(&mut self, peer: Peer, epoch: Epoch, has: Has) -> bool {
        let may = self.epoch == epoch && self.in_sync.contains(&peer);
        if may {
            self.candidates.insert(peer, has);
        }
        may
    }

    /// A candidate becomes the primary of a new epoch. False if it is none. The old primary is in
    /// sync no more: it joins again.
    pub fn promote(&mut self, peer: Peer) -> bool {
        if !self.candidates.contains_key(&peer) {
            return false;
        }
        if let Some(old) = self.primary.filter(|old| *old != peer) {
            self.in_sync.remove(&old);
        }
        self.lead(peer);
        true
    }

    /// The primary of an epoch makes a backup in sync the next one. It has ceased to serve, and the
    /// backup has all that was acknowledged, as has the old primary itself.
    pub fn hand_over(&mut self, from: Peer, epoch: Epoch, to: Peer) -> bool {
        let may = self.epoch == epoch && self.primary == Some(from) && self.in_sync.contains(&to);
        if may {
            self.lead(to);
        }
        may
    }

    fn lead(&mut self, peer: Peer) {
        self.candidates.clear();
        self.epoch += 1;
        self.primary = Some(peer);
    }
}
