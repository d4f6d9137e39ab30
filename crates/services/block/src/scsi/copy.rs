//! EXTENDED COPY: blocks from one unit to another, without a way over the initiator.
//!
//! Source: SPC-4 sections 6.4 and 6.18, with list identifiers of one byte (LID1), descriptors of
//! units by their designators (E4h) and block-to-block segments (02h).

use std::collections::VecDeque;
use std::sync::Arc;

use super::opcodes::Access;
use super::sense::{Key, Sense};
use super::unit::{Directory, Link, Unit};
use super::{
    BLOCK_BYTES, COPY_BYTES_MAX, COPY_LIST_BYTES_MAX, COPY_SEGMENTS_MAX, COPY_TARGETS_MAX,
};

const HEAD_BYTES: usize = 16;
const TARGET_BYTES: usize = 32;
const SEGMENT_BYTES: usize = 28;
/// Results that a unit remembers.
const RESULTS_MAX: usize = 16;
/// Bytes that are read and written at a time.
const STEP_BYTES: usize = 1 << 20;

const TOO_MANY_TARGETS: Sense = Sense::new(Key::IllegalRequest, 0x26, 0x06);
const UNKNOWN_TARGET: Sense = Sense::new(Key::IllegalRequest, 0x26, 0x07);
const TOO_MANY_SEGMENTS: Sense = Sense::new(Key::IllegalRequest, 0x26, 0x08);
const UNKNOWN_SEGMENT: Sense = Sense::new(Key::IllegalRequest, 0x26, 0x09);
const INLINE_TOO_LONG: Sense = Sense::new(Key::IllegalRequest, 0x26, 0x0b);
/// UNREACHABLE COPY TARGET.
const UNREACHABLE: Sense = Sense::new(Key::CopyAborted, 0x08, 0x04);
const ABORTED: Sense = Sense::new(Key::CopyAborted, 0x00, 0x00);

/// The end of a copy, for RECEIVE COPY RESULTS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Result {
    list: u8,
    is_good: bool,
    segments: u16,
    bytes: u64,
}

struct Segment {
    from: Arc<Unit>,
    to: Arc<Unit>,
    from_block: u64,
    to_block: u64,
    blocks: u64,
}

/// Runs a copy with its parameters, and remembers the result if it has a list identifier.
pub fn run(
    unit: &Arc<Unit>,
    link: &Link,
    data: &[u8],
    directory: &dyn Directory,
) -> std::result::Result<(), Sense> {
    if data.is_empty() {
        return Ok(());
    }
    const NO_LIST: u8 = 3;
    let usage = data.get(1).map_or(NO_LIST, |byte| (byte >> 3) & 3);
    let mut result = Result { list: data[0], is_good: false, segments: 0, bytes: 0 };
    let done = segments(unit, data, directory).and_then(|segments| {
        for segment in &segments {
            copy(unit, link, segment)?;
            result.segments += 1;
            result.bytes += segment.blocks * u64::from(BLOCK_BYTES);
        }
        Ok(())
    });
    result.is_good = done.is_ok();
    if usage != NO_LIST {
        let copies = &mut unit.state.lock().copies;
        copies.retain(|(by, old)| (*by, old.list) != (link.number(), result.list));
        if copies.len() == RESULTS_MAX {
            copies.pop_front();
        }
        copies.push_back((link.number(), result));
    }
    done
}

fn segments(
    unit: &Arc<Unit>,
    data: &[u8],
    directory: &dyn Directory,
) -> std::result::Result<Vec<Segment>, Sense> {
    let head = data.get(..HEAD_BYTES).ok_or(Sense::PARAMETER_LENGTH)?;
    let targets = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let list = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize;
    if u32::from_be_bytes([head[12], head[13], head[14], head[15]]) != 0 {
        return Err(INLINE_TOO_LONG);
    }
    let whole = targets.saturating_add(list);
    if whole > COPY_LIST_BYTES_MAX as usize || whole > data.len() - HEAD_BYTES {
        return Err(Sense::PARAMETER_LENGTH);
    }
    if !targets.is_multiple_of(TARGET_BYTES) {
        return Err(Sense::parameter(2));
    }
    let (of_targets, of_segments) = data[HEAD_BYTES..HEAD_BYTES + whole].split_at(targets);
    if of_targets.len() / TARGET_BYTES > usize::from(COPY_TARGETS_MAX) {
        return Err(TOO_MANY_TARGETS);
    }
    let units: Vec<Option<Arc<Unit>>> = of_targets
        .chunks_exact(TARGET_BYTES)
        .map(|target| target_unit(unit, target, directory))
        .collect::<std::result::Result<_, _>>()?;
    if of_segments.len() / SEGMENT_BYTES > usize::from(COPY_SEGMENTS_MAX) {
        return Err(TOO_MANY_SEGMENTS);
    }
    // A segment of another kind has another length.
    let mut rest = of_segments;
    let mut all = Vec::new();
    while !rest.is_empty() {
        if rest[0] != 0x02 {
            return Err(UNKNOWN_SEGMENT);
        }
        let (segment, behind) =
            rest.split_at_checked(SEGMENT_BYTES).ok_or(Sense::PARAMETER_LENGTH)?;
        all.push(block_to_block(segment, &units)?);
        rest = behind;
    }
    Ok(all)
}

