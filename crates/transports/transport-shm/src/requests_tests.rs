//! Calls while the broker says nothing, and when it is gone.

use std::time::Duration;

use weft_broker::ANSWER_WITHIN;
use weft_fabric::{
    Access, Audience, Blocking, ConnectError, Endpoint, Event, GrantError, InviteError, Issued,
    LocalRange, MessageHeader, Operation, OperationError, PATIENCE, Peer, Region, RemoteKey,
    Revoked, Source, Target, Value,
};

use crate::ShmEndpoint;
use crate::test_broker::{Mood, TestBroker};

/// The end of a call, or a peer with room.
type Told = Result<(u64, Result<Value, OperationError>), Peer>;

/// The events of one poll.
fn poll(endpoint: &mut ShmEndpoint) -> Vec<Told> {
    let mut seen = Vec::new();
    endpoint.poll(64, &mut |event| match event {
        Event::Completion(end) => seen.push(Ok((end.context, end.result))),
        Event::Room { peer } => seen.push(Err(peer)),
        _ => {}
    });
    seen
}

fn put(endpoint: &mut ShmEndpoint, to: Peer, key: RemoteKey) -> Result<Issued, OperationError> {
    endpoint.put(to, Source::Bytes(&[7; 8]), Target::new(key, 0), Operation::new(0))
}

fn granted(endpoint: &mut ShmEndpoint, region: &crate::ShmRegion) -> RemoteKey {
    let whole = LocalRange::whole(region);
    endpoint.grant_within(whole, Audience::Partition, Access::all(), PATIENCE).expect("a grant")
}

#[test]
fn a_connect_ends_when_the_broker_speaks_again() {
    let scene = TestBroker::new();
    let (mut one, mut two) = (scene.open(), scene.open());
    scene.set(Mood::Silent);
    assert_eq!(one.connect(two.address(), 5), Ok(Issued::Pending));
    assert!(poll(&mut one).is_empty());
    assert_eq!(one.finish(5, Duration::ZERO), None, "it is given up");
    assert_eq!(one.connect(two.address(), 6), Ok(Issued::Pending));
    scene.set(Mood::Prompt);
    let ends = poll(&mut one);
    let [Ok((6, Ok(Value::Peer(peer))))] = ends.as_slice() else { panic!("{ends:?}") };
    one.send_short(*peer, MessageHeader::tag(1), &[b"hello"]).expect("room");
    let mut heard = 0;
    while heard == 0 {
        two.poll(4, &mut |event| heard += usize::from(matches!(event, Event::Message(_))));
    }
}

#[test]
fn a_grant_that_was_given_up_never_comes_into_force() {
    let scene = TestBroker::new();
    let (mut owner, mut other) = (scene.open(), scene.open());
    let region = owner.register(4096).expect("memory");
    let to = other.connect_within(owner.address(), PATIENCE).expect("there");
    scene.set(Mood::Silent);
    let (whole, all) = (LocalRange::whole(&region), Access::all());
    assert_eq!(owner.grant(whole, Audience::Partition, all, 9), Ok(Issued::Pending));
    assert_eq!(owner.finish(9, Duration::ZERO), None);
    scene.set(Mood::Prompt);
    assert!(poll(&mut owner).is_empty());
    // The slot is free again, for a key of another generation.
    let key = granted(&mut owner, &region);
    assert_eq!(put(&mut other, to, key), Ok(Issued::Done(Value::Nothing)));
    let lost = RemoteKey(key.0.wrapping_sub(1));
    assert_eq!(put(&mut other, to, lost), Err(OperationError::InvalidKey));
    assert_eq!(owner.revoke_within(lost, PATIENCE), Err(GrantError::UnknownKey));
}

#[test]
fn a_guessed_key_does_not_serve_before_it_is_in_force_nor_when_it_was_given_up() {
    let scene = TestBroker::new();
    let (mut owner, mut thief) = (scene.open(), scene.beside().open());
    let region = owner.register(4096).expect("memory");
    let to = thief.connect_within(owner.address(), PATIENCE).expect("there");
    let first = granted(&mut owner, &region);
    owner.revoke_within(first, PATIENCE).expect("it is in force");
    // The next key of the slot has the next number.
    let guess = RemoteKey(first.0 + 1);
    scene.set(Mood::Late);
    let (whole, all) = (LocalRange::whole(&region), Access::all());
    assert_eq!(owner.grant(whole, Audience::Partition, all, 9), Ok(Issued::Pending));
    assert_eq!(put(&mut thief, to, guess), Err(OperationError::InvalidKey));
    assert_eq!(owner.finish(9, Duration::ZERO), None);
    assert_eq!(put(&mut thief, to, guess), Err(OperationError::InvalidKey));
    scene.set(Mood::Prompt);
    assert!(poll(&mut owner).is_empty());
    assert_eq!(put(&mut thief, to, guess), Err(OperationError::InvalidKey));
    assert_eq!(region.load(0), Ok(0));
}

