//! A model of a store: all batches in order. A store that was opened again must be what some
//! prefix of them left, with all that was acknowledged.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_kv::disk::simulated::SimulatedDisk;
use weft_kv::engine::{Engine, Options, check, open_on};
use weft_kv::store::{Change, Lsn, Store, StoreError};

/// Sizes at which everything happens within some hundred batches.
pub fn small(is_durable: bool) -> Options {
    Options {
        level0_bytes: 2_500,
        frozen_max: 2,
        growth: 2,
        table_bytes: 1_500,
        segment_bytes: 3_000,
        in_place_bytes: 60,
        cache_bytes: 40_000,
        is_durable,
        threads: 0,
        boot: "boot".to_owned(),
        ..Options::default()
    }
}

/// All batches that were given to a store, and which of them were acknowledged.
#[derive(Default)]
pub struct Model {
    /// With their numbers; the engine's own batches have numbers, too.
    pub batches: Vec<(u64, Vec<Change>)>,
    pub acknowledged: u64,
}

pub type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

impl Model {
    /// The pairs that the first batches leave.
    pub fn after(&self, lsn: u64) -> Pairs {
        let mut pairs = Pairs::new();
        let seen = self.batches.iter().filter(|(number, _)| *number <= lsn);
        for change in seen.flat_map(|(_, batch)| batch) {
            match change {
                Change::Put { key, value } => pairs.insert(key.clone(), value.clone()),
                Change::Delete { key } => pairs.remove(key),
            };
        }
        pairs
    }

    /// Writes random batches until one fails or they are `count`.
    pub fn write(
        &mut self,
        engine: &Engine,
        random: &mut ChaCha8Rng,
        count: usize,
    ) -> Result<(), StoreError> {
        for _ in 0..count {
            let batch = random_batch(random);
            let before = engine.newest();
            let lsn = engine.write(batch.clone())?;
            assert!(lsn > before && lsn <= engine.newest());
            self.batches.push((lsn.0, batch));
            if random.random_range(0..3) == 0 {
                engine.commit(lsn)?;
                self.acknowledged = lsn.0;
            }
            if random.random_range(0..8) == 0 {
                engine.work()?;
            }
        }
        Ok(())
    }

    /// The store has what a prefix of the batches left, and all that was acknowledged.
    pub fn check(&mut self, engine: &Engine, acknowledged: u64) {
        let lsn = engine.newest().0;
        assert!(lsn >= acknowledged, "{lsn} of {acknowledged} acknowledged batches are there");
        self.batches.retain(|(number, _)| *number <= lsn);
        self.acknowledged = lsn;
        assert_eq!(all(engine), self.after(lsn), "batch {lsn}");
    }
}

/// All pairs, by a scan in both directions and by single keys.
pub fn all(engine: &Engine) -> Pairs {
    let pairs = engine.scan(Bound::Unbounded, Bound::Unbounded, false, usize::MAX).unwrap();
    let mut back = engine.scan(Bound::Unbounded, Bound::Unbounded, true, usize::MAX).unwrap();
    back.reverse();
    assert_eq!(pairs, back);
    let map: Pairs = pairs.into_iter().collect();
    for number in 0..KEYS {
        let key = key(number);
        assert_eq!(engine.get(&key).unwrap().as_ref(), map.get(&key));
    }
    map
}

const KEYS: u32 = 300;

fn key(number: u32) -> Vec<u8> {
    format!("key{:03}", number * 7 % 1000).into_bytes()
}

fn random_batch(random: &mut ChaCha8Rng) -> Vec<Change> {
    let changes = if random.random_range(0..4) == 0 { random.random_range(2..6) } else { 1 };
    let mut batch = Vec::new();
    for _ in 0..changes {
        let key = key(random.random_range(0..KEYS));
        if random.random_range(0..5) == 0 {
            batch.push(Change::Delete { key });
        } else {
            let bytes = [3, 12, 40, 300][random.random_range(0..4)];
            let value = (0..bytes).map(|_| random.random()).collect();
            batch.push(Change::Put { key, value });
        }
    }
    batch
}

pub fn open(disk: &SimulatedDisk, options: &Options) -> Result<Engine, StoreError> {
    open_on(Arc::new(disk.clone()), options.clone())
}

