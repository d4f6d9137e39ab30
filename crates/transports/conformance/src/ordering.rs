//! Cases: order, fences of all peers, quiet operations, batches, cancelled operations.

use weft_fabric::{
    Access, Endpoint, Issued, LocalRange, MessageHeader, Notify, Operation, OperationError, Region,
    Signal, SignalChange, Source, Target, Value,
};

use crate::rig::Seen;
use crate::{Bench, Rig};

/// A put behind an order is never seen before a put in front of it.
pub fn what_comes_after_an_order_takes_effect_after<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 64, Access::WRITE);
    for round in 1..=100_u64 {
        for offset in [0, 8] {
            let context = rig.context();
            let target = Target::new(key, offset);
            let operation = Operation::new(context).quiet();
            let endpoint = rig.endpoint(0);
            let put = endpoint.put(peer, Source::Bytes(&round.to_le_bytes()), target, operation);
            assert!(put.is_ok(), "{put:?}");
            assert_eq!(endpoint.order(peer), Ok(()));
        }
        rig.until("the second put", |rig| {
            let word = |offset| region.load(offset).expect("inside");
            let (second, first) = (word(8), word(0));
            assert!(second <= first, "round {round}: {second:?} is there before {first:?}");
            rig.turn();
            second == round
        });
    }
}

/// A message behind an order tells that all puts before it have arrived.
pub fn a_message_after_an_order_tells_that_puts_arrived<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 32 * 8, Access::WRITE);
    for round in 1..=30_u64 {
        for word in 0..32 {
            let context = rig.context();
            let (source, target) = (round.to_le_bytes(), Target::new(key, word * 8));
            let operation = Operation::new(context).quiet();
            let put = rig.endpoint(0).put(peer, Source::Bytes(&source), target, operation);
            assert!(put.is_ok(), "{put:?}");
        }
        assert_eq!(rig.endpoint(0).order(peer), Ok(()));
        rig.send(0, peer, MessageHeader::tag(1), &[]);
        rig.messages(1, 1);
        for word in 0..32 {
            assert_eq!(region.load(word * 8), Ok(round), "word {word}");
        }
    }
}

