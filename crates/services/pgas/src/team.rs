//! Teams: PEs of the world at a stride, each with a number in the team.
//!
//! # Invariants
//! - A handle is the address of an entry of [`TEAMS`], so that any other value is told apart.
//! - All members of a team have it at the same index, which is also that of its part of the
//!   control areas. It was free at all of them when the team was made.
//! - The steps of a team go on from the highest that any member reached at that index before, so
//!   that nobody who still looks at an earlier step is misled.

use std::ffi::{c_int, c_long};
use std::sync::atomic::{AtomicI32, AtomicIsize, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use crate::collective::plan::Across;
use crate::collective::steps;
use crate::control::{self, TEAMS_MAX, TeamArea};
use crate::fault::{Fault, raise};
use crate::space;

/// `shmem_team_config_t`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TeamConfig {
    /// Contexts that the program is going to make at a time.
    pub num_contexts: c_int,
}

/// The bit of the mask that says that [`TeamConfig::num_contexts`] is set.
const NUM_CONTEXTS: c_long = 1;

/// A team as this PE knows it. Free while its size is 0.
#[derive(Debug)]
pub struct Team {
    size: AtomicUsize,
    /// Its size where all members are of this host, and else more than any size.
    near: AtomicUsize,
    start: AtomicUsize,
    stride: AtomicIsize,
    /// Where its members are, if they are on several hosts.
    across: Mutex<Option<Arc<Across>>>,
    /// The number of this PE in the team.
    me: AtomicUsize,
    /// The last collective that this PE began.
    pub(crate) begun: AtomicU64,
    /// The last step that all members are known to have reached.
    pub(crate) known: AtomicU64,
    contexts: AtomicI32,
}

/// All teams of this PE: the world, the PEs that share memory, and those that were split off.
pub static TEAMS: [Team; TEAMS_MAX] = [const { Team::free() }; TEAMS_MAX];

/// The index of the world.
pub const WORLD: usize = 0;
/// The index of the team whose PEs share memory.
pub const SHARED: usize = 1;

/// `shmem_team_t`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TeamHandle(pub *const Team);

// SAFETY: a handle is compared and looked up, and only then used, and teams are atomics.
unsafe impl Sync for TeamHandle {}
// SAFETY: as for Sync.
unsafe impl Send for TeamHandle {}

impl TeamHandle {
    /// `SHMEM_TEAM_INVALID`.
    pub const INVALID: Self = Self(std::ptr::null());

    /// The team at an index.
    #[must_use]
    pub const fn of(index: usize) -> Self {
        Self(&raw const TEAMS[index])
    }

    /// The index of the team.
    fn index(self) -> Option<usize> {
        let offset = self.0.addr().wrapping_sub((&raw const TEAMS).addr());
        let index = offset / size_of::<Team>();
        let is_one = index < TEAMS_MAX && offset.is_multiple_of(size_of::<Team>());
        (is_one && TEAMS[index].size() > 0).then_some(index)
    }

    /// The team; `None` for the invalid one. Ends the job for any other value.
    pub fn team(self, call: &str) -> Option<&'static Team> {
        if self == Self::INVALID {
            space::expect_started(call);
            return None;
        }
        Some(self.expect(call))
    }

    /// The team. Ends the job for a value that is none.
    #[inline]
    pub fn expect(self, call: &str) -> &'static Team {
        match self.index() {
            Some(index) => &TEAMS[index],
            None => {
                space::expect_started(call);
                raise(call, &Fault::Team { handle: self.0.addr() })
            }
        }
    }
}

/// PEs of the world at a stride.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Members {
    /// The PE of the world with number 0.
    pub start: usize,
    /// PEs of the world from one to the next.
    pub stride: isize,
    /// How many there are.
    pub size: usize,
}

impl Members {
    /// The PE of the world with a number of the team.
    #[must_use]
    pub const fn pe(&self, number: usize) -> usize {
        self.start.wrapping_add_signed(self.stride.wrapping_mul(number.cast_signed()))
    }

