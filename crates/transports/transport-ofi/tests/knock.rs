//! A knock is a report for the peer and no event, and its room comes back however many there are.

mod common;

use weft_fabric::{Endpoint, Event, MessageHeader};
use weft_transport_ofi::seeded::{SeededNet, Settings};

#[test]
fn a_knock_is_a_report_and_no_event() {
    let net = SeededNet::new(Settings::default());
    let ([mut one, mut two], peer) = common::pair(&net);
    let mut heard = Vec::new();
    let mut turns = |count: usize, one: &mut dyn FnMut(), two: &mut dyn FnMut(&mut Vec<u8>)| {
        for _ in 0..count {
            net.step();
            one();
            two(&mut heard);
        }
        heard.len()
    };
    let mut poll_two = |heard: &mut Vec<u8>| {
        two.poll(64, &mut |event| match event {
            Event::Message(message) => heard.push(message.header.tag),
            other => panic!("{other:?}"),
        });
    };
    // The greetings.
    turns(100, &mut || _ = one.poll(64, &mut |_| {}), &mut poll_two);
    for knocks in 0..1000 {
        one.knock(peer);
        let mut poll = || _ = one.poll(64, &mut |event| panic!("{event:?}"));
        assert_eq!(turns(20, &mut poll, &mut poll_two), 0, "knock {knocks} made a message");
    }
    // Many more than there is room for: those without room are left out.
    (0..10_000).for_each(|_| one.knock(peer));
    one.send_short(peer, MessageHeader::tag(7), &[&[1]]).expect("room for a message");
    let heard = turns(2000, &mut || _ = one.poll(64, &mut |_| {}), &mut poll_two);
    assert_eq!(heard, 1, "the message behind the knocks came");
    // Those that come while the room is on its way back are left out, too.
    assert!(two.reports() >= 500, "a knock is a report: {}", two.reports());
}