/// Bytes are there when the word is that was put behind them by an ordered operation, while many
/// others are under way.
pub fn an_ordered_operation_takes_effect_after_all_before<B: Bench>() {
    const SLOTS: u64 = 48;
    const BYTES: usize = 5_000;
    let at = |slot: u64| SLOTS * 8 + slot * BYTES as u64;
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, at(SLOTS), Access::WRITE);
    for round in 1..=4_u64 {
        let byte = u8::try_from(round).expect("small");
        let mut slot = 0;
        let mut has_bytes = false;
        rig.until("all slots", |rig| {
            // As many calls as there is room for.
            while slot < SLOTS {
                let operation = Operation::new(rig.context()).quiet();
                let endpoint = rig.endpoint(0);
                let called = if has_bytes {
                    let target = Target::new(key, slot * 8);
                    endpoint.put_immediate(peer, round, 8, target, operation.ordered())
                } else {
                    let (bytes, target) = ([byte; BYTES], Target::new(key, at(slot)));
                    endpoint.put(peer, Source::Bytes(&bytes), target, operation)
                };
                match called {
                    Ok(_) => {
                        slot += u64::from(has_bytes);
                        has_bytes = !has_bytes;
                    }
                    Err(OperationError::WouldBlock) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            rig.turn();
            let is_told = |slot: &u64| region.load(slot * 8) == Ok(round);
            let told: Vec<u64> = (0..SLOTS).filter(is_told).collect();
            for slot in &told {
                let mut bytes = [0; BYTES];
                region.read(at(*slot), &mut bytes).expect("inside");
                assert!(bytes.iter().all(|there| *there == byte), "round {round}, slot {slot}");
            }
            told.len() as u64 == SLOTS
        });
    }
}

/// Calls until there is room.
fn is_taken<B: Bench>(
    rig: &mut Rig<B>,
    mut call: impl FnMut(&mut Rig<B>) -> Result<Issued, OperationError>,
) {
    rig.until("room", |rig| match call(rig) {
        Err(OperationError::WouldBlock) => {
            rig.turn();
            false
        }
        other => other.map(|_| true).expect("the target is there"),
    });
}

/// Puts of any length, signals and additions may be ordered.
pub fn an_ordered_operation_of_any_kind_comes_after_puts<B: Bench>() {
    const BYTES: u64 = 20_000;
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 8 + 2 * BYTES, Access::all());
    for round in 1..=24_u8 {
        let bytes = vec![round; usize::try_from(BYTES).expect("small")];
        let first = Target::new(key, 8);
        let quiet = Operation::new(rig.context()).quiet();
        is_taken(&mut rig, |rig| rig.endpoint(0).put(peer, Source::Bytes(&bytes), first, quiet));
        let ordered = Operation::new(rig.context()).ordered();
        let word = Target::new(key, 0);
        let behind = Target::new(key, 8 + BYTES);
        let change = SignalChange::Add(1);
        let signal = Signal { target: word, change };
        is_taken(&mut rig, |rig| {
            let endpoint = rig.endpoint(0);
            match round % 4 {
                0 => {
                    let source = Source::Bytes(&bytes);
                    endpoint.put_signal(peer, source, behind, signal, ordered)
                }
                1 => {
                    let source = Source::Bytes(&bytes[..100]);
                    endpoint.put_signal(peer, source, behind, signal, ordered.quiet())
                }
                2 => {
                    let add = weft_fabric::Atomic::fetch_add(1);
                    endpoint.atomic(peer, word, add, ordered)
                }
                _ => endpoint.put_immediate(peer, round.into(), 8, word, ordered),
            }
        });
        rig.until("the word", |rig| {
            rig.turn();
            region.load(0) == Ok(round.into())
        });
        let mut there = vec![0; bytes.len()];
        region.read(8, &mut there).expect("inside");
        assert!(there == bytes, "round {round}: bytes are missing behind the word");
    }
}

/// A fence of all peers completes when everything before it is visible everywhere.
pub fn a_fence_of_all_peers_comes_last<B: Bench>() {
    const LONG: usize = 1 << 20;
    let mut rig = Rig::<B>::new(4);
    let targets: Vec<_> = (1..4)
        .map(|number| (rig.connect(0, number), rig.share(number, LONG as u64, Access::WRITE)))
        .collect();
    for round in 1..=6_u8 {
        // In each round another peer has far more to take than the others.
        let length = |number: u8| if number == round % 3 { LONG } else { 8 };
        for (number, (peer, (_, key))) in (0..).zip(&targets) {
            let context = rig.context();
            let operation = Operation::new(context).quiet();
            let (bytes, target) = (vec![round; length(number)], Target::new(*key, 0));
            let put = rig.endpoint(0).put(*peer, Source::Bytes(&bytes), target, operation);
            assert!(put.is_ok(), "{put:?}");
        }
        let fenced = rig.run(0, |endpoint, context| endpoint.fence_all(context));
        assert_eq!(fenced, Ok(Value::Nothing));
        for (number, (_, (region, _))) in (0..).zip(&targets) {
            let mut bytes = vec![0; length(number)];
            region.read(0, &mut bytes).expect("inside");
            assert!(bytes.iter().all(|byte| *byte == round), "round {round}, peer {number}");
        }
    }
}

/// A fence of all peers completes for an endpoint without peers, and beside a dead peer.
pub fn a_fence_of_all_peers_does_not_wait_for_the_dead<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    assert_eq!(rig.run(0, |endpoint, context| endpoint.fence_all(context)), Ok(Value::Nothing));
    rig.connect(0, 1);
    rig.kill(1);
    assert_eq!(rig.run(0, |endpoint, context| endpoint.fence_all(context)), Ok(Value::Nothing));
}

