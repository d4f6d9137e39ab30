//! A primary with its backups for measurements: shipped tables and built ones.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]
#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_broker::Limits;
use weft_fabric::NodeId;
use weft_kv::engine::{Engine, Options};
use weft_kv::store::{Change, Pair, Store, StoreError};
use weft_kv_server::{Replicated, Replication};
use weft_open::Opening;
use weft_transport_shm::local_broker;

/// A busy machine does not reach it.
const LIMIT: Duration = Duration::from_secs(60);

fn options() -> Options {
    Options {
        level0_bytes: 20_000,
        table_bytes: 10_000,
        segment_bytes: 50_000,
        growth: 2,
        ..Options::default()
    }
}

fn open(root: &Path, backups: u32, replication: Replication) -> Result<Replicated, StoreError> {
    let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
    let opening = Opening::with("a test", &weft_options::Options::default()).by(broker);
    Replicated::open(root, options(), backups, replication, &opening)
}

fn put(store: &Replicated, key: u32, bytes: usize) -> Result<(), StoreError> {
    let key = format!("key{}", key % 500).into_bytes();
    let lsn = store.engine().write(vec![Change::Put { key, value: vec![b'v'; bytes] }])?;
    store.engine().commit(lsn)
}

fn pairs(root: &Path) -> Vec<Pair> {
    let engine = Engine::open(root, options()).unwrap();
    engine.scan(Bound::Unbounded, Bound::Unbounded, false, 10_000).unwrap()
}

/// Writes to a primary with two backups, and looks at all directories. Returns the bytes that were
/// sent, and those that backups read.
fn run(replication: Replication) -> (u64, u64) {
    // Memory syncs at once.
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = open(root.path(), 2, replication).unwrap();
    for key in 0..3_000 {
        put(&store, key, if key % 3 == 0 { 300 } else { 30 }).unwrap();
    }
    store.settle().unwrap();
    assert!(store.engine().statistics().flushes > 3);
    let figures = (store.sent_bytes(), store.backup_compaction_read_bytes());
    store.close().unwrap();
    let all = pairs(root.path());
    assert_eq!(all.len(), 500);
    for backup in ["backup-1", "backup-2"] {
        assert_eq!(pairs(&root.path().join(backup)), all, "{replication:?} {backup}");
    }
    assert!(matches!(open(root.path(), 2, replication), Err(StoreError::NotServed(_))));
    figures
}

#[test]
fn backups_have_all_pairs_and_read_nothing_if_tables_are_shipped() {
    let (shipped, none) = run(Replication::SendIndex);
    let (log, read) = run(Replication::BuildIndex);
    assert_eq!(none, 0);
    assert!(read > 50_000, "{read}");
    // Four tables of each level 0 to two backups at the least; a busy machine compacts less often.
    assert!(shipped > log + 100_000, "{shipped} bytes with tables, {log} without");
}

#[test]
fn a_backup_that_is_lost_ends_all_commits() {
    for replication in [Replication::SendIndex, Replication::BuildIndex] {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let store = open(root.path(), 1, replication).unwrap();
        put(&store, 1, 10).unwrap();
        std::fs::remove_dir_all(root.path().join("backup-1")).unwrap();
        let end = Instant::now() + LIMIT;
        while put(&store, 2, 1_000).is_ok() {
            assert!(Instant::now() < end, "{replication:?}: nobody missed the backup");
        }
    }
}
