//! Memory to which several endpoints of this process granted keys, when one of them revokes.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::MemfdFlags;
use weft_broker::Limits;
use weft_fabric::{
    Access, Audience, Blocking, Endpoint, EndpointOptions, Event, HostMemory, Issued, LocalRange,
    NodeId, Operation, OperationError, PATIENCE, Peer, Region, RemoteKey, Revoked, Source, Target,
    Transport, Value,
};
use weft_memory::{CopyMode, Memory, MemoryOptions, Segment};

use crate::door::{Door, on_passing};
use crate::local_broker;
use crate::memory::KeyParts;
use crate::{Parameters, ShmEndpoint, ShmRegion, ShmTransport};

const LENGTH: usize = 8192;

fn endpoints<const N: usize>() -> [ShmEndpoint; N] {
    let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
    let transport = ShmTransport::new(broker, Parameters::default());
    std::array::from_fn(|_| transport.open(&EndpointOptions::default()).expect("a fresh broker"))
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
    (to, key): (Peer, RemoteKey),
    bytes: &[u8],
) -> Result<Issued, OperationError> {
    of.put(to, Source::Bytes(bytes), Target::new(key, 16), Operation::new(0))
}

fn seen(region: &ShmRegion) -> [u8; 4] {
    let mut bytes = [0; 4];
    region.read(16, &mut bytes).expect("inside");
    bytes
}

fn mapping(of: &mut ShmEndpoint, (to, key): (Peer, RemoteKey)) -> Arc<Segment> {
    let peer = of.peers.live(to).expect("alive");
    let slot = usize::from(KeyParts::of(key).slot);
    Arc::clone(&peer.keys[slot].as_ref().expect("resolved").segment)
}

fn has_room(of: &mut ShmEndpoint) -> bool {
    let mut room = false;
    for _ in 0..4 {
        of.poll(16, &mut |event| room |= matches!(event, Event::Room { .. }));
    }
    room
}

/// Two owners of one memory. A thief has a key of the first, a friend one of the second; both used
/// theirs.
struct Scene {
    one: ShmEndpoint,
    other: ShmEndpoint,
    here: ShmRegion,
    there: ShmRegion,
    thief: ShmEndpoint,
    lost: (Peer, RemoteKey),
    friend: ShmEndpoint,
    stays: (Peer, RemoteKey),
}

fn scene_of(memory: &Memory) -> Scene {
    let [mut one, mut other, mut thief, mut friend] = endpoints();
    let here = one.register_memory(memory).expect("room");
    let there = other.register_memory(memory).expect("room");
    let lost = grant(&mut one, &here, &mut thief);
    let stays = grant(&mut other, &there, &mut friend);
    let _ = put(&mut friend, stays, b"fine").expect("allowed");
    let _ = put(&mut thief, lost, b"good").expect("allowed");
    Scene { one, other, here, there, thief, lost, friend, stays }
}

fn fresh() -> Memory {
    Memory::fresh(MemoryOptions::bytes(LENGTH)).expect("memory")
}

fn scene() -> Scene {
    scene_of(&fresh())
}

#[test]
fn a_key_of_another_endpoint_does_not_keep_memory_in_reach() {
    let Scene { mut one, mut other, here, mut thief, lost, mut friend, stays, .. } = scene();
    let kept = mapping(&mut thief, lost);
    other.poll(16, &mut |_| {});
    assert!(!other.doorbell.words().is_rung());
    assert_eq!(one.revoke_within(lost.1, PATIENCE), Ok(Revoked::Published));
    kept.write(16, b"evil", CopyMode::Plain);
    assert_eq!(&seen(&here), b"good", "a late write reaches the memory");
    assert_eq!(here.memory().moves(), 1);
    // The other endpoint has not polled: its key leads nowhere, and nothing is lost by it.
    assert_eq!(put(&mut friend, stays, b"soon"), Err(OperationError::WouldBlock));
    assert!(other.doorbell.words().is_rung(), "the endpoint that has to publish it is woken");
    assert!(!has_room(&mut friend));
    for _ in 0..4 {
        other.poll(16, &mut |_| {});
    }
    assert!(has_room(&mut friend), "whoever waits is told");
    let _ = put(&mut friend, stays, b"here").expect("the key stays");
    assert_eq!(&seen(&here), b"here");
}

