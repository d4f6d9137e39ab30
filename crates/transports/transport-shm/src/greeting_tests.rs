//! A broker that is restarted: it answers late, wrongly or never, or ends once more.

use weft_broker::ANSWER_WITHIN;
use weft_broker::conversation::Announcement;
use weft_fabric::{
    Access, Armed, Audience, Blocking, ConnectError, Endpoint, EndpointAddress, Event, Group,
    Issued, LocalRange, MessageHeader, NodeId, Operation, OperationError, PATIENCE, Peer, Region,
    RemoteKey, SendError, Source, Target, Value, Vpid,
};
use weft_wire::endpoint_control::{EndpointControl, Reply, status};

use super::STEP;
use crate::sys;
use crate::test_broker::{Fate, Mood, TestBroker};
use crate::{ShmEndpoint, ShmRegion};

/// Two peers, the first of which has granted a key.
struct Scene {
    broker: TestBroker,
    one: ShmEndpoint,
    two: ShmEndpoint,
    to_one: Peer,
    region: ShmRegion,
    key: RemoteKey,
}

fn scene() -> Scene {
    let broker = TestBroker::new();
    let (mut one, mut two) = (broker.open(), broker.open());
    let to_one = two.connect_within(one.address(), PATIENCE).expect("there");
    let region = one.register(4096).expect("memory");
    let whole = LocalRange::whole(&region);
    let key = one.grant_within(whole, Audience::Partition, Access::all(), PATIENCE);
    one.join(group(), 0).map(drop).expect("prompt");
    one.poll(64, &mut |_| {});
    broker.take_heard();
    Scene { broker, one, two, to_one, region, key: key.expect("a grant") }
}

fn group() -> Group {
    Group::new(5).expect("a group")
}

/// An address that nobody had before.
fn stranger() -> EndpointAddress {
    EndpointAddress::new(NodeId::LOCAL, Vpid(9))
}

/// Polls until endpoints have noticed everything: they look at the broker from time to time.
fn poll(endpoints: &mut [&mut ShmEndpoint]) -> usize {
    let mut downs = 0;
    for _ in 0..2 {
        for endpoint in endpoints.iter_mut() {
            endpoint.handle_broker_messages();
            endpoint.poll(64, &mut |event| {
                downs += usize::from(matches!(event, Event::PeerDown { .. }));
            });
        }
    }
    downs
}

impl Scene {
    /// All that was there before a restart is there again.
    fn check(self) {
        let Self { broker, mut one, mut two, to_one, region, key } = self;
        assert_eq!(poll(&mut [&mut one, &mut two]), 0);
        assert_eq!(one.broker.announcement(), Announcement::Known);
        two.send_short(to_one, MessageHeader::tag(1), &[b"old friend"]).expect("room");
        let mut third = broker.open();
        let to = third.connect_within(one.address(), PATIENCE).expect("the broker knows it");
        let put = |of: &mut ShmEndpoint, to| {
            of.put(to, Source::Bytes(&[7; 8]), Target::new(key, 0), Operation::new(0))
        };
        assert_eq!(put(&mut third, to), Ok(Issued::Done(Value::Nothing)), "the key is published");
        assert_eq!(region.load(0), Ok(u64::from_le_bytes([7; 8])));
        assert_eq!(put(&mut two, to_one), Ok(Issued::Done(Value::Nothing)), "the pair is a pair");
        let sent = third.send_multicast(group(), MessageHeader::tag(2), &[b"to members"]);
        assert_eq!(sent, Ok(1), "it is in its group");
        drop(third);
        // The broker knows the pair: it tells of its end.
        drop(two);
        assert_eq!(poll(&mut [&mut one]), 2, "the third and the second are gone");
    }
}

#[test]
fn a_restarted_broker_learns_everything() {
    let scene = scene();
    scene.broker.restart();
    scene.check();
}

