//! Virtual time, and how long bytes take on a link. Integers alone, so that a run is the same on
//! every machine.

/// A point in virtual time, or a span of it, in picoseconds. It overflows after 213 days.
pub type Time = u64;

/// One nanosecond.
pub const NANOSECOND: Time = 1_000;
/// One microsecond.
pub const MICROSECOND: Time = 1_000 * NANOSECOND;
/// One millisecond.
pub const MILLISECOND: Time = 1_000 * MICROSECOND;
/// One second.
pub const SECOND: Time = 1_000 * MILLISECOND;

/// Bits behind the binary point of a [`Pace`].
const FRACTION: u32 = 16;

/// How long a link takes for a byte, in 2^-16 picoseconds. 100 Gbit/s are exactly 80 ps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pace(u64);

impl Pace {
    /// The pace of a link of so many bits per second, rounded to the nearest.
    pub fn of(bits_per_second: u64) -> Self {
        let byte = u128::from(8 * SECOND) << FRACTION;
        let bits = u128::from(bits_per_second.max(1));
        Self(u64::try_from((byte + bits / 2) / bits).unwrap_or(u64::MAX))
    }

    /// The bytes that leave in a picosecond.
    #[expect(clippy::cast_precision_loss, reason = "a pace has less than 53 bits")]
    pub fn bytes_per_picosecond(self) -> f64 {
        (1_u64 << FRACTION) as f64 / self.0 as f64
    }

    /// The time that so many bytes take.
    pub fn time(self, bytes: u32) -> Time {
        let time = (u128::from(bytes) * u128::from(self.0)) >> FRACTION;
        Time::try_from(time).unwrap_or(Time::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_takes_eighty_picoseconds_at_a_hundred_gigabits() {
        assert_eq!(Pace::of(100_000_000_000).time(512), 40_960);
        assert_eq!(Pace::of(8_000_000).time(3), 3 * MICROSECOND);
        // 7 bytes at 3 Gbit/s take 18,666.66 ps.
        assert_eq!(Pace::of(3_000_000_000).time(7), 18_666);
    }
}
