//! The registers of an endpoint, in memory that the broker may read.
//!
//! [`weft_broker::counts`] has the layout. The endpoint alone writes; its program and the broker
//! read.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use weft_broker::counts::{BYTES, TIMES_AT};
use weft_fabric::{Register, Timed};
use weft_memory::{Segment, SegmentError};
use weft_metrics::{Histogram, WORDS};

/// Of so many operations one is timed: a look at the clock costs more than counting.
const TIMED_OF: u32 = 64;

/// The registers.
#[derive(Debug)]
pub(crate) struct Registers {
    segment: Segment,
    /// The operation whose time is taken: its number, and when it was called for.
    timing: Option<(u64, Timed, Duration)>,
    /// Operations until the next one that is timed.
    until_timed: u32,
}

impl Registers {
    /// Registers of zero, and a descriptor for the broker that cannot be written through.
    ///
    /// # Errors
    /// [`SegmentError`].
    pub fn create() -> Result<(Self, OwnedFd), SegmentError> {
        let (segment, file) = Segment::create("weft-counts", BYTES)?;
        let shown = Segment::reopen_read_only(file.as_fd())?;
        Ok((Self { segment, timing: None, until_timed: 0 }, shown))
    }

    /// The value of a register.
    pub fn value(&self, register: Register) -> u64 {
        self.segment.word64(register.index() * 8).load(Ordering::Relaxed)
    }

    /// Increases a register.
    pub fn count(&mut self, register: Register, by: u64) {
        self.add(register.index(), by);
    }

    /// Whether the next operation is to be timed. Every operation asks.
    pub fn times_next(&mut self) -> bool {
        let is_next = self.until_timed == 0;
        self.until_timed = if is_next { TIMED_OF } else { self.until_timed - 1 };
        is_next && self.timing.is_none()
    }

    /// The operation with this number was called for at `now`.
    pub fn begin(&mut self, number: u64, what: Timed, now: Duration) {
        self.timing = Some((number, what, now));
    }

    /// The operation with this number is over. `now` is asked if it was timed; its time counts if
    /// it `is_good`.
    pub fn end(&mut self, number: u64, is_good: bool, now: impl FnOnce() -> Duration) {
        let Some((_, what, begun)) = self.timing.take_if(|timing| timing.0 == number) else {
            return;
        };
        if is_good {
            for (place, by) in Histogram::changes(now().saturating_sub(begun)) {
                self.add(TIMES_AT / 8 + what as usize * WORDS + place, by);
            }
        }
    }

    /// The operation that is timed may have failed.
    pub fn forget_time(&mut self) {
        self.timing = None;
    }

    fn add(&mut self, word: usize, by: u64) {
        let word = self.segment.word64(word * 8);
        // Nobody else writes it.
        word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use weft_broker::counts::Counts;

    use super::*;

    #[test]
    fn the_broker_reads_registers_and_times_and_cannot_write_them() {
        let (mut own, shown) = Registers::create().expect("memory");
        own.count(Register::PeersDown, 2);
        own.count(Register::Puts, 1);
        let time = Duration::from_micros;
        assert!(own.times_next());
        own.begin(7, Timed::Get, time(10));
        own.end(6, true, || panic!("another operation is not timed"));
        own.end(7, true, || time(40));
        own.begin(8, Timed::Put, time(50));
        own.end(8, false, || panic!("one that failed has no time"));
        let Counts { values, times } = Counts::read(shown.as_fd()).expect("long enough");
        assert_eq!(values.iter().sum::<u64>(), 3);
        assert_eq!(values[Register::PeersDown.index()], 2);
        let counted = Timed::ALL.map(|what| times[what as usize].count());
        assert_eq!(counted, [0, 0, 1]);
        assert_eq!(times[Timed::Get as usize].sum_ns(), 30_000);
        assert!(Segment::open(shown.as_fd(), BYTES, true).is_err(), "not for writing");
    }

    #[test]
    fn one_operation_of_many_is_timed_and_none_while_another_is() {
        let (mut own, _shown) = Registers::create().expect("memory");
        let timed = (0..65 * 10).filter(|_| own.times_next()).count();
        assert_eq!(timed, 10);
        own.begin(1, Timed::Put, Duration::ZERO);
        assert!(!(0..200).any(|_| own.times_next()));
    }
}
