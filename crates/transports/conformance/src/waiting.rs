//! Cases: waiting and sleeping.

use std::time::Duration;

use weft_fabric::{Armed, Endpoint, MessageHeader, Waited};

use crate::{Bench, Rig};

/// Without events a wait ends with its timeout.
pub fn a_wait_for_nothing_times_out<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    for timeout in [Duration::ZERO, Duration::from_micros(1), Duration::from_millis(2)] {
        assert_eq!(rig.endpoint(0).wait(Some(timeout)), Waited::TimedOut);
    }
    rig.settle();
    assert_eq!(rig.seen(0), &[]);
}

/// A message sent before the wait ends it and can be polled.
pub fn a_wait_ends_with_a_message<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    for _ in 0..50 {
        rig.endpoint(0).send_short(peer, MessageHeader::default(), &[b"x"]).expect("room");
        assert_eq!(rig.endpoint(1).wait(Some(Duration::from_secs(10))), Waited::Ready);
        let mut events = 0;
        rig.endpoint(1).poll(1, &mut |_| events += 1);
        assert_eq!(events, 1, "there is an event to poll after a wait");
    }
}

/// A wait ends with a notification, too.
pub fn a_wait_ends_with_a_notification<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    rig.endpoint(0).put_notification(peer, 1, 1).expect("room");
    assert_eq!(rig.endpoint(1).wait(Some(Duration::from_secs(10))), Waited::Ready);
    assert_eq!(rig.notifications(1, 1).len(), 1);
}

/// An endpoint with events to poll cannot arm for sleep.
pub fn arming_with_events_waiting_is_refused<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    rig.endpoint(0).send_short(peer, MessageHeader::default(), &[b"x"]).expect("room");
    assert_eq!(rig.endpoint(1).wait(Some(Duration::from_secs(10))), Waited::Ready);
    assert_eq!(rig.endpoint(1).arm(), Armed::Busy);
    assert_eq!(rig.messages(1, 1).len(), 1);
    assert_ne!(rig.endpoint(1).arm(), Armed::Busy);
}

/// A program may sleep on a descriptor only if the capabilities say that there is one.
pub fn sleeping_is_offered_as_the_capabilities_say<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    let offered = rig.endpoint(0).capabilities().descriptor;
    let armed = rig.endpoint(0).arm();
    match armed {
        Armed::Sleep => assert!(offered, "nothing to sleep on"),
        Armed::PollWithin(_) => {}
        Armed::Busy => panic!("a fresh endpoint has no events"),
    }
}

/// A message that arrives after arming is there for the next poll.
pub fn what_comes_after_arming_is_not_missed<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    for number in 0..100u64 {
        assert_ne!(rig.endpoint(1).arm(), Armed::Busy);
        rig.send(0, peer, MessageHeader::default(), &[&number.to_le_bytes()]);
        assert_eq!(rig.messages(1, 1)[0].payload, number.to_le_bytes());
        rig.settle();
    }
}
