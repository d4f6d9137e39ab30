//! Three nodes in one process: a broker of its own, a directory as coordinator.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]
#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use weft_broker::Limits;
use weft_fabric::NodeId;
use weft_kv::node::{Durability, Failover, Node};
use weft_kv::store::{Change, Store, StoreError};
use weft_kv_server::{Alone, ClusterNode, ClusterSettings, regions_in};
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
    open_regions(root, opening, number, (replicas, None)).map_err(|error| println!("{error}")).ok()
}

/// Opens a node of a cluster of so many replicas and regions.
fn open_regions(
    root: &Path,
    opening: &Opening,
    number: u16,
    (replicas, regions): (u32, Option<u32>),
) -> Result<ClusterNode, StoreError> {
    let settings = ClusterSettings {
        place: format!("dir:{}", root.join("record").display()),
        cluster: "test".to_owned(),
        replicas,
        regions,
        lease_ms: 500,
        opening: opening.clone(),
        durability: Durability::DurableAll,
        address: ("127.0.0.1".to_owned(), 7000 + number),
    };
    ClusterNode::open(&root.join(format!("node-{number}")), settings)
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

/// The place of the node that leads each region, when each has a primary and two backups.
fn leaders(nodes: &[&ClusterNode]) -> Vec<usize> {
    await_some("primaries", || {
        let serves = |region: usize| {
            nodes.iter().position(|node| {
                let view = node.view();
                let region = view.regions.get(region);
                view.is_cluster
                    && region.is_some_and(|it| {
                        it.primary == Some(view.myself) && it.in_sync.len() == nodes.len() - 1
                    })
            })
        };
        (0..3).map(serves).collect()
    })
}

fn all(nodes: &[Option<ClusterNode>]) -> Vec<&ClusterNode> {
    nodes.iter().flatten().collect()
}

/// A key of a slot.
fn key_of(slot: u16, name: &str) -> Vec<u8> {
    [&slot.to_be_bytes()[..], name.as_bytes()].concat()
}

fn put_at(node: &ClusterNode, slots: &[u16], name: &str) -> Result<(), StoreError> {
    let value = name.as_bytes().to_vec();
    let change = |slot: &u16| Change::Put { key: key_of(*slot, name), value: value.clone() };
    node.write(slots.iter().map(change).collect())?;
    node.commit(node.newest())
}

fn has_at(node: &ClusterNode, slot: u16, name: &str) {
    let value = node.get(&key_of(slot, name)).unwrap();
    assert_eq!(value, Some(name.as_bytes().to_vec()), "{slot} {name}");
}

/// A slot of each of three regions.
const SLOTS: [u16; 3] = [100, 8_000, 16_000];

#[test]
fn each_node_leads_a_region_and_gets_it_back_when_it_comes_back() {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
    let opening = Opening::with("a test", &Options::default()).by(broker);
    let open = |number| open_regions(root.path(), &opening, number, (3, Some(3)));
    let mut nodes: Vec<Option<ClusterNode>> =
        (0..3).map(|number| Some(open(number).unwrap())).collect();
    let first = leaders(&all(&nodes));
    let mut places = first.clone();
    places.sort_unstable();
    assert_eq!(places, [0, 1, 2], "each node leads one region");
    for (slot, leader) in SLOTS.into_iter().zip(&first) {
        for (place, node) in all(&nodes).into_iter().enumerate() {
            match place == *leader {
                true => put_at(node, &[slot, slot + 1], "one").unwrap(),
                // Nothing of a batch is written if a part of it is another node's.
                false => {
                    let refused = put_at(node, &SLOTS, "no");
                    assert!(matches!(refused, Err(StoreError::NotServed(_))), "{refused:?}");
                }
            }
        }
        let leader = nodes[*leader].as_ref().unwrap();
        has_at(leader, slot, "one");
        assert_eq!(leader.get(&key_of(slot, "no")), Ok(None));
        assert_eq!(leader.settled(), leader.newest());
        assert_eq!(leader.replicas_with(leader.newest()), 2);
    }
    // A node that ends hands its region over; it gets the region back some time after it is there
    // again.
    let gone = first[1];
    let ended = nodes[gone].take().unwrap();
    ended.close();
    drop(ended);
    let heir = await_some("another primary", || {
        all(&nodes).into_iter().position(|node| {
            let view = node.view();
            view.regions[1].primary == Some(view.myself)
        })
    });
    let heir = all(&nodes)[heir];
    has_at(heir, SLOTS[1], "one");
    // It leads two regions: a batch may have parts of both.
    let own =
        SLOTS.into_iter().zip(&first).filter(|(slot, _)| heir.get(&key_of(*slot, "")).is_ok());
    let own: Vec<u16> = own.map(|(slot, _)| slot).collect();
    assert_eq!(own.len(), 2);
    await_some("a write", || put_at(heir, &own, "two").ok());
    own.iter().for_each(|slot| has_at(heir, *slot, "two"));
    assert_eq!(heir.settled(), heir.newest());
    // One scan goes through both, which are neighbours, in order.
    let (from, to) = (key_of(own[0], ""), key_of(own[1] + 100, ""));
    let scan = |backward, limit| {
        let found = heir.scan(Bound::Included(&from), Bound::Excluded(&to), backward, limit);
        found.unwrap().into_iter().map(|(key, _)| key).collect::<Vec<_>>()
    };
    let mut wanted: Vec<Vec<u8>> = Vec::new();
    for slot in &own {
        wanted.extend([key_of(*slot, "one"), key_of(*slot, "two"), key_of(slot + 1, "one")]);
    }
    assert_eq!(scan(false, 10), wanted);
    assert_eq!(scan(false, 4), wanted[..4]);
    wanted.reverse();
    assert_eq!(scan(true, 5), wanted[..5]);
    nodes[gone] = Some(open(u16::try_from(gone).unwrap()).unwrap());
    let back = await_some("the region at home", || {
        Some(leaders(&all(&nodes))).filter(|leaders| *leaders == first)
    });
    has_at(nodes[back[1]].as_ref().unwrap(), SLOTS[1], "one");
    // A region stays where a user wants it.
    let (leader, heir) = (nodes[first[2]].as_ref().unwrap(), nodes[first[0]].as_ref().unwrap());
    let heirs_id = heir.view().members[heir.view().myself].id.clone();
    let to = leader.view().members.iter().position(|member| member.id == heirs_id);
    leader.failover(Failover { to, ..Failover::default() }).unwrap();
    await_some("the node that was named", || (leaders(&all(&nodes))[2] == first[0]).then_some(()));
    let record = newest_record(&root.path().join("record/test/region-2"));
    assert_eq!(record["home"], record["primary"]);
    // A write that waits when a reign ends is not settled by a later commit of another region.
    let change = |slot: u16| vec![Change::Put { key: key_of(slot, "w"), value: b"v".to_vec() }];
    heir.write(change(SLOTS[2])).unwrap();
    heir.failover(Failover::default()).unwrap();
    await_some("other primaries", || (!leaders(&all(&nodes)).contains(&first[0])).then_some(()));
    await_some("all regions at one node", || {
        for node in all(&nodes) {
            let to = node.view().members.iter().position(|member| member.id == heirs_id);
            if to != Some(node.view().myself) {
                // One that leads nothing refuses.
                let _ = node.failover(Failover { to, ..Failover::default() });
            }
        }
        leaders(&all(&nodes)).iter().all(|leader| *leader == first[0]).then_some(())
    });
    heir.write(change(SLOTS[2])).unwrap();
    let held = heir.newest();
    for slot in SLOTS[0]..SLOTS[0] + 3 {
        heir.write(change(slot)).unwrap();
    }
    assert!(matches!(heir.commit(heir.newest()), Err(StoreError::Unknown(_))));
    assert!(heir.settled() < held);
    heir.commit(heir.newest()).unwrap();
    assert_eq!(heir.settled(), heir.newest());
    nodes.iter().flatten().for_each(ClusterNode::close);
    drop(nodes);
    // The directory is not taken for another number of regions, nor served alone.
    let place = root.path().join("node-0");
    assert_eq!(regions_in(&place).len(), 3);
    let refused = |opened: Result<ClusterNode, StoreError>| opened.err().unwrap().to_string();
    let other = refused(open_regions(root.path(), &opening, 0, (3, Some(2))));
    assert!(other.contains("has 3 regions, and this node was started with 2"), "{other}");
    let alone = Alone::open(&place, Durability::Replicated, ("127.0.0.1".to_owned(), 1));
    let alone = alone.err().unwrap().to_string();
    assert!(alone.contains("has 3 regions of a cluster"), "{alone}");
    // Without a word of it the cluster's own number counts.
    open_regions(root.path(), &opening, 0, (3, None)).unwrap().close();
}

fn newest_record(directory: &Path) -> serde_json::Value {
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    let newest = files.filter(|path| name(path).starts_with("record-")).max().unwrap();
    serde_json::from_slice(&std::fs::read(newest).unwrap()).unwrap()
}