    /// The number in the team of a PE of the world.
    #[must_use]
    pub fn number(&self, pe: usize) -> Option<usize> {
        (0..self.size).find(|number| self.pe(*number) == pe)
    }

    /// Where they are; nothing if all are on the own host.
    pub(crate) fn across(&self) -> Option<Across> {
        let members = (0..self.size).map(|number| self.pe(number));
        Across::of(space::host(space::me()), members.map(|pe| (pe, space::host(pe))))
    }

    /// A part of it: `size` numbers from `start` on at a stride. `None` unless each is a member and
    /// none is there twice.
    #[must_use]
    pub fn part(&self, start: c_int, stride: c_int, size: c_int) -> Option<Self> {
        let count = usize::try_from(size).ok().filter(|size| *size > 0)?;
        let first = usize::try_from(start).ok().filter(|start| *start < self.size)?;
        if stride == 0 && count > 1 {
            return None;
        }
        let last = i64::from(start) + i64::from(stride) * (i64::from(size) - 1);
        let is_inside = usize::try_from(last).is_ok_and(|last| last < self.size);
        let stride = self.stride.wrapping_mul(isize::try_from(stride).ok()?);
        is_inside.then(|| Self { start: self.pe(first), stride, size: count })
    }
}

impl Team {
    const fn free() -> Self {
        Self {
            size: AtomicUsize::new(0),
            near: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            stride: AtomicIsize::new(1),
            across: Mutex::new(None),
            me: AtomicUsize::new(0),
            begun: AtomicU64::new(0),
            known: AtomicU64::new(0),
            contexts: AtomicI32::new(0),
        }
    }

    /// Its number of PEs; 0 while it is free.
    #[inline(always)]
    pub fn size(&self) -> usize {
        self.size.load(Relaxed)
    }

    /// Its number of PEs where all are of this host, and else more than any number.
    #[inline(always)]
    pub(crate) fn near(&self) -> usize {
        self.near.load(Relaxed)
    }

    /// Whether its members are on several hosts.
    #[inline(always)]
    pub(crate) fn is_across(&self) -> bool {
        self.near() == usize::MAX
    }

    /// Where its members are. Nobody is anywhere in a team of one host.
    pub(crate) fn across(&self) -> Arc<Across> {
        let across = self.across.lock().unwrap_or_else(PoisonError::into_inner);
        across.clone().unwrap_or_default()
    }

    /// The number of this PE in it.
    #[inline(always)]
    pub fn me(&self) -> usize {
        self.me.load(Relaxed)
    }

    /// Its members.
    pub fn members(&self) -> Members {
        let (start, stride) = (self.start.load(Relaxed), self.stride.load(Relaxed));
        Members { start, stride, size: self.size() }
    }

    /// The PE of the world with a number of the team.
    #[inline(always)]
    pub(crate) fn pe(&self, number: usize) -> usize {
        let stride = self.stride.load(Relaxed).wrapping_mul(number.cast_signed());
        self.start.load(Relaxed).wrapping_add_signed(stride)
    }

    pub(crate) fn index(&self) -> usize {
        (std::ptr::from_ref(self).addr() - (&raw const TEAMS).addr()) / size_of::<Self>()
    }

    /// The part of a member's control area for this team.
    #[inline(always)]
    pub(crate) fn area(&self, number: usize) -> &'static TeamArea {
        &control::of(self.pe(number)).teams[self.index()]
    }

    fn free_again(&self) {
        self.size.store(0, Relaxed);
        self.near.store(0, Relaxed);
    }

    fn occupy(&self, members: &Members, me: usize, contexts: c_int, begun: u64) {
        self.start.store(members.start, Relaxed);
        self.stride.store(members.stride, Relaxed);
        self.me.store(me, Relaxed);
        self.contexts.store(contexts, Relaxed);
        self.begun.store(begun, Relaxed);
        // Its buffers are in use by nobody: all members are free of the index.
        self.known.store(steps::end_of(begun), Relaxed);
        let across = if space::has_far() { members.across() } else { None };
        self.near.store(if across.is_some() { usize::MAX } else { members.size }, Relaxed);
        *self.across.lock().unwrap_or_else(PoisonError::into_inner) = across.map(Arc::new);
        self.size.store(members.size, Relaxed);
    }
}

