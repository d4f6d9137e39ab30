//! A revoked key gives access to nothing, whatever its former holder does.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::MemfdFlags;
use weft_broker::{Connector, Limits};
use weft_fabric::{
    Access, Audience, Blocking, Endpoint, EndpointOptions, Event, HostMemory, Issued, LocalRange,
    NodeId, Operation, OperationError, PATIENCE, Peer, Region, RemoteKey, Revoked, Source, Target,
    Transport, Value,
};
use weft_memory::{CopyMode, Memory, MemoryOptions, Segment};
use weft_wire::endpoint_control::EndpointControl;

use crate::door::{Door, on_passing};
use crate::local_broker;
use crate::memory::KeyParts;
use crate::test_broker::{Fate, TestBroker};
use crate::{Parameters, ShmEndpoint, ShmRegion, ShmTransport};

fn pair() -> (ShmEndpoint, ShmEndpoint) {
    let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
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
    let before = region.memory().file().as_ref().map(Arc::as_ptr);
    owner.revoke_within(key, PATIENCE).expect("known");
    assert_eq!(region.memory().file().as_ref().map(Arc::as_ptr), before);
}

fn endpoints<const N: usize>(broker: Arc<dyn Connector>) -> [ShmEndpoint; N] {
    let transport = ShmTransport::new(broker, Parameters::default());
    let open = || transport.open(&EndpointOptions::default()).expect("a fresh broker");
    std::array::from_fn(|_| open())
}

fn local() -> Arc<dyn Connector> {
    Arc::new(local_broker(NodeId::LOCAL, Limits::default()))
}

/// A key to the whole region for one peer, and the handle by which that peer uses it.
fn grant(owner: &mut ShmEndpoint, region: &ShmRegion, of: &mut ShmEndpoint) -> (Peer, RemoteKey) {
    let to = of.connect_within(owner.address(), PATIENCE).expect("there");
    let peer = owner.connect_within(of.address(), PATIENCE).expect("there");
    let (whole, access) = (LocalRange::whole(region), Access::all());
    (to, owner.grant_within(whole, Audience::Peer(peer), access, PATIENCE).expect("a grant"))
}

fn put(
    of: &mut ShmEndpoint,
    to: Peer,
    key: RemoteKey,
    bytes: &[u8],
) -> Result<Issued, OperationError> {
    of.put(to, Source::Bytes(bytes), Target::new(key, 16), Operation::new(0))
}

/// How often a key is used before: from the third time on its translation is at hand.
const USES: [u32; 2] = [1, 4];

fn use_often(by: &mut ShmEndpoint, of: Peer, key: RemoteKey) {
    for _ in 0..USES[1] {
        let _ = put(by, of, key, b"used").expect("allowed");
    }
}

fn has_room(of: &mut ShmEndpoint) -> bool {
    let mut room = false;
    for _ in 0..4 {
        of.poll(16, &mut |event| room |= matches!(event, Event::Room { .. }));
    }
    room
}

/// Has this thread call `act` the first time that it passes `door`.
fn once_at(door: Door, act: impl FnOnce() + 'static) {
    let mut act = Some(act);
    on_passing(move |passed| {
        if passed == door
            && let Some(act) = act.take()
        {
            act();
        }
    });
}

#[test]
fn a_mapping_reaches_nothing_while_another_key_allows_writing() {
    let [mut owner, mut thief, mut friend] = endpoints(local());
    let region = owner.register(8192).expect("memory");
    let (to, lost) = grant(&mut owner, &region, &mut thief);
    let (at, valid) = grant(&mut owner, &region, &mut friend);
    let _ = put(&mut thief, to, lost, b"good").expect("allowed");
    let _ = put(&mut friend, at, valid, b"fine").expect("allowed");
    let kept = mapping(&mut thief, to, lost);
    assert_eq!(owner.revoke_within(lost, PATIENCE), Ok(Revoked::Published));
    kept.write(16, b"evil", CopyMode::Plain);
    let mut seen = [0; 4];
    region.read(16, &mut seen).expect("inside");
    assert_eq!(&seen, b"fine", "a late write reaches the region");
    let _ = put(&mut friend, at, valid, b"more").expect("the key stays");
    region.read(16, &mut seen).expect("inside");
    assert_eq!(&seen, b"more", "the key that stays leads elsewhere");
}

