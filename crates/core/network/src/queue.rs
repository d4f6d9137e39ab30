//! The queue of events: a wheel of short spans of time, for the near future, and a heap for the
//! rest.
//!
//! A heap of all events would cost most of the time of a run: hundreds of thousands of them wait,
//! and each step of a heap of that size misses the cache. Nearly all are due within microseconds.
//!
//! # Invariants
//! - Events come out by time, and those of one time in the order in which they were put in.
//! - An event that was put in before its span began is in `sorted` during that span, and before it
//!   in the wheel if the span is one of the next [`SPANS`], else in `far`. One that is put in
//!   during its span is in `late`.
//! - The events of a span of the wheel are in the order in which they were put in: those of `far`
//!   move into it before any later one can be put there.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::time::Time;

/// The length of a span is a power of two: about a nanosecond.
const SPAN_BITS: u32 = 10;
/// The number of spans of the wheel, about 16 us of future.
const SPANS: u64 = 1 << 14;
/// A span that held more events than this gives its memory back when it is over. Otherwise every
/// span would keep the memory of the fullest one.
const KEPT_MAX: usize = 64;

/// Events of type `E` by time.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    sorted: Vec<(Time, E)>,
    /// The next event of `sorted`.
    next: usize,
    late: BinaryHeap<Reverse<Entry<E>>>,
    wheel: Vec<Vec<(Time, E)>>,
    far: BinaryHeap<Reverse<Entry<E>>>,
    /// The span under way.
    span: u64,
    in_wheel: usize,
    sequence: u64,
}

#[derive(Debug)]
struct Entry<E> {
    time: Time,
    sequence: u64,
    event: E,
}

impl<E: Copy> EventQueue<E> {
    pub fn new() -> Self {
        let spans = usize::try_from(SPANS).unwrap_or(usize::MAX);
        Self {
            sorted: Vec::new(),
            next: 0,
            late: BinaryHeap::new(),
            wheel: (0..spans).map(|_| Vec::new()).collect(),
            far: BinaryHeap::new(),
            span: 0,
            in_wheel: 0,
            sequence: 0,
        }
    }

    /// Puts an event in. A time before the last event that was taken out counts as due next.
    pub fn push(&mut self, time: Time, event: E) {
        let span = time >> SPAN_BITS;
        if span > self.span && span - self.span < SPANS {
            self.wheel[slot(span)].push((time, event));
            self.in_wheel += 1;
            return;
        }
        self.sequence += 1;
        let entry = Reverse(Entry { time, sequence: self.sequence, event });
        if span <= self.span {
            self.late.push(entry);
        } else {
            self.far.push(entry);
        }
    }

    /// The time of the next event.
    pub fn next_time(&mut self) -> Option<Time> {
        if self.next == self.sorted.len() && self.late.is_empty() {
            self.turn();
        }
        let sorted = self.sorted.get(self.next).map(|(time, _)| *time);
        let late = self.late.peek().map(|Reverse(entry)| entry.time);
        match (sorted, late) {
            (Some(sorted), Some(late)) => Some(sorted.min(late)),
            (sorted, late) => sorted.or(late),
        }
    }

    /// Takes the next event out if it is due at `until` or before.
    pub fn pop(&mut self, until: Time) -> Option<(Time, E)> {
        let time = self.next_time().filter(|time| *time <= until)?;
        // Of those at one time, the sorted ones were put in first.
        match self.sorted.get(self.next) {
            Some(next) if next.0 == time => {
                self.next += 1;
                Some(*next)
            }
            _ => self.late.pop().map(|Reverse(entry)| (entry.time, entry.event)),
        }
    }

    /// Goes on to the next span with an event.
    fn turn(&mut self) {
        self.sorted.clear();
        self.next = 0;
        while self.sorted.is_empty() {
            let far = self.far.peek().map(|Reverse(entry)| entry.time >> SPAN_BITS);
            self.span = match far {
                None if self.in_wheel == 0 => return,
                Some(far) if self.in_wheel == 0 => far,
                _ => self.span + 1,
            };
            while let Some(entry) = self.far.peek_mut()
                && entry.0.time >> SPAN_BITS < self.span + SPANS
            {
                let Reverse(entry) = PeekMut::pop(entry);
                self.wheel[slot(entry.time >> SPAN_BITS)].push((entry.time, entry.event));
                self.in_wheel += 1;
            }
            let events = &mut self.wheel[slot(self.span)];
            self.in_wheel -= events.len();
            self.sorted.append(events);
            if events.capacity() > KEPT_MAX {
                *events = Vec::new();
            }
        }
        // A stable sort keeps the order of those at one time.
        self.sorted.sort_by_key(|(time, _)| *time);
    }
}

/// The place of a span in the wheel.
fn slot(span: u64) -> usize {
    usize::try_from(span % SPANS).unwrap_or(0)
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.time, self.sequence).cmp(&(other.time, other.sequence))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Delays from within one span to far beyond the wheel, taken out as often as put in.
        #[test]
        fn events_come_by_time_and_then_as_they_were_put_in(
            steps in prop::collection::vec((0_u32..40, 0_u64..1024, any::<bool>()), 1..300),
        ) {
            let mut queue = EventQueue::new();
            let mut model: Vec<(Time, usize)> = Vec::new();
            let mut now = 0;
            let check = |queue: &mut EventQueue<usize>, model: &mut Vec<(Time, usize)>| {
                let next = model.iter().min().copied();
                model.retain(|entry| Some(*entry) != next);
                let popped = queue.pop(Time::MAX);
                assert_eq!(popped, next);
                popped.map_or(0, |(time, _)| time)
            };
            for (number, (bits, low, takes)) in steps.into_iter().enumerate() {
                let time = now + (low << bits >> 8);
                queue.push(time, number);
                model.push((time, number));
                if takes {
                    now = check(&mut queue, &mut model);
                }
            }
            while !model.is_empty() {
                check(&mut queue, &mut model);
            }
            prop_assert_eq!(queue.next_time(), None);
        }
    }

    #[test]
    fn nothing_comes_before_it_is_due() {
        let mut queue = EventQueue::new();
        queue.push(5_000, 'a');
        assert_eq!(queue.pop(4_999), None);
        queue.push(4_999, 'b');
        assert_eq!(queue.pop(5_000), Some((4_999, 'b')));
        assert_eq!(queue.pop(5_000), Some((5_000, 'a')));
    }
}
