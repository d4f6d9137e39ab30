//! Cases: put, get, immediate puts and fences.

use weft_fabric::{
    Access, Endpoint, LocalRange, Operation, OperationError, Peer, Region, Source, Target, Value,
};

use crate::{Bench, Rig, pattern};

/// Sizes around every limit: words, cache lines, the MTU of 496, pages, the 8 MiB descriptor.
const SIZES: [usize; 12] = [0, 1, 7, 8, 63, 64, 65, 496, 497, 4096, 65_536, (8 << 20) + 1];

/// Bytes around a target that must not change.
const MARGIN: usize = 64;

/// A put from plain memory writes all its bytes and no others.
pub fn a_put_of_any_size_arrives_whole<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, length_of(SIZES[11] + 2 * MARGIN), Access::WRITE);
    for size in SIZES {
        let bytes = pattern(length_of(size), size);
        put(&mut rig, peer, &bytes, Target::new(key, length_of(MARGIN)));
        assert_holds(&region, MARGIN, &bytes);
        region.write(0, &vec![0; size + 2 * MARGIN]).expect("inside");
    }
}

/// A put from a region writes all its bytes and no others.
pub fn a_put_from_a_region_arrives_whole<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, length_of(SIZES[11] + 2 * MARGIN), Access::WRITE);
    let bytes = pattern(11, SIZES[11] + 5);
    let local = rig.local(0, &bytes);
    for size in SIZES {
        let result = rig.run(0, |endpoint, context| {
            let source =
                Source::Region(LocalRange { region: &local, offset: 5, length: length_of(size) });
            let target = Target::new(key, length_of(MARGIN));
            endpoint.put(peer, source, target, Operation::new(context))
        });
        assert_eq!(result, Ok(Value::Nothing));
        assert_holds(&region, MARGIN, &bytes[5..5 + size]);
        region.write(0, &vec![0; size + 2 * MARGIN]).expect("inside");
    }
}

/// A get reads the bytes of the region and writes no others.
pub fn a_get_of_any_size_reads_the_region<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, length_of(SIZES[11] + 3), Access::READ);
    let bytes = pattern(12, SIZES[11] + 3);
    region.write(0, &bytes).expect("inside");
    let local = rig.local(0, &vec![0; SIZES[11] + 2 * MARGIN]);
    for size in SIZES {
        get(&mut rig, peer, Target::new(key, 3), &local, MARGIN, size);
        assert_holds(&local, MARGIN, &bytes[3..3 + size]);
        local.write(0, &vec![0; size + 2 * MARGIN]).expect("inside");
    }
}

/// Source and target may have any alignment.
pub fn every_offset_inside_a_cache_line_works<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 512, Access::READ | Access::WRITE);
    let local = rig.local(0, &[0; 512]);
    for offset in 0..64 {
        for size in [1, 8, 67, 130] {
            let bytes = pattern(length_of(offset), size);
            region.write(0, &[0; 512]).expect("inside");
            put(&mut rig, peer, &bytes, Target::new(key, length_of(MARGIN + offset)));
            assert_holds(&region, MARGIN + offset, &bytes);
            local.write(0, &[0; 512]).expect("inside");
            let source = Target::new(key, length_of(MARGIN + offset));
            get(&mut rig, peer, source, &local, MARGIN + 63 - offset, size);
            assert_holds(&local, MARGIN + 63 - offset, &bytes);
        }
    }
}

/// Plain memory that was put may be overwritten when the call returns.
pub fn bytes_of_a_put_are_captured_by_the_call<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 8192, Access::WRITE);
    let mut bytes = pattern(13, 8000);
    let sent = bytes.clone();
    let context = rig.context();
    let target = Target::new(key, 64);
    let issued = rig.endpoint(0).put(peer, Source::Bytes(&bytes), target, Operation::new(context));
    bytes.fill(0xee);
    assert_eq!(rig.finish(0, context, issued), Ok(Value::Nothing));
    assert_holds(&region, 64, &sent);
}

/// An immediate put writes the low 1 to 8 bytes of its value, little-endian.
pub fn an_immediate_put_writes_its_low_bytes<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 256, Access::WRITE);
    let value = 0x8877_6655_4433_2211_u64;
    for length in 1..=8u8 {
        for offset in 64..72 {
            region.write(0, &[0; 256]).expect("inside");
            let result = rig.run(0, |endpoint, context| {
                let target = Target::new(key, offset);
                endpoint.put_immediate(peer, value, length, target, Operation::new(context))
            });
            assert_eq!(result, Ok(Value::Nothing));
            let place = usize::try_from(offset).expect("small");
            assert_holds(&region, place, &value.to_le_bytes()[..usize::from(length)]);
        }
    }
}

/// An immediate put of another length is refused.
pub fn an_immediate_put_of_0_or_9_bytes_is_refused<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (_region, key) = rig.share(1, 256, Access::WRITE);
    for length in [0, 9, 255] {
        let result = rig.run(0, |endpoint, context| {
            endpoint.put_immediate(peer, 1, length, Target::new(key, 0), Operation::new(context))
        });
        assert_eq!(result, Err(OperationError::InvalidLength { length: u64::from(length) }));
    }
}

