//! Cases: messages, their order, and full mailboxes.

use weft_fabric::{Endpoint, MessageHeader, Peer, SendError};

use crate::{Bench, Mail, Rig, Seen, pattern};

/// Messages of 0 to 120 bytes arrive, each with its own tag.
pub fn every_size_arrives_unchanged<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    for size in 0..=120u8 {
        let payload = pattern(u64::from(size), usize::from(size));
        rig.send(0, peer, MessageHeader::tag(size), &[&payload]);
        let mail = rig.messages(1, 1);
        assert_eq!(mail.len(), 1);
        assert_eq!(mail[0].payload, payload);
        assert_eq!(mail[0].header, MessageHeader::tag(size));
        assert_eq!(mail[0].source, rig.address(0));
        assert_eq!(mail[0].group, None);
    }
}

/// A message one byte longer than the maximum is refused, in one part or in several.
pub fn a_message_that_is_too_long_is_refused<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let for_all = rig.endpoint(0).capabilities().message_bytes_max;
    let maximum = rig.endpoint(0).message_bytes_to(peer);
    assert!(for_all >= 120, "a transport offers at least Extoll's 120 bytes");
    assert!(maximum >= for_all, "no peer takes less than all do");
    let bytes = pattern(1, maximum + 1);
    let refused = SendError::TooLong { length: maximum + 1, maximum };
    let header = MessageHeader::default();
    let sent = rig.endpoint(0).send_short(peer, header, &[&bytes]);
    assert_eq!(sent, Err(refused.clone()));
    let sent = rig.endpoint(0).send_short(peer, header, &[&bytes[..1], &bytes[1..]]);
    assert_eq!(sent, Err(refused));
    rig.settle();
    assert_eq!(rig.seen(1), &[]);
    rig.send(0, peer, header, &[&bytes[1..]]);
    assert_eq!(rig.messages(1, 1)[0].payload, &bytes[1..]);
}

/// The parts of a message are concatenated, including empty ones, for every division of 24 bytes
/// into three.
pub fn parts_are_gathered_in_order<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let bytes = pattern(2, 24);
    for first in 0..=24 {
        for second in first..=24 {
            let parts = [&bytes[..first], &bytes[first..second], &bytes[second..]];
            rig.send(0, peer, MessageHeader::default(), &parts);
            assert_eq!(rig.messages(1, 1)[0].payload, bytes);
        }
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    rig.send(0, peer, MessageHeader::default(), &single);
    assert_eq!(rig.messages(1, 1)[0].payload, bytes);
    rig.send(0, peer, MessageHeader::default(), &[]);
    assert_eq!(rig.messages(1, 1)[0].payload, b"");
}

/// Every tag and every type arrives.
pub fn tags_and_kinds_arrive_as_sent<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    for tag in 0..=255 {
        for kind in 0..MessageHeader::KINDS {
            let header = MessageHeader { tag, kind };
            rig.send(0, peer, header, &[&[tag, kind]]);
            let mail = rig.messages(1, 1);
            assert_eq!((mail[0].header, mail[0].payload.as_slice()), (header, &[tag, kind][..]));
        }
    }
}

/// A message type has two bits.
pub fn a_fifth_kind_is_refused<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    for kind in [4, 5, 128, 255] {
        let header = MessageHeader { tag: 0, kind };
        let sent = rig.endpoint(0).send_short(peer, header, &[b"x"]);
        assert_eq!(sent, Err(SendError::InvalidKind { kind }));
    }
    rig.settle();
    assert_eq!(rig.seen(1), &[]);
}

/// The parts of a message may be overwritten when the call returns.
pub fn parts_are_free_when_the_call_returns<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let mut bytes = pattern(3, 64);
    let sent = bytes.clone();
    rig.send(0, peer, MessageHeader::default(), &[&bytes]);
    bytes.fill(0xee);
    assert_eq!(rig.messages(1, 1)[0].payload, sent);
}

/// 10,000 messages arrive in order, once each, although the mailbox holds fewer.
pub fn ten_thousand_messages_arrive_in_order<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    for number in 0..10_000u64 {
        let length = usize::try_from(number % 113).expect("small");
        let filler = pattern(number, length);
        rig.send(0, peer, MessageHeader::default(), &[&number.to_le_bytes(), &filler]);
    }
    rig.settle();
    let messages = rig.take_messages(1);
    assert_eq!(messages.len(), 10_000);
    for (number, mail) in (0u64..).zip(messages) {
        let length = usize::try_from(number % 113).expect("small");
        assert_eq!(mail.payload[..8], number.to_le_bytes());
        assert_eq!(mail.payload[8..], pattern(number, length));
    }
}

/// Messages in both directions do not disturb each other.
pub fn both_directions_work_at_once<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let (there, back) = (rig.connect(0, 1), rig.connect(1, 0));
    for number in 0..1_000u64 {
        rig.send(0, there, MessageHeader::tag(1), &[&number.to_le_bytes()]);
        rig.send(1, back, MessageHeader::tag(2), &[&number.to_le_bytes()]);
    }
    rig.settle();
    for (number, tag) in [(1, 1), (0, 2)] {
        let messages = rig.take_messages(number);
        assert_eq!(messages.len(), 1_000);
        assert!(messages.iter().all(|mail| mail.header.tag == tag));
        assert_in_order(&messages);
    }
}

