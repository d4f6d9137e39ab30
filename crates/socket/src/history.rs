//! Records the earlier connections at one address and predicts the next one from them.
//!
//! A lane costs two programs and the daemon as much as some ten exchanges over TCP, and a move
//! amid a transfer costs more than it brings when the transfer is nearly over. So a connection asks
//! for one when more is to be expected of it than the lane costs. The best guess is that it will
//! live as those before it did; one that has done twice as much is of another kind, and asks.
//! Without a connection before it the caller's own thresholds are all there is.

use crate::Side;

/// The turns and bytes of a connection so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// How often it answered or was answered: the lesser of its reads and its writes.
    pub turns: u64,
    /// Bytes in both directions.
    pub bytes: u64,
}

/// The expectation for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outlook {
    /// Nobody knows: there was none before it, or it has outlived them.
    Unknown,
    /// So much that a lane pays, the sooner the better: what TCP holds when a direction moves has
    /// to be read first, while the writer waits.
    Long,
    /// Enough for a lane that is there already, too little for a new one.
    Middling,
    /// Too little for a lane.
    Short,
}

/// So many turns to come pay for a lane.
const TURNS_WORTH: u64 = 16;
/// So many bytes to come do.
const BYTES_WORTH: u64 = 5 << 19;
/// So many bytes to come pay for the move to a lane that an earlier connection left.
const BYTES_WORTH_KEPT: u64 = 1 << 18;

impl Done {
    /// So much that an end has asked for a lane by now, whatever it expected, if it sees all of it.
    #[must_use]
    pub const fn is_past_doubt(self) -> bool {
        self.turns >= 6 * TURNS_WORTH || self.bytes >= 6 * BYTES_WORTH
    }
}

/// The memory of an address, in a word: how many connections were seen at the top, up to
/// three, turns below, KiB at the bottom, and 0 for nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Record(u64);

const SEEN_SHIFT: u32 = 62;
/// Fewer that were short say nothing of the next one: programs ask something first, on a connection
/// of its own, and then begin with what they came for.
const SEEN_ENOUGH: u64 = 3;
const TURNS_MAX: u64 = (1 << 30) - 1;
const KIB_MAX: u64 = (1 << 32) - 1;

impl Record {
    /// The record that a word holds.
    #[must_use]
    pub const fn of(word: u64) -> Self {
        Self(word)
    }

    /// The word.
    #[must_use]
    pub const fn word(self) -> u64 {
        self.0
    }

    const fn seen(self) -> u64 {
        self.0 >> SEEN_SHIFT
    }

    const fn expected(self) -> Option<Done> {
        if self.seen() == 0 {
            return None;
        }
        Some(Done { turns: (self.0 >> 32) & TURNS_MAX, bytes: (self.0 & KIB_MAX) << 10 })
    }

    /// One more connection ended. A longer one counts at once, shorter ones little by little: what
    /// is wrongly not expected costs more than a lane.
    #[must_use]
    pub fn learn(self, done: Done) -> Self {
        let weigh =
            |former: u64, now: u64| now.max(former - former.saturating_sub(now).div_ceil(4));
        let former = self.expected().unwrap_or(done);
        let turns = weigh(former.turns, done.turns).min(TURNS_MAX);
        let kib = weigh(former.bytes >> 10, done.bytes >> 10).min(KIB_MAX);
        Self((self.seen() + 1).min(SEEN_ENOUGH) << SEEN_SHIFT | turns << 32 | kib)
    }

    /// The expectation for a connection that has `done` so much.
    #[must_use]
    pub fn outlook(self, done: Done) -> Outlook {
        let Some(expected) = self.expected() else { return Outlook::Unknown };
        let outlived = done.turns >= 2 * expected.turns + TURNS_WORTH
            || done.bytes >= 2 * expected.bytes + BYTES_WORTH / 4;
        if outlived {
            return Outlook::Unknown;
        }
        let bytes = expected.bytes.saturating_sub(done.bytes);
        let is_long = expected.turns.saturating_sub(done.turns) >= TURNS_WORTH;
        match bytes {
            _ if is_long => Outlook::Long,
            BYTES_WORTH.. => Outlook::Long,
            _ if self.seen() < SEEN_ENOUGH => Outlook::Unknown,
            BYTES_WORTH_KEPT.. => Outlook::Middling,
            _ => Outlook::Short,
        }
    }
}

