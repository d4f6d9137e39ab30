//! How long to look before sleeping: spin, then yield, then sleep, adapted to what paid off.
//!
//! With more pollers than processors a spinning thread starves the one it waits for, so spinning
//! is short and is followed by yields, which cost nothing when nobody else wants the processor.
//! The budget doubles when looking paid off and halves when it did not, so that an endpoint with
//! long gaps between messages goes to sleep nearly at once. Now and then a wait has the whole
//! budget all the same: what would pay off if only it took longer is not found out otherwise.
//!
//! While others want the processors ([`crate::crowd`]), spins are a sixteenth, and yields four
//! times as many: each lets somebody do his work, which may be what is waited for, and whoever
//! sleeps costs his peer a bell. What one wait gives away has an end in time, since nobody looks at
//! the kernel meanwhile, which tells of a peer's death.
//!
//! Beside a program that computes ([`crowd::is_computing`]) a waiter does not yield at all, and
//! hardly spins: it had better be asleep when the answer comes than behind that program in the
//! queue.

use std::time::Duration;

use crate::crowd;

/// What part of the spins is left on a crowded machine.
const CROWDED_PART: u32 = 16;
/// How many times as many yields there.
const CROWDED_YIELDS: u32 = 4;
/// A wait whose yields took this long together sleeps.
const GIVEN_MAX: Duration = Duration::from_millis(2);

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

/// What one waiter's waits taught, kept between them; zeros, as in fresh memory, know nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Learned(u32);

impl Learned {
    /// The share never falls below this, so that a change of rhythm is noticed.
    const SHARE_MIN: u32 = 1;
    const SHARE_MAX: u32 = 100;
    /// After so many waits in a row that the least share was too small for, one has all.
    const MISSES_MAX: u32 = 64;
    const SHARE_BITS: u32 = 8;

    /// That of [`Learned::bits`].
    #[must_use]
    pub const fn of(bits: u32) -> Self {
        Self(bits)
    }

    /// To be stored where several threads write.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    const fn new(share: u32, misses: u32) -> Self {
        Self(misses << Self::SHARE_BITS | share)
    }

    const fn misses(self) -> u32 {
        self.0 >> Self::SHARE_BITS
    }

    /// Percentage of the budget that is in force.
    const fn share(self) -> u32 {
        let share = self.0 & ((1 << Self::SHARE_BITS) - 1);
        let is_known = share >= Self::SHARE_MIN && share <= Self::SHARE_MAX;
        if !is_known || self.misses() >= Self::MISSES_MAX { Self::SHARE_MAX } else { share }
    }

    const fn hit(self) -> Self {
        let doubled = self.share() * 2;
        Self::new(if doubled > Self::SHARE_MAX { Self::SHARE_MAX } else { doubled }, 0)
    }

    const fn miss(self) -> Self {
        if self.misses() >= Self::MISSES_MAX {
            return Self::new(Self::SHARE_MIN, 0);
        }
        let halved = self.share() / 2;
        if halved > Self::SHARE_MIN {
            Self::new(halved, 0)
        } else {
            Self::new(Self::SHARE_MIN, self.misses() + 1)
        }
    }
}

/// The budget of one waiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    spins_max: u32,
    yields_max: u32,
    learned: Learned,
    spins: u32,
    yields: u32,
    /// What the yields of this wait took.
    given: Duration,
}

impl Patience {
    /// At most `spins` pauses and then `yields` yields.
    #[must_use]
    pub const fn new(spins: u32, yields: u32) -> Self {
        Self {
            spins_max: spins,
            yields_max: yields,
            learned: Learned(0),
            spins: 0,
            yields: 0,
            given: Duration::ZERO,
        }
    }

    /// The same, going on from what earlier ones learned.
    #[must_use]
    pub const fn with(mut self, learned: Learned) -> Self {
        self.learned = learned;
        self
    }

    /// What it learned so far.
    #[must_use]
    pub const fn learned(&self) -> Learned {
        self.learned
    }

    /// The next step of this wait.
    #[inline]
    pub fn step(&mut self) -> Step {
        self.step_among(crowd::is_crowded(), crowd::is_computing())
    }

