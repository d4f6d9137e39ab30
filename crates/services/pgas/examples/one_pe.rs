//! One PE as a library, so that a process can hold several: each copy of the file that is loaded
//! has variables of its own. `tests/pes_as_threads.rs` loads it and runs each copy in a thread,
//! over memory that all of them have at the same addresses. There the thread sanitizer sees every
//! access of every PE, and finds those that nothing orders.
#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

use std::ffi::c_long;
use std::ops::Range;

use weft_pgas::control::{self, Control, Standing};
use weft_pgas::number::{Max, Sum};
use weft_pgas::space::{self, Layout};
use weft_pgas::team::{self, TeamHandle, WORLD};
use weft_pgas::via::World;
use weft_pgas::{active_set, amo, collective, context, lock, memory, rma, wait, waiting};

const CALL: &str = "one_pe";
const TEAM: TeamHandle = TeamHandle::of(WORLD);
const ALIGNMENT: usize = 1 << 16;
const EQUAL: i32 = 1;
const AT_LEAST: i32 = 4;
const SIGNAL_ADD: i32 = 1;
/// Elements of data that broadcasts stage, that others stage, and of long ones.
const LENGTHS: [usize; 3] = [7, 50, 3000];

const HEAP_BYTES: usize = 1 << 20;

/// Bytes of the memory of a PE.
#[unsafe(no_mangle)]
extern "C" fn weft_slot_bytes() -> usize {
    (HEAP_BYTES + Control::BYTES).next_multiple_of(ALIGNMENT)
}

/// The alignment of the memory of a PE.
#[unsafe(no_mangle)]
extern "C" fn weft_slot_alignment() -> usize {
    ALIGNMENT
}

/// Runs this copy's PE through all rounds. Zeroed memory of all PEs is at `base`, until the process
/// ends.
#[unsafe(no_mangle)]
extern "C" fn weft_run(base: usize, me: usize, pes: usize, rounds: i64) {
    let layout = Layout {
        me,
        pes,
        base,
        stride: weft_slot_bytes(),
        alignment: ALIGNMENT,
        heap_bytes: HEAP_BYTES,
        control: HEAP_BYTES,
        statics: 0,
        statics_bytes: 0,
        statics_offset: 0,
    };
    // SAFETY: the caller has the memory, and each slot has room for a control area.
    unsafe { space::open(&layout) };
    control::stand(Standing::Running);
    let starts = control::count_start();
    for pe in 0..pes {
        waiting::until(CALL, || control::is_started(pe, starts), || None);
    }
    team::begin();
    context::begin();
    memory::begin();
    for round in 0..rounds {
        for length in LENGTHS {
            collectives_of_the_world(length, round);
        }
        collectives_of_an_active_set(round);
        locks();
        signals(round);
        teams(round);
    }
    barrier();
    control::stand(Standing::Ended);
}

fn me() -> i64 {
    i64::try_from(space::me()).unwrap()
}

fn pes() -> i64 {
    i64::try_from(space::pes()).unwrap()
}

fn number(pe: i64) -> i32 {
    i32::try_from(pe).unwrap()
}

fn barrier() {
    // SAFETY: the space is open.
    unsafe { collective::barrier_all(CALL) };
}

/// Memory of the symmetric heap.
struct Symmetric(*mut i64);

impl Symmetric {
    fn new(elements: usize) -> Self {
        // SAFETY: all PEs allocate the same.
        let memory = unsafe { memory::calloc(CALL, elements, 8) };
        assert!(!memory.is_null());
        Self(memory.cast())
    }

    fn fill(&self, elements: usize, value: impl Fn(usize) -> i64) {
        for index in 0..elements {
            // SAFETY: the memory has the elements, and no PE reads them now.
            unsafe { self.0.add(index).write(value(index)) };
        }
    }

