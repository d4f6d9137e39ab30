//! The regions of a node behind one store: each key goes to the region of its slot.
//!
//! Always true:
//! - A batch of one region is whole. One of several (FLUSHALL) is whole in each of them.
//! - The number of a node is the sum of the numbers of its regions. Each of them only grows, so
//!   whatever a sum counted is committed by a commit of each region up to its number of a later
//!   moment. A node of one region has the numbers of its region.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use weft_kv::cluster::slots_of;
use weft_kv::node::{Failover, View};
use weft_kv::replication::primary::Peer;
use weft_kv::store::{Change, Lsn, Pair, Peek, Store, StoreError};

use super::court::deposed;
use super::layout;
use super::reign::Reign;
use super::shared::{Commit, Shared};
use super::views::Views;

/// The first slot of each region.
pub(super) struct Firsts(Vec<u16>);

impl Firsts {
    pub fn new(regions: usize) -> Self {
        let count = u32::try_from(regions).unwrap_or(u32::MAX);
        Self((0..count).map(|region| slots_of(region, count).0).collect())
    }

    /// The place of the region of a key, which begins with its slot.
    pub fn place_of(&self, key: &[u8]) -> usize {
        let slot = key.first_chunk::<2>().map_or(0, |slot| u16::from_be_bytes(*slot));
        self.0.partition_point(|first| *first <= slot).saturating_sub(1)
    }
}

/// The regions of a node, in the order of their slots.
pub(super) struct Regions {
    all: Vec<Arc<Shared>>,
    firsts: Firsts,
    /// The newest number of the node up to which each outcome is known.
    settled: AtomicU64,
    views: Mutex<Views>,
}

/// A commit of what the regions had at one moment.
pub(super) struct Round {
    /// The numbers of the regions.
    upto: Vec<Lsn>,
    /// The commits that go on.
    pub parts: Vec<Part>,
    result: Result<(), StoreError>,
}

/// The commit of a region that goes on.
pub(super) struct Part {
    pub region: usize,
    pub commit: Commit,
}

impl Regions {
    pub fn new(all: Vec<Arc<Shared>>) -> Self {
        let firsts = Firsts::new(all.len());
        let (settled, views) = (AtomicU64::new(0), Mutex::default());
        Self { all, firsts, settled, views }
    }

    pub fn all(&self) -> &[Arc<Shared>] {
        &self.all
    }

    fn of(&self, key: &[u8]) -> &Shared {
        &self.all[self.firsts.place_of(key)]
    }

