//! Commands against a unit over a byte array, and against a model of it.

use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;
use crate::fuzz::{Bytes, unit_over};
use crate::store::{Keeper, Store, StoreError};

#[derive(Default)]
struct Kept(Mutex<Option<Vec<u8>>>);

impl Keeper for Kept {
    fn keep(&self, bytes: &[u8]) -> Result<(), StoreError> {
        *self.0.lock() = Some(bytes.to_vec());
        Ok(())
    }
}

fn port(name: &str) -> Port {
    Port { name: name.to_owned(), isid: [0x80, 0, 0, 0, 0, 1] }
}

/// A session that has heard that the unit is new to it.
fn session(unit: &Arc<Unit>, name: &str) -> Arc<Link> {
    let link = unit.attach(&port(name)).expect("room");
    let (status, _) = run(unit, &link, &[0], &[]);
    assert_eq!(status, Status::Check(Sense::new(Key::UnitAttention, 0x29, 0)));
    link
}

fn run(unit: &Arc<Unit>, link: &Arc<Link>, command: &[u8], data: &[u8]) -> (Status, Vec<u8>) {
    let command = std::array::from_fn(|at| command.get(at).copied().unwrap_or(0));
    match unit.begin(link, &command, &NoUnits) {
        Begun::Done(reply) => (reply.status, reply.data),
        Begun::Job(job) => {
            let mut into = Vec::new();
            match job.run(data, &mut into, &NoUnits) {
                Outcome::Done(status) => (status, into),
                Outcome::Continues(_) => (Status::Good, into),
                Outcome::Aborted => panic!("nobody aborted it"),
            }
        }
    }
}

fn transfer(opcode: u8, block: u32, blocks: u16) -> Vec<u8> {
    let [a, b, c, d] = block.to_be_bytes();
    let [e, f] = blocks.to_be_bytes();
    vec![opcode, 0, a, b, c, d, 0, e, f, 0]
}

#[test]
fn what_is_written_is_read_and_beyond_the_end_nothing_is() {
    let unit = unit_over(Bytes::new(64 * 512));
    let link = session(&unit, "iqn.a");
    let data = [7; 1024];
    assert_eq!(run(&unit, &link, &transfer(0x2a, 62, 2), &data).0, Status::Good);
    assert_eq!(run(&unit, &link, &transfer(0x28, 62, 2), &[]), (Status::Good, data.to_vec()));
    for (opcode, block, blocks) in [(0x28, 63, 2), (0x2a, 64, 1), (0x2f, u32::MAX, 1)] {
        let (status, _) = run(&unit, &link, &transfer(opcode, block, blocks), &[0; 1024]);
        assert_eq!(status, Status::Check(Sense::OUT_OF_RANGE), "{opcode:x}");
    }
}

#[test]
fn an_error_of_the_store_is_told_by_its_sense() {
    let store = Bytes::new(64 * 512);
    let unit = unit_over(Arc::clone(&store) as Arc<dyn Store>);
    let link = session(&unit, "iqn.a");
    for (error, key, asc) in [
        (StoreError::Unreadable, Key::Medium, 0x11),
        (StoreError::NoSpace, Key::DataProtect, 0x27),
        (StoreError::Offline, Key::Hardware, 0x08),
    ] {
        *store.fails.lock() = Some(error);
        let (status, _) = run(&unit, &link, &transfer(0x28, 0, 1), &[]);
        let Status::Check(sense) = status else { panic!("{status:?}") };
        assert_eq!((sense.key, sense.code.0), (key, asc));
    }
    *store.fails.lock() = None;
    assert_eq!(run(&unit, &link, &transfer(0x28, 0, 1), &[]).0, Status::Good);
}