pub fn seeded(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

#[test]
fn a_store_has_what_its_batches_left() {
    let mut random = seeded(1);
    let disk = SimulatedDisk::new();
    let mut model = Model::default();
    for round in 0..6 {
        let engine = open(&disk, &small(false)).unwrap();
        assert_eq!(engine.report().discarded, Vec::<String>::new());
        model.check(&engine, model.acknowledged);
        model.write(&engine, &mut random, 700).unwrap();
        if round % 2 == 0 {
            engine.settle().unwrap();
            engine.flush().unwrap();
        }
        assert_eq!(all(&engine), model.after(engine.newest().0));
        let statistics = engine.statistics();
        assert!(statistics.flushes > 0 && statistics.compactions > 0, "{statistics:?}");
        assert!(statistics.collections > 0 || round == 0, "{statistics:?}");
        model.acknowledged = engine.newest().0;
        engine.close().unwrap();
        let (damage, _) = check(&(Arc::new(disk.clone()) as _), &small(false));
        assert_eq!(damage, Vec::<String>::new());
    }
    assert!(disk.used() < 1_300_000, "overwritten space comes back: {}", disk.used());
}

#[test]
fn a_snapshot_stays_as_it_was() {
    let mut random = seeded(2);
    let disk = SimulatedDisk::new();
    let engine = open(&disk, &small(false)).unwrap();
    let mut model = Model::default();
    model.write(&engine, &mut random, 300).unwrap();
    let snapshot = engine.snapshot();
    let before = model.after(snapshot.lsn());
    for _ in 0..5 {
        model.write(&engine, &mut random, 300).unwrap();
        engine.settle().unwrap();
        let pairs = snapshot.scan(Bound::Unbounded, Bound::Unbounded, false, usize::MAX).unwrap();
        assert_eq!(pairs.into_iter().collect::<Pairs>(), before);
    }
}

#[test]
fn ranges_are_those_of_the_model() {
    let mut random = seeded(3);
    let disk = SimulatedDisk::new();
    let engine = open(&disk, &small(false)).unwrap();
    let mut model = Model::default();
    for _ in 0..30 {
        model.write(&engine, &mut random, 40).unwrap();
        let pairs = model.after(engine.newest().0);
        for _ in 0..20 {
            let mut bound = || {
                let key = key(random.random_range(0..KEYS));
                match random.random_range(0..3) {
                    0 => Bound::Unbounded,
                    1 => Bound::Included(key),
                    _ => Bound::Excluded(key),
                }
            };
            let (from, to) = (bound(), bound());
            let (low, high) = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
            let is_in = |key: &[u8]| {
                (match low {
                    Bound::Unbounded => true,
                    Bound::Included(low) => key >= low,
                    Bound::Excluded(low) => key > low,
                }) && match high {
                    Bound::Unbounded => true,
                    Bound::Included(high) => key <= high,
                    Bound::Excluded(high) => key < high,
                }
            };
            let mut expected: Vec<_> = pairs
                .iter()
                .filter(|(key, _)| is_in(key))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            let limit = random.random_range(1..50);
            let is_backward = random.random_range(0..2) == 0;
            if is_backward {
                expected.reverse();
            }
            expected.truncate(limit);
            assert_eq!(engine.scan(low, high, is_backward, limit).unwrap(), expected);
        }
    }
}

#[test]
fn a_backup_can_be_opened() {
    let mut random = seeded(4);
    let folder = tempfile::tempdir().unwrap();
    let (own, copy) = (folder.path().join("own"), folder.path().join("copy"));
    let engine = Engine::open(&own, small(false)).unwrap();
    let mut model = Model::default();
    model.write(&engine, &mut random, 900).unwrap();
    engine.backup(&copy).unwrap();
    let before = model.after(engine.newest().0);
    model.write(&engine, &mut random, 100).unwrap();
    assert!(matches!(engine.backup(&copy), Err(StoreError::NotServed(_))));
    assert_eq!(all(&Engine::open(&copy, small(false)).unwrap()), before);
    assert!(matches!(Engine::open(&own, small(false)), Err(StoreError::NotServed(_))));
}

#[test]
fn large_values_and_batches_get_a_segment_of_their_own() {
    let disk = SimulatedDisk::new();
    let engine = open(&disk, &small(true)).unwrap();
    let value = vec![7; 100_000];
    let put = |key: &[u8]| Change::Put { key: key.to_vec(), value: value.clone() };
    let lsn = engine.write(vec![put(b"a"), put(b"b"), put(b"")]).unwrap();
    engine.commit(lsn).unwrap();
    drop(engine);
    disk.crash(|_| 1);
    let engine = open(&disk, &small(true)).unwrap();
    assert_eq!(engine.newest(), Lsn(1));
    for key in [b"a".as_slice(), b"b", b""] {
        assert_eq!(engine.get(key).unwrap().as_ref(), Some(&value));
    }
}
