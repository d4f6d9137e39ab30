//! Which copy is faster into memory that the other processor reads next: measured, not guessed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weft_memory::CopyMode;
use weft_socket::{Limits, ReadError, ReceiveSide, SendSide, Side, WriteError};
use weft_transport_shm::lane::{LaneLayout, ShmLane};
use weft_wire::control::CopyAdvice;

/// Streams this much in each mode.
const BYTES: usize = 32 << 20;
/// A mode that takes longer has lost.
const TIME_MAX: Duration = Duration::from_millis(200);

/// Streams over a lane of `layout` in both modes and returns the faster one; takes less than half
/// a second.
pub fn measure(layout: LaneLayout, limits: Limits) -> CopyAdvice {
    let plain = stream(layout, limits, CopyMode::Plain);
    let nontemporal = stream(layout, limits, CopyMode::NonTemporal);
    tracing::debug!(?plain, ?nontemporal, "time to stream {BYTES} bytes");
    match (plain, nontemporal) {
        (Some(plain), Some(nontemporal)) if plain < nontemporal => CopyAdvice::Plain,
        (Some(_), None) => CopyAdvice::Plain,
        _ => CopyAdvice::NonTemporal,
    }
}

fn stream(layout: LaneLayout, limits: Limits, copy: CopyMode) -> Option<Duration> {
    let (sender, file) = ShmLane::create(layout, copy).ok()?;
    let receiver = ShmLane::open(std::os::fd::AsFd::as_fd(&file), 1, copy).ok()?;
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    let received = std::thread::scope(|scope| {
        scope.spawn(|| send_all(&sender, limits, &stop));
        let received = receive_all(&receiver, start);
        stop.store(true, Ordering::Relaxed);
        received
    });
    (received == BYTES).then(|| start.elapsed())
}

fn send_all(lane: &ShmLane, limits: Limits, stop: &AtomicBool) {
    let mut side = SendSide::default();
    assert!(side.switch(lane, Side::Connected), "the other end is there");
    let block = vec![7u8; 128 << 10];
    let mut left = BYTES;
    while left > 0 && !stop.load(Ordering::Relaxed) {
        match side.write(lane, &[&block[..left.min(block.len())]], limits) {
            Ok(written) => left -= written.bytes,
            Err(WriteError::Full) => std::thread::yield_now(),
            Err(_) => return,
        }
    }
}

fn receive_all(lane: &ShmLane, start: Instant) -> usize {
    let mut side = ReceiveSide::default();
    let mut block = vec![0u8; 128 << 10];
    let mut received = 0;
    while received < BYTES && start.elapsed() < TIME_MAX {
        side.origin(lane);
        match side.read(lane, &mut block, false) {
            Ok(reading) => received += reading.bytes,
            Err(ReadError::Empty) => std::thread::yield_now(),
            Err(_) => break,
        }
    }
    received
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_arrives_whole_in_both_modes() {
        let layout = LaneLayout { slots: 64, sink_bytes: 64 << 10 };
        let (sender, file) = ShmLane::create(layout, CopyMode::NonTemporal).expect("memory");
        let receiver =
            ShmLane::open(std::os::fd::AsFd::as_fd(&file), 1, CopyMode::Plain).expect("a lane");
        let stop = AtomicBool::new(false);
        let far = Instant::now() + Duration::from_secs(3600);
        let received = std::thread::scope(|scope| {
            scope.spawn(|| send_all(&sender, Limits::default(), &stop));
            receive_all(&receiver, far)
        });
        assert_eq!(received, BYTES);
    }
}