/// A full mailbox refuses a message and reports when there is room. No message is lost.
pub fn a_full_mailbox_refuses_and_then_has_room<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let depth = rig.endpoint(0).capabilities().mailbox_depth;
    let accepted = fill(&mut rig, peer);
    assert!(accepted >= depth && accepted <= depth.saturating_mul(2), "{accepted} were accepted");
    assert!(!has_reported_room(&mut rig, peer), "there is no room yet");
    rig.until("room in the mailbox", |rig| has_reported_room(rig, peer));
    let number = u64::try_from(accepted).expect("a count");
    let sent = rig.endpoint(0).send_short(peer, MessageHeader::default(), &[&number.to_le_bytes()]);
    assert_eq!(sent, Ok(()));
    rig.settle();
    let messages = rig.take_messages(1);
    assert_eq!(messages.len(), accepted + 1);
    assert_in_order(&messages);
}

/// Room is reported once after a refusal.
pub fn room_is_reported_only_after_a_refusal<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    for number in 0..100u64 {
        rig.send(0, peer, MessageHeader::default(), &[&number.to_le_bytes()]);
        rig.messages(1, 1);
    }
    rig.settle();
    assert_eq!(rig.take(0), &[], "no message was refused");
    fill(&mut rig, peer);
    rig.settle();
    let reported = rig.take(0);
    assert_eq!(reported, &[Seen::Room(peer)]);
}

/// A full mailbox does not affect messages between other pairs of endpoints.
pub fn a_full_mailbox_blocks_only_its_own_sender<B: Bench>() {
    let mut rig = Rig::<B>::new(3);
    let full = rig.connect(0, 1);
    fill(&mut rig, full);
    let (other, third) = (rig.connect(0, 2), rig.connect(2, 1));
    let header = MessageHeader::tag(9);
    assert_eq!(rig.endpoint(0).send_short(other, header, &[b"to another"]), Ok(()));
    assert_eq!(rig.endpoint(2).send_short(third, header, &[b"from another"]), Ok(()));
    assert_eq!(rig.messages(2, 1)[0].payload, b"to another");
    rig.settle();
    let from_another = |mail: &Mail| mail.payload == b"from another";
    assert!(rig.take_messages(1).iter().any(from_another));
}

/// With six senders and one receiver, each sender's messages arrive in order, once each.
pub fn many_senders_lose_and_double_nothing<B: Bench>() {
    const SENDERS: usize = 6;
    let mut rig = Rig::<B>::new(SENDERS + 1);
    let peers: Vec<Peer> = (1..=SENDERS).map(|sender| rig.connect(sender, 0)).collect();
    for number in 0..600u64 {
        for (sender, peer) in (1..=SENDERS).zip(&peers) {
            rig.send(sender, *peer, MessageHeader::default(), &[&number.to_le_bytes()]);
        }
    }
    rig.settle();
    let messages = rig.take_messages(0);
    assert_eq!(messages.len(), 600 * SENDERS);
    for sender in 1..=SENDERS {
        let source = rig.address(sender);
        let own: Vec<Mail> =
            messages.iter().filter(|mail| mail.source == source).cloned().collect();
        assert_eq!(own.len(), 600);
        assert_in_order(&own);
    }
}

/// [`Endpoint::poll`] passes on no more events than its budget.
pub fn a_poll_keeps_to_its_budget<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    let options = weft_fabric::EndpointOptions::default();
    let mut receiver = rig.bench.open_apart(&options).expect("room for one more");
    let peer = rig.try_connect(0, receiver.address()).expect("the target is open");
    for number in 0..10u64 {
        rig.send(0, peer, MessageHeader::default(), &[&number.to_le_bytes()]);
    }
    rig.settle();
    assert_eq!(receiver.poll(0, &mut |event| panic!("{event:?} for a budget of 0")), 0);
    let mut polled = Vec::new();
    rig.until("ten messages", |_| {
        let mut now = 0;
        let count = receiver.poll(3, &mut |event| {
            now += 1;
            polled.push(Seen::from(event));
        });
        assert_eq!(count, now, "poll returns the number of events");
        assert!(count <= 3);
        polled.len() == 10
    });
}

/// Sends numbered messages until the mailbox is full. The receiver is not polled meanwhile.
fn fill<B: Bench>(rig: &mut Rig<B>, peer: Peer) -> usize {
    for number in 0..100_000u64 {
        let header = MessageHeader::default();
        match rig.endpoint(0).send_short(peer, header, &[&number.to_le_bytes()]) {
            Ok(()) => {}
            Err(SendError::WouldBlock) => return usize::try_from(number).expect("a count"),
            Err(other) => panic!("refused: {other}"),
        }
    }
    panic!("the mailbox never gets full");
}

fn has_reported_room<B: Bench>(rig: &mut Rig<B>, peer: Peer) -> bool {
    rig.seen(0).contains(&Seen::Room(peer))
}

fn assert_in_order(messages: &[Mail]) {
    for (number, mail) in (0u64..).zip(messages) {
        assert_eq!(mail.payload, number.to_le_bytes(), "message {number}");
    }
}
