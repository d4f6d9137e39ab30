//! The share of one user in a table of the daemon: a part of what others leave
//! (`daemon.user_share`).
//!
//! A fixed quota for each user would let a few of them take all. This one shrinks as others take
//! more, so that there is always room for one more user (dynamic thresholds, as switches share
//! their buffers).

/// Users who may hold everything.
pub const ALL: u8 = 100;

/// How many of `maximum` a user may hold while others hold `others`, at `percent` of what is left.
/// At least one, as long as there is one.
///
/// ```
/// use weft_options::share::allowance;
///
/// assert_eq!(allowance(100, 0, 50), 50, "half of everything");
/// assert_eq!(allowance(100, 50, 50), 25, "half of what the first one left");
/// assert_eq!(allowance(100, 99, 50), 1);
/// assert_eq!(allowance(100, 100, 50), 0);
/// ```
#[must_use]
pub const fn allowance(maximum: usize, others: usize, percent: u8) -> usize {
    let left = maximum.saturating_sub(others);
    let part = left / 100 * percent as usize + left % 100 * percent as usize / 100;
    if part == 0 && left > 0 { 1 } else { part }
}
