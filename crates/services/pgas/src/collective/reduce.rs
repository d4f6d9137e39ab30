//! Reductions and scans, always in the order of the members: floating point has the same bits at
//! all of them and in each run.
//!
//! Long reductions are divided: each member combines its slice of all sources and stores it into
//! all destinations. It goes through a small buffer, so that source and destination may be one.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use crate::number::{Combine, Sum};
use crate::rma::copy;
use crate::team::{Team, TeamHandle};

use super::across::{Memory, with_team};
use super::plan::slice;
use super::steps::{self, Meeting, Step};
use super::{BUFFER_BYTES, STAGE_BYTES, at, compare, staging};

/// Bytes that are combined at a time: they stay in the processor's first cache.
const CHUNK_BYTES: usize = 4096;
/// Slices begin at a line of the cache, so that two members do not write one.
pub(super) const LINE_BYTES: usize = 64;

/// Combines the elements of all members.
///
/// # Safety
/// `source` must have `nreduce` elements, and `dest` room for them; they are the same or do not
/// overlap.
pub unsafe fn reduce<O: Combine<T>, T: Copy>(
    call: &str,
    team: TeamHandle,
    dest: *mut T,
    source: *const T,
    nreduce: usize,
) -> c_int {
    let Some(team) = team.team(call) else { return -1 };
    compare(call, team, dest, nreduce, 0);
    if nreduce == 0 {
        steps::sync(call, team);
    } else if nreduce.saturating_mul(size_of::<T>()) <= STAGE_BYTES {
        // SAFETY: the caller's promise.
        unsafe { reduce_staged::<O, T>(call, team, dest, source, nreduce, team.size()) };
    } else if team.is_across() {
        let (collective, memory) = (steps::begin(call, team), Memory::new(source, dest));
        // SAFETY: the caller's promise.
        with_team(call, team, collective, |group| unsafe {
            group.reduce::<O, T>(&memory, nreduce)
        });
    } else {
        let collective = steps::begin(call, team);
        steps::meet(call, team, collective, Step::Ready, Meeting::Bare);
        let member_at = |member: usize, address: *const T| at(call, team, member, address, nreduce);
        // SAFETY: all members are in this call, so their sources are ready and their destinations
        // free; that both are there is checked.
        unsafe {
            combine_slices::<O, T>(team.me(), team.size(), nreduce, source, dest, member_at);
        }
        steps::meet(call, team, collective, Step::Read, Meeting::Bare);
    }
    0
}

/// Combines the elements of the first `members` members, which fit into staging buffers.
///
/// # Safety
/// As [`reduce`].
unsafe fn reduce_staged<O: Combine<T>, T: Copy>(
    call: &str,
    team: &Team,
    dest: *mut T,
    source: *const T,
    elements: usize,
    members: usize,
) {
    let collective = steps::begin(call, team);
    let own = staging(team, team.me(), collective);
    // SAFETY: the caller's source has the elements; the buffer has the room and no reader.
    unsafe { copy::<u8>(source.cast(), own, elements * size_of::<T>()) };
    if team.is_across() {
        steps::show_staging(team, collective, elements * size_of::<T>());
    }
    steps::meet(call, team, collective, Step::Ready, Meeting::Data);
    let staged = |member| staging(team, member, collective).cast::<T>().cast_const();
    // SAFETY: the buffers hold the elements of their members, who write them again only when this
    // one has gone on.
    unsafe { combine_first::<O, T>(dest, elements, members, staged) };
}

/// Combines elements of the first members into `dest`.
///
/// # Safety
/// `dest` and what `of` gives must have the elements; no source may overlap `dest`.
pub(crate) unsafe fn combine_first<O: Combine<T>, T: Copy>(
    dest: *mut T,
    elements: usize,
    members: usize,
    of: impl Fn(usize) -> *const T,
) {
    if members == 0 {
        // SAFETY: the caller's promise. Zero is the number zero in every type of the table.
        unsafe { dest.write_bytes(0, elements) };
        return;
    }
    if members == 1 {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(of(0), dest, elements) };
        return;
    }
    let (first, second) = (of(0), of(1));
    for index in 0..elements {
        // SAFETY: the caller's promise.
        unsafe { *dest.add(index) = O::combine(*first.add(index), *second.add(index)) };
    }
    for member in 2..members {
        let from = of(member);
        for index in 0..elements {
            // SAFETY: the caller's promise.
            unsafe { *dest.add(index) = O::combine(*dest.add(index), *from.add(index)) };
        }
    }
}

/// Combines elements of some members, so many of each, through a buffer. `store` gets the number of
/// the first element of each chunk, the results, and how many they are.
///
/// # Safety
/// Each source that `of` gives must have the elements until they are stored.
pub(crate) unsafe fn combine_chunks<O: Combine<T>, T: Copy>(
    elements: usize,
    members: usize,
    of: impl Fn(usize) -> *const T,
    store: impl Fn(usize, *const T, usize),
) {
    let chunk = CHUNK_BYTES / size_of::<T>();
    let mut buffer = MaybeUninit::<[LineOfBytes; CHUNK_BYTES / LINE_BYTES]>::uninit();
    let combined = buffer.as_mut_ptr().cast::<T>();
    for first in (0..elements).step_by(chunk) {
        let count = chunk.min(elements - first);
        let of = |member| of(member).wrapping_add(first);
        // SAFETY: the buffer has the room, and is aligned for every type of the table; the caller
        // promises the sources.
        unsafe { combine_first::<O, T>(combined, count, members, of) };
        store(first, combined, count);
    }
}