    fn expect(&self, elements: Range<usize>, value: impl Fn(usize) -> i64, of: &str) {
        for index in elements {
            // SAFETY: the memory has the elements, and no PE writes them now.
            let found = unsafe { self.0.add(index).read() };
            assert_eq!(found, value(index), "{of}: element {index} at PE {}", me());
        }
    }

    fn free(self) {
        // SAFETY: all PEs free it, and use it no more.
        unsafe { memory::free(CALL, self.0.cast()) };
    }
}

/// Each collective gets new data in memory that the one before has just left.
fn collectives_of_the_world(length: usize, round: i64) {
    let (team, own, members) = (TEAM, me(), space::pes());
    let (source, dest) = (Symmetric::new(length * members), Symmetric::new(length * members));
    let (from, to) = (source.0, dest.0);
    let value = |member: i64, index: usize| round * 7 + member * 1000 + index as i64;
    let root = number(round % members as i64);
    source.fill(length, |index| value(own, index));
    // SAFETY: the memory has room for the elements of all members.
    unsafe { collective::broadcast(CALL, team, to, from, length, root) };
    dest.expect(0..length, |index| value(root.into(), index), "broadcast");

    // The root of short broadcasts does not wait for the others, and comes to a buffer again.
    for turn in 10..16 {
        source.fill(length, |index| value(own, index) + turn);
        // SAFETY: as above.
        unsafe { collective::broadcast(CALL, team, to, from, length, 0) };
        dest.expect(0..length, |index| value(0, index) + turn, "a broadcast of several");
    }

    source.fill(length, |index| value(own, index) + 1);
    // SAFETY: as above.
    unsafe { collective::reduce::<Sum, i64>(CALL, team, to, from, length) };
    let sum = |index| (0..members as i64).map(|member| value(member, index) + 1).sum();
    dest.expect(0..length, sum, "sum");

    source.fill(length, |index| value(own, index) + 2);
    // SAFETY: as above; the source is the destination.
    unsafe { collective::reduce::<Max, i64>(CALL, team, from, from, length) };
    source.expect(0..length, |index| value(members as i64 - 1, index) + 2, "maximum in place");

    source.fill(length, |index| value(own, index) + 3);
    // SAFETY: as above.
    unsafe { collective::fcollect(CALL, team, to, from, length) };
    let joined = |index| value((index / length) as i64, index % length) + 3;
    dest.expect(0..length * members, joined, "fcollect");

    source.fill(length, |index| value(own, index) + 4);
    // SAFETY: as above.
    unsafe { collective::collect(CALL, team, to, from, length) };
    dest.expect(0..length * members, |index| joined(index) + 1, "collect");

    source.fill(length * members, |index| value(own, index) + 5);
    // SAFETY: as above.
    unsafe { collective::alltoall(CALL, team, to, from, length) };
    let sent = |index| {
        let block = usize::try_from(own).unwrap() * length;
        value((index / length) as i64, block + index % length) + 5
    };
    dest.expect(0..length * members, sent, "alltoall");

    source.fill(length, |index| value(own, index) + 6);
    // SAFETY: as above.
    unsafe { collective::inscan(CALL, team, to, from, length) };
    let up_to = |index| (0..=own).map(|member| value(member, index) + 6).sum();
    dest.expect(0..length, up_to, "inscan");
    dest.free();
    source.free();
}

fn collectives_of_an_active_set(round: i64) {
    let (length, all) = (50, usize::try_from(pes()).unwrap());
    let (source, dest) = (Symmetric::new(length), Symmetric::new(length * all));
    let flags: Symmetric = Symmetric::new(4);
    let (from, to, sync) = (source.0, dest.0, flags.0.cast::<c_long>());
    let size = number(pes());
    for turn in 0..3 {
        source.fill(length, |index| me() + round + turn + index as i64);
        // SAFETY: the memory has room for the elements of all PEs.
        unsafe { active_set::fcollect(CALL, to, from, length, 0, 0, size, sync) };
        let joined = |index: usize| (index / length + index % length) as i64 + round + turn;
        dest.expect(0..length * all, joined, "fcollect of an active set");
        source.fill(length, |index| me() + turn + index as i64);
        // SAFETY: as above. No work array is used.
        unsafe {
            let (elements, work) = (number(length as i64), std::ptr::null_mut());
            active_set::reduce::<Max, i64>(CALL, to, from, elements, 0, 0, size, work, sync);
        }
        let largest = |index| pes() - 1 + turn + index as i64;
        dest.expect(0..length, largest, "maximum of an active set");
    }
    flags.free();
    dest.free();
    source.free();
}

