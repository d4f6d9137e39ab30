//! Changes of groups, and messages to groups, at a broker that answers late, wrongly or never.

use weft_broker::ANSWER_WITHIN;
use weft_broker::BrokerError;
use weft_fabric::{
    Blocking, Endpoint, EndpointLimits, EndpointOptions, Event, Group, GroupError, Issued,
    MessageHeader, PATIENCE, SendError, Transport, Value, Watchable,
};
use weft_wire::endpoint_control::{AskMembers, Connect, EndpointControl, Join, Reply, status};

use crate::ShmEndpoint;
use crate::test_broker::{Fate, Mood, TestBroker};

fn reply(ticket: u32, status: u16) -> Fate {
    Fate::Answered(Reply { ticket, status, first: 0, second: 0 })
}

fn one() -> Group {
    Group::new(1).expect("a group")
}

fn broadcast(from: &mut ShmEndpoint) -> Result<usize, SendError> {
    from.send_multicast(Group::BROADCAST, MessageHeader::tag(1), &[b"to all"])
}

/// How often an endpoint tells of room in the broadcast group.
fn told(endpoint: &mut ShmEndpoint) -> usize {
    let mut told = 0;
    for _ in 0..64 {
        let room = Event::GroupRoom { group: Group::BROADCAST };
        endpoint.poll(64, &mut |event| told += usize::from(event == room));
    }
    told
}

fn messages(endpoint: &mut ShmEndpoint) -> usize {
    let mut count = 0;
    for _ in 0..4 {
        endpoint.poll(1024, &mut |event| count += usize::from(matches!(event, Event::Message(_))));
    }
    count
}

#[test]
fn each_refusal_to_change_a_group_has_an_error_of_its_own() {
    let join = |status| {
        let broker = TestBroker::new();
        let mut endpoint = broker.open();
        broker.judge(move |request| match request {
            EndpointControl::Join(Join { ticket, .. }) => reply(*ticket, status),
            _ => Fate::Heard,
        });
        endpoint.join(one(), 0)
    };
    assert_eq!(join(status::DONE), Ok(Issued::Done(Value::Nothing)));
    let refusals = [status::NOT_FOUND, status::INVALID, 99].map(|status| join(status).err());
    assert_eq!(refusals[0], Some(GroupError::UnknownEndpoint));
    let reason = |of: &Option<GroupError>| match of {
        Some(GroupError::Broker { reason }) => reason.clone(),
        other => panic!("{other:?}"),
    };
    let reasons = [reason(&refusals[1]), reason(&refusals[2])];
    assert!(reasons[0].contains("open a new endpoint"), "{reasons:?}");
    assert_eq!(reasons[1], BrokerError::InvalidAnswer.to_string());
}

#[test]
fn a_message_to_a_group_waits_for_nobody_and_its_sender_is_told_once() {
    let broker = TestBroker::new();
    let (mut sender, mut others) = (broker.open(), [broker.open(), broker.open(), broker.open()]);
    broker.set(Mood::Silent);
    for _ in 0..3 {
        assert_eq!(broadcast(&mut sender), Err(SendError::WouldBlock));
    }
    assert_eq!(told(&mut sender), 0, "nobody has answered");
    broker.set(Mood::Prompt);
    assert_eq!(told(&mut sender), 1);
    assert_eq!(broadcast(&mut sender), Ok(3));
    assert!(others.iter_mut().all(|other| messages(other) == 1));
    // The broker is not needed for the members that are known.
    broker.set(Mood::Gone);
    assert_eq!(broadcast(&mut sender), Ok(3));
    assert!(others.iter_mut().all(|other| messages(other) == 1));
    assert_eq!(told(&mut sender), 0);
}