/// Combines one slice of all sources and stores it into all destinations.
///
/// # Safety
/// `at` must give the memory of each member at `source` and at `dest`, with all elements. Nobody
/// else may write to this slice, and sources and destinations are the same or do not overlap.
pub(crate) unsafe fn combine_slices<O: Combine<T>, T: Copy>(
    me: usize,
    members: usize,
    elements: usize,
    source: *const T,
    dest: *const T,
    at: impl Fn(usize, *const T) -> *mut T,
) {
    let own = slice(me, members, elements, (LINE_BYTES / size_of::<T>()).max(1));
    let of = |member| at(member, source).cast_const().wrapping_add(own.start);
    // SAFETY: the caller promises the sources and the destinations.
    unsafe {
        combine_chunks::<O, T>(own.len(), members, of, |first, combined, count| {
            for turn in 0..members {
                let to = at((me + turn) % members, dest).wrapping_add(own.start + first);
                std::ptr::copy_nonoverlapping(combined, to, count);
            }
        });
    }
}

#[repr(align(64))]
#[derive(Clone, Copy)]
#[expect(dead_code, reason = "it has a size and an alignment")]
struct LineOfBytes([u8; LINE_BYTES]);

/// Sums the elements of the members up to this one.
///
/// # Safety
/// As [`reduce`].
pub unsafe fn inscan<T: Copy>(
    call: &str,
    team: TeamHandle,
    dest: *mut T,
    source: *const T,
    nelems: usize,
) -> c_int
where
    Sum: Combine<T>,
{
    // SAFETY: the caller's promise.
    unsafe { scan(call, team, dest, source, nelems, 1) }
}

/// Sums the elements of the members before this one.
///
/// # Safety
/// As [`reduce`].
pub unsafe fn exscan<T: Copy>(
    call: &str,
    team: TeamHandle,
    dest: *mut T,
    source: *const T,
    nelems: usize,
) -> c_int
where
    Sum: Combine<T>,
{
    // SAFETY: the caller's promise.
    unsafe { scan(call, team, dest, source, nelems, 0) }
}

/// Sums a part at a time, each through the staging buffers.
///
/// # Safety
/// As [`reduce`].
unsafe fn scan<T: Copy>(
    call: &str,
    team: TeamHandle,
    dest: *mut T,
    source: *const T,
    nelems: usize,
    with_own: usize,
) -> c_int
where
    Sum: Combine<T>,
{
    let Some(team) = team.team(call) else { return -1 };
    compare(call, team, dest, nelems, 0);
    if nelems == 0 {
        steps::sync(call, team);
        return 0;
    }
    let chunk = BUFFER_BYTES / size_of::<T>();
    for first in (0..nelems).step_by(chunk) {
        let count = chunk.min(nelems - first);
        let (to, from) = (dest.wrapping_add(first), source.wrapping_add(first));
        // SAFETY: the caller's promise.
        unsafe {
            reduce_staged::<Sum, T>(call, team, to, from, count, team.me() + with_own);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::number::{Max, Product};

    /// Runs all members' slices one after the other, and gives the destination of each.
    fn run<O: Combine<i64>>(sources: &[Vec<i64>], in_place: bool) -> Vec<Vec<i64>> {
        let (members, elements) = (sources.len(), sources[0].len());
        let mut from = sources.to_vec();
        let mut to = vec![vec![0; elements]; members];
        let sources: Vec<*mut i64> = from.iter_mut().map(|list| list.as_mut_ptr()).collect();
        let dests: Vec<*mut i64> = to.iter_mut().map(|list| list.as_mut_ptr()).collect();
        let (source, dest) = (std::ptr::without_provenance(8), std::ptr::without_provenance(16));
        for me in 0..members {
            let dest = if in_place { source } else { dest };
            let at = |member: usize, address: *const i64| {
                if address == source { sources[member] } else { dests[member] }
            };
            // SAFETY: each member has its elements, and one runs at a time.
            unsafe { combine_slices::<O, i64>(me, members, elements, source, dest, at) };
        }
        if in_place { from } else { to }
    }

    proptest! {
        #[test]
        fn every_member_has_the_result_also_in_place(
            members in 1_usize..6, elements in 1_usize..1500, seed in any::<i64>()
        ) {
            let value = |member: usize, index: usize| {
                seed.wrapping_mul((member * 31 + index) as i64 + 1) >> 7
            };
            let sources: Vec<Vec<i64>> = (0..members)
                .map(|member| (0..elements).map(|index| value(member, index)).collect())
                .collect();
            let folded = |combine: fn(i64, i64) -> i64| -> Vec<i64> {
                (0..elements)
                    .map(|index| (0..members).map(|m| value(m, index)).reduce(combine).unwrap())
                    .collect()
            };
            for in_place in [false, true] {
                for list in run::<Sum>(&sources, in_place) {
                    prop_assert_eq!(list, folded(i64::wrapping_add));
                }
                for list in run::<Max>(&sources, in_place) {
                    prop_assert_eq!(list, folded(i64::max));
                }
                for list in run::<Product>(&sources, in_place) {
                    prop_assert_eq!(list, folded(i64::wrapping_mul));
                }
            }
        }
    }
}
