//! Whether a waiter naps before it sleeps: a nap is a short sleep that is cheap to end, but notices
//! little ([`crate::futex`]).
//!
//! A nap that ended by its time was in vain, and the sleep that follows costs as much as without
//! it. So after one the next sleep has none, after another one the next two, then four, and so on.

/// The experience of one waiter, kept between its waits. Zeroed memory means no experience, and any
/// value is valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Naps(u32);

impl Naps {
    /// So many sleeps have no nap at most.
    const PAUSE_MAX: u32 = 16;
    const LEFT_BITS: u32 = 8;

    /// The value with these [`bits`](Naps::bits).
    #[must_use]
    pub const fn of(bits: u32) -> Self {
        Self(bits)
    }

    /// The value as bits, to be stored where several threads write.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// How many sleeps from now on have no nap.
    const fn left(self) -> u32 {
        self.0 & ((1 << Self::LEFT_BITS) - 1)
    }

    /// How many the next nap in vain will take away; 0 for one.
    const fn pause(self) -> u32 {
        self.0 >> Self::LEFT_BITS
    }

    /// A wait is about to sleep: true if it is to nap first.
    pub const fn begin(&mut self) -> bool {
        if self.left() == 0 {
            return true;
        }
        self.0 -= 1;
        false
    }

    /// The nap was ended by the other side.
    pub const fn hit(&mut self) {
        self.0 = 0;
    }

    /// The nap was in vain.
    pub const fn miss(&mut self) {
        let left = match self.pause() {
            0 => 1,
            Self::PAUSE_MAX.. => Self::PAUSE_MAX,
            some => some,
        };
        self.0 = (left * 2) << Self::LEFT_BITS | left;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many sleeps have no nap now.
    fn pause(naps: &mut Naps) -> usize {
        (0..).take_while(|_| !naps.begin()).count()
    }

    #[test]
    fn naps_in_vain_become_rare_and_one_that_was_worth_it_ends_that() {
        let mut naps = Naps::default();
        assert!(naps.begin() && naps.begin());
        for expected in [1, 2, 4, 8, 16, 16] {
            naps.miss();
            assert_eq!(pause(&mut naps), expected);
        }
        naps.hit();
        assert!(naps.begin());
        naps.miss();
        assert_eq!(pause(&mut naps), 1);
    }

    #[test]
    fn any_value_is_valid() {
        let mut naps = Naps::of(u32::MAX);
        assert!(pause(&mut naps) < 1 << Naps::LEFT_BITS);
        naps.miss();
        assert_eq!(pause(&mut naps), 16);
    }
}
