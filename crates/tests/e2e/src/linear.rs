//! Whether what clients saw of a key can have happened in one order (linearizability).
//!
//! The search is that of Wing and Gong with the memory of Lowe, as in Porcupine: it takes an
//! operation that may come next, goes on, and takes another one where that led nowhere. States
//! that were seen are not looked at again.

use std::collections::HashSet;
use std::time::Duration;

/// The action of an operation on the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It wrote this value.
    Write(u64),
    /// It read this value, or that there is none.
    Read(Option<u64>),
}

/// An operation of a client on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// When it was sent.
    pub start: Duration,
    /// When its answer came. A write without an answer may have happened, at any time since.
    pub end: Option<Duration>,
    /// Its action.
    pub action: Action,
}

/// The state after an operation, if it fits the state before.
fn after(state: Option<u64>, action: Action) -> Option<Option<u64>> {
    match action {
        Action::Write(value) => Some(Some(value)),
        Action::Read(value) => (value == state).then_some(state),
    }
}

/// Begins and ends of operations, in a list from which those that were taken are missing.
struct Events {
    /// The operation, and whether it is its end.
    events: Vec<(usize, bool)>,
    next: Vec<usize>,
    previous: Vec<usize>,
    /// Where the begin and the end of each operation are.
    places: Vec<[usize; 2]>,
}

impl Events {
    fn of(history: &[Operation]) -> Self {
        let mut times = Vec::new();
        for (number, operation) in history.iter().enumerate() {
            times.push((operation.start, false, number));
            times.push((operation.end.unwrap_or(Duration::MAX), true, number));
        }
        times.sort_unstable();
        // Place 0 is before all.
        let mut events = vec![(usize::MAX, false)];
        let mut places = vec![[0; 2]; history.len()];
        for (_, is_end, number) in times {
            places[number][usize::from(is_end)] = events.len();
            events.push((number, is_end));
        }
        let count = events.len();
        let next = (0..count).map(|place| (place + 1) % count).collect();
        let previous = (0..count).map(|place| (place + count - 1) % count).collect();
        Self { events, next, previous, places }
    }

    fn take(&mut self, operation: usize) {
        for place in self.places[operation] {
            let (before, behind) = (self.previous[place], self.next[place]);
            self.next[before] = behind;
            self.previous[behind] = before;
        }
    }

    fn put_back(&mut self, operation: usize) {
        for place in self.places[operation].into_iter().rev() {
            let (before, behind) = (self.previous[place], self.next[place]);
            self.next[before] = place;
            self.previous[behind] = place;
        }
    }
}

/// Whether all operations on one key, which has no value at first, can have happened in one order,
/// each between its begin and its end.
#[must_use]
pub fn is_linearizable(history: &[Operation]) -> bool {
    // A write without an answer whose value nobody read can always have happened behind all others.
    // Without those, each of which doubles the search, the answer is the same.
    let is_read = |value| history.iter().any(|other| other.action == Action::Read(Some(value)));
    let counts = |one: &&Operation| match one.action {
        Action::Write(value) => one.end.is_some() || is_read(value),
        Action::Read(_) => true,
    };
    let history: Vec<Operation> = history.iter().filter(counts).copied().collect();
    let mut events = Events::of(&history);
    let mut taken = vec![0_u64; history.len().div_ceil(64)];
    let mut state = None;
    let mut seen = HashSet::new();
    let mut path: Vec<(usize, Option<u64>)> = Vec::new();
    let mut at = events.next[0];
    while events.next[0] != 0 {
        let (operation, is_end) = events.events[at];
        if !is_end {
            if let Some(then) = after(state, history[operation].action) {
                taken[operation / 64] |= 1 << (operation % 64);
                if seen.insert((taken.clone(), then)) {
                    path.push((operation, state));
                    state = then;
                    events.take(operation);
                    at = events.next[0];
                    continue;
                }
                taken[operation / 64] &= !(1 << (operation % 64));
            }
            at = events.next[at];
            continue;
        }
        // It ended before any other one that could come next began.
        let Some((operation, before)) = path.pop() else { return false };
        taken[operation / 64] &= !(1 << (operation % 64));
        state = before;
        events.put_back(operation);
        at = events.next[events.places[operation][0]];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(operations: &[(u64, u64, Action)]) -> Vec<Operation> {
        let operation = |&(start, end, action)| Operation {
            start: Duration::from_millis(start),
            end: (end > 0).then(|| Duration::from_millis(end)),
            action,
        };
        operations.iter().map(operation).collect()
    }

    #[test]
    fn a_history_that_can_have_happened_is_found_so() {
        use Action::{Read, Write};
        assert!(is_linearizable(&[]));
        assert!(is_linearizable(&history(&[
            (0, 10, Write(1)),
            (5, 15, Read(None)),
            (5, 25, Read(Some(2))),
            (12, 0, Write(2)),
            (16, 20, Read(Some(1))),
            (30, 40, Read(Some(2))),
        ])));
        // A write without an answer may never have happened, or late.
        assert!(is_linearizable(&history(&[
            (0, 10, Write(1)),
            (5, 0, Write(2)),
            (20, 30, Read(Some(1))),
        ])));
        assert!(is_linearizable(&history(&[
            (0, 10, Write(1)),
            (5, 0, Write(2)),
            (20, 30, Read(Some(1))),
            (40, 50, Read(Some(2))),
        ])));
    }

    #[test]
    fn a_lost_write_a_stale_read_and_one_that_goes_back_are_found() {
        use Action::{Read, Write};
        // An answered write is gone.
        assert!(!is_linearizable(&history(&[(0, 10, Write(1)), (20, 30, Read(None))])));
        // The old value is read behind the new one's answer.
        assert!(!is_linearizable(&history(&[
            (0, 10, Write(1)),
            (20, 30, Write(2)),
            (40, 50, Read(Some(1))),
        ])));
        // A value that was read is gone later, though nothing else was written.
        assert!(!is_linearizable(&history(&[
            (0, 10, Write(1)),
            (15, 0, Write(2)),
            (20, 30, Read(Some(2))),
            (40, 50, Read(Some(1))),
        ])));
        // A value that nobody wrote.
        assert!(!is_linearizable(&history(&[(0, 10, Write(1)), (5, 15, Read(Some(7)))])));
    }

    #[test]
    fn a_fault_in_a_long_history_is_found() {
        use Action::{Read, Write};
        let mut operations = Vec::new();
        for number in 1..500 {
            let start = number * 10;
            operations.push((start, start + 25, Write(number)));
            operations.push((start + 26, start + 29, Read(Some(number + 1))));
            operations.push((start + 5, 0, Write(1_000 + number)));
        }
        let reads = |operations: &[(u64, u64, Action)]| is_linearizable(&history(operations));
        operations.retain(|operation| !matches!(operation.2, Read(Some(500))));
        assert!(reads(&operations));
        operations.push((4_000, 4_001, Read(Some(100))));
        assert!(!reads(&operations));
    }
}
