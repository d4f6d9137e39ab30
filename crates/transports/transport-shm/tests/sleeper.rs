//! Sleeping on a lane, with real processors and their store buffers.
#![cfg(not(loom))]
#![allow(clippy::disallowed_methods, reason = "tests own clocks and threads")]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weft_fabric::{Carry, ReceiveCursor, SendCursor, WaitFor, Wake};
use weft_memory::CopyMode;
use weft_sync::fence;
use weft_transport_shm::lane::{LaneLayout, ShmLane};

/// Runs on real processors and their store buffers; `weft-socket` explores a model of this.
#[test]
fn a_sleeper_without_a_heavy_fence_misses_no_message() {
    const MESSAGES: u64 = 20_000;
    const LOST: Duration = Duration::from_secs(20);
    let layout = LaneLayout { slots: 16, sink_bytes: 4096 };
    let (sender, file) = ShmLane::create(layout, CopyMode::Plain).expect("memory");
    let receiver = ShmLane::open(file.as_fd(), 1, CopyMode::Plain).expect("a lane");
    let wakeups = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut cursor = SendCursor::default();
            for number in 0..MESSAGES {
                while sender.send(&mut cursor, 1, &[&number.to_le_bytes()]).is_err() {
                    std::thread::yield_now();
                }
                if sender.must_ring(WaitFor::Data) {
                    wakeups.fetch_add(1, Ordering::Release);
                }
                for _ in 0..number % 97 {
                    std::hint::spin_loop();
                }
                if number % 7 == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let mut cursor = ReceiveCursor::default();
        let (mut taken, mut heard, mut agreed) = (0, 0, 0);
        while taken < MESSAGES {
            if receiver.peek(&cursor).expect("open").is_some() {
                receiver.advance(&mut cursor, true);
                taken += 1;
                if taken % 101 == 0 {
                    receiver.found_awake(WaitFor::Data);
                }
                continue;
            }
            receiver.arm(WaitFor::Data);
            if let Some(asking) = receiver.sleeps(WaitFor::Data) {
                fence::heavy();
                receiver.slept(WaitFor::Data, asking);
            } else {
                agreed += 1;
            }
            if receiver.peek(&cursor).expect("open").is_none() {
                let start = Instant::now();
                while wakeups.load(Ordering::Acquire) == heard {
                    assert!(start.elapsed() < LOST, "asleep after {taken} messages");
                    std::thread::yield_now();
                }
            }
            if receiver.disarm(WaitFor::Data) {
                heard += 1;
            }
        }
        assert!(agreed > 0, "the ends never agreed on full fences");
    });
}
