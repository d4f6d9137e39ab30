//! Cases: which sides are notified, in every combination of EXTOLL-THESIS#3.2.1.1, Table 3.1.

use weft_fabric::{
    Access, Atomic, AtomicOperation, Command, Endpoint, Issued, LocalRange, MessageHeader,
    Notification, Notify, Operation, OperationError, Peer, Region, RemoteKey, Side, Source, Target,
    Value, Width,
};

use crate::{Bench, Rig, Seen, pattern};

const OFFSET: u64 = 24;
const LENGTH: u64 = 40;
const CLASS: u8 = 0xa5;
const IMMEDIATE: u64 = 0x0123_4567_89ab_cdef;
const COMMANDS: [Command; 4] = [Command::Put, Command::ImmediatePut, Command::Get, Command::Atomic];

/// Each combination of sides for each operation notifies exactly those sides, with every field.
pub fn every_combination_of_table_3_1_tells_the_right_sides<B: Bench>() {
    let mut scene = Scene::<B>::new();
    for command in COMMANDS {
        for bits in 0..8u8 {
            let notify = combination(bits);
            if notify.check(command).is_err() {
                continue;
            }
            let (context, result) = scene.run(command, notify);
            assert!(result.is_ok(), "{command:?} {notify:?}");
            scene.rig.settle();
            let own: Vec<_> = scene.rig.take_notifications(0);
            let there: Vec<_> = scene.rig.take_notifications(1);
            let (mut own_sides, mut there_sides) = (Vec::new(), Vec::new());
            if notify.requester() {
                own_sides.push(Side::Requester);
            }
            if notify.responder() {
                there_sides.push(Side::Responder);
            }
            let puts = matches!(command, Command::Put | Command::ImmediatePut);
            if notify.completer() && puts {
                there_sides.push(Side::Completer);
            } else if notify.completer() {
                own_sides.push(Side::Completer);
            }
            let sides =
                |received: &[Notification]| received.iter().map(|one| one.side).collect::<Vec<_>>();
            assert_eq!(sides(&own), own_sides, "{command:?} {notify:?} at the initiator");
            assert_eq!(sides(&there), there_sides, "{command:?} {notify:?} at the target");
            for (received, other) in own
                .iter()
                .map(|received| (received, 1))
                .chain(there.iter().map(|received| (received, 0)))
            {
                scene.assert_fields(received, command, other, context);
            }
        }
    }
}

/// A put with a responder is refused and writes nothing.
pub fn a_responder_for_a_put_is_refused<B: Bench>() {
    let mut scene = Scene::<B>::new();
    for command in [Command::Put, Command::ImmediatePut] {
        for bits in [2, 3, 6, 7] {
            let (_, result) = scene.run(command, combination(bits));
            assert_eq!(result, Err(OperationError::InvalidNotification { command }));
        }
    }
    scene.rig.settle();
    assert_eq!(scene.rig.take_notifications(1), &[]);
    assert_eq!(scene.region.load(OFFSET), Ok(0));
}

/// An endpoint that sees the completer notification of a put also sees its data.
pub fn data_is_there_before_its_notification<B: Bench>() {
    let mut scene = Scene::<B>::new();
    let (region, key) = scene.rig.share(1, 70_000, Access::WRITE);
    let peer = scene.peer;
    for round in 1..=100u8 {
        let bytes = vec![round; 70_000];
        let context = scene.rig.context();
        let notify = Notify::COMPLETER.class(round);
        let source = Source::Bytes(&bytes);
        let issued = scene.rig.endpoint(0).put(
            peer,
            source,
            Target::new(key, 0),
            Operation::new(context).notify(notify),
        );
        let received = scene.rig.notifications(1, 1);
        assert_eq!(received[0].class, round);
        let mut found = vec![0; 70_000];
        region.read(0, &mut found).expect("inside");
        assert!(found == bytes, "the notification overtook its data");
        assert_eq!(scene.rig.finish(0, context, issued), Ok(Value::Nothing));
    }
}

