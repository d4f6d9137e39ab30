//! Ends of the process and of the power at every step, and devices that fail or are full.

use rand::RngExt;
use weft_kv::disk::simulated::{Fault, SimulatedDisk};
use weft_kv::engine::Options;
use weft_kv::store::{Change, Store, StoreError};

use crate::model::{Model, all, open, seeded, small};

/// Runs a workload that ends at a step, and opens the store again, which may end, too.
fn run(seed: u64, options: &Options, power: bool, step: u64) -> bool {
    let mut random = seeded(seed);
    let disk = SimulatedDisk::new();
    let mut model = Model::default();
    disk.fail_at(step, Fault::Kill);
    let written = open(&disk, options).and_then(|engine| {
        let result = model.write(&engine, &mut random, 120);
        result.and_then(|()| engine.close())
    });
    let was_hit = disk.is_dead();
    assert!(was_hit || written.is_ok(), "{written:?}");
    let end = |disk: &SimulatedDisk, random: &mut rand_chacha::ChaCha8Rng| {
        if power {
            disk.crash(|below| random.random_range(0..below));
        } else {
            disk.kill();
        }
    };
    end(&disk, &mut random);
    let acknowledged = if power && !options.is_durable { 0 } else { model.acknowledged };
    let mut again = options.clone();
    if power {
        again.boot = "another boot".to_owned();
    }
    // The recovery ends at each of its steps in turn, and changes nothing of what is there.
    disk.fail_at(step % 17, Fault::Kill);
    let half = open(&disk, &again).map(drop);
    if disk.is_dead() {
        assert!(half.is_err());
        end(&disk, &mut random);
    } else {
        disk.kill();
    }
    let engine = open(&disk, &again).unwrap_or_else(|error| panic!("seed {seed}, {step}: {error}"));
    model.check(&engine, acknowledged);
    model.write(&engine, &mut random, 60).unwrap();
    engine.settle().unwrap();
    assert_eq!(all(&engine), model.after(engine.newest().0));
    was_hit
}

/// Ends at each step of a workload, or at some of them.
fn sweep(seed: u64, options: &Options, power: bool, stride: u64) {
    let mut step = seed % stride;
    while run(seed, options, power, step) {
        step += stride;
    }
    assert!(step > 50, "the workload has {step} steps");
}

#[test]
fn a_kill_at_each_step_loses_nothing_that_was_acknowledged() {
    sweep(10, &small(false), false, 1);
    sweep(11, &small(true), false, 2);
}

#[test]
fn no_power_at_each_step_loses_nothing_that_was_synced() {
    for seed in 20..23 {
        sweep(seed, &small(true), true, 3);
    }
}

#[test]
fn no_power_without_syncs_leaves_a_prefix() {
    for seed in 30..33 {
        sweep(seed, &small(false), true, 3);
    }
}

#[test]
fn an_error_of_the_device_ends_the_writes_and_not_the_reads() {
    let mut ends = 0;
    for step in 0..150 {
        let mut random = seeded(40);
        let disk = SimulatedDisk::new();
        let mut model = Model::default();
        let Ok(engine) = open(&disk, &small(true)) else { continue };
        disk.fail_at(step, Fault::Error);
        if model.write(&engine, &mut random, 150).is_ok() {
            continue;
        }
        ends += 1;
        assert!(engine.failure().is_some());
        let key = b"key".to_vec();
        let refused = engine.write(vec![Change::Delete { key }]);
        assert!(matches!(refused, Err(StoreError::ReadOnly(_))), "{refused:?}");
        // The pairs that can still be read were committed, or the next opening will have them.
        let (committed, pairs) = (engine.newest().0, model.after(engine.newest().0));
        assert!(committed >= model.acknowledged);
        for (key, value) in &pairs {
            match engine.get(key) {
                Ok(found) => assert_eq!(found.as_ref(), Some(value)),
                Err(error) => assert!(matches!(error, StoreError::Unknown(_)), "{error}"),
            }
        }
        drop(engine);
        disk.kill();
        let engine = open(&disk, &small(true)).unwrap();
        model.check(&engine, model.acknowledged);
    }
    assert!(ends > 100, "{ends} errors were met");
}

#[test]
fn a_full_disk_refuses_before_the_answer_and_heals() {
    let mut random = seeded(50);
    let disk = SimulatedDisk::new();
    let engine = open(&disk, &small(false)).unwrap();
    let mut model = Model::default();
    let mut refused = 0;
    for round in 0..40 {
        let capacity = disk.used() + [0, 500, 4_000][round % 3];
        disk.set_capacity(Some(capacity));
        let result = loop {
            if let Err(error) = model.write(&engine, &mut random, 30) {
                break error;
            }
        };
        assert!(matches!(result, StoreError::Full(_)), "{result}");
        refused += 1;
        assert_eq!(all(&engine), model.after(engine.newest().0), "reads go on");
        disk.set_capacity(None);
        model.write(&engine, &mut random, 20).unwrap();
        engine.settle().unwrap();
        assert!(engine.failure().is_none());
    }
    assert_eq!(refused, 40);
    engine.commit(engine.newest()).unwrap();
    drop(engine);
    disk.kill();
    let engine = open(&disk, &small(false)).unwrap();
    let newest = model.batches.last().unwrap().0;
    model.check(&engine, newest);
}
