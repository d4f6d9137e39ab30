//! Log-linear histograms: four buckets for each power of two.
//!
//! A value is known to a quarter of its size, from 1 ns to 36 minutes, in [`BUCKETS`] words.
//! Recording is one relaxed addition for the bucket and one for the sum. A reader may see the one
//! without the other; the count is that of the buckets, so both views of it agree.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets for each power of two.
const PARTS: u64 = 4;
/// log2 of [`PARTS`].
const PARTS_BITS: u32 = 2;
/// Values from 2 to this power on are in the last bucket: 36 minutes in nanoseconds.
const POWER_MAX: u32 = 41;
/// Buckets of a histogram.
pub const BUCKETS: usize = ((POWER_MAX - PARTS_BITS + 1) << PARTS_BITS) as usize;

/// Words of 64 bits of a histogram in shared memory: the buckets, and the sum.
pub const WORDS: usize = BUCKETS + 1;

/// The bucket of a value.
fn bucket(value: u64) -> usize {
    let place = match value {
        0..PARTS => value,
        _ => {
            let power = value.ilog2();
            let within = (value >> (power - PARTS_BITS)) - PARTS;
            u64::from(power - PARTS_BITS + 1) * PARTS + within
        }
    };
    usize::try_from(place).map_or(BUCKETS - 1, |place| place.min(BUCKETS - 1))
}

/// The greatest value of a bucket.
fn upper(place: usize) -> u64 {
    let place = place as u64;
    match place {
        0..PARTS => place,
        _ => {
            let power = place / PARTS - 1;
            ((PARTS + place % PARTS + 1) << power) - 1
        }
    }
}

/// A histogram of durations, which many threads record. In memory it is [`WORDS`] words: it may be
/// in memory that other processes read.
#[derive(Debug)]
#[repr(C)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    /// Nanoseconds.
    sum: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// A histogram without values.
    #[must_use]
    pub const fn new() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum: AtomicU64::new(0) }
    }

    /// Records a duration.
    pub fn record(&self, duration: Duration) {
        for (place, more) in Self::changes(duration) {
            let word = self.buckets.get(place).unwrap_or(&self.sum);
            word.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// The words that a duration changes, and what is added to each: for those who keep the words
    /// in memory of their own.
    #[must_use]
    pub fn changes(duration: Duration) -> [(usize, u64); 2] {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        [(bucket(nanoseconds), 1), (BUCKETS, nanoseconds)]
    }

    /// The counts of now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        Snapshot { counts, sum: self.sum.load(Ordering::Relaxed) }
    }
}

/// The counts of a histogram at one instant.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    counts: Vec<u64>,
    sum: u64,
}

impl Snapshot {
    /// A snapshot of [`WORDS`] words that were copied out of another process's memory.
    #[must_use]
    pub fn of_words(words: &[u64; WORDS]) -> Self {
        Self { counts: words[..BUCKETS].to_vec(), sum: words[BUCKETS] }
    }

    /// Adds the counts of another snapshot.
    pub fn add(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (sum, more) in self.counts.iter_mut().zip(&other.counts) {
            *sum = sum.saturating_add(*more);
        }
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// A snapshot of counts that another process told; those beyond [`BUCKETS`] are dropped.
    #[must_use]
    pub fn of(mut counts: Vec<u64>, sum_ns: u64) -> Self {
        counts.truncate(BUCKETS);
        Self { counts, sum: sum_ns }
    }

    /// The counts of the buckets, without the zeros at the end.
    #[must_use]
    pub fn trimmed(mut self) -> Vec<u64> {
        let used = self.counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        self.counts.truncate(used);
        self.counts
    }

    /// The sum of all values, in nanoseconds.
    #[must_use]
    pub const fn sum_ns(&self) -> u64 {
        self.sum
    }

    /// How many values were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |all, count| all.saturating_add(*count))
    }

    /// The sum of all values, in seconds.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "for people and plots")]
    pub fn sum_s(&self) -> f64 {
        self.sum as f64 / 1e9
    }

    /// The value below which `share` (0 to 1) of all values are, to a quarter; `None` without any.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a count is a count"
    )]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let wanted = (self.count() as f64 * share.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0_u64;
        self.counts.iter().enumerate().find_map(|(place, count)| {
            seen = seen.saturating_add(*count);
            (*count > 0 && seen >= wanted).then(|| Duration::from_nanos(upper(place)))
        })
    }

    /// The counts for an exporter: of each power of four nanoseconds from 256 ns to 17 s, and of
    /// all beyond. An upper bound in seconds, and the values up to it that are above the one
    /// before.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "for people and plots")]
    pub fn coarse(&self) -> Vec<(f64, u64)> {
        let bounds = (4..=17).map(|power| 1_u64 << (2 * power));
        let mut left = self.counts.iter().enumerate().peekable();
        let mut coarse = Vec::new();
        for bound in bounds {
            let mut count = 0_u64;
            while let Some((_, more)) = left.next_if(|(place, _)| upper(*place) < bound) {
                count = count.saturating_add(*more);
            }
            coarse.push((bound as f64 / 1e9, count));
        }
        coarse.push((f64::INFINITY, left.map(|(_, count)| *count).fold(0, u64::saturating_add)));
        coarse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_in_the_bucket_whose_bounds_hold_it() {
        let mut former = None;
        for power in 2..64 {
            for value in [(1_u64 << power) - 1, 1 << power, (1 << power) + 1] {
                let place = bucket(value);
                assert!(place < BUCKETS);
                if value < 1 << POWER_MAX {
                    assert!(value <= upper(place), "{value} in {place}");
                    assert!(place == 0 || value > upper(place - 1), "{value} in {place}");
                    assert!(upper(place) - value <= value / PARTS, "to a quarter: {value}");
                }
                assert!(former.is_none_or(|former| former <= place));
                former = Some(place);
            }
        }
    }

    #[test]
    fn a_histogram_in_shared_memory_is_words_that_can_be_added_up() {
        const { assert!(size_of::<Histogram>() == WORDS * 8) };
        let mut words = [0; WORDS];
        words[bucket(1000)] = 3;
        words[BUCKETS] = 3000;
        let mut seen = Snapshot::default();
        seen.add(&Snapshot::of_words(&words));
        words[0] = u64::MAX;
        seen.add(&Snapshot::of_words(&words));
        assert_eq!((seen.sum_ns(), seen.count()), (6000, u64::MAX), "it does not wrap");
    }

    #[test]
    fn quantiles_and_coarse_counts_have_every_value() {
        let histogram = Histogram::default();
        (0..100).for_each(|_| histogram.record(Duration::from_micros(10)));
        histogram.record(Duration::from_secs(10_000_000));
        let seen = histogram.snapshot();
        let median = seen.quantile(0.5).expect("there are values");
        assert!((10_000..=12_500).contains(&median.as_nanos()), "{median:?}");
        assert_eq!((seen.count(), Snapshot::default().quantile(0.5)), (101, None));
        let coarse = seen.coarse();
        assert_eq!(coarse.iter().map(|(_, count)| count).sum::<u64>(), 101);
        assert_eq!(coarse.last().map(|(_, count)| *count), Some(1));
        assert!(coarse.iter().any(|(bound, count)| *count == 100 && *bound > 10e-6));
    }
}
