//! Cases: the register file.

use weft_fabric::{
    Access, Atomic, Endpoint, LocalRange, MessageHeader, Notify, Operation, Register, Source,
    Target,
};

use crate::{Bench, Rig};

/// The registers of a new endpoint are zero.
pub fn a_fresh_register_file_is_zero<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    for register in Register::ALL {
        assert_eq!(value(&mut rig, 0, register), 0, "{}", register.name());
    }
}

/// Messages and their bytes are counted at both ends.
pub fn registers_count_messages<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    for length in 0..100 {
        rig.send(0, peer, MessageHeader::default(), &[&vec![1; length]]);
    }
    rig.settle();
    for (number, messages, bytes) in [
        (0, Register::MessagesSent, Register::MessageBytesSent),
        (1, Register::MessagesReceived, Register::MessageBytesReceived),
    ] {
        assert_eq!(value(&mut rig, number, messages), 100);
        assert_eq!(value(&mut rig, number, bytes), 99 * 100 / 2);
    }
    assert_eq!(value(&mut rig, 1, Register::MessagesSent), 0);
    assert_eq!(value(&mut rig, 0, Register::MessagesReceived), 0);
}

/// Operations, their bytes and their notifications are counted at the initiator.
pub fn registers_count_operations<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (_region, key) = rig.share(1, 4096, Access::all());
    let local = rig.local(0, &[0; 4096]);
    let target = Target::new(key, 0);
    let notify = Notify::COMPLETER.and(Notify::REQUESTER);
    let done = [
        rig.run(0, |endpoint, context| {
            endpoint.put(
                peer,
                Source::Bytes(&[1; 1000]),
                target,
                Operation::new(context).notify(notify),
            )
        }),
        rig.run(0, |endpoint, context| {
            endpoint.put_immediate(peer, 1, 5, target, Operation::new(context))
        }),
        rig.run(0, |endpoint, context| {
            endpoint.get(
                peer,
                target,
                LocalRange::new(&local, 0, 2000),
                Operation::new(context).notify(Notify::COMPLETER),
            )
        }),
        rig.run(0, |endpoint, context| {
            endpoint.atomic(
                peer,
                target,
                Atomic::fetch_add(1),
                Operation::new(context).notify(Notify::RESPONDER),
            )
        }),
    ];
    assert!(done.iter().all(Result::is_ok));
    rig.endpoint(0).put_notification(peer, 1, 1).expect("room");
    rig.settle();
    for (register, expected) in [
        (Register::Puts, 2),
        (Register::PutBytes, 1005),
        (Register::Gets, 1),
        (Register::GetBytes, 2000),
        (Register::Atomics, 1),
        // The put's completer, the atomic's responder, and the notification put.
        (Register::NotificationsSent, 3),
        // This endpoint's own: the put's requester, and the get's completer.
        (Register::NotificationsReceived, 2),
        (Register::Errors, 0),
    ] {
        assert_eq!(value(&mut rig, 0, register), expected, "{}", register.name());
    }
    assert_eq!(value(&mut rig, 1, Register::NotificationsReceived), 3);
    assert_eq!(value(&mut rig, 1, Register::Puts), 0);
}

/// Refusals and errors are counted separately.
pub fn registers_count_refusals_and_errors<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (_region, key) = rig.share(1, 64, Access::READ);
    let denied = rig.run(0, |endpoint, context| {
        endpoint.put(peer, Source::Bytes(b"x"), Target::new(key, 0), Operation::new(context))
    });
    assert!(denied.is_err());
    assert_eq!(value(&mut rig, 0, Register::Errors), 1);
    assert_eq!(value(&mut rig, 0, Register::PutBytes), 0);
    assert_eq!(value(&mut rig, 0, Register::Refused), 0);
    let header = MessageHeader::default();
    let full =
        (0..100_000).any(|_| rig.endpoint(0).send_short(peer, header, &[b"filler"]).is_err());
    assert!(full, "the mailbox never gets full");
    assert_eq!(value(&mut rig, 0, Register::Refused), 1);
    assert_eq!(value(&mut rig, 0, Register::Errors), 1);
}

fn value<B: Bench>(rig: &mut Rig<B>, number: usize, register: Register) -> u64 {
    rig.endpoint(number).register_value(register)
}