#[test]
fn a_write_with_fua_is_flushed_before_it_is_answered() {
    let store = Bytes::new(64 * 512);
    let unit = unit_over(Arc::clone(&store) as Arc<dyn Store>);
    let link = session(&unit, "iqn.a");
    run(&unit, &link, &transfer(0x2a, 0, 1), &[1; 512]);
    assert_eq!(*store.flushes.lock(), 0);
    let mut command = transfer(0x2a, 0, 1);
    command[1] = 0x08;
    run(&unit, &link, &command, &[1; 512]);
    run(&unit, &link, &transfer(0x35, 0, 0), &[]);
    assert_eq!(*store.flushes.lock(), 2);
    // Without a write cache, every write is.
    let page = [0, 0, 0, 0, 0x08, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(run(&unit, &link, &[0x15, 0x10, 0, 0, 24, 0], &page).0, Status::Good);
    run(&unit, &link, &transfer(0x2a, 0, 1), &[1; 512]);
    assert_eq!(*store.flushes.lock(), 3);
}

#[test]
fn compare_and_write_writes_only_over_what_was_expected() {
    let store = Bytes::new(64 * 512);
    let unit = unit_over(Arc::clone(&store) as Arc<dyn Store>);
    let link = session(&unit, "iqn.a");
    let mut command = vec![0x89];
    command.resize(16, 0);
    command[13] = 1;
    let mut data = [[0_u8; 512], [5; 512]].concat();
    assert_eq!(run(&unit, &link, &command, &data).0, Status::Good);
    data[..512].fill(5);
    data[100] = 6;
    let miscompare = Sense::new(Key::Miscompare, 0x1d, 0).with_information(100);
    assert_eq!(run(&unit, &link, &command, &data).0, Status::Check(miscompare));
    assert_eq!(store.bytes.lock()[..512], [5; 512]);
}

#[test]
fn a_reset_ends_old_reservations_and_aborts_what_has_not_run() {
    let unit = unit_over(Bytes::new(64 * 512));
    let (a, b) = (session(&unit, "iqn.a"), session(&unit, "iqn.b"));
    assert_eq!(run(&unit, &a, &[0x16], &[]).0, Status::Good);
    assert_eq!(run(&unit, &b, &transfer(0x28, 0, 1), &[]).0, Status::Conflict);
    let command = std::array::from_fn(|at| transfer(0x2a, 0, 1).get(at).copied().unwrap_or(0));
    let Begun::Job(job) = unit.begin(&a, &command, &NoUnits) else { panic!("it writes") };
    unit.reset();
    assert!(matches!(job.run(&[9; 512], &mut Vec::new(), &NoUnits), Outcome::Aborted));
    for link in [&a, &b] {
        let reset = Status::Check(Sense::new(Key::UnitAttention, 0x29, 0x03));
        assert_eq!(run(&unit, link, &[0], &[]).0, reset);
    }
    assert_eq!(run(&unit, &b, &transfer(0x28, 0, 1), &[]), (Status::Good, vec![0; 512]));
}

#[test]
fn a_reservation_outlasts_a_restart_if_that_was_asked_for() {
    let kept = Arc::new(Kept::default());
    let make = |before: Option<&[u8]>| {
        let identity = Identity::new("iqn.2026-11.example:test", 0);
        let keeper = Some(Arc::clone(&kept) as Arc<dyn Keeper>);
        let store = Bytes::new(64 * 512);
        Arc::new(
            Unit::new(identity, UnitOptions::default(), store, keeper, before).expect("own bytes"),
        )
    };
    let unit = make(None);
    let a = session(&unit, "iqn.a");
    let mut parameters = [0; 24];
    (parameters[15], parameters[20]) = (9, 1);
    assert_eq!(run(&unit, &a, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24], &parameters).0, Status::Good);
    (parameters[7], parameters[15]) = (9, 0);
    // Exclusive access.
    assert_eq!(run(&unit, &a, &[0x5f, 1, 3, 0, 0, 0, 0, 0, 24], &parameters).0, Status::Good);
    let bytes = kept.0.lock().clone().expect("it was kept");
    let unit = make(Some(&bytes));
    let (a, b) = (session(&unit, "iqn.a"), session(&unit, "iqn.b"));
    assert_eq!(run(&unit, &b, &transfer(0x28, 0, 1), &[]).0, Status::Conflict);
    assert_eq!(run(&unit, &a, &transfer(0x28, 0, 1), &[]).0, Status::Good);
    // Without a keeper nobody is promised that.
    let unit = unit_over(Bytes::new(64 * 512));
    let a = session(&unit, "iqn.a");
    (parameters[7], parameters[15]) = (0, 9);
    let (status, _) = run(&unit, &a, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24], &parameters);
    assert_eq!(status, Status::Check(Sense::parameter(20)));
}

