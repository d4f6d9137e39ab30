//! Limits the log lines about each user, so that misbehaving programs cannot fill the log.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Lines about one user in each [`WINDOW`].
const LINES_MAX: u32 = 8;
const WINDOW: Duration = Duration::from_secs(60);
/// Users that are counted one by one; all further users share one budget.
const USERS_MAX: usize = 256;
/// The key of the shared budget.
const OTHERS: u32 = u32::MAX;

/// The lines about one user in the present window.
#[derive(Debug)]
struct Said {
    since: Instant,
    lines: u32,
    left_out: u64,
}

/// Counts log lines by user.
#[derive(Debug, Default)]
pub struct Complaints {
    users: HashMap<u32, Said>,
}

impl Complaints {
    /// Whether one more line about `user` may be written: `Some` with the number of lines left out
    /// before it, or `None`.
    pub fn about(&mut self, user: u32, now: Instant) -> Option<u64> {
        if !self.users.contains_key(&user) && self.users.len() >= USERS_MAX {
            self.users.retain(|_, said| now.duration_since(said.since) < WINDOW);
        }
        let is_known = self.users.contains_key(&user) || self.users.len() < USERS_MAX;
        let key = if is_known { user } else { OTHERS };
        let new = || Said { since: now, lines: 0, left_out: 0 };
        let said = self.users.entry(key).or_insert_with(new);
        if now.duration_since(said.since) >= WINDOW {
            (said.since, said.lines) = (now, 0);
        }
        if said.lines >= LINES_MAX {
            said.left_out += 1;
            return None;
        }
        said.lines += 1;
        Some(std::mem::take(&mut said.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_cannot_fill_the_log_nor_silence_others() {
        let (mut complaints, now) = (Complaints::default(), Instant::now());
        let told = (0..30_000).filter(|_| complaints.about(1000, now).is_some()).count();
        assert_eq!(told, 8);
        assert_eq!(complaints.about(1001, now), Some(0));
        let later = now + WINDOW;
        assert_eq!(complaints.about(1000, later), Some(29_992), "the number of lines left out");
        assert_eq!(complaints.about(1000, later), Some(0));
    }

    #[test]
    fn the_table_of_users_is_bounded() {
        let (mut complaints, now) = (Complaints::default(), Instant::now());
        for user in 0..10_000 {
            complaints.about(user, now);
        }
        assert!(complaints.users.len() <= USERS_MAX + 1);
        assert!(complaints.about(77_777, now + WINDOW).is_some(), "old ones make room");
    }
}