/// PEs count in memory of PE 0, by loads and stores under a lock.
fn locks() {
    const TURNS: i64 = 5;
    let memory = Symmetric::new(2);
    let (word, count) = (memory.0.cast::<c_long>(), memory.0.wrapping_add(1));
    for turn in 0..TURNS {
        // SAFETY: these functions alone use the lock. It is held while the count changes.
        unsafe {
            if turn % 2 == 0 {
                lock::set(CALL, word);
            } else {
                while lock::test(CALL, word) != 0 {}
            }
            let before: i64 = rma::g(CALL, World, count, 0);
            rma::p(CALL, World, count, before + 1, 0);
            lock::clear(CALL, word);
        }
    }
    barrier();
    if me() == 0 {
        memory.expect(1..2, |_| TURNS * pes(), "a count under a lock");
    }
    memory.free();
}

/// Data behind which a signal comes, and a word that is set and waited for.
fn signals(round: i64) {
    const LENGTH: usize = 70;
    let (source, dest) = (Symmetric::new(LENGTH), Symmetric::new(LENGTH));
    let words = Symmetric::new(2);
    let (signal, word) = (words.0.cast::<u64>(), words.0.wrapping_add(1));
    let (next, last) = (number((me() + 1) % pes()), (me() + pes() - 1) % pes());
    source.fill(LENGTH, |index| me() * 100 + round + index as i64);
    // SAFETY: the memory has the elements.
    unsafe {
        rma::put_signal(CALL, World, dest.0, source.0, LENGTH, signal, 3, SIGNAL_ADD, next);
        wait::signal_until(CALL, signal, EQUAL, 3);
    }
    dest.expect(0..LENGTH, |index| last * 100 + round + index as i64, "data behind a signal");
    // SAFETY: the words are of the program, and atomics alone change this one.
    unsafe {
        amo::set(CALL, World, word, me() + 1, next);
        wait::until(CALL, word, AT_LEAST, last + 1);
        amo::fetch_inc(CALL, World, word, next);
        wait::until(CALL, word, EQUAL, last + 2);
    }
    words.free();
    dest.free();
    source.free();
}

/// A team of all PEs but one, which ends again: the next one has its place.
fn teams(round: i64) {
    const LENGTH: usize = 40;
    let (start, size) = (number(round % 2), number(pes() - 1));
    let (source, dest) = (Symmetric::new(LENGTH), Symmetric::new(LENGTH));
    let mut made = TeamHandle::INVALID;
    // SAFETY: there is no configuration; the team is a variable of this function.
    let result = unsafe {
        team::split_strided(CALL, TEAM, start, 1, size, std::ptr::null(), 0, &raw mut made)
    };
    assert_eq!(result, 0);
    let is_member = (start..start + size).contains(&number(me()));
    assert_eq!(made != TeamHandle::INVALID, is_member);
    if is_member {
        for turn in 0..4 {
            source.fill(LENGTH, |index| turn + index as i64);
            // SAFETY: the team is one of this PE, and the memory has the elements.
            unsafe { collective::reduce::<Sum, i64>(CALL, made, dest.0, source.0, LENGTH) };
            let sum = |index| i64::from(size) * (turn + index as i64);
            dest.expect(0..LENGTH, sum, "sum of a team");
        }
        // SAFETY: all members end it.
        unsafe { team::destroy(CALL, made) };
    }
    dest.free();
    source.free();
}
