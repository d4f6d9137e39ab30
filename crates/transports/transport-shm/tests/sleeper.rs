//! Sleeping on a lane, with real processors and their store buffers.
#![cfg(not(loom))]
#![allow(clippy::disallowed_methods, reason = "tests own clocks and threads")]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weft_fabric::{Carry, ReceiveCursor, SendCursor, WaitFor, Wake};
use weft_memory::CopyMode;
use weft_sync::fence;
use weft_sync::futex::Slept;
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

const NAP_MAX: Duration = Duration::from_secs(20);

/// Two ends, of which each has asked the other for full fences.
fn ends_with_full_fences() -> (ShmLane, ShmLane) {
    let layout = LaneLayout { slots: 16, sink_bytes: 4096 };
    let (one, file) = ShmLane::create(layout, CopyMode::Plain).expect("memory");
    let two = ShmLane::open(file.as_fd(), 1, CopyMode::Plain).expect("a lane");
    for lane in [&one, &two] {
        for what in [WaitFor::Data, WaitFor::Room] {
            while let Some(asking) = lane.sleeps(what) {
                lane.settle();
                lane.slept(what, asking);
            }
        }
    }
    (one, two)
}

#[test]
fn the_peer_ends_a_nap_and_nobody_rings() {
    let (one, two) = ends_with_full_fences();
    for what in [WaitFor::Data, WaitFor::Room] {
        assert!(!one.is_awaited(what));
        std::thread::scope(|scope| {
            let nap = two.begin_nap(what).expect("the peer executes full fences");
            let napper = scope.spawn(move || nap.sleep(NAP_MAX));
            assert!(one.is_awaited(what));
            assert!(!one.must_ring(what), "a nap needs no wakeup of the kernel's socket");
            assert!(!one.is_awaited(what), "a nap is ended once");
            assert_eq!(napper.join().expect("no panic"), Slept::Woken);
        });
    }
}

#[test]
fn a_nap_leaves_nothing_behind() {
    let (one, two) = ends_with_full_fences();
    let nap = two.begin_nap(WaitFor::Data).expect("full fences");
    assert_eq!(nap.sleep(Duration::from_millis(1)), Slept::TimedOut);
    drop(nap);
    assert!(!one.is_awaited(WaitFor::Data));
    // A thread that sleeps the other way beside it is rung all the same.
    two.arm(WaitFor::Data);
    let nap = two.begin_nap(WaitFor::Data);
    assert!(one.must_ring(WaitFor::Data));
    assert_eq!(nap.expect("full fences").sleep(NAP_MAX), Slept::Woken);
}

#[test]
fn an_end_whose_peer_executes_no_full_fences_does_not_nap() {
    let (one, two) = ends_with_full_fences();
    two.found_awake(WaitFor::Data);
    assert_eq!(two.begin_nap(WaitFor::Data).is_some(), !weft_sync::fence::register());
    assert!(!one.must_ring(WaitFor::Data));
}
