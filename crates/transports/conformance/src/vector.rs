//! Cases: vectored put and get, put with signal.

use weft_fabric::{
    Access, Endpoint, Issued, LocalRange, Notify, Operation, OperationError, Peer, Region,
    RemoteKey, Signal, SignalChange, Source, Target, Value,
};

use crate::{Bench, Rig, pattern};

/// Longer than a descriptor, so that a put travels in several pieces.
const LONG: u64 = (8 << 20) + 4096;

/// A vectored put writes each range, from plain memory and from a region, and no other byte. It
/// completes once and notifies once.
pub fn a_vectored_put_writes_every_range_and_tells_it_once<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (first, one) = rig.share(1, 256, Access::WRITE);
    let (second, two) = rig.share(1, 64, Access::WRITE);
    let local = rig.local(0, &pattern(1, 100));
    let bytes = pattern(2, 30);
    let notify = Notify::COMPLETER.class(9).immediate(77);
    let result = rig.run(0, |endpoint, context| {
        let from_region = Source::Region(LocalRange::new(&local, 5, 60));
        let ranges = [
            (Source::Bytes(&bytes[..10]), Target::new(one, 100)),
            (from_region, Target::new(two, 4)),
            (Source::Bytes(&[]), Target::new(one, 256)),
            (Source::Bytes(&bytes[10..]), Target::new(one, 120)),
        ];
        endpoint.put_vectored(peer, &ranges, Operation::new(context).notify(notify))
    });
    assert_eq!(result, Ok(Value::Nothing));
    let mut expected = [0; 256];
    expected[100..110].copy_from_slice(&bytes[..10]);
    expected[120..140].copy_from_slice(&bytes[10..]);
    assert_eq!(contents(&first, 256), expected);
    let mut expected = [0; 64];
    expected[4..].copy_from_slice(&pattern(1, 100)[5..65]);
    assert_eq!(contents(&second, 64), expected);
    let told = rig.notifications(1, 1);
    assert_eq!((told[0].key, told[0].offset, told[0].length), (one, 100, 90));
    assert_eq!((told[0].class, told[0].immediate), (9, 77));
    rig.settle();
    assert!(rig.take_notifications(1).is_empty(), "it is told once");
}

/// A vectored put with one range that is refused writes nothing.
pub fn a_vectored_put_writes_all_or_nothing<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 64, Access::WRITE);
    let (_other, read_only) = rig.share(1, 64, Access::READ);
    for (wrong, expected) in [
        (Target::new(key, 60), OperationError::OutOfBounds { offset: 60, length: 8, region: 64 }),
        (
            Target::new(read_only, 0),
            OperationError::AccessDenied { command: weft_fabric::Command::Put },
        ),
        (Target::new(RemoteKey(!key.0), 0), OperationError::InvalidKey),
    ] {
        let result = rig.run(0, |endpoint, context| {
            let bytes = Source::Bytes(&[1; 8]);
            let ranges = [(bytes, Target::new(key, 0)), (bytes, wrong)];
            endpoint.put_vectored(peer, &ranges, Operation::new(context))
        });
        assert_eq!(result, Err(expected));
        assert_eq!(contents(&region, 64), [0; 64]);
    }
}

/// A vectored operation needs a range.
pub fn a_vectored_operation_without_ranges_is_refused<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let put = |endpoint: &mut B::Endpoint, context| -> Result<Issued, OperationError> {
        endpoint.put_vectored(peer, &[], Operation::new(context))
    };
    assert_eq!(rig.run(0, put), Err(OperationError::Empty));
    let get = |endpoint: &mut B::Endpoint, context| -> Result<Issued, OperationError> {
        endpoint.get_vectored(peer, &[], Operation::new(context))
    };
    assert_eq!(rig.run(0, get), Err(OperationError::Empty));
}