#[test]
fn a_key_of_another_peer_or_range_does_not_keep_a_reader_s_memory() {
    for same_peer in [true, false] {
        let [mut owner, mut reader, mut other] = endpoints(local());
        let region = owner.register(8192).expect("memory");
        let to = reader.connect_within(owner.address(), PATIENCE).expect("there");
        let reading = |owner: &mut ShmEndpoint, of: &ShmEndpoint, length| {
            let peer = owner.connect_within(of.address(), PATIENCE).expect("there");
            let range = LocalRange::new(&region, 0, length);
            owner.grant_within(range, Audience::Peer(peer), Access::READ, PATIENCE)
        };
        let lost = reading(&mut owner, &reader, 8192).expect("a grant");
        let _ = reader.do_resolve(to, lost, 0).expect("allowed");
        let kept = mapping(&mut reader, to, lost);
        let of = if same_peer { &reader } else { &other };
        let stays = reading(&mut owner, of, if same_peer { 4096 } else { 8192 });
        stays.expect("a grant");
        owner.revoke_within(lost, PATIENCE).expect("granted");
        region.write(5000, b"secret").expect("inside");
        let mut seen = [0; 6];
        kept.read(5000, &mut seen);
        assert_eq!(seen, [0; 6], "same peer: {same_peer}");
        other.poll(1, &mut |_| {});
    }
}

#[test]
fn a_get_that_stood_still_during_a_move_reads_again() {
    let doors = [Door::Before, Door::Behind];
    for (door, uses) in doors.into_iter().flat_map(|door| USES.map(|uses| (door, uses))) {
        let [mut owner, mut thief, mut reader] = endpoints(local());
        owner.wait_for_writers(Duration::ZERO);
        let region = owner.register(8192).expect("memory");
        let (to, lost) = grant(&mut owner, &region, &mut thief);
        let (at, valid) = grant(&mut owner, &region, &mut reader);
        let _ = put(&mut thief, to, lost, b"good").expect("allowed");
        let kept = mapping(&mut thief, to, lost);
        let into = reader.register(4).expect("memory");
        let get = |reader: &mut ShmEndpoint| {
            let range = LocalRange::new(&into, 0, 4);
            reader.get(at, Target::new(valid, 16), range, Operation::new(0))
        };
        for _ in 0..uses {
            let _ = get(&mut reader).expect("allowed");
        }
        let shared = Rc::new(RefCell::new(owner));
        let owner = Rc::clone(&shared);
        once_at(door, move || {
            owner.borrow_mut().revoke_within(lost, PATIENCE).expect("granted");
            kept.write(16, b"evil", CopyMode::Plain);
        });
        // A key at hand is looked up at once.
        if uses == USES[0] {
            assert_eq!(get(&mut reader), Err(OperationError::WouldBlock), "{door:?}");
            assert!(has_room(&mut reader), "{door:?}");
        }
        let _ = get(&mut reader).expect("the key stays");
        let mut seen = [0; 4];
        into.read(0, &mut seen).expect("inside");
        assert_eq!(&seen, b"good", "{door:?}");
        drop(shared);
    }
}

#[test]
fn a_get_into_memory_that_moves_meanwhile_is_made_again() {
    USES.into_iter().for_each(get_into_moving_memory);
}

/// The key is used some times before.
fn get_into_moving_memory(uses: u32) {
    let [mut owner, mut thief, mut getter] = endpoints(local());
    owner.wait_for_writers(Duration::ZERO);
    let memory = Memory::fresh(MemoryOptions::bytes(4096)).expect("memory");
    let moving = owner.register_memory(&memory).expect("room");
    let into = getter.register_memory(&memory).expect("room");
    let source = thief.register(8192).expect("memory");
    source.write(16, b"new!").expect("inside");
    let (at, key) = grant(&mut thief, &source, &mut getter);
    let (to, lost) = grant(&mut owner, &moving, &mut thief);
    let _ = put(&mut thief, to, lost, b"used").expect("allowed");
    let get = |getter: &mut ShmEndpoint| {
        let range = LocalRange::new(&into, 0, 4);
        getter.get(at, Target::new(key, 16), range, Operation::new(0))
    };
    for _ in 0..uses {
        let _ = get(&mut getter).expect("allowed");
    }
    let old = Segment::open(std::os::fd::AsFd::as_fd(&memory.file().expect("a memfd")), 4096, true);
    let old = old.expect("sealed");
    let shared = Rc::new(RefCell::new(owner));
    let owner = Rc::clone(&shared);
    let changing = source.clone();
    once_at(Door::Behind, move || {
        owner.borrow_mut().revoke_within(lost, PATIENCE).expect("granted");
        changing.write(16, b"two!").expect("inside");
    });
    // A key at hand is looked up at once.
    if uses == USES[0] {
        assert_eq!(get(&mut getter), Err(OperationError::WouldBlock));
        assert!(has_room(&mut getter));
    }
    let _ = get(&mut getter).expect("the key stays");
    old.write(0, b"late", CopyMode::Plain);
    let mut seen = [0; 4];
    into.read(0, &mut seen).expect("inside");
    assert_eq!(&seen, b"two!");
}