#[test]
fn an_operation_whose_key_is_looked_up_is_refused_until_there_is_room() {
    let scene = TestBroker::new();
    let (mut owner, mut other) = (scene.open(), scene.open());
    let region = owner.register(4096).expect("memory");
    let key = granted(&mut owner, &region);
    let only = owner.connect_within(other.address(), PATIENCE).expect("there");
    let whole = LocalRange::whole(&region);
    let mut third = scene.open();
    let theirs = owner.grant_within(whole, Audience::Peer(only), Access::all(), PATIENCE);
    let theirs = theirs.expect("a grant");
    for (endpoint, key, expected) in [
        (&mut other, key, Ok(Issued::Done(Value::Nothing))),
        (&mut third, theirs, Err(OperationError::InvalidKey)),
    ] {
        let to = endpoint.connect_within(owner.address(), PATIENCE).expect("there");
        scene.set(Mood::Silent);
        for _ in 0..3 {
            assert_eq!(put(endpoint, to, key), Err(OperationError::WouldBlock));
        }
        assert!(poll(endpoint).is_empty());
        scene.set(Mood::Prompt);
        assert_eq!(poll(endpoint), [Err(to)], "room is told once");
        assert_eq!(put(endpoint, to, key), expected);
    }
    assert_eq!(region.load(0), Ok(u64::from_le_bytes([7; 8])));
}

#[test]
fn a_revoked_key_is_void_before_the_broker_knows() {
    let scene = TestBroker::new();
    let (mut owner, mut other) = (scene.open(), scene.open());
    let region = owner.register(4096).expect("memory");
    let key = granted(&mut owner, &region);
    let to = other.connect_within(owner.address(), PATIENCE).expect("there");
    assert_eq!(put(&mut other, to, key), Ok(Issued::Done(Value::Nothing)));
    scene.set(Mood::Silent);
    assert_eq!(owner.revoke(key, 3), Ok(Issued::Pending));
    assert_eq!(put(&mut other, to, key), Err(OperationError::InvalidKey));
    scene.set(Mood::Prompt);
    assert_eq!(poll(&mut owner), [Ok((3, Ok(Value::Revoked(Revoked::Published))))]);
}

#[test]
fn calls_end_with_the_broker() {
    let scene = TestBroker::new();
    let (mut one, mut two) = (scene.open(), scene.open());
    let region = one.register(4096).expect("memory");
    let key = granted(&mut one, &region);
    let to = two.connect_within(one.address(), PATIENCE).expect("there");
    let third = scene.open();
    scene.set(Mood::Silent);
    assert_eq!(one.connect(third.address(), 1), Ok(Issued::Pending));
    let whole = LocalRange::whole(&region);
    assert_eq!(one.grant(whole, Audience::Partition, Access::READ, 2), Ok(Issued::Pending));
    assert_eq!(one.revoke(key, 3), Ok(Issued::Pending));
    let _ = put(&mut two, to, key);
    scene.set(Mood::Gone);
    let ends = poll(&mut one);
    assert!(
        matches!(
            ends.as_slice(),
            [
                Ok((1, Err(OperationError::Connect(ConnectError::Broker { .. })))),
                Ok((2, Err(OperationError::Grant(GrantError::Broker { .. })))),
                Ok((3, Ok(Value::Revoked(Revoked::Local)))),
            ]
        ),
        "{ends:?}"
    );
    assert!(poll(&mut one).is_empty(), "each ends once");
    let refused = one.connect(third.address(), 4);
    assert!(matches!(refused, Err(ConnectError::Broker { .. })), "{refused:?}");
    drop(third);
}

#[test]
fn requests_are_bounded_and_end_after_their_time() {
    use crate::requests::REQUESTS_MAX;
    let scene = TestBroker::new();
    let mut one = scene.open();
    scene.set(Mood::Silent);
    let within = Duration::from_secs(1);
    for context in 0..REQUESTS_MAX as u64 {
        let invited = one.invite(within, context).map(|(_, issued)| issued);
        assert_eq!(invited, Ok(Issued::Pending));
    }
    let refused = one.invite(within, 0).map(drop);
    let Err(InviteError::Broker { reason }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("poll first"), "{reason}");
    one.broker.age(ANSWER_WITHIN);
    let mut ended = 0;
    while one.poll(64, &mut |event| ended += usize::from(matches!(event, Event::Completion(_)))) > 0
    {
    }
    assert_eq!(ended, REQUESTS_MAX);
    assert!(!one.broker.waits());
    assert!(matches!(one.invite(within, 1), Ok((_, Issued::Pending))), "there is room");
}