#[test]
fn a_restarted_broker_may_answer_late() {
    let mut scene = scene();
    scene.broker.restart();
    scene.broker.set(Mood::Late);
    let Scene { one, two, to_one, key, .. } = &mut scene;
    poll(&mut [one, two]);
    assert!(matches!(one.broker.announcement(), Announcement::Said { .. }));
    // Nothing of what is there needs the broker, and calls that do are pending.
    two.send_short(*to_one, MessageHeader::tag(1), &[b"meanwhile"]).expect("room");
    let resolved = Endpoint::resolve(two, *to_one, *key, 7);
    assert_eq!(resolved, Ok(Issued::Pending));
    scene.broker.set(Mood::Prompt);
    scene.check();
}

/// Puts by the second endpoint, which has not used the key yet.
fn put(scene: &mut Scene) -> Result<Issued, OperationError> {
    let (to, target) = (scene.to_one, Target::new(scene.key, 0));
    scene.two.put(to, Source::Bytes(&[9; 8]), target, Operation::new(0))
}

/// Polls the second endpoint, at most for as long as a request may wait, until there is room.
fn await_room(scene: &mut Scene) {
    let until = sys::now() + ANSWER_WITHIN;
    let mut has_room = false;
    while !has_room {
        assert!(sys::now() < until, "no room came");
        let sleeps = matches!(scene.two.arm(), Armed::Sleep);
        assert!(!sleeps || !scene.two.asks_again(), "nobody would wake it");
        scene.two.poll(64, &mut |event| has_room |= matches!(event, Event::Room { .. }));
    }
}

#[test]
fn a_key_is_found_when_its_owner_has_told_a_restarted_broker() {
    let mut scene = scene();
    scene.broker.restart();
    assert_eq!(put(&mut scene), Err(OperationError::WouldBlock), "the owner said nothing yet");
    for _ in 0..100 {
        scene.two.handle_broker_messages();
        scene.two.poll(64, &mut |event| panic!("{event:?}"));
    }
    let asks = |heard: &[EndpointControl]| {
        heard.iter().filter(|of| matches!(of, EndpointControl::Resolve(_))).count()
    };
    assert!(asks(&scene.broker.take_heard()) < 50, "it asks now and then");
    poll(&mut [&mut scene.one]);
    await_room(&mut scene);
    assert_eq!(put(&mut scene), Ok(Issued::Done(Value::Nothing)));
    scene.check();
}

#[test]
fn a_key_is_found_when_a_broker_is_there_again() {
    for is_asked_before in [false, true] {
        let mut scene = scene();
        if is_asked_before {
            scene.broker.set(Mood::Silent);
            assert_eq!(put(&mut scene), Err(OperationError::WouldBlock));
        }
        scene.broker.set(Mood::Gone);
        assert_eq!(put(&mut scene), Err(OperationError::WouldBlock), "no broker is there");
        scene.two.poll(64, &mut |event| panic!("{event:?}"));
        scene.broker.restart();
        scene.broker.set(Mood::Prompt);
        poll(&mut [&mut scene.one]);
        await_room(&mut scene);
        assert_eq!(put(&mut scene), Ok(Issued::Done(Value::Nothing)));
        scene.check();
    }
}

#[test]
fn a_key_that_no_broker_comes_to_know_ends_its_operation() {
    let mut scene = scene();
    scene.broker.set(Mood::Gone);
    let (two, to_one, key) = (&mut scene.two, scene.to_one, scene.key);
    assert_eq!(Endpoint::resolve(two, to_one, key, 7), Ok(Issued::Pending));
    scene.two.handle_broker_messages();
    scene.two.broker.age(ANSWER_WITHIN);
    let ended = scene.two.finish(7, PATIENCE);
    assert!(matches!(ended, Some(Err(OperationError::Broker { .. }))), "{ended:?}");
}

#[test]
fn a_key_of_somebody_else_is_not_waited_for() {
    let mut scene = scene();
    let mut third = scene.broker.open();
    let to_third = scene.one.connect_within(third.address(), PATIENCE).expect("there");
    let whole = LocalRange::whole(&scene.region);
    let of_third = scene.one.grant_within(whole, Audience::Peer(to_third), Access::all(), PATIENCE);
    scene.key = of_third.expect("a grant");
    assert_eq!(put(&mut scene), Err(OperationError::InvalidKey), "no broker was restarted");
    third.poll(64, &mut |_| {});
}