/// Runs `act` with the owner while the memory is closing, because a writer is inside.
fn while_closing(
    act: impl FnOnce(&mut ShmEndpoint, &ShmRegion, &mut ShmEndpoint) + 'static,
) -> (ShmEndpoint, ShmRegion) {
    let [mut owner, mut thief, mut writer, mut third] = endpoints(local());
    owner.wait_for_writers(PATIENCE);
    let region = owner.register(8192).expect("memory");
    let (to, lost) = grant(&mut owner, &region, &mut thief);
    let (at, valid) = grant(&mut owner, &region, &mut writer);
    let _ = put(&mut thief, to, lost, b"used").expect("allowed");
    use_often(&mut writer, at, valid);
    let shared = Rc::new(RefCell::new(owner));
    let (owner, of) = (Rc::clone(&shared), region.clone());
    once_at(Door::Before, move || {
        let owner = &mut owner.borrow_mut();
        assert_eq!(owner.revoke(lost, 5), Ok(Issued::Pending));
        act(owner, &of, &mut third);
    });
    assert_eq!(put(&mut writer, at, valid, b"mine"), Ok(Issued::Done(Value::Nothing)));
    on_passing(|_| {});
    let mut owner = Rc::into_inner(shared).expect("the door is closed").into_inner();
    assert_eq!(owner.finish(5, PATIENCE), Some(Ok(Value::Revoked(Revoked::Published))));
    let mut seen = [0; 4];
    region.read(16, &mut seen).expect("inside");
    assert_eq!(&seen, b"mine", "the move waited for the put");
    let _ = put(&mut writer, at, valid, b"next").expect("the key stays");
    region.read(16, &mut seen).expect("inside");
    assert_eq!(&seen, b"next");
    (owner, region)
}

#[test]
fn a_put_that_meets_a_move_is_not_made_twice() {
    let [mut owner, mut thief, mut writer] = endpoints(local());
    owner.wait_for_writers(PATIENCE);
    let region = owner.register(8192).expect("memory");
    let (to, lost) = grant(&mut owner, &region, &mut thief);
    let (at, valid) = grant(&mut owner, &region, &mut writer);
    let _ = put(&mut thief, to, lost, b"used").expect("allowed");
    use_often(&mut writer, at, valid);
    let shared = Rc::new(RefCell::new(owner));
    let (owner, of) = (Rc::clone(&shared), region.clone());
    once_at(Door::Behind, move || {
        assert_eq!(owner.borrow_mut().revoke(lost, 5), Ok(Issued::Pending));
        let mut seen = [0; 4];
        of.read(16, &mut seen).expect("inside");
        assert_eq!(&seen, b"mine");
        of.write(16, b"took").expect("inside");
    });
    assert_eq!(put(&mut writer, at, valid, b"mine"), Ok(Issued::Done(Value::Nothing)));
    assert_eq!(
        shared.borrow_mut().finish(5, PATIENCE),
        Some(Ok(Value::Revoked(Revoked::Published)))
    );
    let mut seen = [0; 4];
    region.read(16, &mut seen).expect("inside");
    assert_eq!(&seen, b"took", "a put that was seen came back");
}

