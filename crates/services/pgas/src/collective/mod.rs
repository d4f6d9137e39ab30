//! Collectives of teams.
//!
//! Sources and destinations are symmetric, so a member finds those of the others by itself. Short
//! data go through a staging buffer of their owner: its own memory is free when the call returns,
//! and nobody waits for the readers. Longer ones are copied straight from the owner's memory, by
//! all readers in parallel, and the owner waits for them.
//!
//! For members of other hosts a staging buffer is shown, and longer data cross to each host once
//! ([`plan`]).

mod across;
pub mod plan;
mod reduce;
pub(crate) mod steps;
mod thresholds;

use std::ffi::c_int;

pub use reduce::{exscan, inscan, reduce};
pub use steps::{Step, compare_calls};
pub use thresholds::{BRANCHES, BROADCAST_BYTES, BUFFER_BYTES, FLAT_MAX, STAGE_BYTES};

use crate::fault::{Fault, raise};
use crate::rma::copy;
use crate::space;
use crate::team::{self, Team, TeamHandle};
use steps::{Collective, Meeting};

pub(crate) use across::{Group, Memory};
pub(crate) use reduce::{combine_first, combine_slices};

/// Waits until all PEs called it and all that they did is visible.
///
/// # Safety
/// None; it has the form of the others.
#[inline(always)]
pub unsafe fn barrier_all(call: &str) {
    space::expect_started(call);
    steps::compare(call, team::world(), [0; 3]);
    // The step is stored behind all stores of this PE, and they are visible to whoever sees it.
    steps::barrier(call, team::world());
}

/// Waits until all PEs called it.
///
/// # Safety
/// None; it has the form of the others.
#[inline(always)]
pub unsafe fn sync_all(call: &str) {
    space::expect_started(call);
    steps::compare(call, team::world(), [0; 3]);
    steps::sync(call, team::world());
}

/// Waits until all PEs of a team called it.
///
/// # Safety
/// None; it has the form of the others.
#[inline(always)]
pub unsafe fn team_sync(call: &str, team: TeamHandle) -> c_int {
    let Some(team) = team.team(call) else { return -1 };
    steps::compare(call, team, [0; 3]);
    steps::sync(call, team);
    0
}

/// The staging buffer of a member.
#[inline(always)]
pub(crate) fn staging(team: &Team, member: usize, collective: Collective) -> *mut u8 {
    team.area(member).staging[collective.parity()].0[0].as_ptr().cast()
}

/// The memory of a member at a symmetric address.
#[inline(always)]
fn at<T>(call: &str, team: &Team, member: usize, address: *const T, elements: usize) -> *mut T {
    let bytes = elements.saturating_mul(size_of::<T>());
    space::remote(call, address.addr(), bytes, team.pe(member)).cast()
}

/// Compares the arguments of a collective, if that is asked for.
fn compare<T>(call: &str, team: &Team, dest: *const T, elements: usize, root: c_int) {
    if steps::compares() && elements > 0 {
        // Short data are staged, so that a wrong destination would do no harm here.
        at(call, team, team.me(), dest, elements);
    }
    let place = space::place(dest.addr()).unwrap_or(usize::MAX) as u64;
    steps::compare(call, team, [elements as u64, i64::from(root).cast_unsigned(), place]);
}

