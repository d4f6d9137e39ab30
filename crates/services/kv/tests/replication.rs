//! A cluster of three stores in one thread: deaths, cuts and stops by a seed. What was acknowledged
//! is in the store of each primary that follows, and nothing else but what was written.
//!
//! The record of the cluster is a cell that is compared and set. Channels keep their order until
//! they are cut. Disks are simulated: a node that dies loses its memory alone, as by kill -9.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_kv::disk::Disk;
use weft_kv::disk::simulated::SimulatedDisk;
use weft_kv::engine::{Engine, Options, Piece, Snapshot, check, open_on};
use weft_kv::manifest::Edit;
use weft_kv::replication::Shipper;
use weft_kv::replication::message::{Envelope, LogEnd, Message};
use weft_kv::replication::primary::{Event, Peer, Primary};
use weft_kv::replication::replica::Replica;
use weft_kv::store::{Change, Store, StoreError};
use weft_kv::table::TableMeta;

const NODES: u32 = 3;

fn options(epoch: u32) -> Options {
    Options {
        epoch,
        level0_bytes: 2_500,
        frozen_max: 2,
        growth: 2,
        table_bytes: 1_500,
        segment_bytes: 3_000,
        in_place_bytes: 60,
        cache_bytes: 40_000,
        threads: 0,
        boot: "boot".to_owned(),
        ..Options::default()
    }
}

/// Brings what the engine writes to the state of the primary.
struct ToPrimary(Arc<Mutex<Primary>>);

impl Shipper for ToPrimary {
    fn log(&self, pieces: &[Piece<'_>], newest: u64) {
        let own = |piece: &Piece<'_>| (piece.segment, piece.offset, piece.bytes.to_vec());
        let pieces: Vec<_> = pieces.iter().map(own).collect();
        self.0.lock().unwrap().log(&pieces, newest);
    }

    fn edit(&self, edit: &Edit, tables: Vec<(TableMeta, Vec<u8>)>) {
        self.0.lock().unwrap().edit(edit, tables);
    }

    fn wait(&self, _lsn: u64) -> Result<(), StoreError> {
        Ok(())
    }
}

struct Leading {
    engine: Engine,
    state: Arc<Mutex<Primary>>,
    epoch: u32,
    offers: BTreeMap<Peer, (Snapshot, Vec<LogEnd>)>,
    /// The version of the record that it read last.
    version: u64,
    /// The record should name other backups.
    wants_change: bool,
    /// A change that has no answer yet: the backups, and its outcome.
    change: Option<(BTreeSet<Peer>, bool)>,
}

enum Role {
    Dead,
    Backup(Box<Replica>),
    Primary(Box<Leading>),
}

struct Node {
    disk: SimulatedDisk,
    role: Role,
    /// The epoch whose batches its store has.
    history: u32,
}

#[derive(Clone)]
struct Record {
    version: u64,
    epoch: u32,
    primary: Peer,
    in_sync: BTreeSet<Peer>,
}

struct Cluster {
    random: ChaCha8Rng,
    nodes: Vec<Node>,
    record: Record,
    /// Messages from, to.
    channels: BTreeMap<(Peer, Peer), VecDeque<Vec<u8>>>,
    cut: BTreeSet<(Peer, Peer)>,
    /// The batches of each epoch with their numbers, and of the epoch that it follows.
    histories: BTreeMap<u32, Vec<(u64, Vec<Change>)>>,
    acknowledged: u64,
    failovers: u32,
    joins: u32,
    compactions: u64,
}

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Fails with the keys that differ.
fn assert_same(found: &Pairs, expected: &Pairs, what: &str) {
    let differs = |key: &&Vec<u8>| found.get(*key) != expected.get(*key);
    let keys: BTreeSet<_> = found.keys().chain(expected.keys()).filter(differs).collect();
    let keys: Vec<_> = keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
    assert!(keys.is_empty(), "{what}: {keys:?}");
}

fn pair(a: Peer, b: Peer) -> (Peer, Peer) {
    (a.min(b), a.max(b))
}

impl Cluster {
    fn new(seed: u64) -> Self {
        let node = |_| {
            let disk = SimulatedDisk::new();
            let replica = Replica::open(Arc::new(disk.clone()), options(1)).unwrap();
            Node { disk, role: Role::Backup(Box::new(replica)), history: 0 }
        };
        let record = Record { version: 0, epoch: 0, primary: 0, in_sync: [0].into() };
        let mut cluster = Self {
            random: ChaCha8Rng::seed_from_u64(seed),
            nodes: (0..NODES).map(node).collect(),
            record,
            channels: BTreeMap::new(),
            cut: BTreeSet::new(),
            histories: BTreeMap::from([(0, Vec::new())]),
            acknowledged: 0,
            failovers: 0,
            joins: 0,
            compactions: 0,
        };
        cluster.promote();
        cluster
    }

