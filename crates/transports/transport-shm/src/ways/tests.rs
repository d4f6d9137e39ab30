//! Memory in place: revocations that meet writers, and what the kernel does not copy.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weft_broker::{Limits, local::LocalBroker};
use weft_fabric::{
    Access, Atomic, Audience, Blocking, Endpoint, EndpointOptions, GrantError, HostMemory, Issued,
    LocalRange, NodeId, Operation, OperationError, PATIENCE, Peer, Region, RemoteKey, Revoked,
    Signal, SignalChange, Source, Target, Transport, Value, Way, errno,
};
use weft_memory::Memory;

use crate::door::{Door, on_passing};
use crate::local_broker;
use crate::{Parameters, ShmEndpoint, ShmRegion, ShmTransport};

fn endpoints() -> [ShmEndpoint; 2] {
    let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
    [(); 2].map(|()| {
        let parameters = Parameters { ring_slots: 16, ..Parameters::default() };
        let transport = ShmTransport::new(Arc::<LocalBroker>::clone(&broker), parameters);
        transport.open(&EndpointOptions::default()).expect("a fresh broker")
    })
}

/// Registers memory that is never freed and begins `skip` bytes behind a word.
fn in_place(owner: &mut ShmEndpoint, length: usize, skip: usize) -> ShmRegion {
    let words = vec![0_u64; (length + skip) / 8 + 1].leak();
    let base = NonNull::from(&mut words[0]).cast::<u8>();
    // SAFETY: nobody else has these words, which are never freed, and the only reference to them
    // ends here.
    let memory = unsafe { Memory::in_place(base.add(skip), length) }.expect("some bytes");
    owner.register_memory(&memory).expect("there is room")
}

/// A key to all of a region, and the handle that `peer` has for the owner.
fn grant(owner: &mut ShmEndpoint, region: &ShmRegion, peer: &mut ShmEndpoint) -> (Peer, RemoteKey) {
    let whole = LocalRange::whole(region);
    let key = owner.grant_within(whole, Audience::Partition, Access::all(), PATIENCE);
    let to = peer.connect_within(owner.address(), PATIENCE).expect("there");
    (to, key.expect("a grant"))
}

fn put(
    by: &mut ShmEndpoint,
    to: Peer,
    target: Target,
    bytes: &[u8],
) -> Result<Issued, OperationError> {
    by.put(to, Source::Bytes(bytes), target, Operation::new(1))
}

fn contents(region: &ShmRegion) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(region.length()).expect("small")];
    region.read(0, &mut bytes).expect("inside");
    bytes
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
fn a_revocation_names_a_writer_that_stands_still() {
    let [mut owner, mut writer] = endpoints();
    owner.wait_for_writers(Duration::ZERO);
    let region = in_place(&mut owner, 100, 3);
    let (to, key) = grant(&mut owner, &region, &mut writer);
    let _ = put(&mut writer, to, Target::new(key, 0), b"before").expect("allowed");
    let peer = writer.address();
    let owner = Rc::new(RefCell::new(owner));
    let revoker = Rc::clone(&owner);
    once_at(Door::Before, move || {
        let refused = revoker.borrow_mut().revoke_within(key, PATIENCE);
        assert_eq!(refused, Err(GrantError::StillWriting { peer }));
    });
    let late = put(&mut writer, to, Target::new(key, 0), b"behind");
    assert_eq!(late, Err(OperationError::InvalidKey), "it is not reported as done");
    assert_eq!(put(&mut writer, to, Target::new(key, 0), b"x"), Err(OperationError::InvalidKey));
    let key = owner.borrow_mut().grant_within(
        LocalRange::whole(&region),
        Audience::Partition,
        Access::all(),
        PATIENCE,
    );
    let key = key.expect("the next one");
    assert!(put(&mut writer, to, Target::new(key, 0), b"again!").is_ok());
    assert_eq!(owner.borrow_mut().revoke_within(key, PATIENCE), Ok(Revoked::Published));
    assert_eq!(contents(&region)[..6], *b"again!");
}