/// Copies the elements of one member to all.
///
/// # Safety
/// `dest` must have room for `nelems` elements, and at the root `source` must have them.
pub unsafe fn broadcast<T>(
    call: &str,
    team: TeamHandle,
    dest: *mut T,
    source: *const T,
    nelems: usize,
    root: c_int,
) -> c_int {
    let Some(team) = team.team(call) else { return -1 };
    let Some(root_member) = usize::try_from(root).ok().filter(|root| *root < team.size()) else {
        raise(call, &Fault::Pe { pe: root, pes: team.size() })
    };
    compare(call, team, dest, nelems, root);
    if team.is_across() {
        // SAFETY: the caller's promise.
        unsafe { across::broadcast(call, team, dest, source, nelems, root_member) };
        return 0;
    }
    let bytes = nelems.saturating_mul(size_of::<T>());
    let collective = steps::begin(call, team);
    let is_root = team.me() == root_member;
    let is_short = bytes <= BROADCAST_BYTES;
    let from = match (is_short, is_root, bytes) {
        (_, true, _) => source.cast::<u8>().cast_mut(),
        (_, false, 0) => dest.cast(),
        (true, false, _) => staging(team, root_member, collective),
        (false, false, _) => at(call, team, root_member, source, nelems).cast(),
    };
    if is_root {
        if is_short {
            // SAFETY: the staging buffer has this room, and nobody reads it: `begin` made sure.
            unsafe { copy::<u8>(from, staging(team, root_member, collective), bytes) };
        }
        steps::reach(team, collective, Step::Ready);
    } else {
        steps::wait_for(call, team, root_member, collective, Step::Ready);
    }
    if dest.cast::<u8>() != from {
        // SAFETY: the caller promises its own memory; that of the root is there until all read it.
        unsafe { copy::<u8>(from, dest.cast(), bytes) };
    }
    steps::reach(team, collective, Step::Read);
    if is_root && !is_short {
        steps::wait_for_all_others(call, team, collective, Step::Read);
    }
    0
}

/// Has each member read from all others between two meetings, or from their staging buffers. Those
/// of a team on several hosts read from these alone.
///
/// `read` gets a member and its data: those at `source`, or a copy of them.
fn read_from_all<T>(
    call: &str,
    team: &Team,
    source: *const T,
    elements: usize,
    mut read: impl FnMut(usize, *const T),
) {
    let bytes = elements.saturating_mul(size_of::<T>());
    let collective = steps::begin(call, team);
    let is_short = is_staged::<T>(elements);
    if is_short {
        let own = staging(team, team.me(), collective);
        // SAFETY: the caller's source has these bytes; the buffer has the room and no reader.
        unsafe { copy::<u8>(source.cast(), own, bytes) };
        if team.is_across() {
            steps::show_staging(team, collective, bytes);
        }
    }
    let meeting = if is_short { Meeting::Data } else { Meeting::Bare };
    steps::meet(call, team, collective, Step::Ready, meeting);
    // Each begins at its own place, so that not all read from one.
    for turn in 0..team.size() {
        let member = (team.me() + turn) % team.size();
        let from = if is_short {
            staging(team, member, collective).cast()
        } else {
            at(call, team, member, source, elements)
        };
        read(member, from.cast_const());
    }
    if !is_short {
        steps::meet(call, team, collective, Step::Read, Meeting::Bare);
    }
}

/// Whether so many elements of a member go through its staging buffer.
fn is_staged<T>(elements: usize) -> bool {
    elements.saturating_mul(size_of::<T>()) <= STAGE_BYTES
}

/// Joins the elements of all members, equally many of each.
///
/// # Safety
/// `source` must have `nelems` elements, and `dest` room for those of all members.
pub unsafe fn fcollect<T>(
    call: &str,
    team: TeamHandle,
    dest: *mut T,
    source: *const T,
    nelems: usize,
) -> c_int {
    let Some(team) = team.team(call) else { return -1 };
    compare(call, team, dest, nelems, 0);
    if nelems == 0 {
        steps::sync(call, team);
        return 0;
    }
    if team.is_across() && !is_staged::<T>(nelems) {
        let collective = steps::begin(call, team);
        steps::meet(call, team, collective, Step::Ready, Meeting::Bare);
        let counts = std::iter::repeat_n(nelems, team.size());
        across::with_team(call, team, collective, |group| {
            // SAFETY: the caller's promise. The sources are ready.
            unsafe { group.gather(&Memory::new(source, dest), counts) };
        });
        return 0;
    }
    read_from_all(call, team, source, nelems, |member, from| {
        let to = dest.wrapping_add(member * nelems);
        // SAFETY: the caller promises room for the elements of all members.
        unsafe { copy::<u8>(from.cast(), to.cast(), nelems * size_of::<T>()) };
    });
    0
}