    /// The pairs that the batches of an epoch leave.
    fn pairs(&self, epoch: u32) -> Pairs {
        let mut pairs = Pairs::new();
        for (_, batch) in &self.histories[&epoch] {
            for change in batch {
                match change {
                    Change::Put { key, value } => pairs.insert(key.clone(), value.clone()),
                    Change::Delete { key } => pairs.remove(key),
                };
            }
        }
        pairs
    }

    /// A node in sync becomes the primary, if one lives.
    fn promote(&mut self) {
        let lsn = |node: &Node| match &node.role {
            Role::Backup(replica) => Some(replica.lsn()),
            Role::Dead | Role::Primary(_) => None,
        };
        let living = self
            .record
            .in_sync
            .iter()
            .filter_map(|&peer| lsn(&self.nodes[peer as usize]).map(|lsn| (lsn, peer)));
        // Those that have most stand late at times: each of them has all that was acknowledged.
        let is_any = self.random.random_range(0..3) == 0;
        let mut living: Vec<_> = living.collect();
        living.sort_unstable();
        let chosen = match living.len() {
            0 => return,
            count if is_any => self.random.random_range(0..count),
            count => count - 1,
        };
        let (_, peer) = living[chosen];
        // It answers the old primary no more before the record changes.
        self.nodes[peer as usize].role = Role::Dead;
        self.disconnect(peer);
        let epoch = self.record.epoch + 1;
        self.record.version += 1;
        self.record.epoch = epoch;
        self.record.primary = peer;
        self.failovers += 1;
        let disk: Arc<dyn Disk> = Arc::new(self.nodes[peer as usize].disk.clone());
        let engine = open_on(disk, options(epoch)).unwrap();
        let newest = engine.newest().0;
        assert!(newest >= self.acknowledged, "{newest} of {} are there", self.acknowledged);
        let mut history = self.histories[&self.nodes[peer as usize].history].clone();
        history.retain(|(number, _)| *number <= newest);
        self.histories.insert(epoch, history);
        self.nodes[peer as usize].history = epoch;
        let found = engine.scan(Bound::Unbounded, Bound::Unbounded, false, usize::MAX).unwrap();
        assert_same(&found.into_iter().collect(), &self.pairs(epoch), "a promotion");
        let others: BTreeSet<Peer> =
            self.record.in_sync.iter().copied().filter(|&other| other != peer).collect();
        let state = Arc::new(Mutex::new(Primary::new(epoch, newest, others)));
        engine.set_shipper(Some(Arc::new(ToPrimary(Arc::clone(&state)))));
        let version = self.record.version;
        let leading = Leading {
            engine,
            state,
            epoch,
            offers: BTreeMap::new(),
            version,
            wants_change: false,
            change: None,
        };
        self.nodes[peer as usize].role = Role::Primary(Box::new(leading));
        self.acknowledge(peer);
    }

    /// All channels of a node are gone.
    fn disconnect(&mut self, peer: Peer) {
        self.channels.retain(|(from, to), _| *from != peer && *to != peer);
        for other in 0..NODES {
            if other != peer {
                self.tell_down(other, peer);
                self.tell_down(peer, other);
            }
        }
    }

    fn tell_down(&mut self, node: Peer, peer: Peer) {
        if let Role::Primary(leading) = &mut self.nodes[node as usize].role {
            leading.state.lock().unwrap().down(peer);
            leading.offers.remove(&peer);
        }
    }

    fn write(&mut self) {
        let zombie = self.random.random_range(0..8) == 0;
        let primaries: Vec<Peer> = (0..NODES)
            .filter(|&peer| matches!(self.nodes[peer as usize].role, Role::Primary(_)))
            .collect();
        for peer in primaries {
            let is_current = peer == self.record.primary;
            if !is_current && !zombie {
                continue;
            }
            let key = format!("key{}", self.random.random_range(0..150)).into_bytes();
            let bytes = [4, 30, 200][self.random.random_range(0..3)];
            let value = (0..bytes).map(|_| self.random.random()).collect();
            let batch = if self.random.random_range(0..6) == 0 {
                vec![Change::Delete { key }]
            } else {
                vec![
                    Change::Put { key, value },
                    Change::Put { key: b"last".to_vec(), value: b"x".to_vec() },
                ]
            };
            let Role::Primary(leading) = &mut self.nodes[peer as usize].role else { continue };
            let lsn = leading.engine.write(batch.clone()).unwrap();
            leading.engine.commit(lsn).unwrap();
            let newest = leading.engine.newest().0;
            leading.state.lock().unwrap().written(newest);
            if self.random.random_range(0..4) == 0 {
                leading.engine.work().unwrap();
                let lsn = leading.engine.newest();
                leading.engine.commit(lsn).unwrap();
                leading.state.lock().unwrap().written(lsn.0);
            }
            let epoch = leading.epoch;
            self.histories.get_mut(&epoch).unwrap().push((lsn.0, batch));
            self.acknowledge(peer);
        }
    }