#[test]
fn a_broker_that_never_answers_is_not_asked_twice() {
    let mut scene = scene();
    scene.broker.restart();
    scene.broker.judge(|request| match request {
        EndpointControl::Open(_) => Fate::Lost,
        _ => Fate::Heard,
    });
    poll(&mut [&mut scene.one, &mut scene.two]);
    let said = |of: &ShmEndpoint| match of.broker.announcement() {
        Announcement::Said { ticket, .. } => ticket,
        other => panic!("{other:?}"),
    };
    let first = said(&scene.one);
    let heard = scene.broker.take_heard();
    assert!(matches!(heard.as_slice(), [EndpointControl::Join(_)]), "{heard:?}");
    scene.one.broker.age(ANSWER_WITHIN);
    let is_looked_for = scene.one.broker.is_announcing(sys::now);
    assert!(!is_looked_for, "polls do not look for the answer any more");
    poll(&mut [&mut scene.one]);
    assert_eq!(said(&scene.one), first, "it was asked once");
    // A call ends, because the broker knows nothing of this endpoint.
    let refused = scene.one.connect_within(stranger(), PATIENCE);
    assert!(matches!(refused, Err(ConnectError::Broker { .. })), "{refused:?}");
    // The next broker is another matter.
    scene.broker.hear();
    scene.broker.restart();
    scene.check();
}

#[test]
fn an_answer_after_its_time_is_taken() {
    let mut scene = scene();
    scene.broker.restart();
    scene.broker.set(Mood::Late);
    poll(&mut [&mut scene.one, &mut scene.two]);
    for endpoint in [&mut scene.one, &mut scene.two] {
        assert!(matches!(endpoint.broker.announcement(), Announcement::Said { .. }), "it waits");
        endpoint.broker.age(ANSWER_WITHIN);
    }
    scene.broker.set(Mood::Prompt);
    scene.check();
}

#[test]
fn a_refusal_to_open_again_ends_every_pair() {
    for refusal in [status::IN_USE, status::FORBIDDEN, 99] {
        let mut scene = scene();
        scene.broker.restart();
        let own = scene.one.address().vpid.0;
        scene.broker.judge(move |request| match request {
            EndpointControl::Open(open) if open.vpid == own => {
                let (ticket, status) = (open.ticket, refusal);
                Fate::Answered(Reply { ticket, status, first: 0, second: 0 })
            }
            _ => Fate::Heard,
        });
        assert_eq!(poll(&mut [&mut scene.one]), 1, "status {refusal}");
        assert_eq!(scene.one.broker.announcement(), Announcement::Replaced);
    }
}

#[test]
fn an_answer_with_another_address_ends_every_pair() {
    let mut scene = scene();
    scene.broker.restart();
    scene.broker.judge(|request| match request {
        EndpointControl::Open(open) => {
            let (ticket, first) = (open.ticket, u64::from(open.vpid) + 1);
            Fate::Answered(Reply { ticket, status: status::DONE, first, second: 0 })
        }
        _ => Fate::Heard,
    });
    assert_eq!(poll(&mut [&mut scene.one]), 1);
}

#[test]
fn an_answer_to_nobody_does_not_end_the_announcement() {
    let mut scene = scene();
    scene.broker.restart();
    scene.broker.judge(|request| match request {
        EndpointControl::Open(open) => {
            let (ticket, status) = (open.ticket.wrapping_add(1000), status::DONE);
            Fate::Answered(Reply { ticket, status, first: 0, second: 0 })
        }
        _ => Fate::Heard,
    });
    poll(&mut [&mut scene.one, &mut scene.two]);
    assert!(matches!(scene.one.broker.announcement(), Announcement::Said { .. }));
    scene.broker.hear();
    scene.broker.restart();
    scene.check();
}