/// Joins the elements of all members, as many as each one has.
///
/// # Safety
/// `source` must have `nelems` elements, and `dest` room for those of all members.
pub unsafe fn collect<T>(
    call: &str,
    team: TeamHandle,
    dest: *mut T,
    source: *const T,
    nelems: usize,
) -> c_int {
    let Some(team) = team.team(call) else { return -1 };
    let place = space::place(dest.addr()).unwrap_or(usize::MAX) as u64;
    steps::compare(call, team, [0, 0, place]);
    let counts = steps::exchange(call, team, nelems as u64);
    let counts = counts.into_iter().map(|count| usize::try_from(count).unwrap_or(usize::MAX));
    let collective = steps::begin(call, team);
    // The sources are ready: the exchange was behind them.
    if team.is_across() {
        across::with_team(call, team, collective, |group| {
            // SAFETY: the caller's promise.
            unsafe { group.gather(&Memory::new(source, dest), counts) };
        });
        return 0;
    }
    let mut first = 0_usize;
    for (member, count) in counts.enumerate() {
        if count > 0 {
            let (to, from) = (dest.wrapping_add(first), at(call, team, member, source, count));
            // SAFETY: the member promises its elements, the caller room for those of all.
            unsafe { copy::<u8>(from.cast(), to.cast(), count * size_of::<T>()) };
        }
        first = first.saturating_add(count);
    }
    steps::meet(call, team, collective, Step::Read, Meeting::Bare);
    0
}

/// Sends a block of each member to each other one.
///
/// # Safety
/// `source` must have `nelems` elements for each member, `dest` room for as many.
pub unsafe fn alltoall<T>(
    call: &str,
    team: TeamHandle,
    dest: *mut T,
    source: *const T,
    nelems: usize,
) -> c_int {
    // SAFETY: the caller's promise. Elements at a stride of 1 are blocks.
    unsafe { blocks(call, team, dest, source, (1, 1), nelems) }
}

/// As [`alltoall`], with elements at a stride.
///
/// # Safety
/// As [`alltoall`], for elements at their strides.
pub unsafe fn alltoalls<T>(
    call: &str,
    team: TeamHandle,
    dest: *mut T,
    source: *const T,
    dst: isize,
    sst: isize,
    nelems: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { blocks(call, team, dest, source, (dst, sst), nelems) }
}

/// Elements from the first to the last of `count` at a stride. At least the first.
fn span(count: usize, stride: isize) -> usize {
    count.saturating_sub(1).saturating_mul(stride.unsigned_abs()).saturating_add(1)
}

/// # Safety
/// As [`alltoalls`].
unsafe fn blocks<T>(
    call: &str,
    team: TeamHandle,
    dest: *mut T,
    source: *const T,
    (dst, sst): (isize, isize),
    nelems: usize,
) -> c_int {
    let Some(team) = team.team(call) else { return -1 };
    compare(call, team, dest, nelems, 0);
    if nelems == 0 {
        steps::sync(call, team);
        return 0;
    }
    let all = span(nelems.saturating_mul(team.size()), sst);
    if team.is_across() && !is_staged::<T>(all) {
        let collective = steps::begin(call, team);
        across::with_team(call, team, collective, |group| {
            // SAFETY: the caller's promise.
            unsafe { group.exchange((source, sst), (dest, dst), nelems) };
        });
        return 0;
    }
    let first = |number: usize, stride: isize| (number * nelems).cast_signed().wrapping_mul(stride);
    let me = team.me();
    read_from_all(call, team, source, all, |member, from| {
        let from = from.wrapping_offset(first(me, sst));
        let to = dest.wrapping_offset(first(member, dst));
        // SAFETY: the members promise their elements, and the caller its room.
        unsafe { copy_strided((from, sst), (to, dst), nelems) };
    });
    0
}

/// Copies elements between places with a stride each.
///
/// # Safety
/// Both must have `nelems` elements at their strides.
pub(crate) unsafe fn copy_strided<T>(
    (from, sst): (*const T, isize),
    (to, dst): (*mut T, isize),
    nelems: usize,
) {
    if (sst, dst) == (1, 1) {
        // SAFETY: the caller's promise.
        unsafe { copy::<u8>(from.cast(), to.cast(), nelems * size_of::<T>()) };
        return;
    }
    for index in 0..nelems.cast_signed() {
        let from = from.wrapping_offset(index.wrapping_mul(sst));
        let to = to.wrapping_offset(index.wrapping_mul(dst));
        // SAFETY: the caller's promise.
        unsafe { copy::<u8>(from.cast(), to.cast(), size_of::<T>()) };
    }
}
