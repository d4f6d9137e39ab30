//! The fuzz target: a PE whose peers on another host send any bytes.
//!
//! The input is a list of steps: a byte that says which, a byte with a length, and so many bytes. A
//! step is a message of one of the two peers, or a call of the program of this PE.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use weft_fabric::Atomic;

use super::entry::{Breach, MESSAGE_BYTES, Place, Segment};
use super::link::Standing;
use super::machine::{Goes, Machine};
use super::own::Own;
use crate::control::Control;
use crate::space::{self, Layout};

const PES: usize = 3;
const HEAP_BYTES: usize = 4096;
const STATICS_BYTES: usize = 256;
/// Bytes behind the variables, and behind an answer, that nobody may change.
const GUARD_BYTES: usize = 256;
const PAGE: usize = 4096;
const UNTOUCHED: u8 = 0xa5;

/// The memory of the three PEs.
struct Memory {
    slots: usize,
    stride: usize,
    statics: usize,
    landing: usize,
}

static MEMORY: OnceLock<Memory> = OnceLock::new();
/// One run at a time has the memory.
static TURN: Mutex<()> = Mutex::new(());

fn forever(bytes: usize) -> usize {
    let words = vec![[0_u8; PAGE]; bytes.div_ceil(PAGE) + 1];
    let start = Box::leak(words.into_boxed_slice()).as_mut_ptr().expose_provenance();
    start.next_multiple_of(PAGE)
}

fn fill(at: usize, bytes: usize, with: u8) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(at);
    // SAFETY: callers name bytes of the memory, which is there for ever and has one user.
    unsafe { to.write_bytes(with, bytes) };
}

fn copy_of(at: usize, bytes: usize) -> Vec<u8> {
    let from = std::ptr::with_exposed_provenance::<u8>(at);
    let mut copy = vec![0; bytes];
    // SAFETY: as in `fill`.
    unsafe { std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), bytes) };
    copy
}

/// The memory, with PE 0 on this host and the others on another one.
fn memory() -> &'static Memory {
    MEMORY.get_or_init(|| {
        let control = HEAP_BYTES;
        let stride = (control + Control::BYTES).next_multiple_of(PAGE);
        let slots = forever(PES * stride);
        let statics = forever(STATICS_BYTES + GUARD_BYTES);
        let landing = forever(MESSAGE_BYTES + GUARD_BYTES);
        space::is_across_hosts(Box::new([0, 1, 1]));
        let layout = Layout {
            me: 0,
            pes: PES,
            base: slots,
            stride,
            alignment: PAGE,
            heap_bytes: HEAP_BYTES,
            control,
            statics,
            statics_bytes: STATICS_BYTES,
            statics_offset: statics.wrapping_sub(slots),
        };
        // SAFETY: all slots are memory of this process that stays, with control areas of zeros.
        unsafe { space::open(&layout) };
        Memory { slots, stride, statics, landing }
    })
}

/// Runs the steps of an input.
///
/// # Panics
/// When a message changed memory that is not symmetric, or a rule was broken without a word.
pub fn fuzz_far(input: &[u8]) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let memory = memory();
    fill(memory.slots, HEAP_BYTES, 0);
    fill(memory.statics, STATICS_BYTES, 0);
    fill(memory.statics + STATICS_BYTES, GUARD_BYTES, UNTOUCHED);
    fill(memory.landing, MESSAGE_BYTES + GUARD_BYTES, UNTOUCHED);
    let own_control = || copy_of(memory.slots + HEAP_BYTES, Control::BYTES);
    let before = own_control();
    // SAFETY: the space is open, and all answers land in memory that stays.
    let mut machine = Machine::new(PES, unsafe { Own::new() }, MESSAGE_BYTES);
    let mut left = input;
    while let Some((&[which, length], rest)) = left.split_first_chunk() {
        let bytes;
        (bytes, left) = rest.split_at(usize::from(length).min(rest.len()));
        step(&mut machine, memory, which, bytes);
    }
    assert!(own_control() == before, "the own control area has one writer");
    let guard = vec![UNTOUCHED; GUARD_BYTES];
    assert_eq!(copy_of(memory.statics + STATICS_BYTES, GUARD_BYTES), guard);
    assert_eq!(copy_of(memory.landing + MESSAGE_BYTES, GUARD_BYTES), guard);
    check_controls(memory);
}

/// Nothing lies behind the heap of a PE of another host that a message may change, but its copy of
/// the control area: a slot has no memory before that.
fn check_controls(memory: &Memory) {
    for pe in 1..PES {
        let heap = copy_of(memory.slots + pe * memory.stride, HEAP_BYTES);
        assert!(heap.iter().all(|byte| *byte == 0), "the heap of PE {pe} is elsewhere");
    }
}

fn step(machine: &mut Machine<Own>, memory: &Memory, which: u8, bytes: &[u8]) {
    let pe = 1 + usize::from(which & 1);
    let first = bytes.first().copied().unwrap_or(0);
    let place = Place { segment: Segment::Heap, offset: u64::from(first) * 8 };
    // A PE that is down refuses, and so does one with a full queue.
    match which >> 1 {
        0 => drop(machine.put(pe, place, bytes)),
        1 => drop(machine.fetch(pe, place, Atomic::fetch_add(1), Goes::ToCaller)),
        2 => drop(machine.read(pe, place, bytes.len().min(112), Goes::To(memory.landing))),
        3 => machine.confirm(pe),
        4 => drop(machine.send_eager(pe, place, bytes)),
        5 => drop(machine.take_eager(pe, place)),
        6 => drop(machine.take(first.into())),
        7 => {
            while machine.message(pe).is_some() {
                machine.sent(pe);
            }
        }
        _ => {
            let was_up = machine.standing(pe) == Standing::Up;
            let other = memory.slots + (PES - pe) * memory.stride + HEAP_BYTES;
            let before = copy_of(other, Control::BYTES);
            let received = machine.received(pe, bytes);
            assert!(copy_of(other, Control::BYTES) == before, "the copy of another PE changed");
            let Err(breach) = received else { return };
            assert!(was_up, "nothing of a PE that is down is handled");
            tell(&breach);
            machine.down(pe);
        }
    }
}

/// Whether the parts of a breach are in its words.
fn tell(breach: &Breach) {
    let text = breach.to_string();
    let numbers: &[u64] = match breach {
        Breach::Cut { wanted, left } => &[*wanted as u64, *left as u64],
        Breach::Kind(number) | Breach::Code(number) => &[u64::from(*number)],
        Breach::Length(number) | Breach::Questions(number) | Breach::Eager(number) => {
            &[*number as u64]
        }
        Breach::Outside { offset, bytes, segment } => {
            assert!(text.contains(segment), "{text}");
            &[*offset, *bytes as u64]
        }
        Breach::Unasked { id, bytes } => &[u64::from(*id), *bytes as u64],
        Breach::Taken { pieces, sent } => &[*pieces as u64, *sent as u64],
    };
    for number in numbers {
        assert!(text.contains(&number.to_string()), "{number} is missing: {text}");
    }
    TOLD.store(true, Ordering::Relaxed);
}

/// Whether any run has told of a breach, for tests that would prove nothing without one.
pub static TOLD: AtomicBool = AtomicBool::new(false);
