//! How the PEs of a team wait for each other: each has one word, the last step that it reached.
//!
//! A collective has a number, the same at all members, and four steps: it began, its data are
//! there, two of its phases are over. A member writes its own word alone; the others look at it.
//! Members of a large team look along a tree.
//!
//! # Invariants
//! - Each member writes its word at least once in each collective.
//! - A staging buffer of a member is written again two collectives later, when all members have
//!   finished the first ([`begin`] makes sure).

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::control::{self, WORDS};
use crate::fault::{Fault, raise};
use crate::team::Team;
use crate::waiting;

use super::{BRANCHES, FLAT_MAX};

const STEPS: u64 = 4;
/// Bytes of a function's name that the others see.
const NAME_BYTES: usize = 32;

/// A collective of a team that this PE is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Collective(u64);

/// A step of a collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Its data can be read.
    Ready = 1,
    /// It reads the data of others no more.
    Read = 3,
}

impl Collective {
    fn step(self, step: Step) -> u64 {
        self.0 * STEPS + step as u64
    }

    /// Which of two buffers it uses.
    pub(crate) fn parity(self) -> usize {
        usize::from(!self.0.is_multiple_of(2))
    }
}

/// The step that ends a collective.
pub(crate) const fn end_of(collective: u64) -> u64 {
    collective * STEPS + Step::Read as u64
}

/// The collective that a step belongs to.
pub(crate) const fn collective_of(step: u64) -> u64 {
    step / STEPS
}

/// Begins the next collective of a team.
#[inline(always)]
pub(crate) fn begin(call: &str, team: &Team) -> Collective {
    let number = team.begun.load(Relaxed) + 1;
    team.begun.store(number, Relaxed);
    let finished = end_of(number.saturating_sub(2));
    if team.known.load(Relaxed) < finished {
        wait_for_stragglers(call, team, finished);
    }
    Collective(number)
}

/// Waits until all have finished a collective.
#[cold]
fn wait_for_stragglers(call: &str, team: &Team, finished: u64) {
    for member in 0..team.size() {
        if member != team.me() {
            wait_until(call, team, member, finished);
        }
    }
    team.known.store(finished, Relaxed);
}

/// Tells the others that this PE reached a step.
#[inline(always)]
pub(crate) fn reach(team: &Team, collective: Collective, step: Step) {
    team.area(team.me()).progress.0.store(collective.step(step), Release);
}

#[inline(always)]
fn wait_until(call: &str, team: &Team, member: usize, step: u64) {
    let word = &team.area(member).progress.0;
    waiting::until(call, || word.load(Acquire) >= step, || gone(team, step));
}

/// Waits until a member reached a step.
#[inline(always)]
pub(crate) fn wait_for(call: &str, team: &Team, member: usize, collective: Collective, step: Step) {
    wait_until(call, team, member, collective.step(step));
}

/// Waits until all other members reached a step.
pub(crate) fn wait_for_all_others(call: &str, team: &Team, collective: Collective, step: Step) {
    for member in 0..team.size() {
        if member != team.me() {
            wait_for(call, team, member, collective, step);
        }
    }
    team.known.store(collective.step(step), Relaxed);
}

/// Reaches a step and waits until all have. All members call it.
#[inline(always)]
pub(crate) fn meet(call: &str, team: &Team, collective: Collective, step: Step) {
    reach(team, collective, step);
    if team.size() <= FLAT_MAX {
        wait_for_all_others(call, team, collective, step);
    } else {
        meet_along_tree(call, team, collective.step(step));
    }
}

/// The members below one in the tree.
fn below(member: usize, size: usize) -> std::ops::Range<usize> {
    let first = member.saturating_mul(BRANCHES).saturating_add(1);
    first.min(size)..first.saturating_add(BRANCHES).min(size)
}

#[inline(never)]
fn meet_along_tree(call: &str, team: &Team, step: u64) {
    let gone = || gone(team, step);
    for member in below(team.me(), team.size()) {
        let word = &team.area(member).gathered.0;
        waiting::until(call, || word.load(Acquire) >= step, gone);
    }
    team.area(team.me()).gathered.0.store(step, Release);
    let released = &team.area(0).released.0;
    if team.me() == 0 {
        released.store(step, Release);
    } else {
        waiting::until(call, || released.load(Acquire) >= step, gone);
    }
    team.known.store(step, Relaxed);
}

