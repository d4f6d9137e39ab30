//! A peer that sends anything: nothing panics, and others are served on.

mod harness;

use harness::{Bytes, End};
use proptest::prelude::*;
use weft_fabric::{
    Blocking, Endpoint, EndpointOptions, MessageHeader, NodeId, PATIENCE, Transport,
};
use weft_rdm::{How, Label, Options, Registration, Rights, Wanted};
use weft_transport_sim::{Settings, SimWorld};

/// Words that mean something somewhere: small numbers, numbers of operations, lengths, flags.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..8_u64,
        2 => (1..4_u64, 0..4_u64).prop_map(|(generation, place)| generation << 32 | place),
        2 => (0..4_u64, 0..4_u64, 0..20_u64, 0..6000_u64)
            .prop_map(|(flags, body, chunk, length)| {
                flags | body << 8 | chunk << 16 | length << 32
            }),
        1 => any::<u64>(),
        1 => Just(5_u64),
    ]
}

fn packet() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let words = proptest::collection::vec(word(), 0..15)
        .prop_map(|words| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
    (0..14_u8, words, 0..9_usize).prop_map(|(code, mut bytes, cut)| {
        bytes.truncate(bytes.len().saturating_sub(cut % 8));
        (code, bytes)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn anything_that_a_peer_sends_is_refused_or_served(
        packets in proptest::collection::vec(packet(), 1..40),
        greets in any::<bool>(),
    ) {
        let world = SimWorld::new(Settings::seeded(1));
        let open = |node| world.transport(NodeId(node), 1000).open(&EndpointOptions::default());
        let options = Options { maps: false, ..Options::default() };
        let mut victim = End::new(open(0).expect("an endpoint"), 1, options.clone());
        let mut friend = End::new(open(1).expect("an endpoint"), 2, options);
        let mut foe = open(0).expect("an endpoint");
        let rights = Rights { read: true, write: true };
        let memory = Bytes::zeros(9000);
        victim.rdm.register(5, Registration { memory, base: 0, rights });
        let (address, birth) = victim.rdm.name();
        let to = foe.connect_within(address, PATIENCE).expect("it is there");
        if greets {
            let hello = [1, 99, birth, 7, 8, 77, 1, 16 << 32 | 65536];
            let hello: Vec<u8> = hello.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
            foe.send_short(to, MessageHeader::tag(1), &[&hello]).expect("room");
        }
        for token in 0..4 {
            let wanted = Wanted { is_tagged: token % 2 == 0, from: None, tag: 0, ignore: 7 };
            victim.rdm.receive(&wanted, Bytes::zeros(3000), None, token);
        }
        for (code, bytes) in packets {
            // It may have been ended by now.
            let _ = foe.send_short(to, MessageHeader::tag(code), &[&bytes]);
            world.advance(3_000);
            victim.poll();
            foe.poll(64, &mut |_| {});
        }
        // Another peer is served as if nothing had been.
        let peer = friend.peer(&victim);
        let label = Label { tag: Some(1 << 40), data: None };
        let letter = Bytes::new(vec![7; 20_000]);
        let wanted = Wanted { is_tagged: true, from: None, tag: 1 << 40, ignore: 0 };
        let into = Bytes::zeros(20_000);
        victim.rdm.receive(&wanted, into.clone(), None, 1000);
        while friend.rdm.send(peer, label, &letter, How::Sent, Some(1)).is_err() {
            friend.poll();
            world.advance(1_000);
        }
        for _ in 0..2000 {
            world.advance(1_000);
            friend.poll();
            victim.poll();
            if friend.outcomes.iter().any(|outcome| outcome.token == Some(1)) {
                break;
            }
        }
        prop_assert!(into.to_vec().iter().all(|byte| *byte == 7));
    }
}
