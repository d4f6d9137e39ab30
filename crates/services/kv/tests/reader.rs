//! Reads at a backup: a primary that flushes, compacts and collects, a backup that follows it, and
//! a reader that sees exactly what was acknowledged, whatever came.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_kv::disk::Disk;
use weft_kv::disk::simulated::SimulatedDisk;
use weft_kv::engine::{Engine, Options, Piece, Reader, check, open_on};
use weft_kv::manifest::Edit;
use weft_kv::replication::Shipper;
use weft_kv::replication::message::{Envelope, Message};
use weft_kv::replication::replica::Replica;
use weft_kv::store::{Change, Store, StoreError};
use weft_kv::table::TableMeta;

const KEYS: u32 = 300;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

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

/// Keeps what the engine ships.
#[derive(Default)]
struct Kept(Mutex<Vec<Message>>);

impl Shipper for Kept {
    fn log(&self, pieces: &[Piece<'_>], newest: u64) {
        for (number, piece) in pieces.iter().enumerate() {
            let newest = (number + 1 == pieces.len()).then_some(newest);
            let (segment, offset, bytes) = (piece.segment, piece.offset, piece.bytes.to_vec());
            self.0.lock().unwrap().push(Message::Log { segment, offset, bytes, newest });
        }
    }

    fn edit(&self, edit: &Edit, tables: Vec<(TableMeta, Vec<u8>)>) {
        let mut kept = self.0.lock().unwrap();
        kept.extend(tables.into_iter().map(|(meta, bytes)| Message::Table { meta, bytes }));
        kept.push(Message::Edit(edit.clone()));
    }

    fn wait(&self, _: u64) -> Result<(), StoreError> {
        Ok(())
    }
}

struct World {
    random: ChaCha8Rng,
    primary: Engine,
    kept: Arc<Kept>,
    disk: SimulatedDisk,
    replica: Replica,
    /// The pairs after each batch that changed them.
    models: BTreeMap<u64, Pairs>,
    /// The newest batch that the backup has, and the newest acknowledged one.
    came: u64,
    acknowledged: u64,
    /// The reader, and the newest batch that came before it.
    reader: Option<(Arc<Reader>, u64)>,
    reads: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let disk = SimulatedDisk::new();
        let backup: Arc<dyn Disk> = Arc::new(disk.clone());
        let mut world = Self {
            random: ChaCha8Rng::seed_from_u64(seed),
            primary: open_on(Arc::new(SimulatedDisk::new()), options(1)).unwrap(),
            kept: Arc::default(),
            disk,
            // A reader freezes its levels 0 at other places than the primary.
            replica: Replica::open(backup, Options { level0_bytes: 700, ..options(1) }).unwrap(),
            models: BTreeMap::from([(0, Pairs::new())]),
            came: 0,
            acknowledged: 0,
            reader: None,
            reads: 0,
        };
        world.join();
        world
    }

    fn say(&mut self, message: Message) -> Option<Message> {
        let answer = self.replica.handle(Envelope { epoch: 1, message }).unwrap();
        answer.map(|envelope| envelope.message)
    }

    /// The backup joins, with what it has.
    fn join(&mut self) {
        self.primary.set_shipper(None);
        self.kept.0.lock().unwrap().clear();
        let mut offered = None;
        self.primary.offer(|offer, snapshot| offered = Some((offer, snapshot)));
        let (offer, snapshot) = offered.unwrap();
        self.primary.set_shipper(Some(Arc::clone(&self.kept) as Arc<dyn Shipper>));
        let ends = offer.log.clone();
        let Some(Message::Want { tables, log }) = self.say(Message::Offer(offer)) else { panic!() };
        for (epoch, id) in tables {
            let (meta, bytes) = snapshot.table(epoch, id).unwrap();
            self.say(Message::Table { meta, bytes });
        }
        for (segment, offset) in log {
            let end = ends.iter().find(|end| end.segment == segment).unwrap().end;
            let bytes = snapshot.log(segment, offset, end).unwrap();
            self.say(Message::Log { segment, offset, bytes, newest: None });
        }
        let Some(Message::Joined { lsn }) = self.say(Message::Complete) else { panic!() };
        self.came = lsn;
        self.acknowledged = self.acknowledged.max(lsn);
    }

    fn write(&mut self) {
        let mut pairs = self.models.last_key_value().unwrap().1.clone();
        let mut batch = Vec::new();
        for _ in 0..self.random.random_range(1..9) {
            let key = format!("key{:03}", self.random.random_range(0..KEYS)).into_bytes();
            if self.random.random_bool(0.2) {
                pairs.remove(&key);
                batch.push(Change::Delete { key });
            } else {
                let length = if self.random.random_bool(0.4) { 200 } else { 20 };
                let value = format!("{:0length$}", self.random.random::<u32>()).into_bytes();
                pairs.insert(key.clone(), value.clone());
                batch.push(Change::Put { key, value });
            }
        }
        let lsn = self.primary.write(batch).unwrap();
        self.models.insert(lsn.0, pairs);
        self.primary.commit(lsn).unwrap();
    }

