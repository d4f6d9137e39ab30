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