/// Makes the two teams that are always there. The space must be open.
pub fn begin() {
    let world = Members { start: 0, stride: 1, size: space::pes() };
    for (index, members) in [(WORLD, world), (SHARED, sharing(&world))] {
        let begun = TEAMS[index].begun.load(Relaxed);
        let me = members.number(space::me()).expect("this PE is in both");
        TEAMS[index].occupy(&members, me, 0, begun);
    }
}

/// The PEs that share memory with this one: those of its host if they are at a stride, as launchers
/// place them. Else it is this PE alone.
fn sharing(world: &Members) -> Members {
    let near: Vec<usize> = (0..world.size).filter(|pe| !space::is_far(*pe)).collect();
    let alone = Members { start: space::me(), stride: 1, size: 1 };
    let (Some(start), size) = (near.first().copied(), near.len()) else { return alone };
    let stride = near.get(1).map_or(1, |second| second - start);
    let members = Members { start, stride: stride.cast_signed(), size };
    if (0..size).all(|number| members.pe(number) == near[number]) { members } else { alone }
}

/// Frees all teams, at the end of the library.
pub fn end() {
    for team in &TEAMS {
        team.free_again();
    }
}

/// The world.
#[inline(always)]
pub(crate) fn world() -> &'static Team {
    &TEAMS[WORLD]
}

/// The number of this PE in a team.
///
/// # Safety
/// None; it has the form of the others.
pub unsafe fn my_pe(call: &str, team: TeamHandle) -> c_int {
    team.team(call).map_or(-1, |team| number(team.me()))
}

/// The number of PEs of a team.
///
/// # Safety
/// None; it has the form of the others.
pub unsafe fn n_pes(call: &str, team: TeamHandle) -> c_int {
    team.team(call).map_or(-1, |team| number(team.size()))
}

/// A number of a PE in C.
pub(crate) fn number(pe: usize) -> c_int {
    c_int::try_from(pe).unwrap_or(c_int::MAX)
}

/// The configuration of a team.
///
/// # Safety
/// `config` must be a configuration, or may be null if the mask asks for nothing.
pub unsafe fn config(
    call: &str,
    team: TeamHandle,
    config_mask: c_long,
    config: *mut TeamConfig,
) -> c_int {
    let Some(team) = team.team(call) else { return -1 };
    if config_mask & !NUM_CONTEXTS != 0 {
        return -1;
    }
    if config_mask & NUM_CONTEXTS != 0 && !config.is_null() {
        let num_contexts = team.contexts.load(Relaxed);
        // SAFETY: the caller's promise.
        unsafe { config.write(TeamConfig { num_contexts }) };
    }
    0
}

/// The number in a team of a PE of another team.
///
/// # Safety
/// None; it has the form of the others.
pub unsafe fn translate(
    call: &str,
    src_team: TeamHandle,
    src_pe: c_int,
    dest_team: TeamHandle,
) -> c_int {
    let (Some(from), Some(to)) = (src_team.team(call), dest_team.team(call)) else { return -1 };
    let Some(of) = usize::try_from(src_pe).ok().filter(|pe| *pe < from.size()) else { return -1 };
    to.members().number(from.pe(of)).map_or(-1, number)
}

/// The contexts that a configuration asks for.
///
/// # Safety
/// `config` must be a configuration, or null.
unsafe fn contexts_of(config: *const TeamConfig, mask: c_long) -> c_int {
    if mask & NUM_CONTEXTS == 0 || config.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { (*config).num_contexts }
}

