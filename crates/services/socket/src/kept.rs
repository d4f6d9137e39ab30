//! Which kept lanes a connection invites in, and when a lane is kept no longer.

/// One connection invites in at most this many lanes. Each is of another process: it is not known
/// which one of the server's accepts the connection.
const INVITATIONS_MAX: usize = 8;
/// When a kept lane is used again, this many wasted requests are forgiven.
const FORGIVEN_BY_USE: u32 = 8;
/// The count stops here, so that it can come down again.
const WASTED_MAX: u32 = 64;

/// How often in a row nobody claimed an invitation in a lane, or a connection wished for a lane
/// while its peer still used it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Misses(u32);

impl Misses {
    /// A lane is no longer kept after more than this.
    const MOST: u32 = 18;

    /// One more.
    #[must_use]
    pub const fn and_one(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Those of a lane whose peer is gone.
    #[must_use]
    pub const fn of_a_lane_in_vain() -> Self {
        Self(u32::MAX)
    }

    /// True when the lane is kept no longer.
    #[must_use]
    pub const fn are_too_many(self) -> bool {
        self.0 > Self::MOST
    }
}

/// How often lanes were requested or offered in vain, after `more` such times.
#[must_use]
pub const fn wasted(before: u32, more: u32) -> u32 {
    let now = before.saturating_add(more);
    if now < WASTED_MAX { now } else { WASTED_MAX }
}

/// The same after a kept lane was used again. A rare use, as on a crowded machine, must not make up
/// for all that was wasted.
#[must_use]
pub const fn wasted_after_use(before: u32) -> u32 {
    before.saturating_sub(FORGIVEN_BY_USE)
}

/// Chooses the lanes in which a connection invites: the last used one of each process. `kept` has
/// them from the oldest to the newest, with the process at the other end, or `None` for a lane that
/// cannot serve. The places come from the last to the first.
#[must_use]
pub fn choose(kept: &[Option<u32>]) -> Vec<usize> {
    let mut chosen: Vec<usize> = Vec::new();
    for (place, process) in kept.iter().enumerate().rev() {
        let is_first = chosen.iter().all(|other| kept[*other] != *process);
        if process.is_some() && is_first && chosen.len() < INVITATIONS_MAX {
            chosen.push(place);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lane_of_each_process_is_chosen_the_last_used_one() {
        assert_eq!(choose(&[Some(1), Some(2), Some(1), None, Some(3)]), [4, 2, 1]);
        assert_eq!(choose(&[None, None]), [0_usize; 0]);
        assert_eq!(choose(&[]), [0_usize; 0]);
    }

    #[test]
    fn no_more_than_a_few_are_chosen() {
        let many: Vec<_> = (0..20).map(Some).collect();
        assert_eq!(choose(&many), [19, 18, 17, 16, 15, 14, 13, 12]);
    }

    #[test]
    fn a_lane_goes_after_so_many_misses_in_a_row() {
        let misses = (0..18).fold(Misses::default(), |misses, _| misses.and_one());
        assert!(!misses.are_too_many());
        assert!(misses.and_one().are_too_many());
        assert!(Misses::of_a_lane_in_vain().and_one().are_too_many());
    }

    #[test]
    fn a_use_forgives_some_of_what_was_wasted() {
        assert_eq!(wasted(0, 1), 1);
        assert_eq!(wasted(60, 10), 64, "so that it can come down again");
        assert_eq!(wasted(u32::MAX, 1), 64);
        assert_eq!(wasted_after_use(64), 56);
        assert_eq!(wasted_after_use(3), 0);
    }
}