/// A vectored get reads each range to its place.
pub fn a_vectored_get_reads_every_range<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, LONG, Access::READ);
    let long = usize::try_from(LONG).expect("a length in memory");
    let bytes = pattern(3, long);
    region.write(0, &bytes).expect("inside");
    let local = rig.local(0, &vec![0; long + 64]);
    let result = rig.run(0, |endpoint, context| {
        let ranges = [
            (Target::new(key, 50), LocalRange::new(&local, 0, 7)),
            (Target::new(key, 0), LocalRange::new(&local, 64, LONG)),
            (Target::new(key, 10), LocalRange::new(&local, 20, 30)),
        ];
        endpoint.get_vectored(peer, &ranges, Operation::new(context))
    });
    assert_eq!(result, Ok(Value::Nothing));
    let mut expected = vec![0; long + 64];
    expected[..7].copy_from_slice(&bytes[50..57]);
    expected[20..50].copy_from_slice(&bytes[10..40]);
    expected[64..].copy_from_slice(&bytes);
    assert!(contents(&local, long + 64) == expected, "each range is at its place");
    let outside = rig.run(0, |endpoint, context| {
        let ranges = [
            (Target::new(key, 0), LocalRange::new(&local, 0, 8)),
            (Target::new(key, LONG), LocalRange::new(&local, 8, 1)),
        ];
        endpoint.get_vectored(peer, &ranges, Operation::new(context))
    });
    let refused = OperationError::OutOfBounds { offset: LONG, length: 1, region: LONG };
    assert_eq!(outside, Err(refused));
}

/// A signal sets its word, or adds to it.
pub fn a_signal_sets_or_adds<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 64, Access::all());
    for (change, expected) in [
        (SignalChange::Set(5), 5),
        (SignalChange::Add(7), 12),
        (SignalChange::Add(u64::MAX), 11),
        (SignalChange::Set(0), 0),
    ] {
        let signal = Signal { target: Target::new(key, 16), change };
        assert_eq!(
            put_signal(&mut rig, peer, b"data", Target::new(key, 0), signal),
            Ok(Value::Nothing)
        );
        assert_eq!(region.load(16), Ok(expected));
        assert_eq!(&contents(&region, 4), b"data");
        region.write(0, &[0; 4]).expect("inside");
    }
}

/// A reader that sees the signal sees all of the data.
pub fn a_signal_follows_its_data<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (data, to) = rig.share(1, LONG, Access::WRITE);
    let (words, word) = rig.share(1, 64, Access::all());
    let last = LONG - 8;
    for round in 1..=4_u64 {
        let bytes = round.to_le_bytes().repeat(usize::try_from(LONG / 8).expect("a length"));
        let context = rig.context();
        let signal = Signal { target: Target::new(word, 8), change: SignalChange::Add(1) };
        let source = Source::Bytes(&bytes);
        let operation = Operation::new(context);
        let target = Target::new(to, 0);
        let issued = rig.endpoint(0).put_signal(peer, source, target, signal, operation);
        rig.until("a signal", |rig| {
            if words.load(8) == Ok(round) {
                return true;
            }
            rig.turn();
            false
        });
        assert_eq!((data.load(0), data.load(last)), (Ok(round), Ok(round)), "data came first");
        assert_eq!(rig.finish(0, context, issued), Ok(Value::Nothing));
    }
}

/// A put whose signal is refused writes nothing, and makes no signal if it is refused itself.
pub fn a_signal_and_its_data_are_refused_together<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 64, Access::READ | Access::WRITE);
    let (words, all) = rig.share(1, 64, Access::all());
    let command = weft_fabric::Command::Put;
    let signal = |key, offset, change| Signal { target: Target::new(key, offset), change };
    let refusals = [
        (
            signal(key, 0, SignalChange::Add(1)),
            Target::new(key, 8),
            OperationError::AccessDenied { command },
        ),
        (
            signal(all, 4, SignalChange::Set(1)),
            Target::new(key, 8),
            OperationError::Misaligned { offset: 4, alignment: 8 },
        ),
        (
            signal(all, 64, SignalChange::Set(1)),
            Target::new(key, 8),
            OperationError::OutOfBounds { offset: 64, length: 8, region: 64 },
        ),
        (
            signal(all, 0, SignalChange::Set(1)),
            Target::new(key, 62),
            OperationError::OutOfBounds { offset: 62, length: 4, region: 64 },
        ),
    ];
    for (signal, target, expected) in refusals {
        assert_eq!(put_signal(&mut rig, peer, b"data", target, signal), Err(expected));
        assert_eq!((contents(&region, 64), words.load(0)), (vec![0; 64], Ok(0)));
    }
}

fn put_signal<B: Bench>(
    rig: &mut Rig<B>,
    peer: Peer,
    bytes: &[u8],
    target: Target,
    signal: Signal,
) -> Result<Value, OperationError> {
    rig.run(0, |endpoint, context| {
        endpoint.put_signal(peer, Source::Bytes(bytes), target, signal, Operation::new(context))
    })
}

fn contents<R: Region>(region: &R, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    region.read(0, &mut bytes).expect("inside");
    bytes
}
