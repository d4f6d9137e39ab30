//! A peer that writes anything anywhere in the lane, at any moment, even in the middle of a call.
//! In some runs a process that shares the end writes anything into its state between calls.
//!
//! Invariants: no call panics, each call makes a bounded number of operations on the lane, and its
//! result is bytes, an end or an error.

use std::cell::{Cell, RefCell};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_fabric::{
    Attention, Carry, Lane, LaneClosed, LaneFull, Medium, ReceiveCursor, SendCursor, Slot,
    Standing, WaitFor, Wake,
};
use weft_lane::Carrier;
use weft_memory::{CopyMode, Segment};
use weft_socket::{Leave, Limits, Origin, ReceiveSide, SendSide, Side, closed, prepare};
use weft_transport_shm::lane::{LaneLayout, ShmLane};
use zerocopy::IntoBytes;

mod ends;

/// A lane that calls `before` before each operation, and counts the operations.
struct Watched<'a, L> {
    lane: &'a L,
    before: &'a dyn Fn(Option<&ReceiveCursor>),
    operations: Cell<u64>,
}

impl<'a, L: Lane> Watched<'a, L> {
    fn new(lane: &'a L, before: &'a dyn Fn(Option<&ReceiveCursor>)) -> Self {
        Self { lane, before, operations: Cell::new(0) }
    }

    fn at(&self, cursor: Option<&ReceiveCursor>) -> &L {
        self.operations.set(self.operations.get() + 1);
        (self.before)(cursor);
        self.lane
    }

    fn now(&self) -> &L {
        self.at(None)
    }
}

impl<L: Lane> Carry for Watched<'_, L> {
    fn mailbox_depth(&self) -> u64 {
        self.lane.mailbox_depth()
    }

    fn sink_bytes(&self) -> u64 {
        self.lane.sink_bytes()
    }

    fn slots_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64 {
        self.now().slots_free(cursor, wanted)
    }

    fn sink_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64 {
        self.now().sink_free(cursor, wanted)
    }

    fn send(&self, cursor: &mut SendCursor, tag: u8, parts: &[&[u8]]) -> Result<(), LaneFull> {
        self.now().send(cursor, tag, parts)
    }

    fn put(&self, cursor: &mut SendCursor, bytes: &[u8]) {
        self.now().put(cursor, bytes);
    }

    fn peek(&self, cursor: &ReceiveCursor) -> Result<Option<Slot>, LaneClosed> {
        self.at(Some(cursor)).peek(cursor)
    }

    fn read(&self, cursor: &ReceiveCursor, offset: usize, target: &mut [u8]) {
        self.now().read(cursor, offset, target);
    }

    fn advance(&self, cursor: &mut ReceiveCursor, flush: bool) {
        self.now().advance(cursor, flush);
    }

    fn view(&self, cursor: &ReceiveCursor, skip: u64, target: &mut [u8]) {
        self.now().view(cursor, skip, target);
    }

    fn release(&self, cursor: &mut ReceiveCursor, length: u64) {
        self.now().release(cursor, length);
    }

    fn post(&self, word: usize, value: u64) {
        self.now().post(word, value);
    }

    fn posted(&self, word: usize) -> u64 {
        self.now().posted(word)
    }

    fn medium(&self) -> Medium {
        self.lane.medium()
    }

    fn has_landed(&self) -> bool {
        self.now().has_landed()
    }

    fn standing(&self) -> Standing {
        self.lane.standing()
    }
}

impl<L: Lane> Wake for Watched<'_, L> {
    fn arm(&self, what: WaitFor) {
        self.now().arm(what);
    }

    fn attention(&self, what: WaitFor) -> Attention {
        self.now().attention(what)
    }

    fn disarm(&self, what: WaitFor) -> bool {
        self.now().disarm(what)
    }

    fn rearm(&self, what: WaitFor) -> bool {
        self.now().rearm(what)
    }

    fn is_awaited(&self, what: WaitFor) -> bool {
        self.now().is_awaited(what)
    }

    fn must_ring(&self, what: WaitFor) -> bool {
        self.now().must_ring(what)
    }
}

