//! Loom models of the ring and of falling asleep.
//!
//! Consumers loop and yield, and both ends keep their positions in plain fields. Every model prints
//! how many executions loom explored, and fails when there were hardly more than one: a model whose
//! consumer popped once was explored in a single execution and passed without a `Release`.
//!
//! In these models both sides use full fences in place of the asymmetric fence. That `membarrier`
//! is equivalent is a promise of the kernel.

use std::sync::Arc as PlainArc;
use std::sync::atomic::{AtomicUsize as PlainCount, Ordering as PlainOrdering};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use weft_fabric::{ReceiveCursor, SendCursor};
use weft_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use weft_sync::fence;

use crate::attention;
use crate::ring::{Ring, RingMemory, SlotMemory};
use crate::wakeup::{self, Sleeper, WakeupWords};

const DEPTH: usize = 2;

/// A ring whose payload is one byte a slot, in cells that loom checks for races.
struct Model {
    status: [AtomicU64; DEPTH],
    payload: [UnsafeCell<u8>; DEPTH],
    taken: AtomicU64,
}

// SAFETY: the ring protocol protects the cells; loom reports every access that it does not protect.
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

/// A slot of the model.
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
            // SAFETY: the sender owns the slot until it stores the status; loom checks that.
            unsafe { *cell = bytes[0] };
        });
    }

    fn read_payload(&self, _offset: usize, target: &mut [u8]) {
        target[0] = self.model.payload[self.place].with(|cell| {
            // SAFETY: the receiver owns the slot until it gives the slot back; loom checks that.
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

/// Explores a model and requires more than a few executions.
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
    assert!(executions > 10, "{name} explored only {executions} executions");
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
            // One more than the depth, so that a slot is reused.
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
fn loom_a_sleeper_is_woken_for_a_message() {
    explore("sleep", || {
        let shared = Arc::new((Model::new(), AtomicU32::new(0), WakeupWords::new()));
        let sender = Arc::clone(&shared);
        let sending = thread::spawn(move || {
            let (model, word, wakeup) = &*sender;
            let ring = Ring::new(model);
            let mut cursor = SendCursor::default();
            ring.send(&mut cursor, 0, 0, &[&[7]]).expect("room");
            if attention::claim(word, false) && wakeup.ring(3) == Sleeper::OnWord {
                // The state word holds AWAKE already: claiming the sleeper changed it. The futex
                // call that would follow only makes a sleeper look at the word again.
                assert_ne!(wakeup.state().load(Ordering::SeqCst), wakeup::ON_WORD);
            }
        });
        let (model, word, wakeup) = &*shared;
        let ring = Ring::new(model);
        let mut cursor = ReceiveCursor::default();
        attention::arm(word);
        fence::heavy();
        if ring.peek(&cursor) == Ok(None) {
            if wakeup.prepare(wakeup::ON_WORD) {
                // Asleep: after a lost wake-up this loop never ends, which loom reports.
                while wakeup.state().load(Ordering::SeqCst) == wakeup::ON_WORD {
                    thread::yield_now();
                }
                wakeup.rise();
            }
            assert_eq!(wakeup.take().peers[0], 1 << 3, "the ringer set its own bit");
        }
        attention::watch(word);
        assert_eq!(take(&ring, &mut cursor), 7);
        sending.join().expect("no panic");
    });
}

#[test]
fn loom_a_sender_that_waits_for_room_is_rung() {
    explore("room", || {
        let shared = Arc::new((Model::new(), AtomicU32::new(0), WakeupWords::new()));
        {
            let ring = Ring::new(&shared.0);
            let mut cursor = SendCursor::default();
            ring.send(&mut cursor, 0, 0, &[&[1]]).expect("room");
            ring.send(&mut cursor, 0, 0, &[&[2]]).expect("room");
        }
        let receiver = Arc::clone(&shared);
        let receiving = thread::spawn(move || {
            let (model, word, wakeup) = &*receiver;
            let ring = Ring::new(model);
            let mut cursor = ReceiveCursor::default();
            assert_eq!(take(&ring, &mut cursor), 1);
            if attention::claim(word, false) {
                let _ = wakeup.ring(1);
            }
        });
        let (model, word, wakeup) = &*shared;
        let ring = Ring::new(model);
        let mut cursor = SendCursor { messages: 2, ..SendCursor::default() };
        attention::arm(word);
        fence::heavy();
        if ring.free(&mut cursor, 1) == 0 && wakeup.prepare(wakeup::ON_WORD) {
            while wakeup.state().load(Ordering::SeqCst) == wakeup::ON_WORD {
                thread::yield_now();
            }
            wakeup.rise();
        }
        assert_eq!(ring.free(&mut cursor, 1), 1);
        receiving.join().expect("no panic");
    });
}