/// A quiet operation has no completion when it ends well, and one when it fails.
pub fn a_quiet_operation_reports_errors_alone<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 64, Access::READ | Access::WRITE);
    let local = rig.local(0, &[0; 8]);
    for offset in [0, 64] {
        let context = rig.context();
        let operation = Operation::new(context).quiet();
        let target = Target::new(key, offset);
        let put = rig.endpoint(0).put(peer, Source::Bytes(&[7; 8]), target, operation);
        let refused = OperationError::OutOfBounds { offset, length: 8, region: 64 };
        let expected = if offset == 64 { Some(Err(refused)) } else { None };
        assert_eq!(reported(&mut rig, context, put), expected);
        let context = rig.context();
        let operation = Operation::new(context).quiet();
        let into = LocalRange::whole(&local);
        let get = rig.endpoint(0).get(peer, target, into, operation);
        assert_eq!(reported(&mut rig, context, get), expected);
    }
    assert_eq!(region.load(0), Ok(u64::from_le_bytes([7; 8])));
    assert_eq!(local.load(0), Ok(u64::from_le_bytes([7; 8])));
}

/// Many quiet operations may follow each other for ever: none of them keeps its place.
pub fn quiet_operations_give_their_places_back<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 64, Access::all());
    let many = 3 * rig.endpoint(0).capabilities().operations_max as u64;
    for _ in 0..many {
        let add = weft_fabric::Atomic::fetch_add(1).without_result();
        rig.until("room", |rig| {
            let context = rig.context();
            let operation = Operation::new(context).quiet();
            match rig.endpoint(0).atomic(peer, Target::new(key, 0), add, operation) {
                Err(OperationError::WouldBlock) => false,
                other => other.map(|_| true).expect("the target is there"),
            }
        });
    }
    assert_eq!(rig.run(0, |endpoint, context| endpoint.fence(peer, context)), Ok(Value::Nothing));
    assert_eq!(region.load(0), Ok(many));
}

/// A batch arrives whole with its last operation, whether the receiver looks or sleeps.
pub fn a_batch_arrives_with_its_last_operation<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (_region, key) = rig.share(1, 64, Access::WRITE);
    for count in [1, 2, 50] {
        let _ = rig.endpoint(1).arm();
        for number in 0..count {
            let context = rig.context();
            let operation = Operation::new(context).notify(Notify::COMPLETER.immediate(number));
            let operation = if number + 1 < count { operation.more() } else { operation };
            let target = Target::new(key, 0);
            let put = rig.endpoint(0).put(peer, Source::Bytes(b"x"), target, operation.quiet());
            assert!(put.is_ok(), "{put:?}");
        }
        let told = rig.notifications(1, usize::try_from(count).expect("small"));
        let numbers: Vec<u64> = told.iter().map(|told| told.immediate).collect();
        assert_eq!(numbers, (0..count).collect::<Vec<_>>());
    }
}

/// A batch whose last operation fails, tells nobody or finds the queue full arrives all the same,
/// when its sender polls.
pub fn a_batch_without_its_last_operation_arrives<B: Bench>() {
    for last in 0..3 {
        let mut rig = Rig::<B>::new(2);
        let peer = rig.connect(0, 1);
        let (_region, key) = rig.share(1, 64, Access::WRITE);
        let warm = rig.run(0, |endpoint, context| endpoint.resolve(peer, key, context));
        assert_eq!(warm, Ok(Value::Nothing));
        let _ = rig.endpoint(1).arm();
        let told = Operation::new(0).quiet().notify(Notify::COMPLETER);
        let put = |rig: &mut Rig<B>, offset, operation| {
            let target = Target::new(key, offset);
            rig.endpoint(0).put(peer, Source::Bytes(b"x"), target, operation)
        };
        let mut sent = 0;
        while last == 2 || sent < 3 {
            match put(&mut rig, 0, told.more()) {
                Ok(_) => sent += 1,
                Err(OperationError::WouldBlock) => break,
                Err(error) => panic!("{error}"),
            }
        }
        match last {
            0 => drop(put(&mut rig, 64, told)),
            1 => drop(put(&mut rig, 0, Operation::new(0).quiet())),
            _ => {}
        }
        // Only the sender polls until the receiver's sleep would have ended.
        rig.endpoint(0).poll(1, &mut |_| {});
        assert_eq!(rig.notifications(1, sent).len(), sent, "case {last}");
    }
}