#[test]
fn a_key_that_is_granted_and_used_during_a_move_leads_to_the_new_memory() {
    let late = Rc::new(RefCell::new(None));
    let granted = Rc::clone(&late);
    let (owner, region) = while_closing(move |owner, region, third| {
        let (to, key) = grant(owner, region, third);
        assert_eq!(put(third, to, key, b"soon"), Err(OperationError::WouldBlock));
        assert_eq!(third.do_resolve(to, key, 9), Ok(Issued::Pending));
        assert!(!has_room(third), "the memory still moves");
        let third =
            std::mem::replace(third, endpoints::<1>(local()).into_iter().next().expect("1"));
        *granted.borrow_mut() = Some((third, to, key));
    });
    let (mut third, to, key) = late.borrow_mut().take().expect("granted");
    assert!(third.doorbell.words().is_rung(), "whoever sleeps is woken");
    assert_eq!(third.finish(9, PATIENCE), Some(Ok(Value::Nothing)));
    assert!(has_room(&mut third));
    let _ = put(&mut third, to, key, b"soon").expect("a valid key");
    let mut seen = [0; 4];
    region.read(16, &mut seen).expect("inside");
    assert_eq!(&seen, b"soon");
    drop(owner);
}

#[test]
fn a_key_that_nobody_has_is_revoked_at_once_also_during_a_move() {
    let (_owner, region) = while_closing(|owner, region, third| {
        let (to, key) = grant(owner, region, third);
        assert_eq!(owner.revoke(key, 6), Ok(Issued::Done(Value::Revoked(Revoked::Published))));
        assert_eq!(put(third, to, key, b"late"), Err(OperationError::InvalidKey));
    });
    assert_eq!(region.memory().moves(), 1);
}

#[test]
fn two_revocations_at_once_take_one_move() {
    let [mut owner, mut thief, mut other, mut writer] = endpoints(local());
    owner.wait_for_writers(PATIENCE);
    let region = owner.register(8192).expect("memory");
    let keys = [&mut thief, &mut other].map(|of| {
        let (to, key) = grant(&mut owner, &region, of);
        let _ = put(of, to, key, b"used").expect("allowed");
        (key, mapping(of, to, key))
    });
    let (at, valid) = grant(&mut owner, &region, &mut writer);
    use_often(&mut writer, at, valid);
    let shared = Rc::new(RefCell::new(owner));
    let owner = Rc::clone(&shared);
    let [one, two] = [keys[0].0, keys[1].0];
    once_at(Door::Before, move || {
        let mut owner = owner.borrow_mut();
        assert_eq!(owner.revoke(one, 1), Ok(Issued::Pending));
        assert_eq!(owner.revoke(two, 2), Ok(Issued::Pending));
    });
    assert_eq!(put(&mut writer, at, valid, b"mine"), Ok(Issued::Done(Value::Nothing)));
    on_passing(|_| {});
    let mut owner = Rc::into_inner(shared).expect("the door is closed").into_inner();
    for context in [1, 2] {
        assert_eq!(owner.finish(context, PATIENCE), Some(Ok(Value::Revoked(Revoked::Published))));
    }
    assert_eq!(region.memory().moves(), 1);
    for (_, kept) in keys {
        kept.write(16, b"evil", CopyMode::Plain);
    }
    let mut seen = [0; 4];
    region.read(16, &mut seen).expect("inside");
    assert_eq!(&seen, b"mine");
}

/// Loses requests to publish a key.
fn deaf(request: &EndpointControl) -> Fate {
    if matches!(request, EndpointControl::Publish(_)) { Fate::Refused } else { Fate::Heard }
}

#[test]
fn no_peer_uses_the_memory_that_was_left_while_the_broker_does_not_know_the_new_one() {
    let broker = TestBroker::new();
    let [mut owner, mut thief, mut writer] = endpoints(Arc::new(broker.clone()));
    let region = owner.register(8192).expect("memory");
    let (to, lost) = grant(&mut owner, &region, &mut thief);
    let (at, valid) = grant(&mut owner, &region, &mut writer);
    let _ = put(&mut thief, to, lost, b"used").expect("allowed");
    let _ = put(&mut writer, at, valid, b"used").expect("allowed");
    broker.judge(deaf);
    owner.revoke_within(lost, PATIENCE).expect("granted");
    assert_eq!(put(&mut writer, at, valid, b"lost"), Err(OperationError::WouldBlock));
    owner.poll(1, &mut |_| {});
    assert!(!has_room(&mut writer), "the broker would pass the former memory");
    broker.hear();
    for _ in 0..1 << 9 {
        owner.poll(1, &mut |_| {});
    }
    assert!(has_room(&mut writer));
    let _ = put(&mut writer, at, valid, b"here").expect("the key stays");
    let mut seen = [0; 4];
    region.read(16, &mut seen).expect("inside");
    assert_eq!(&seen, b"here");
}

