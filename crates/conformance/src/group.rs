//! Cases: multicast groups and broadcast.

use weft_fabric::{Endpoint, Group, GroupError, MessageHeader, SendError};

use crate::{Bench, Rig, Seen, pattern};

/// A broadcast reaches every other endpoint, without joining.
pub fn a_broadcast_reaches_everybody_else_once<B: Bench>() {
    let mut rig = Rig::<B>::new(5);
    let payload = pattern(4, 120);
    let header = MessageHeader { tag: 7, kind: 2 };
    let reached = rig.endpoint(0).send_multicast(Group::BROADCAST, header, &[&payload]);
    assert_eq!(reached, Ok(4));
    rig.settle();
    let source = rig.address(0);
    for number in 1..5 {
        let messages = rig.take_messages(number);
        assert_eq!(messages.len(), 1);
        assert_eq!((messages[0].source, messages[0].header), (source, header));
        assert_eq!(messages[0].group, Some(Group::BROADCAST));
        assert_eq!(messages[0].payload, payload);
    }
    assert_eq!(rig.take_messages(0), &[]);
}

/// Only members get a message to a group. The sender need not be a member.
pub fn only_members_get_what_is_sent_to_a_group<B: Bench>() {
    let mut rig = Rig::<B>::new(4);
    let (group, other) = (numbered(0), numbered(62));
    rig.join(1, group).expect("the group exists");
    rig.join(2, group).expect("the group exists");
    rig.join(3, other).expect("the group exists");
    let header = MessageHeader::tag(1);
    assert_eq!(rig.endpoint(0).send_multicast(group, header, &[b"from outside"]), Ok(2));
    assert_eq!(rig.endpoint(1).send_multicast(group, header, &[b"from inside"]), Ok(1));
    rig.settle();
    let texts = |rig: &mut Rig<B>, number| -> Vec<Vec<u8>> {
        let mut texts: Vec<_> =
            rig.take_messages(number).into_iter().map(|mail| mail.payload).collect();
        texts.sort_unstable();
        texts
    };
    assert_eq!(texts(&mut rig, 1), [b"from outside".to_vec()]);
    assert_eq!(texts(&mut rig, 2), [b"from inside".to_vec(), b"from outside".to_vec()]);
    assert!(texts(&mut rig, 0).is_empty() && texts(&mut rig, 3).is_empty());
}

/// A former member gets no messages. Joining and leaving twice has no further effect.
pub fn a_former_member_of_a_group_gets_no_messages<B: Bench>() {
    let mut rig = Rig::<B>::new(3);
    let group = numbered(5);
    for number in [1, 1, 2] {
        assert_eq!(rig.join(number, group), Ok(()));
    }
    let header = MessageHeader::default();
    assert_eq!(rig.endpoint(0).send_multicast(group, header, &[b"1"]), Ok(2));
    rig.settle();
    assert_eq!(rig.take_messages(1).len(), 1, "joined twice, one message");
    assert_eq!(rig.leave(1, group), Ok(()));
    assert_eq!(rig.leave(1, group), Ok(()));
    assert_eq!(rig.endpoint(0).send_multicast(group, header, &[b"2"]), Ok(1));
    rig.settle();
    assert_eq!(rig.take_messages(1), &[]);
    assert_eq!(rig.take_messages(2).len(), 2);
}

/// A message to a group without members is accepted and reaches no endpoint.
pub fn a_group_without_members_reaches_nobody<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let header = MessageHeader::default();
    assert_eq!(rig.endpoint(0).send_multicast(numbered(9), header, &[b"x"]), Ok(0));
    rig.settle();
    assert_eq!(rig.seen(1), &[]);
}

/// No endpoint can join or leave the broadcast group.
pub fn the_broadcast_group_cannot_be_joined_or_left<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    assert_eq!(rig.join(0, Group::BROADCAST), Err(GroupError::Broadcast));
    assert_eq!(rig.leave(0, Group::BROADCAST), Err(GroupError::Broadcast));
}

/// Length and type are checked as for a unicast message.
pub fn a_multicast_is_checked_like_a_message<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let maximum = rig.endpoint(0).capabilities().message_bytes_max;
    let bytes = pattern(6, maximum + 1);
    let sent =
        rig.endpoint(0).send_multicast(Group::BROADCAST, MessageHeader::default(), &[&bytes]);
    assert_eq!(sent, Err(SendError::TooLong { length: maximum + 1, maximum }));
    let header = MessageHeader { tag: 0, kind: 4 };
    let sent = rig.endpoint(0).send_multicast(Group::BROADCAST, header, &[b"x"]);
    assert_eq!(sent, Err(SendError::InvalidKind { kind: 4 }));
    rig.settle();
    assert_eq!(rig.seen(1), &[]);
}

/// If one member has no room, no member gets the message.
pub fn a_multicast_reaches_all_or_none<B: Bench>() {
    let mut rig = Rig::<B>::new(4);
    let peer = rig.connect(0, 1);
    let header = MessageHeader::default();
    let full = (0..100_000).any(|_| {
        rig.endpoint(0).send_short(peer, header, &[b"filler"]) == Err(SendError::WouldBlock)
    });
    assert!(full, "the mailbox never gets full");
    let sent = rig.endpoint(0).send_multicast(Group::BROADCAST, header, &[b"to all"]);
    assert_eq!(sent, Err(SendError::WouldBlock));
    rig.until("room for all", |rig| rig.seen(0).iter().any(|seen| matches!(seen, Seen::Room(_))));
    rig.settle();
    for number in 2..4 {
        assert_eq!(rig.take_messages(number), &[], "no member got the refused message");
    }
    rig.take_messages(1);
    assert_eq!(rig.endpoint(0).send_multicast(Group::BROADCAST, header, &[b"to all"]), Ok(3));
    rig.settle();
    for number in 1..4 {
        assert_eq!(rig.take_messages(number).len(), 1);
    }
}

/// Multicast and unicast messages arrive in the order of the calls.
pub fn multicasts_and_messages_keep_their_order<B: Bench>() {
    let mut rig = Rig::<B>::new(3);
    let peer = rig.connect(0, 1);
    for number in 0..200u64 {
        let bytes = number.to_le_bytes();
        let header = MessageHeader::default();
        rig.send(0, peer, header, &[&bytes]);
        rig.until("room for all", |rig| {
            rig.endpoint(0).send_multicast(Group::BROADCAST, header, &[&bytes]) == Ok(2)
        });
    }
    rig.settle();
    let messages = rig.take_messages(1);
    assert_eq!(messages.len(), 400);
    for (number, both) in (0u64..).zip(messages.chunks(2)) {
        assert!(both.iter().all(|mail| mail.payload == number.to_le_bytes()));
        assert_eq!((both[0].group, both[1].group), (None, Some(Group::BROADCAST)));
    }
}

fn numbered(number: u8) -> Group {
    Group::new(number).expect("below 64")
}