/// A cancelled operation has done nothing; one that could not be cancelled has done all.
pub fn a_cancelled_operation_has_done_nothing<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 128 * 8, Access::WRITE);
    let (_bulk, bulk) = rig.share(1, 1 << 20, Access::WRITE);
    let long = vec![9; 1 << 20];
    let context = rig.context();
    let (source, operation) = (Source::Bytes(&long[..]), Operation::new(context).quiet());
    let put = rig.endpoint(0).put(peer, source, Target::new(bulk, 0), operation);
    assert!(put.is_ok(), "{put:?}");
    let mut started = Vec::new();
    for word in 0..128_u64 {
        let context = rig.context();
        let (source, target) = (1_u64.to_le_bytes(), Target::new(key, word * 8));
        let put =
            rig.endpoint(0).put(peer, Source::Bytes(&source), target, Operation::new(context));
        started.push((word, context, put));
    }
    for (_, context, _) in started.iter().step_by(2) {
        assert_eq!(rig.endpoint(0).cancel(peer, *context), Ok(()));
    }
    for (word, context, put) in started {
        let expected = match rig.finish(0, context, put) {
            Ok(_) => 1,
            Err(error) => {
                assert_eq!((error, word % 2), (OperationError::Cancelled, 0));
                0
            }
        };
        rig.settle();
        assert_eq!(region.load(word * 8), Ok(expected), "word {word}");
    }
}

/// An operation that is cancelled at any moment of its way has done all or nothing, and its end
/// says which.
pub fn an_operation_that_is_cancelled_on_its_way_tells_whether_it_is_done<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 64 * 8, Access::WRITE);
    let mut done = 0;
    for word in 0..12_u64 {
        let context = rig.context();
        let (source, target) = (1_u64.to_le_bytes(), Target::new(key, word * 8));
        let put =
            rig.endpoint(0).put(peer, Source::Bytes(&source), target, Operation::new(context));
        for _ in 0..word {
            rig.bench.progress();
        }
        assert_eq!(rig.endpoint(0).cancel(peer, context), Ok(()));
        let end = rig.finish(0, context, put);
        rig.settle();
        let expected = match end {
            Ok(_) => 1,
            Err(OperationError::Cancelled) => 0,
            Err(other) => panic!("{other}"),
        };
        assert_eq!(region.load(word * 8), Ok(expected), "after {word} steps");
        done += expected;
    }
    assert!(done > 0, "an operation that is over cannot be cancelled");
}

/// Cancelling what does not exist, or has ended, has no effect.
pub fn a_cancel_without_its_operation_has_no_effect<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 64, Access::WRITE);
    let context = rig.context();
    assert_eq!(rig.endpoint(0).cancel(peer, context), Ok(()));
    let target = Target::new(key, 0);
    let put = rig.endpoint(0).put(peer, Source::Bytes(&[1; 8]), target, Operation::new(context));
    assert_eq!(rig.finish(0, context, put), Ok(Value::Nothing));
    assert_eq!(rig.endpoint(0).cancel(peer, context), Ok(()));
    rig.settle();
    assert_eq!(rig.take_completion(0, context), None);
    assert_eq!(region.load(0), Ok(u64::from_le_bytes([1; 8])));
}

/// The report of a quiet operation: `None` when it ended well.
fn reported<B: Bench>(
    rig: &mut Rig<B>,
    context: u64,
    issued: Result<weft_fabric::Issued, OperationError>,
) -> Option<Result<Value, OperationError>> {
    if let Err(error) = issued {
        return Some(Err(error));
    }
    rig.settle();
    let completion = rig.take_completion(0, context);
    let of_it = |seen: &Seen| matches!(seen, Seen::Completion(end) if end.context == context);
    assert!(!rig.seen(0).iter().any(of_it), "an operation ends once");
    completion
}
