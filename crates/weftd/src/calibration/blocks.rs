//! Which blocks a reader rather takes straight from the writer's memory, where one processor runs
//! both: one copy by the kernel against two through a lane.

use std::time::{Duration, Instant};

use weft_memory::{CopyMode, read_process};
use weft_socket::{Limits, ReceiveSide, SendSide, Side};
use weft_transport_shm::lane::{LaneLayout, ShmLane};
use weft_wire::control::CopyAdvice;

/// Sizes that are tried: this one, and each the double of the one before.
const SHORTEST: usize = 64 << 10;
const SIZES: u32 = 7;
/// Moves this much in each turn, as many blocks as that takes.
const TURN_BYTES: usize = 4 << 20;
/// Both ways take turns this often; the fastest turns are compared.
const ROUNDS: usize = 8;
/// One copy has to take less than so many percent of the time of two.
const PERCENT: u32 = 90;

/// The shortest and the longest block, bytes, for which one copy is faster; zeros when it never is.
/// Takes about 80 ms.
pub fn measure(layout: LaneLayout, limits: Limits, copy: CopyAdvice) -> (u64, u64) {
    super::pin(super::one_core());
    let mode = match copy {
        CopyAdvice::Plain => CopyMode::Plain,
        CopyAdvice::NonTemporal => CopyMode::NonTemporal,
    };
    let sizes = (0..SIZES).map(|double| SHORTEST << double);
    let wins: Vec<bool> = sizes.map(|size| wins(layout, limits, mode, size)).collect();
    range(&wins)
}

/// The first run of sizes that win.
fn range(wins: &[bool]) -> (u64, u64) {
    let Some(first) = wins.iter().position(|wins| *wins) else { return (0, 0) };
    let run = wins[first..].iter().take_while(|wins| **wins).count();
    let size = |double: usize| (SHORTEST as u64) << double;
    (size(first), size(first + run - 1))
}

fn wins(layout: LaneLayout, limits: Limits, mode: CopyMode, size: usize) -> bool {
    let Some(mut lane) = Both::new(layout, mode) else { return false };
    let (source, mut target) = (vec![1; size], vec![0; size]);
    let blocks = (TURN_BYTES / size).max(1);
    let (mut two, mut one) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        (0..blocks).for_each(|_| lane.stream(&source, &mut target, limits));
        two = two.min(start.elapsed());
        let start = Instant::now();
        for _ in 0..blocks {
            if copy_once(&source, &mut target) < size {
                return false;
            }
        }
        one = one.min(start.elapsed());
    }
    tracing::debug!(size, ?two, ?one, "a block by two copies and by one");
    one * 100 < two * PERCENT
}

fn copy_once(source: &[u8], target: &mut [u8]) -> usize {
    read_process(std::process::id(), source.as_ptr() as u64, &mut [target]).unwrap_or(0)
}

/// Both ends of a lane.
struct Both {
    lanes: [ShmLane; 2],
    send: SendSide,
    receive: ReceiveSide,
}

impl Both {
    fn new(layout: LaneLayout, mode: CopyMode) -> Option<Self> {
        let (one, file) = ShmLane::create(layout, mode).ok()?;
        let two = ShmLane::open(std::os::fd::AsFd::as_fd(&file), 1, mode).ok()?;
        let (mut send, mut receive) = (SendSide::default(), ReceiveSide::default());
        assert!(send.switch(&one, Side::Connected), "the other end is there");
        receive.origin(&two);
        Some(Self { lanes: [one, two], send, receive })
    }

    /// Fills the lane and empties it, as programs on one processor do.
    fn stream(&mut self, source: &[u8], target: &mut [u8], limits: Limits) {
        let (mut sent, mut received) = (0, 0);
        while received < source.len() {
            while let Ok(written) = self.send.write(&self.lanes[0], &[&source[sent..]], limits)
                && written.bytes > 0
            {
                sent += written.bytes;
            }
            while let Ok(reading) =
                self.receive.read(&self.lanes[1], &mut target[received..], false)
                && reading.bytes > 0
            {
                received += reading.bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_run_of_sizes_counts() {
        assert_eq!(range(&[false; 7]), (0, 0));
        assert_eq!(range(&[true; 7]), (64 << 10, 4 << 20));
        assert_eq!(range(&[false, true, true, false, true]), (128 << 10, 256 << 10));
    }

    #[test]
    fn both_ways_bring_every_byte() {
        let layout = LaneLayout { slots: 64, sink_bytes: 64 << 10 };
        let source: Vec<u8> = (0..=250).cycle().take(300_000).collect();
        let mut target = vec![0; source.len()];
        let mut lane = Both::new(layout, CopyMode::NonTemporal).expect("memory");
        lane.stream(&source, &mut target, Limits::default());
        assert_eq!(target, source);
        target.fill(0);
        assert_eq!(copy_once(&source, &mut target), source.len());
        assert_eq!(target, source);
    }
}
