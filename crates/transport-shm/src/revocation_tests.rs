//! A revoked key gives access to nothing, whatever its former holder does.

use std::sync::Arc;

use weft_fabric::{
    Access, Audience, Blocking, Endpoint, EndpointOptions, LocalRange, NodeId, Operation,
    OperationError, PATIENCE, Region, Source, Target, Transport,
};
use weft_memory::{CopyMode, Segment};

use crate::broker::{Limits, local::LocalBroker};
use crate::memory::KeyParts;
use crate::{Parameters, ShmEndpoint, ShmTransport};

fn pair() -> (ShmEndpoint, ShmEndpoint) {
    let broker = Arc::new(LocalBroker::new(NodeId::LOCAL, Limits::default()));
    let transport = ShmTransport::new(broker, Parameters::default());
    let open = || transport.open(&EndpointOptions::default()).expect("a fresh broker");
    (open(), open())
}

/// The mapping that `endpoint` holds for a key of its peer.
fn mapping(
    endpoint: &mut ShmEndpoint,
    peer: weft_fabric::Peer,
    key: weft_fabric::RemoteKey,
) -> Arc<Segment> {
    let peer = endpoint.peers.live(peer).expect("alive");
    let slot = usize::from(KeyParts::of(key).slot);
    Arc::clone(&peer.keys[slot].as_ref().expect("resolved").segment)
}

#[test]
fn a_mapping_from_before_the_revocation_reaches_nothing() {
    let (mut owner, mut thief) = pair();
    let region = owner.register(8192).expect("memory");
    let key = owner
        .grant_within(
            LocalRange::whole(&region),
            Audience::Partition,
            Access::READ | Access::WRITE,
            PATIENCE,
        )
        .expect("a grant");
    let to = thief.connect_within(owner.address(), PATIENCE).expect("there");
    let target = Target::new(key, 16);
    let put =
        |thief: &mut ShmEndpoint| thief.put(to, Source::Bytes(b"good"), target, Operation::new(0));
    let _ = put(&mut thief).expect("allowed");
    let kept = mapping(&mut thief, to, key);
    owner.revoke_within(key, PATIENCE).expect("known");
    assert_eq!(put(&mut thief), Err(OperationError::InvalidKey));
    kept.write(16, b"evil", CopyMode::Plain);
    region.write(100, b"secret").expect("inside");
    let mut seen = [0; 4];
    region.read(16, &mut seen).expect("inside");
    assert_eq!(&seen, b"good", "a late write reaches the region");
    kept.read(100, &mut seen);
    assert_eq!(seen, [0; 4], "the old mapping shows new data");
}

#[test]
fn keys_that_allow_reading_follow_the_memory() {
    let (mut owner, mut peer) = pair();
    let region = owner.register(4096).expect("memory");
    let writing = owner
        .grant_within(
            LocalRange::whole(&region),
            Audience::Partition,
            Access::READ | Access::WRITE,
            PATIENCE,
        )
        .expect("a grant");
    let reading = owner
        .grant_within(LocalRange::whole(&region), Audience::Partition, Access::READ, PATIENCE)
        .expect("a grant");
    let to = peer.connect_within(owner.address(), PATIENCE).expect("there");
    let into = peer.register(4).expect("memory");
    let get = |peer: &mut ShmEndpoint| {
        let _ =
            peer.get(to, Target::new(reading, 0), LocalRange::new(&into, 0, 4), Operation::new(0))?;
        let mut seen = [0; 4];
        into.read(0, &mut seen).expect("inside");
        Ok::<_, OperationError>(seen)
    };
    let source = Source::Bytes(b"one!");
    let _ = peer.put(to, source, Target::new(writing, 0), Operation::new(0)).expect("allowed");
    assert_eq!(get(&mut peer), Ok(*b"one!"));
    let before = mapping(&mut peer, to, reading);
    owner.revoke_within(writing, PATIENCE).expect("known");
    region.write(0, b"two!").expect("inside");
    assert_eq!(get(&mut peer), Ok(*b"two!"));
    let after = mapping(&mut peer, to, reading);
    assert!(!Arc::ptr_eq(&before, &after), "the memory was moved");
    owner.revoke_within(reading, PATIENCE).expect("known");
    assert_eq!(get(&mut peer), Err(OperationError::InvalidKey));
}

#[test]
fn a_key_that_nobody_used_costs_no_move() {
    let (mut owner, _peer) = pair();
    let region = owner.register(4096).expect("memory");
    let key = owner
        .grant_within(LocalRange::whole(&region), Audience::Partition, Access::READ, PATIENCE)
        .expect("a grant");
    let before = Arc::as_ptr(&region.memory().file());
    owner.revoke_within(key, PATIENCE).expect("known");
    assert_eq!(Arc::as_ptr(&region.memory().file()), before);
}
