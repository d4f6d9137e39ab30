//! Collectives whose members are on several hosts: what differs from those of one host.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::far::{self, WORKSPACE_BYTES, calls};
use crate::number::Combine;
use crate::rma::copy;
use crate::space;
use crate::team::Team;

use super::plan::{self, Across, Action, Area, Place, Reduction};
use super::reduce::{LINE_BYTES, combine_chunks};
use super::steps::{self, Collective, Step};
use super::{STAGE_BYTES, copy_strided, span, staging};

/// Bytes that are combined at a time, while the next ones come.
const PART_BYTES: usize = 64 << 10;

/// One reduction at a time uses the workspace. It waits for no call of another PE meanwhile.
static WORKSPACE: Mutex<()> = Mutex::new(());

/// Members that do something together: a team, or an active set.
pub(crate) struct Group<'a> {
    pub call: &'a str,
    pub across: &'a Across,
    pub me: usize,
    /// The PE of the world of a member.
    pub pe: &'a dyn Fn(usize) -> usize,
    /// Meets others at a step.
    pub meet: &'a dyn Fn(Step),
}

/// A source and a destination at all members, with strides between elements.
pub(crate) struct Memory<T> {
    source: (*const T, isize),
    dest: (*mut T, isize),
}

impl<T> Memory<T> {
    /// Elements one behind the other.
    pub fn new(source: *const T, dest: *mut T) -> Self {
        Self { source: (source, 1), dest: (dest, 1) }
    }

    /// The symmetric address of an element of a member.
    fn symmetric(&self, at: Place) -> (*const T, isize) {
        let (start, stride) = match at.area {
            Area::Source => self.source,
            Area::Dest => (self.dest.0.cast_const(), self.dest.1),
            Area::Workspace => (far::remote().workspace().cast_const().cast(), 1),
        };
        (start.wrapping_offset(at.first.cast_signed().wrapping_mul(stride)), stride)
    }
}