#[test]
fn a_revocation_waits_for_a_writer_and_stops_it_between_pieces() {
    let [mut owner, mut writer] = endpoints();
    owner.wait_for_writers(PATIENCE);
    let region = in_place(&mut owner, 20 << 20, 1);
    let (to, key) = grant(&mut owner, &region, &mut writer);
    let _ = put(&mut writer, to, Target::new(key, 0), b"before").expect("allowed");
    let owner = Rc::new(RefCell::new(owner));
    let revoker = Rc::clone(&owner);
    once_at(Door::Before, move || {
        let issued = revoker.borrow_mut().revoke(key, 7);
        assert_eq!(issued, Ok(Issued::Pending), "a write is under way");
    });
    let cut = put(&mut writer, to, Target::new(key, 0), &vec![9; 20 << 20]);
    assert_eq!(cut, Err(OperationError::InvalidKey));
    let end = owner.borrow_mut().finish(7, PATIENCE);
    assert_eq!(end, Some(Ok(Value::Revoked(Revoked::Published))));
    let bytes = contents(&region);
    assert_eq!(bytes[(8 << 20) - 1..(8 << 20) + 1], [9, 0], "one piece was under way");
}

#[test]
fn nothing_is_written_to_a_process_that_does_not_show_its_sign() {
    let [mut owner, mut writer] = endpoints();
    let region = in_place(&mut owner, 100, 0);
    let (to, key) = grant(&mut owner, &region, &mut writer);
    assert_eq!(writer.reach(to).map(|reach| reach.in_place), Ok(Way::Kernel));
    // As after an exec, or in a process that got the number of a dead one.
    owner.sign.take_down();
    let late = put(&mut writer, to, Target::new(key, 0), b"late");
    assert_eq!(late, Err(OperationError::PeerDown));
    assert_eq!(contents(&region), vec![0; 100]);
    let into = writer.register(8).expect("memory");
    let got = writer.get(to, Target::new(key, 0), LocalRange::whole(&into), Operation::new(2));
    assert_eq!(got, Err(OperationError::PeerDown));
}

#[test]
fn what_the_kernel_refuses_is_an_error() {
    let [mut owner, mut writer] = endpoints();
    let region = in_place(&mut owner, 100, 0);
    let (to, key) = grant(&mut owner, &region, &mut writer);
    let target = Target::new(key, 0);
    assert_eq!(put(&mut writer, to, target, b"1"), Ok(Issued::Done(Value::Nothing)));
    let lose_address = |writer: &mut ShmEndpoint, address| {
        writer.peers.find(to).expect("alive").in_place[0].address = address;
    };
    // The owner broke its promise.
    lose_address(&mut writer, Some(64));
    let refused = put(&mut writer, to, target, b"2");
    assert_eq!(refused, Err(OperationError::KernelCopy { errno: errno::EFAULT }));
    let eperm = Err(OperationError::KernelCopy { errno: errno::EPERM });
    // Another user's memory, say.
    lose_address(&mut writer, None);
    assert_eq!(put(&mut writer, to, target, b"3"), eperm);
    writer.peers.find(to).expect("alive").owner = super::Owner::Shut { errno: errno::EPERM };
    assert_eq!(put(&mut writer, to, target, b"4"), eperm);
    assert_eq!(writer.reach(to).map(|reach| reach.in_place), Ok(Way::Refused));
    assert_eq!(contents(&region)[0], b'1');
}