/// A member that has ended and never reached a step.
fn gone(team: &Team, step: u64) -> Option<usize> {
    let is_gone = |member: &usize| {
        control::has_ended(team.pe(*member)) && team.area(*member).progress.0.load(Acquire) < step
    };
    (0..team.size()).find(is_gone).map(|member| team.pe(member))
}

/// Waits until all members called it.
#[inline(always)]
pub(crate) fn sync(call: &str, team: &Team) {
    let collective = begin(call, team);
    meet(call, team, collective, Step::Ready);
}

/// Stores what this PE tells the others at a collective.
pub(crate) fn tell(team: &Team, collective: Collective, words: &[u64]) {
    let told = &team.area(team.me()).words[collective.parity()].0;
    for (place, word) in told.iter().zip(words) {
        place.store(*word, Relaxed);
    }
}

/// A word that a member told, when it is ready.
pub(crate) fn told(team: &Team, member: usize, collective: Collective, place: usize) -> u64 {
    team.area(member).words[collective.parity()].0[place].load(Relaxed)
}

/// Gives the word of each member to all of them.
pub(crate) fn exchange(call: &str, team: &Team, word: u64) -> Vec<u64> {
    let collective = begin(call, team);
    tell(team, collective, &[word]);
    meet(call, team, collective, Step::Ready);
    (0..team.size()).map(|member| told(team, member, collective, 0)).collect()
}

/// Whether calls of collectives are compared: `SHMEM_DEBUG`.
static COMPARES: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Compares the calls of collectives from now on.
pub fn compare_calls() {
    COMPARES.store(true, Relaxed);
}

/// Whether calls of collectives are compared.
#[inline(always)]
pub(crate) fn compares() -> bool {
    COMPARES.load(Relaxed)
}

/// Ends the job if the members do not call the same with the same values, if that is asked for.
#[inline(always)]
pub(crate) fn compare(call: &str, team: &Team, values: [u64; 3]) {
    if compares() {
        compare_always(call, team, values);
    }
}

/// Ends the job if the members do not call the same with the same values. It waits for all.
#[inline(never)]
pub(crate) fn compare_always(call: &str, team: &Team, values: [u64; 3]) {
    let collective = begin(call, team);
    let mine = words_of(call, values);
    tell(team, collective, &mine);
    meet(call, team, collective, Step::Ready);
    for member in 0..team.size() {
        let theirs = std::array::from_fn(|place| told(team, member, collective, place));
        if theirs != mine {
            let fault = Fault::Mismatch {
                pe: team.pe(member),
                theirs: shown(&theirs),
                me: team.pe(team.me()),
                mine: shown(&mine),
            };
            raise(call, &fault);
        }
    }
}

/// A call as words: its name and three values.
fn words_of(call: &str, values: [u64; 3]) -> [u64; WORDS] {
    let mut name = [0; NAME_BYTES];
    for (place, byte) in name.iter_mut().zip(call.bytes()) {
        *place = byte;
    }
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(name.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    words[NAME_BYTES / 8..NAME_BYTES / 8 + values.len()].copy_from_slice(&values);
    words
}

fn shown(words: &[u64; WORDS]) -> String {
    let (name, values) = words.split_at(NAME_BYTES / 8);
    let name: Vec<u8> = name.iter().flat_map(|word| word.to_le_bytes()).collect();
    let name = String::from_utf8_lossy(&name);
    let values: Vec<String> =
        values.iter().take(3).map(|value| value.cast_signed().to_string()).collect();
    format!("{}({})", name.trim_end_matches('\0'), values.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_shown_with_its_name_and_values() {
        let words = words_of("shmem_malloc", [64, u64::MAX, 3]);
        assert_eq!(shown(&words), "shmem_malloc(64, -1, 3)");
        let long = "shmem_longdouble_sum_reduce_and_more";
        assert_eq!(shown(&words_of(long, [0; 3])), format!("{}(0, 0, 0)", &long[..32]));
    }

    #[test]
    fn every_member_but_the_first_is_below_one_other() {
        for size in [1, 8, 9, 10, 64, 73, 74, 256] {
            let mut seen: Vec<usize> = (0..size).flat_map(|member| below(member, size)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (1..size).collect::<Vec<_>>(), "{size}");
        }
    }
}