#[test]
fn a_key_that_allowed_writing_is_gone_though_its_holders_may_write_by_another() {
    let [mut owner, mut thief] = endpoints(local());
    let region = owner.register(8192).expect("memory");
    let [lost, _stays] = [(); 2].map(|()| {
        let whole = LocalRange::whole(&region);
        let key = owner.grant_within(whole, Audience::Partition, Access::all(), PATIENCE);
        key.expect("a grant")
    });
    let to = thief.connect_within(owner.address(), PATIENCE).expect("there");
    let _ = put(&mut thief, to, lost, b"good").expect("allowed");
    let kept = mapping(&mut thief, to, lost);
    owner.revoke_within(lost, PATIENCE).expect("granted");
    kept.write(16, b"evil", CopyMode::Plain);
    let mut seen = [0; 4];
    region.read(16, &mut seen).expect("inside");
    assert_eq!(&seen, b"good", "a late write reaches the region");
}

#[test]
fn a_put_that_stood_still_fails_also_before_the_broker_knows_the_new_memory() {
    let broker = TestBroker::new();
    let [mut owner, mut thief, mut writer] = endpoints(Arc::new(broker.clone()));
    owner.wait_for_writers(Duration::ZERO);
    let region = owner.register(8192).expect("memory");
    let (to, lost) = grant(&mut owner, &region, &mut thief);
    let (at, valid) = grant(&mut owner, &region, &mut writer);
    let _ = put(&mut thief, to, lost, b"used").expect("allowed");
    use_often(&mut writer, at, valid);
    let shared = Rc::new(RefCell::new(owner));
    let owner = Rc::clone(&shared);
    once_at(Door::Before, move || {
        broker.judge(deaf);
        owner.borrow_mut().revoke_within(lost, PATIENCE).expect("granted");
    });
    assert_eq!(put(&mut writer, at, valid, b"lost"), Err(OperationError::Interrupted));
    drop(shared);
}

#[test]
fn no_operation_begins_while_a_move_waits_for_another() {
    let [mut owner, mut thief, mut writer, mut other] = endpoints(local());
    owner.wait_for_writers(PATIENCE);
    let region = owner.register(8192).expect("memory");
    let (to, lost) = grant(&mut owner, &region, &mut thief);
    let (at, valid) = grant(&mut owner, &region, &mut writer);
    let (by, also) = grant(&mut owner, &region, &mut other);
    let _ = put(&mut thief, to, lost, b"used").expect("allowed");
    use_often(&mut writer, at, valid);
    let _ = put(&mut other, by, also, b"used").expect("allowed");
    once_at(Door::Before, move || {
        assert_eq!(owner.revoke(lost, 5), Ok(Issued::Pending));
        assert_eq!(put(&mut other, by, also, b"more"), Err(OperationError::WouldBlock));
    });
    let _ = put(&mut writer, at, valid, b"mine").expect("the move waits for it");
}

#[test]
fn memory_of_somebody_else_stays_where_it_is() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let theirs = rustix::fs::memfd_create("theirs", flags).expect("memory");
    rustix::fs::ftruncate(&theirs, 4096).expect("fresh");
    let memory = Memory::from_descriptor(theirs.as_fd()).expect("it can be sealed");
    let (mut owner, mut peer) = pair();
    let region = owner.register_memory(&memory).expect("room");
    let to = peer.connect_within(owner.address(), PATIENCE).expect("there");
    for round in 1..=3_u8 {
        let whole = LocalRange::whole(&region);
        let key = owner.grant_within(whole, Audience::Partition, Access::all(), PATIENCE);
        let key = key.expect("a grant");
        let put = |peer: &mut ShmEndpoint| {
            let target = Target::new(key, 8);
            peer.put(to, Source::Bytes(&[round]), target, Operation::new(0))
        };
        peer.resolve_within(to, key, PATIENCE).expect("in force");
        assert!(put(&mut peer).is_ok());
        owner.revoke_within(key, PATIENCE).expect("in force");
        assert_eq!(put(&mut peer), Err(OperationError::InvalidKey));
        let mut byte = [0];
        assert_eq!(rustix::io::pread(&theirs, &mut byte, 8), Ok(1));
        assert_eq!(byte, [round], "its maker sees what was written");
    }
}