/// An end that makes all calls of a driver, in any order.
struct Victim {
    side: Side,
    send: SendSide,
    receive: ReceiveSide,
    seen: u64,
}

const LIMITS: Limits = Limits { eager_bytes: 480, chunk_bytes: 1000 };

impl Victim {
    fn new(side: Side) -> Self {
        Self { side, send: SendSide::default(), receive: ReceiveSide::default(), seen: 0 }
    }

    /// Writes a value into one word of the end's state.
    fn scribble(&mut self, random: &mut ChaCha8Rng) {
        let bytes = match random.random_range(0..2) {
            0 => self.send.as_mut_bytes(),
            _ => self.receive.as_mut_bytes(),
        };
        let start = 8 * random.random_range(0..bytes.len() / 8);
        bytes[start..start + 8].copy_from_slice(&value(random).to_ne_bytes());
    }

    fn leaves<L: Lane>(&mut self, lane: &L) -> bool {
        self.send.leave(lane, self.side, Leave::ForNow).is_some()
    }

    /// Makes one call. Returns how many operations on the lane it may take.
    fn act<L: Lane>(&mut self, lane: &L, choice: u32, size: usize) -> u64 {
        let depth = lane.mailbox_depth();
        match choice {
            0..=2 if self.send.switch(lane, self.side) => {
                let bytes = vec![7; size];
                let written = self.send.write(lane, &[&bytes], LIMITS);
                if let Ok(written) = written {
                    assert!(written.bytes <= size);
                }
                return 16 + 8 * (size as u64 / 100 + 1);
            }
            0..=2 => {
                self.send.begin_tcp();
                self.send.wrote_tcp(size);
            }
            3..=6 => match self.receive.origin(lane) {
                Origin::Lane => {
                    let mut target = vec![0; size];
                    let read = self.receive.read(lane, &mut target, choice == 3);
                    if let Ok(reading) = read {
                        assert!(reading.bytes <= size && (reading.bytes > 0 || size == 0));
                    }
                    return 24 + 8 * size as u64;
                }
                Origin::Tcp { at_most } => {
                    let limit =
                        at_most.map_or(usize::MAX, |most| usize::try_from(most).expect("64 bits"));
                    let bytes = size.min(limit);
                    let data = self.receive.data_of(lane, bytes);
                    assert!(data <= bytes);
                    self.receive.begin_tcp();
                    self.receive.took_tcp(data);
                }
                Origin::Wakeups(left) => {
                    let wakeups = self.receive.wakeups_of(lane, size);
                    assert!(wakeups as u64 <= left);
                    self.receive.begin_tcp();
                    self.receive.took_wakeups(wakeups);
                }
                Origin::Return => self.receive.return_to_tcp(lane),
            },
            7 => drop(self.send.writable(lane)),
            8 => drop((self.receive.readable(lane), self.receive.has_data(lane))),
            9 => {
                let arrived = self.receive.arrived(lane, self.seen.saturating_sub(2));
                self.seen = self.seen.max(arrived);
                return 2 * depth + 16;
            }
            10 => {
                let most = lane.sink_bytes() + depth * 120;
                assert!(self.receive.available(lane) <= most);
                return 3 * depth + 16;
            }
            11 => drop((self.receive.ended(lane), ReceiveSide::peer_closed(lane))),
            12 => drop(self.send.unread_by_peer(lane)),
            13 => {
                for what in [WaitFor::Data, WaitFor::Room] {
                    lane.arm(what);
                    lane.settle();
                    let _ = (lane.rearm(what), lane.must_ring(what), lane.attention(what));
                    lane.disarm(what);
                }
            }
            14 if size % 64 == 1 && self.leaves(lane) => {
                let again = self.send.to_send_again(lane);
                self.send.return_to_tcp(lane, &again, size.min(again.bytes.len()));
                return 8 * depth + 64;
            }
            14 if size % 64 == 2 => self.receive.request_resend(lane),
            14 if size.is_multiple_of(64) => drop(self.send.close(lane, size as u64 / 64 % 3)),
            15 if size.is_multiple_of(64) => drop(self.send.shut(lane, self.side)),
            _ => {}
        }
        32
    }
}

