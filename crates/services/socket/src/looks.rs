//! When a connection looks for the answer to its offer of a lane, and whether it may have one.

/// The progress of a connection over TCP until some moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Reads and writes.
    pub calls: u64,
    /// Bytes that moved.
    pub bytes: u64,
    /// The moment, in ticks of the processor.
    pub ticks: u64,
}

impl Progress {
    /// True when a connection that did this, and looked at `last`, looks again. A look costs two
    /// system calls, so the first `early_calls` calls look, and later ones after so many calls, or
    /// so many bytes in a while: what goes over TCP meanwhile has to be read there before the lane.
    /// A writer that waits for room in the kernel (`waits_for_room`) makes no calls.
    #[must_use]
    pub const fn looks_again(self, last: Self, early_calls: u64, waits_for_room: bool) -> bool {
        const CALLS: u64 = 32;
        const BYTES: u64 = 16 << 10;
        /// About 0.2 ms.
        const PAUSE: u64 = 500_000;
        let has_moved = waits_for_room || self.bytes.wrapping_sub(last.bytes) >= BYTES;
        // Two threads may count at once, so that no number of calls is sure to be seen.
        self.calls < early_calls
            || self.calls.wrapping_sub(last.calls) >= CALLS
            || has_moved && self.ticks.wrapping_sub(last.ticks) >= PAUSE
    }
}

/// The waits of a program for a connection, as far as the library knows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waits {
    /// The connection is in epoll sets. True if one of them had no wait that the library saw.
    InSets(bool),
    /// It is in none, and was waited for: by a read that may block, by `poll` or `select`.
    Awaited,
    /// Nothing was seen.
    Unseen,
}

impl Waits {
    /// True when the library sees what the program does until it reads again. Programs may wait by
    /// system calls of their own, and the kernel shows nothing of what is on a lane: no bytes, and
    /// room in place of none. A program that `only_writes`, and waits in its writes, has nothing to
    /// be told.
    #[must_use]
    pub const fn are_seen(self, only_writes: bool) -> bool {
        match self {
            Self::InSets(has_unseen) => !has_unseen,
            Self::Awaited => true,
            Self::Unseen => only_writes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: Progress = Progress { calls: 100, bytes: 1 << 20, ticks: 1 << 40 };

    fn after(calls: u64, bytes: u64, ticks: u64) -> Progress {
        let Progress { calls: c, bytes: b, ticks: t } = LAST;
        Progress { calls: c + calls, bytes: b + bytes, ticks: t + ticks }
    }

    #[test]
    fn the_first_calls_look_each() {
        let first = Progress { calls: 15, ..Progress::default() };
        assert!(first.looks_again(first, 16, false));
        assert!(!Progress { calls: 16, ..first }.looks_again(first, 16, false));
    }

    #[test]
    fn later_ones_look_after_so_many_calls() {
        assert!(!after(31, 0, 1 << 30).looks_again(LAST, 16, false));
        assert!(after(32, 0, 0).looks_again(LAST, 16, false));
    }

    #[test]
    fn much_in_a_while_has_it_look() {
        assert!(!after(1, 1 << 14, 499_999).looks_again(LAST, 16, false));
        assert!(after(1, 1 << 14, 500_000).looks_again(LAST, 16, false));
        assert!(!after(1, (1 << 14) - 1, 500_000).looks_again(LAST, 16, false));
    }

    #[test]
    fn a_writer_that_waits_looks_by_time_alone() {
        assert!(after(0, 0, 500_000).looks_again(LAST, 16, true));
        assert!(!after(0, 0, 499_999).looks_again(LAST, 16, true));
    }

    #[test]
    fn counts_may_wrap() {
        let last = Progress { calls: u64::MAX, bytes: u64::MAX, ticks: u64::MAX };
        assert!(Progress { calls: 31, ..last }.looks_again(last, 0, false));
    }

    #[test]
    fn a_set_without_a_wait_keeps_the_connection_on_tcp() {
        assert!(!Waits::InSets(true).are_seen(true), "it may be told of room by that set");
        assert!(Waits::InSets(false).are_seen(false));
        assert!(Waits::Awaited.are_seen(false));
        assert!(Waits::Unseen.are_seen(true) && !Waits::Unseen.are_seen(false));
    }
}