    /// Does what a primary's events ask for, and sends its messages.
    fn acknowledge(&mut self, peer: Peer) {
        loop {
            let Role::Primary(leading) = &mut self.nodes[peer as usize].role else { return };
            let mut state = leading.state.lock().unwrap();
            while let Some((to, envelope)) = state.poll_transmit() {
                if !self.cut.contains(&pair(peer, to)) {
                    self.channels.entry((peer, to)).or_default().push_back(envelope.emit());
                }
            }
            let Some(event) = state.poll_event() else { return };
            match event {
                Event::Acknowledged(lsn) => {
                    assert_eq!(leading.epoch, self.record.epoch, "an old primary acknowledges");
                    self.acknowledged = self.acknowledged.max(lsn);
                }
                Event::Propose => leading.wants_change = true,
                Event::Fetch { peer: to, tables, log } => {
                    let Some((snapshot, ends)) = leading.offers.get(&to) else { continue };
                    let tables =
                        tables.iter().map(|&(epoch, id)| snapshot.table(epoch, id).unwrap());
                    let end =
                        |segment: u64| ends.iter().find(|it| it.segment == segment).unwrap().end;
                    let log = log.iter().map(|&(segment, from)| {
                        (segment, from, snapshot.log(segment, from, end(segment)).unwrap())
                    });
                    state.lacking(to, tables.collect(), log.collect());
                }
                Event::Deposed(_) => {
                    drop(state);
                    self.restart(peer);
                    return;
                }
            }
        }
    }

    /// A primary changes the record, or gets the answer to its last change.
    fn change_record(&mut self, peer: Peer) {
        let Role::Primary(leading) = &mut self.nodes[peer as usize].role else { return };
        let mut state = leading.state.lock().unwrap();
        match leading.change.take() {
            Some((backups, true)) => state.record(backups),
            Some((_, false)) => state.refused(),
            None => {
                let wants_change = std::mem::take(&mut leading.wants_change);
                let Some(backups) = wants_change.then(|| state.proposal()).flatten() else {
                    return;
                };
                let is_mine = leading.version == self.record.version;
                if is_mine {
                    self.record.version += 1;
                    leading.version = self.record.version;
                    self.record.in_sync = backups.iter().copied().chain([peer]).collect();
                }
                leading.change = Some((backups, is_mine));
            }
        }
        drop(state);
        self.acknowledge(peer);
    }

    /// The primary reaches a backup that is down for it.
    fn join(&mut self, to: Peer) {
        let peer = self.record.primary;
        if peer == to || self.cut.contains(&pair(peer, to)) {
            return;
        }
        if !matches!(self.nodes[to as usize].role, Role::Backup(_)) {
            return;
        }
        let Role::Primary(leading) = &mut self.nodes[peer as usize].role else { return };
        if leading.offers.contains_key(&to) {
            return;
        }
        self.channels.remove(&(peer, to));
        self.channels.remove(&(to, peer));
        let state = Arc::clone(&leading.state);
        let mut kept = None;
        leading.engine.offer(|offer, snapshot| {
            kept = Some((snapshot, offer.log.clone()));
            state.lock().unwrap().join(to, offer);
        });
        leading.offers.insert(to, kept.unwrap());
        self.joins += 1;
        self.acknowledge(peer);
    }

    fn deliver(&mut self) {
        let waiting: Vec<(Peer, Peer)> = self
            .channels
            .iter()
            .filter(|(_, queue)| !queue.is_empty())
            .map(|(&ends, _)| ends)
            .collect();
        if waiting.is_empty() {
            return;
        }
        let (from, to) = waiting[self.random.random_range(0..waiting.len())];
        let bytes = self.channels.get_mut(&(from, to)).unwrap().pop_front().unwrap();
        let envelope = Envelope::parse(&bytes).unwrap();
        match &mut self.nodes[to as usize].role {
            Role::Dead => {}
            Role::Primary(leading) => {
                leading.state.lock().unwrap().handle(from, envelope);
                self.acknowledge(to);
            }
            Role::Backup(replica) => match replica.handle(envelope) {
                Ok(Some(answer)) => {
                    if matches!(answer.message, Message::Joined { .. }) {
                        self.nodes[to as usize].history = answer.epoch;
                    }
                    self.channels.entry((to, from)).or_default().push_back(answer.emit());
                }
                Ok(None) => {}
                Err(StoreError::Unknown(_)) => self.restart(to),
                Err(error) => panic!("{error}"),
            },
        }
    }

