//! The record of a region: its nodes, its primary, and who is in sync. A cluster has one for each
//! of its regions, and all of them have the same nodes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::format::Epoch;
use crate::replication::primary::Peer;

/// Most nodes of a cluster.
pub const MEMBERS_MAX: u32 = 16;

/// Most regions of a cluster. Each one has an engine, and threads, on each node.
pub const REGIONS_MAX: u32 = 16;

/// Slots of all regions together.
const SLOTS: u32 = 16_384;

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

/// The record of a region. A member is named by its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Nodes that begin the cluster.
    pub replicas: u32,
    /// The lease.
    pub lease_ms: u64,
    /// Regions of the cluster. Records of a time when there was one do not say it.
    #[serde(default = "one")]
    pub regions: u32,
    /// The number of this region, from 0 on.
    #[serde(default)]
    pub region: u32,
    /// The node that is the primary when it can, if there is one: another primary makes it the
    /// primary some time after it came back. A cluster of one region has none.
    #[serde(default)]
    pub home: Option<Peer>,
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
    /// It was started for another number of regions.
    #[error("the cluster has {there} regions, and this node was started with {wanted}")]
    Regions {
        /// Of the cluster.
        there: u32,
        /// Of the node.
        wanted: u32,
    },
    /// There are too many.
    #[error("the cluster has {MEMBERS_MAX} nodes, the maximum")]
    Full,
}

fn one() -> u32 {
    1
}

/// The first and the last slot of a region, of so many. All have as many slots, or one more.
#[must_use]
pub fn slots_of(region: u32, regions: u32) -> (u16, u16) {
    let begin = |region: u32| SLOTS * region / regions.max(1);
    let slot = |slot: u32| u16::try_from(slot).unwrap_or(u16::MAX);
    (slot(begin(region)), slot(begin(region + 1) - 1))
}

impl Record {
    /// The record before the first node, of a cluster with one region.
    #[must_use]
    pub fn new(replicas: u32, lease_ms: u64) -> Self {
        Self::of_region(replicas, lease_ms, 0, 1)
    }

    /// The record of one region of several, before the first node.
    #[must_use]
    pub fn of_region(replicas: u32, lease_ms: u64, region: u32, regions: u32) -> Self {
        Self {
            replicas,
            lease_ms,
            regions,
            region,
            home: None,
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
            && (1..=REGIONS_MAX).contains(&self.regions)
            && self.region < self.regions
            && self.home.iter().all(is_member)
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

    /// The first and the last slot of the region.
    #[must_use]
    pub fn slots(&self) -> (u16, u16) {
        slots_of(self.region, self.regions)
    }

    /// The nodes in the order in which they are preferred as primary, which differs from region to
    /// region: the first ones of all regions are spread over the nodes, and so are the next ones of
    /// all regions with the same first one. A cluster of one region takes them as they came.
    #[must_use]
    pub fn preferred(&self) -> Vec<Peer> {
        let mut peers: Vec<Peer> = (0..self.count()).collect();
        if self.regions == 1 || peers.len() < 2 {
            return peers;
        }
        // Nodes may have come to each region in another order.
        peers.sort_by_key(|peer| &self.members[*peer as usize].id);
        let (count, region) = (peers.len(), self.region as usize);
        peers.rotate_left(region % count);
        peers[1..].rotate_left(region / count % (count - 1));
        peers
    }

    /// The place of a node in [`Record::preferred`].
    #[must_use]
    pub fn preference(&self, peer: Peer) -> usize {
        self.preferred().iter().position(|it| *it == peer).unwrap_or(usize::MAX)
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
        self.home = self.preferred().first().copied().filter(|_| self.regions > 1);
        let first = self.home.unwrap_or(came);
        let primary = if is_empty { first } else { fullest.unwrap_or(first) };
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

    /// The region stays with its primary: a user asked for it.
    pub fn settle_down(&mut self) {
        self.home = self.primary.filter(|_| self.regions > 1);
    }

    fn lead(&mut self, peer: Peer) {
        self.candidates.clear();
        self.epoch += 1;
        self.primary = Some(peer);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may end by a panic")]
mod tests {
    use super::*;

    /// The record of a region when its nodes have come, with these ends of their stores.
    fn begun(region: u32, regions: u32, order: &[u32], lsn: impl Fn(u32) -> u64) -> Record {
        let replicas = u32::try_from(order.len()).unwrap();
        let mut record = Record::of_region(replicas, 1_000, region, regions);
        for number in order {
            let id = format!("{number:040}");
            let has = Has { epoch: 1, lsn: lsn(*number) };
            let entry =
                MemberEntry { id, host: String::new(), port: 1, service: String::new(), has };
            record.register(entry, replicas).unwrap();
        }
        assert!(record.is_sound(), "{record:?}");
        record
    }

    fn name(record: &Record, peer: Peer) -> &str {
        record.members[peer as usize].id.trim_start_matches('0')
    }

    #[test]
    fn regions_divide_all_slots() {
        for regions in 1..=REGIONS_MAX {
            let mut next = 0;
            for region in 0..regions {
                let (first, last) = Record::of_region(1, 1_000, region, regions).slots();
                assert_eq!(u32::from(first), next);
                let count = u32::from(last - first) + 1;
                assert!(count.abs_diff(SLOTS / regions) <= 1, "{count} slots of {regions}");
                next = u32::from(last) + 1;
            }
            assert_eq!(next, SLOTS);
        }
    }

    #[test]
    fn primaries_are_spread_over_the_nodes_and_so_are_the_next_ones() {
        for (nodes, regions) in [(3, 3), (3, 6), (3, 16), (4, 3), (5, 16), (2, 2), (16, 16)] {
            let mut order: Vec<u32> = (1..=nodes).collect();
            let mut firsts: BTreeMap<String, u32> = BTreeMap::new();
            let mut nexts: BTreeMap<(String, String), u32> = BTreeMap::new();
            for region in 0..regions {
                // Nodes come to each region in another order.
                order.rotate_left(1);
                let record = begun(region, regions, &order, |_| 0);
                let first = record.primary.unwrap();
                assert_eq!(record.home, Some(first));
                let next = record.preferred()[1];
                let names = (name(&record, first).to_owned(), name(&record, next).to_owned());
                *firsts.entry(names.0.clone()).or_default() += 1;
                *nexts.entry(names).or_default() += 1;
            }
            for count in firsts.values() {
                assert!(*count <= regions.div_ceil(nodes), "{nodes} {regions}: {firsts:?}");
            }
            for ((first, _), count) in &nexts {
                let most = firsts[first].div_ceil(nodes - 1);
                assert!(*count <= most, "{nodes} {regions}: {nexts:?}");
            }
        }
    }

    #[test]
    fn a_node_with_data_begins_and_the_region_goes_home_later() {
        let record = begun(1, 3, &[1, 2, 3], |number| u64::from(number == 1));
        assert_eq!((record.primary, record.home), (Some(0), Some(1)));
        assert_eq!(record.in_sync, [0].into());
        // One region has no home, and begins as it always did.
        let record = begun(0, 1, &[1, 2, 3], |_| 0);
        assert_eq!((record.primary, record.home), (Some(2), None));
        assert_eq!(record.preferred(), [0, 1, 2]);
    }
}
