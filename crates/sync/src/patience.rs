//! How long to look before sleeping: spin, then yield, then sleep, adapted to what paid off.
//!
//! With more pollers than processors a spinning thread starves the one it waits for, so spinning
//! is short and is followed by yields, which cost nothing when nobody else wants the processor.
//! The budget doubles when looking paid off and halves when it did not, so that an endpoint with
//! long gaps between messages goes to sleep nearly at once. While others want the processors
//! ([`crate::crowd`]), spins are a sixteenth.
//!
//! Beside a program that computes ([`crowd::is_computing`]) a waiter does not yield at all. And
//! what the yields of one wait give away has an end in time: nobody looks at the kernel meanwhile,
//! which tells of a peer's death.

use std::time::Duration;

use crate::crowd;

/// What part of the spins is left on a crowded machine.
const CROWDED_PART: u32 = 16;
/// A wait whose yields took this long together sleeps.
const GIVEN_MAX: Duration = Duration::from_millis(1);

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Pause for a moment and look again.
    Spin,
    /// Let others run ([`Patience::give_way`]) and look again.
    Yield,
    /// Prepare to sleep.
    Sleep,
}

/// The budget of one waiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    spins_max: u32,
    yields_max: u32,
    /// Percentage of the maxima that is in force.
    share: u32,
    spins: u32,
    yields: u32,
    /// What the yields of this wait took.
    given: Duration,
}

impl Patience {
    /// The share never falls below this, so that a change of rhythm is noticed.
    const SHARE_MIN: u32 = 3;
    const SHARE_MAX: u32 = 100;

    /// At most `spins` pauses and then `yields` yields.
    #[must_use]
    pub const fn new(spins: u32, yields: u32) -> Self {
        Self {
            spins_max: spins,
            yields_max: yields,
            share: Self::SHARE_MAX,
            spins: 0,
            yields: 0,
            given: Duration::ZERO,
        }
    }

    /// The same with the share of the budget that an earlier one left ([`Patience::share`]); 0,
    /// as in fresh memory, is the whole.
    #[must_use]
    pub const fn with_share(mut self, share: u32) -> Self {
        if share >= Self::SHARE_MIN && share <= Self::SHARE_MAX {
            self.share = share;
        }
        self
    }

    /// How much of the budget is in force, percent.
    #[must_use]
    pub const fn share(&self) -> u32 {
        self.share
    }

    /// The next step of this wait.
    #[inline]
    pub fn step(&mut self) -> Step {
        let spins_max = if crowd::is_crowded() {
            self.spins_max.div_ceil(CROWDED_PART)
        } else {
            self.spins_max
        };
        if self.spins < spins_max {
            self.spins += 1;
            return Step::Spin;
        }
        let yields_max = self.yields_max * self.share / Self::SHARE_MAX;
        if self.yields < yields_max && self.given < GIVEN_MAX && !crowd::is_computing() {
            self.yields += 1;
            return Step::Yield;
        }
        Step::Sleep
    }

    /// Does a [`Step::Yield`].
    pub fn give_way(&mut self) {
        self.gave(crowd::yield_core());
    }

    const fn gave(&mut self, took: Duration) {
        self.given = self.given.saturating_add(took);
    }

    /// The wait ended before a sleep: more patience next time.
    pub const fn hit(&mut self) {
        self.share =
            if self.share > Self::SHARE_MAX / 2 { Self::SHARE_MAX } else { self.share * 2 };
        self.restart();
    }

    /// The wait ended in a sleep: less patience next time.
    pub const fn miss(&mut self) {
        self.share /= 2;
        if self.share < Self::SHARE_MIN {
            self.share = Self::SHARE_MIN;
        }
        self.restart();
    }

    /// Begins a wait.
    #[inline]
    pub const fn restart(&mut self) {
        self.spins = 0;
        self.yields = 0;
        self.given = Duration::ZERO;
    }

    /// True before the first step of a wait.
    #[must_use]
    pub const fn is_fresh(&self) -> bool {
        self.spins == 0 && self.yields == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yields(patience: &mut Patience) -> usize {
        std::iter::from_fn(|| Some(patience.step()))
            .take_while(|step| *step != Step::Sleep)
            .filter(|step| *step == Step::Yield)
            .count()
    }

    #[test]
    fn it_spins_then_yields_then_sleeps() {
        let mut patience = Patience::new(1, 1);
        assert_eq!([(); 3].map(|()| patience.step()), [Step::Spin, Step::Yield, Step::Sleep]);
    }

    #[test]
    fn it_does_not_yield_for_long_beside_a_program_that_computes() {
        let mut patience = Patience::new(0, 100);
        assert_eq!(patience.step(), Step::Yield);
        patience.gave(GIVEN_MAX / 2);
        assert_eq!(patience.step(), Step::Yield);
        patience.gave(GIVEN_MAX / 2);
        assert_eq!(patience.step(), Step::Sleep);
        patience.restart();
        assert_eq!(patience.step(), Step::Yield);
    }

    #[test]
    fn misses_shorten_and_hits_lengthen_it() {
        let mut patience = Patience::new(2, 100);
        assert_eq!(yields(&mut patience), 100);
        for _ in 0..10 {
            patience.miss();
        }
        assert_eq!(yields(&mut patience), 3);
        for _ in 0..10 {
            patience.hit();
        }
        assert_eq!(yields(&mut patience), 100);
    }
}