#[test]
fn a_unit_that_is_sanitized_refuses_everything_else() {
    let store = Bytes::new(64 * 512);
    let unit = unit_over(Arc::clone(&store) as Arc<dyn Store>);
    let link = session(&unit, "iqn.a");
    store.bytes.lock().fill(9);
    let command = std::array::from_fn(|at| [0x48, 0x82].get(at).copied().unwrap_or(0));
    let Begun::Job(job) = unit.begin(&link, &command, &NoUnits) else { panic!("it erases") };
    let Outcome::Continues(rest) = job.run(&[], &mut Vec::new(), &NoUnits) else {
        panic!("at once was asked for")
    };
    let (status, _) = run(&unit, &link, &transfer(0x28, 0, 1), &[]);
    let Status::Check(sense) = status else { panic!("{status:?}") };
    assert_eq!((sense.key, sense.code), (Key::NotReady, (0x04, 0x1b)));
    rest.run(&[], &mut Vec::new(), &NoUnits);
    assert_eq!(run(&unit, &link, &transfer(0x28, 63, 1), &[]), (Status::Good, vec![0; 512]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// No command and no data break a unit, whatever they are.
    #[test]
    fn anything_is_answered(
        commands in prop::collection::vec(
            (any::<[u8; 16]>(), prop::collection::vec(any::<u8>(), 0..64)), 1..24),
    ) {
        let unit = unit_over(Bytes::new(64 * 512));
        let link = unit.attach(&port("iqn.a")).expect("room");
        for (mut command, data) in commands {
            // Half of them are commands that exist.
            if command[15] % 2 == 0 {
                let row = &opcodes::TABLE[usize::from(command[0]) % opcodes::TABLE.len()];
                for (byte, used) in command.iter_mut().zip(row.usage) {
                    *byte &= used;
                }
                command[0] = row.opcode;
                if let Some(action) = row.action {
                    command[1] = command[1] & !0x1f | action;
                }
            }
            run(&unit, &link, &command, &data);
        }
    }

    /// Reads see what writes of every kind did, as a byte array does.
    #[test]
    fn a_unit_is_a_byte_array(
        steps in prop::collection::vec((0_u8..5, 0_u32..60, 0_u16..5, any::<u8>()), 1..40),
    ) {
        let unit = unit_over(Bytes::new(64 * 512));
        let link = session(&unit, "iqn.a");
        let mut model = vec![0_u8; 64 * 512];
        for (kind, block, blocks, byte) in steps {
            let (from, length) = (block as usize * 512, usize::from(blocks) * 512);
            let range = from..from + length;
            let data = vec![byte; length];
            match kind {
                0 => {
                    prop_assert_eq!(
                        run(&unit, &link, &transfer(0x2a, block, blocks), &data).0, Status::Good);
                    model[range].fill(byte);
                }
                1 => {
                    let mut command = vec![0x8b];
                    command.resize(16, 0);
                    command[6..10].copy_from_slice(&block.to_be_bytes());
                    command[12..14].copy_from_slice(&blocks.to_be_bytes());
                    prop_assert_eq!(run(&unit, &link, &command, &data).0, Status::Good);
                    model[range].iter_mut().for_each(|old| *old |= byte);
                }
                2 if blocks > 0 => {
                    let one = vec![byte; 512];
                    prop_assert_eq!(
                        run(&unit, &link, &transfer(0x41, block, blocks), &one).0, Status::Good);
                    model[range].fill(byte);
                }
                3 => {
                    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
                    list.extend(u64::from(block).to_be_bytes());
                    list.extend(u32::from(blocks).to_be_bytes());
                    list.extend([0; 4]);
                    let unmap = [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0];
                    prop_assert_eq!(run(&unit, &link, &unmap, &list).0, Status::Good);
                    model[range].fill(0);
                }
                _ => {
                    let seen = run(&unit, &link, &transfer(0x28, block, blocks), &[]).1;
                    prop_assert_eq!(&seen[..], &model[range]);
                }
            }
        }
    }
}