#[test]
fn a_key_reaches_its_range_alone_until_it_is_revoked() {
    let [mut owner, mut writer] = endpoints();
    let region = in_place(&mut owner, 64, 1);
    let to = writer.connect_within(owner.address(), PATIENCE).expect("there");
    let (range, all) = (LocalRange::new(&region, 16, 32), Access::READ | Access::WRITE);
    let key = owner.grant_within(range, Audience::Partition, all, PATIENCE).expect("a grant");
    let into = writer.register(64).expect("memory");
    let attempts = |writer: &mut ShmEndpoint, offset| {
        let (target, whole) = (Target::new(key, offset), LocalRange::new(&into, 0, 8));
        let got = writer.get(to, target, whole, Operation::new(2));
        [put(writer, to, target, &[7; 8]), got]
    };
    for offset in [0, 24] {
        assert_eq!(
            attempts(&mut writer, offset),
            [Ok(Issued::Done(Value::Nothing)), Ok(Issued::Done(Value::Nothing))]
        );
    }
    for offset in [25, 32, u64::MAX - 7, u64::MAX] {
        let outside = OperationError::OutOfBounds { offset, length: 8, region: 32 };
        assert_eq!(attempts(&mut writer, offset), [Err(outside.clone()), Err(outside)]);
    }
    assert_eq!(owner.revoke_within(key, PATIENCE), Ok(Revoked::Published));
    let void = Err(OperationError::InvalidKey);
    assert_eq!(attempts(&mut writer, 0), [void.clone(), void]);
    let written = [&[0; 16][..], &[7; 8], &[0; 16], &[7; 8], &[0; 16]].concat();
    assert_eq!(contents(&region), written);
}

#[test]
fn words_are_not_changed_and_memory_of_two_kinds_is_no_one_operation() {
    let [mut owner, mut writer] = endpoints();
    let (region, mapped) = (in_place(&mut owner, 64, 0), owner.register(64).expect("memory"));
    let (to, key) = grant(&mut owner, &region, &mut writer);
    let (_, direct) = grant(&mut owner, &mapped, &mut writer);
    let (target, other) = (Target::new(key, 8), Target::new(direct, 8));
    let refused = Err(OperationError::NotMapped);
    let add = Atomic::fetch_add(1);
    assert_eq!(writer.atomic(to, target, add, Operation::new(1)), refused);
    assert_eq!(writer.put_immediate(to, 7, 8, target, Operation::new(2)), refused);
    for (data, word) in [(target, other), (other, target)] {
        let signal = Signal { target: word, change: SignalChange::Add(1) };
        let put = writer.put_signal(to, Source::Bytes(b"data"), data, signal, Operation::new(3));
        assert_eq!(put, refused);
    }
    for (one, two) in [(target, other), (other, target)] {
        let ranges = [(Source::Bytes(b"one"), one), (Source::Bytes(b"two"), two)];
        assert_eq!(writer.put_vectored(to, &ranges, Operation::new(4)), refused);
    }
    assert_eq!((contents(&region), contents(&mapped)), (vec![0; 64], vec![0; 64]));
    // Nothing is announced for ever: the revocations wait for nobody.
    for key in [key, direct] {
        assert_eq!(owner.revoke_within(key, PATIENCE), Ok(Revoked::Published));
    }
}

#[test]
fn the_end_of_an_endpoint_is_that_of_its_keys_to_memory_in_place() {
    let [mut owner, mut writer] = endpoints();
    let region = in_place(&mut owner, 64, 0);
    let (to, key) = grant(&mut owner, &region, &mut writer);
    let _ = put(&mut writer, to, Target::new(key, 0), b"before").expect("allowed");
    let owner = Rc::new(RefCell::new(Some(owner)));
    let closer = Rc::clone(&owner);
    let seen = region.clone();
    once_at(Door::Behind, move || {
        // The writer is inside: the end waits for it as long as a revocation would.
        let owner = closer.borrow_mut().take();
        if let Some(mut owner) = owner {
            owner.wait_for_writers(Duration::ZERO);
            drop(owner);
        }
        assert_eq!(contents(&seen)[..6], *b"behind");
    });
    let cut = put(&mut writer, to, Target::new(key, 0), b"behind");
    assert_eq!(cut, Err(OperationError::InvalidKey));
    assert_eq!(put(&mut writer, to, Target::new(key, 0), b"x"), Err(OperationError::PeerDown));
    drop(owner);
}