/// Makes a team of some members of a team. All members of the parent call it.
///
/// # Safety
/// `config` must be a configuration or null, `new_team` a variable of the caller.
#[expect(clippy::too_many_arguments, reason = "the specification's parameters")]
pub unsafe fn split_strided(
    call: &str,
    parent_team: TeamHandle,
    start: c_int,
    stride: c_int,
    size: c_int,
    config: *const TeamConfig,
    config_mask: c_long,
    new_team: *mut TeamHandle,
) -> c_int {
    let part = parent_team.team(call).and_then(|parent| {
        let members = parent.members().part(start, stride, size);
        steps::compare(
            call,
            parent,
            [start, stride, size].map(|value| value.cast_unsigned().into()),
        );
        members.map(|members| (parent, members))
    });
    // SAFETY: the caller's promise.
    let contexts = unsafe { contexts_of(config, config_mask) };
    let made = part.map(|(parent, members)| split(call, parent, &[members], contexts));
    let (result, handle) = match made {
        Some(Ok(handle)) => (0, handle),
        Some(Err(TeamsFull)) | None => (-1, TeamHandle::INVALID),
    };
    // SAFETY: the caller's promise.
    unsafe { new_team.write(handle) };
    result
}

/// Makes teams of the rows and of the columns of a team. All members of the parent call it.
///
/// # Safety
/// The configurations must be such or null, the new teams variables of the caller.
#[expect(clippy::too_many_arguments, reason = "the specification's parameters")]
pub unsafe fn split_2d(
    call: &str,
    parent_team: TeamHandle,
    xrange: c_int,
    xaxis_config: *const TeamConfig,
    xaxis_mask: c_long,
    xaxis_team: *mut TeamHandle,
    yaxis_config: *const TeamConfig,
    yaxis_mask: c_long,
    yaxis_team: *mut TeamHandle,
) -> c_int {
    let parent = parent_team.team(call);
    let ranges = parent.zip(usize::try_from(xrange).ok().filter(|range| *range > 0));
    let made = ranges.map(|(parent, range)| {
        steps::compare(call, parent, [xrange.cast_unsigned().into(), 0, 0]);
        let (rows, columns) = rows_and_columns(&parent.members(), range);
        // SAFETY: the caller's promise.
        let contexts = unsafe { contexts_of(xaxis_config, xaxis_mask) };
        let x = split(call, parent, &rows, contexts);
        // SAFETY: the caller's promise.
        let contexts = unsafe { contexts_of(yaxis_config, yaxis_mask) };
        (x, split(call, parent, &columns, contexts))
    });
    let (result, x, y) = match made {
        Some((Ok(x), Ok(y))) => (0, x, y),
        Some((x, y)) => {
            for made in [x, y].into_iter().flatten().filter(|made| *made != TeamHandle::INVALID) {
                made.expect(call).free_again();
            }
            (-1, TeamHandle::INVALID, TeamHandle::INVALID)
        }
        None => (-1, TeamHandle::INVALID, TeamHandle::INVALID),
    };
    // SAFETY: the caller's promise.
    unsafe { xaxis_team.write(x) };
    // SAFETY: the caller's promise.
    unsafe { yaxis_team.write(y) };
    result
}

/// The teams of a grid: number `i` of the parent is in column `i % range` of row `i / range`.
fn rows_and_columns(parent: &Members, range: usize) -> (Vec<Members>, Vec<Members>) {
    let range = range.min(parent.size);
    let count = |from: usize, step: usize| (parent.size - from).div_ceil(step);
    let along = |number: usize, step: usize, size: usize| Members {
        start: parent.pe(number),
        stride: parent.stride.wrapping_mul(step.cast_signed()),
        size,
    };
    let rows = (0..parent.size)
        .step_by(range)
        .map(|first| along(first, 1, range.min(parent.size - first)))
        .collect();
    let columns = (0..range).map(|first| along(first, range, count(first, range))).collect();
    (rows, columns)
}

/// No index is free at all members of a new team.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TeamsFull;

