//! Records what earlier connections at one address did, and predicts the next one from the record.
//!
//! A lane costs two programs and the daemon about as much as ten exchanges over TCP. Moving amid a
//! transfer that is nearly over costs more than it brings. So a connection asks for a lane when it
//! is expected to carry more than the lane costs. It is expected to do as much as those before it.
//! Once it has done twice as much it is of another kind, and nothing is expected. Where no forecast
//! exists, the caller decides by its thresholds.

use crate::Side;

/// The reads, writes and bytes of a connection so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// Its reads that moved something.
    pub reads: u64,
    /// Its writes that moved something.
    pub writes: u64,
    /// Bytes in both directions.
    pub bytes: u64,
}

/// The forecast for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outlook {
    /// No forecast: there were too few connections before it, or it has done more than they did.
    Unknown,
    /// A lane pays, and most at once: when it comes, the reader must first read the bytes that
    /// are still on TCP, while the writer waits.
    Long,
    /// A lane pays if one is there already; a new one does not.
    Middling,
    /// No lane pays.
    Short,
}

/// A lane pays if this many turns are still expected,
const TURNS_WORTH: u64 = 16;
/// or this many bytes.
const BYTES_WORTH: u64 = 5 << 19;
/// The move to a kept lane pays if this many bytes are still expected.
const BYTES_WORTH_KEPT: u64 = 1 << 18;

/// So many small messages that nobody answers are another kind of connection, too. A reader that
/// takes many at once never asks, and its peer asks in vain. So the number is high: beside it the
/// question costs nothing.
const MESSAGES_WORTH: u64 = 512;
/// A message of this many bytes gains nothing from a lane but what its bytes gain.
const BYTES_OF_A_MESSAGE: u64 = 1 << 10;

impl Done {
    /// Its reads and writes together.
    #[must_use]
    pub const fn calls(self) -> u64 {
        self.reads.wrapping_add(self.writes)
    }

    /// How often it answered or was answered.
    const fn turns(self) -> u64 {
        if self.reads < self.writes { self.reads } else { self.writes }
    }

    /// Small messages that nobody answered.
    const fn messages(self) -> u64 {
        self.reads.abs_diff(self.writes).saturating_sub(self.bytes / BYTES_OF_A_MESSAGE)
    }

    /// True when a connection has done so much that its end must have asked for a lane, whatever
    /// the forecast was, if the library saw all of it.
    #[must_use]
    pub const fn must_have_asked(self) -> bool {
        self.turns() >= 6 * TURNS_WORTH || self.bytes >= 6 * BYTES_WORTH
    }
}

/// The turns and bytes that a connection is expected to have when it ends.
#[derive(Clone, Copy)]
struct Expected {
    turns: u64,
    bytes: u64,
}

/// The record of an address, in one word. From the top: how many connections were seen, up to three
/// (2 bits), turns (30 bits), KiB (32 bits). The word 0 has no connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Record(u64);

const SEEN_SHIFT: u32 = 62;
/// A smaller number of short connections predicts nothing: programs often ask something on a
/// connection of its own before they begin a long one.
const SEEN_ENOUGH: u64 = 3;
const TURNS_MAX: u64 = (1 << 30) - 1;
const KIB_MAX: u64 = (1 << 32) - 1;

impl Record {
    /// The record that `word` encodes.
    #[must_use]
    pub const fn of(word: u64) -> Self {
        Self(word)
    }

    /// The record as a word.
    #[must_use]
    pub const fn word(self) -> u64 {
        self.0
    }

    const fn seen(self) -> u64 {
        self.0 >> SEEN_SHIFT
    }

    const fn expected(self) -> Option<Expected> {
        if self.seen() == 0 {
            return None;
        }
        Some(Expected { turns: (self.0 >> 32) & TURNS_MAX, bytes: (self.0 & KIB_MAX) << 10 })
    }

    /// The record after one more connection, which did `done`. A longer connection counts at once,
    /// shorter ones only gradually: to miss a lane costs more than to make one that is not used.
    #[must_use]
    pub fn learn(self, done: Done) -> Self {
        let weigh =
            |former: u64, now: u64| now.max(former - former.saturating_sub(now).div_ceil(4));
        let now = Expected { turns: done.turns(), bytes: done.bytes };
        let former = self.expected().unwrap_or(now);
        let turns = weigh(former.turns, now.turns).min(TURNS_MAX);
        let kib = weigh(former.bytes >> 10, now.bytes >> 10).min(KIB_MAX);
        Self((self.seen() + 1).min(SEEN_ENOUGH) << SEEN_SHIFT | turns << 32 | kib)
    }

    /// The forecast for a connection that has done `done` so far.
    #[must_use]
    pub fn outlook(self, done: Done) -> Outlook {
        let Some(expected) = self.expected() else { return Outlook::Unknown };
        let turns = done.turns();
        let outlived = turns >= 2 * expected.turns + TURNS_WORTH
            || done.messages() >= MESSAGES_WORTH
            || done.bytes >= 2 * expected.bytes + BYTES_WORTH / 4;
        if outlived {
            return Outlook::Unknown;
        }
        let bytes = expected.bytes.saturating_sub(done.bytes);
        let is_long = expected.turns.saturating_sub(turns) >= TURNS_WORTH;
        match bytes {
            _ if is_long => Outlook::Long,
            BYTES_WORTH.. => Outlook::Long,
            _ if self.seen() < SEEN_ENOUGH => Outlook::Unknown,
            BYTES_WORTH_KEPT.. => Outlook::Middling,
            _ => Outlook::Short,
        }
    }
}