#[test]
fn who_sleeps_is_woken_when_the_members_are_known() {
    let broker = TestBroker::new();
    let (mut sender, _other) = (broker.open(), broker.open());
    broker.set(Mood::Silent);
    assert_eq!(broadcast(&mut sender), Err(SendError::WouldBlock));
    assert!(matches!(sender.arm(), weft_fabric::Armed::Sleep));
    broker.set(Mood::Prompt);
    // A call of another thing reads the broker's answers, and the program still sleeps on its
    // descriptor.
    for context in 0..8 {
        assert!(sender.join(one(), context).is_ok());
    }
    let descriptor = sender.descriptor();
    let mut polled =
        [rustix::event::PollFd::from_borrowed_fd(descriptor, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut polled, Some(&now)), Ok(1), "it is readable");
    assert_eq!(told(&mut sender), 1);
}

#[test]
fn a_look_up_ends_with_the_broker_and_the_sender_is_told_why() {
    let broker = TestBroker::new();
    let (mut sender, _other) = (broker.open(), broker.open());
    broker.set(Mood::Silent);
    assert_eq!(broadcast(&mut sender), Err(SendError::WouldBlock));
    broker.set(Mood::Gone);
    assert_eq!(told(&mut sender), 1);
    let refused = broadcast(&mut sender);
    let Err(SendError::Broker { reason }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("gone"), "{reason}");
    // While there is no broker each try fails at once, and nobody waits for room.
    assert!(matches!(broadcast(&mut sender), Err(SendError::Broker { .. })));
    assert_eq!(told(&mut sender), 0);
}

#[test]
fn a_broker_that_never_answers_ends_a_look_up_after_its_time() {
    for silent_to in ["members", "connect"] {
        let broker = TestBroker::new();
        let (mut sender, _other) = (broker.open(), broker.open());
        broker.judge(move |request| match (request, silent_to) {
            (EndpointControl::AskMembers(_), "members") => Fate::Lost,
            (EndpointControl::Connect(_), "connect") => Fate::Lost,
            _ => Fate::Heard,
        });
        assert_eq!(broadcast(&mut sender), Err(SendError::WouldBlock));
        assert_eq!(told(&mut sender), 0);
        sender.broker.age(ANSWER_WITHIN);
        assert_eq!(told(&mut sender), 1, "{silent_to}");
        let refused = broadcast(&mut sender);
        assert!(matches!(refused, Err(SendError::Broker { .. })), "{silent_to} {refused:?}");
        broker.hear();
        assert_eq!(broadcast(&mut sender), Ok(1), "{silent_to}");
    }
}

#[test]
fn a_wrong_answer_to_a_look_up_is_an_error() {
    let broker = TestBroker::new();
    let (mut sender, _other) = (broker.open(), broker.open());
    broker.judge(|request| match request {
        EndpointControl::AskMembers(AskMembers { ticket, .. }) => reply(*ticket, status::DONE),
        _ => Fate::Heard,
    });
    let refused = broadcast(&mut sender);
    let wrong = BrokerError::InvalidAnswer.to_string();
    assert_eq!(refused, Err(SendError::Broker { reason: wrong }));
    broker.hear();
    assert_eq!(broadcast(&mut sender), Ok(1));
}

#[test]
fn members_that_cannot_be_met_are_left_out() {
    let broker = TestBroker::new();
    let (mut sender, mut others) = (broker.open(), [broker.open(), broker.open(), broker.open()]);
    let absent = others[1].address().vpid.0;
    for status in [status::NOT_FOUND, status::EXHAUSTED, status::PAIRED, 99] {
        broker.judge(move |request| match request {
            EndpointControl::Connect(Connect { ticket, peer, .. }) if *peer == absent => {
                reply(*ticket, status)
            }
            _ => Fate::Heard,
        });
        assert_eq!(broadcast(&mut sender), Ok(2), "status {status}");
        let got = others.each_mut().map(messages);
        assert_eq!(got, [1, 0, 1], "status {status}");
        // Nobody said that anything had changed: the next message goes out at once.
        broker.set(Mood::Silent);
        assert_eq!(broadcast(&mut sender), Ok(2), "status {status}");
        broker.set(Mood::Prompt);
        others.iter_mut().map(messages).for_each(drop);
        // The group changes, so that its members are looked up again.
        drop(broker.open());
    }
    broker.hear();
    assert_eq!(broadcast(&mut sender), Ok(3));
}

