//! Models of the ring and of falling asleep, explored by loom.
//!
//! Consumers loop and yield, both ends keep their positions in plain fields, and every model
//! prints how many executions were explored and fails when that is hardly more than one: a model
//! whose consumer popped once was explored in a single execution and passed without a `Release`.
//!
//! The asymmetric fence stands for full fences on both sides here; that `membarrier` makes it one
//! is the kernel's promise.

use std::sync::Arc as PlainArc;
use std::sync::atomic::{AtomicUsize as PlainCount, Ordering as PlainOrdering};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use weft_fabric::{ReceiveCursor, SendCursor};
use weft_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use weft_sync::fence;

use crate::attention;
use crate::bell::{self, BellWords, Sleeper};
use crate::ring::{Ring, RingMemory, SlotMemory};

const DEPTH: usize = 2;

/// A ring whose payload is one byte a slot, in cells that loom watches for races.
struct Model {
    status: [AtomicU64; DEPTH],
    payload: [UnsafeCell<u8>; DEPTH],
    taken: AtomicU64,
}

// SAFETY: the cells are what the ring protects; loom reports every access that it does not.
unsafe impl Sync for Model {}
// SAFETY: as for Sync.
unsafe impl Send for Model {}

impl Model {
    fn new() -> Self {
        Self {
            status: std::array::from_fn(|_| AtomicU64::new(0)),
            payload: std::array::from_fn(|_| UnsafeCell::new(0)),
            taken: AtomicU64::new(0),
        }
    }
}

/// A slot of it.
struct ModelSlot<'a> {
    model: &'a Model,
    place: usize,
}

impl SlotMemory for ModelSlot<'_> {
    fn status(&self) -> &AtomicU64 {
        &self.model.status[self.place]
    }

    fn write_payload(&self, _offset: usize, bytes: &[u8]) {
        self.model.payload[self.place].with_mut(|cell| {
            // SAFETY: the slot is the sender's until its status is stored; loom checks that.
            unsafe { *cell = bytes[0] };
        });
    }

    fn read_payload(&self, _offset: usize, target: &mut [u8]) {
        target[0] = self.model.payload[self.place].with(|cell| {
            // SAFETY: the slot is the receiver's until it is given back; loom checks that.
            unsafe { *cell }
        });
    }
}

impl RingMemory for &Model {
    type Slot<'a>
        = ModelSlot<'a>
    where
        Self: 'a;

    fn depth(&self) -> u64 {
        DEPTH as u64
    }

    fn slot(&self, number: u64) -> ModelSlot<'_> {
        let place = usize::try_from(number).expect("few messages") % DEPTH;
        ModelSlot { model: self, place }
    }

    fn taken(&self) -> &AtomicU64 {
        &self.taken
    }
}

/// Explores a model and insists on having explored more than one execution.
fn explore(name: &str, model: impl Fn() + Sync + Send + 'static) {
    let executions = PlainArc::new(PlainCount::new(0));
    let counted = PlainArc::clone(&executions);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        counted.fetch_add(1, PlainOrdering::Relaxed);
        model();
    });
    let executions = executions.load(PlainOrdering::Relaxed);
    println!("{name}: {executions} executions");
    assert!(executions > 10, "{name} explored next to nothing");
}

/// Takes the next message, waiting for it.
fn take(ring: &Ring<&Model>, cursor: &mut ReceiveCursor) -> u8 {
    while ring.peek(cursor) == Ok(None) {
        thread::yield_now();
    }
    let mut byte = [0];
    ring.read(cursor, 0, &mut byte);
    ring.advance(cursor, true);
    byte[0]
}

#[test]
fn loom_messages_arrive_whole_and_in_order() {
    explore("ring", || {
        let model = Arc::new(Model::new());
        let sender = Arc::clone(&model);
        let sending = thread::spawn(move || {
            let ring = Ring::new(&*sender);
            let mut cursor = SendCursor::default();
            // One more than fit, so that slots come round.
            for byte in 1..=3u8 {
                while ring.send(&mut cursor, 0, 0, &[&[byte]]).is_err() {
                    thread::yield_now();
                }
            }
        });
        let ring = Ring::new(&*model);
        let mut cursor = ReceiveCursor::default();
        for expected in 1..=3u8 {
            assert_eq!(take(&ring, &mut cursor), expected);
        }
        sending.join().expect("no panic");
    });
}

#[test]
fn loom_whoever_sleeps_is_woken_for_a_message() {
    explore("sleep", || {
        let shared = Arc::new((Model::new(), AtomicU32::new(0), BellWords::new()));
        let sender = Arc::clone(&shared);
        let sending = thread::spawn(move || {
            let (model, word, bell) = &*sender;
            let ring = Ring::new(model);
            let mut cursor = SendCursor::default();
            ring.send(&mut cursor, 0, 0, &[&[7]]).expect("room");
            if attention::claim(word, false) && bell.ring(3) == Sleeper::OnWord {
                // The word is awake already: claiming the sleeper changed it, and the futex call
                // that would follow only makes a sleeper look at it.
                assert_ne!(bell.state().load(Ordering::SeqCst), bell::ON_WORD);
            }
        });
        let (model, word, bell) = &*shared;
        let ring = Ring::new(model);
        let mut cursor = ReceiveCursor::default();
        attention::arm(word);
        fence::heavy();
        if ring.peek(&cursor) == Ok(None) {
            if bell.prepare(bell::ON_WORD) {
                // Sleeping: a lost wake-up stays here for ever, which loom reports.
                while bell.state().load(Ordering::SeqCst) == bell::ON_WORD {
                    thread::yield_now();
                }
                bell.rise();
            }
            assert_eq!(bell.take().peers[0], 1 << 3, "whoever wakes says who it is");
        }
        attention::watch(word);
        assert_eq!(take(&ring, &mut cursor), 7);
        sending.join().expect("no panic");
    });
}

#[test]
fn loom_a_sender_that_waits_for_room_is_rung() {
    explore("room", || {
        let shared = Arc::new((Model::new(), AtomicU32::new(0), BellWords::new()));
        {
            let ring = Ring::new(&shared.0);
            let mut cursor = SendCursor::default();
            ring.send(&mut cursor, 0, 0, &[&[1]]).expect("room");
            ring.send(&mut cursor, 0, 0, &[&[2]]).expect("room");
        }
        let receiver = Arc::clone(&shared);
        let receiving = thread::spawn(move || {
            let (model, word, bell) = &*receiver;
            let ring = Ring::new(model);
            let mut cursor = ReceiveCursor::default();
            assert_eq!(take(&ring, &mut cursor), 1);
            if attention::claim(word, false) {
                let _ = bell.ring(1);
            }
        });
        let (model, word, bell) = &*shared;
        let ring = Ring::new(model);
        let mut cursor = SendCursor { messages: 2, ..SendCursor::default() };
        attention::arm(word);
        fence::heavy();
        if ring.free(&mut cursor, 1) == 0 && bell.prepare(bell::ON_WORD) {
            while bell.state().load(Ordering::SeqCst) == bell::ON_WORD {
                thread::yield_now();
            }
            bell.rise();
        }
        assert_eq!(ring.free(&mut cursor, 1), 1);
        receiving.join().expect("no panic");
    });
}