/// The local data of a get is visible before its completer notification.
pub fn a_get_has_its_data_before_its_notification<B: Bench>() {
    let mut scene = Scene::<B>::new();
    let (region, key) = scene.rig.share(1, 10_000, Access::READ);
    let local = scene.rig.local(0, &[0; 10_000]);
    let bytes = pattern(21, 10_000);
    region.write(0, &bytes).expect("inside");
    let context = scene.rig.context();
    let peer = scene.peer;
    let source = Target::new(key, 0);
    let issued = scene.rig.endpoint(0).get(
        peer,
        source,
        LocalRange::new(&local, 0, 10_000),
        Operation::new(context).notify(Notify::COMPLETER),
    );
    assert_eq!(scene.rig.notifications(0, 1)[0].length, 10_000);
    let mut found = vec![0; 10_000];
    local.read(0, &mut found).expect("inside");
    assert_eq!(found, bytes);
    assert_eq!(scene.rig.finish(0, context, issued), Ok(Value::Nothing));
}

/// Notifications of one initiator arrive in the order of its calls.
pub fn notifications_arrive_in_order<B: Bench>() {
    let mut scene = Scene::<B>::new();
    let (peer, key) = (scene.peer, scene.key);
    for number in 0..1_000u64 {
        let notify = Notify::COMPLETER.immediate(number);
        let target = Target::new(key, 8);
        let start = |endpoint: &mut B::Endpoint, context| -> Result<Issued, OperationError> {
            if number % 2 == 0 {
                endpoint.put(
                    peer,
                    Source::Bytes(&[1; 30]),
                    target,
                    Operation::new(context).notify(notify),
                )
            } else {
                endpoint.put_immediate(
                    peer,
                    number,
                    8,
                    target,
                    Operation::new(context).notify(notify),
                )
            }
        };
        assert_eq!(scene.rig.run(0, start), Ok(Value::Nothing));
    }
    scene.rig.settle();
    let received = scene.rig.take_notifications(1);
    assert_eq!(received.len(), 1_000);
    for (number, received) in (0u64..).zip(received) {
        assert_eq!(received.immediate, number);
    }
}

