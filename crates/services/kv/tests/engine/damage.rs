//! Flipped bits and cut files: found by name, never served.

use std::ops::Bound;
use std::sync::Arc;

use rand::RngExt;
use weft_kv::disk::simulated::SimulatedDisk;
use weft_kv::engine::{check, open_on};
use weft_kv::store::{Store, StoreError};

use crate::model::{Model, Pairs, open, seeded, small};

/// A store with tables, old segments and a log, closed or killed.
fn made(is_closed: bool) -> (SimulatedDisk, Model) {
    let mut random = seeded(60);
    let disk = SimulatedDisk::new();
    let mut model = Model::default();
    let engine = open(&disk, &small(false)).unwrap();
    model.write(&engine, &mut random, 400).unwrap();
    engine.settle().unwrap();
    model.write(&engine, &mut random, 12).unwrap();
    engine.commit(engine.newest()).unwrap();
    model.acknowledged = engine.newest().0;
    if is_closed {
        engine.close().unwrap();
    } else {
        drop(engine);
    }
    disk.kill();
    (disk, model)
}

/// Opens a copy: the store refuses, or each key has its value or an error.
fn is_found_or_harmless(disk: &SimulatedDisk, expected: &Pairs, lost: u64, what: &str) -> bool {
    let engine = match open_on(Arc::new(disk.clone()), small(false)) {
        Err(StoreError::Damaged(_)) => return true,
        Err(error) => panic!("{what}: {error}"),
        Ok(engine) => engine,
    };
    if lost > 0 && engine.newest().0 < lost {
        // The last write of a killed store: a bit that flipped there looks as if it was torn.
        assert!(!engine.report().discarded.is_empty(), "{what}");
        return true;
    }
    let mut is_found = false;
    for (key, value) in expected {
        match engine.get(key) {
            Ok(found) => assert_eq!(found.as_ref(), Some(value), "{what}"),
            Err(StoreError::Damaged(_)) => is_found = true,
            Err(error) => panic!("{what}: {error}"),
        }
    }
    match engine.scan(Bound::Unbounded, Bound::Unbounded, false, usize::MAX) {
        Ok(found) => assert_eq!(&found.into_iter().collect::<Pairs>(), expected, "{what}"),
        Err(StoreError::Damaged(_)) => is_found = true,
        Err(error) => panic!("{what}: {error}"),
    }
    is_found
}

fn flip_all(is_closed: bool, stride: u64) {
    let (disk, model) = made(is_closed);
    let expected = model.after(model.acknowledged);
    let mut random = seeded(61);
    let (mut found, mut flipped) = (0, 0);
    for (name, size) in disk.sizes() {
        // Most of a manifest is space for more.
        let size = size.min(20_000);
        let mut at = random.random_range(0..stride);
        while at < size {
            let copy = disk.fork();
            let (byte, bit) = (usize::try_from(at).unwrap(), random.random_range(0..8));
            copy.damage(&name, |bytes| bytes[byte] ^= 1 << bit);
            let what = format!("bit {bit} of byte {at} of {name}");
            let (damage, report) = check(&(Arc::new(copy.clone()) as _), &small(false));
            let lost = if is_closed { 0 } else { model.acknowledged };
            let is_found = is_found_or_harmless(&copy, &expected, lost, &what);
            if is_found {
                assert!(!damage.is_empty() || !report.discarded.is_empty(), "{what}: not checked");
                found += 1;
            }
            flipped += 1;
            at += random.random_range(1..=2 * stride);
        }
    }
    assert!(found * 4 > flipped, "{found} of {flipped} were found");
}

#[test]
fn a_flipped_bit_of_a_closed_store_is_found_or_harmless() {
    flip_all(true, 900);
}

#[test]
fn a_flipped_bit_of_a_killed_store_is_found_or_harmless() {
    flip_all(false, 900);
}

#[test]
fn a_cut_or_missing_file_is_found_or_harmless() {
    for is_closed in [true, false] {
        let (disk, model) = made(is_closed);
        let expected = model.after(model.acknowledged);
        for (name, size) in disk.sizes() {
            for part in [0, 1, 2, 3] {
                let copy = disk.fork();
                let left = usize::try_from(size * part / 4).unwrap();
                copy.damage(&name, |bytes| bytes.truncate(left));
                let what = format!("{name} cut to {left} bytes");
                is_found_or_harmless(&copy, &expected, 0, &what);
            }
        }
    }
}