    fn kill(&mut self, peer: Peer) {
        self.collect_counts(peer);
        self.nodes[peer as usize].role = Role::Dead;
        self.nodes[peer as usize].disk.kill();
        self.disconnect(peer);
    }

    fn restart(&mut self, peer: Peer) {
        self.kill(peer);
        let disk: Arc<dyn Disk> = Arc::new(self.nodes[peer as usize].disk.clone());
        let replica = Replica::open(disk, options(1)).unwrap();
        self.nodes[peer as usize].role = Role::Backup(Box::new(replica));
    }

    fn collect_counts(&mut self, peer: Peer) {
        if let Role::Primary(leading) = &self.nodes[peer as usize].role {
            let statistics = leading.engine.statistics();
            self.compactions += statistics.compactions + statistics.collections;
        }
    }

    fn step(&mut self) {
        let node = self.random.random_range(0..NODES);
        let other = (node + self.random.random_range(1..NODES)) % NODES;
        match self.random.random_range(0..1_000) {
            0..4 => self.kill(node),
            4..14 if matches!(self.nodes[node as usize].role, Role::Dead) => self.restart(node),
            14..18 => {
                self.cut.insert(pair(node, other));
                self.channels.remove(&(node, other));
                self.channels.remove(&(other, node));
                self.tell_down(node, other);
                self.tell_down(other, node);
                self.acknowledge(node);
                self.acknowledge(other);
            }
            18..30 => {
                self.cut.remove(&pair(node, other));
            }
            // Its lease ran out, while it lives or not: it may go on as if it knew nothing.
            30..33 => self.promote(),
            33..45 => {
                let primary = self.record.primary;
                if matches!(self.nodes[primary as usize].role, Role::Dead | Role::Backup(_)) {
                    self.promote();
                }
            }
            45..75 => self.join(node),
            75..170 => self.change_record(node),
            170..400 => self.write(),
            _ => self.deliver(),
        }
        for peer in 0..NODES {
            self.acknowledge(peer);
        }
    }

    /// All heal: a primary is there, both others get in sync, and all have the same.
    fn heal(&mut self) {
        self.cut.clear();
        for peer in 0..NODES {
            if peer != self.record.primary || !self.is_led() {
                self.restart(peer);
            }
        }
        if !self.is_led() {
            self.promote();
        }
        assert!(self.is_led());
        for _ in 0..5_000 {
            for peer in 0..NODES {
                self.join(peer);
                self.change_record(peer);
                self.acknowledge(peer);
            }
            self.deliver();
        }
        assert_eq!(self.record.in_sync.len(), NODES as usize, "all are in sync");
        for _ in 0..20 {
            self.write();
        }
        for _ in 0..2_000 {
            self.deliver();
        }
        let newest = self.histories[&self.record.epoch].last().map_or(0, |(lsn, _)| *lsn);
        assert!(self.acknowledged >= newest, "all is acknowledged");
        let pairs = self.pairs(self.record.epoch);
        for peer in 0..NODES {
            self.kill(peer);
            let disk: Arc<dyn Disk> = Arc::new(self.nodes[peer as usize].disk.clone());
            let (damage, _) = check(&disk, &options(1));
            assert_eq!(damage, Vec::<String>::new());
            let engine = open_on(disk, options(self.record.epoch + 1)).unwrap();
            let found = engine.scan(Bound::Unbounded, Bound::Unbounded, false, usize::MAX).unwrap();
            assert_same(&found.into_iter().collect(), &pairs, &format!("node {peer}"));
        }
    }

    fn is_led(&self) -> bool {
        match &self.nodes[self.record.primary as usize].role {
            Role::Primary(leading) => leading.epoch == self.record.epoch,
            Role::Dead | Role::Backup(_) => false,
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_in_random_runs() {
    let first: u64 = std::env::var("WEFT_KV_SEED").map_or(0, |seed| seed.parse().unwrap());
    let seeds: u64 = std::env::var("WEFT_KV_SEEDS").map_or(40, |seeds| seeds.parse().unwrap());
    let (mut failovers, mut joins, mut compactions, mut acknowledged) = (0, 0, 0, 0);
    for seed in first..first + seeds {
        println!("seed {seed}");
        let mut cluster = Cluster::new(seed);
        for _ in 0..4_000 {
            cluster.step();
        }
        cluster.heal();
        failovers += cluster.failovers - 1;
        joins += cluster.joins;
        compactions += cluster.compactions;
        acknowledged += cluster.acknowledged;
    }
    println!(
        "{failovers} failovers, {joins} joins, {compactions} compactions, {acknowledged} acks"
    );
    assert!(u64::from(failovers) > seeds && u64::from(joins) > 4 * seeds && compactions > seeds);
    assert!(acknowledged > 200 * seeds);
}