/// The unit of a descriptor; `None` if it names nothing that is here.
fn target_unit(
    own: &Arc<Unit>,
    target: &[u8],
    directory: &dyn Directory,
) -> std::result::Result<Option<Arc<Unit>>, Sense> {
    if target[0] != 0xe4 {
        return Err(UNKNOWN_TARGET);
    }
    let length = usize::from(target[7]);
    let name = target.get(8..8 + length).filter(|_| length <= 20).ok_or(Sense::parameter(7))?;
    if own.identity().is_named_by(target[5], name) {
        return Ok(Some(Arc::clone(own)));
    }
    Ok(directory.by_designator(target[5], name))
}

fn block_to_block(
    segment: &[u8],
    units: &[Option<Arc<Unit>>],
) -> std::result::Result<Segment, Sense> {
    let short = |at: usize| u16::from_be_bytes([segment[at], segment[at + 1]]);
    let long = |at: usize| u64::from_be_bytes(std::array::from_fn(|byte| segment[at + byte]));
    let unit = |at: usize| {
        let unit = units.get(usize::from(short(at))).and_then(Clone::clone);
        unit.ok_or(UNREACHABLE)
    };
    let segment = Segment {
        from: unit(4)?,
        to: unit(6)?,
        blocks: short(10).into(),
        from_block: long(12),
        to_block: long(20),
    };
    let is_inside = |unit: &Unit, block| unit.check_range(block, segment.blocks).is_ok();
    if !is_inside(&segment.from, segment.from_block) || !is_inside(&segment.to, segment.to_block) {
        return Err(ABORTED);
    }
    Ok(segment)
}

fn copy(own: &Arc<Unit>, link: &Link, segment: &Segment) -> std::result::Result<(), Sense> {
    // The command itself was admitted at its own unit.
    for (unit, access) in [(&segment.from, Access::Reads), (&segment.to, Access::Writes)] {
        if !Arc::ptr_eq(unit, own) && unit.permit(link, access).is_err() {
            return Err(UNREACHABLE);
        }
    }
    let size = u64::from(BLOCK_BYTES);
    let (from, to) = (segment.from.store(), segment.to.store());
    let (source, target) = (segment.from_block * size, segment.to_block * size);
    let length = segment.blocks * size;
    debug_assert!(length <= u64::from(COPY_BYTES_MAX));
    let mut buffer = vec![0; STEP_BYTES];
    // Where the ranges overlap, the copy begins at the end that nothing is copied over.
    let is_backwards = Arc::ptr_eq(&segment.from, &segment.to) && source < target;
    let mut done = 0;
    while done < length {
        let step = (length - done).min(STEP_BYTES as u64);
        let at = if is_backwards { length - done - step } else { done };
        let bytes = &mut buffer[..usize::try_from(step).expect("one step")];
        from.read(source + at, bytes).map_err(|error| failed(Sense::of_store(error)))?;
        to.write(target + at, bytes).map_err(|error| failed(Sense::of_store(error)))?;
        done += step;
    }
    Ok(())
}

/// A store failed: the copy was aborted, with the store's code.
const fn failed(sense: Sense) -> Sense {
    Sense::new(Key::CopyAborted, sense.code.0, sense.code.1)
}

/// RECEIVE COPY RESULTS.
///
/// # Errors
/// INVALID FIELD IN CDB when nothing is known of the list.
pub fn results(
    command: &[u8; 16],
    copies: &VecDeque<(u64, Result)>,
    link: u64,
) -> std::result::Result<Vec<u8>, Sense> {
    if command[1] & 0x1f == 3 {
        return Ok(operating_parameters());
    }
    let result = copies.iter().find(|(by, result)| (*by, result.list) == (link, command[2]));
    let (_, result) = result.ok_or(Sense::field(2))?;
    // Completed without errors, or with; the count is in units of KiB.
    let mut data = vec![0, 0, 0, 8, if result.is_good { 1 } else { 2 }];
    data.extend(result.segments.to_be_bytes());
    data.push(1);
    data.extend(u32::try_from(result.bytes >> 10).unwrap_or(u32::MAX).to_be_bytes());
    Ok(data)
}

fn operating_parameters() -> Vec<u8> {
    const KINDS: [u8; 2] = [0x02, 0xe4];
    let mut data = vec![0; 8];
    data.extend(COPY_TARGETS_MAX.to_be_bytes());
    data.extend(COPY_SEGMENTS_MAX.to_be_bytes());
    data.extend(COPY_LIST_BYTES_MAX.to_be_bytes());
    data.extend(COPY_BYTES_MAX.to_be_bytes());
    data.resize(36, 0);
    // One copy at a time of each list, in steps of a block.
    data.extend([1, 9, 0, 0]);
    data.resize(43, 0);
    data.push(u8::try_from(KINDS.len()).expect("2"));
    data.extend(KINDS);
    let length = u32::try_from(data.len() - 4).expect("short");
    data[..4].copy_from_slice(&length.to_be_bytes());
    data
}
