//! Measures which kind of stores is faster into memory that another processor reads next.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weft_memory::CopyMode;
use weft_socket::{Limits, ReadError, ReceiveSide, SendSide, Side, WriteError};
use weft_transport_shm::lane::{LaneLayout, ShmLane};
use weft_wire::control::CopyAdvice;

/// Streams this much in each mode, in each round.
const BYTES: usize = 32 << 20;
/// A mode that takes longer has lost.
const TIME_MAX: Duration = Duration::from_millis(100);
/// Both modes take turns this often.
const ROUNDS: usize = 6;

/// Plain copies are chosen when their slowest turn was this many times faster.
const MARGIN: u32 = 2;

/// Streams over a lane of `layout` in both modes, in turns, and returns the better one. Takes about
/// 50 ms, and 1.2 s at most.
///
/// Plain stores are as fast as non-temporal ones, or somewhat faster, in two cases: the reader is
/// further behind than a cache holds, or it runs on a processor nearby. Otherwise they are up to
/// seven times slower. Programs meet all cases, because threads and virtual cores move. So the
/// slowest turns are compared, and plain stores must win by a margin. The margin is the most that
/// the choice of non-temporal stores can cost.
///
/// The threads are not bound to cores. A thread that bound itself to a core where another program
/// spun was not run by Linux 6.18 for 4 s and more. A daemon that was stopped meanwhile did not
/// end.
pub fn measure(layout: LaneLayout, limits: Limits) -> CopyAdvice {
    let (mut plain, mut nontemporal) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..ROUNDS {
        for (copy, longest) in
            [(CopyMode::Plain, &mut plain), (CopyMode::NonTemporal, &mut nontemporal)]
        {
            *longest = stream(layout, limits, copy).unwrap_or(TIME_MAX).max(*longest);
        }
    }
    tracing::debug!(?plain, ?nontemporal, "longest time to stream {BYTES} bytes");
    if plain * MARGIN < nontemporal { CopyAdvice::Plain } else { CopyAdvice::NonTemporal }
}

fn stream(layout: LaneLayout, limits: Limits, copy: CopyMode) -> Option<Duration> {
    let (sender, file) = ShmLane::create(layout, copy).ok()?;
    let receiver = ShmLane::open(std::os::fd::AsFd::as_fd(&file), 1, copy).ok()?;
    let stop = AtomicBool::new(false);
    let (received, elapsed) = std::thread::scope(|scope| {
        scope.spawn(|| send_all(&sender, limits, &stop));
        let start = Instant::now();
        let received = receive_all(&receiver, start);
        stop.store(true, Ordering::Relaxed);
        (received, start.elapsed())
    });
    (received == BYTES).then_some(elapsed)
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