/// A value that the code is more likely to believe than a random one.
fn value(random: &mut ChaCha8Rng) -> u64 {
    let small = random.random_range(0..40_u64);
    match random.random_range(0..7) {
        0 => random.random(),
        1 => small,
        2 => u64::MAX - small,
        3 => 1 << random.random_range(0..64),
        // A slot's status word: number, length, tag.
        _ => {
            (small + 1)
                | (random.random_range(0..130_u64) << 32)
                | (random.random_range(0..5_u64) << 40)
        }
    }
}

fn sizes(random: &mut ChaCha8Rng) -> usize {
    let largest = [0, 8, 200, 5_000][random.random_range(0..4)];
    random.random_range(0..=largest)
}

const LAYOUT: LaneLayout = LaneLayout { slots: 16, sink_bytes: 4096 };

/// Writes into the lane's memory from outside, mostly where messages and words are.
fn scribble(memory: &Segment, random: &mut ChaCha8Rng) {
    let offset = match random.random_range(0..10) {
        // The words of both directions.
        0..5 => 512 + 8 * random.random_range(0..128),
        // Status words of slots. Payload follows below.
        5..9 => 4096 + 128 * random.random_range(0..32),
        _ => 8 * random.random_range(0..LAYOUT.bytes() / 8),
    };
    memory.word64(offset).store(value(random), Ordering::Relaxed);
    let payload = 4096 + 128 * random.random_range(0..32) + 8;
    memory.word64(payload).store(value(random), Ordering::Relaxed);
}

fn attack_shm(seed: u64) {
    let (one, file) = ShmLane::create(LAYOUT, CopyMode::Plain).expect("memory");
    let two = ShmLane::open(file.as_fd(), 1, CopyMode::Plain).expect("a lane");
    let memory = Segment::open(file.as_fd(), LAYOUT.bytes(), true).expect("the same memory");
    let random = RefCell::new(ChaCha8Rng::seed_from_u64(seed));
    let every = random.borrow_mut().random_range(1..6);
    let before = |_: Option<&ReceiveCursor>| {
        let mut random = random.borrow_mut();
        if random.random_range(0..every) == 0 {
            scribble(&memory, &mut random);
        }
    };
    let (lane, side) =
        if seed.is_multiple_of(2) { (&one, Side::Accepted) } else { (&two, Side::Connected) };
    let mut victim = Victim::new(side);
    for _ in 0..400 {
        let choice = random.borrow_mut().random_range(0..16);
        let size = sizes(&mut random.borrow_mut());
        let watched = Watched::new(lane, &before);
        let most = victim.act(&watched, choice, size);
        let done = watched.operations.get();
        assert!(done <= most, "choice {choice} of {size} took {done} operations");
        scribble(&memory, &mut random.borrow_mut());
        if seed.is_multiple_of(3) && random.borrow_mut().random_range(0..8) == 0 {
            victim.scribble(&mut random.borrow_mut());
        }
    }
}

#[test]
fn memory_that_changes_at_any_moment_gives_bytes_ends_and_errors() {
    for seed in 0..4000 {
        let run = std::panic::AssertUnwindSafe(|| attack_shm(seed));
        if let Err(reason) = std::panic::catch_unwind(run) {
            eprintln!("seed {seed} fails");
            std::panic::resume_unwind(reason);
        }
    }
}

