//! The engine with its threads and many callers, in a directory.

use std::sync::atomic::{AtomicU64, Ordering};

use weft_kv::engine::{Engine, Options};
use weft_kv::store::{Change, Store};

use crate::model::small;

#[test]
fn callers_of_many_threads_see_their_own_writes() {
    let folder = tempfile::tempdir().unwrap();
    let options =
        Options { threads: 2, level0_bytes: 20_000, segment_bytes: 30_000, ..small(false) };
    for _ in 0..3 {
        let engine = Engine::open(folder.path(), options.clone()).unwrap();
        let written = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let (engine, written) = (&engine, &written);
                scope.spawn(move || {
                    for number in 0..1_500u32 {
                        let key = format!("{thread}-{}", number % 200).into_bytes();
                        let value =
                            vec![u8::try_from(number % 251).unwrap(); 20 + number as usize % 90];
                        let put = Change::Put { key: key.clone(), value: value.clone() };
                        let lsn = engine.write(vec![put]).unwrap();
                        engine.commit(lsn).unwrap();
                        assert_eq!(engine.get(&key).unwrap(), Some(value));
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(written.into_inner(), 6_000);
        engine.settle().unwrap();
        for thread in 0..4 {
            for number in 1_300..1_500u32 {
                let key = format!("{thread}-{}", number % 200).into_bytes();
                let value = vec![u8::try_from(number % 251).unwrap(); 20 + number as usize % 90];
                assert_eq!(engine.get(&key).unwrap(), Some(value));
            }
        }
        engine.close().unwrap();
    }
}

/// The first pair of a batch is in level 0 before the last one, and its value in no file yet.
#[test]
fn a_value_is_read_while_its_batch_is_on_its_way() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(folder.path(), Options { threads: 2, ..small(false) }).unwrap();
    let is_over = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0..200u32 {
                let put = |number: u32| Change::Put {
                    key: format!("key{number}").into_bytes(),
                    value: format!("{turn:0200}").into_bytes(),
                };
                let lsn = engine.write((0..300).map(put).collect()).unwrap();
                engine.commit(lsn).unwrap();
            }
            is_over.store(1, Ordering::Release);
        });
        while is_over.load(Ordering::Acquire) == 0 {
            let value = engine.get(b"key0").unwrap();
            assert!(value.is_none_or(|value| value.len() == 200));
        }
    });
}
