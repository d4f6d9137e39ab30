//! Cases: multicast groups and broadcast.

use weft_fabric::{Endpoint, Group, GroupError, MessageHeader, SendError};

use crate::{Bench, Rig, Seen, pattern};

/// A broadcast reaches every other endpoint, without joining.
pub fn a_broadcast_reaches_everybody_else_once<B: Bench>() {
    let mut rig = Rig::<B>::new(5);
    let payload = pattern(4, 120);
    let header = MessageHeader { tag: 7, kind: 2 };
    let reached = rig.multicast(0, Group::BROADCAST, header, &[&payload]);
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
    assert_eq!(rig.multicast(0, group, header, &[b"from outside"]), Ok(2));
    assert_eq!(rig.multicast(1, group, header, &[b"from inside"]), Ok(1));
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
    assert_eq!(rig.multicast(0, group, header, &[b"1"]), Ok(2));
    rig.settle();
    assert_eq!(rig.take_messages(1).len(), 1, "joined twice, one message");
    assert_eq!(rig.leave(1, group), Ok(()));
    assert_eq!(rig.leave(1, group), Ok(()));
    assert_eq!(rig.multicast(0, group, header, &[b"2"]), Ok(1));
    rig.settle();
    assert_eq!(rig.take_messages(1), &[]);
    assert_eq!(rig.take_messages(2).len(), 2);
}

/// A message to a group without members is accepted and reaches no endpoint.
pub fn a_group_without_members_reaches_nobody<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let header = MessageHeader::default();
    assert_eq!(rig.multicast(0, numbered(9), header, &[b"x"]), Ok(0));
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
    let sent = rig.multicast(0, Group::BROADCAST, MessageHeader::default(), &[&bytes]);
    assert_eq!(sent, Err(SendError::TooLong { length: maximum + 1, maximum }));
    let header = MessageHeader { tag: 0, kind: 4 };
    let sent = rig.multicast(0, Group::BROADCAST, header, &[b"x"]);
    assert_eq!(sent, Err(SendError::InvalidKind { kind: 4 }));
    rig.settle();
    assert_eq!(rig.seen(1), &[]);
}

/// Has endpoint 0 fill the mailbox of endpoint 1, and a broadcast of it refused. The members are
/// known.
fn refuse_a_broadcast<B: Bench>(rig: &mut Rig<B>) {
    let header = MessageHeader::default();
    assert_eq!(rig.multicast(0, Group::BROADCAST, header, &[b"first"]), Ok(3));
    rig.settle();
    for number in 1..4 {
        assert_eq!(rig.take_messages(number).len(), 1);
    }
    let peer = rig.connect(0, 1);
    let full = (0..100_000).any(|_| {
        rig.endpoint(0).send_short(peer, header, &[b"filler"]) == Err(SendError::WouldBlock)
    });
    assert!(full, "the mailbox never gets full");
    let sent = rig.endpoint(0).send_multicast(Group::BROADCAST, header, &[b"to all"]);
    assert_eq!(sent, Err(SendError::WouldBlock));
}

/// If one member has no room, no member gets the message. The sender is told when all have room.
pub fn a_multicast_reaches_all_or_none<B: Bench>() {
    let mut rig = Rig::<B>::new(4);
    refuse_a_broadcast(&mut rig);
    let told = Seen::GroupRoom(Group::BROADCAST);
    rig.until("room for all", |rig| rig.seen(0).contains(&told));
    rig.settle();
    assert_eq!(rig.seen(0).iter().filter(|seen| **seen == told).count(), 1, "it is told once");
    for number in 2..4 {
        assert_eq!(rig.take_messages(number), &[], "no member got the refused message");
    }
    rig.take_messages(1);
    let sent =
        rig.endpoint(0).send_multicast(Group::BROADCAST, MessageHeader::default(), &[b"to all"]);
    assert_eq!(sent, Ok(3));
    rig.settle();
    for number in 1..4 {
        assert_eq!(rig.take_messages(number).len(), 1);
    }
}

/// A sender that waits for room in a group is told when the member without room is dead.
pub fn the_end_of_a_full_member_is_room_in_its_group<B: Bench>() {
    let mut rig = Rig::<B>::new(4);
    refuse_a_broadcast(&mut rig);
    rig.kill(1);
    let told = Seen::GroupRoom(Group::BROADCAST);
    rig.until("room for all", |rig| rig.seen(0).contains(&told));
    let header = MessageHeader::default();
    assert_eq!(rig.multicast(0, Group::BROADCAST, header, &[b"on we go"]), Ok(2));
    rig.settle();
    for number in 2..4 {
        assert_eq!(rig.take_messages(number).len(), 1, "the refused message went to nobody");
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
        assert_eq!(rig.multicast(0, Group::BROADCAST, header, &[&bytes]), Ok(2));
    }
    rig.settle();
    let messages = rig.take_messages(1);
    assert_eq!(messages.len(), 400);
    for (number, both) in (0u64..).zip(messages.chunks(2)) {
        assert!(both.iter().all(|mail| mail.payload == number.to_le_bytes()));
        assert_eq!((both[0].group, both[1].group), (None, Some(Group::BROADCAST)));
    }
}

/// Each member gets what every other one sends, once, wherever they are: two of the three are on
/// one node where the bench has several. One that has left gets nothing more.
pub fn all_members_hear_each_other_once<B: Bench>() {
    let mut rig = Rig::<B>::new(3);
    let group = numbered(11);
    for number in 0..3 {
        rig.join(number, group).expect("the group exists");
    }
    let mut members = vec![0, 1, 2];
    for round in 0..3u8 {
        for from in members.clone() {
            let bytes = [round, u8::try_from(from).expect("small")];
            let sent = rig.multicast(from, group, MessageHeader::tag(round), &[&bytes]);
            assert_eq!(sent, Ok(members.len() - 1), "from {from} in round {round}");
        }
        rig.settle();
        for to in 0..3 {
            let mut heard: Vec<_> =
                rig.take_messages(to).into_iter().map(|mail| (mail.group, mail.payload)).collect();
            heard.sort_unstable_by(|one, other| one.1.cmp(&other.1));
            let others = members.iter().filter(|from| **from != to && members.contains(&to));
            let expected: Vec<_> = others
                .map(|from| (Some(group), vec![round, u8::try_from(*from).expect("small")]))
                .collect();
            assert_eq!(heard, expected, "at {to} in round {round}");
        }
        if round == 1 {
            rig.leave(2, group).expect("it is a member");
            members.retain(|member| *member != 2);
        }
    }
}

fn numbered(number: u8) -> Group {
    Group::new(number).expect("below 64")
}