#[test]
fn a_broker_may_be_restarted_at_each_step_of_an_announcement() {
    // It ends behind its connection, behind each request, and behind its answers.
    for step in 0..6 {
        let mut scene = scene();
        scene.broker.restart();
        match step {
            0 => scene.broker.set(Mood::Greeting),
            1 => scene.broker.judge(|_| Fate::Refused),
            2 => scene.broker.set(Mood::Silent),
            3 => scene.broker.set(Mood::Late),
            4 => scene.broker.judge(|request| match request {
                EndpointControl::Remember(_) => Fate::Lost,
                _ => Fate::Heard,
            }),
            _ => scene.broker.judge(|request| match request {
                EndpointControl::Publish(_) => Fate::Lost,
                _ => Fate::Heard,
            }),
        }
        assert_eq!(poll(&mut [&mut scene.one, &mut scene.two]), 0, "step {step}");
        match (step, scene.one.broker.announcement()) {
            (0, Announcement::Expected) | (1, Announcement::Due(_)) => {}
            (2 | 3, Announcement::Said { .. }) | (4 | 5, Announcement::Known) => {}
            (_, other) => panic!("step {step}: {other:?}"),
        }
        scene.broker.hear();
        scene.broker.set(Mood::Gone);
        assert_eq!(poll(&mut [&mut scene.one, &mut scene.two]), 0, "step {step}");
        assert_eq!(scene.one.broker.announcement(), Announcement::Known, "step {step}");
        scene.broker.restart();
        scene.broker.set(Mood::Prompt);
        scene.check();
    }
}

#[test]
fn an_announcement_takes_small_steps() {
    let broker = TestBroker::new();
    let mut one = broker.open();
    let others: Vec<_> = (0..3 * STEP).map(|_| broker.open()).collect();
    for other in &others {
        one.connect_within(other.address(), PATIENCE).expect("there");
    }
    let region = one.register(4096).expect("memory");
    let keys = 2 * STEP + 1;
    for _ in 0..keys {
        let whole = LocalRange::whole(&region);
        one.grant_within(whole, Audience::Partition, Access::READ, PATIENCE).expect("a grant");
    }
    broker.restart();
    broker.take_heard();
    let (mut remembered, mut published, mut looks) = (0, 0, 0);
    while remembered < others.len() || published < keys {
        // To arm is to look, too. The program must not sleep before the broker knows the pairs.
        if looks == 1 {
            let armed = one.arm();
            assert!(matches!(armed, Armed::PollWithin(_)), "{armed:?}");
        } else {
            one.handle_broker_messages();
        }
        let heard = broker.take_heard();
        let count = |is: fn(&EndpointControl) -> bool| heard.iter().filter(|of| is(of)).count();
        let pairs = count(|of| matches!(of, EndpointControl::Remember(_)));
        let publications = count(|of| matches!(of, EndpointControl::Publish(_)));
        assert!(pairs <= STEP && publications <= STEP, "{pairs} and {publications} in one look");
        (remembered, published) = (remembered + pairs, published + publications);
        looks += 1;
        assert!(looks < 100, "{remembered} and {published} after {looks} looks");
    }
    assert_eq!((remembered, published), (others.len(), keys), "each once");
}

#[test]
fn calls_fail_at_once_while_a_new_broker_says_nothing() {
    let mut scene = scene();
    scene.broker.restart();
    scene.broker.set(Mood::Greeting);
    let Scene { one, region, .. } = &mut scene;
    let refused = one.connect(stranger(), 1);
    assert!(matches!(refused, Err(ConnectError::Broker { .. })), "{refused:?}");
    let whole = LocalRange::whole(region);
    assert!(one.grant(whole, Audience::Partition, Access::READ, 2).is_err());
    let sent = one.send_multicast(Group::BROADCAST, MessageHeader::tag(1), &[b"x"]);
    assert!(matches!(sent, Err(SendError::Broker { .. })), "{sent:?}");
    assert_eq!(one.broker.announcement(), Announcement::Expected);
    assert!(!one.broker.waits() && !one.requests.has_ended(), "nothing is pending");
}