/// Whether an end whose outlook is [`Outlook::Middling`] asks for a new lane all the same, so that
/// there is one to keep. `number` is that of the connection; `in_vain` is how often the process
/// asked so for its address since it last got a lane.
///
/// Both ends have to ask for the same connection: the connecting one asks for each, until it seems
/// that its peer keeps no lanes; the accepting one, of which many peers may want none, for a few.
#[must_use]
pub const fn primes(side: Side, number: u64, in_vain: u32) -> bool {
    // Spread evenly, and not in step with the other end's numbers.
    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
    match (side, in_vain) {
        (Side::Connected, 0..32) => true,
        (Side::Accepted, 0..16) => spread < 8,
        _ => spread == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DOWNLOAD: Done = Done { turns: 1, bytes: 1 << 20 };

    fn taught(done: Done) -> Record {
        (0..SEEN_ENOUGH).fold(Record::default(), |record, _| record.learn(done))
    }

    #[test]
    fn one_short_connection_says_nothing_and_one_long_one_does() {
        let asked = Record::default().learn(Done { turns: 1, bytes: 100 });
        assert_eq!(asked.outlook(Done::default()), Outlook::Unknown);
        let long = Record::default().learn(Done { turns: 100, bytes: 1000 });
        assert_eq!(long.outlook(Done::default()), Outlook::Long);
    }

    #[test]
    fn nothing_is_known_at_first() {
        assert_eq!(Record::default().outlook(Done::default()), Outlook::Unknown);
    }

    #[test]
    fn short_transfers_stay_and_long_ones_move() {
        let page = taught(Done { turns: 1, bytes: 100 << 10 });
        assert_eq!(page.outlook(Done::default()), Outlook::Short);
        let download = taught(DOWNLOAD);
        assert_eq!(download.outlook(Done::default()), Outlook::Middling);
        assert_eq!(download.outlook(Done { turns: 0, bytes: 900 << 10 }), Outlook::Short);
        let long = Record::default().learn(Done { turns: 1, bytes: 1 << 30 });
        assert_eq!(long.outlook(Done::default()), Outlook::Long);
        let talk = Record::default().learn(Done { turns: 1000, bytes: 64_000 });
        assert_eq!(talk.outlook(Done { turns: 4, bytes: 300 }), Outlook::Long);
    }

    #[test]
    fn one_that_outlives_those_before_it_moves() {
        let short = taught(DOWNLOAD);
        assert_eq!(short.outlook(Done { turns: 1, bytes: 5 << 20 }), Outlook::Unknown);
        assert_eq!(short.outlook(Done { turns: 18, bytes: 2000 }), Outlook::Unknown);
    }

    #[test]
    fn a_long_one_is_remembered_at_once_and_forgotten_slowly() {
        let mut record = taught(DOWNLOAD);
        record = record.learn(Done { turns: 400, bytes: 0 });
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
            let mut in_vain = [0; 2];
            let together = (0..).position(|number| {
                let asks = [
                    primes(Side::Connected, number, in_vain[0]),
                    primes(Side::Accepted, start + number, in_vain[1]),
                ];
                in_vain[0] += u32::from(asks[0]);
                in_vain[1] += u32::from(asks[1]);
                asks == [true; 2]
            });
            assert!(together.is_some_and(|count| count < 40), "{together:?}");
        }
    }

    #[test]
    fn a_peer_that_keeps_no_lanes_costs_little() {
        for side in [Side::Connected, Side::Accepted] {
            let asked = (0..6400).filter(|number| primes(side, *number, 1000)).count();
            assert!((50..200).contains(&asked), "{asked}");
        }
    }

    proptest! {
        #[test]
        fn past_doubt_it_was_once_not_expected_to_be_short(word: u64, small: bool) {
            let word = if small { word & (3 << SEEN_SHIFT | 63 << 32 | 0x3fff) } else { word };
            for done in [
                Done { turns: 6 * TURNS_WORTH, bytes: 0 },
                Done { turns: 0, bytes: 6 * BYTES_WORTH },
            ] {
                prop_assert!(done.is_past_doubt());
                let outlooks = [Done::default(), done].map(|done| Record::of(word).outlook(done));
                let asks = |outlook: &Outlook| matches!(outlook, Outlook::Long | Outlook::Unknown);
                prop_assert!(outlooks.iter().any(asks), "{:?}", outlooks);
            }
        }

        #[test]
        fn any_word_and_any_connection_are_taken(word: u64, turns: u64, bytes: u64) {
            let (turns, bytes) = (turns >> 2, bytes >> 2);
            let record = Record::of(word).learn(Done { turns, bytes });
            let _ = record.outlook(Done { turns, bytes });
            let expected = record.expected().expect("it learned");
            prop_assert!(expected.turns >= turns.min(TURNS_MAX));
        }
    }
}
