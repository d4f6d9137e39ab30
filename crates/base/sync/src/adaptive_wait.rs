//! Adaptive waiting: spin, then yield, then sleep, for durations that depend on earlier waits.
//!
//! If there are more polling threads than processors, a spinning thread starves the thread that it
//! waits for. So spinning is short, and yields follow, which cost nothing when no other thread is
//! runnable. The budget of yields doubles when a wait ended before the sleep and halves when it did
//! not, so that an endpoint with long gaps between messages sleeps nearly at once. Now and then a
//! wait gets the whole budget nevertheless: a small budget cannot show that a larger one would pay
//! off.
//!
//! While other threads want the processors ([`crate::contention`]), the spins are a sixteenth and
//! the yields four times as many. Each yield lets another thread work, perhaps the one that is
//! waited for, and a sleeper would cost its peer a doorbell. The yields of one wait are limited in
//! time, since the waiter does not ask the kernel meanwhile whether its peer died.
//!
//! Beside a program that computes ([`contention::is_computing`]) a waiter does not yield at all and
//! hardly spins: the kernel runs a woken sleeper sooner than a thread behind that program in the
//! run queue.

use std::time::Duration;

use crate::contention;

/// The divisor of the spins on a crowded machine.
const CROWDED_PART: u32 = 16;
/// The factor of the yields on a crowded machine.
const CROWDED_YIELDS: u32 = 4;
/// A wait sleeps once its yields took this long together.
const GIVEN_MAX: Duration = Duration::from_millis(2);

/// The next step of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Pause for a moment and check again.
    Spin,
    /// Yield ([`AdaptiveWait::give_way`]) and check again.
    Yield,
    /// Prepare to sleep.
    Sleep,
}

/// The experience of one waiter, kept between its waits. Zeroed memory means no experience.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Learned(u32);

impl Learned {
    /// The share never falls below this, so that a change of the traffic is noticed.
    const SHARE_MIN: u32 = 1;
    const SHARE_MAX: u32 = 100;
    /// After this many misses in a row at the least share, one wait gets the whole budget.
    const MISSES_MAX: u32 = 64;
    const SHARE_BITS: u32 = 8;

    /// The value with these [`bits`](Learned::bits).
    #[must_use]
    pub const fn of(bits: u32) -> Self {
        Self(bits)
    }

    /// The value as bits, to be stored where several threads write.
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

    /// The percentage of the yields that a wait may use.
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
pub struct AdaptiveWait {
    spins_max: u32,
    yields_max: u32,
    learned: Learned,
    spins: u32,
    yields: u32,
    /// The total duration of this wait's yields.
    given: Duration,
}

impl AdaptiveWait {
    /// A budget of at most `spins` pauses and then `yields` yields.
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

    /// The same budget with earlier experience.
    #[must_use]
    pub const fn with(mut self, learned: Learned) -> Self {
        self.learned = learned;
        self
    }

    /// The experience so far.
    #[must_use]
    pub const fn learned(&self) -> Learned {
        self.learned
    }

    /// The next step of this wait.
    #[inline]
    pub fn step(&mut self) -> Step {
        self.step_with(contention::is_contended(), contention::is_computing())
    }

    fn step_with(&mut self, crowded: bool, computing: bool) -> Step {
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
        self.gave(contention::yield_core());
    }

    const fn gave(&mut self, took: Duration) {
        self.given = self.given.saturating_add(took);
    }

    /// The wait ended before a sleep, so the next wait gets a larger budget.
    pub const fn hit(&mut self) {
        self.learned = self.learned.hit();
        self.restart();
    }

    /// The wait ended in a sleep, so the next wait gets a smaller budget.
    pub const fn miss(&mut self) {
        self.learned = self.learned.miss();
        self.restart();
    }

    /// Starts a wait.
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

    /// The next step on a machine on which no other thread wants a processor.
    fn step(adaptive_wait: &mut AdaptiveWait) -> Step {
        adaptive_wait.step_with(false, false)
    }

    fn yields(adaptive_wait: &mut AdaptiveWait) -> usize {
        std::iter::from_fn(|| Some(step(adaptive_wait)))
            .take_while(|step| *step != Step::Sleep)
            .filter(|step| *step == Step::Yield)
            .count()
    }

    #[test]
    fn it_spins_then_yields_then_sleeps() {
        let mut adaptive_wait = AdaptiveWait::new(1, 1);
        assert_eq!(
            [(); 3].map(|()| step(&mut adaptive_wait)),
            [Step::Spin, Step::Yield, Step::Sleep]
        );
    }

    #[test]
    fn it_does_not_yield_for_long() {
        let mut adaptive_wait = AdaptiveWait::new(0, 100);
        assert_eq!(step(&mut adaptive_wait), Step::Yield);
        adaptive_wait.gave(GIVEN_MAX / 2);
        assert_eq!(step(&mut adaptive_wait), Step::Yield);
        adaptive_wait.gave(GIVEN_MAX / 2);
        assert_eq!(step(&mut adaptive_wait), Step::Sleep);
        adaptive_wait.restart();
        assert_eq!(step(&mut adaptive_wait), Step::Yield);
    }

    #[test]
    fn beside_a_program_that_computes_it_hardly_spins_and_does_not_yield() {
        let mut adaptive_wait = AdaptiveWait::new(32, 100);
        let steps = [(); 3].map(|()| adaptive_wait.step_with(false, true));
        assert_eq!(steps, [Step::Spin, Step::Spin, Step::Sleep]);
    }

    #[test]
    fn in_a_crowd_it_yields_more_often() {
        let mut adaptive_wait = AdaptiveWait::new(0, 1);
        adaptive_wait.yields = CROWDED_YIELDS - 1;
        assert!(adaptive_wait.may_yield(true) && !adaptive_wait.may_yield(false));
        adaptive_wait.gave(GIVEN_MAX);
        assert!(!adaptive_wait.may_yield(true));
        assert!(!AdaptiveWait::new(0, 0).may_yield(true), "a budget without yields stays without");
    }

    #[test]
    fn now_and_then_a_wait_has_the_whole_budget() {
        let mut adaptive_wait = AdaptiveWait::new(0, 100);
        let budgets = (0..150).map(|_| {
            let budget = yields(&mut adaptive_wait);
            adaptive_wait.miss();
            budget
        });
        let whole: Vec<usize> =
            (0..).zip(budgets).filter(|(_, b)| *b == 100).map(|(i, _)| i).collect();
        assert_eq!(whole, [0, 69, 134]);
        while yields(&mut adaptive_wait) < 100 {
            adaptive_wait.miss();
        }
        adaptive_wait.hit();
        assert_eq!(yields(&mut adaptive_wait), 100, "a hit keeps the whole budget");
        adaptive_wait.hit();
        assert_eq!(AdaptiveWait::new(0, 100).with(Learned::of(u32::MAX)).learned.share(), 100);
    }

    #[test]
    fn misses_shorten_and_hits_lengthen_it() {
        let mut adaptive_wait = AdaptiveWait::new(2, 100);
        assert_eq!(yields(&mut adaptive_wait), 100);
        for _ in 0..10 {
            adaptive_wait.miss();
        }
        assert_eq!(yields(&mut adaptive_wait), 1);
        for _ in 0..10 {
            adaptive_wait.hit();
        }
        assert_eq!(yields(&mut adaptive_wait), 100);
    }
}