    fn deliver(&mut self) {
        let messages = std::mem::take(&mut *self.kept.0.lock().unwrap());
        for message in messages {
            let newest = match &message {
                Message::Log { newest, .. } => *newest,
                _ => None,
            };
            self.say(message);
            self.came = newest.unwrap_or(self.came);
        }
    }

    /// The pairs that readers have to see.
    fn expected(&self) -> &Pairs {
        self.models.range(..=self.acknowledged).next_back().unwrap().1
    }

    fn read(&mut self) {
        let Some((reader, since)) = self.reader.clone() else { return };
        let scan =
            |backward, limit| reader.scan(Bound::Unbounded, Bound::Unbounded, backward, limit);
        if self.acknowledged < since {
            assert!(matches!(scan(false, 1), Err(StoreError::NotServed(_))));
            return;
        }
        let mut expected: Vec<_> = self.expected().clone().into_iter().collect();
        if self.random.random_bool(0.3) {
            assert_eq!(scan(false, usize::MAX).unwrap(), expected);
        }
        for _ in 0..20 {
            let number = self.random.random_range(0..KEYS);
            let key = format!("key{number:03}").into_bytes();
            assert_eq!(reader.get(&key).unwrap(), self.expected().get(&key).cloned());
        }
        expected.reverse();
        expected.truncate(7);
        assert_eq!(scan(true, 7).unwrap(), expected);
        self.reads += 1;
    }

    fn step(&mut self) {
        self.write();
        if self.random.random_bool(0.7) {
            while self.primary.work().unwrap() {}
        }
        self.deliver();
        match self.random.random_range(0..60) {
            0 => {
                self.join();
                if let Some((reader, _)) = self.reader.take() {
                    assert!(reader.has_retired(), "another store may come");
                }
            }
            1 => {
                if let Some((reader, _)) = self.reader.take() {
                    reader.retire();
                    assert!(matches!(reader.get(b"key001"), Err(StoreError::NotServed(_))));
                }
            }
            2..15 if self.reader.is_none() => {
                let reader = self.replica.reader().unwrap();
                reader.acknowledge(self.acknowledged);
                self.reader = Some((reader, self.came));
            }
            _ => {}
        }
        let acknowledged = self.random.random_range(self.acknowledged..=self.came);
        self.acknowledged = acknowledged;
        if let Some((reader, _)) = &self.reader {
            reader.acknowledge(acknowledged);
        }
        self.read();
    }
}

#[test]
fn a_reader_sees_what_is_acknowledged_and_nothing_else() {
    let (mut reads, mut collections, mut compactions) = (0, 0, 0);
    for seed in 0..6 {
        let mut world = World::new(seed);
        for _ in 0..300 {
            world.step();
        }
        reads += world.reads;
        let statistics = world.primary.statistics();
        collections += statistics.collections;
        compactions += statistics.compactions;
        // The directory is what a primary can open, whatever the reader kept for a while.
        let World { replica, disk, models, primary, .. } = world;
        drop(replica);
        let disk: Arc<dyn Disk> = Arc::new(disk);
        let (damage, _) = check(&disk, &options(2));
        assert!(damage.is_empty(), "seed {seed}: {damage:?}");
        let engine = open_on(disk, options(2)).unwrap();
        let all = engine.scan(Bound::Unbounded, Bound::Unbounded, false, usize::MAX).unwrap();
        assert_eq!(all.into_iter().collect::<Pairs>(), *models.last_key_value().unwrap().1);
        drop(primary);
    }
    println!("{reads} reads, {compactions} compactions, {collections} collections");
    assert!(reads > 800 && collections > 20 && compactions > 20);
}

/// A batch that came is not read before it is acknowledged, also where the reader began behind it.
#[test]
fn a_reader_waits_for_what_was_there_when_it_began() {
    let mut world = World::new(1);
    for _ in 0..20 {
        world.write();
    }
    world.deliver();
    let reader = world.replica.reader().unwrap();
    reader.acknowledge(world.came - 1);
    assert!(matches!(reader.get(b"key001"), Err(StoreError::NotServed(_))));
    reader.acknowledge(world.came);
    world.acknowledged = world.came;
    world.reader = Some((reader, world.came));
    world.read();
    // More is acknowledged than came: after a join the rest is on its way.
    let (reader, _) = world.reader.take().unwrap();
    reader.acknowledge(world.came + 1);
    assert!(matches!(reader.get(b"key001"), Err(StoreError::NotServed(_))));
    // An idle replica has none, and one that joins gives none.
    let mut fresh = Replica::open(Arc::new(SimulatedDisk::new()), options(1)).unwrap();
    assert!(matches!(fresh.reader(), Err(StoreError::NotServed(_))));
}