    /// The regions of a range.
    fn within(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> std::ops::RangeInclusive<usize> {
        let last = self.all.len() - 1;
        let first = match from {
            Bound::Included(key) | Bound::Excluded(key) => self.firsts.place_of(key),
            Bound::Unbounded => 0,
        };
        let last = match to {
            Bound::Included(key) => self.firsts.place_of(key),
            Bound::Excluded(key) => {
                let place = self.firsts.place_of(key);
                let is_behind = place > 0 && *key <= self.firsts.0[place].to_be_bytes()[..];
                place - usize::from(is_behind)
            }
            Bound::Unbounded => last,
        };
        first..=last
    }

    /// The pairs of a range, from one region after the other.
    fn collect<T>(
        &self,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        backward: bool,
        limit: usize,
        scan: impl Fn(&Shared, usize) -> Result<Vec<T>, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let mut places: Vec<usize> = self.within(from, to).collect();
        if backward {
            places.reverse();
        }
        let mut found = Vec::new();
        for place in places {
            let left = limit - found.len();
            if left > 0 {
                found.extend(scan(&self.all[place], left)?);
            }
        }
        Ok(found)
    }

    /// The cluster, as all regions together see it.
    pub fn view(&self) -> Arc<View> {
        if let [one] = &self.all[..] {
            return Arc::clone(&one.view.read());
        }
        let parts: Vec<Arc<View>> = self.all.iter().map(|it| Arc::clone(&it.view.read())).collect();
        self.views.lock().of(parts)
    }

    /// The newest number whose outcome is known.
    pub fn settled(&self) -> Lsn {
        match &self.all[..] {
            [one] => Lsn(one.numbers.settled()),
            _ => Lsn(self.settled.load(Ordering::Acquire)),
        }
    }

    /// Begins a commit of all up to a number of the node, and gives it to the operating system.
    pub fn begin(&self, upto: Lsn) -> Round {
        let is_one = self.all.len() == 1;
        let newest = |it: &Arc<Shared>| if is_one { upto } else { it.newest() };
        let mut round = Round {
            upto: self.all.iter().map(newest).collect(),
            parts: Vec::new(),
            result: Ok(()),
        };
        for (region, (shared, upto)) in self.all.iter().zip(&round.upto).enumerate() {
            if !is_one && upto.0 <= shared.numbers.settled() {
                continue;
            }
            match shared.write_out(*upto) {
                Ok(commit) => round.parts.push(Part { region, commit }),
                Err(error) => round.result = Err(error),
            }
        }
        round
    }

    /// The commit of a region ended, whose part is no more in the round.
    pub fn end_part(&self, round: &mut Round, region: usize, result: Result<(), StoreError>) {
        self.all[region].end_commit(round.upto[region], result.is_ok());
        if result.is_err() {
            round.result = result;
        }
    }

    /// All parts ended. What is not settled has to be committed again.
    pub fn end(&self, round: Round) -> Result<(), StoreError> {
        let mut all = self.all.iter().zip(&round.upto);
        if all.all(|(shared, upto)| shared.numbers.settled() >= upto.0) {
            let sum = round.upto.iter().map(|upto| upto.0).sum();
            self.settled.fetch_max(sum, Ordering::AcqRel);
        }
        round.result
    }

    /// The regions that this node serves as the primary.
    fn led(&self) -> Vec<(&Shared, Arc<Reign>)> {
        let led = |shared: &'_ Arc<Shared>| shared.serving().ok();
        self.all.iter().filter_map(|shared| Some((&**shared, led(shared)?))).collect()
    }

    /// The reigns whose stores a copy has, each with its directory.
    pub fn copies(&self, to: &Path) -> Vec<(Arc<Reign>, PathBuf)> {
        let place = |region: usize| match self.all.len() {
            1 => to.to_owned(),
            _ => layout::place_of(to, u32::try_from(region).unwrap_or(u32::MAX)),
        };
        let all = self.all.iter().enumerate();
        all.filter_map(|(region, shared)| Some((shared.serving().ok()?, place(region)))).collect()
    }

    /// The nodes that have all batches up to a number, of all regions that this node serves.
    pub fn replicas_with(&self, upto: Lsn) -> usize {
        let is_settled = self.all.len() > 1 && upto <= self.settled();
        let mut with_all: Option<BTreeSet<String>> = None;
        for (shared, reign) in self.led() {
            let lsn = match self.all.len() {
                1 => upto.0.saturating_sub(reign.base),
                _ if is_settled => reign.court.acknowledged(),
                _ => reign.engine.newest().0,
            };
            let view = Arc::clone(&shared.view.read());
            let name = |peer: Peer| view.members.get(peer as usize).map(|it| it.id.clone());
            let with: BTreeSet<String> =
                reign.court.backups_with(lsn).into_iter().filter_map(name).collect();
            with_all = Some(match with_all {
                None => with,
                Some(before) => &before & &with,
            });
        }
        with_all.map_or(0, |with| with.len())
    }

    /// Begins to hand over all regions that this node serves.
    pub fn failover(&self, how: &Failover) -> Result<(), String> {
        let view = self.view();
        let led = self.led();
        if led.is_empty() {
            return Err("this node is not the primary, or waits for its backups".to_owned());
        }
        let mut wishes = Vec::new();
        for (shared, reign) in &led {
            let to = match how.to {
                None => None,
                Some(place) => {
                    let id = view.members.get(place).map(|member| &member.id);
                    let there = Arc::clone(&shared.view.read());
                    let peer = there.members.iter().position(|member| Some(&member.id) == id);
                    Some(peer.ok_or("the node is not in the cluster")?)
                }
            };
            if reign.court.heir(0, to.and_then(|to| to.try_into().ok())).is_none() {
                return Err("no backup is in sync".to_owned());
            }
            wishes.push(Failover { to, ..how.clone() });
        }
        for ((shared, _), wish) in led.iter().zip(wishes) {
            *shared.failover.lock() = Some(wish);
            shared.control.ring();
        }
        Ok(())
    }

    /// Ends what [`failover`](Self::failover) began. False if nothing goes on.
    pub fn abort_failover(&self) -> bool {
        let ended: Vec<bool> = self.all.iter().map(|shared| shared.abort_failover()).collect();
        ended.contains(&true)
    }

    pub fn is_failing_over(&self) -> bool {
        self.all.iter().any(|shared| shared.is_failing_over())
    }
}

impl Store for Regions {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.of(key).get(key)
    }

