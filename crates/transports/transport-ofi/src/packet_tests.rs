//! Packets are what they were before, and no bytes make the parser panic.

use proptest::prelude::*;
use weft_wire::versions::{PACKETS, fingerprint};

use super::*;

fn target() -> impl Strategy<Value = Target> {
    any::<(u64, u64)>().prop_map(|(key, offset)| Target::new(RemoteKey(key), offset))
}

fn label() -> impl Strategy<Value = Label> {
    any::<(u32, u32)>().prop_map(|(number, check)| Label { number, check })
}

fn atomic() -> impl Strategy<Value = Atomic> {
    (0..7_u8, any::<(bool, bool, u64, u64)>()).prop_map(|(number, rest)| {
        let (is_wide, fetches, operand, compare) = rest;
        let operation = atomic_of(number).expect("there are seven");
        let width = if is_wide { Width::Bits64 } else { Width::Bits32 };
        Atomic { operation, width, operand, compare, fetches }
    })
}

fn request() -> impl Strategy<Value = Request> {
    let change = any::<(bool, u64)>().prop_map(|(adds, value)| {
        if adds { SignalChange::Add(value) } else { SignalChange::Set(value) }
    });
    prop_oneof![
        any::<u64>().prop_map(|key| Request::Resolve(RemoteKey(key))),
        (target(), atomic()).prop_map(|(target, atomic)| Request::Atomic(target, atomic)),
        (target(), change).prop_map(|(target, change)| Request::Signal(target, change)),
        (target(), any::<(u64, u8, bool)>()).prop_map(|(target, (value, length, is_word))| {
            Request::Store { target, value, length, is_word }
        }),
        (target(), any::<u8>()).prop_map(|(target, length)| Request::Load { target, length }),
        Just(Request::Flush),
    ]
}

fn answer() -> impl Strategy<Value = Result<Answer, OperationError>> {
    let error = prop_oneof![
        Just(OperationError::InvalidKey),
        Just(OperationError::AccessDenied { command: Command::Get }),
        any::<(u64, u64, u64)>().prop_map(|(offset, length, region)| {
            OperationError::OutOfBounds { offset, length, region }
        }),
        any::<(u64, u64)>()
            .prop_map(|(offset, alignment)| OperationError::Misaligned { offset, alignment }),
        any::<u64>().prop_map(|length| OperationError::InvalidLength { length }),
    ];
    prop_oneof![
        any::<u64>().prop_map(|value| Ok(Answer::Value(value))),
        (any::<(u64, u64, u64, u8)>(), 0..8_u8).prop_map(|((address, key, length, skew), bits)| {
            let access = access_of(bits).expect("three rights");
            Ok(Answer::Range(Range { spot: Spot { address, key }, skew, length, access }))
        }),
        error.prop_map(Err),
    ]
}

fn told() -> impl Strategy<Value = Told> {
    (0..3_u8, 0..5_u8, any::<(u8, u64, u64, u64, u64, u64)>()).prop_map(|(side, command, rest)| {
        let (class, key, offset, length, context, immediate) = rest;
        Told {
            side: side_of(side).expect("three sides"),
            command: Command::from_number(command).expect("five commands"),
            class,
            range: (RemoteKey(key), offset, length),
            context,
            immediate,
        }
    })
}

