//! An endpoint whose peer writes any value anywhere: the fuzzing entry and its property test.
//!
//! The victim polls, waits, sends and changes words while the words that the peer can write change.
//! Nothing may panic, hang or access memory out of bounds, and the victim must still talk to its
//! other peer.

use std::sync::Arc;
use std::time::Duration;

use weft_broker::Limits;
use weft_fabric::{
    Access, Atomic, Audience, Blocking, Endpoint, EndpointOptions, Event, LocalRange,
    MessageHeader, NodeId, Notify, Operation, PATIENCE, Region, Source, Target, Transport,
};

use crate::local_broker;
use crate::{Parameters, ShmEndpoint, ShmRegion, ShmTransport};

/// Bytes of one step of the script: an action, an offset and a value.
const STEP: usize = 8;

/// Offsets of control words, which random offsets would rarely hit.
const KNOWN_OFFSETS: [usize; 8] = [128, 160, 192, 256, 288, 320, 1024, 1056];

struct Scene {
    victim: ShmEndpoint,
    hostile: ShmEndpoint,
    friend: ShmEndpoint,
    /// Memory of the victim, to which nobody has a key. Its gets go to the first word.
    region: ShmRegion,
}

/// Runs a script of overwrites and calls, and checks that the victim still talks to its friend.
///
/// # Panics
/// When the victim panics or its friend cannot reach it.
pub fn fuzz_endpoint(script: &[u8]) {
    let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
    let parameters = Parameters { ring_slots: 16, spin_us: 0, yields: 0, ..Parameters::default() };
    let transport = ShmTransport::new(broker, parameters);
    let open = || transport.open(&EndpointOptions::default()).expect("a fresh broker");
    let mut victim = open();
    let region = victim.register(256).expect("memory");
    let mut scene = Scene { victim, hostile: open(), friend: open(), region };
    let at_victim = scene.hostile.connect_within(scene.victim.address(), PATIENCE).expect("there");
    let at_hostile = scene.victim.connect_within(scene.hostile.address(), PATIENCE).expect("there");
    let at_friend = scene.victim.connect_within(scene.friend.address(), PATIENCE).expect("there");
    let region = scene.hostile.register(64).expect("memory");
    let all = Access::READ | Access::WRITE | Access::ATOMIC;
    let key = scene
        .hostile
        .grant_within(LocalRange::whole(&region), Audience::Partition, all, PATIENCE)
        .expect("a grant");
    scene.hostile.keep_memory_in_place();
    let asked = scene.hostile.register(64).expect("memory");
    let asked = scene
        .hostile
        .grant_within(LocalRange::whole(&asked), Audience::Partition, all, PATIENCE)
        .expect("a grant");
    let (steps, _) = script.as_chunks::<STEP>();
    for step in steps.iter().take(512) {
        let [action, a, b, c, v0, v1, v2, v3] = *step;
        let value = u32::from_le_bytes([v0, v1, v2, v3]);
        let offset = match c & 3 {
            0 => KNOWN_OFFSETS[usize::from(a) % KNOWN_OFFSETS.len()],
            // Status words of slots.
            1 => 1024 + usize::from(a) % 32 * 32 + usize::from(b & 1),
            _ => usize::from(u16::from_le_bytes([a, b])),
        };
        let victim = &mut scene.victim;
        let target = Target::new(key, u64::from(a));
        match action % 16 {
            0..=3 => scene.hostile.scribble(at_victim, offset, value),
            4 => victim.scribble_doorbell(offset % 1024, value),
            5 => victim.scribble_doorbell(usize::from(a) % 48, value),
            6 => {
                let _ = scene.hostile.send_short(at_victim, MessageHeader::tag(a), &[step]);
            }
            7 => {
                let _ = victim.send_short(at_hostile, MessageHeader::tag(b), &[step]);
            }
            8 => {
                let notify = Notify::COMPLETER.and(Notify::REQUESTER);
                let _ = victim.put(
                    at_hostile,
                    Source::Bytes(step),
                    target,
                    Operation::new(1).notify(notify),
                );
                let _ = victim.atomic(at_hostile, target, Atomic::fetch_add(1), Operation::new(2));
            }
            9 => {
                let add = Atomic::fetch_add(u64::from(value % 8192));
                let told = Operation::new(0).notify(Notify::RESPONDER);
                let _ = victim.atomic(at_hostile, target, add, told);
            }
            14 => {
                let target = Target::new(asked, u64::from(a % 80));
                let source = Source::Bytes(step);
                let _ = victim.put(at_hostile, source, target, Operation::new(3));
                let add = Atomic::fetch_add(1);
                let _ = victim.atomic(at_hostile, target, add, Operation::new(4));
                let into = LocalRange::new(&scene.region, 0, 8);
                let _ = victim.get(at_hostile, target, into, Operation::new(5));
                let _ = victim.fence_all(6);
            }
            15 => {
                scene.hostile.poll(usize::from(a), &mut |_| {});
            }
            10 => {
                victim.wait(Some(Duration::from_micros(u64::from(a) % 50)));
                let _ = victim.arm();
            }
            _ => {
                victim.poll(usize::from(a), &mut |_| {});
            }
        }
    }
    check(scene, at_friend);
}