/// Runs `act` when the friend is inside a put, between its first look and its bytes.
fn while_inside(
    scene: Scene,
    act: impl FnOnce(&mut Scene) + 'static,
) -> (Scene, Result<Issued, OperationError>) {
    let mut scene = scene;
    scene.one.wait_for_writers(PATIENCE);
    scene.other.wait_for_writers(PATIENCE);
    let stays = scene.stays;
    let [spare] = endpoints();
    let mut friend = std::mem::replace(&mut scene.friend, spare);
    let shared = Rc::new(RefCell::new(Some(scene)));
    let inside = Rc::clone(&shared);
    let mut act = Some(act);
    on_passing(move |passed| {
        if passed == Door::Before
            && let Some(act) = act.take()
        {
            act(inside.borrow_mut().as_mut().expect("the scene"));
        }
    });
    let said = put(&mut friend, stays, b"mine");
    on_passing(|_| {});
    let mut scene = shared.borrow_mut().take().expect("the scene");
    scene.friend = friend;
    (scene, said)
}

#[test]
fn a_move_waits_for_whoever_writes_by_a_key_of_another_endpoint() {
    let (mut scene, said) = while_inside(scene(), |scene| {
        assert_eq!(scene.one.revoke(scene.lost.1, 5), Ok(Issued::Pending));
        for _ in 0..4 {
            assert_eq!(scene.one.poll(16, &mut |_| {}), 0, "the put is under way");
        }
    });
    assert_eq!(said, Ok(Issued::Done(Value::Nothing)));
    assert_eq!(scene.one.finish(5, PATIENCE), Some(Ok(Value::Revoked(Revoked::Published))));
    assert_eq!((&seen(&scene.here), scene.here.memory().moves()), (b"mine", 1));
}

#[test]
fn a_writer_by_a_key_of_another_endpoint_that_stood_still_reaches_nothing() {
    let (scene, said) = while_inside(scene(), |scene| {
        scene.one.wait_for_writers(Duration::ZERO);
        scene.one.revoke_within(scene.lost.1, PATIENCE).expect("in force");
    });
    assert_eq!(said, Err(OperationError::Interrupted));
    assert_eq!(&seen(&scene.here), b"good");
}

#[test]
fn another_endpoint_ends_the_move_of_one_that_does_not_poll_or_has_ended() {
    for has_ended in [false, true] {
        let (mut scene, said) = while_inside(scene(), move |scene| {
            assert_eq!(scene.one.revoke(scene.lost.1, 5), Ok(Issued::Pending));
            if has_ended {
                let [spare] = endpoints();
                std::mem::replace(&mut scene.one, spare).vanish();
            }
        });
        assert_eq!(said, Ok(Issued::Done(Value::Nothing)));
        for _ in 0..8 {
            scene.other.poll(16, &mut |_| {});
        }
        assert_eq!(scene.here.memory().moves(), 1, "it has ended: {has_ended}");
        let late = put(&mut scene.thief, scene.lost, b"evil");
        assert!(late.is_err(), "{late:?}");
        for _ in 0..2 {
            let _ = has_room(&mut scene.friend);
            let _ = put(&mut scene.friend, scene.stays, b"here");
        }
        assert_eq!(&seen(&scene.there), b"here", "it has ended: {has_ended}");
    }
}

#[test]
fn a_move_that_nobody_drives_any_more_is_given_up_and_leaves_nothing() {
    let memory = fresh();
    let before = memory.file().as_ref().map(Arc::as_ptr);
    let (scene, said) = while_inside(scene_of(&memory), |scene| {
        assert_eq!(scene.one.revoke(scene.lost.1, 5), Ok(Issued::Pending));
        let spare: [_; 2] = endpoints();
        let [one, other] = spare;
        std::mem::replace(&mut scene.other, other).vanish();
        std::mem::replace(&mut scene.one, one).vanish();
    });
    assert_eq!(memory.file().as_ref().map(Arc::as_ptr), before);
    assert_eq!((said, &seen(&scene.here)), (Ok(Issued::Done(Value::Nothing)), b"mine"), "it stays");
    drop(scene);
    // An endpoint that comes later finds no move.
    let [mut late, mut peer] = endpoints();
    let region = late.register_memory(&memory).expect("room");
    let key = grant(&mut late, &region, &mut peer);
    let _ = put(&mut peer, key, b"late").expect("allowed");
    late.revoke_within(key.1, PATIENCE).expect("in force");
    assert_eq!((&seen(&region), memory.moves()), (b"late", 1));
}

