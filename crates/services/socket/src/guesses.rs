//! Bounds how often a user may offer ends between namespaces whose other end does not come.
//!
//! Such an end is told from others by the numbers with which its connection began
//! ([`crate::tuple::Trace`]). Root of a container may make a socket with any numbers, and so guess
//! those of others. An end that meets its other end is no guess and is not counted.
//!
//! # Invariants
//! - A user has [`BURST`] guesses at most, and gets back [`PER_SECOND`].
//! - At most [`USERS_MAX`] users are counted. A further one has no guesses until one of them has
//!   all of its own again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Guesses of a user who made none for long.
pub const BURST: u32 = 256;
/// Guesses that a user gets back in a second.
pub const PER_SECOND: u32 = 8;
/// Users who are counted at once.
pub const USERS_MAX: usize = 4096;

/// The guesses that each user made lately.
#[derive(Debug, Default)]
pub struct Guesses(HashMap<u32, Made>);

/// Guesses that a user made and did not get back until `at`.
#[derive(Clone, Copy, Debug)]
struct Made {
    count: u32,
    at: Instant,
}

impl Made {
    /// Those that are left at `now`.
    fn until(self, now: Instant) -> Self {
        let each = Duration::from_secs(1) / PER_SECOND;
        let passed = now.saturating_duration_since(self.at);
        let back = u32::try_from(passed.as_nanos() / each.as_nanos()).unwrap_or(u32::MAX);
        if back >= self.count {
            return Self { count: 0, at: now };
        }
        // Parts of a guess are kept for the next time.
        Self { count: self.count - back, at: self.at + each * back }
    }
}

impl Guesses {
    /// A user makes a guess. False when it has none left.
    #[must_use]
    pub fn make(&mut self, user: u32, now: Instant) -> bool {
        let made = self.0.get(&user).map_or(Made { count: 0, at: now }, |made| made.until(now));
        if made.count >= BURST {
            return false;
        }
        if !self.0.contains_key(&user) && self.0.len() >= USERS_MAX {
            self.0.retain(|_, made| made.until(now).count > 0);
            if self.0.len() >= USERS_MAX {
                return false;
            }
        }
        self.0.insert(user, Made { count: made.count + 1, ..made });
        true
    }

    /// A guess of `user` was none: the other end came.
    pub fn take_back(&mut self, user: u32) {
        if let Some(made) = self.0.get_mut(&user) {
            made.count = made.count.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Instant {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        #[allow(clippy::disallowed_methods, reason = "any moment will do")]
        *START.get_or_init(Instant::now)
    }

    fn makes(guesses: &mut Guesses, user: u32, at: Instant) -> u32 {
        (0..).take_while(|_| guesses.make(user, at)).count().try_into().expect("few")
    }

    #[test]
    fn guesses_run_out_and_come_back_with_time() {
        let (mut guesses, start) = (Guesses::default(), now());
        assert_eq!(makes(&mut guesses, 1, start), BURST);
        assert_eq!(makes(&mut guesses, 2, start), BURST, "another user has its own");
        let later = start + Duration::from_millis(1100);
        assert_eq!(makes(&mut guesses, 1, later), PER_SECOND);
        // The tenth of a second before counts for the next one.
        assert_eq!(makes(&mut guesses, 1, later + Duration::from_millis(25)), 1);
        assert_eq!(makes(&mut guesses, 1, start + Duration::from_secs(3600)), BURST);
    }

    #[test]
    fn an_end_that_meets_its_other_end_is_no_guess() {
        let (mut guesses, start) = (Guesses::default(), now());
        for _ in 0..10 * BURST {
            assert!(guesses.make(1, start));
            guesses.take_back(1);
        }
    }

    #[test]
    fn the_table_is_bounded() {
        let (mut guesses, start) = (Guesses::default(), now());
        for user in 0..5000 {
            assert_eq!(guesses.make(user, start), (user as usize) < USERS_MAX);
        }
        assert!(guesses.make(5000, start + Duration::from_secs(1)));
        assert_eq!(guesses.0.len(), 1, "the others have theirs again");
    }
}