/// The broker does not count a pair of an endpoint with itself, so it makes a pair that the member
/// then refuses.
#[test]
fn a_member_that_refuses_every_pair_keeps_no_message_from_the_others() {
    let broker = TestBroker::new();
    let (mut sender, mut other) = (broker.open(), broker.open());
    let limits = EndpointLimits { peers: Some(1), ..EndpointLimits::default() };
    let options = EndpointOptions { limits, ..EndpointOptions::default() };
    let mut full = broker.transport().open(&options).expect("room");
    full.connect_within(full.address(), PATIENCE).expect("itself");
    let mut arrived = 0;
    for round in 1..=3 {
        let mut tries = 0;
        while broadcast(&mut sender) == Err(SendError::WouldBlock) {
            tries += 1;
            assert!(tries < 16, "round {round}: the message never goes");
            full.poll(64, &mut |_| {});
            assert_eq!(told(&mut sender), 1, "round {round}");
        }
        full.poll(64, &mut |_| {});
        told(&mut sender);
        arrived += messages(&mut other);
        assert_eq!(arrived, round);
    }
}

/// A member whose mailbox is full may go in place of taking a message.
#[test]
fn the_end_of_a_full_member_is_room() {
    for ends in [true, false] {
        let broker = TestBroker::new();
        let (mut sender, mut full, mut other) = (broker.open(), broker.open(), broker.open());
        let to = sender.connect_within(full.address(), PATIENCE).expect("there");
        while sender.send_short(to, MessageHeader::default(), &[]).is_ok() {}
        assert_eq!(broadcast(&mut sender), Err(SendError::WouldBlock));
        assert_eq!(told(&mut sender), 0);
        if ends {
            drop(full);
            assert_eq!(told(&mut sender), 1);
            assert_eq!(broadcast(&mut sender), Ok(1));
        } else {
            let back = full.connect_within(sender.address(), PATIENCE).expect("there");
            full.disconnect(back).expect("alive");
            full.poll(64, &mut |_| {});
            assert_eq!(told(&mut sender), 1);
            assert_eq!(broadcast(&mut sender), Ok(2), "it is a member yet");
        }
        assert_eq!(messages(&mut other), 1);
    }
}

/// A sender whose members have changed too often waits for room, and does not try again and again.
#[test]
fn old_members_that_are_full_are_waited_for() {
    let broker = TestBroker::new();
    let (mut sender, mut full) = (broker.open(), broker.open());
    let to = sender.connect_within(full.address(), PATIENCE).expect("there");
    while sender.send_short(to, MessageHeader::default(), &[]).is_ok() {}
    for _ in 0..8 {
        assert_eq!(broadcast(&mut sender), Err(SendError::WouldBlock));
        drop(broker.open());
        told(&mut sender);
    }
    assert_eq!(broadcast(&mut sender), Err(SendError::WouldBlock));
    assert_eq!(told(&mut sender), 0, "nothing has changed");
    assert!(messages(&mut full) > 0);
    assert_eq!(told(&mut sender), 1);
    assert_eq!(broadcast(&mut sender), Ok(1));
}

#[test]
fn members_that_change_all_the_time_keep_no_message_back() {
    let broker = TestBroker::new();
    let (mut sender, mut restless) = (broker.open(), broker.open());
    broker.set(Mood::Late);
    let mut tries = 0;
    while broadcast(&mut sender) == Err(SendError::WouldBlock) {
        tries += 1;
        assert!(tries < 16, "the message never goes");
        // Each answer is followed by the news that it is out of date.
        broker.set(Mood::Prompt);
        drop(broker.open());
        assert_eq!(told(&mut sender), 1);
        drop(broker.open());
        broker.set(Mood::Late);
    }
    broker.set(Mood::Prompt);
    assert_eq!(messages(&mut restless), 1);
}