    fn step_among(&mut self, crowded: bool, computing: bool) -> Step {
        let spins_max = if crowded || computing {
            self.spins_max.div_ceil(CROWDED_PART)
        } else {
            self.spins_max
        };
        if self.spins < spins_max {
            self.spins += 1;
            return Step::Spin;
        }
        if !computing && self.may_yield(crowded) {
            self.yields += 1;
            return Step::Yield;
        }
        Step::Sleep
    }

    fn may_yield(&self, crowded: bool) -> bool {
        let share = self.learned.share();
        let times = if crowded { CROWDED_YIELDS } else { 1 };
        self.yields < self.yields_max * times * share / Learned::SHARE_MAX && self.given < GIVEN_MAX
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
        self.learned = self.learned.hit();
        self.restart();
    }

    /// The wait ended in a sleep: less patience next time.
    pub const fn miss(&mut self) {
        self.learned = self.learned.miss();
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

    /// On a machine where nobody else wants a processor, whatever this one is like.
    fn step(patience: &mut Patience) -> Step {
        patience.step_among(false, false)
    }

    fn yields(patience: &mut Patience) -> usize {
        std::iter::from_fn(|| Some(step(patience)))
            .take_while(|step| *step != Step::Sleep)
            .filter(|step| *step == Step::Yield)
            .count()
    }

    #[test]
    fn it_spins_then_yields_then_sleeps() {
        let mut patience = Patience::new(1, 1);
        assert_eq!([(); 3].map(|()| step(&mut patience)), [Step::Spin, Step::Yield, Step::Sleep]);
    }

    #[test]
    fn it_does_not_yield_for_long() {
        let mut patience = Patience::new(0, 100);
        assert_eq!(step(&mut patience), Step::Yield);
        patience.gave(GIVEN_MAX / 2);
        assert_eq!(step(&mut patience), Step::Yield);
        patience.gave(GIVEN_MAX / 2);
        assert_eq!(step(&mut patience), Step::Sleep);
        patience.restart();
        assert_eq!(step(&mut patience), Step::Yield);
    }

    #[test]
    fn beside_a_program_that_computes_it_hardly_spins_and_does_not_yield() {
        let mut patience = Patience::new(32, 100);
        let steps = [(); 3].map(|()| patience.step_among(false, true));
        assert_eq!(steps, [Step::Spin, Step::Spin, Step::Sleep]);
    }

    #[test]
    fn in_a_crowd_it_yields_more_often() {
        let mut patience = Patience::new(0, 1);
        patience.yields = CROWDED_YIELDS - 1;
        assert!(patience.may_yield(true) && !patience.may_yield(false));
        patience.gave(GIVEN_MAX);
        assert!(!patience.may_yield(true));
        assert!(!Patience::new(0, 0).may_yield(true), "who never yields does not in a crowd");
    }

    #[test]
    fn now_and_then_a_wait_has_the_whole_budget() {
        let mut patience = Patience::new(0, 100);
        let budgets = (0..150).map(|_| {
            let budget = yields(&mut patience);
            patience.miss();
            budget
        });
        let whole: Vec<usize> =
            (0..).zip(budgets).filter(|(_, b)| *b == 100).map(|(i, _)| i).collect();
        assert_eq!(whole, [0, 69, 134]);
        while yields(&mut patience) < 100 {
            patience.miss();
        }
        patience.hit();
        assert_eq!(yields(&mut patience), 100, "what paid off is kept");
        patience.hit();
        assert_eq!(Patience::new(0, 100).with(Learned::of(u32::MAX)).learned.share(), 100);
    }

    #[test]
    fn misses_shorten_and_hits_lengthen_it() {
        let mut patience = Patience::new(2, 100);
        assert_eq!(yields(&mut patience), 100);
        for _ in 0..10 {
            patience.miss();
        }
        assert_eq!(yields(&mut patience), 1);
        for _ in 0..10 {
            patience.hit();
        }
        assert_eq!(yields(&mut patience), 100);
    }
}