    fn peek(&self, key: &[u8], at_most: usize) -> Result<Option<Peek>, StoreError> {
        self.of(key).peek(key, at_most)
    }

    fn write(&self, batch: Vec<Change>) -> Result<Lsn, StoreError> {
        let place = |change: &Change| match change {
            Change::Put { key, .. } | Change::Delete { key } => self.firsts.place_of(key),
        };
        let first = batch.first().map_or(0, place);
        if batch.iter().all(|change| place(change) == first) {
            let lsn = self.all[first].write(batch)?;
            return Ok(if self.all.len() == 1 { lsn } else { self.newest() });
        }
        let mut parts: Vec<Vec<Change>> = vec![Vec::new(); self.all.len()];
        for change in batch {
            parts[place(&change)].push(change);
        }
        let parts = parts.into_iter().zip(&self.all).filter(|(part, _)| !part.is_empty());
        let parts: Vec<_> = parts.collect();
        for (_, shared) in &parts {
            shared.serving()?;
        }
        for (number, (part, shared)) in parts.into_iter().enumerate() {
            let unknown = |error: StoreError| match number {
                0 => error,
                _ => StoreError::Unknown(format!("a part of it happened, and then: {error}")),
            };
            shared.write(part).map_err(unknown)?;
        }
        Ok(self.newest())
    }

    fn commit(&self, upto: Lsn) -> Result<(), StoreError> {
        let mut round = self.begin(upto);
        let begun = weft_open::now();
        while let Some(first) = round.parts.first() {
            let (court, lsn) = (Arc::clone(&first.commit.reign.court), first.commit.lsn.0);
            for part in std::mem::take(&mut round.parts) {
                let court = &part.commit.reign.court;
                let outcome = court.outcome(part.commit.lsn.0);
                match outcome.or_else(|| court.is_enough(begun).then(|| Err(deposed()))) {
                    // Its reign may end from here on.
                    Some(result) => self.end_part(&mut round, part.region, result),
                    None => round.parts.push(part),
                }
            }
            if !round.parts.is_empty() {
                court.wait_some(lsn);
            }
        }
        self.end(round)
    }

    fn newest(&self) -> Lsn {
        Lsn(self.all.iter().map(|shared| shared.newest().0).sum())
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        let scan = |shared: &Shared, left| shared.scan(from, to, backward, left);
        self.collect((from, to), backward, limit, scan)
    }

    fn peek_scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
        at_most: usize,
    ) -> Result<Vec<(Vec<u8>, Peek)>, StoreError> {
        let scan = |shared: &Shared, left| shared.peek_scan(from, to, backward, left, at_most);
        self.collect((from, to), backward, limit, scan)
    }
}