/// True when an end whose outlook is [`Outlook::Middling`] asks for a new lane all the same, so
/// that there is one to keep. `number` is that of the connection, the same at both ends. `wasted`
/// counts requests and misses for its address, less those that the use of a kept lane made up for.
///
/// A lane is made only if both ends ask for the same connection. The connecting end asks for each
/// one, until its peer seems to keep no lanes. The accepting end may have many peers that want no
/// lane, so it asks for a few. When both ask for a few, those of one end are among those of the
/// other.
#[must_use]
pub const fn should_prime(side: Side, number: u64, wasted: u32) -> bool {
    // Spreads the numbers evenly.
    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
    match (side, wasted) {
        (Side::Connected, 0..32) => true,
        (Side::Accepted, 0..16) => spread < 8,
        _ => spread == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DOWNLOAD: Done = Done { reads: 64, writes: 1, bytes: 1 << 20 };

    /// A connection of one turn after the other.
    const fn talk(turns: u64, bytes: u64) -> Done {
        Done { reads: turns, writes: turns, bytes }
    }

    fn taught(done: Done) -> Record {
        (0..SEEN_ENOUGH).fold(Record::default(), |record, _| record.learn(done))
    }

    #[test]
    fn one_short_connection_says_nothing_and_one_long_one_does() {
        let asked = Record::default().learn(talk(1, 100));
        assert_eq!(asked.outlook(Done::default()), Outlook::Unknown);
        let long = Record::default().learn(talk(100, 1000));
        assert_eq!(long.outlook(Done::default()), Outlook::Long);
    }

    #[test]
    fn nothing_is_known_at_first() {
        assert_eq!(Record::default().outlook(Done::default()), Outlook::Unknown);
    }

    #[test]
    fn short_transfers_stay_and_long_ones_move() {
        let page = taught(talk(1, 100 << 10));
        assert_eq!(page.outlook(Done::default()), Outlook::Short);
        let download = taught(DOWNLOAD);
        assert_eq!(download.outlook(Done::default()), Outlook::Middling);
        assert_eq!(download.outlook(talk(0, 900 << 10)), Outlook::Short);
        let long = Record::default().learn(talk(1, 1 << 30));
        assert_eq!(long.outlook(Done::default()), Outlook::Long);
        let chat = Record::default().learn(talk(1000, 64_000));
        assert_eq!(chat.outlook(talk(4, 300)), Outlook::Long);
    }

    #[test]
    fn one_that_outlives_those_before_it_moves() {
        let short = taught(DOWNLOAD);
        assert_eq!(short.outlook(talk(1, 5 << 20)), Outlook::Unknown);
        assert_eq!(short.outlook(talk(18, 2000)), Outlook::Unknown);
    }

    #[test]
    fn many_small_messages_in_one_direction_outlive_short_connections() {
        let short = taught(talk(2, 100));
        for (reads, writes) in [(1, 600), (600, 1)] {
            let news = Done { reads, writes, bytes: 600 * 60 };
            assert_eq!(short.outlook(news), Outlook::Unknown, "{news:?}");
            let pieces = Done { bytes: 600 * 900, ..news };
            assert_eq!(short.outlook(pieces), Outlook::Short, "{pieces:?}");
        }
    }

    #[test]
    fn a_long_one_is_remembered_at_once_and_forgotten_slowly() {
        let mut record = taught(DOWNLOAD);
        record = record.learn(talk(400, 0));
        assert_eq!(record.outlook(Done::default()), Outlook::Long);
        for count in 0..40 {
            if record.outlook(Done::default()) == Outlook::Middling {
                assert!(count > 4, "after {count}");
                return;
            }
            record = record.learn(DOWNLOAD);
        }
        panic!("never forgotten");
    }

    #[test]
    fn both_ends_ask_for_one_connection_of_few() {
        for start in [1_000, 1_000_000] {
            let mut wasted = [0; 2];
            let together = (0..).position(|number| {
                let asks = [
                    should_prime(Side::Connected, number, wasted[0]),
                    should_prime(Side::Accepted, start + number, wasted[1]),
                ];
                wasted[0] += u32::from(asks[0]);
                wasted[1] += u32::from(asks[1]);
                asks == [true; 2]
            });
            assert!(together.is_some_and(|count| count < 40), "{together:?}");
        }
    }

    #[test]
    fn a_peer_that_keeps_no_lanes_costs_little() {
        for side in [Side::Connected, Side::Accepted] {
            let asked = (0..6400).filter(|number| should_prime(side, *number, 1000)).count();
            assert!((50..200).contains(&asked), "{asked}");
        }
    }

    proptest! {
        #[test]
        fn a_connection_past_doubt_once_had_a_reason_to_ask(word: u64, small: bool) {
            let word = if small { word & (3 << SEEN_SHIFT | 63 << 32 | 0x3fff) } else { word };
            for done in [talk(6 * TURNS_WORTH, 0), talk(0, 6 * BYTES_WORTH)] {
                prop_assert!(done.must_have_asked());
                let outlooks = [Done::default(), done].map(|done| Record::of(word).outlook(done));
                let asks = |outlook: &Outlook| matches!(outlook, Outlook::Long | Outlook::Unknown);
                prop_assert!(outlooks.iter().any(asks), "{:?}", outlooks);
            }
        }

        #[test]
        fn any_word_and_any_connection_are_taken(
            word: u64,
            reads: u64,
            writes: u64,
            bytes: u64,
        ) {
            let done = Done { reads: reads >> 2, writes: writes >> 2, bytes: bytes >> 2 };
            let record = Record::of(word).learn(done);
            let _ = record.outlook(done);
            let expected = record.expected().expect("it learned");
            prop_assert!(expected.turns >= done.turns().min(TURNS_MAX));
        }
    }
}