/// Calls `act` while a peer fills each slot just before the end looks at it. Returns its result and
/// the number of operations on the lane.
fn chased<R>(act: impl Fn(&ReceiveSide, &Watched<'_, ShmLane>) -> R) -> (R, u64) {
    let (one, file) = ShmLane::create(LAYOUT, CopyMode::Plain).expect("memory");
    let memory = Segment::open(file.as_fd(), LAYOUT.bytes(), true).expect("the same memory");
    let steps = Cell::new(0_u64);
    let before = |cursor: Option<&ReceiveCursor>| {
        steps.set(steps.get() + 1);
        assert!(steps.get() < 10_000, "a loop without end");
        if let Some(cursor) = cursor {
            let slot = usize::try_from(cursor.messages % 16).expect("below 16");
            let status = ((cursor.messages + 1) & 0xffff_ffff) | (120 << 32) | (1 << 40);
            memory.word64(4096 + 128 * (16 + slot)).store(status, Ordering::Relaxed);
        }
    };
    let watched = Watched::new(&one, &before);
    (act(&ReceiveSide::default(), &watched), steps.get())
}

#[test]
fn a_peer_that_fills_slots_as_fast_as_they_are_looked_at_keeps_nobody_counting() {
    let (arrived, steps) = chased(|receive, lane| receive.arrived(lane, 0));
    assert_eq!(arrived, 16);
    assert!(steps <= 20);
    let (available, steps) = chased(|receive, lane| receive.available(lane));
    assert_eq!(available, 16 * 120);
    assert!(steps <= 20);
}

#[test]
fn announced_chunks_are_not_believed_beyond_the_sink() {
    let (one, file) = ShmLane::create(LAYOUT, CopyMode::Plain).expect("memory");
    let two = ShmLane::open(file.as_fd(), 1, CopyMode::Plain).expect("a lane");
    let mut cursor = SendCursor::default();
    two.send(&mut cursor, 3, &[&u32::MAX.to_le_bytes()]).expect("room");
    assert_eq!(ReceiveSide::default().available(&one), 4096);
}

/// A peer whose messages and words make little sense, on lanes whose forms are right.
fn confuse(seed: u64) {
    let (left, file) = ShmLane::create(LAYOUT, CopyMode::Plain).expect("memory");
    let right = ShmLane::open(file.as_fd(), 1, CopyMode::Plain).expect("a lane");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut victim = Victim::new(Side::Connected);
    let mut cursor = SendCursor::default();
    for _ in 0..200 {
        let choice = random.random_range(0..16);
        let size = sizes(&mut random);
        victim.act(&left, choice, size);
        let payload: [u8; 8] = value(&mut random).to_le_bytes();
        let length = random.random_range(0..=8);
        let _ = right.send(&mut cursor, random.random_range(0..5), &[&payload[..length]]);
        let word = random.random_range(0..ShmLane::WORDS);
        if random.random_range(0..4) == 0 {
            right.post(word, value(&mut random));
        }
    }
}

#[test]
fn messages_and_words_without_sense_give_bytes_ends_and_errors() {
    (0..1000).for_each(confuse);
}

#[test]
fn a_lane_that_dies_in_the_middle_of_a_write_panics_nobody() {
    for at in 1..40 {
        let pair = ends::Network::new(1);
        let left = &pair.lanes[0][0];
        let mut send = SendSide::default();
        assert!(!send.switch(left, Side::Connected), "the other end has not said that it is there");
        prepare(&pair.lanes[0][1], Side::Accepted);
        // Its word 8 says that each end knows of the other.
        pair.lanes[0][1].post(8, 2);
        let settle = || {
            while pair.world.step() {
                pair.carriers.iter().for_each(Carrier::poll);
            }
        };
        // The first looks find that nothing is known to have landed.
        let comes = (0..4).any(|_| {
            settle();
            send.switch(left, Side::Connected)
        });
        assert!(comes);
        let operations = Cell::new(0);
        let before = |_: Option<&ReceiveCursor>| {
            operations.set(operations.get() + 1);
            if operations.get() == at {
                pair.kill(0);
            }
        };
        let watched = Watched::new(left, &before);
        for _ in 0..3 {
            let _ = send.write(&watched, &[&[1; 4000]], LIMITS);
        }
    }
}

#[test]
fn an_end_that_closes_before_its_switch_rings_nobody() {
    let (left, right) = ends::memory();
    let mut send = SendSide::default();
    assert!(!send.close(&left, closed::ORDERLY), "no wakeup before the switch");
    assert_eq!(ReceiveSide::peer_closed(&right), Some(closed::ORDERLY));
}
