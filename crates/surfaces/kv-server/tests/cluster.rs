//! Three nodes in one process: a broker of its own, a directory as coordinator.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]
#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use weft_broker::Limits;
use weft_fabric::NodeId;
use weft_kv::node::{Durability, Failover, Node};
use weft_kv::store::{Change, Store, StoreError};
use weft_kv_server::{ClusterNode, ClusterSettings, coordination};
use weft_open::Opening;
use weft_options::Options;
use weft_transport_shm::local_broker;

/// A busy machine does not reach it.
const LIMIT: Duration = Duration::from_secs(60);

fn await_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "not there: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn open(root: &Path, opening: &Opening, number: u16, replicas: u32) -> Option<ClusterNode> {
    let place = format!("dir:{}", root.join("record").display());
    let settings = ClusterSettings {
        coordination: coordination(&place, "test").unwrap(),
        cluster: "test".to_owned(),
        replicas,
        lease_ms: 500,
        opening: opening.clone(),
        durability: Durability::DurableAll,
        address: ("127.0.0.1".to_owned(), 7000 + number),
    };
    let node = ClusterNode::open(&root.join(format!("node-{number}")), settings);
    node.map_err(|error| println!("{error}")).ok()
}

/// The node that leads, with so many backups in sync.
fn primary(nodes: &[ClusterNode], backups: usize) -> usize {
    await_some("a primary", || {
        nodes.iter().position(|node| {
            let view = node.view();
            let region = &view.regions[0];
            view.is_cluster
                && region.primary == Some(view.myself)
                && region.in_sync.len() >= backups
        })
    })
}

fn put(node: &ClusterNode, key: &str) {
    let value = key.repeat(1_000).into_bytes();
    let lsn = node.write(vec![Change::Put { key: key.as_bytes().to_vec(), value }]).unwrap();
    node.commit(lsn).unwrap();
}

fn has(node: &ClusterNode, key: &str) {
    let value = node.get(key.as_bytes()).unwrap();
    assert_eq!(value, Some(key.repeat(1_000).into_bytes()), "{key}");
}

#[test]
fn nodes_form_a_cluster_hand_over_and_come_back() {
    // Memory syncs at once: the test is about nodes, not about a disk.
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
    let opening = Opening::with("a test", &Options::default()).by(broker);
    let mut nodes: Vec<ClusterNode> =
        (0..3).map(|number| open(root.path(), &opening, number, 3).unwrap()).collect();
    let first = primary(&nodes, 2);
    put(&nodes[first], "one");
    let other = (first + 1) % 3;
    let refused = nodes[other].get(b"one");
    assert!(matches!(refused, Err(StoreError::NotServed(_))), "{refused:?}");
    // Asked to hand over, the old one becomes a replica, and what its front end waits for ends.
    nodes[first].failover(Failover::default()).unwrap();
    let next =
        await_some("another primary", || Some(primary(&nodes, 2)).filter(|found| *found != first));
    has(&nodes[next], "one");
    put(&nodes[next], "two");
    assert!(nodes[first].commit(nodes[first].newest()).is_err());
    assert!(nodes[first].report().received_bytes > 3_000);
    // One ends, and is opened again: it gets what it lacks.
    let ended = nodes.remove(next);
    ended.close();
    drop(ended);
    let last = primary(&nodes, 1);
    has(&nodes[last], "two");
    put(&nodes[last], "three");
    assert!(open(root.path(), &opening, u16::try_from(next).unwrap(), 2).is_none());
    nodes.push(open(root.path(), &opening, u16::try_from(next).unwrap(), 3).unwrap());
    let last = primary(&nodes, 2);
    for key in ["one", "two", "three"] {
        has(&nodes[last], key);
    }
    // A write that waits when a reign ends is given up before anything of the next reign is
    // acknowledged.
    let change = |key: &[u8]| vec![Change::Put { key: key.to_vec(), value: b"v".to_vec() }];
    let waits = nodes[last].write(change(b"waits")).unwrap();
    nodes[last].failover(Failover::default()).unwrap();
    let next =
        await_some("another primary", || Some(primary(&nodes, 2)).filter(|found| *found != last));
    has(&nodes[next], "three");
    assert!(nodes[last].newest() >= waits && nodes[last].settled() < waits);
    await_some("the first one leads again", || {
        let leads = primary(&nodes, 2);
        let _ = (leads != last).then(|| nodes[leads].failover(Failover::default()));
        (leads == last).then_some(())
    });
    let later = nodes[last].write(change(b"later")).unwrap();
    assert!(later > waits);
    assert!(matches!(nodes[last].commit(later), Err(StoreError::Unknown(_))));
    assert!((waits..later).contains(&nodes[last].settled()));
    nodes[last].commit(later).unwrap();
    assert_eq!(nodes[last].settled(), later);
    nodes.iter().for_each(ClusterNode::close);
}
