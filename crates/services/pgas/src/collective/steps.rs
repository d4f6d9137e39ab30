//! How the PEs of a team wait for each other: each has one word, the last step that it reached.
//!
//! A collective has a number, the same at all members, and four steps: it began, its data are
//! there, two of its phases are over. A member writes its own word alone; the others look at it.
//! Members of a large team look along a tree.
//!
//! A team on several hosts has a leader on each. Members meet there in two ways. With data, each
//! shows its word to those of other hosts, behind the data that they are to read. Without data, the
//! leaders gather the members of their hosts, meet each other, and let the members go.
//!
//! # Invariants
//! - Each member writes its word at least once in each collective.
//! - A staging buffer of a member is written again two collectives later, when all members have
//!   finished the first ([`begin`] makes sure).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::control::{self, WORDS};
use crate::fault::{Fault, raise};
use crate::order;
use crate::team::Team;
use crate::waiting;

use super::plan::Across;
use super::{BRANCHES, FLAT_MAX};

const STEPS: u64 = 8;
/// Bytes of a function's name that the others see.
const NAME_BYTES: usize = 32;

/// A collective of a team that this PE is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Collective(u64);

/// A step of a collective.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Step {
    /// All that came before is over.
    Begun = 0,
    /// Those of its host can read its data.
    NearReady = 1,
    /// Its data can be read.
    Ready = 2,
    /// Those of its host can read its copy.
    Copied = 3,
    /// It reads no data of other hosts any more, and no staging buffers.
    Read = 4,
    /// It reads no data of its host any more.
    Left = 5,
}

impl Step {
    /// Whether the members of a host alone meet at it, in a collective on several hosts.
    #[must_use]
    pub const fn is_near(self) -> bool {
        matches!(self, Self::NearReady | Self::Copied | Self::Left)
    }
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
    if team.is_across() {
        // All members find this at the same collective, since all know the same.
        let collective = Collective(team.begun.load(Relaxed));
        return meet_by_leaders(call, team, collective.step(Step::Begun));
    }
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

/// The purpose of a meeting. It matters on several hosts alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Meeting {
    /// Members look at what others staged or told.
    Data,
    /// They wait for each other.
    Bare,
    /// The same, and for all that they did to others.
    Barrier,
}

/// Reaches a step and waits until all have. All members call it.
#[inline(always)]
pub(crate) fn meet(call: &str, team: &Team, collective: Collective, step: Step, of: Meeting) {
    if team.near() <= FLAT_MAX {
        reach(team, collective, step);
        wait_for_all_others(call, team, collective, step);
    } else {
        meet_many(call, team, collective, step, of);
    }
}

#[inline(never)]
fn meet_many(call: &str, team: &Team, collective: Collective, step: Step, of: Meeting) {
    if !team.is_across() {
        reach(team, collective, step);
        return meet_along_tree(call, team, collective.step(step));
    }
    match of {
        Meeting::Data => {
            reach(team, collective, step);
            show_progress(team);
            wait_for_all_others(call, team, collective, step);
        }
        Meeting::Bare => meet_by_leaders(call, team, collective.step(step)),
        Meeting::Barrier => {
            order::quiet_far(call);
            meet_by_leaders(call, team, collective.step(step));
        }
    }
}

/// Shows members of other hosts how far this PE has come.
pub(crate) fn show_progress(team: &Team) {
    control::show(&team.area(team.me()).progress.0, team.across().far.iter().copied());
}

/// Shows members of other hosts the staging buffer of this PE.
pub(crate) fn show_staging(team: &Team, collective: Collective, bytes: usize) {
    let words = &team.area(team.me()).staging[collective.parity()].0;
    let staged = words.iter().take(bytes.div_ceil(8));
    let mut copy: Vec<u8> = staged.flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
    copy.truncate(bytes);
    control::show_bytes(words.as_ptr().cast(), &copy, team.across().far.iter().copied());
}

/// Reaches a step of a collective on several hosts. Those who meet there are told by the step.
pub(crate) fn meet_across(call: &str, team: &Team, collective: Collective, step: Step) {
    let of_host = collective.step(step);
    match (step.is_near(), &team.across()) {
        (false, _) => meet_by_leaders(call, team, of_host),
        (true, across) if across.near().len() == 1 => reach(team, collective, step),
        (true, across) => meet_led(call, team, across, of_host, |_| {}),
    }
}

fn meet_by_leaders(call: &str, team: &Team, step: u64) {
    let across = &team.across();
    meet_led(call, team, across, step, |wait| meet_leaders(team, across, step, wait));
    team.known.store(step, Relaxed);
}

/// The members of the own host meet. Their leader does something meanwhile, when all are here.
fn meet_led(
    call: &str,
    team: &Team,
    across: &Across,
    step: u64,
    leads: impl FnOnce(&dyn Fn(&AtomicU64)),
) {
    let gone = || gone(team, step);
    let wait = |word: &AtomicU64| waiting::until(call, || word.load(Acquire) >= step, gone);
    let own = team.area(team.me());
    own.progress.0.store(step, Release);
    let leader = across.leader();
    if team.me() == leader {
        for member in across.near().iter().filter(|member| **member != leader) {
            wait(&team.area(*member).progress.0);
        }
        leads(&wait);
        own.released.0.store(step, Release);
    } else {
        wait(&team.area(leader).released.0);
    }
}

/// A leader whose members are there meets the other leaders.
fn meet_leaders(team: &Team, across: &Across, step: u64, wait: &dyn Fn(&AtomicU64)) {
    let own = team.area(team.me());
    let leader = |host: usize| across.hosts[host][0];
    let pe = |host: usize| team.pe(leader(host));
    let area = |host: usize| team.area(leader(host));
    let (me, hosts) = (across.own, across.hosts.len());
    own.gathered.0.store(step, Release);
    if hosts <= FLAT_MAX {
        let others = || (0..hosts).filter(|leader| *leader != me);
        control::show(&own.gathered.0, others().map(pe));
        others().for_each(|leader| wait(&area(leader).gathered.0));
        return;
    }
    let below = below(me, hosts);
    below.clone().for_each(|leader| wait(&area(leader).gathered.0));
    if let Some(above) = me.checked_sub(1).map(|before| before / BRANCHES) {
        control::show(&own.gathered.0, std::iter::once(pe(above)));
        wait(&area(above).released.0);
    }
    own.released.0.store(step, Release);
    control::show(&own.released.0, below.map(pe));
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
    meet(call, team, collective, Step::Ready, Meeting::Bare);
}

/// Waits until all members called it, and all that they did to PEs is visible.
#[inline(always)]
pub(crate) fn barrier(call: &str, team: &Team) {
    let collective = begin(call, team);
    meet(call, team, collective, Step::Ready, Meeting::Barrier);
}

/// Stores what this PE tells the others at a collective.
pub(crate) fn tell(team: &Team, collective: Collective, words: &[u64]) {
    let told = &team.area(team.me()).words[collective.parity()].0;
    for (place, word) in told.iter().zip(words) {
        place.store(*word, Relaxed);
    }
    if team.is_across() {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let far = team.across();
        control::show_bytes(told.as_ptr().cast(), &bytes, far.far.iter().copied());
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
    meet(call, team, collective, Step::Ready, Meeting::Data);
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
    meet(call, team, collective, Step::Ready, Meeting::Data);
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