/// Checks that the victim and its friend still receive each other's messages.
fn check(scene: Scene, at_friend: weft_fabric::Peer) {
    let Scene { mut victim, hostile, mut friend, region } = scene;
    for offset in (8..region.length()).step_by(8) {
        assert_eq!(region.load(offset), Ok(0), "the peer reached what it was not given");
    }
    let text = b"still here";
    victim.send_short(at_friend, MessageHeader::tag(200), &[text]).expect("an own ring");
    let back = friend.connect_within(victim.address(), PATIENCE).expect("there");
    let mut received = false;
    for _ in 0..16 {
        friend.poll(64, &mut |event| {
            received |= matches!(event, Event::Message(message) if message.payload == text);
        });
    }
    assert!(received, "the friend receives nothing");
    friend.send_short(back, MessageHeader::tag(201), &[text]).expect("an own ring");
    let address = friend.address();
    let mut received = false;
    for _ in 0..64 {
        victim.wait(Some(Duration::from_millis(200)));
        victim.poll(1024, &mut |event| {
            received |= matches!(event, Event::Message(message)
                if message.source == address && message.payload == text);
        });
        if received {
            break;
        }
    }
    assert!(received, "the victim receives nothing from its friend");
    drop(hostile);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_fabric::Register;

    /// Values of the high half of a status word (length, tag, flags) that make its slot invalid.
    const INVALID: [u32; 3] = [
        // A message that is longer than a slot.
        255,
        // A content that does not exist.
        0b11 << 2 << 16,
        // A notification of a side that never sends one.
        40 | 0b10 << 2 << 16,
    ];

    #[test]
    fn a_poll_counts_the_events_in_front_of_a_slot_that_is_not_valid() {
        for (value, is_gone) in
            INVALID.into_iter().flat_map(|value| [(value, false), (value, true)])
        {
            let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
            let transport = ShmTransport::new(broker, Parameters::default());
            let open = || transport.open(&EndpointOptions::default()).expect("a fresh broker");
            let (mut victim, mut hostile) = (open(), open());
            let at_victim = hostile.connect_within(victim.address(), PATIENCE).expect("there");
            for tag in 0..3 {
                hostile.send_short(at_victim, MessageHeader::tag(tag), &[&[tag]]).expect("room");
            }
            // The third slot of direction 0, in words of 4 bytes.
            hostile.scribble(at_victim, 1024 + 2 * 32 + 1, value);
            if is_gone {
                drop(hostile);
            }
            let (mut told, mut tags, mut downs) = (0, Vec::new(), 0);
            for _ in 0..4 {
                let mut handed_out = 0;
                told += victim.poll(8, &mut |event| {
                    handed_out += 1;
                    match event {
                        Event::Message(message) => tags.push(message.header.tag),
                        Event::PeerDown { .. } => downs += 1,
                        other => panic!("{other:?}"),
                    }
                });
            }
            assert_eq!((tags, downs), (vec![0, 1], 1), "{value:#x}, is gone: {is_gone}");
            assert_eq!(told, 3, "{value:#x}, is gone: {is_gone}");
            assert_eq!(victim.register_value(Register::MessagesReceived), 2);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
        #[test]
        fn no_script_harms_the_victim(script in prop::collection::vec(any::<u8>(), 0..2048)) {
            fuzz_endpoint(&script);
        }
    }
}