#[test]
fn a_key_of_an_endpoint_that_has_ended_is_void_where_others_have_keys() {
    let Scene { one, mut other, here, mut thief, lost, stays, .. } = scene();
    one.vanish();
    other.revoke_within(stays.1, PATIENCE).expect("in force");
    assert_eq!(here.memory().moves(), 1);
    let late = put(&mut thief, lost, b"late");
    assert!(matches!(late, Err(OperationError::InvalidKey | OperationError::PeerDown)), "{late:?}");
}

#[test]
fn a_key_that_another_endpoint_grants_during_a_move_leads_to_the_new_memory() {
    let late = Rc::new(RefCell::new(None));
    let granted = Rc::clone(&late);
    let (mut scene, _) = while_inside(scene(), move |scene| {
        assert_eq!(scene.one.revoke(scene.lost.1, 5), Ok(Issued::Pending));
        let key = grant(&mut scene.other, &scene.there, &mut scene.thief);
        assert_eq!(put(&mut scene.thief, key, b"soon"), Err(OperationError::WouldBlock));
        *granted.borrow_mut() = Some(key);
    });
    let key = late.borrow_mut().take().expect("granted");
    assert_eq!(scene.one.finish(5, PATIENCE), Some(Ok(Value::Revoked(Revoked::Published))));
    assert_eq!(put(&mut scene.thief, key, b"soon"), Err(OperationError::WouldBlock));
    for _ in 0..4 {
        scene.other.poll(16, &mut |_| {});
    }
    assert!(has_room(&mut scene.thief));
    let _ = put(&mut scene.thief, key, b"here").expect("a valid key");
    assert_eq!(&seen(&scene.here), b"here");
}

#[test]
fn revocations_of_two_endpoints_take_one_move() {
    let mut scene = scene();
    let second = grant(&mut scene.other, &scene.there, &mut scene.thief);
    let _ = put(&mut scene.thief, second, b"also").expect("allowed");
    let kept = [scene.lost, second].map(|key| mapping(&mut scene.thief, key));
    let (mut scene, said) = while_inside(scene, move |scene| {
        assert_eq!(scene.one.revoke(scene.lost.1, 5), Ok(Issued::Pending));
        assert_eq!(scene.other.revoke(second.1, 6), Ok(Issued::Pending));
    });
    assert_eq!(said, Ok(Issued::Done(Value::Nothing)));
    assert_eq!(
        scene.other.finish(6, PATIENCE),
        Some(Ok(Value::Revoked(Revoked::Published))),
        "the first need not poll"
    );
    assert_eq!(scene.one.finish(5, PATIENCE), Some(Ok(Value::Revoked(Revoked::Published))));
    assert_eq!(scene.here.memory().moves(), 1);
    kept.iter().for_each(|kept| kept.write(16, b"evil", CopyMode::Plain));
    assert_eq!(&seen(&scene.here), b"mine");
}

#[test]
fn memory_of_somebody_else_stays_and_keys_of_all_endpoints_serve_again() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let theirs = rustix::fs::memfd_create("theirs", flags).expect("memory");
    rustix::fs::ftruncate(&theirs, LENGTH as u64).expect("fresh");
    let memory = Memory::from_descriptor(theirs.as_fd()).expect("it can be sealed");
    let Scene { mut one, mut other, mut thief, lost, mut friend, stays, .. } = scene_of(&memory);
    one.revoke_within(lost.1, PATIENCE).expect("in force");
    assert_eq!(put(&mut thief, lost, b"evil"), Err(OperationError::InvalidKey));
    for _ in 0..4 {
        other.poll(16, &mut |_| {});
        let _ = has_room(&mut friend);
    }
    let _ = put(&mut friend, stays, b"here").expect("the key stays");
    let mut bytes = [0; 4];
    assert_eq!(rustix::io::pread(&theirs, &mut bytes, 16), Ok(4));
    assert_eq!((&bytes, memory.moves()), (b"here", 0));
}
