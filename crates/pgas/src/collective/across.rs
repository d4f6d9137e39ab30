//! Collectives whose members are on several hosts, as far as they differ from those of one.

use crate::far::calls;
use crate::number::Combine;
use crate::order;
use crate::rma::copy;
use crate::space::{self, Reach};
use crate::team::Team;

use super::reduce::{combine_first, slice};
use super::steps::{self, Meeting, Step};
use super::{STAGE_BYTES, copy_strided, staging};

/// Bytes of a slice that are combined at a time: a get of the fabric moves as many at once.
const PART_BYTES: usize = 64 << 10;

/// Copies elements at a symmetric address of any PE.
///
/// # Safety
/// `to` must have room for them.
pub(crate) unsafe fn pull<T>(
    call: &str,
    pe: usize,
    symmetric: *const T,
    elements: usize,
    to: *mut T,
) {
    let bytes = elements.saturating_mul(size_of::<T>());
    match space::reach_of(pe) {
        Reach::Near(pe) => {
            let from = space::remote(call, symmetric.addr(), bytes, pe);
            // SAFETY: `remote` checked the source; the caller promises the room.
            unsafe { copy::<u8>(from, to.cast(), bytes) };
        }
        // SAFETY: the caller promises the room.
        Reach::Far(pe) => unsafe {
            calls::get(call, pe, symmetric.addr(), to.cast(), bytes, true);
        },
    }
}

/// Copies elements to a symmetric address of any PE. On other hosts they are there after a quiet.
///
/// # Safety
/// `from` must have them.
unsafe fn push<T>(call: &str, pe: usize, symmetric: *const T, elements: usize, from: *const T) {
    let bytes = elements.saturating_mul(size_of::<T>());
    match space::reach_of(pe) {
        Reach::Near(pe) => {
            let to = space::remote(call, symmetric.addr(), bytes, pe);
            // SAFETY: `remote` checked the destination; the caller promises the source.
            unsafe { copy::<u8>(from.cast(), to, bytes) };
        }
        // SAFETY: the caller promises the source.
        Reach::Far(pe) => unsafe {
            calls::put(call, pe, symmetric.addr(), from.cast(), bytes, false);
        },
    }
}

/// The data of a member.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<T> {
    /// Memory of this process.
    Here(*const T),
    /// A symmetric address of a PE of another host.
    There(usize, *const T),
}

impl<T> Data<T> {
    /// Elements at a symmetric address of a PE.
    #[inline(always)]
    pub fn of(call: &str, pe: usize, symmetric: *const T, elements: usize) -> Self {
        if space::is_all_near() || !space::is_far(pe) {
            let bytes = elements.saturating_mul(size_of::<T>());
            Self::Here(space::remote(call, symmetric.addr(), bytes, pe).cast())
        } else {
            Self::There(pe, symmetric)
        }
    }

    /// Copies elements at a stride, from the one with a number on, to elements at a stride.
    ///
    /// # Safety
    /// The data must have them, and `to` room for them.
    #[inline(always)]
    pub unsafe fn copy(
        self,
        call: &str,
        (first, sst): (isize, isize),
        (to, dst): (*mut T, isize),
        elements: usize,
    ) {
        match self {
            Self::Here(from) => {
                // SAFETY: the caller's promise.
                unsafe { copy_strided((from.wrapping_offset(first), sst), (to, dst), elements) };
            }
            Self::There(pe, from) => {
                let from = from.wrapping_offset(first);
                // SAFETY: the caller's promise.
                unsafe { pull_strided(call, pe, (from, sst), (to, dst), elements) };
            }
        }
    }
}

/// # Safety
/// The PE must have the elements at their stride, and `to` room for them.
#[inline(never)]
unsafe fn pull_strided<T>(
    call: &str,
    pe: usize,
    (from, sst): (*const T, isize),
    (to, dst): (*mut T, isize),
    elements: usize,
) {
    if (sst, dst) == (1, 1) {
        // SAFETY: the caller's promise.
        return unsafe { pull(call, pe, from, elements, to) };
    }
    for index in 0..elements.cast_signed() {
        let from = from.wrapping_offset(index.wrapping_mul(sst));
        let to = to.wrapping_offset(index.wrapping_mul(dst));
        // The last one waits for all: answers come in order.
        let is_last = index + 1 == elements.cast_signed();
        // SAFETY: the caller's promise.
        unsafe { calls::get(call, pe, from.addr(), to.cast(), size_of::<T>(), is_last) };
    }
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
    let is_root = team.me() == root;
    if bytes <= STAGE_BYTES {
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
        return steps::reach(team, collective, Step::Read);
    }
    // The source is ready and all destinations are free.
    steps::meet(call, team, collective, Step::Ready, Meeting::Bare);
    let across = team.across();
    let leader = across.leaders[across.own];
    if is_root {
        if dest.cast_const() != source {
            // SAFETY: both are the caller's own.
            unsafe { copy::<u8>(source.cast(), dest.cast(), bytes) };
        }
    } else if across.near.contains(&root) || team.me() == leader {
        // SAFETY: the caller promises the room.
        unsafe { pull(call, team.pe(root), source, nelems, dest) };
        steps::reach(team, collective, Step::Copied);
    } else {
        steps::wait_for(call, team, leader, collective, Step::Copied);
        // SAFETY: the caller promises the room.
        unsafe { pull(call, team.pe(leader), dest, nelems, dest) };
    }
    steps::meet(call, team, collective, Step::Read, Meeting::Bare);
}

/// Combines one slice of all sources and stores it into all destinations, as
/// [`super::combine_slices`]. `pe` gives the PE of a member.
///
/// # Safety
/// As there: all PEs have the elements at the symmetric addresses.
pub(crate) unsafe fn combine_slices_across<O: Combine<T>, T: Copy>(
    call: &str,
    (me, members, elements): (usize, usize, usize),
    source: *const T,
    dest: *const T,
    pe: impl Fn(usize) -> usize,
) {
    let own = slice::<T>(me, members, elements);
    let part = PART_BYTES / size_of::<T>();
    let mut combined: Vec<T> = Vec::with_capacity(part);
    let mut others: Vec<T> = Vec::with_capacity(part);
    for first in own.clone().step_by(part) {
        let count = part.min(own.end - first);
        let (to, next) = (combined.as_mut_ptr(), others.as_mut_ptr());
        let from = source.wrapping_add(first);
        // SAFETY: both have room for a part.
        unsafe {
            pull(call, pe(0), from, count, to);
            for member in 1..members {
                pull(call, pe(member), from, count, next);
                let pair = |which| if which == 0 { to.cast_const() } else { next.cast_const() };
                combine_first::<O, T>(to, count, 2, pair);
            }
            for turn in 0..members {
                push(call, pe((me + turn) % members), dest.wrapping_add(first), count, to);
            }
        }
    }
    order::quiet_far(call);
}