/// A fence completes when everything before it is visible at the peer.
pub fn a_fence_completes_after_everything_before_it<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 64 * 1024, Access::WRITE);
    let bytes = pattern(14, 1024);
    let mut started = Vec::new();
    for number in 0..64 {
        let context = rig.context();
        let target = Target::new(key, number * 1024);
        let source = Source::Bytes(&bytes);
        let issued = rig.endpoint(0).put(peer, source, target, Operation::new(context));
        started.push((context, issued));
    }
    let fenced = rig.run(0, |endpoint, context| endpoint.fence(peer, context));
    assert_eq!(fenced, Ok(Value::Nothing));
    let mut all = vec![0; 64 * 1024];
    region.read(0, &mut all).expect("inside");
    assert!(all.chunks(1024).all(|part| part == bytes));
    for (context, issued) in started {
        assert_eq!(rig.finish(0, context, issued), Ok(Value::Nothing));
    }
}

/// A fence with nothing before it completes as well.
pub fn a_fence_without_operations_completes<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    for _ in 0..3 {
        assert_eq!(
            rig.run(0, |endpoint, context| endpoint.fence(peer, context)),
            Ok(Value::Nothing)
        );
    }
}

/// More operations than may be pending are started. Some may be refused, all others complete once.
pub fn more_operations_than_can_be_pending_are_refused_or_end<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 1 << 16, Access::WRITE);
    let wanted = rig.endpoint(0).capabilities().operations_max.min(4096) * 2;
    let mut started = Vec::new();
    let mut refused = 0;
    let mut last = 0;
    for number in 0..length_of(wanted) {
        let context = rig.context();
        let target = Target::new(key, number % 8192 * 8);
        let issued =
            rig.endpoint(0).put_immediate(peer, number, 8, target, Operation::new(context));
        if issued == Err(OperationError::WouldBlock) {
            refused += 1;
        } else {
            last = number;
            started.push((context, issued));
        }
    }
    assert_eq!(started.len() + refused, wanted);
    for (context, issued) in started {
        assert_eq!(rig.finish(0, context, issued), Ok(Value::Nothing));
    }
    assert_eq!(region.load(last % 8192 * 8), Ok(last));
    put(&mut rig, peer, &[1; 8], Target::new(key, 0));
    assert_eq!(region.load(0), Ok(0x0101_0101_0101_0101));
}

/// Puts and gets in both directions between the same two endpoints.
pub fn both_sides_put_and_get_at_once<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let (there, back) = (rig.connect(0, 1), rig.connect(1, 0));
    let (left, left_key) = rig.share(0, 4096, Access::all());
    let (right, right_key) = rig.share(1, 4096, Access::all());
    for round in 0..64 {
        let bytes = pattern(round, 1000);
        for (from, peer, key) in [(0, there, right_key), (1, back, left_key)] {
            let result = rig.run(from, |endpoint, context| {
                let target = Target::new(key, round);
                endpoint.put(peer, Source::Bytes(&bytes), target, Operation::new(context))
            });
            assert_eq!(result, Ok(Value::Nothing));
        }
        let mut read = vec![0; 1000];
        for region in [&left, &right] {
            region.read(round, &mut read).expect("inside");
            assert_eq!(read, bytes);
        }
    }
}

fn put<B: Bench>(rig: &mut Rig<B>, peer: Peer, bytes: &[u8], target: Target) {
    let result = rig.run(0, |endpoint, context| {
        endpoint.put(peer, Source::Bytes(bytes), target, Operation::new(context))
    });
    assert_eq!(result, Ok(Value::Nothing));
}

fn get<B: Bench>(
    rig: &mut Rig<B>,
    peer: Peer,
    source: Target,
    local: &<B::Endpoint as Endpoint>::Region,
    offset: usize,
    size: usize,
) {
    let (offset, size) = (length_of(offset), length_of(size));
    let result = rig.run(0, |endpoint, context| {
        endpoint.get(peer, source, LocalRange::new(local, offset, size), Operation::new(context))
    });
    assert_eq!(result, Ok(Value::Nothing));
}

/// Asserts that `bytes` are at `offset`, and that the margins around them are zero.
fn assert_holds(region: &impl Region, offset: usize, bytes: &[u8]) {
    let mut found = vec![1; bytes.len() + 2 * MARGIN];
    region.read(length_of(offset - MARGIN), &mut found).expect("inside");
    let (before, rest) = found.split_at(MARGIN);
    let (inside, after) = rest.split_at(bytes.len());
    assert!(before.iter().chain(after).all(|byte| *byte == 0), "bytes in the margins changed");
    assert!(inside == bytes, "{} bytes at {offset} differ", bytes.len());
}

fn length_of(size: usize) -> u64 {
    u64::try_from(size).expect("a size fits 64 bits")
}