impl Group<'_> {
    /// Memory of a member of this host.
    fn near<T>(&self, memory: &Memory<T>, at: Place, count: usize) -> *const T {
        let (address, stride) = memory.symmetric(at);
        if at.member == self.me {
            return address;
        }
        let bytes = span(count, stride).saturating_mul(size_of::<T>());
        space::remote(self.call, address.addr(), bytes, (self.pe)(at.member)).cast_const().cast()
    }

    /// Does what a plan says. `combine` combines so many elements of each operand into memory that
    /// may be one of them.
    ///
    /// # Safety
    /// All members do so with plans for the same collective, and have the memory that these name.
    pub unsafe fn run<T>(
        &self,
        plan: &[Action],
        memory: &Memory<T>,
        combine: impl Fn(*mut T, usize, &[*const T]),
    ) {
        let mut workspace: Option<MutexGuard<'_, ()>> = None;
        let mut put_to: Vec<usize> = Vec::new();
        let own_dest = |first: usize| Place { member: self.me, area: Area::Dest, first };
        for action in plan {
            match action {
                Action::Get { from, to, count } => {
                    if to.area == Area::Workspace && workspace.is_none() {
                        workspace = Some(WORKSPACE.lock().unwrap_or_else(PoisonError::into_inner));
                    }
                    // SAFETY: the caller's promise; the plan waits for the bytes.
                    unsafe { self.get(memory, *from, *to, *count) };
                }
                Action::Landed => far::remote().landed(self.call),
                Action::Copy { from, to, count } => {
                    let (to, dst) = memory.symmetric(own_dest(*to));
                    let (at, sst) = (self.near(memory, *from, *count), memory.symmetric(*from).1);
                    if at != to {
                        // SAFETY: the caller's promise.
                        unsafe { copy_strided((at, sst), (to.cast_mut(), dst), *count) };
                    }
                }
                Action::Combine { of, to, count } => {
                    let of: Vec<*const T> =
                        of.iter().map(|operand| self.near(memory, *operand, *count)).collect();
                    combine(memory.symmetric(own_dest(*to)).0.cast_mut(), *count, &of);
                }
                Action::Put { member, first, count } => {
                    let (from, pe) = (memory.symmetric(own_dest(*first)).0, (self.pe)(*member));
                    let bytes = count * size_of::<T>();
                    put_to.push(pe);
                    // SAFETY: the caller's promise. The symmetric address is that of the other one,
                    // too.
                    unsafe {
                        calls::put(self.call, pe, from.addr(), from.cast(), bytes, false);
                    }
                }
                Action::Quiet => {
                    put_to.sort_unstable();
                    put_to.dedup();
                    far::remote().quiet(self.call, Some(&put_to));
                }
                Action::Meet(step) => {
                    drop(workspace.take());
                    (self.meet)(*step);
                }
            }
        }
    }

    /// # Safety
    /// The member must have the elements, and this one room for them until they landed.
    unsafe fn get<T>(&self, memory: &Memory<T>, from: Place, to: Place, count: usize) {
        let pe = (self.pe)(from.member);
        let ((from, sst), (to, dst)) = (memory.symmetric(from), memory.symmetric(to));
        let get = |index: isize, count: usize| {
            let from = from.wrapping_offset(index.wrapping_mul(sst)).addr();
            let to = to.wrapping_offset(index.wrapping_mul(dst)).cast_mut().cast();
            // A count that a member of a collect gave may be any number: too many are refused.
            let bytes = count.saturating_mul(size_of::<T>());
            // SAFETY: the caller's promise.
            unsafe { calls::get(self.call, pe, from, to, bytes, false) };
        };
        if (sst, dst) == (1, 1) {
            get(0, count);
        } else {
            (0..count.cast_signed()).for_each(|index| get(index, 1));
        }
    }

    /// Copies the elements of one member to all, and to its own destination if `to_root`.
    ///
    /// # Safety
    /// As [`super::broadcast`].
    pub unsafe fn broadcast<T>(
        &self,
        memory: &Memory<T>,
        nelems: usize,
        root: usize,
        to_root: bool,
    ) {
        let plan = plan::broadcast(self.across, self.me, root, nelems, to_root);
        // SAFETY: the caller's promise.
        unsafe { self.run(&plan, memory, |_, _, _| {}) };
    }

    /// Joins the elements of all members, as many as `counts` says, whose sources are ready.
    ///
    /// # Safety
    /// As [`super::collect`].
    pub unsafe fn gather<T>(&self, memory: &Memory<T>, counts: impl Iterator<Item = usize>) {
        let mut first = 0_usize;
        let block = |count: usize| {
            let start = first;
            first = first.saturating_add(count);
            start..first
        };
        let blocks: Vec<_> = counts.map(block).collect();
        let plan = plan::gather(self.across, self.me, &blocks);
        // SAFETY: the caller's promise.
        unsafe { self.run(&plan, memory, |_, _, _| {}) };
    }

    /// Sends blocks, whose elements are at strides, of each member to each other one.
    ///
    /// # Safety
    /// As [`super::alltoalls`].
    pub unsafe fn exchange<T>(
        &self,
        source: (*const T, isize),
        dest: (*mut T, isize),
        nelems: usize,
    ) {
        let plan = plan::exchange(self.across, self.me, nelems);
        // SAFETY: the caller's promise.
        unsafe { self.run(&plan, &Memory { source, dest }, |_, _, _| {}) };
    }

    /// Combines the elements of all members.
    ///
    /// # Safety
    /// As [`super::reduce`].
    pub unsafe fn reduce<O: Combine<T>, T: Copy>(&self, memory: &Memory<T>, elements: usize) {
        let reduction = Reduction {
            elements,
            is_exact: O::IS_EXACT,
            in_place: memory.source.0 == memory.dest.0.cast_const(),
            line: (LINE_BYTES / size_of::<T>()).max(1),
            part: PART_BYTES / size_of::<T>(),
            room: WORKSPACE_BYTES / size_of::<T>(),
        };
        let plan = plan::reduce(self.across, self.me, &reduction);
        // SAFETY: the caller's promise.
        unsafe {
            self.run(&plan, memory, |to, count, of: &[*const T]| {
                combine_chunks::<O, T>(
                    count,
                    of.len(),
                    |operand| of[operand],
                    |first, from, count| {
                        std::ptr::copy_nonoverlapping(from, to.wrapping_add(first), count);
                    },
                );
            });
        }
    }
}

/// Has a team whose members are on several hosts do something in a collective.
pub(super) fn with_team<R>(
    call: &str,
    team: &Team,
    collective: Collective,
    act: impl FnOnce(&Group<'_>) -> R,
) -> R {
    let across = team.across();
    let meet = |step: Step| steps::meet_across(call, team, collective, step);
    let pe = |member: usize| team.pe(member);
    act(&Group { call, across: &across, me: team.me(), pe: &pe, meet: &meet })
}

/// Copies the elements of one member to all.
///
/// # Safety
/// As [`super::broadcast`].
pub(super) unsafe fn broadcast<T>(
    call: &str,
    team: &Team,
    dest: *mut T,
    source: *const T,
    nelems: usize,
    root: usize,
) {
    let bytes = nelems.saturating_mul(size_of::<T>());
    let collective = steps::begin(call, team);
    if bytes > STAGE_BYTES {
        // SAFETY: the caller's promise.
        let copy = |group: &Group<'_>| unsafe {
            group.broadcast(&Memory::new(source, dest), nelems, root, true);
        };
        return with_team(call, team, collective, copy);
    }
    let is_root = team.me() == root;
    let staged = staging(team, root, collective);
    if is_root {
        // SAFETY: the staging buffer has this room, and nobody reads it: `begin` made sure.
        unsafe { copy::<u8>(source.cast(), staged, bytes) };
        steps::show_staging(team, collective, bytes);
        steps::reach(team, collective, Step::Ready);
        steps::show_progress(team);
    } else {
        steps::wait_for(call, team, root, collective, Step::Ready);
    }
    if dest.cast_const() != source || !is_root {
        // SAFETY: the caller promises the room; the buffer is that of the root or its copy.
        unsafe { copy::<u8>(staged, dest.cast(), bytes) };
    }
    steps::reach(team, collective, Step::Read);
}