fn short(bytes: &'static [u8]) -> impl Strategy<Value = Short<'static>> {
    let change = any::<(bool, u64)>().prop_map(|(adds, value)| {
        if adds { SignalChange::Add(value) } else { SignalChange::Set(value) }
    });
    let signal = proptest::option::of((any::<u64>(), change));
    let notify = proptest::option::of(any::<(u8, u64, u64)>());
    (any::<(u64, bool)>(), target(), signal, notify).prop_map(
        move |((number, is_immediate), target, signal, notify)| Short {
            number,
            is_immediate,
            target,
            signal,
            notify,
            bytes,
        },
    )
}

/// A body, whose payload is `bytes`.
fn body(bytes: &'static [u8]) -> impl Strategy<Value = Body<'static>> {
    let greeting = (any::<[u8; 16]>(), label(), any::<(u16, u16, u16)>());
    let message = (any::<u8>(), 0..4_u8, proptest::option::of(0..64_u8));
    prop_oneof![
        greeting.prop_map(|(secret, label, (packets, messages, notifications))| {
            Body::Greeting(Greeting { secret, label, packets, messages, notifications })
        }),
        message.prop_map(move |(tag, kind, group)| Body::Message {
            header: MessageHeader { tag, kind },
            group: group.and_then(Group::new),
            payload: bytes,
        }),
        told().prop_map(Body::Told),
        short(bytes).prop_map(Body::Short),
        Just(Body::Never),
        (any::<u64>(), request()).prop_map(|(number, request)| Body::Request(number, request)),
        (any::<u64>(), answer()).prop_map(|(number, answer)| Body::Response(number, answer)),
        any::<u64>().prop_map(|key| Body::Void(RemoteKey(key))),
        any::<u64>().prop_map(|key| Body::Released(RemoteKey(key))),
        any::<bool>().prop_map(Body::Credit),
        Just(Body::Ping),
        (0..4_u8).prop_map(|number| Body::Farewell(reason_of(number).expect("four reasons"))),
    ]
}

const PAYLOAD: [u8; BODY_BYTES] = [7; BODY_BYTES];
const LONG: [u8; MESSAGE_BYTES] = [8; MESSAGE_BYTES];

fn emitted(packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.emit(&mut bytes);
    bytes
}

proptest! {
    #[test]
    fn a_packet_is_parsed_as_it_was_emitted(
        label in label(),
        (packets, messages, notifications, sequence, handled) in any::<(u8, u16, u16, u32, u32)>(),
        body in prop_oneof![
            body(&PAYLOAD),
            Just(Body::Message { header: MessageHeader::tag(3), group: None, payload: &LONG }),
        ],
    ) {
        let credits = Credits { packets, messages, notifications };
        let packet = Packet { label, credits, sequence, handled, body };
        let bytes = emitted(&packet);
        prop_assert_eq!(Packet::parse(&bytes), Ok(packet));
    }

    #[test]
    fn a_packet_that_is_cut_or_goes_on_is_refused(
        body in body(&[]),
        cut in 1..HEAD_BYTES + 40,
    ) {
        let (label, credits) = (Label::default(), Credits::default());
        let packet = Packet { label, credits, sequence: 1, handled: 0, body };
        let bytes = emitted(&packet);
        if !matches!(packet.body, Body::Message { .. }) {
            let mut longer = bytes.clone();
            longer.push(0);
            prop_assert!(Packet::parse(&longer).is_err());
        }
        prop_assert!(Packet::parse(&bytes[..bytes.len().saturating_sub(cut)]).is_err());
    }

    #[test]
    fn no_bytes_make_the_parser_panic(
        kind in 0..20_u8,
        mut bytes in proptest::collection::vec(any::<u8>(), 0..PACKET_BYTES + 8),
    ) {
        if let Some(place) = bytes.get_mut(8) {
            *place = kind;
        }
        if let Ok(packet) = Packet::parse(&bytes) {
            prop_assert_eq!(emitted(&packet).len(), bytes.len());
        }
    }
}

#[test]
fn a_malformed_packet_is_named() {
    let mut bytes = [0; HEAD_BYTES];
    bytes[8] = 99;
    let told = Packet::parse(&bytes).expect_err("no such kind").to_string();
    assert_eq!(told, "there are no packets of kind 99");
    let told = Packet::parse(&bytes[..3]).expect_err("no head").to_string();
    assert_eq!(told, "a packet of kind 0 has 3 bytes");
}

/// Packets of each kind, with each kind of request, answer and error.
fn examples() -> Vec<Body<'static>> {
    let (key, target) = (RemoteKey(11), Target::new(RemoteKey(12), 13));
    let atomic = |operation, width, fetches| {
        Request::Atomic(target, Atomic { operation, width, operand: 14, compare: 15, fetches })
    };
    let atomics = (0..u8::MAX)
        .map_while(|number| atomic_of(number).ok())
        .map(|one| atomic(one, Width::Bits64, true));
    let requests = [
        Request::Resolve(key),
        Request::Signal(target, SignalChange::Add(1)),
        Request::Signal(target, SignalChange::Set(2)),
        Request::Store { target, value: 3, length: 4, is_word: true },
        Request::Load { target, length: 8 },
        Request::Flush,
        atomic(AtomicOperation::FetchAdd, Width::Bits32, false),
    ];
    let spot = Spot { address: 21, key: 22 };
    let rights = (0..u8::MAX).map_while(|bits| access_of(bits).ok());
    let answers = rights
        .map(|access| Ok(Answer::Range(Range { spot, skew: 3, length: 24, access })))
        .chain([Ok(Answer::Value(25))])
        .chain([
            Err(OperationError::InvalidKey),
            Err(OperationError::AccessDenied { command: Command::Get }),
            Err(OperationError::OutOfBounds { offset: 1, length: 2, region: 3 }),
            Err(OperationError::Misaligned { offset: 4, alignment: 8 }),
            Err(OperationError::InvalidLength { length: 7 }),
        ]);
    let sides = (0..u8::MAX).map_while(|number| side_of(number).ok());
    let commands = (0..u8::MAX).map_while(Command::from_number);
    let told = sides.flat_map(|side| commands.clone().map(move |command| (side, command)));
    let told = told.map(|(side, command)| Told {
        side,
        command,
        class: 1,
        range: (key, 2, 3),
        context: 4,
        immediate: 5,
    });
    let greeting = Greeting {
        secret: [1; 16],
        label: Label { number: 2, check: 3 },
        packets: 4,
        messages: 5,
        notifications: 6,
    };
    let short = |signal, notify, is_immediate| {
        let (number, bytes) = (26, &b"short"[..]);
        Body::Short(Short { number, is_immediate, target, signal, notify, bytes })
    };
    let changes = [SignalChange::Set(27), SignalChange::Add(28)];
    let shorts = changes.map(|change| short(Some((29, change)), Some((1, 30, 31)), false));
    let header = MessageHeader { tag: 7, kind: 1 };
    let message = |group| Body::Message { header, group, payload: b"bytes" };
    [
        Body::Greeting(greeting),
        message(None),
        message(Group::new(9)),
        Body::Void(key),
        Body::Released(key),
        Body::Credit(true),
        Body::Credit(false),
        Body::Ping,
        Body::Never,
        short(None, None, true),
    ]
    .into_iter()
    .chain(shorts)
    .chain(told.map(Body::Told))
    .chain(atomics.chain(requests).map(|request| Body::Request(16, request)))
    .chain(answers.map(|answer| Body::Response(17, answer)))
    .chain((0..u8::MAX).map_while(|number| reason_of(number).ok()).map(Body::Farewell))
    .collect()
}

#[test]
fn the_format_is_that_of_its_version() {
    let label = Label { number: 0x0102_0304, check: 0x0506_0708 };
    let credits = Credits { packets: 9, messages: 0x0a0b, notifications: 0x0c0d };
    let bytes = examples().into_iter().map(|body| {
        // A new kind needs an example above.
        match body {
            Body::Greeting(_)
            | Body::Message { .. }
            | Body::Told(_)
            | Body::Short(_)
            | Body::Never
            | Body::Request(..)
            | Body::Response(..)
            | Body::Void(_)
            | Body::Released(_)
            | Body::Credit(_)
            | Body::Ping
            | Body::Farewell(_) => {}
        }
        let (sequence, handled) = (0x0e0f_1011, 0x1213_1415);
        let packet = Packet { label, credits, sequence, handled, body };
        let bytes = emitted(&packet);
        assert_eq!(Packet::parse(&bytes), Ok(packet));
        bytes
    });
    assert_eq!((PACKETS, fingerprint(bytes)), (4, 0xcba6_d947_cb84_0915), "raise the version");
}
