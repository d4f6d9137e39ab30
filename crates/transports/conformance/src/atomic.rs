//! Cases: atomics in both widths, and locks.

use weft_fabric::{
    Access, Atomic, AtomicOperation, Command, Endpoint, Operation, OperationError, Peer, Region,
    Signal, SignalChange, Source, Target, Value, Width,
};

use crate::{Bench, Rig};

const OPERATIONS: [AtomicOperation; 7] = [
    AtomicOperation::Read,
    AtomicOperation::FetchAdd,
    AtomicOperation::Swap,
    AtomicOperation::CompareSwap,
    AtomicOperation::And,
    AtomicOperation::Or,
    AtomicOperation::Xor,
];

/// Values of words and operands, including the limits.
const VALUES: [u64; 6] =
    [0, 1, 0x7fff_ffff, 0xffff_ffff, 0x8000_0000_0000_0000, 0xfedc_ba98_7654_3210];

/// Every operation in both widths returns the former value and stores the right one.
pub fn every_atomic_works_in_both_widths<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 64, Access::all());
    for operation in OPERATIONS {
        for width in [Width::Bits32, Width::Bits64] {
            for old in VALUES {
                for operand in VALUES {
                    let compares = [old, !old];
                    for compare in compares {
                        let atomic = Atomic { compare, ..Atomic::new(operation, width, operand) };
                        for atomic in [atomic, atomic.without_result()] {
                            region.store(8, old).expect("aligned");
                            let result = run(&mut rig, peer, Target::new(key, 8), atomic);
                            let word = region.load(8).expect("aligned");
                            check(atomic, old, result, word);
                        }
                    }
                }
            }
        }
    }
}

/// An atomic changes only its own word, including the upper half of a 64-bit word.
pub fn an_atomic_changes_only_its_word<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 32, Access::all());
    for offset in (0..=28).step_by(4) {
        region.write(0, &[0xff; 32]).expect("inside");
        let add = Atomic::new(AtomicOperation::FetchAdd, Width::Bits32, 1);
        let result = run(&mut rig, peer, Target::new(key, offset), add);
        assert_eq!(result, Ok(Value::Word(0xffff_ffff)));
        let mut expected = [0xff; 32];
        let place = usize::try_from(offset).expect("small");
        expected[place..place + 4].fill(0);
        let mut found = [0; 32];
        region.read(0, &mut found).expect("inside");
        assert_eq!(found, expected);
    }
}

/// An atomic's offset must be a multiple of its width.
pub fn a_misaligned_atomic_is_refused<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 64, Access::all());
    for width in [Width::Bits32, Width::Bits64] {
        let alignment = width.bytes();
        for offset in (0..16).filter(|offset| offset % alignment != 0) {
            let add = Atomic::new(AtomicOperation::FetchAdd, width, 1);
            let result = run(&mut rig, peer, Target::new(key, offset), add);
            assert_eq!(result, Err(OperationError::Misaligned { offset, alignment }));
        }
    }
    assert_eq!((region.load(0), region.load(8)), (Ok(0), Ok(0)), "nothing was written");
}

/// A key that grants reading alone allows the atomic read and no other atomic.
pub fn an_atomic_read_needs_the_right_to_read_alone<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 64, Access::READ);
    region.store(16, 0x0102_0304_0506_0708).expect("aligned");
    for (width, value) in [(Width::Bits64, 0x0102_0304_0506_0708), (Width::Bits32, 0x0506_0708)] {
        assert_eq!(
            run(&mut rig, peer, Target::new(key, 16), Atomic::read(width)),
            Ok(Value::Word(value))
        );
        let denied = Err(OperationError::AccessDenied { command: Command::Atomic });
        for atomic in [Atomic::write(width, 0), Atomic::new(AtomicOperation::Or, width, 0)] {
            assert_eq!(run(&mut rig, peer, Target::new(key, 16), atomic), denied);
        }
    }
    let (_, key) = rig.share(1, 64, Access::WRITE);
    let read = run(&mut rig, peer, Target::new(key, 0), Atomic::read(Width::Bits64));
    assert_eq!(read, Err(OperationError::AccessDenied { command: Command::Atomic }));
}

/// Additions of five endpoints to one word sum up exactly, and each returns another former value.
pub fn additions_of_many_endpoints_sum_exactly<B: Bench>() {
    const ENDPOINTS: usize = 5;
    let mut rig = Rig::<B>::new(ENDPOINTS + 1);
    let peers: Vec<Peer> = (1..=ENDPOINTS).map(|number| rig.connect(number, 0)).collect();
    let (region, key) = rig.share(0, 8, Access::all());
    let mut seen = Vec::new();
    for _ in 0..200 {
        let mut started = Vec::new();
        for (number, peer) in (1..=ENDPOINTS).zip(&peers) {
            let context = rig.context();
            let (target, add) = (Target::new(key, 0), Atomic::fetch_add(3));
            let issued = rig.endpoint(number).atomic(*peer, target, add, Operation::new(context));
            started.push((number, context, issued));
        }
        for (number, context, issued) in started {
            let value = rig.finish(number, context, issued).expect("the key is valid");
            seen.push(value.word().expect("it fetches"));
        }
    }
    let count = u64::try_from(200 * ENDPOINTS).expect("small");
    assert_eq!(region.load(0), Ok(3 * count));
    seen.sort_unstable();
    let expected: Vec<u64> = (0..count).map(|number| 3 * number).collect();
    assert_eq!(seen, expected);
}