/// A message that was sent behind a put comes behind the notification of the put.
pub fn notifications_and_messages_keep_their_order<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (_region, key) = rig.share(1, 64, Access::WRITE);
    assert_eq!(
        rig.run(0, |endpoint, context| endpoint.resolve(peer, key, context)),
        Ok(Value::Nothing)
    );
    for number in 0..100_u8 {
        let notify = Notify::COMPLETER.class(number);
        let operation = Operation::new(0).quiet().notify(notify);
        let target = Target::new(key, 0);
        let put = rig.endpoint(0).put(peer, Source::Bytes(b"x"), target, operation);
        assert!(put.is_ok(), "{put:?}");
        rig.send(0, peer, MessageHeader::tag(number), &[]);
    }
    rig.until("everything", |rig| rig.seen(1).len() >= 200);
    let order: Vec<(bool, u8)> = rig
        .take(1)
        .iter()
        .map(|seen| match seen {
            Seen::Notification(told) => (false, told.class),
            Seen::Message(mail) => (true, mail.header.tag),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = (0..100).flat_map(|number| [(false, number), (true, number)]);
    assert_eq!(order, expected.collect::<Vec<_>>());
}

/// A notification put adds its class and value to the peer's notifications.
pub fn a_notification_put_carries_class_and_value<B: Bench>() {
    let mut scene = Scene::<B>::new();
    let peer = scene.peer;
    for (class, value) in [(0, 0), (1, u64::MAX), (255, IMMEDIATE)] {
        assert_eq!(scene.rig.endpoint(0).put_notification(peer, class, value), Ok(()));
        let received = scene.rig.notifications(1, 1);
        let source = scene.rig.address(0);
        assert_eq!(received.len(), 1);
        let Notification { side, command, source: from, operation, key, offset, .. } = received[0];
        assert_eq!((side, command), (Side::Completer, Command::NotificationPut));
        assert_eq!((from, operation, key, offset), (source, 0, RemoteKey(0), 0));
        assert_eq!((received[0].class, received[0].immediate), (class, value));
    }
    scene.rig.settle();
    assert_eq!(scene.rig.take(0), &[], "the initiator gets no event");
}

/// A full notification queue refuses and then has room. No notification is lost.
pub fn a_full_notification_queue_refuses_and_then_has_room<B: Bench>() {
    let mut scene = Scene::<B>::new();
    let (rig, peer) = (&mut scene.rig, scene.peer);
    let mut accepted = 0u64;
    while accepted < 1_000_000 {
        match rig.endpoint(0).put_notification(peer, 1, accepted) {
            Ok(()) => accepted += 1,
            Err(OperationError::WouldBlock) => break,
            Err(other) => panic!("refused: {other}"),
        }
    }
    assert!(accepted < 1_000_000, "the notification queue never gets full");
    rig.until("room", |rig| rig.seen(0).contains(&Seen::Room(peer)));
    assert_eq!(rig.endpoint(0).put_notification(peer, 1, accepted), Ok(()));
    rig.settle();
    let received = rig.take_notifications(1);
    let values: Vec<u64> = received.iter().map(|received| received.immediate).collect();
    assert_eq!(values, (0..=accepted).collect::<Vec<_>>());
}

/// A failed operation has no completer notification.
pub fn a_failed_operation_has_no_completer_notification<B: Bench>() {
    let mut scene = Scene::<B>::new();
    let peer = scene.peer;
    let outside = Target::new(scene.key, u64::MAX);
    let local = scene.rig.local(0, &[0; 8]);
    let put = scene.rig.run(0, |endpoint, context| {
        endpoint.put(
            peer,
            Source::Bytes(b"x"),
            outside,
            Operation::new(context).notify(Notify::COMPLETER),
        )
    });
    let get = scene.rig.run(0, |endpoint, context| {
        let both = Notify::COMPLETER.and(Notify::RESPONDER);
        endpoint.get(
            peer,
            outside,
            LocalRange::new(&local, 0, 8),
            Operation::new(context).notify(both),
        )
    });
    assert!(put.is_err() && get.is_err());
    scene.rig.settle();
    assert_eq!(scene.rig.take_notifications(0), &[]);
    assert_eq!(scene.rig.take_notifications(1), &[]);
}

/// Two endpoints and a region of the second.
struct Scene<B: Bench> {
    rig: Rig<B>,
    peer: Peer,
    region: <B::Endpoint as Endpoint>::Region,
    key: RemoteKey,
    local: <B::Endpoint as Endpoint>::Region,
}

impl<B: Bench> Scene<B> {
    fn new() -> Self {
        let mut rig = Rig::<B>::new(2);
        let peer = rig.connect(0, 1);
        let (region, key) = rig.share(1, 4096, Access::all());
        let local = rig.local(0, &[0; 64]);
        Self { rig, peer, region, key, local }
    }

    fn run(&mut self, command: Command, notify: Notify) -> (u64, Result<Value, OperationError>) {
        let Self { rig, peer, key, local, .. } = self;
        let (peer, target) = (*peer, Target::new(*key, OFFSET));
        let bytes = [3; 40];
        let mut used = 0;
        let result = rig.run(0, |endpoint, context| {
            used = context;
            match command {
                Command::Put => endpoint.put(
                    peer,
                    Source::Bytes(&bytes),
                    target,
                    Operation::new(context).notify(notify),
                ),
                Command::ImmediatePut => endpoint.put_immediate(
                    peer,
                    5,
                    3,
                    target,
                    Operation::new(context).notify(notify),
                ),
                Command::Get => endpoint.get(
                    peer,
                    target,
                    LocalRange::new(local, 0, LENGTH),
                    Operation::new(context).notify(notify),
                ),
                Command::Atomic => {
                    let add = Atomic::new(AtomicOperation::FetchAdd, Width::Bits32, 1);
                    endpoint.atomic(peer, target, add, Operation::new(context).notify(notify))
                }
                Command::NotificationPut => unreachable!("it has no notify"),
            }
        });
        (used, result)
    }

    fn assert_fields(
        &mut self,
        received: &Notification,
        command: Command,
        other: usize,
        context: u64,
    ) {
        assert_eq!(received.command, command);
        assert_eq!(received.source, self.rig.address(other));
        assert_eq!(received.operation, context);
        assert_eq!((received.class, received.immediate), (CLASS, IMMEDIATE));
        let (key, offset, length) = match command {
            Command::Put | Command::Get => (self.key, OFFSET, LENGTH),
            Command::ImmediatePut => (self.key, OFFSET, 3),
            Command::Atomic => (self.key, OFFSET, 4),
            Command::NotificationPut => unreachable!("it has no notify"),
        };
        assert_eq!(
            (received.key, received.offset, received.length),
            (key, offset, length),
            "{command:?}"
        );
    }
}

/// The sides as bits: requester 0, responder 1, completer 2.
fn combination(bits: u8) -> Notify {
    let mut notify = Notify::NONE.class(CLASS).immediate(IMMEDIATE);
    for (bit, side) in [Notify::REQUESTER, Notify::RESPONDER, Notify::COMPLETER].iter().enumerate()
    {
        if bits & (1 << bit) != 0 {
            notify = notify.and(*side);
        }
    }
    notify
}