/// Makes disjoint teams out of members of a parent, all of whose members call it. Gives the one
/// that this PE is in, or the invalid one. All members of the parent get the same result.
fn split(
    call: &str,
    parent: &Team,
    parts: &[Members],
    contexts: c_int,
) -> Result<TeamHandle, TeamsFull> {
    let free = (0..TEAMS_MAX)
        .fold(0_u64, |free, index| free | u64::from(TEAMS[index].size() == 0) << index);
    let masks = steps::exchange(call, parent, free);
    let parent_members = parent.members();
    let index_of = |part: &Members| {
        let members = (0..part.size).filter_map(|number| parent_members.number(part.pe(number)));
        let free = members.fold(u64::MAX, |free, member| free & masks[member]);
        (free != 0).then(|| free.trailing_zeros() as usize)
    };
    let indices: Option<Vec<usize>> = parts.iter().map(index_of).collect();
    let mut made = TeamHandle::INVALID;
    if let Some(indices) = &indices {
        let mine = parts.iter().zip(indices).find(|(part, _)| part.number(space::me()).is_some());
        let progress = mine.map_or(0, |(_, index)| {
            let area = &control::of(space::me()).teams[*index];
            area.progress.0.load(Relaxed)
        });
        let reached = steps::exchange(call, parent, progress);
        for (part, index) in parts.iter().zip(indices) {
            let Some(me) = part.number(space::me()) else { continue };
            let members =
                (0..part.size).filter_map(|number| parent_members.number(part.pe(number)));
            let reached = members.map(|member| reached[member]).max();
            let begun = steps::collective_of(reached.unwrap_or(0)) + 1;
            TEAMS[*index].occupy(part, me, contexts, begun);
            made = TeamHandle::of(*index);
        }
    }
    // Nobody goes on at a new team before all are in it.
    steps::sync(call, parent);
    if indices.is_some() { Ok(made) } else { Err(TeamsFull) }
}

/// Ends a team. All its members call it.
///
/// # Safety
/// None; it has the form of the others.
pub unsafe fn destroy(call: &str, team: TeamHandle) {
    let Some(team) = team.team(call) else { return };
    if team.index() <= SHARED {
        raise(call, &Fault::Team { handle: std::ptr::from_ref(team).addr() });
    }
    steps::sync(call, team);
    crate::context::end_those_of(team);
    team.free_again();
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WORLD_OF_12: Members = Members { start: 0, stride: 1, size: 12 };

    #[test]
    fn a_part_is_inside_and_has_nobody_twice() {
        let part = |start, stride, size| WORLD_OF_12.part(start, stride, size);
        assert_eq!(part(1, 3, 4), Some(Members { start: 1, stride: 3, size: 4 }));
        assert_eq!(part(11, -2, 6), Some(Members { start: 11, stride: -2, size: 6 }));
        assert_eq!(part(4, 0, 1), Some(Members { start: 4, stride: 0, size: 1 }));
        for (start, stride, size) in
            [(0, 0, 2), (0, 1, 13), (-1, 1, 2), (12, 1, 1), (1, -1, 3), (0, 1, 0), (0, i32::MAX, 3)]
        {
            assert_eq!(part(start, stride, size), None, "{start} {stride} {size}");
        }
    }

    proptest! {
        #[test]
        fn numbers_of_a_part_of_a_part_are_those_of_its_pes(
            start in 0..12, stride in -4..5, size in 1..8,
            deeper in 0..4, by in -2..3, count in 1..4,
        ) {
            let Some(part) = WORLD_OF_12.part(start, stride, size) else { return Ok(()) };
            for number in 0..part.size {
                prop_assert_eq!(part.number(part.pe(number)), Some(number));
                prop_assert!(part.pe(number) < 12);
            }
            let Some(inner) = part.part(deeper, by, count) else { return Ok(()) };
            for number in 0..inner.size {
                prop_assert!(part.number(inner.pe(number)).is_some());
            }
        }

        #[test]
        fn each_member_of_a_grid_is_in_one_row_and_one_column(
            size in 1_usize..40, range in 1_usize..50,
        ) {
            let parent = Members { start: 3, stride: 2, size };
            let (rows, columns) = rows_and_columns(&parent, range);
            for axis in [rows, columns] {
                let mut seen: Vec<usize> =
                    axis.iter().flat_map(|team| (0..team.size).map(|n| team.pe(n))).collect();
                seen.sort_unstable();
                let all: Vec<usize> = (0..size).map(|n| parent.pe(n)).collect();
                prop_assert_eq!(seen, all);
            }
        }
    }
}