/// Additions, signals and additions of 32 bits from several sides change one word exactly, with
/// many of them under way at a time. One of the two that add is on the node of the word, where the
/// bench has several.
pub fn additions_from_all_sides_sum_exactly<B: Bench>() {
    const AT_A_TIME: usize = 20;
    let mut rig = Rig::<B>::new(3);
    let (region, key) = rig.share(1, 16, Access::all());
    let peers = [0, 2].map(|number| (number, rig.connect(number, 1)));
    let word = Target::new(key, 0);
    let half = Atomic { width: Width::Bits32, ..Atomic::fetch_add(1) };
    for (number, peer) in peers {
        // The first use of a key may be refused.
        let nothing = Atomic::fetch_add(0);
        let added = rig.run(number, |endpoint, context| {
            endpoint.atomic(peer, word, nothing, Operation::new(context))
        });
        added.expect("the key is valid");
    }
    for _ in 0..20 {
        let mut started = Vec::new();
        for turn in 0..AT_A_TIME {
            for (number, peer) in peers {
                let context = rig.context();
                let operation = Operation::new(context);
                let endpoint = rig.endpoint(number);
                let issued = match turn % 3 {
                    0 => endpoint.atomic(peer, word, Atomic::fetch_add(1), operation),
                    1 => endpoint.atomic(peer, word, half, operation),
                    _ => {
                        let (source, at) = (Source::Bytes(b"8 bytes!"), Target::new(key, 8));
                        let signal = Signal { target: word, change: SignalChange::Add(1) };
                        endpoint.put_signal(peer, source, at, signal, operation)
                    }
                };
                started.push((number, context, issued));
            }
        }
        for (number, context, issued) in started {
            rig.finish(number, context, issued).expect("the key is valid");
        }
    }
    assert_eq!(region.load(0), Ok(20 * 2 * AT_A_TIME as u64));
}

/// If several endpoints try the same compare-and-swap, one succeeds in each round.
pub fn one_of_many_compare_swaps_wins<B: Bench>() {
    let mut rig = Rig::<B>::new(5);
    let peers: Vec<Peer> = (1..5).map(|number| rig.connect(number, 0)).collect();
    let (region, key) = rig.share(0, 8, Access::all());
    for round in 0..100 {
        let mut started = Vec::new();
        for (number, peer) in (1..5).zip(&peers) {
            let context = rig.context();
            let swap = Atomic::compare_swap(round, round + 1);
            let target = Target::new(key, 0);
            let issued = rig.endpoint(number).atomic(*peer, target, swap, Operation::new(context));
            started.push((number, context, issued));
        }
        let mut winners = 0;
        for (number, context, issued) in started {
            let old = rig.finish(number, context, issued).expect("the key is valid");
            winners += u32::from(old == Value::Word(round));
        }
        assert_eq!((winners, region.load(0)), (1, Ok(round + 1)));
    }
}

fn run<B: Bench>(
    rig: &mut Rig<B>,
    peer: Peer,
    target: Target,
    atomic: Atomic,
) -> Result<Value, OperationError> {
    rig.run(0, |endpoint, context| endpoint.atomic(peer, target, atomic, Operation::new(context)))
}

fn check(atomic: Atomic, old: u64, result: Result<Value, OperationError>, word: u64) {
    let mask = match atomic.width {
        Width::Bits32 => 0xffff_ffff,
        Width::Bits64 => u64::MAX,
    };
    let former = if atomic.fetches { Value::Word(old & mask) } else { Value::Nothing };
    assert_eq!(result, Ok(former), "the result of {atomic:?}");
    // Written out here, since the suite must not depend on code that transports use.
    let expected = match atomic.operation {
        AtomicOperation::Read => old,
        AtomicOperation::FetchAdd => old.wrapping_add(atomic.operand),
        AtomicOperation::Swap => atomic.operand,
        AtomicOperation::CompareSwap if old & mask == atomic.compare & mask => atomic.operand,
        AtomicOperation::CompareSwap => old,
        AtomicOperation::And => old & atomic.operand,
        AtomicOperation::Or => old | atomic.operand,
        AtomicOperation::Xor => old ^ atomic.operand,
    };
    assert_eq!(word, expected & mask | old & !mask, "{atomic:?} on {old:#x}");
}
